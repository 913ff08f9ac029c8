"""OpenVINO: float32, bfloat16 and, with NNCF, eight bits on the CPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ingestor.encoding.encoder import load_model
from ingestor.encoding.families import FAMILIES
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.runtimes.graph import EXAMPLE_SHAPE, INPUTS, Graph, example, inputs_of, quiet
from ingestor.errors import ConfigError, EncoderError, ResourceError, installing, one_line

MODEL = "model.xml"
_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}  # int8: of what is not quantized


def library() -> Any:
    """The package, without the part that reports its use to its makers.

    Raises:
        ConfigError: it is not installed.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)
    try:
        import openvino
    except ImportError as error:
        raise ConfigError(
            f"OpenVINO is not installed here ({error}): {installing('openvino')}, or set"
            " encoder.runtime to torch and encoder.precision to float32"
        ) from error
    return openvino


def export(spec: ModelSpec, folder: Path) -> None:
    """Write a model, in float32, as OpenVINO's files.

    Raises:
        EncoderError: OpenVINO does not know all that it does.
        ResourceError: there is no room for the files.
    """
    ov = library()
    model = load_model(spec, torch.float32)
    if FAMILIES[spec.architecture].windowed:  # OpenVINO's own gives NaN where a window holds padding alone
        model.set_attn_implementation("eager")
    graph = Graph(model).eval()
    inputs = [(ov.PartialShape([-1] * len(EXAMPLE_SHAPE)), ov.Type.i64)] * len(INPUTS)
    try:
        with quiet(), torch.inference_mode():
            found = ov.convert_model(graph, example_input=example(), input=inputs)
    except Exception as error:  # it may raise anything
        raise EncoderError(
            f"OpenVINO cannot take this model ({spec.architecture}); set encoder.runtime to torch:"
            f" {one_line(error, 300)}"
        ) from error
    save(found, folder)


def save(model: Any, folder: Path) -> None:
    """Write a model's files.

    Raises:
        ResourceError: there is no room for them, or the disk fails.
    """
    try:
        library().save_model(model, folder / MODEL, compress_to_fp16=False)
    except RuntimeError as error:  # it does not say why
        free = shutil.disk_usage(folder).free >> 20
        raise ResourceError(
            f"{folder}: OpenVINO cannot write a model there, {free:,} MiB are free; make room on the disk and"
            f" run again: {one_line(error, 300)}"
        ) from error


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Tell of files that OpenVINO cannot read.

    Raises:
        ResourceError: they are damaged, or of a later version.
    """
    try:
        yield
    except RuntimeError as error:
        raise ResourceError(
            f"{folder}: OpenVINO cannot load it; remove it and run again: {one_line(error, 300)}"
        ) from error


class OpenVinoHidden:
    """A model's hidden states, computed on the CPU.

    Args:
        folder: holds its files.
        precision: float32, bfloat16 or int8, of what the files hold.

    Raises:
        ResourceError: the files cannot be read.
    """

    padding = 0  # no model looks at it

    def __init__(self, folder: Path, *, precision: str) -> None:
        options = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],  # else what the processor is fastest with
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # other processes need these cores, too
        }
        with loading(folder):
            compiled = library().Core().compile_model(folder / MODEL, "CPU", options)
        self._request = compiled.create_infer_request()

    def __call__(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        return torch.from_numpy(self._request.infer(inputs_of(tokens, real), share_inputs=True)[0])

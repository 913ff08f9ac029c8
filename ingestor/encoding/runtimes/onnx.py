"""ONNX Runtime: float32 by the first of its execution providers that works here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ingestor.encoding.encoder import load_model
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.runtimes.graph import INPUTS, Graph, example, inputs_of, quiet
from ingestor.errors import ConfigError, EncoderError, ResourceError, installing, one_line

MODEL = "model.onnx"
_OUTPUT = "hidden"
_OPSET = 17
_ERRORS = 3  # of what it logs by itself, nothing less
_OPTIONS: dict[str, dict[str, Any]] = {"CUDAExecutionProvider": {"use_tf32": 0}}  # else it is not float32


def library() -> Any:
    """The package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"ONNX Runtime is not installed here ({error}): {installing('onnx')}, or set"
            " encoder.runtime to torch"
        ) from error
    return onnxruntime


def demand_exporter() -> None:
    """See that what writes ONNX files is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("onnx") is None:
        raise ConfigError(
            "encoder.runtime: onnx needs the package onnx, which is not installed here:"
            f" {installing('onnx')}, or set encoder.runtime to torch"
        )


def export(spec: ModelSpec, folder: Path) -> None:
    """Write a model, in float32, as an ONNX file.

    Raises:
        ConfigError: what writes such files is not installed.
        EncoderError: they cannot hold all that it does.
        OSError: there is no room for the file.
    """
    demand_exporter()
    graph = Graph(load_model(spec, torch.float32)).eval()
    axes = {name: {0: "rows", 1: "longest"} for name in (*INPUTS, _OUTPUT)}
    try:
        with quiet(), torch.inference_mode():
            torch.onnx.export(
                graph,
                example(),
                folder / MODEL,
                input_names=list(INPUTS),
                output_names=[_OUTPUT],
                dynamic_axes=axes,
                opset_version=_OPSET,
                dynamo=False,
            )
    except OSError:
        raise
    except Exception as error:  # it may raise anything
        raise EncoderError(
            f"ONNX cannot take this model ({spec.architecture}); set encoder.runtime to torch:"
            f" {one_line(error, 300)}"
        ) from error


def choose(wanted: Sequence[str]) -> list[str]:
    """Those of the wanted providers that this ONNX Runtime has, in their order.

    Raises:
        ConfigError: none of them.
    """
    there = library().get_available_providers()
    found = [name for name in wanted if name in there]
    if not found:
        raise ConfigError(
            f"encoder.providers: {', '.join(wanted)}: this ONNX Runtime has only {', '.join(there)}; name one"
            " of these, or install the package that has the one you want (onnxruntime-gpu for CUDA, TensorRT)"
        )
    return found


class OnnxHidden:
    """A model's hidden states; what comes in and goes out lies in the host's memory.

    Args:
        folder: holds its file.
        providers: by preference.

    Attributes:
        provider: the one that computes it.

    Raises:
        ConfigError: none of the providers is there.
        ResourceError: the file cannot be read.
    """

    padding = 0  # no model looks at it

    def __init__(self, folder: Path, *, providers: Sequence[str]) -> None:
        runtime, chosen = library(), choose(providers)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = _ERRORS
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others need the cores
        try:
            self._session = runtime.InferenceSession(
                folder / MODEL,
                options,
                providers=[(name, _OPTIONS.get(name, {})) for name in chosen],
            )
        except Exception as error:  # its own kinds derive from nothing else
            raise ResourceError(
                f"{folder}: ONNX Runtime cannot load it; remove it and run again: {one_line(error, 300)}"
            ) from error
        self.provider: str = self._session.get_providers()[0]

    def __call__(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        given = dict(zip(INPUTS, inputs_of(tokens, real), strict=True))
        return torch.from_numpy(self._session.run([_OUTPUT], given)[0])

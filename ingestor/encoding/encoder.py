"""The model: from the tokens of a batch to one vector a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional

from ingestor.device import Device, DeviceBatch
from ingestor.encoding.families import FAMILIES, PACKED, Family
from ingestor.encoding.float8 import to_float8
from ingestor.encoding.head import Head
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.padded import PaddedEncoder, TorchHidden
from ingestor.errors import ConfigError, ModelError, one_line
from ingestor.records import Batch, Float32s

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Encoder(Protocol):
    """Turns tokens into vectors.

    Attributes:
        dimension: float32 values in a vector.
        packed: takes chunks back to back at no cost for padding, so batches need no sorting.
    """

    dimension: int
    packed: bool

    def forward(self, batch: DeviceBatch) -> Tensor:
        """float32[n, dimension] on the batch's device, pooled, of unit length where the model wants it."""


def load_encoder(spec: ModelSpec, *, device: Device, precision: str = "auto") -> Encoder:
    """Load the model's weights onto the device; blocks for seconds, so run it through `device.launch`.

    Args:
        spec: the model.
        device: where it shall run.
        precision: `auto`, `float32`, `float16`, `bfloat16` or `fp8`.

    Raises:
        ModelError: transformers cannot load it, or some of its weights are missing.
        ConfigError: the precision is none of these, or none for this model.
    """
    if not spec.folder:
        return HashEncoder(spec.dimension, device.torch_device)
    dtype = choose_dtype(spec, device, precision)
    model = load_model(spec, dtype).to(device.torch_device)
    from ingestor.encoding.packed import PackedEncoder, register_varlen

    if precision == "fp8":
        if spec.architecture not in PACKED:
            known = ", ".join(PACKED)
            raise ConfigError(f"encoder.precision: fp8 is for {known}, not for {spec.architecture}; set auto")
        to_float8(model)
    if device.torch_device.type == "cuda" and spec.architecture in PACKED and dtype != torch.float32:
        return PackedEncoder(model, spec, attention=register_varlen())
    return PaddedEncoder(TorchHidden(model, spec), Head(spec, device.torch_device))


def choose_dtype(spec: ModelSpec, device: Device, precision: str) -> torch.dtype:
    """The type of the weights and of the arithmetic inside the model; vectors are float32 always.

    Raises:
        ConfigError: there is no such precision.
    """
    if precision not in ("auto", "fp8"):
        if precision not in DTYPES:
            raise ConfigError(f"encoder.precision: {precision!r} is none of auto, {', '.join(DTYPES)}")
        return DTYPES[precision]
    if device.torch_device.type == "cpu":
        return torch.float32
    return torch.float16 if FAMILIES.get(spec.architecture, Family()).float16_is_safe else torch.bfloat16


def load_model(spec: ModelSpec, dtype: torch.dtype) -> Any:
    """The transformer without its pooler, ready for inference.

    Raises:
        ModelError: transformers cannot load it, or some of its weights are missing.
    """
    from transformers import AutoModel

    try:
        with quiet_transformers():
            model, loading = AutoModel.from_pretrained(
                spec.folder, local_files_only=True, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{spec.name}: transformers cannot load it: {one_line(error)}") from error
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ModelError(f"{spec.name}: {spec.folder} lacks the weights {', '.join(missing[:3])} …")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # its output is not used
    model.config.use_cache = False
    return model.eval().requires_grad_(False)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without its remarks and progress bars."""
    from transformers.utils import logging

    shown = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(shown)


class HashEncoder:
    """Vectors from nothing but the token ids: for trials of everything around the model.

    The same tokens give the same unit vector in any batch and on any device; other tokens give another.
    """

    packed = True

    def __init__(self, dimension: int, torch_device: torch.device | None = None) -> None:
        self.dimension = dimension
        columns = torch.arange(1, dimension + 1, dtype=torch.int64, device=torch_device)
        self._columns = _mix(columns * _ODD)

    def forward(self, batch: DeviceBatch) -> Tensor:
        tokens = batch.tokens.long()
        ends = batch.offsets.long()
        lengths = ends.diff()
        places = torch.arange(len(tokens), device=tokens.device)
        places = places - torch.repeat_interleave(ends[:-1], lengths, output_size=len(tokens))
        sums = functional.pad(_mix((tokens + 1) * _ODD + places).cumsum(0), (1, 0))
        seeds = _mix(sums[ends[1:]] - sums[ends[:-1]] + lengths)
        values = _mix(seeds[:, None] ^ self._columns) >> 40
        return functional.normalize(values.float() + 0.5, dim=1)


_ODD = 0x1E3779B97F4A7C15


def _mix(numbers: Tensor) -> Tensor:
    """Spread each int64 over all its bits; overflow wraps around."""
    numbers = (numbers ^ (numbers >> 29)) * 0x3F58476D1CE4E5B9
    return (numbers ^ (numbers >> 32)) * 0x14D049BB133111EB


def embed(batch: Batch, *, encoder: Encoder, device: Device) -> Float32s:
    """float32[n, dimension] of one batch, at once, for commands; run it through `device.launch`."""
    embeddings = device.compute(device.upload(batch), encoder.forward)
    embeddings.ready.synchronize()  # the copy below is on another stream
    found = np.empty((len(batch.points), encoder.dimension), np.float32)
    torch.from_numpy(found).copy_(embeddings.vectors)
    return found

"""From the hidden states of tokens to the vector of each chunk."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ingestor.encoding.model import ModelSpec
from ingestor.encoding.model_modules import LAYER_WEIGHTS, Layer
from ingestor.errors import ModelError, one_line


class Head:
    """Pools hidden states, takes them through the modules behind the pooling, and cuts and normalizes them.

    Args:
        spec: the model's.
        torch_device: where the hidden states are.

    Raises:
        ModelError: a module's weights are not what they should be.
    """

    def __init__(self, spec: ModelSpec, torch_device: torch.device | None = None) -> None:
        self.dimension = spec.dimension
        self._pooling = spec.pooling
        self._normalize = spec.normalize
        self._layers = [_load(spec.name, layer).to(torch_device) for layer in spec.layers]

    def padded(self, hidden: Tensor, real: Tensor | None, lengths: Tensor) -> Tensor:
        """float32[n, dimension] of hidden states [n, longest, width]; `real` tells tokens from padding."""
        if self._pooling == "cls":
            return self._finish(hidden[:, 0])
        if self._pooling == "last":
            rows = torch.arange(len(hidden), device=hidden.device)
            return self._finish(hidden[rows, lengths - 1])
        counted = hidden if real is None else hidden * real[:, :, None]
        return self._finish(counted.sum(1, dtype=torch.float32) / lengths[:, None])

    def packed(self, hidden: Tensor, offsets: Tensor) -> Tensor:
        """float32[n, dimension] of hidden states [T, width], back to back; `offsets` is [n + 1]."""
        if self._pooling == "cls":
            return self._finish(hidden.index_select(0, offsets[:-1]))
        if self._pooling == "last":
            return self._finish(hidden.index_select(0, offsets[1:] - 1))
        # Not index_add: its atomics add in another order each time. `unsafe` leaves out a check that waits.
        sums = torch.segment_reduce(hidden.float(), "mean", offsets=offsets, axis=0, unsafe=True)
        return self._finish(sums)

    def _finish(self, vectors: Tensor) -> Tensor:
        vectors = vectors.float()
        for layer in self._layers:
            vectors = layer(vectors)
        vectors = vectors[:, : self.dimension]
        return functional.normalize(vectors, dim=1) if self._normalize else vectors


class _Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=1)


def _load(model: str, layer: Layer) -> nn.Module:
    """A module with its weights, in float32: it sees one vector a chunk, so that costs nothing."""
    from safetensors.torch import load_file

    if layer.kind == "Normalize":
        return _Normalize()
    is_dense = layer.kind == "Dense"
    dense = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
    name, inner = ("linear", dense) if is_dense else ("norm", nn.LayerNorm(layer.inputs))
    weights = load_file(Path(layer.folder, LAYER_WEIGHTS))
    try:
        inner.load_state_dict({key.removeprefix(f"{name}."): value.float() for key, value in weights.items()})
    except RuntimeError as error:
        said = one_line(error)
        raise ModelError(f"{model}: the weights in {layer.folder} are of another module: {said}") from error
    activation: nn.Module = getattr(nn, layer.activation)()
    return nn.Sequential(inner, activation).eval().requires_grad_(False)

"""Chunks as a rectangle of tokens through a model that any runtime may compute."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ingestor.device import DeviceBatch
from ingestor.encoding.families import FAMILIES
from ingestor.encoding.head import Head
from ingestor.encoding.model import ModelSpec


class Hidden(Protocol):
    """A model's forward, up to its hidden states.

    Attributes:
        padding: the token that fills up rows.
    """

    padding: int

    def __call__(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """float[n, longest, width] for int[n, longest]; `real` is bool[n, longest], None without padding."""


class PaddedEncoder:
    """Runs a model on a rectangle of tokens; best with chunks of like length together.

    Args:
        hidden: the model.
        head: makes vectors of its hidden states.
    """

    packed = False

    def __init__(self, hidden: Hidden, head: Head) -> None:
        self.dimension = head.dimension
        self._hidden = hidden
        self._head = head

    def forward(self, batch: DeviceBatch) -> Tensor:
        longest = batch.longest
        places = torch.arange(longest, device=batch.tokens.device)
        lengths = batch.offsets.diff()
        if len(batch.tokens) == batch.rows * longest:  # no mask needed: attention is faster without
            return self._head.padded(self._hidden(batch.tokens.view(-1, longest), None), None, lengths)
        real = places < lengths[:, None]
        source = (batch.offsets[:-1, None] + places).clamp_(max=len(batch.tokens) - 1)
        tokens = torch.where(real, batch.tokens[source], self._hidden.padding)
        return self._head.padded(self._hidden(tokens, real), real, lengths)


class TorchHidden:
    """A model of transformers, computed by torch itself."""

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        self.padding = model.config.pad_token_id or 0
        self._model = model
        self._takes_any_mask = FAMILIES[spec.architecture].takes_any_mask
        if spec.architecture == "mpnet":
            _keep_position_bias(model)

    def __call__(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        mask = None if real is None else self._mask(real)
        found: Tensor = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
        return found

    def _mask(self, real: Tensor) -> Tensor:
        """For bool[n, longest]. On a GPU as what is added to attention's scores where the model takes that:
        it is used as it is, while transformers looks into a mask of ones and zeros, and waits for that.
        """
        if real.device.type == "cpu" or not self._takes_any_mask:
            return real.long()
        added = torch.zeros(real.shape, dtype=self._model.dtype, device=real.device)
        added.masked_fill_(~real, torch.finfo(added.dtype).min)
        return added[:, None, None, :].expand(-1, -1, real.shape[1], -1)


def _keep_position_bias(model: Any) -> None:
    """Have MPNet use one bias of positions for all batches: transformers makes one for each row of each, some
    of its versions on the host, which the device then waits for.
    """
    most = model.config.max_position_embeddings
    bias = model.encoder.compute_position_bias(torch.empty(1, most, 0, device=model.device))
    model.encoder.compute_position_bias = lambda hidden: bias[:, :, : hidden.shape[1], : hidden.shape[1]]

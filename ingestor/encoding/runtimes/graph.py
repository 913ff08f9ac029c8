"""A model of transformers as other runtimes take it: from tokens and mask to hidden states."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ingestor.encoding.encoder import quiet_transformers

INPUTS = ("input_ids", "attention_mask")
EXAMPLE_SHAPE = (2, 7)
"""Of what the model is traced with: neither number is one that a model treats in a way of its own."""


class Graph(nn.Module):
    """What is exported."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return found


def example() -> tuple[Tensor, Tensor]:
    """Inputs to trace a model with; some of it is padding, or the mask would be left out of the graph."""
    rows, longest = EXAMPLE_SHAPE
    mask = torch.ones(EXAMPLE_SHAPE, dtype=torch.int64)
    mask[rows - 1, longest - 2 :] = 0
    return torch.arange(5, 5 + rows * longest).view(EXAMPLE_SHAPE), mask


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that tracing a model of transformers gives each time."""
    with warnings.catch_warnings(), quiet_transformers():
        warnings.simplefilter("ignore")
        yield


def inputs_of(tokens: Tensor, real: Tensor | None) -> list[Any]:
    """int64[n, longest] twice, tokens and mask, as arrays."""
    mask = torch.ones_like(tokens, dtype=torch.int64) if real is None else real.long()
    return [tokens.long().numpy(), mask.numpy()]

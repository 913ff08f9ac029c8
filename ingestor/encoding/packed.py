"""Chunks back to back through a model of transformers, without padding.

The model sees one row of tokens; its attention is replaced by one that knows where each chunk begins.
"""

from __future__ import annotations

import copy
import inspect
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ingestor.device import DeviceBatch
from ingestor.encoding.families import FAMILIES
from ingestor.encoding.head import Head
from ingestor.encoding.model import ModelSpec


class PackedEncoder:
    """Runs a model whose family packs on one row of tokens.

    Args:
        model: from `load_model`, on its device.
        spec: the model's.
        attention: name under which the attention is registered with transformers.
    """

    packed = True

    def __init__(self, model: Any, spec: ModelSpec, *, attention: str) -> None:
        model.set_attn_implementation(attention)
        self.dimension = spec.dimension
        self._model = model
        self._head = Head(spec, model.device)
        family = FAMILIES[spec.architecture]
        self._first = model.config.pad_token_id + 1 if family.positions_after_padding else 0
        # Masks in a mapping are taken as they are; else the model would look at the positions, and wait.
        by_layer = {"full_attention": None, "sliding_attention": None}
        self._mask = by_layer if family.mask_by_layer else None
        self._most: int | None = None

    def compiled(self, most_tokens: int, *, backend: str = "inductor") -> PackedEncoder:
        """The same encoder, whose first forward compiles; a chunk has at most `most_tokens`."""
        twin = copy.copy(self)
        twin._model = with_layers_compiled(self._model, backend)
        twin._most = most_tokens
        return twin

    def forward(self, batch: DeviceBatch) -> Tensor:
        tokens, offsets, longest = batch.tokens[None], batch.offsets, self._most
        if longest is None:
            longest = batch.longest
        else:  # what was compiled holds for any batch: a fixed longest chunk, and no view of another tensor
            offsets = offsets.clone()
        hidden = self._model(
            input_ids=tokens,
            position_ids=self._positions(batch)[None],
            attention_mask=self._mask,
            cu_seq_lens_q=offsets,
            cu_seq_lens_k=offsets,
            max_length_q=longest,
            max_length_k=longest,
        ).last_hidden_state[0]
        return self._head.packed(hidden, batch.offsets)

    def _positions(self, batch: DeviceBatch) -> Tensor:
        """int64[T]: each chunk counts from the family's first position."""
        total = len(batch.tokens)
        starts = torch.repeat_interleave(batch.offsets[:-1], batch.offsets.diff(), output_size=total)
        return torch.arange(self._first, total + self._first, device=starts.device) - starts


def with_layers_compiled(model: nn.Module, backend: str) -> nn.Module:
    """A copy with the same tensors, whose layers run compiled: the first of a kind, for all of them."""
    tensors = chain(model.parameters(), model.buffers())
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    layers = max((part for part in twin.modules() if isinstance(part, nn.ModuleList)), key=len)
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)
    return twin


def register_varlen() -> str:
    """Make torch's attention over chunks of any length known to transformers; returns its name there."""
    from torch.nn.attention.varlen import varlen_attn
    from transformers import AttentionInterface, AttentionMaskInterface

    known = inspect.signature(varlen_attn).parameters

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        """Takes [1, heads, T, size] and gives [1, T, heads, size], as transformers has it."""
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        groups = query.shape[1] // key.shape[1]
        shared: dict[str, Any] = {}
        if groups > 1 and "enable_gqa" in known:
            shared["enable_gqa"] = True
        elif groups > 1:
            key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
        offsets, longest = options["cu_seq_lens_q"], options["max_length_q"]
        window = attention_window(module, options.get("sliding_window"))
        if "window_size" in known:
            shared["window_size"] = window
        elif window != (-1, -1):
            shared["is_causal"] = True
        found: Any = varlen_attn(
            query, key, value, offsets, offsets, longest, longest, scale=options.get("scaling"), **shared
        )
        return found.unsqueeze(0), None

    AttentionInterface.register("ingestor_varlen", attention)
    AttentionMaskInterface.register("ingestor_varlen", lambda *_, **__: None)
    return "ingestor_varlen"


def attention_window(module: Any, sliding_window: int | None) -> tuple[int, int]:
    """How many tokens to the left and to the right a token looks at, -1 for all.

    transformers counts the token itself into its sliding windows.
    """
    reach = -1 if sliding_window is None else sliding_window - 1
    return (reach, 0) if getattr(module, "is_causal", False) else (reach, reach)

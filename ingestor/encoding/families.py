"""The families of models whose vectors were held against sentence-transformers', and what each needs.

docs/models.md has them for people. What code there is in a model's repository says nothing about them that
transformers does not know, and is never run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """The models of one `model_type`.

    Attributes:
        packs: its attention can be replaced by one that knows where chunks begin. MPNet's cannot: it adds a
            bias to each pair of positions.
        float16_is_safe: its values never leave what float16 can hold.
        positions_after_padding: positions count on from the padding token's number.
        takes_any_mask: also one that is added to attention's scores as it is.
        mask_by_layer: takes a mapping of masks, one for each kind of layer.
        windowed: some layers look at a window of tokens.
    """

    packs: bool = True
    float16_is_safe: bool = False
    positions_after_padding: bool = False
    takes_any_mask: bool = False
    mask_by_layer: bool = False
    windowed: bool = False


_BERT = Family(float16_is_safe=True, takes_any_mask=True)
_ROBERTA = Family(float16_is_safe=True, positions_after_padding=True, takes_any_mask=True)

FAMILIES = {
    "bert": _BERT,
    "distilbert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "mpnet": Family(packs=False, positions_after_padding=True, takes_any_mask=True),
    "modernbert": Family(mask_by_layer=True, windowed=True),
    "nomic_bert": Family(),
    "qwen3": Family(mask_by_layer=True),
    "gemma3_text": Family(mask_by_layer=True, windowed=True),
}
PACKED = sorted(name for name, family in FAMILIES.items() if family.packs)

"""A model's own files, in the layout of transformers and sentence-transformers; its modules are elsewhere.

What is not understood is refused by name: a guess would give vectors that look right and are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingestor.encoding.families import FAMILIES
from ingestor.encoding.model_modules import read_json
from ingestor.errors import ModelError

_SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_HARMLESS_SETTINGS = {"modality_config", "module_output_name", "unpad_inputs", "backend"}
_HARMLESS_ARGUMENTS = {"dtype", "torch_dtype", "attn_implementation", "model_max_length", "use_cache"}


def read_config(model: str, folder: Path) -> dict[str, Any]:
    """config.json of a model that transformers has the code for.

    Raises:
        ModelError: it is of another family, or its weights are quantized.
    """
    config: dict[str, Any] = read_json(model, folder / "config.json", dict)
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{model}: {folder / 'config.json'} names no model_type")
    if kind not in FAMILIES:
        own_code = ", and needs code of its own, which is never run" if "auto_map" in config else ""
        known = ", ".join(FAMILIES)
        raise ModelError(f"{model}: the family {kind} is not supported{own_code}; those that are: {known}")
    if config.get("quantization_config"):
        raise ModelError(f"{model}: its weights are quantized, which is not supported")
    return config


def read_prompts(model: str, folder: Path) -> tuple[str, str]:
    """The prompts for documents and for queries that the model's authors named, "" where they named none.

    Raises:
        ModelError: it gives no single vector a text, or names a prompt that it does not have.
    """
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return "", ""
    config = read_json(model, path, dict)
    if config.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise ModelError(f"{model}: it is a {config['model_type']}, not a model that gives one vector a text")
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text is not None}
    default_name = config.get("default_prompt_name")
    if default_name is not None and default_name not in prompts:
        raise ModelError(f"{model}: {path} has no prompt {default_name!r}, which it names as the default")
    default = prompts.get(default_name, "")
    named = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    return next(named, default), prompts.get("query", default)


def read_truncate_dim(model: str, folder: Path) -> int | None:
    """How many values of a vector its authors would have kept; None for all."""
    path = folder / "config_sentence_transformers.json"
    found = read_json(model, path, dict).get("truncate_dim") if path.exists() else None
    if found is not None and (not isinstance(found, int) or found < 1):
        raise ModelError(f"{model}: {path} sets truncate_dim to {found!r}, which is no size")
    return found


def max_tokens(model: str, folder: Path, config: dict[str, Any]) -> int:
    """The longest input in tokens: what its authors set, and never more than it has positions for.

    Raises:
        ModelError: nothing says it.
    """
    bounds = [_settings(model, folder).get("max_seq_length")]
    tokenizer = folder / "tokenizer_config.json"
    if bounds[0] is None and tokenizer.exists():
        bounds.append(read_json(model, tokenizer, dict).get("model_max_length"))
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and FAMILIES[config["model_type"]].positions_after_padding:
        positions -= config.get("pad_token_id", 1) + 1
    known = [int(bound) for bound in (*bounds, positions) if bound is not None and 0 < bound < 1e9]
    if not known:
        raise ModelError(f"{model}: none of its files says how long an input may be (max_seq_length)")
    return min(known)


def lower_case(model: str, folder: Path) -> bool:
    """Whether sentence-transformers would lower the case before the tokenizer's own normalizer."""
    return bool(_settings(model, folder).get("do_lower_case"))


def _settings(model: str, folder: Path) -> dict[str, Any]:
    """The settings of sentence-transformers' Transformer module; refuses those that change vectors."""
    path = next((folder / name for name in _SETTINGS_FILES if (folder / name).exists()), None)
    settings: dict[str, Any] = {} if path is None else read_json(model, path, dict)
    for name, value in settings.items():
        if name in _HARMLESS_SETTINGS | {"max_seq_length", "do_lower_case"} or not value:
            continue
        if name == "transformer_task" and value == "feature-extraction":
            continue
        if isinstance(value, dict) and value.keys() <= _HARMLESS_ARGUMENTS:
            continue
        raise ModelError(f"{model}: {path} sets {name} to {value!r}, which is not supported")
    return settings

"""A model's own files, in the layout of transformers and sentence-transformers.

What is not understood is refused by name: a guess would give vectors that look right and are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestor.errors import ModelError

WEIGHTS = "model*.safetensors"

_NATIVE = {"bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "modernbert", "qwen3"}
"""Families whose own code in the repository, if any, says nothing that transformers does not know."""

_POSITIONS_AFTER_PADDING = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet"}

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}

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


@dataclass(frozen=True, slots=True)
class Modules:
    """What modules.json says, or its absence.

    Attributes:
        folder: holds the transformer.
        pooling: mean, cls or last; None where nothing says it.
        normalize: vectors get unit length.
        width: size of the vectors that are pooled, 0 where nothing says it.
        include_prompt: the prompt's tokens are pooled too.
    """

    folder: Path
    pooling: str | None
    normalize: bool
    width: int
    include_prompt: bool


def read_modules(model: str, folder: Path, *, weights: bool = True) -> Modules:
    """Read modules.json and what it points to.

    Args:
        model: as configured, for messages.
        folder: the model's.
        weights: demand that they are there.

    Raises:
        ModelError: there is a module other than Transformer, Pooling and Normalize, or a file is missing.
    """
    if not (folder / "modules.json").exists():
        _demand_files(model, folder, weights)
        return Modules(folder, None, False, 0, True)
    modules = _read(model, folder / "modules.json", list)
    kinds = [_kind(model, module) for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{model}: its modules are {', '.join(kinds)};"
            " only Transformer, Pooling and Normalize are supported"
        )
    transformer = folder / modules[0].get("path", "")
    _demand_files(model, transformer, weights)
    pooling = _read(model, folder / modules[1].get("path", "") / "config.json", dict)
    width = pooling.get("word_embedding_dimension") or pooling.get("embedding_dimension") or 0
    mode = _pooling_mode(model, pooling)
    return Modules(transformer, mode, len(kinds) == 3, width, pooling.get("include_prompt", True))


def read_config(model: str, folder: Path) -> dict[str, Any]:
    """config.json, refused where the model needs code or weights that transformers does not have."""
    config: dict[str, Any] = _read(model, folder / "config.json", dict)
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{model}: {folder / 'config.json'} names no model_type")
    if "auto_map" in config and kind not in _NATIVE:
        raise ModelError(f"{model}: {kind} needs code from its own repository (auto_map), which is never run")
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{model}: {kind} is an encoder with a decoder, which is not supported")
    if config.get("quantization_config"):
        raise ModelError(f"{model}: its weights are quantized, which is not supported")
    return config


def read_prompts(model: str, folder: Path) -> tuple[str, str]:
    """The prompts for documents and for queries that the model's authors named, "" where they named none."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return "", ""
    config = _read(model, path, dict)
    if config.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise ModelError(f"{model}: it is a {config['model_type']}, not a model that gives one vector a text")
    if config.get("truncate_dim"):
        raise ModelError(f"{model}: it cuts its vectors (truncate_dim), which is not supported")
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text is not None}
    default_name = config.get("default_prompt_name")
    if default_name is not None and default_name not in prompts:
        raise ModelError(f"{model}: {path} has no prompt {default_name!r}, which it names as the default")
    default = prompts.get(default_name, "")
    named = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    return next(named, default), prompts.get("query", default)


def dimension(model: str, config: dict[str, Any], modules: Modules) -> int:
    """Size of a vector."""
    width = config.get("hidden_size") or config.get("dim")
    if not isinstance(width, int):
        raise ModelError(f"{model}: config.json does not say how large its vectors are (hidden_size)")
    if modules.width not in (0, width):
        raise ModelError(f"{model}: config.json says {width} values a vector, its pooling {modules.width}")
    return width


def max_tokens(model: str, folder: Path, config: dict[str, Any]) -> int:
    """The longest input: what its authors set, and never more than it has positions for."""
    bounds = [_settings(model, folder).get("max_seq_length")]
    tokenizer = folder / "tokenizer_config.json"
    if bounds[0] is None and tokenizer.exists():
        bounds.append(_read(model, tokenizer, dict).get("model_max_length"))
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config["model_type"] in _POSITIONS_AFTER_PADDING:
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
    settings: dict[str, Any] = {} if path is None else _read(model, path, dict)
    for name, value in settings.items():
        if name in _HARMLESS_SETTINGS | {"max_seq_length", "do_lower_case"} or not value:
            continue
        if name == "transformer_task" and value == "feature-extraction":
            continue
        if isinstance(value, dict) and value.keys() <= _HARMLESS_ARGUMENTS:
            continue
        raise ModelError(f"{model}: {path} sets {name} to {value!r}, which is not supported")
    return settings


def _pooling_mode(model: str, pooling: dict[str, Any]) -> str:
    chosen = pooling.get("pooling_mode")
    if chosen is None:
        chosen = [mode for flag, mode in _POOLING_FLAGS.items() if pooling.get(flag)] or ["mean"]
    modes = [chosen] if isinstance(chosen, str) else list(chosen)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ModelError(
            f"{model}: pooling {' with '.join(modes)} is not supported, only mean, cls or lasttoken alone"
        )
    return _POOLINGS[modes[0]]


def _kind(model: str, module: Any) -> str:
    name = str(module.get("type")) if isinstance(module, dict) else str(module)
    if not name.startswith("sentence_transformers."):
        raise ModelError(
            f"{model}: the module {name!r} in modules.json is code of its own, which is never run"
        )
    return name.rpartition(".")[2]


def _demand_files(model: str, folder: Path, weights: bool) -> None:
    needed = {
        "config.json": "; name the folder of a model in the layout of transformers",
        "tokenizer.json": "; save it once with transformers' AutoTokenizer",
    }
    for name, advice in needed.items():
        if not (folder / name).exists():
            raise ModelError(f"{model}: {folder} has no {name}{advice}")
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{model}: it is an adapter (PEFT); merge it into its base model and save that")
    if weights and not any(folder.glob(WEIGHTS)):
        raise ModelError(f"{model}: {folder} has no {WEIGHTS}; weights in other formats are not loaded")


def _read(model: str, path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{model}: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{model}: {path} is no JSON: {error}") from error
    if not isinstance(content, kind):
        raise ModelError(f"{model}: {path} holds no {'list' if kind is list else 'object'}")
    return content

"""A model's modules, as sentence-transformers lists them: transformer, pooling, and what is behind it.

What is not understood is refused by name: a guess would give vectors that look right and are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestor.errors import ModelError

WEIGHTS = "model*.safetensors"
LAYER_WEIGHTS = "model.safetensors"

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}

_ACTIVATIONS = {
    f"torch.nn.modules.{module}.{name}": name
    for module, names in {
        "linear": ("Identity",),
        "activation": ("GELU", "ReLU", "SiLU", "Sigmoid", "Tanh"),
    }.items()
    for name in names
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A module behind the pooling.

    Attributes:
        kind: Dense, LayerNorm or Normalize.
        folder: holds its weights.
        inputs, outputs: sizes of a vector before and behind it, 0 where it takes any.
        activation: of a Dense: the name of a module of torch.
        bias: of a Dense.
    """

    kind: str
    folder: str
    inputs: int = 0
    outputs: int = 0
    activation: str = "Identity"
    bias: bool = True


@dataclass(frozen=True, slots=True)
class Modules:
    """What modules.json says, or its absence.

    Attributes:
        folder: holds the transformer.
        pooling: mean, cls or last; None where nothing says it.
        normalize: vectors get unit length at the end.
        width: size of the vectors that are pooled, 0 where nothing says it.
        include_prompt: the prompt's tokens are pooled too.
        layers: between the pooling and that end.
    """

    folder: Path
    pooling: str | None
    normalize: bool
    width: int
    include_prompt: bool
    layers: tuple[Layer, ...] = ()


def read_modules(model: str, folder: Path, *, weights: bool = True) -> Modules:
    """Read modules.json and what it points to.

    Args:
        model: as configured, for messages.
        folder: the model's.
        weights: demand that they are there.

    Raises:
        ModelError: there is a module other than these, or a file is missing.
    """
    if not (folder / "modules.json").exists():
        _demand_files(model, folder, weights)
        return Modules(folder, None, False, 0, True)
    modules = read_json(model, folder / "modules.json", list)
    kinds = [_kind(model, module) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not {"Dense", "LayerNorm", "Normalize"} >= set(kinds[2:]):
        raise ModelError(
            f"{model}: its modules are {', '.join(kinds)}; only Transformer, Pooling, and then Dense,"
            " LayerNorm and Normalize are supported"
        )
    normalize = kinds[-1] == "Normalize"
    places = [(kind, folder / module.get("path", "")) for kind, module in zip(kinds, modules, strict=True)]
    transformer = places[0][1]
    _demand_files(model, transformer, weights)
    layers = tuple(_layer(model, kind, place) for kind, place in places[2 : len(places) - normalize])
    if weights:
        _demand_weights(model, layers)
    pooling = read_json(model, places[1][1] / "config.json", dict)
    width = pooling.get("word_embedding_dimension") or pooling.get("embedding_dimension") or 0
    mode = _pooling_mode(model, pooling)
    return Modules(transformer, mode, normalize, width, pooling.get("include_prompt", True), layers)


def dimension(model: str, config: dict[str, Any], modules: Modules) -> int:
    """Size of a vector behind all modules.

    Raises:
        ModelError: the modules do not fit together, or do not say their sizes.
    """
    width = config.get("hidden_size") or config.get("dim")
    if not isinstance(width, int):
        raise ModelError(f"{model}: config.json does not say how large its vectors are (hidden_size)")
    if modules.width not in (0, width):
        raise ModelError(f"{model}: config.json says {width} values a vector, its pooling {modules.width}")
    for layer in modules.layers:
        if layer.inputs not in (0, width):
            raise ModelError(f"{model}: {layer.folder} takes {layer.inputs} values a vector, not {width}")
        width = layer.outputs or width
    return width


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


def _layer(model: str, kind: str, folder: Path) -> Layer:
    """A module behind the pooling; refuses what would change its vectors in a way that is not known here."""
    if kind == "Normalize" and not (folder / "config.json").exists():
        return Layer(kind, str(folder))
    config = read_json(model, folder / "config.json", dict)
    known = {"in_features", "out_features", "bias", "activation_function", "dimension"}
    for name, value in config.items():
        in_place = name in ("module_input_name", "module_output_name") and value == "sentence_embedding"
        if value and name not in known and not in_place:
            raise ModelError(f"{model}: {folder} sets {name} to {value!r}, which is not supported")
    if kind == "Dense":
        activation = config.get("activation_function") or "torch.nn.modules.activation.Tanh"
        if activation not in _ACTIVATIONS:
            raise ModelError(f"{model}: {folder} has the activation {activation}, which is not supported")
        sizes = _size(model, folder, config, "in_features"), _size(model, folder, config, "out_features")
        return Layer(kind, str(folder), *sizes, _ACTIVATIONS[activation], config.get("bias", True))
    size = _size(model, folder, config, "dimension") if kind == "LayerNorm" else 0
    return Layer(kind, str(folder), size, size)


def _size(model: str, folder: Path, config: dict[str, Any], name: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"{model}: {folder / 'config.json'} does not say {name}")
    return size


def _demand_weights(model: str, layers: tuple[Layer, ...]) -> None:
    for layer in layers:
        if layer.kind != "Normalize" and not Path(layer.folder, LAYER_WEIGHTS).exists():
            raise ModelError(
                f"{model}: {layer.folder} has no {LAYER_WEIGHTS}; weights in other formats are not loaded"
            )


def _kind(model: str, module: Any) -> str:
    name = str(module.get("type")) if isinstance(module, dict) else str(module)
    if not name.startswith("sentence_transformers."):
        raise ModelError(
            f"{model}: the module {name!r} in modules.json is code of its own, which is never run"
        )
    return name.rpartition(".")[2]


def _demand_files(model: str, folder: Path, weights: bool) -> None:
    within = ", ".join(sorted(path.parent.name for path in folder.glob("*/config.json")))
    needed = {
        "config.json": "; name the folder of a model in the layout of transformers"
        + (f"; these in it have one: {within}" if within else ""),
        "tokenizer.json": "; save it once with transformers' AutoTokenizer",
    }
    for name, advice in needed.items():
        if not (folder / name).exists():
            raise ModelError(f"{model}: {folder} has no {name}{advice}")
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{model}: it is an adapter (PEFT); merge it into its base model and save that")
    if weights and not any(folder.glob(WEIGHTS)):
        raise ModelError(f"{model}: {folder} has no {WEIGHTS}; weights in other formats are not loaded")


def read_json(model: str, path: Path, kind: type) -> Any:
    """The content of one of the model's files, a dict or a list.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{model}: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{model}: {path} is no JSON: {error}") from error
    if not isinstance(content, kind):
        raise ModelError(f"{model}: {path} holds no {'list' if kind is list else 'object'}")
    return content

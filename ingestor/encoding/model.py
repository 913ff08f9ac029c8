"""Which model is meant, where its files are, and what they say about turning text into vectors.

Light: the pipeline, the prepare processes and the commands read a model's files without loading torch.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ingestor.encoding import model_files, model_modules
from ingestor.encoding.model_modules import Layer, Modules
from ingestor.errors import ModelError, one_line

Pooling = Literal["mean", "cls", "last"]

HASH_MAX_TOKENS = 256
_POOLINGS = ("mean", "cls", "last")
_NORMALIZE = {"auto": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as its files describe it; can be sent to other processes.

    Attributes:
        name: as configured.
        folder: holds config.json, tokenizer.json and the weights; "" for `hash:N`.
        revision: commit of a hub model, else "sha256:" of the weights, or `hash:N`.
        dimension: float32 values in a vector.
        pooling: how the vectors of a chunk's tokens become one.
        normalize: whether vectors get unit length.
        max_tokens: the longest input, special tokens and prompt among it.
        prompt: text put before every chunk.
        query_prompt: text put before every query.
        architecture: `model_type` of config.json; "hash" for `hash:N`.
        lower_case: the tokenizer must lower the case, whatever tokenizer.json says.
        layers: what a pooled vector goes through; after them it is cut to `dimension`.
    """

    name: str
    folder: str
    revision: str
    dimension: int
    pooling: Pooling
    normalize: bool
    max_tokens: int
    prompt: str
    query_prompt: str
    architecture: str
    lower_case: bool = False
    layers: tuple[Layer, ...] = ()


def resolve(
    model: str,
    *,
    revision: str | None = None,
    pooling: str = "auto",
    normalize: str | bool = "auto",
    prompt: str | None = None,
    query_prompt: str | None = None,
    truncate_dim: int | None = None,
) -> ModelSpec:
    """Find the model, fetching it from the hub where needed, and read its files; blocks.

    Args:
        model: hub id, folder, `package:MODULE/FOLDER` or `hash:N`.
        revision: of a hub model: a branch, tag or commit.
        pooling: `auto` for what the model's files say, else `mean`, `cls` or `last`.
        normalize: `auto`, or whether vectors get unit length.
        prompt: put before every chunk; None for the model's own.
        query_prompt: put before every query; None for the model's own.
        truncate_dim: keep so many values of each vector; None for what the model's authors say.

    Raises:
        ModelError: it is not there, or it has a part that this encoder does not understand.
    """
    if model.startswith("hash:"):
        if truncate_dim:
            raise ModelError(f"{model}: encoder.truncate_dim is for real models; set hash:{truncate_dim}")
        return _hash_spec(model, prompt or "", query_prompt or "")
    folder, found_revision = _locate(model, revision)
    modules = model_modules.read_modules(model, folder)
    config = model_files.read_config(model, modules.folder)
    own_prompt, own_query_prompt = model_files.read_prompts(model, folder)
    prompt = own_prompt if prompt is None else prompt
    query_prompt = own_query_prompt if query_prompt is None else query_prompt
    if not modules.include_prompt and (prompt or query_prompt):
        raise ModelError(f"{model}: its pooling leaves the prompt out, which is not supported")
    unit = _NORMALIZE[str(normalize).lower()]
    return ModelSpec(
        name=model,
        folder=str(modules.folder),
        revision=found_revision or _weights_hash(modules),
        dimension=_dimension(model, folder, config, modules, truncate_dim),
        pooling=_pooling(model, pooling, modules),
        normalize=modules.normalize if unit is None else unit,
        max_tokens=model_files.max_tokens(model, modules.folder, config),
        prompt=prompt,
        query_prompt=query_prompt,
        architecture=config["model_type"],
        lower_case=model_files.lower_case(model, modules.folder),
        layers=modules.layers,
    )


def _dimension(
    model: str, folder: Path, config: dict[str, Any], modules: Modules, truncate_dim: int | None
) -> int:
    whole = model_modules.dimension(model, config, modules)
    if truncate_dim is not None and truncate_dim > whole:
        raise ModelError(
            f"{model}: encoder.truncate_dim: its vectors have {whole} values, not {truncate_dim};"
            f" set {whole} or less"
        )
    return min(whole, truncate_dim or model_files.read_truncate_dim(model, folder) or whole)


def _pooling(model: str, configured: str, modules: Modules) -> Pooling:
    pooling = modules.pooling if configured == "auto" else configured
    if pooling is None:
        raise ModelError(
            f"{model}: no modules.json says how its vectors are pooled;"
            " set encoder.pooling to mean, cls or last"
        )
    if pooling not in _POOLINGS:
        raise ModelError(f"{model}: pooling {pooling!r} is not supported, only mean, cls and last")
    return cast(Pooling, pooling)


def _hash_spec(model: str, prompt: str, query_prompt: str) -> ModelSpec:
    size = model.removeprefix("hash:")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", size):
        raise ModelError(f"{model}: after hash: comes the vector's size, from 1 to 99999, as in hash:384")
    return ModelSpec(model, "", model, int(size), "mean", True, HASH_MAX_TOKENS, prompt, query_prompt, "hash")


def _locate(model: str, revision: str | None) -> tuple[Path, str]:
    """The model's folder, and its commit where it is from the hub, else ""."""
    if model.startswith("package:"):
        return _package_folder(model), ""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve(), ""
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ModelError(f"{model}: there is no such folder; name another, or a model of the hub")
    return _fetch(model, revision)


def _package_folder(model: str) -> Path:
    """Finds the package without running any of its code."""
    module, _, inside = model.removeprefix("package:").partition("/")
    top, *parents = module.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top) if top else None
    if spec is None or spec.submodule_search_locations is None:
        raise ModelError(
            f"{model}: no Python package {top!r} is installed here; install it, or name another model"
        )
    for location in spec.submodule_search_locations:
        folder = Path(location, *parents, inside)
        if folder.is_dir():
            return folder
    raise ModelError(f"{model}: the package {top!r} has no folder {inside!r}; see where its config.json lies")


def _fetch(model: str, revision: str | None) -> tuple[Path, str]:
    """Fetch the small files first, so that a model that cannot be used is refused before its weights come."""
    folder = _snapshot(model, revision, ["*.json"])
    commit = folder.name
    modules = model_modules.read_modules(model, folder, weights=False)
    model_files.read_config(model, modules.folder)
    places = [modules.folder, *(Path(layer.folder) for layer in modules.layers)]
    weights = [str(place.relative_to(folder) / model_modules.WEIGHTS) for place in places]
    return _snapshot(model, commit, ["*.json", *weights]), commit


def _snapshot(model: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RevisionResolutionError

    other_runtimes = ["onnx/*", "openvino/*", "coreml/*"]
    try:
        found = snapshot_download(
            model, revision=revision, allow_patterns=patterns, ignore_patterns=other_runtimes
        )
    except (OSError, HFValidationError, RevisionResolutionError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{model}{at}: neither a folder here nor to be had from the hub; check the name, the network,"
            f" and HF_TOKEN if it is not public: {one_line(error)}"
        ) from error
    return Path(found)


def _weights_hash(modules: Modules) -> str:
    """Names the weights the same on every machine; one file's is what `sha256sum` prints."""
    digests = []
    for folder in (modules.folder, *(Path(layer.folder) for layer in modules.layers)):
        for path in sorted(folder.glob(model_modules.WEIGHTS)):
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(digests) == 1:
        return f"sha256:{digests[0]}"
    return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"

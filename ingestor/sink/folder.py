"""How an embedded collection lies on disk: directories 0 to N-1 of the engine, and a manifest beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ingestor.errors import ConfigError, SinkError
from ingestor.records import UInt8s
from ingestor.sink import Target

MANIFEST = "manifest.json"


def folder_of(target: Target) -> Path:
    """Where the collection lies.

    Raises:
        ConfigError: its name is no name for a folder.
    """
    name = target.collection
    if name in ("", ".", "..") or Path(name).name != name:
        raise ConfigError(f"qdrant.collection: {name!r} cannot name a folder of the embedded engine")
    return Path(target.path or "") / name


def directory_of(ids: UInt8s, directories: int) -> npt.NDArray[np.intp]:
    """Which directory holds each point, by the last eight bytes of its id; never to change."""
    numbers = np.ascontiguousarray(ids[:, 8:]).view(">u8").ravel()
    return (numbers % np.uint64(directories)).astype(np.intp)


def directories_of(target: Target) -> int | None:
    """Over how many directories the collection is spread; None where there is none yet."""
    manifest = read_manifest(folder_of(target))
    return int(manifest["directories"]) if manifest else None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a collection says of itself; None where there is none.

    Raises:
        SinkError: the folder holds something else, or cannot be read.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            raise SinkError(
                f"{folder}: not empty, and no collection of this program; name another qdrant.path,"
                " or another qdrant.collection"
            ) from None
        return None
    except (OSError, ValueError) as error:
        raise SinkError(f"{path}: cannot be read: {error}") from error
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest in one step, durably."""
    new = folder / f"{MANIFEST}.new"
    with new.open("wb") as file:
        file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    rename(new, folder / MANIFEST)


def rename(old: Path, new: Path) -> None:
    """Rename within a folder, durably."""
    old.rename(new)
    folder = os.open(new.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

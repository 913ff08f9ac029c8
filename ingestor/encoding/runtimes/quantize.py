"""Eight bits by NNCF: in a process of its own, which can be ended at any time and draws on no terminal."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ingestor.encoding.runtimes.graph import INPUTS
from ingestor.encoding.runtimes.openvino import MODEL, library, loading, save
from ingestor.errors import ConfigError, EncoderError, installing, one_line
from ingestor.records import Int32s


def demand_library() -> None:
    """See that what quantizes is installed, without loading it.

    Raises:
        ConfigError: it is not.
    """
    library()
    if find_spec("nncf") is None:
        raise ConfigError(
            f"encoder.precision: int8 needs NNCF, which is not installed here: {installing('openvino')}, or"
            " set encoder.precision to float32"
        )


def quantize(source: Path, target: Path, chunks: Sequence[Int32s]) -> None:
    """Write the model in `source` with weights and products in eight bits, their ranges taken from chunks.

    The ranges are fixed then: a text's vector hardly depends on the batch that it is in. Runs in a process of
    its own.

    Raises:
        EncoderError: NNCF cannot do it.
        ResourceError: the files in `source` cannot be read, or there is no room for new ones.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it draws progress bars there
    warnings.simplefilter("ignore")
    with loading(source):
        model = library().Core().read_model(source / MODEL)
    try:
        import nncf

        nncf.set_log_level(logging.ERROR)
        dataset = nncf.Dataset([_inputs(ids) for ids in chunks])
        kind = nncf.ModelType.TRANSFORMER
        found = nncf.quantize(model, dataset, model_type=kind, subset_size=len(chunks))
    except Exception as error:  # it may raise anything, and not all of that can be sent to another process
        raise EncoderError(
            f"encoder.precision: NNCF cannot make an 8-bit model of this one: {one_line(error, 300)}"
        ) from None
    save(found, target)


def _inputs(ids: Int32s) -> dict[str, Any]:
    return dict(zip(INPUTS, (ids[None].astype(np.int64), np.ones((1, len(ids)), np.int64)), strict=True))

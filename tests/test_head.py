"""The weights of the modules behind the pooling are those that they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer import modules

from ingestor.encoding.head import Head
from ingestor.encoding.model import resolve
from ingestor.errors import ModelError
from tests.models import save_model


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "bert", layers=[modules.Dense(48, 24)])
    spec = resolve(str(tmp_path / "model"))
    path = Path(spec.layers[0].folder, "model.safetensors")
    weights = load_file(path)
    save_file({**weights, "linear.weight": torch.zeros(24, 47)}, path)
    with pytest.raises(ModelError, match=r"the weights in .*2_Dense are of another module: .*size mismatch"):
        Head(spec)
    save_file({"linear.weight": weights["linear.weight"]}, path)
    with pytest.raises(ModelError, match=r"Missing key.*bias"):
        Head(spec)

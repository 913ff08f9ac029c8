"""On a GPU: the eight-bit product is the one that the CPU computes from the same eight-bit numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ingestor.encoding.float8 import Float8Linear
from tests.models import save_model
from tests.running import Workplace, documents

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="there is no CUDA device with eight-bit floats",
    ),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 17, 4096])
def test_gives_what_the_cpu_gives(dtype: torch.dtype, bias: bool, rows: int) -> None:
    torch.manual_seed(0)
    layer = Float8Linear(nn.Linear(384, 1536, bias=bias, dtype=dtype))
    states = torch.randn(1, rows, 384, dtype=dtype)
    expected, found = layer(states).float(), layer.cuda()(states.cuda()).float().cpu()
    assert torch.cosine_similarity(found[0], expected[0]).min() > 0.999  # the GPU adds up in fewer bits


@pytest.mark.parametrize("compile_", ["auto", "on"])  # auto: 300 documents are not worth it
def test_a_run_is_judged_and_writes(tmp_path: Path, compile_: str) -> None:
    save_model(tmp_path, "bert", gentle=True)
    encoder = {"model": str(tmp_path / "model"), "device": "cuda", "precision": "fp8", "quality_floor": 0.9}
    encoder["compile"] = compile_
    made = Workplace(tmp_path / "place", encoder=encoder)
    made.write("a.jsonl", documents(300))
    report = made.run().report
    assert (report["status"], report["documents"]["indexed"]) == ("complete", 300)
    assert report["quality"]["precision"] == "fp8"
    assert made.run().report["documents"]["unchanged"] == 300

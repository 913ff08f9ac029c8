"""Linear layers in eight-bit floats: near the real ones, whatever the size of a row."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ingestor.encoding.float8 import LARGEST, Float8Linear, demand_device, quantized, to_float8
from ingestor.errors import ConfigError


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_each_row_has_a_scale_of_its_own():
    rows = torch.tensor([[1000.0, -3.0, 0.0], [0.001, 0.0005, -0.001], [0.0, 0.0, 0.0]])
    small, scales = quantized(rows)
    assert small.float().abs().amax(1).tolist() == [LARGEST, LARGEST, 0.0]
    assert torch.allclose(small.float() * scales, rows, rtol=2**-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_near_the_layer_that_it_replaces(dtype, bias):
    layer = nn.Linear(64, 32, bias=bias, dtype=dtype)
    states = torch.randn(2, 7, 64, dtype=dtype) * torch.logspace(-3, 3, 7)[:, None].to(dtype)
    expected, found = layer(states), Float8Linear(layer)(states)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    cosines = torch.cosine_similarity(found.float().flatten(0, 1), expected.float().flatten(0, 1))
    assert cosines.min() > 0.998


def test_a_row_comes_out_the_same_in_any_company():
    layer = Float8Linear(nn.Linear(32, 16))
    states = torch.randn(9, 32)
    assert torch.equal(layer(states)[3], layer(states[3:4])[0])


def test_a_run_demands_a_device_that_has_such_products():
    with pytest.raises(ConfigError, match="fp8 is for CUDA devices of compute capability"):
        demand_device(torch.device("cpu"))


def test_layers_of_odd_sizes_stay():
    model = nn.Sequential(nn.Linear(32, 48), nn.ModuleDict({"inner": nn.Linear(48, 16)}), nn.Linear(16, 5))
    assert to_float8(model) == 2
    assert [type(part) for part in model] == [Float8Linear, nn.ModuleDict, nn.Linear]
    assert not [name for name, _ in model[0].named_parameters()]

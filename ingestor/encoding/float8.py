"""Linear layers whose products are of eight-bit floats, for GPUs that have them: a scale for each row of the
weights, made once, and one for each token, made on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ingestor.errors import ConfigError

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
MULTIPLE = 16
"""The product takes sizes that are multiples of it."""
SMALLEST = 1e-12
"""No scale is smaller: a row of zeros has one, too."""


def demand_device(device: torch.device) -> None:
    """Refuse a device that has no such products; commands that embed a few texts can do without.

    Raises:
        ConfigError: says which would do.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise ConfigError(
            "encoder.precision: fp8 is for CUDA devices of compute capability 8.9 or more (Ada, Hopper and"
            " newer), and this run has none; set auto, or int8 on a CPU"
        )


def to_float8(model: nn.Module) -> int:
    """Replace the model's linear layers, in place, and return how many; those of odd sizes stay."""
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not (child.in_features | child.out_features) % MULTIPLE:
                setattr(parent, name, Float8Linear(child))
                replaced += 1
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # the model will run on another stream
    return replaced


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3[n, k] and float32[n, 1]: each row by a scale of its own, so that its largest number just fits."""
    scales = (rows.abs().amax(1, keepdim=True).float() / LARGEST).clamp(min=SMALLEST)
    return (rows.float() / scales).to(E4M3), scales


class Float8Linear(nn.Module):
    """Takes the place of `layer`; its result has the type of what it is given."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, scales = quantized(layer.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales.t().contiguous())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, states: Tensor) -> Tensor:
        rows, scales = quantized(states.reshape(-1, states.shape[-1]))
        found = _product(rows, scales, self.weight, self.scales, self.bias, states.dtype)
        return found.view(*states.shape[:-1], -1)


def _product(
    rows: Tensor, scales: Tensor, weight: Any, weight_scales: Any, bias: Any, dtype: torch.dtype
) -> Tensor:
    if rows.is_cuda:
        return torch._scaled_mm(
            rows,
            weight.t(),
            scale_a=scales,
            scale_b=weight_scales,
            bias=bias,
            out_dtype=dtype,
            use_fast_accum=True,
        )
    found: Tensor = (rows.float() @ weight.float().t()) * scales * weight_scales  # no such product here
    return (found if bias is None else found + bias).to(dtype)

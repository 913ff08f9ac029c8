"""In which forms a model can be had: which runtime computes which precision, and where."""

from __future__ import annotations

PRECISIONS = {
    "torch": ("float32", "float16", "bfloat16", "fp8"),
    "openvino": ("float32", "bfloat16", "int8"),
    "onnx": ("float32",),
}
IN_HOST_MEMORY = ("openvino", "onnx")
"""What they take and give lies there; ONNX Runtime may compute elsewhere."""
EIGHT_BITS = ("int8", "fp8")


def runtime_of(runtime: str, precision: str) -> str:
    """`encoder.runtime`, or where that is `auto`, the one that computes this precision."""
    if runtime != "auto":
        return runtime
    return "openvino" if precision == "int8" else "torch"


def device_of(device: str, runtime: str, precision: str) -> str:
    """`encoder.device`, or the CPU where the runtime's vectors lie in its memory."""
    return "cpu" if runtime_of(runtime, precision) in IN_HOST_MEMORY else device


def of_its_own(precision: str) -> bool:
    """Whether vectors of this precision are not to be mixed with others; 32 and 16 bits may be."""
    return precision in EIGHT_BITS


def mistake(*, model: str, device: str, runtime: str, precision: str, compile_: str) -> str | None:
    """What is wrong with a combination of settings that nothing can compute, and what to do."""
    chosen = runtime_of(runtime, precision)
    known = PRECISIONS[chosen]
    if precision not in ("auto", *known):
        others = ", ".join(name for name, precisions in PRECISIONS.items() if precision in precisions)
        return (
            f"precision {precision} is none that runtime {chosen} computes ({', '.join(known)});"
            f" set runtime to auto or {others}"
        )
    if device.startswith("cuda") and chosen == "onnx":
        return f"runtime onnx goes by its providers; set device to auto, not {device}, and providers"
    if device.startswith("cuda") and chosen in IN_HOST_MEMORY:
        what = f"precision {precision}" if runtime == "auto" else f"runtime {chosen}"
        return f"{what} is for the CPU; set device to auto or cpu, not {device}"
    if precision == "fp8" and device == "cpu":
        return "precision fp8 is for CUDA devices; set device to auto, or precision to int8"
    if precision == "fp8" and compile_ == "off":
        return "precision fp8 is slower than 16 bits without torch.compile; set compile to auto"
    if compile_ == "on" and chosen != "torch":
        return f"compile on is for runtime torch on a GPU, not for {chosen}; set it to auto or off"
    if model.startswith("hash:") and (chosen != "torch" or of_its_own(precision)):
        return f"model {model} has no weights; set runtime and precision to auto"
    return None

"""Which runtime computes what, and that impossible combinations are refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestor.config.forms import PRECISIONS, device_of, mistake, of_its_own, runtime_of
from ingestor.config.settings import load
from ingestor.errors import ConfigError

USUAL = {"model": "m", "device": "auto", "runtime": "auto", "precision": "auto", "compile_": "auto"}


def test_auto_is_torch_but_for_int8() -> None:
    assert runtime_of("auto", "auto") == runtime_of("auto", "float32") == "torch"
    assert runtime_of("auto", "int8") == "openvino"
    assert runtime_of("openvino", "auto") == "openvino"
    assert (device_of("auto", "auto", "int8"), device_of("auto", "auto", "auto")) == ("cpu", "auto")


def test_only_eight_bits_are_of_their_own() -> None:
    of_all = {precision for precisions in PRECISIONS.values() for precision in precisions}
    assert {precision for precision in of_all if of_its_own(precision)} == {"int8", "fp8"}


@pytest.mark.parametrize("runtime", PRECISIONS)
def test_each_runtime_takes_its_precisions_and_says_who_takes_others(runtime: str) -> None:
    for precision in ("auto", *PRECISIONS[runtime]):
        assert mistake(**{**USUAL, "runtime": runtime, "precision": precision}) is None
    for other, precisions in PRECISIONS.items():
        for precision in set(precisions) - set(PRECISIONS[runtime]):
            said = mistake(**{**USUAL, "runtime": runtime, "precision": precision})
            assert said is not None
            assert said.startswith(f"precision {precision} is none that runtime {runtime} computes")
            assert other in said.partition("set runtime to")[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int8", "device": "cuda"}, "precision int8 is for the CPU; set device to auto or cpu"),
        ({"runtime": "openvino", "device": "cuda:1"}, "runtime openvino is for the CPU"),
        (
            {"precision": "int8", "compile_": "on"},
            "compile on is for runtime torch on a GPU, not for openvino",
        ),
        ({"precision": "fp8", "device": "cpu"}, "precision fp8 is for CUDA devices; set device to auto"),
        ({"precision": "fp8", "compile_": "off"}, "precision fp8 is slower than 16 bits without"),
        ({"precision": "fp8", "model": "hash:8"}, "model hash:8 has no weights"),
        ({"precision": "int8", "model": "hash:8"}, "model hash:8 has no weights"),
        ({"runtime": "openvino", "model": "hash:8"}, "model hash:8 has no weights"),
    ],
)
def test_what_cannot_be(settings: dict[str, str], message: str) -> None:
    assert (mistake(**{**USUAL, **settings}) or "").startswith(message)


def test_the_configuration_says_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("source: {paths: [x]}\nencoder: {runtime: torch, precision: int8}\n")
    with pytest.raises(ConfigError, match=r"line 2: encoder precision int8 is none .*auto or openvino"):
        load(path, environ={})

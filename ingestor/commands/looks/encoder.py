"""The model: its files, its tokenizer, and whether it gives vectors, and how fast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING

import numpy as np

from ingestor.commands.looks import OK, Known, Look
from ingestor.config.forms import of_its_own, runtime_of
from ingestor.config.sections import Encoder as Wanted
from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.errors import EncoderError
from ingestor.preparing.chunk import Chunker
from ingestor.preparing.tokenizer import load_tokenizer
from ingestor.records import Batch, Int32s, loose_batch
from ingestor.running import engine, wiring
from ingestor.watching.words import short

if TYPE_CHECKING:
    from ingestor.device import Device
    from ingestor.encoding.encoder import Encoder

MEASURED_S = 3.0
FORWARDS = 4
RUNTIMES = {"openvino": "OpenVINO", "onnx": "ONNX Runtime"}


def model(known: Known) -> Look:
    """Whether it is there, and what its files say."""
    spec = known.spec = wiring.spec_of(known.settings)
    normalized = "normalized" if spec.normalize else "not normalized"
    prompts = f", prompt {spec.prompt!r}, query prompt {spec.query_prompt!r}"
    yield (
        OK,
        f"{spec.name} ({spec.architecture}, {spec.revision[:19]}): {spec.dimension} dimensions, {normalized},"
        f" {spec.pooling} pooling, at most {spec.max_tokens} tokens"
        + (prompts if spec.prompt or spec.query_prompt else ""),
    )


def tokenizer(settings: Settings, spec: ModelSpec) -> Look:
    """Whether it can be loaded, and leaves room for text."""
    max_tokens, overlap_tokens, max_chars = wiring.chunk_limits(settings, spec)
    found = load_tokenizer(spec)
    Chunker(
        found, prompt=spec.prompt, max_tokens=max_tokens, overlap_tokens=overlap_tokens, max_chars=max_chars
    )
    special = len(found.prefix) + len(found.suffix)
    yield OK, f"chunks of at most {max_tokens} tokens, {special} of them special, {overlap_tokens} shared"


def encoder(known: Known) -> Look:
    """Whether the weights can be loaded and give usable vectors; measures how fast.

    What another runtime makes of them is left to the first run, for it is kept on disk; that runtime has to
    be there.
    """
    from ingestor.device import open_device
    from ingestor.encoding.encoder import load_encoder

    settings, spec = known.settings, known.spec
    assert spec
    wanted = settings.encoder
    runtime = runtime_of(wanted.runtime, wanted.precision)
    device = open_device(engine.device_of(settings))
    usual = engine.usual_budget(settings, spec, on_gpu=device.torch_device.type == "cuda")
    budget = engine.token_budget(settings, wiring.chunk_limits(settings, spec)[0], usual)
    since = time.perf_counter()
    loaded = load_encoder(
        spec, device=device, precision=wanted.precision if runtime == "torch" else "float32"
    )
    took = time.perf_counter() - since
    chunks = _fill(known.sample.chunks if known.sample and known.sample.chunks else _any_text(spec), budget)
    speed = _measure(device, loaded, loose_batch(chunks))
    said = f"{short(speed)} tokens/s, alone, {len(chunks):,} chunks at once"
    if runtime != "torch":
        said = f"the first run makes what {RUNTIMES[runtime]} computes of it"
        demand(wanted, runtime)
    elif not of_its_own(wanted.precision):  # in eight bits a long run compiles the model, and is far faster
        known.tokens_per_s = speed
    yield OK, f"loaded in {took:,.1f} s, its vectors are finite; {said}"


def demand(wanted: Wanted, runtime: str) -> None:
    """See that a runtime other than torch is installed, with what it needs.

    Raises:
        ConfigError: it is not.
    """
    from ingestor.encoding.runtimes import onnx, openvino, quantize

    if runtime == "onnx":
        onnx.choose(wanted.providers)
        onnx.demand_exporter()
    elif wanted.precision == "int8":
        quantize.demand_library()
    else:
        openvino.library()


def _measure(device: Device, encoder: Encoder, batch: Batch) -> float:
    """Tokens a second.

    Raises:
        EncoderError: a vector cannot be used.
    """
    seconds: list[float] = []
    while len(seconds) < FORWARDS and sum(seconds) < MEASURED_S:
        began = time.perf_counter()
        found = device.compute(device.upload(batch), encoder.forward)
        found.ready.synchronize()
        if not bool(found.flags.all()):
            raise EncoderError(
                "vectors are not finite, or all zero; set encoder.precision to bfloat16 or float32"
                " (if it is float32, the model itself is broken)"
            )
        seconds.append(time.perf_counter() - began)
    return len(batch.tokens) / min(seconds)


def _fill(chunks: Sequence[Int32s], budget: int) -> list[Int32s]:
    """As many chunks as fit into a batch, of like length; the same ones again where there are few."""
    found: list[Int32s] = []
    room = budget
    ordered = sorted(chunks, key=len)
    middle = len(ordered) // 2
    for ids in chain(ordered[middle:], cycle(ordered)):
        if len(ids) > room:
            break
        found.append(ids)
        room -= len(ids)
    return found or [ordered[0]]


def _any_text(spec: ModelSpec) -> list[Int32s]:
    """Where the source has none: a sentence."""
    found = load_tokenizer(spec)
    ids = found.ids([spec.prompt + "The quick brown fox jumps over the lazy dog."])[0]
    return [np.concatenate([found.prefix, ids, found.suffix]).astype(np.int32)]

"""The encoder in each of its forms: exported once, fitted once, and the same model ever after."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from ingestor.config.sections import Encoder as Wanted
from ingestor.device import open_device
from ingestor.encoding.calibration import FILE, Calibration, recall
from ingestor.encoding.encoder import embed
from ingestor.encoding.loading import FEW, Loader, by_length
from ingestor.encoding.model import resolve
from ingestor.encoding.quality import Quality, cosines
from ingestor.encoding.runtimes import graph, onnx, openvino
from ingestor.errors import ConfigError, EncoderError, IdentityMismatchError, LockedError, ResourceError
from ingestor.lock import Lock
from ingestor.records import Int32s, loose_batch
from tests.models import save_model

pytestmark = pytest.mark.whole

INT8 = Wanted(precision="int8")
FLOAT32 = Wanted(runtime="openvino")


def chunks(count: int, seed: int = 0) -> list[Int32s]:
    random = np.random.default_rng(seed)
    return [random.integers(5, 90, length, dtype=np.int32) for length in random.integers(3, 60, count)]


async def some() -> Sequence[Int32s]:
    return chunks(40)


async def nothing() -> Sequence[Int32s]:
    raise AssertionError("no sample is needed")


@pytest_asyncio.fixture
async def loader(tmp_path: Path) -> AsyncIterator[Loader]:
    save_model(tmp_path, "bert", gentle=True)
    device = open_device("cpu", threads=1)
    yield Loader(resolve(str(tmp_path / "model")), device, tmp_path / "kept")
    await device.close()


def kept(loader: Loader, kind: str) -> list[Path]:
    return [path for path in loader.folder.iterdir() if path.name.startswith(kind) and path.is_dir()]


async def test_openvino_gives_torchs_vectors(loader: Loader) -> None:
    loaded = await loader.load(FLOAT32, None, nothing)
    assert (loaded.runtime, loaded.precision, loaded.is_plain) == ("openvino", "float32", False)
    exact = await loader.torch("auto")
    assert exact.is_plain
    found, expected = [await loader.embed(form.encoder, chunks(30)) for form in (loaded, exact)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    quality = await loader.judge(loaded, some, None, 0.99)
    assert quality is not None
    assert quality.lowest_cosine >= 0.99999
    assert quality.chunks == 20
    assert await loader.judge(exact, nothing, None, 0.99) is None


async def test_a_window_of_padding_alone_spoils_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, "modernbert", gentle=True)  # its windows are of 8 tokens
    device = open_device("cpu", threads=1)
    loader = Loader(resolve(str(tmp_path / "model")), device, tmp_path / "kept")
    mixed = chunks(6)
    assert max(map(len, mixed)) > 8 + min(map(len, mixed))
    forms = [await loader.load(FLOAT32, None, nothing), await loader.torch("float32")]
    found, expected = [
        await device.launch(embed, loose_batch(mixed), encoder=form.encoder, device=device) for form in forms
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    await device.close()


async def test_what_is_exported_is_loaded_the_next_time(loader: Loader) -> None:
    await loader.load(FLOAT32, None, nothing)
    (place,) = kept(loader, "openvino-")
    made = [path.stat().st_mtime_ns for path in sorted(place.iterdir())]
    half = await loader.load(Wanted(runtime="openvino", precision="bfloat16"), None, nothing)
    assert kept(loader, "openvino-") == [place]
    assert [path.stat().st_mtime_ns for path in sorted(place.iterdir())] == made
    quality = await loader.judge(half, some, None, 0.99)
    assert quality is not None
    assert quality.lowest_cosine >= 0.999


async def test_a_damaged_export_is_told(loader: Loader) -> None:
    await loader.load(FLOAT32, None, nothing)
    (place,) = kept(loader, "openvino-")
    (place / openvino.MODEL).write_text("<net")
    with pytest.raises(ResourceError, match="OpenVINO cannot load it; remove it and run again"):
        await loader.load(FLOAT32, None, nothing)


async def test_a_damaged_export_is_told_where_it_is_quantized(loader: Loader) -> None:
    await loader.load(FLOAT32, None, nothing)
    (place,) = kept(loader, "openvino-")
    (place / "model.bin").write_bytes(b"")
    with pytest.raises(ResourceError, match=f"^{place}: OpenVINO cannot load it; remove it and run again"):
        await loader.load(INT8, None, some)


@pytest.mark.parametrize("runtime", ["openvino", "onnx"])
async def test_what_an_export_has_no_room_for_is_told(loader: Loader, runtime: str) -> None:
    wanted = Wanted.model_validate({"runtime": runtime})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # such writes fail, as those on a full disk do
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(ResourceError, match=rf"^{loader.folder}/{runtime}-\w+\.new: "):
            await loader.load(wanted, None, nothing)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not [name for name in os.listdir(loader.folder) if not name.endswith(".lock")]
    await loader.load(wanted, None, nothing)


async def test_an_export_that_is_called_off_leaves_nothing(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def export(_: object, place: Path) -> None:
        began.set()
        goes_on.wait()
        place.mkdir(exist_ok=True)  # as OpenVINO does
        (place / openvino.MODEL).write_text("half")

    monkeypatch.setattr(openvino, "export", export)
    async with asyncio.timeout(20):
        loading = asyncio.ensure_future(loader.load(FLOAT32, None, nothing))
        await asyncio.to_thread(began.wait)
        loading.cancel()
        (lock,) = await asyncio.to_thread(lambda: list(loader.folder.glob("*.lock")))
        with pytest.raises(LockedError):  # others may not begin while it writes
            Lock.acquire(lock)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await loading
    assert os.listdir(loader.folder) == [lock.name]
    Lock.acquire(lock).release()


@pytest.mark.parametrize("runtime", ["openvino", "onnx"])
async def test_a_model_that_a_runtime_does_not_know_is_told(
    loader: Loader, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: object) -> None:
        raise RuntimeError("unordered_map::at")

    monkeypatch.setattr(graph.Graph, "forward", forward)
    with pytest.raises(EncoderError, match=r"cannot take this model \(bert\); set encoder.runtime to torch"):
        await loader.load(Wanted.model_validate({"runtime": runtime}), None, nothing)


async def test_no_chunks_make_no_8_bit_model(loader: Loader) -> None:
    async def none() -> Sequence[Int32s]:
        return []

    with pytest.raises(EncoderError, match="its shards gave none; `check` says what is wrong"):
        await loader.load(INT8, None, none)


async def test_few_chunks_make_an_8_bit_model_with_a_warning(loader: Loader) -> None:
    async def few() -> Sequence[Int32s]:
        return chunks(2 * FEW - 2)

    with capture_logs() as logs:
        loaded = await loader.load(INT8, None, few)
    assert loaded.calibration is not None
    assert len(loaded.calibration.tokens) == FEW - 1
    warned = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["event"], line["chunks"]) for line in warned] == [("quantize", FEW - 1)]


@pytest.mark.slow
async def test_an_8_bit_model_stays_the_same(loader: Loader) -> None:
    first = await loader.load(INT8, None, some)
    assert first.calibration is not None
    assert first.calibration.probes is not None
    assert len(first.calibration.tokens) == 20
    vectors = await loader.embed(first.encoder, chunks(50, seed=1))
    exact = await loader.embed((await loader.torch("float32")).encoder, chunks(50, seed=1))
    near = cosines(vectors, exact)
    assert 0.9 < near.min() < 0.99999  # eight bits, and not many more
    assert near.mean() > 0.98

    alone = [(await loader.embed(first.encoder, [ids]))[0] for ids in chunks(50, seed=1)]
    np.testing.assert_allclose(vectors, np.stack(alone), atol=1e-4)

    (place,) = kept(loader, "openvino-int8-")
    made = (place / "model.bin").stat().st_mtime_ns
    again = await loader.load(INT8, first.calibration, nothing)
    assert (place / "model.bin").stat().st_mtime_ns == made
    np.testing.assert_array_equal(vectors, await loader.embed(again.encoder, chunks(50, seed=1)))

    recalled = recall(loader.folder, first.calibration.id)
    assert recalled is not None
    np.testing.assert_array_equal(recalled.probes, first.calibration.probes)
    shutil.rmtree(place)
    remade = await loader.load(INT8, first.calibration, nothing)
    assert cosines(vectors, await loader.embed(remade.encoder, chunks(50, seed=1))).min() > 0.99999

    other = Calibration.from_bytes(replace(first.calibration, probes=exact[:16]).to_bytes())
    other.probes[3] *= -1  # type: ignore[index]
    with pytest.raises(IdentityMismatchError, match="gives other vectors than when it was made"):
        await loader.load(INT8, other, nothing)
    assert (place / FILE).exists()


async def test_few_chunks_are_not_judged_again(loader: Loader) -> None:
    loaded = await loader.load(FLOAT32, None, nothing)
    known = Quality("openvino", "float32", 9, 0.5, 0.5, None)

    async def few() -> Sequence[Int32s]:
        return chunks(FEW - 1)

    assert await loader.judge(loaded, few, known, 0.99) is known
    for other in (None, replace(known, precision="bfloat16"), replace(known, runtime="torch")):
        judged = await loader.judge(loaded, few, other, 0.99)
        assert judged is not None
        assert judged.chunks == (FEW - 1) // 2


async def test_what_is_too_bad_is_refused(loader: Loader) -> None:
    loaded = await loader.load(FLOAT32, None, nothing)
    with pytest.raises(EncoderError, match=r"cosine 1.00000 on average.*below encoder.quality_floor"):
        await loader.judge(replace(loaded, precision="int8"), some, None, 1.1)


async def test_onnx_runtime_gives_torchs_vectors(loader: Loader) -> None:
    providers = ("CUDAExecutionProvider", "CPUExecutionProvider")  # there is no first one here
    loaded = await loader.load(Wanted(runtime="onnx", providers=providers), None, nothing)
    assert (loaded.runtime, loaded.precision) == ("onnx/CPUExecutionProvider", "float32")
    quality = await loader.judge(loaded, some, None, 0.99)
    assert quality is not None
    assert quality.lowest_cosine >= 0.99999
    (place,) = kept(loader, "onnx-")
    (place / onnx.MODEL).write_bytes(b"no model")
    with pytest.raises(ResourceError, match="ONNX Runtime cannot load it; remove it and run again"):
        await loader.load(Wanted(runtime="onnx"), None, nothing)


async def test_providers_that_are_not_there_are_named(loader: Loader) -> None:
    wanted = Wanted(runtime="onnx", providers=("TensorrtExecutionProvider",))
    with pytest.raises(ConfigError, match=r"encoder\.providers: Tensorrt.* has only .*CPUExecutionProvider"):
        await loader.load(wanted, None, nothing)
    assert not loader.folder.exists()


async def test_another_config_is_another_export(loader: Loader) -> None:
    await loader.load(FLOAT32, None, nothing)
    with open(f"{loader.spec.folder}/config.json", "a") as config:  # noqa: ASYNC230
        config.write(" ")
    await loader.load(FLOAT32, None, nothing)
    assert len(kept(loader, "openvino-")) == 2


def test_batches_are_of_like_length() -> None:
    lengths = [5, 100, 7, 5, 90, 30]
    assert by_length(lengths, 200) == [[0, 3, 2, 5], [4, 1]]
    assert by_length([300], 200) == [[0]]
    assert by_length([], 200) == []


async def test_a_missing_package_says_what_to_install(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    for wanted in (FLOAT32, INT8):
        with pytest.raises(ConfigError, match=r"OpenVINO is not installed .*ingestor\[openvino\]"):
            await loader.load(wanted, None, some)
    with pytest.raises(ConfigError, match=r"ONNX Runtime is not installed .*ingestor\[onnx\]"):
        await loader.load(Wanted(runtime="onnx"), None, some)


async def test_a_missing_package_that_exports_is_told(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"needs the package onnx, .*ingestor\[onnx\]"):
        await loader.load(Wanted(runtime="onnx"), None, some)
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(ConfigError, match=r"int8 needs NNCF, .*ingestor\[openvino\]"):
        await loader.load(INT8, None, some)

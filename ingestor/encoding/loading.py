"""The encoder that the settings ask for: by which runtime, in which precision, and how good it is."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np

from ingestor import worker
from ingestor.config.forms import of_its_own, runtime_of
from ingestor.config.sections import Encoder as Wanted
from ingestor.device import Device
from ingestor.encoding.calibration import CHUNKS, FILE, PROBES, Calibration, spread
from ingestor.encoding.encoder import Encoder, choose_dtype, embed, load_encoder
from ingestor.encoding.head import Head
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.padded import PaddedEncoder
from ingestor.encoding.quality import Quality, compare
from ingestor.encoding.runtimes.cache import keep
from ingestor.errors import EncoderError
from ingestor.records import Float32s, Int32s, loose_batch
from ingestor.telemetry import logger

Sample = Callable[[], Awaitable[Sequence[Int32s]]]
"""Gives the tokens of some of the run's own chunks."""

TORCH = "torch"
OPENVINO = "openvino"
ONNX = "onnx"
TOKENS_PER_BATCH = 1024
FEW = 32
"""Chunks of a run, for which its form is not judged again."""
EXPORT = 1
"""Raise it when what is exported of a model changes."""
QUANTIZE = 1
"""Raise it when the same chunks shall make another 8-bit model."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An encoder, and what is to be known of it.

    Attributes:
        runtime, precision: what computes it, and how exactly.
        calibration: of an 8-bit model.
    """

    encoder: Encoder
    runtime: str
    precision: str
    calibration: Calibration | None = None

    @property
    def is_plain(self) -> bool:
        """Computed by torch in a precision whose vectors are known to be good."""
        return self.runtime == TORCH and not of_its_own(self.precision)


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads a model in one form or another.

    Attributes:
        spec: the model.
        device: where it shall run.
        folder: keeps what was exported.
        stopped: whether all this is not wanted any more.
    """

    spec: ModelSpec
    device: Device
    folder: Path
    stopped: Callable[[], bool] = bool

    async def load(self, wanted: Wanted, calibration: Calibration | None, sample: Sample) -> Loaded:
        """The model in the form that the settings ask for.

        Args:
            wanted: the settings.
            calibration: what the collection's 8-bit model was fitted to; None for a new one.
            sample: is asked for chunks where some are needed.

        Raises:
            ModelError, ConfigError: it cannot be loaded.
            EncoderError: there is no chunk to fit a new 8-bit model to.
            IdentityMismatchError: it is not the 8-bit model of this calibration.
        """
        if wanted.precision == "int8":
            return await self.int8(calibration or await self._new_calibration(sample))
        runtime = runtime_of(wanted.runtime, wanted.precision)
        if runtime == OPENVINO:
            return await self.openvino(wanted.precision)
        if runtime == ONNX:
            return await self.onnx(wanted.providers)
        return await self.torch(wanted.precision)

    async def torch(self, precision: str) -> Loaded:
        """The model as transformers has it.

        Raises:
            ModelError, ConfigError: it cannot be loaded.
        """
        encoder = await self.device.launch(load_encoder, self.spec, device=self.device, precision=precision)
        dtype = choose_dtype(self.spec, self.device, precision)
        name = precision if of_its_own(precision) else str(dtype).removeprefix("torch.")
        return Loaded(encoder, TORCH, name)

    async def openvino(self, precision: str) -> Loaded:
        """The same model, computed by OpenVINO."""
        from ingestor.encoding.runtimes import openvino

        precision = "float32" if precision == "auto" else precision
        folder = await self._export(openvino)
        return Loaded(await self._open_openvino(folder, precision), OPENVINO, precision)

    async def onnx(self, providers: Sequence[str]) -> Loaded:
        """The same model, computed by ONNX Runtime, with the first of these providers that works here."""
        from ingestor.encoding.runtimes import onnx

        onnx.choose(providers)
        hidden = await self.device.launch(onnx.OnnxHidden, await self._export(onnx), providers=providers)
        return Loaded(PaddedEncoder(hidden, Head(self.spec)), f"{ONNX}/{hidden.provider}", "float32")

    async def int8(self, calibration: Calibration) -> Loaded:
        """The model in eight bits, made and kept where it is not there yet.

        Args:
            calibration: without probes, if the model is a new one.

        Raises:
            IdentityMismatchError: it does not give the vectors that it gave when it was new.
        """
        from ingestor.encoding.runtimes import openvino, quantize

        about = {"recipe": QUANTIZE, "revision": self.spec.revision, "calibration": calibration.id}

        async def probe(place: Path) -> tuple[Encoder, Float32s]:
            encoder = await self._open_openvino(place, "int8")
            return encoder, await self.embed(encoder, calibration.tokens[:PROBES])

        async def make(place: Path) -> None:
            quantize.demand_library()
            await self._quantize(await self._export(openvino), place, calibration.tokens)
            probes = (await probe(place))[1] if calibration.probes is None else calibration.probes
            (place / FILE).write_bytes(replace(calibration, probes=probes).to_bytes())

        kept = await keep(self.folder, "openvino-int8", about, make, give_up=self.stopped)
        encoder, probes = await probe(kept)
        if calibration.probes is None:
            calibration = replace(calibration, probes=probes)
        calibration.check(probes, kept)
        return Loaded(encoder, OPENVINO, "int8", calibration)

    async def judge(
        self, loaded: Loaded, sample: Sample, known: Quality | None, floor: float
    ) -> Quality | None:
        """How good the vectors are; None for those that torch has computed in 16 bits or more.

        Args:
            loaded: what gives them.
            sample: is asked for chunks. Those that a model was fitted to are left out.
            known: what an earlier run has found; believed where there are few chunks.
            floor: for the mean cosine.

        Raises:
            EncoderError: they are not good enough.
        """
        if loaded.is_plain:
            return None
        chunks = await sample()
        same = known and (known.runtime, known.precision) == (loaded.runtime, loaded.precision)
        if known and same and len(chunks) < FEW:
            return known
        quality = await self.gate(loaded, chunks[1::2] or chunks) if chunks else None
        if quality:
            quality.demand(floor)
        return quality

    async def gate(self, loaded: Loaded, chunks: Sequence[Int32s]) -> Quality:
        """Hold the encoder's vectors of some chunks, one or more, against those of torch in float32."""
        exact = (await self.torch("float32")).encoder
        expected, found = await self.embed(exact, chunks), await self.embed(loaded.encoder, chunks)
        quality = compare(expected, found, runtime=loaded.runtime, precision=loaded.precision)
        logger().info("quality", text=str(quality))
        return quality

    async def embed(self, encoder: Encoder, chunks: Sequence[Int32s]) -> Float32s:
        """float32[n, dimension], the vector of each chunk; those of like length go together."""
        vectors = np.empty((len(chunks), encoder.dimension), np.float32)
        for rows in by_length([len(ids) for ids in chunks], TOKENS_PER_BATCH):
            batch = loose_batch([chunks[row] for row in rows])
            vectors[rows] = await self.device.launch(embed, batch, encoder=encoder, device=self.device)
        return vectors

    async def _new_calibration(self, sample: Sample) -> Calibration:
        chunks = spread((await sample())[::2], CHUNKS)
        if not chunks:
            raise EncoderError(
                "encoder.precision: int8 is fitted to chunks of the run, and its shards gave none; `check`"
                " says what is wrong with them"
            )
        if len(chunks) < FEW:
            logger().warning(
                "quantize",
                chunks=len(chunks),
                error=f"{FEW} chunks or more make a better 8-bit model, and the collection keeps this one",
                then="begin a new collection with more text if the quality does not do",
            )
        return Calibration(self.spec.revision, tuple(chunks))

    async def _export(self, runtime: ModuleType) -> Path:
        """Where the model lies as this module of `runtimes` takes it."""
        name = runtime.__name__.rpartition(".")[2]
        about = {
            "recipe": EXPORT,
            "revision": self.spec.revision,
            "config": config_hash(self.spec),
            name: runtime.library().__version__,
            **{library: version(library) for library in ("torch", "transformers")},
        }

        async def make(place: Path) -> None:
            logger().info("export", runtime=name, model=self.spec.name)
            try:
                await self.device.launch(runtime.export, self.spec, place)
            except asyncio.CancelledError:
                await self.device.launch(int)  # its turn comes when nothing is written there any more
                raise

        return await keep(self.folder, name, about, make, give_up=self.stopped)

    async def _open_openvino(self, folder: Path, precision: str) -> Encoder:
        from ingestor.encoding.runtimes.openvino import OpenVinoHidden

        hidden = await self.device.launch(OpenVinoHidden, folder, precision=precision)
        return PaddedEncoder(hidden, Head(self.spec))

    async def _quantize(self, source: Path, target: Path, chunks: Sequence[Int32s]) -> None:
        from ingestor.encoding.runtimes import quantize

        logger().info("quantize", chunks=len(chunks), model=self.spec.name)
        pool = worker.spawn(1)
        try:
            asked = worker.submit(pool, quantize.quantize, source, target, chunks)
            await worker.answer(pool, asked, "the process that makes the 8-bit model")
        finally:
            worker.kill(pool)
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)


def by_length(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """The rows of items in batches, those of like length together, padded to at most so many tokens."""
    batches: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if batches and (len(batches[-1]) + 1) * lengths[row] <= most_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def config_hash(spec: ModelSpec) -> str:
    """Changes when what the model computes does, though its weights are the same."""
    return hashlib.sha256(Path(spec.folder, "config.json").read_bytes()).hexdigest()

"""What one run works with: opened in order before anything is read, and closed in reverse."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson

from ingestor.buffers import sweep
from ingestor.config.forms import of_its_own
from ingestor.config.settings import RunOptions, Settings
from ingestor.encoding.calibration import Calibration
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.quality import Quality
from ingestor.errors import ConfigError, StoppedError
from ingestor.lock import A_RUN_CAN_WAIT, Lock
from ingestor.running import generations, wiring
from ingestor.running.dry_run import copy_state
from ingestor.running.engine import Engine
from ingestor.running.generations import Standing
from ingestor.sink import check_target
from ingestor.sink.collection import check_filled, check_free
from ingestor.sink.pool import SinkPool
from ingestor.sources.listing import Listing
from ingestor.sources.remote import Remote
from ingestor.state.ledger import Ledger
from ingestor.watching.profiling import Profile
from ingestor.watching.progress import Progress
from ingestor.watching.tally import Tally

P = ParamSpec("P")
R = TypeVar("R")
OpenPool = Callable[..., Awaitable[SinkPool]]
"""Takes what `SinkPool.open` takes."""


@dataclass(slots=True)
class Job:
    """What one run works with.

    Attributes:
        settings: with the names of the collection and state file that this run works with.
        standing: where they stand behind an alias.
        opening: held while the collection is opened.
        is_known: the collection may have noted the state file's id.
        can_embed: engine and sinks are open, and the sinks see the engine's buffers.
        calibration: what the collection's 8-bit model was fitted to.
        quality: of the encoder's vectors, where there is something to tell.
        told: what people were warned of, apart from shards.
        index_due: the server has an index to build that was put off.
    """

    settings: Settings
    standing: Standing
    options: RunOptions
    stop: asyncio.Event
    progress: Progress
    stack: AsyncExitStack
    listing: Listing
    spec: ModelSpec
    identity: dict[str, Any]
    state: Path
    ledger: Ledger
    unpack: ThreadPoolExecutor
    remote: Remote
    open_pool: OpenPool
    workers: ProcessPoolExecutor | None = None
    sinks: SinkPool | None = None
    engine: Engine | None = None
    profile: Profile | None = None
    can_embed: bool = False
    is_known: bool = False
    calibration: Calibration | None = None
    quality: Quality | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    written: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    index_due: bool = False

    @property
    def tally(self) -> Tally:
        return self.progress.tally

    async def in_ledger(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one of the ledger's methods in its thread."""
        return await self.ledger.run(work, *args, **kwargs)

    def watch_engine(self) -> None:
        """Let the profile, if there is to be one, see what the device does from here on."""
        if self.profile is not None and self.engine is not None:
            self.engine = replace(self.engine, device=self.profile.watch(self.engine.device))
            self.stack.push_async_callback(self.profile.stop)

    def warn(self, kind: str, details: Sequence[str]) -> None:
        """Warn of something about the collection, once."""
        for detail in details:
            if detail not in self.told:
                self.told.add(detail)
                self.tally.warn(self.settings.qdrant.collection, kind, detail)


async def open_job(
    stack: AsyncExitStack,
    settings: Settings,
    options: RunOptions,
    stop: asyncio.Event,
    progress: Progress,
    open_pool: OpenPool,
) -> Job:
    """List the shards, read the model's files, take the locks, open the ledger: all that costs little.

    Raises:
        ConfigError: what is live would be dropped.
    """
    unpack, thread = ThreadPoolExecutor(4, "unpack"), ThreadPoolExecutor(1, "ledger")
    for pool in (unpack, thread):  # ended off the loop, for a thread may hang in a dead disk
        stack.push_async_callback(asyncio.to_thread, pool.shutdown, cancel_futures=True)
    loop = asyncio.get_running_loop()
    remote = Remote()
    stack.push_async_callback(asyncio.to_thread, remote.close)
    listing = await list_source(settings, remote, unpack, stop)
    spec = await loop.run_in_executor(unpack, wiring.spec_of, settings)
    standing = await loop.run_in_executor(unpack, generations.stand, settings, spec)
    if options.recreate and standing.alias and standing.is_live:
        raise ConfigError(
            f"--recreate would drop {standing.live!r}, which searches see as {standing.alias!r};"
            " --full embeds everything again in place"
        )
    settings = standing.settings
    identity = wiring.identity_of(settings, spec)
    progress.chosen |= {"identity": dict(identity), "model": spec.name}
    if options.dry_run:
        state = await loop.run_in_executor(unpack, _copied_state, stack, Path(settings.state))
    else:
        state = Path(settings.state)
        await _lock(stack, settings, options, stop, progress, unpack)
        sweep(str(state.resolve()))  # also where this run will not need any
    fresh = not state.exists()
    ledger = await loop.run_in_executor(thread, Ledger.open, state, thread)
    job = Job(
        settings=settings,
        standing=standing,
        options=options,
        stop=stop,
        progress=progress,
        stack=stack,
        listing=listing,
        spec=spec,
        identity=identity,
        state=state,
        ledger=ledger,
        unpack=unpack,
        remote=remote,
        open_pool=open_pool,
    )
    stack.push_async_callback(_close_ledger, job, fresh)
    if options.profile is not None:
        job.profile = Profile(options.profile, *options.profile_window)
        stack.push_async_callback(job.profile.close)
    return job


def _copied_state(stack: AsyncExitStack, state: Path) -> Path:
    """A copy of the state file, for a run that only looks; `stack` removes it."""
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestor-"))) / "state.sqlite3"
    copy_state(state, copy)
    return copy


async def _lock(
    stack: AsyncExitStack,
    settings: Settings,
    options: RunOptions,
    stop: asyncio.Event,
    progress: Progress,
    threads: ThreadPoolExecutor,
) -> None:
    """Lock the state file and the engine's folder against other runs, in a thread: it may wait."""
    loop = asyncio.get_running_loop()
    told = options.retry or options.lock_wait_s  # `failures --retry` has no such option
    advice = "" if told else A_RUN_CAN_WAIT
    for path in filter(None, (wiring.state_lock(settings), wiring.engine_lock(settings))):
        with progress.doing("waiting for another run to end"):
            held = await loop.run_in_executor(
                threads, Lock.acquire, path, options.lock_wait_s, stop.is_set, advice
            )
        stack.enter_context(held)


async def _close_ledger(job: Job, fresh: bool) -> None:
    """Let go of the state file; one that was made for a run which was refused goes with it."""
    await job.in_ledger(job.ledger.close)
    if fresh and not job.is_known:
        job.state.unlink(missing_ok=True)


async def list_source(
    settings: Settings, remote: Remote, unpack: ThreadPoolExecutor, stop: asyncio.Event
) -> Listing:
    """Find the shards; after a stop nothing is found."""
    looking = asyncio.get_running_loop().run_in_executor(unpack, wiring.listing_of, settings, remote)
    try:
        return await remote.until(stop, looking)
    except StoppedError:
        return Listing([], [])


async def check_identity(job: Job) -> None:
    """Refuse another vector identity by the ledger alone, and a collection that is not the ledger's.

    `opening.open_sinks` looks more closely, where there is work to do.

    Raises:
        IdentityMismatchError: the documents that the ledger knows have vectors of another model, or are
            in another collection.
    """
    job.identity["state"] = job.ledger.state_id
    known, here = await job.in_ledger(job.ledger.meta, "identity"), job.identity["vector"]
    target, loop = wiring.target_of(job.settings, job.spec), asyncio.get_running_loop()
    if job.options.recreate:
        await loop.run_in_executor(job.unpack, check_target, target)
        return
    if known is not None:
        await recall_form(job)
    elif not (job.options.adopt or job.options.dry_run):  # what was kept of a form was of a run that failed
        await loop.run_in_executor(job.unpack, check_free, target, job.identity)
    wiring.check_known(job.settings, orjson.loads(known or "null"), here)
    if not job.options.adopt and not await job.in_ledger(job.ledger.is_empty):
        job.warn("drift", await loop.run_in_executor(job.unpack, check_filled, target, job.identity))


async def recall_form(job: Job) -> None:
    """What earlier runs kept of the form that the model is in."""
    stored = await job.in_ledger(job.ledger.meta, "calibration")
    if stored and of_its_own(job.settings.encoder.precision):
        job.calibration = Calibration.from_bytes(stored)
    if quality := await job.in_ledger(job.ledger.meta, "quality"):
        job.quality = Quality(**orjson.loads(quality))
    name_form(job)


def name_form(job: Job) -> None:
    """Put the 8-bit model's name, and what is known of its vectors, beside the identity."""
    known = {
        "calibration": job.calibration and job.calibration.id,
        "quality": job.quality and asdict(job.quality),
    }
    for name, value in known.items():
        job.identity.pop(name, None)
        if value:
            job.identity[name] = value

"""Taking over a collection that another state file wrote, or of which nothing says who did (`--adopt`).

All documents of the source are embedded into it. What chunks it holds of them is found out first, so that
those that are too many go; documents that the source does not have stay, unknown to the state file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from ingestor.encoding.calibration import Calibration, recall
from ingestor.errors import IdentityMismatchError
from ingestor.running import wiring
from ingestor.running.job import Job, name_form
from ingestor.sink import Target, open_reader
from ingestor.sink.collection import check, store_of
from ingestor.state.identity import document_key, origin_of

ADOPTED = "adopted"
"""In the ledger's meta until all of the source was read once."""
FIELDS = ("document", "chunk")

Claim = list[tuple[int, str, int]]
"""Documents of a part of a collection: key, id, and chunks that it has at least."""


async def take_over(job: Job) -> bool:
    """Make the collection this state file's own, apart from its identity, which is written when it is opened.

    Returns:
        False where the run was stopped meanwhile; `--adopt` has to be given again then.

    Raises:
        IdentityMismatchError: there is nothing to take over, or its vectors are of another model.
    """
    target, loop = wiring.target_of(job.settings, job.spec), asyncio.get_running_loop()
    is_filled = not await job.in_ledger(job.ledger.is_empty)
    theirs = await loop.run_in_executor(job.unpack, strange, target, job.identity, is_filled)
    if theirs is None:
        return True
    job.calibration = await loop.run_in_executor(job.unpack, fitted, job, theirs)
    await job.in_ledger(job.ledger.disown)
    if job.calibration:
        await job.in_ledger(job.ledger.set_meta, "calibration", job.calibration.to_bytes())
    name_form(job)
    pages = claims(target)
    with job.progress.doing("looking through the collection"), closing(pages):
        while (claim := await loop.run_in_executor(job.unpack, next, pages, None)) is not None:
            await job.in_ledger(job.ledger.leaving.claim, claim)
            if job.stop.is_set():
                return False
    await job.in_ledger(job.ledger.set_meta, ADOPTED, "1")
    return True


def fitted(job: Job, theirs: Mapping[str, Any]) -> Calibration | None:
    """What the 8-bit model of a collection was fitted to, if it has one: its documents that stay need it.

    Raises:
        IdentityMismatchError: it is not among the models that are kept.
    """
    if (id_ := theirs.get("calibration")) is None:
        return None
    models = wiring.kept_models(job.settings)
    if (found := recall(models, id_)) is None:
        raise IdentityMismatchError(
            f"collection {job.settings.qdrant.collection!r} was written with the 8-bit model {id_}, which is"
            f" not in {models}; nothing was written. Bring it back there, or --recreate to embed everything"
            " anew with another one"
        )
    return found


def strange(target: Target, identity: dict[str, object], is_filled: bool) -> dict[str, Any] | None:
    """The identity of a collection that is there and not this state file's yet.

    Args:
        is_filled: the state file has documents that it takes for stored.

    Raises:
        IdentityMismatchError: it cannot be taken over.
    """
    with store_of(target) as store:
        found = store.read()
    if found is None and is_filled:
        raise IdentityMismatchError(
            f"{target}: there is no such collection, so nothing to adopt; the state file has documents of"
            " another one. Nothing was written; --recreate embeds everything anew"
        )
    if found is None:
        return None
    check(found, target, identity, adopt=True)
    theirs = found.identity or {}
    return theirs if theirs.get("state") != identity.get("state") else None


def claims(target: Target) -> Generator[Claim, None, None]:
    """The documents that this program wrote to a collection, page by page."""
    with closing(open_reader(target)) as reader:
        for page in reader.scan(FIELDS):
            origins = filter(None, (origin_of(point.id, point.payload) for point in page))
            yield [(document_key(document), document, chunk + 1) for document, chunk in origins]


async def complete(job: Job) -> None:
    """All of the source was read: what it does not have is nobody's."""
    if await job.in_ledger(job.ledger.meta, ADOPTED) is None:
        return
    strangers = await job.in_ledger(job.ledger.leaving.forget_strangers)
    await job.in_ledger(job.ledger.set_meta, ADOPTED, None)
    if strangers:
        detail = f"{strangers:,} documents of the collection are not in the source; they stay as they are"
        job.warn(ADOPTED, [detail])

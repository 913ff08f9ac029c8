"""Parquet: a record a row. Read row group by row group, only the columns asked for.

A block is some rows as an Arrow stream; Arrow is loaded where a shard needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from ingestor.errors import SourceError, one_line
from ingestor.records import Document, Failure, RawBlock, Shard, Skipped
from ingestor.sources.cutting import Cut, Limits, Splitter, too_long
from ingestor.sources.fields import Fields, document, find
from ingestor.sources.values import RecordError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

MAGICS = (b"PAR1", b"PARE")
"""How a file begins, plain or encrypted."""
MOST_ROWS = 4096
"""Rows unpacked at once: many may share one long text, of which the file's sizes say nothing."""
BUFFER_BYTES = 1 << 20


def begins(head: bytes) -> bool:
    """Whether a file that begins so is a Parquet file."""
    return head.startswith(MAGICS)


def splitter(shard: str, limits: Limits, fields: Fields) -> Splitter:
    """Refuse what arrives as a stream: the index of a Parquet file is at its end."""
    raise SourceError("wrong_format", "a Parquet file that is packed once more; unpack it first")


def read_file(raw: BinaryIO, shard: Shard, limits: Limits, fields: Fields) -> Iterator[Cut]:
    """Give the rows of a file in blocks; holds some thousand rows at a time.

    Args:
        raw: the file, which can be read anywhere.
        shard: its name and size.
        limits: of blocks and records.
        fields: tells the columns.

    Raises:
        SourceError: missing_column, unsupported_type, corrupt_input or unreadable (encrypted).
    """
    with _arrow_errors():
        from pyarrow import parquet as pq

        from ingestor.sources.columns import chosen_columns, plain

        with pq.ParquetFile(raw, page_checksum_verification=True, buffer_size=BUFFER_BYTES) as file:
            columns = chosen_columns(file.schema_arrow, fields)
            place, size, total = 1, 0, max(1, file.metadata.num_rows)
            for number in range(file.num_row_groups):
                rows = _batch_rows(file, number, size, place - 1, limits.block_bytes)
                for batch in file.iter_batches(rows, [number], columns, use_threads=False):
                    chosen = plain(batch)
                    place += len(chosen)
                    size += chosen.nbytes
                    taken = min(shard.size, shard.size * (place - 1) // total)
                    for cut in _cuts(chosen, place - len(chosen), shard.name, limits):
                        yield replace(cut, taken=taken)


def _batch_rows(file: pq.ParquetFile, number: int, size: int, count: int, block_bytes: int) -> int:
    """How many rows of a group fill a block, by the `count` rows of `size` bytes that were read before.

    For the first group by what the file says of all its columns, whatever that is; to ask it for the sizes
    of one column ends the process where they are damaged.
    """
    if not size:
        group = file.metadata.row_group(number)
        size, count = group.total_byte_size, group.num_rows
    return max(1, min(MOST_ROWS, block_bytes * max(count, 0) // max(size, 1)))


def _cuts(rows: pa.RecordBatch, place: int, shard: str, limits: Limits) -> Iterator[Cut]:
    """Split rows until each part fits a block, or is one row."""
    count = len(rows)
    if count > 1 and rows.nbytes > limits.block_bytes:
        yield from _cuts(rows.slice(0, count // 2), place, shard, limits)
        yield from _cuts(rows.slice(count // 2), place + count // 2, shard, limits)
    elif rows.nbytes > limits.max_record_bytes:
        yield Cut(place, 0, b"", (too_long(shard, place, rows.nbytes, limits),))
    elif count:
        yield Cut(place, 0, _packed(rows))


def _packed(rows: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Say in one way what Arrow says in many.

    Raises:
        SourceError: corrupt_input, unsupported_type, or unreadable for what is encrypted.
        OSError: of the operating system.
    """
    import pyarrow as pa

    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise SourceError("unsupported_type", one_line(error)) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unreadable(error) from error
    except (pa.ArrowException, ValueError, LookupError, ArithmeticError, MemoryError, RuntimeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> SourceError:
    if "crypt" in str(error):
        return SourceError(
            "unreadable", f"an encrypted Parquet file, for which there is no key: {one_line(error)}"
        )
    return SourceError("corrupt_input", one_line(error))


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Make each row's document; one that cannot be a document is a Failure with its row."""
    import pyarrow as pa

    from ingestor.sources.columns import python_values

    shard, place = block.shard.name, block.place
    with pa.ipc.open_stream(block.data) as stream:
        rows = stream.read_next_batch()
    names = rows.schema.names
    values = [python_values(column) for column in rows.columns]
    raw = any(escaped for _, escaped in values)
    for row in zip(*(column for column, _ in values), strict=True):
        record = dict(zip(names, row, strict=True))
        try:
            if raw:
                _check_encoding(record, fields)
            yield document(record, fields, shard, place, exact=True)
        except RecordError as error:
            yield Failure(shard, place, error.kind, error.detail, error.document)
        place += 1


def _check_encoding(record: dict[str, Any], fields: Fields) -> None:
    """Refuse bytes in text and id that are no UTF-8; in metadata each is replaced, and counted."""
    for path in (*fields.text, *([fields.id] if fields.id is not None else [])):
        value = find(record, path)
        if type(value) is not str or value.isascii():
            continue
        try:
            value.encode()
        except UnicodeEncodeError as error:
            byte = len(value[: error.start].encode()) + 1
            code = ord(value[error.start]) & 0xFF
            raise RecordError("bad_encoding", f"byte {byte} of {path} (0x{code:02x}) is no UTF-8") from None


def prose(text: str) -> str:
    """The text is prose already."""
    return text

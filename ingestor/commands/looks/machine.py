"""The machine: disk, memory, shared memory, device, and what the settings would make of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ingestor.buffers import FOLDER, BufferLayout, check_room, free_bytes
from ingestor.commands.looks import OK, WARN, Look
from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.errors import ConfigError, ResourceError
from ingestor.running import engine
from ingestor.sink import place

MIB = 1 << 20
LITTLE_DISK_BYTES = 1 << 30
PROCESS_BYTES = 256 << 20
"""What a worker process takes, about; and the main one beside the model."""
MEMORY = Path("/proc/meminfo")
PROCESSOR = Path("/proc/cpuinfo")
LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""A container's, of either version: what it may take, and what it has taken."""


def configuration(settings: Settings) -> Look:
    """Where all of it goes; that the settings are understood was found when they were read."""
    yield OK, f"into collection {settings.qdrant.named}, {settings.qdrant.target}"


def disk(settings: Settings) -> Look:
    """Room and leave to write for the state, and for the embedded engine."""
    folders = [Path(settings.state).parent] + ([Path(settings.qdrant.path)] if settings.qdrant.path else [])
    disks: dict[int, list[Path]] = {}
    for path in folders:
        absolute = path.absolute()
        there = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
        if not there.is_dir():
            raise ConfigError(f"{there}: is a file, and should be a folder; change the setting")
        if not os.access(there, os.W_OK | os.X_OK):
            raise ConfigError(f"{there}: cannot be written to; change its owner or the setting")
        disks.setdefault(there.stat().st_dev, []).append(path)
    said, little = [], False
    for paths in disks.values():
        free = place.free_bytes(paths[0])
        little = little or free < LITTLE_DISK_BYTES
        said.append(f"{free / MIB:,.0f} MiB free for {' and '.join(map(str, paths))}")
    yield (WARN, "; ".join((*said, "make room, or use another disk"))) if little else (OK, ", ".join(said))


def metrics(settings: Settings) -> Look:
    """Whether Prometheus will find the counters."""
    port, textfile = settings.metrics.port, settings.metrics.textfile
    if textfile:
        folder = Path(textfile).absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"metrics.textfile: {folder} is no folder that can be written to; make it")
        if not textfile.endswith(".prom"):
            yield WARN, f"metrics.textfile: node_exporter reads files named *.prom only, and not {textfile}"
        else:
            yield OK, f"kept in {textfile}"
    if port:
        with socket.socket() as listening:
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(("", port))
            except OSError as error:
                raise ConfigError(f"metrics.port: {port}: {error.strerror}; name another") from error
        yield OK, f"port {port} while a run goes on"


def device(settings: Settings) -> Look:
    """Where the encoder would run; loads torch."""
    from ingestor.device import open_device

    opened = open_device(engine.device_of(settings))
    engine.check_device(settings, opened)
    found = opened.torch_device
    if found.type == "cuda":
        from ingestor.cuda import room

        name, free, total = room(found)
        yield OK, f"{found}, {name}, {free / MIB:,.0f} of {total / MIB:,.0f} MiB free, {engine.cores()} cores"
    else:
        yield OK, f"{found}, {engine.cores()} cores for this process{_faster(settings)}"


def _faster(settings: Settings) -> str:
    """What a processor with matrix units for 16 bits could do, where nobody has asked for it."""
    if settings.encoder.precision != "auto" or settings.encoder.model.startswith("hash:"):
        return ""
    if not PROCESSOR.exists() or "amx_bf16" not in PROCESSOR.read_text():
        return ""
    return "; it has AMX, with which encoder.precision: bfloat16 is more than twice as fast as float32"


def shared_memory(settings: Settings, spec: ModelSpec) -> Look:
    """Room for the buffers between encoder and writers."""
    rows = engine.slot_rows(settings, spec.dimension) or engine.CPU_SLOT_ROWS
    if engine.has_gpu(settings) and settings.pipeline.buffer_bytes == "auto":
        from ingestor.encoding.budget import SIZES

        rows = engine.gpu_rows(SIZES[-1], 0)  # the fewest that the largest budget does with
    needed = BufferLayout("", settings.pipeline.buffers, rows, spec.dimension).nbytes
    check_room(needed)
    yield OK, f"{needed / MIB:,.0f} MiB needed, {free_bytes() / MIB:,.0f} MiB free in {FOLDER}"


def memory(settings: Settings, spec: ModelSpec) -> Look:
    """Room for the model and the processes."""
    free = min(_free_memory(), default=None)
    if free is None:
        return
    weights = 0 if engine.has_gpu(settings) else _weights_bytes(spec)
    processes = 1 + engine.prepare_processes(settings) + engine.sink_processes(settings)
    needed = weights + processes * PROCESS_BYTES
    said = f"{free / MIB:,.0f} MiB free, about {needed / MIB:,.0f} MiB needed by {processes} processes"
    if needed > free:
        raise ResourceError(
            f"{said}; give the container more, take a smaller model, or lower pipeline.prepare_processes"
        )
    yield OK, said


def _free_memory() -> Iterator[int]:
    """What the machine has left, and what a container may still take."""
    if MEMORY.exists():
        fields = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
        yield int(fields["MemAvailable"].split()[0]) * 1024
    for most, taken in LIMITS:
        if most.exists() and taken.exists() and (limit := most.read_text().strip()) != "max":
            yield int(limit) - int(taken.read_text())


def _weights_bytes(spec: ModelSpec) -> int:
    files = list(Path(spec.folder).glob("*.safetensors")) if spec.folder else []
    return sum(file.stat().st_size for file in files)

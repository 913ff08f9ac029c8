"""Runs that start at once: forked from a process that has imported what they need. All else is as it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

IMPORTED = [
    "torch",
    "ingestor.encoding.encoder",
    "ingestor.launch",
    "ingestor.pipeline",
    "ingestor.sink.embedded",
]


class WarmRun:
    """As much of `subprocess.Popen` as tests of runs need."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        handle, name = tempfile.mkstemp(prefix="stderr-")
        os.close(handle)
        self._said = Path(name)
        self._process = _context().Process(target=_main, args=(arguments, folder, environment, self._said))
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its parent took note first
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("run", timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        said = self._said.read_text()
        self._said.unlink()
        return "", said


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)  # only the first call counts
    return context


def _main(arguments: list[str], folder: Path, environment: dict[str, str], said: Path) -> None:
    os.setsid()  # a signal to its group strikes nobody else
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # the run has one of its own
    from ingestor.cli import execute

    code = execute(arguments)
    sys.stderr.flush()
    sys.exit(code)

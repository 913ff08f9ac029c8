"""The log, and what is done again and again."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from ingestor import telemetry


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_event_is_a_line_on_stderr(capsys, log_format):
    telemetry.configure_logging(log_format)
    telemetry.logger().info("encoder", device="cpu", token_budget=1024)
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    if log_format == "json":
        found = json.loads(line)
        assert (found["event"], found["level"], found["token_budget"]) == ("encoder", "info", 1024)
    else:
        assert line == "encoder     device=cpu token_budget=1024"
        telemetry.logger().info("quality", text="cosine 0.99", chunks=2)
        assert capsys.readouterr().err == "quality     cosine 0.99 chunks=2\n"
        telemetry.logger().warning("retry", byte=7)
        assert re.fullmatch(r"\d{4}-\S+ \[warning *\] retry +byte=7\n", capsys.readouterr().err)


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(environ, coloured):
    script = "from ingestor import telemetry; telemetry.logger().info('encoder', device='cpu')"
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", script],
        stderr=theirs,
        env={**inherited, "TERM": "xterm", **environ},
        check=True,
        timeout=60,
    )
    os.close(theirs)
    said = os.read(ours, 4096)
    os.close(ours)
    assert b"encoder" in said
    assert (b"\x1b[" in said) is coloured


async def test_repeats_until_the_block_ends():
    times, three = [], asyncio.Event()

    def action() -> None:
        times.append(1)
        if len(times) == 3:
            three.set()

    async with asyncio.timeout(10):
        with telemetry.repeat(0.001, action):
            await three.wait()
    seen = len(times)
    await asyncio.sleep(0.01)
    assert len(times) == seen

"""Each runtime and precision on the CPU against sentence-transformers with the same backend and precision.

cpu_runtimes.py [--peer PYTHON] [--passages 400] [--rounds 5] [--batches 32 8]

From strings to vectors, tokenization included, in processes that stay: a round lets one after the other
embed the same passages, with a product of matrices before and after each, to tell how fast the machine was.
Ratios are of neighbours in a round, their median over all rounds; those of processor time are steadier where
others use the machine. --peer names the Python of an environment with sentence-transformers and its backends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import meter
from parts.passages import passages
from parts.stopwatch import MODEL

FORMS = (
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("onnx", "float32"),
    ("openvino", "float32"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
)
DEFAULT = ("torch", "float32", 32)
STOPWATCH = Path(__file__).parent / "parts" / "stopwatch.py"


@dataclass
class Entrant:
    """One system in one form, in a process of its own."""

    name: str
    process: subprocess.Popen[str]
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    probes: list[tuple[float, float]] = field(default_factory=list)

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"error": "it ended"}')
        return found

    def run(self) -> None:
        assert self.process.stdin is not None
        before = probe()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self.read()
        self.seconds.append(found["seconds"])
        self.cpu_seconds.append(found["cpu_seconds"])
        self.probes.append((before, probe()))


def probe() -> float:
    """GFLOPS of a product of matrices, just now."""
    import numpy as np

    matrix = np.ones((1024, 1024), np.float32)
    since = time.perf_counter()
    for _ in range(5):
        matrix @ matrix
    return 5 * 2 * 1024**3 / (time.perf_counter() - since) / 1e9


def start(python: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [python, str(STOPWATCH), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def begin(name: str, *command: str) -> Entrant | None:
    """Start an entrant and wait until it is warm; None, with a word why, where it cannot take part."""
    entrant = Entrant(name, start(*command))
    if error := entrant.read().get("error"):
        print(f"{name}: {error}", file=sys.stderr)
        return None
    return entrant


def peers_model(folder: Path, kept: Path) -> dict[str, str]:
    """The peer's models: the packaged one, and the same 8-bit files that this project made."""
    import openvino as ov

    from ingestor.encoding.model import resolve

    packaged = resolve(MODEL).folder
    quantized = folder / "int8"
    shutil.copytree(packaged, quantized)
    (made,) = kept.glob("openvino-int8-*/model.xml")
    graph = ov.Core().read_model(made)
    graph.outputs[0].get_tensor().set_names({"last_hidden_state"})
    (quantized / "openvino").mkdir(exist_ok=True)
    ov.save_model(graph, quantized / "openvino" / "openvino_model.xml", compress_to_fp16=False)
    return {"int8": str(quantized)} | dict.fromkeys(("float32", "bfloat16"), packaged)


def enter(options: argparse.Namespace, folder: Path) -> dict[tuple[str, str, int], Entrant]:
    """All entrants, warm; batch size 0 is this project's."""
    texts = folder / "passages.json"
    texts.write_text(json.dumps([text for _, text in passages(options.texts, options.passages)]))
    kept = folder / "kept"
    kept.mkdir()
    found: dict[tuple[str, str, int], Entrant] = {}
    for runtime, precision in FORMS:
        name = f"ours {runtime} {precision}"
        if entrant := begin(name, sys.executable, "ours", runtime, precision, str(kept), str(texts)):
            found[runtime, precision, 0] = entrant
    models = peers_model(folder, kept)
    for runtime, precision in FORMS:
        for batch in options.batches:
            name = f"sentence-transformers {runtime} {precision} {batch}"
            command = ("peer", runtime, precision, str(batch), models[precision], str(texts))
            if entrant := begin(name, options.peer, *command):
                found[runtime, precision, batch] = entrant
    return found


def ratio(peer: Entrant, ours: Entrant, what: str) -> float:
    """How many times as fast ours is."""
    pairs = zip(getattr(peer, what), getattr(ours, what), strict=True)
    return float(round(statistics.median(theirs / mine for theirs, mine in pairs), 3))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--texts", type=Path, help="JSON Lines of id and text, also .zst")
    parser.add_argument("--passages", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 8], help="the peer's batch sizes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entrants = enter(options, Path(folder))
        for _ in range(options.rounds):
            for entrant in entrants.values():
                entrant.run()
        for entrant in entrants.values():
            entrant.process.terminate()
            entrant.process.wait()
    for (runtime, precision, batch), ours in entrants.items():
        if batch:
            continue
        peers = {key[2]: peer for key, peer in entrants.items() if key[:2] == (runtime, precision) and key[2]}
        default = entrants.get(DEFAULT)
        meter.emit(
            "cpu_runtimes",
            runtime=runtime,
            precision=precision,
            passages_per_s=round(options.passages / statistics.median(ours.seconds), 1),
            passages_per_cpu_s=round(options.passages / statistics.median(ours.cpu_seconds), 1),
            times_the_same={batch: ratio(peer, ours, "seconds") for batch, peer in peers.items()},
            times_the_same_cpu={batch: ratio(peer, ours, "cpu_seconds") for batch, peer in peers.items()},
            times_default=ratio(default, ours, "seconds") if default else None,
            times_default_cpu=ratio(default, ours, "cpu_seconds") if default else None,
            gflops=[[round(value) for value in pair] for pair in ours.probes],
        )


if __name__ == "__main__":
    main()

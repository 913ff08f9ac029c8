"""Whole runs against what people use today, sentence-transformers.

end_to_end.py                  on two cores: the command into the embedded engine, against a script that
                               encodes and upserts the same texts; whole processes, interleaved
end_to_end.py --device cuda    JSON Lines on disk to vectors in slots, dropped, against `encode` of the same
                               texts, dropped
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from parts import material, meter
from parts.dropping import Dropping

# No torch at the top: the prepare processes import this file.
RATES = {"tiny": 2_000, "minilm": 60_000, "base": 16_000, "large": 5_500}
PEER = Path(__file__).parent / "parts" / "peer.py"
PEER_SETTINGS = ("float32:32", "float16:256", "bfloat16:256", "float16:1024")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--texts", type=Path, help="CPU: JSON Lines of id and text, also .zst")
    parser.add_argument("--documents", type=int, help="CPU: 2,000; CUDA: --seconds at the rate hoped for")
    parser.add_argument("--rounds", type=int, default=3, help="CPU")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 8], help="CPU: the peer's batch sizes")
    parser.add_argument("--shapes", nargs="+", default=["minilm", "base", "large"], help="CUDA")
    parser.add_argument("--seconds", type=float, default=12.0, help="CUDA: about how long a run shall take")
    parser.add_argument("--peer-seconds", type=float, default=5.0, help="CUDA: the same for the peer")
    parser.add_argument("--peer", nargs="*", default=PEER_SETTINGS, help="CUDA: dtype:batch size ...")
    parser.add_argument(
        "--set", nargs="*", default=[], help="CUDA: settings for the run, SECTION.FIELD=VALUE"
    )
    parser.add_argument("--force", action="store_true", help="the CUDA mode, on the CPU: to try this script")
    options = parser.parse_args()
    if (
        options.force
        or options.device == "cuda"
        or (options.device == "auto" and Path("/dev/nvidiactl").exists())
    ):
        on_cuda(options)
    else:
        on_cpu(options)


def on_cuda(options: argparse.Namespace) -> None:
    busy = None if options.force else meter.BusyMeter()
    with tempfile.TemporaryDirectory() as name:
        for shape in options.shapes:
            folder = Path(name, shape)
            model = material.save_model(shape, folder / "model")
            documents = options.documents or int(RATES[shape] * options.seconds)
            shards = material.write_shards(folder / "shards", documents, max(4, documents // 20_000))
            ours = run_pipeline(folder, model, options, busy)
            peers = [run_peer(model, shards, setting, shape, options) for setting in options.peer]
            best = max(peers, key=lambda found: found["documents_per_s"], default=None)
            ratio = round(ours["steady"] / best["documents_per_s"], 2) if best else None
            meter.emit("end_to_end", shape=shape, ratio_to_best=ratio, ours=ours, peers=peers)


def run_pipeline(
    folder: Path, model: Path, options: argparse.Namespace, busy: meter.BusyMeter | None
) -> dict[str, Any]:
    from ingestor.config.settings import RunOptions, load
    from ingestor.pipeline import run
    from ingestor.watching.progress import Progress

    config = folder / "config.yaml"
    config.write_text(
        json.dumps(
            {
                "source": {"paths": [f"{folder}/shards/*.jsonl"]},
                "encoder": {"model": str(model), "device": "cpu" if options.force else "cuda"},
                "qdrant": {"path": f"{folder}/qdrant"},
                "state": f"{folder}/state.sqlite3",
            }
        )
    )
    settings = load(config, options.set)
    sinks = Dropping()
    threads: dict[str, float] = {}

    async def whole() -> Any:
        stop = asyncio.Event()
        running = asyncio.ensure_future(
            run(settings, options=RunOptions(), stop=stop, progress=Progress(), open_pool=sinks.open)
        )
        while not running.done():
            await asyncio.wait([running], timeout=0.25)
            threads.update(meter.thread_seconds())
        return running.result()

    if busy:
        busy.reset()
    before = meter.thread_seconds()
    since, children = time.perf_counter(), os.times().children_user
    report = asyncio.run(whole())
    seconds = time.perf_counter() - since
    rate, first, last = meter.steady(sinks.arrivals)
    documents, points = report.documents.indexed, report.points.upserted
    return {
        "documents": documents,
        "chunks": points,
        "tokens": report.tokens.embedded,
        "steady": round(rate * documents / points),
        "tokens_per_s": round(rate * report.tokens.embedded / points),
        "whole": round(documents / seconds),
        "seconds": round(seconds, 2),
        "first_vectors_s": round(sinks.arrivals[0][0] - since, 2),
        "chunks_by_second": meter.by_second(sinks.arrivals),
        "gpu_busy": busy.share(first, last) if busy else None,
        "stages": report.to_dict()["stages"],
        "bottleneck": report.bottleneck,
        "thread_cpu_s": {
            name: round(spent - before.get(name, 0), 2) for name, spent in threads.items() if spent >= 0.05
        },
        "prepare_cpu_s": round(os.times().children_user - children, 1),
    }


def run_peer(
    model: Path, shards: list[Path], setting: str, shape: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Encode some of the texts, from strings in memory, after a warm-up."""
    import torch
    from sentence_transformers import SentenceTransformer

    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # its default, which a fork may have switched off
    dtype, _, size = setting.partition(":")
    device = "cpu" if options.force else "cuda"
    peer = SentenceTransformer(str(model), device=device, model_kwargs={"dtype": getattr(torch, dtype)})
    texts = [json.loads(line)["text"] for shard in shards for line in shard.open()]
    peer.encode(texts[:512], batch_size=int(size))
    since = time.perf_counter()
    peer.encode(texts[512:1536], batch_size=int(size))
    wanted = int(options.peer_seconds * 1024 / (time.perf_counter() - since))
    texts = texts[-max(2048, min(wanted, len(texts))) :]
    since = time.perf_counter()
    peer.encode(texts, batch_size=int(size))
    seconds = time.perf_counter() - since
    return {"setting": setting, "documents": len(texts), "documents_per_s": round(len(texts) / seconds)}


def on_cpu(options: argparse.Namespace) -> None:
    from parts.passages import passages

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = passages(options.texts, options.documents or 2000)
        for part, some in (("all", texts), ("one", texts[:1])):
            (folder / part).mkdir()
            lines = "".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in some)
            (folder / part / "a.jsonl").write_text(lines, "utf-8")
        systems: dict[str, Callable[[Path, str], list[str]]] = {"ours": ours_command}
        systems |= {f"peer, batch {size}": partial(peer_command, size) for size in options.batches}
        spent: dict[str, dict[str, list[float]]] = {name: {"all": [], "one": []} for name in systems}
        for turn in range(options.rounds):
            for system, command in systems.items():
                for part in ("one", "all"):
                    run = folder / f"{system}-{part}-{turn}"
                    run.mkdir()
                    arguments = command(run, part)
                    since = time.perf_counter()
                    subprocess.run([sys.executable, *arguments], check=True, env=quiet())
                    spent[system][part].append(round(time.perf_counter() - since, 2))
        report_cpu(spent, len(texts))


def ours_command(run: Path, part: str) -> list[str]:
    config = run / "config.yaml"
    config.write_text(
        json.dumps(
            {
                "source": {"paths": [f"{run.parent}/{part}/*.jsonl"]},
                "encoder": {"model": material.TOKENIZER, "device": "cpu", "precision": "float32"},
                "qdrant": {"path": f"{run}/qdrant"},
                "state": f"{run}/state.sqlite3",
            }
        )
    )
    return ["-m", "ingestor", "run", "--config", str(config), "--no-progress"]


def peer_command(batch_size: int, run: Path, part: str) -> list[str]:
    return [str(PEER), str(run.parent / part), str(run), str(batch_size)]


def report_cpu(spent: dict[str, dict[str, list[float]]], documents: int) -> None:
    """Medians and ratios, of the whole process and without its start (a run over one text)."""
    whole = {name: statistics.median(times["all"]) for name, times in spent.items()}
    without = {name: whole[name] - statistics.median(times["one"]) for name, times in spent.items()}
    print(f"{'':16}{'whole, s':>10}{'ratio':>8}{'without start-up, s':>22}{'ratio':>8}", file=sys.stderr)
    for name in spent:
        ratio, other = whole[name] / whole["ours"], without[name] / without["ours"]
        line = f"{name:16}{whole[name]:>10.2f}{ratio:>8.2f}{without[name]:>22.2f}{other:>8.2f}"
        print(line, file=sys.stderr)
    meter.emit(
        "end_to_end_cpu",
        documents=documents,
        spent=spent,
        ratios={name: round(seconds / whole["ours"], 3) for name, seconds in whole.items()},
        ratios_without_start={name: round(seconds / without["ours"], 3) for name, seconds in without.items()},
    )


def quiet() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    main()

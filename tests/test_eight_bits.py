"""Runs in eight bits: judged before anything is written, the same model ever after, no others beside it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.models import TEXTS, save_model
from tests.running import Workplace
from tests.sinks import embedded, stored

DIMENSION = 48


def documents(count: int, start: int = 0) -> list[dict[str, str]]:
    """Documents of the words that the tests' tokenizer was trained on."""
    words = " ".join(TEXTS).split()
    random = np.random.default_rng(start)
    return [
        {"id": f"d{start + number}", "text": " ".join(random.choice(words, 5 + number % 60))}
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "bert", gentle=True)
    return str(folder / "model")


@pytest.fixture
def place(tmp_path: Path, model: str) -> Workplace:
    return Workplace(tmp_path, encoder={"model": model, "precision": "int8", "device": "auto"})


def vectors(place: Workplace) -> dict[str, np.ndarray]:
    target = embedded(place.folder / "qdrant", collection="things", dimension=DIMENSION)
    return {payload["document"]: vector for vector, payload in stored(target).values()}


def meta(place: Workplace) -> dict[str, object]:
    with closing(sqlite3.connect(place.state)) as file:
        return dict(file.execute("SELECT name, value FROM meta").fetchall())


@pytest.mark.slow
def test_a_collection_in_eight_bits(place: Workplace, model: str) -> None:
    place.write("a.jsonl", documents(90))
    ended = place.run()
    quality = ended.report["quality"]
    assert (quality["runtime"], quality["precision"], quality["chunks"]) == ("openvino", "int8", 45)
    assert 0.99 <= quality["mean_cosine"] < 1
    assert 0.5 < quality["neighbours"] <= 1
    assert "quality     int8 by openvino against float32, 45 chunks: cosine 0.99" in ended.err
    remembered = meta(place)
    assert json.loads(remembered["quality"]) == quality
    before = vectors(place)

    # A few more documents: the same model, and what was found out about it.
    place.write("b.jsonl", documents(3, start=200))
    ended = place.run()
    assert ended.report["quality"] == quality
    assert "quantize" not in ended.err
    assert vectors(place).keys() - before.keys() == {"d200", "d201", "d202"}
    assert meta(place)["calibration"] == remembered["calibration"]

    assert place.ask("verify", "--sample", "20").code == 0
    assert "of this model" in place.ask("check").out

    place.configure(encoder={"model": model})
    said = place.run(code=4).errors[0]
    assert "precision: 'int8' there, 16 or 32 bits here" in said


@pytest.mark.slow
def test_vectors_below_the_floor_are_never_written(place: Workplace, model: str) -> None:
    place.write("a.jsonl", documents(30))
    place.configure(encoder={"model": model, "precision": "int8", "device": "auto", "quality_floor": 1.0})
    ended = place.run(code=1)
    assert "that is below encoder.quality_floor (1.0), so nothing was written" in ended.errors[0]
    assert not (place.folder / "qdrant" / "things").exists()
    assert place.recorded() == {}


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_makes_the_model(place: Workplace) -> None:
    place.write("a.jsonl", documents(90))
    process = place.start_run()
    assert process.stderr is not None
    for line in process.stderr:
        if "quantize" in line:
            break
    process.terminate()
    ended = place.end(process)
    assert ended.code == 143, ended.err
    assert [path.suffix for path in (place.folder / "models").iterdir() if "int8" in path.name] == [".lock"]

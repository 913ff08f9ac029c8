"""Quality is measured as it is said to be, and what is too bad is refused with a way out."""

from __future__ import annotations

import numpy as np
import pytest

from ingestor.encoding.quality import Quality, compare, cosines
from ingestor.errors import EncoderError


def vectors(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


def test_the_same_vectors_are_of_best_quality() -> None:
    some = vectors(40)
    found = compare(some, 3 * some, runtime="openvino", precision="int8")
    assert (found.chunks, found.neighbours) == (40, 1.0)
    assert found.mean_cosine == pytest.approx(1) == found.lowest_cosine
    found.demand(1 - 1e-6)


def test_one_bad_vector_shows_as_the_lowest_and_in_the_neighbours() -> None:
    exact = vectors(40)
    other = exact.copy()
    other[7] = -exact[7]
    found = compare(exact, other, runtime="openvino", precision="int8")
    assert found.lowest_cosine == pytest.approx(-1)
    assert found.mean_cosine == pytest.approx((39 - 1) / 40)
    assert 0.7 < (found.neighbours or 0) < 1


def test_unrelated_vectors_keep_few_neighbours() -> None:
    found = compare(vectors(60), vectors(60, seed=1), runtime="openvino", precision="int8")
    assert (found.neighbours or 0) < 0.4
    assert abs(found.mean_cosine) < 0.2


@pytest.mark.parametrize("rows", [1, 2])
def test_few_chunks_have_no_neighbours_to_lose(rows: int) -> None:
    found = compare(vectors(rows), vectors(rows), runtime="openvino", precision="int8")
    assert found.neighbours is None
    assert "nearest" not in str(found)
    assert compare(vectors(3), vectors(3), runtime="x", precision="int8").neighbours == 1.0


def test_a_vector_of_zeros_is_like_no_other() -> None:
    left, right = vectors(2), vectors(2)
    right[1] = 0
    np.testing.assert_allclose(cosines(left, right), [1, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("precision", "mean", "lowest", "floor", "message"),
    [
        ("int8", 0.98, 0.9, 0.99, r"below encoder.quality_floor \(0.99\), so nothing was written"),
        ("int8", float("nan"), float("nan"), 0.0, "below encoder.quality_floor"),
        ("float32", 1.0, 0.9999, 0.0, "at least 0.99999 is demanded of float32.*encoder.runtime to torch"),
        ("bfloat16", 1.0, 0.99, 0.0, "at least 0.999 is demanded of bfloat16"),
    ],
)
def test_what_is_too_bad(precision: str, mean: float, lowest: float, floor: float, message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        Quality("openvino", precision, 9, mean, lowest, None).demand(floor)


def test_what_is_good_enough() -> None:
    Quality("openvino", "int8", 9, 0.991, 0.5, None).demand(0.99)
    Quality("openvino", "bfloat16", 9, 0.9999, 0.9995, None).demand(1.0)

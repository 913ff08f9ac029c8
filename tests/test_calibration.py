"""What names an 8-bit model survives the state file, and notices another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from ingestor.encoding.calibration import FILE, Calibration, recall, spread
from ingestor.errors import IdentityMismatchError

TOKENS = tuple(np.arange(length, dtype=np.int32) for length in (3, 1, 7))
PROBES = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
FITTED = Calibration("sha256:a", TOKENS, PROBES)


@pytest.mark.parametrize("probes", [PROBES, None])
def test_it_is_stored_and_read(probes: np.ndarray | None) -> None:
    found = Calibration.from_bytes(replace(FITTED, probes=probes).to_bytes())
    assert found.revision == FITTED.revision
    assert [ids.tolist() for ids in found.tokens] == [ids.tolist() for ids in TOKENS]
    assert found.probes is None if probes is None else (found.probes == probes).all()
    assert found.id == FITTED.id


def test_other_chunks_or_weights_are_another_model() -> None:
    others = [
        replace(FITTED, revision="sha256:b"),
        replace(FITTED, tokens=TOKENS[:2]),
        replace(FITTED, tokens=(TOKENS[0][:2], TOKENS[1], TOKENS[2])),
        replace(FITTED, tokens=(np.concatenate(TOKENS[:2]), TOKENS[2])),
    ]
    assert len({calibration.id for calibration in (FITTED, *others)}) == 5


def test_probes_notice_another_model() -> None:
    FITTED.check(PROBES * (1 + 1e-4), Path("models/a"))
    other = PROBES.copy()
    other[2] += 0.1
    said = f"^models/a: the 8-bit model {FITTED.id} gives other vectors .* Remove this folder"
    with pytest.raises(IdentityMismatchError, match=said):
        FITTED.check(other, Path("models/a"))


def test_it_is_recalled_from_the_kept_models(tmp_path: Path) -> None:
    assert recall(tmp_path / "nowhere", FITTED.id) is None
    for name, calibration in (("a", replace(FITTED, revision="sha256:b")), ("b", FITTED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_bytes(calibration.to_bytes())
    found = recall(tmp_path, FITTED.id)
    assert found is not None
    assert (found.id, found.revision) == (FITTED.id, FITTED.revision)
    assert recall(tmp_path, "") is None


@pytest.mark.parametrize("damage", ["", "hello", "cut", "twisted", "folder"])
def test_what_is_damaged_is_passed_over(tmp_path: Path, damage: str) -> None:
    whole = FITTED.to_bytes()
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / FILE).write_bytes(whole)
    for name in ("a", "c"):  # which of them is met first is not known
        if damage == "folder":
            (tmp_path / name / FILE).mkdir()
            continue
        middle = len(whole) // 3
        twisted = (
            whole[:middle] + bytes(byte ^ 0x55 for byte in whole[middle : middle + 40]) + whole[middle + 40 :]
        )
        bad = {"cut": whole[:300], "twisted": twisted}.get(damage, damage.encode())
        (tmp_path / name / FILE).write_bytes(bad)
    with capture_logs() as logs:
        found = recall(tmp_path, FITTED.id)
        assert recall(tmp_path, "another") is None
    assert found is not None
    assert found.id == FITTED.id
    assert {line["log_level"] for line in logs} == {"warning"}
    assert {Path(line["file"]).parent.name for line in logs} == {"a", "c"}


def test_items_are_spread_over_all() -> None:
    assert spread([1, 2, 3], 5) == [1, 2, 3]
    assert spread(range(101), 5) == [0, 25, 50, 75, 100]
    assert spread([], 5) == []

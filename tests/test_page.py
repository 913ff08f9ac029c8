"""The page about a run: what it says, what it must never say, and how it looks in a browser."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingestor.channel import StageTime
from ingestor.config.settings import Settings
from ingestor.errors import ConfigError
from ingestor.sources.urls import without_secrets
from ingestor.watching import page as page_module
from ingestor.watching.history import Sample
from ingestor.watching.page import require_libraries, write_page
from ingestor.watching.page.charts import spread
from ingestor.watching.progress import Progress
from ingestor.watching.report import Refused, Remark
from ingestor.watching.timeline import BATCHES, Timeline
from tests.running import Workplace, documents, eventually

SECRETS = ("hunter2", "s3cr3t", "X-Amz-Signature")


class Elements(HTMLParser):
    """What a page is made of: (tag, attributes) of all elements, and that each is closed in its turn."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def ids(self) -> list[str]:
        return [name for _, attributes in self.found if (name := attributes.get("id"))]


def a_progress() -> Progress:
    """A run of two hours that met everything."""
    made = Progress(timeline=Timeline(), shards_total=2, bytes_total=100)
    report, tally = made.report, made.tally
    report.collection, report.target = "wiki <b>", "https://qdrant.example.org:6333"
    report.status, report.exit_code, report.seconds = "complete", 3, 7_200.0
    report.documents.read = report.documents.indexed = 120_000
    report.refused = [Refused("a.jsonl", 12, "bad_json", "<script>alert(1)</script>", None)]
    report.shard_errors = [Remark("b.gz", "truncated_input", "ends at byte 7")]
    report.warnings = [Remark(f"w{n}", "changed", "") for n in range(150)]
    report.rejected_by_kind = {"bad_json": 250}
    report.documents.withheld = 7
    names = ("read", "prepare", "pack", "prefetch", "encode", "copy_out", "upsert", "settle")
    report.stages = {name: StageTime(900.0 * n, 50.0, 7_000 - 900.0 * n) for n, name in enumerate(names)}
    for second in range(0, 7_200, 20):
        counters = (second * 16, second * 40, second * 6_000, second * 40)
        made.history.add(Sample(float(second), *counters, second / 7_200, report.stages, {}))
    rng = np.random.default_rng(7)
    tally.chunk_tokens.add(rng.integers(5, 257, 10_000))
    tally.document_chunks.add(rng.geometric(0.4, 4_000))
    tally.tokens, tally.padding, tally.batches, tally.indexed = 43_200_000, 900_000, 5_000, 120_000
    made.paths = {"a.jsonl": "/data/a b.jsonl", "b.gz": "https://user:hunter2@h/b.gz?X-Amz-Signature=7"}
    made.chosen = {"identity": {"vector": {"model": "m", "revision": "abc"}}, "device": "cuda:0"}
    assert made.timeline
    for _ in range(BATCHES + 1):
        made.timeline.batch()
        for name in names:
            span = made.timeline.span(name)
            span.begin()
            span.end()
    return made


def settings(**qdrant: Any) -> Settings:
    return Settings.model_validate(
        {
            "source": {"paths": ["https://user:a@hunter2@h/a.jsonl?X-Amz-Signature=77", "data/*.jsonl"]},
            "qdrant": {"url": "https://qdrant.example.org:6333", "api_key": "s3cr3t", **qdrant},
        }
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> str:
    """The page about a run that met everything."""
    path = tmp_path_factory.mktemp("page") / "r.html"
    write_page(path, a_progress(), settings(), "")
    return path.read_text("utf-8")


@pytest.mark.whole
def test_all_parts_are_there(full):
    wanted = ["numbers", "shard-errors", "failures", "warnings", "withheld", "speed", "stages", "timeline"]
    assert [name for name in Elements(full).ids() if "-" not in name or name == "shard-errors"] == [
        *(*wanted, "lengths", "account", "identity")
    ]
    assert full.count("<svg") == 2 * 5  # for wide pages and for narrow ones
    for said in (
        "exit code 3",
        "120,000",
        "time since the run began [min]",
        "time [min]",
        "tokens in a chunk",
    ):
        assert said in full
    assert "Padding was 2.0 %" in full


def test_the_model_is_told_in_words(tmp_path):
    made, hashed = Progress(), "sha256:0123"
    vector = {"model": hashed, "revision": hashed, "normalize": True, "prompt": "", "name": None, "size": 1}
    made.chosen = {"identity": {"vector": vector}, "model": "models/mine", "device": "cpu"}
    write_page(tmp_path / "r.html", made, settings(), "")
    rows = dict(
        re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", (tmp_path / "r.html").read_text("utf-8"))
    )
    said = {name: rows[name] for name in (*vector, "device")}
    assert list(said.values()) == ["models/mine", hashed, "yes", "\N{EN DASH}", "\N{EN DASH}", "1", "cpu"]


def test_names_on_the_page_are_unique_and_there(full):
    elements = Elements(full)
    ids = elements.ids()
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r"url\(#([^)]+)\)", full))
    referred |= {
        str(value)[1:]
        for tag, attributes in elements.found
        for name, value in attributes.items()
        if name in ("href", "xlink:href") and str(value).startswith("#")
    }
    assert referred
    assert referred <= set(ids)


def test_nothing_is_fetched_and_nothing_is_run(full):
    tags = {tag for tag, _ in Elements(full).found}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert not re.search(r"@import|url\((?!#)|\son\w+=", full.replace("&lt;", ""))


def test_what_was_read_is_text_and_no_markup(full):
    assert "<script" not in full
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in full
    assert "wiki &lt;b&gt;" in full


def test_secrets_are_not_told(full):
    assert not [secret for secret in SECRETS if secret in full]
    assert "https://h/a.jsonl" in full
    assert "api_key: &#39;**********&#39;" in full


def test_failures_link_to_their_places(full):
    links = {attributes.get("href") for tag, attributes in Elements(full).found if tag == "a"}
    assert links == {"file:///data/a%20b.jsonl", "https://h/b.gz"}
    assert "a.jsonl:12</a>" in full
    assert "the first 1 of 250" in full
    assert "the first 100 of 150" in full


def test_colours_are_the_page_s_own(full):
    drawn = full[full.index("<svg") : full.rindex("</svg>")]
    assert set(re.findall(r"#[0-9a-f]{6}", drawn)) <= {"#000000", "#ffffff"}
    assert "var(--series)" in drawn
    for name in set(re.findall(r"var\(--(\w+)\)", full)):
        assert f"--{name}:" in full


def test_it_stays_small(full):
    assert len(full) < 600_000


def test_a_run_that_never_began(tmp_path):
    progress = Progress(timeline=Timeline())
    write_page(tmp_path / "r.html", progress, None, "c.yaml: there is no such file")
    text = (tmp_path / "r.html").read_text("utf-8")
    Elements(text)
    assert "Why it failed" in text
    assert "there is no such file" in text
    assert "<svg" not in text


def test_the_page_needs_its_libraries(monkeypatch):
    require_libraries()
    monkeypatch.setattr(page_module, "LIBRARIES", ("matplotlib", "no_such_library"))
    with pytest.raises(
        ConfigError,
        match=r"--html needs no_such_library: pip install 'ingestor\[html\]' \(in a clone: .*'\.\[html\]'\)",
    ):
        require_libraries()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl"),
        ("- https://u:p@h:1/a?b=c&d=e\n- x?y", "- https://h:1/a\n- x?y"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_urls_without_secrets(text, shown):
    assert without_secrets(text) == shown


def test_a_histogram_in_words():
    counts = np.zeros(300, np.int64)
    counts[[1, 2, 200]] = 50, 49, 1
    assert spread(counts) == "mean 3.5, median 1, 95 % have 2 or fewer"


def lines_of(place: Workplace) -> None:
    place.write("a.jsonl", [*documents(3_000), {"id": "bad"}, {"id": "<i>", "text": " "}])


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_its_page(tmp_path):
    place = Workplace(tmp_path, encoder={"token_budget": 64}, chunk={"max_tokens": 32, "overlap_tokens": 0})
    lines_of(place)
    process = place.start_run("--html", "r.html")
    eventually(lambda: place.recorded())
    process.send_signal(signal.SIGTERM)
    assert place.end(process).code == 143
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "stopped<span> exit code 143" in text
    assert 'id="stages"' in text


@pytest.mark.whole
def test_a_run_that_fails_leaves_its_page(tmp_path):
    place = Workplace(tmp_path, source={"paths": ["nothing/*.jsonl"]})
    ended = place.run("--html", "r.html", code=2)
    text = (tmp_path / "r.html").read_text("utf-8")
    assert ended.errors[0].removeprefix("error: ") in text.replace("&#39;", "'")
    assert "failed<span> exit code 2" in text


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, as it is installed on the machine."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory, request) -> Path:
    """The page about a whole run."""
    if made := request.config.getoption("--page"):
        return Path(made).resolve()
    place = Workplace(tmp_path_factory.mktemp("run"), source={"metadata_fields": ["kind"]})
    lines_of(place)
    place.run("--html", "r.html", code=3)
    return place.folder / "r.html"


DEVICES = {
    "light": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_in_a_browser(browser, run_page, name, request):
    context = browser.new_context(offline=True, **DEVICES[name])
    shown, said, asked = context.new_page(), [], []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda sent: asked.append(sent.url))
    shown.goto(run_page.as_uri())
    assert said == []
    assert asked == [run_page.as_uri()]
    for section in ("numbers", "failures", "speed", "stages", "timeline", "lengths", "identity"):
        assert shown.locator(f"#{section}").is_visible(), section
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing hangs over
    look_at_drawings(shown, narrow=name == "phone")
    red, green, blue = map(int, re.findall(r"\d+", background(shown))[:3])
    assert (red + green + blue < 3 * 64) == (name == "dark")
    if folder := request.config.getoption("--screenshots"):
        shown.screenshot(path=f"{folder}/report-{name}.png", full_page=True)
    context.close()


def background(shown: Any) -> str:
    found: str = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def look_at_drawings(shown: Any, *, narrow: bool) -> None:
    """Each drawing is there once, in the size that fits, its letters can be read and none lies on another."""
    drawings = shown.locator("svg:visible")
    assert drawings.count() == 5
    assert shown.locator(".narrow svg:visible" if narrow else ".wide svg:visible").count() == 5
    assert shown.locator("#stages svg:visible text", has_text="encode").count() == 1
    assert shown.locator("#stages svg:visible text", has_text="time [s]").count() == 1
    letters = shown.evaluate(
        """() => [...document.querySelectorAll('svg text')].filter(text => text.getClientRects().length)
            .map(text => { const box = text.getBoundingClientRect(), svg = text.closest('svg');
                const turned = box.height > box.width && text.textContent.length > 3;
                return [[...document.querySelectorAll('svg')].indexOf(svg), text.textContent,
                    box.left, box.top, box.right, box.bottom, turned ? box.width : box.height] })"""
    )
    assert len(letters) > 40
    for number, one in enumerate(letters):
        assert one[6] >= 10, f"too small to read: {one}"
        for other in letters[number + 1 :]:
            apart = one[4] <= other[2] or other[4] <= one[2] or one[5] <= other[3] or other[5] <= one[3]
            assert apart or one[0] != other[0], f"{one} lies on {other}"


@pytest.mark.slow
def test_on_paper(browser, run_page, tmp_path):
    context = browser.new_context(color_scheme="dark")
    shown = context.new_page()
    shown.goto(run_page.as_uri())
    shown.emulate_media(media="print")
    assert background(shown) == "rgb(255, 255, 255)"
    assert shown.locator(".wide svg:visible").count() == 5
    paper = shown.pdf(format="A4", path=tmp_path / "r.pdf")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 6
    context.close()

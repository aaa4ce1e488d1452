from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from suite.reports.page import FigureOnPage, headlines, render_page
from suite.reports.tables import build_tables
from suite.reports.tracked import read_tracked

EVIL = '<script>alert("x")</script>'
VOID = {"meta", "img", "link", "br", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._open and self._open[-1] in ("td", "th", "code") and self.rows:
            self.rows[-1].append(data)


def page(maker: Any) -> str:
    tracked = read_tracked(maker.reader, "demo")
    figure = FigureOnPage(name="loss_grid", title="Losses", caption="What it is.", png=b"\x89PNG")
    return render_page(tracked, [figure], build_tables(tracked))


def test_page_asks_the_network_for_nothing(demo: Any) -> None:
    parsed = Page(page(demo))
    assert not {"script", "link", "iframe", "object", "embed", "form"} & set(parsed.tags)
    for name, value in parsed.attributes:
        if name in ("src", "href"):
            assert value is not None
            assert value.startswith(("data:image/png;base64,", "#"))
    assert "url(" not in page(demo)
    assert "@import" not in page(demo)


def test_names_are_shown_as_text(maker: Any) -> None:
    maker.pretraining(
        sizes={EVIL: 1000}, recurrences=(2,), points=5, fail={(EVIL, 2): f"{EVIL} & more"}
    )
    maker.fit(warnings=(EVIL,))
    maker.calibration(models={EVIL: (0.1, 0.2)}, calibrate_on=(EVIL,), evaluate_on=(EVIL,))
    maker.search(name=EVIL, trials=2)
    maker.reader.add("calibration", f"left out {EVIL}")
    html = page(maker)
    parsed = Page(html)
    assert "script" not in parsed.tags
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    shown = "".join(parsed.text)
    for place in (f"Law: {EVIL}", f"FAILED: {EVIL} & more", f"left out {EVIL}", f"Search {EVIL}"):
        assert place in shown


def test_tables_of_the_page_hold_run_ids_in_full(demo: Any) -> None:
    cells = {text for row in Page(page(demo)).rows for text in row}
    for kind in ("pretraining", "law", "calibration"):
        for row in demo.reader.rows:
            if row["kind"] == kind:
                assert row["run_id"] in cells


def test_headlines_tell_the_findings_in_tracked_numbers(demo: Any) -> None:
    lines = list(headlines(read_tracked(demo.reader, "demo")))
    run = demo.reader.run_named("pretrain medium Tm=2")
    last = demo.reader.point(run, "train/total_loss", 1_000_000)["value"]
    assert lines[0] == (
        "Pretraining: 4 of 4 cells finished (2 sizes, 2 recurrences); lowest final total loss "
        f"{last:.4g} nats a token, medium at Tm = 2."
    )
    assert lines[1] == (
        "Law looplm_total, fitted to 2 cells: R² over all points 0.9981, R² over held-out cells "
        "only 0.9712, their mean relative error 0.0172, share of starts that agree 0.75."
    )
    assert lines[2] == (
        "Held-out cells: 0 of 2 predicted blind, with the prediction on record before the cell "
        "began."
    )
    assert lines[3] == "Calibration: 3 of 3 runs finished, on 1 model, up to 4K tokens."
    assert lines[4].startswith("Search kv_budget: 8 of 8 trials have a result, ")


def test_the_headline_counts_what_was_predicted_blind(judged: Any) -> None:
    assert list(headlines(read_tracked(judged.reader, "demo")))[2].startswith(
        "Held-out cells: 2 of 2 predicted blind, "
    )


def test_a_law_without_held_out_cells_says_nothing_of_blindness(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    maker.fit()
    assert not any("blind" in line for line in headlines(read_tracked(maker.reader, "demo")))


def test_warnings_stand_before_the_figures(demo: Any) -> None:
    html = page(demo)
    assert html.index("gamma and t3 are not identified") < html.index("<figure")


def test_page_works_dark_and_on_paper(demo: Any) -> None:
    html = page(demo)
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert "Runs started 2026-" in html

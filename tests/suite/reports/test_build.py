from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from suite.errors import InputError
from suite.reports import PANELS, Report, build, build_report
from suite.reports.manifest import digest_of, read_manifest
from suite.study_rules import PANEL_STAGES


def test_report_has_all_files(demo_report: Report) -> None:
    names = sorted(path.name for path in demo_report.folder.iterdir())
    panels = ("loss_grid", "error_grid", "parity", "residuals", "pareto")
    figures = [f"{panel}.{suffix}" for panel in panels for suffix in ("png", "svg")]
    assert names == sorted([*figures, "index.html", "manifest.json"])
    assert [path.name for path in demo_report.figures] == figures
    assert demo_report.manifest.panels == panels
    assert demo_report.skipped == ()
    assert set(demo_report.files) == set(demo_report.folder.iterdir())


def test_a_study_file_may_ask_for_every_panel() -> None:
    assert set(PANEL_STAGES) == set(PANELS)


def test_same_store_gives_same_bytes(demo: Any, demo_report: Report, tmp_path: Path) -> None:
    demo.reader.rows.reverse()  # a store may hold its rows in any order
    demo.reader.points.reverse()
    again = build_report(demo.reader, "demo", None, tmp_path / "elsewhere")
    for one, other in zip(demo_report.files, again.files, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes(), one.name


def test_manifest_on_disk_is_the_returned_one(demo_report: Report) -> None:
    read = read_manifest(demo_report.manifest_path)
    assert read.entries.equals(demo_report.manifest.entries)
    assert read.artifacts == demo_report.manifest.artifacts
    for name, digest in read.artifacts.items():
        assert digest_of(demo_report.folder / name) == digest
    assert len(read.artifacts) == 11


def test_figures_are_sound_and_undated(demo_report: Report) -> None:
    for path in demo_report.figures:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
            assert b"tEXt" not in path.read_bytes()
        else:
            root = ET.parse(path).getroot()
            assert root.tag.endswith("svg")
            assert "<dc:date>" not in path.read_text()


def test_nothing_tracked_names_the_cure(maker: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"no tracked run .*`suite run demo`"):
        build_report(maker.reader, "demo", None, out)
    assert not out.exists()


def test_panels_without_data_are_skipped_or_refused(maker: Any, tmp_path: Path) -> None:
    maker.pretraining(sizes={"small": 1000}, recurrences=(2,), points=5)
    report = build_report(maker.reader, "demo", None, tmp_path / "out")
    assert report.manifest.panels == ("loss_grid",)
    skipped = [item.panel for item in report.skipped]
    assert skipped == ["error_grid", "parity", "residuals", "pareto"]
    with pytest.raises(
        InputError, match=r"report.panels\[1\]: .*'parity' cannot be drawn.*suite run"
    ):
        build_report(maker.reader, "demo", ["loss_grid", "parity"], tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        (["loss_grid", "pie"], r"report.panels\[1\]: got 'pie'; the panels are loss_grid, "),
        (["loss_grid", "loss_grid"], r"report.panels\[1\]: 'loss_grid' is given twice"),
    ],
)
def test_wrong_panels_are_refused(
    demo: Any, tmp_path: Path, panels: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build_report(demo.reader, "demo", panels, tmp_path / "out")


def test_panels_keep_the_order_asked_for_and_old_figures_go(demo: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "loss_grid.png").write_bytes(b"of an older report")
    (out / "mine.txt").write_text("kept")
    report = build_report(demo.reader, "demo", ["pareto", "parity"], out)
    assert report.manifest.panels == ("pareto", "parity")
    html = report.page.read_text()
    assert html.index('id="pareto"') < html.index('id="parity"')
    assert not (out / "loss_grid.png").exists()
    assert (out / "mine.txt").read_text() == "kept"


def test_failure_while_drawing_leaves_the_old_report(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    report = build_report(demo.reader, "demo", ["parity"], out)
    before = {path: path.read_bytes() for path in report.files}

    def fail(*args: object) -> str:
        raise MemoryError

    monkeypatch.setattr(build, "render_page", fail)
    with pytest.raises(MemoryError):
        build_report(demo.reader, "demo", ["parity"], out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]


def test_folder_that_cannot_be_made_is_an_input_error(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"report folder .* cannot be written"):
        build_report(demo.reader, "demo", ["parity"], tmp_path / "file" / "out")


def test_reports_load_no_training_code() -> None:
    script = (
        "import sys, suite.reports; "
        "bad = {'torch', 'mlflow', 'lightning', 'transformers', 'optuna', 'matplotlib.pyplot', "
        "'suite.laws', 'lightning_modules', 'tuning'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(bad)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Folders that somebody else has made: refused in one sentence, before anything is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from suite.errors import InputError
from suite.exchange.export import export_study
from suite.exchange.folder import ExportFolder
from suite.exchange.load import import_study
from suite.exchange.records import read_runs
from suite.tracking.home import Home
from suite.tracking.store import DatasetRecord, Store

Reseal = Callable[[Path], None]
Change = Callable[[Path], object]
UNKNOWN = "f" * 32


@pytest.fixture(scope="module")
def tiny_export(blank_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two runs, three points, one artifact and a report of one page."""
    root = tmp_path_factory.mktemp("tiny")
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    shutil.copyfile(blank_database, home.database)
    store = Store(home)
    for name in ("one", "two"):
        tags = {"suite.kind": "trial", "suite.cell": name, "note": f"of {name}"}
        run_id = store.create_run("tiny", name=name, tags=tags)
        store.log_params(run_id, {"rank": "4"})
        store.log_points(run_id, [("loss", 0.5, 1_790_000_000_000, 1)])
        record = DatasetRecord(name="maths", digest="d", source="s", context="c", profile={})
        store.log_datasets(run_id, [record])
        store.end_run(run_id, "FINISHED", 1_790_000_000_999)
    page = root / "page.html"
    page.write_text("<p>tiny")
    store.log_artifact(run_id, page, "deep")
    (home.reports / "tiny").mkdir(parents=True)
    (home.reports / "tiny" / "index.html").write_text("<p>tiny")
    out = tmp_path_factory.mktemp("tiny export") / "out"
    export_study(home, "tiny", out)
    return out


@pytest.fixture
def hostile(tiny_export: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_export, tmp_path / "hostile")
    return tmp_path / "hostile"


def run_ids(folder: Path) -> list[str]:
    return pl.read_parquet(folder / "runs.parquet").sort("name")["run_id"].to_list()


def refused(folder: Path, tmp_path: Path, said: str) -> None:
    """See that the folder is refused, and that nothing was written anywhere."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=said):
        import_study(folder, Home.at(tmp_path / "home"))
    assert sorted(tmp_path.rglob("*")) == before


def table(name: str, /, **changes: pl.Expr) -> Change:
    """Change columns of a table."""

    def change(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        pl.read_parquet(path).with_columns(**changes).write_parquet(path)

    return change


def in_first(column: str, value: object) -> pl.Expr:
    """A column whose first row is another value."""
    return pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(value)).otherwise(column)


def more_tags(**tags: str) -> Change:
    """Further tags of the first run."""

    def change(folder: Path) -> None:
        path = folder / "tags.parquet"
        rows = [(run_ids(folder)[0], key, value) for key, value in tags.items()]
        frame = pl.read_parquet(path)
        more = pl.DataFrame(rows, schema=frame.schema, orient="row")
        pl.concat([frame, more]).write_parquet(path)
        recount(folder, tags=frame.height + len(rows))

    return change


def recount(folder: Path, **counts: int) -> None:
    contents = json.loads((folder / "study.json").read_text())
    contents["counts"].update(counts)
    (folder / "study.json").write_text(json.dumps(contents))


def curve(**changes: Any) -> Change:
    """Change the curves of the first run."""

    def change(folder: Path) -> None:
        path = folder / "curves" / f"{run_ids(folder)[0]}.parquet"
        pl.read_parquet(path).with_columns(**changes).write_parquet(path)

    return change


def twice(name: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        frame = pl.read_parquet(path)
        pl.concat([frame, frame.head(1)]).write_parquet(path)

    return change


def double_point(folder: Path) -> None:
    path = folder / "curves" / f"{run_ids(folder)[0]}.parquet"
    frame = pl.read_parquet(path)
    pl.concat([frame, frame]).write_parquet(path)


def same_run_twice(folder: Path) -> None:
    first, second = run_ids(folder)
    for path in [*folder.glob("*.parquet"), folder / "curves" / f"{second}.parquet"]:
        pl.read_parquet(path).with_columns(
            run_id=pl.col("run_id").replace({second: first})
        ).write_parquet(path)


def claim_to_be_the_other(folder: Path) -> None:
    other = run_ids(folder)[1]
    more_tags(**{"suite.imported.run_id": other, "suite.imported.run_ids": other})(folder)


def claims(one: str, all_of_them: str) -> Change:
    return more_tags(**{"suite.imported.run_id": one, "suite.imported.run_ids": all_of_them})


def attempt(**changes: object) -> Change:
    fields = {"number": 1, "started": 1, "resumed_from": 0, "host": "h", "pid": 1, "device": "c"}
    return more_tags(**{"suite.attempt.1": json.dumps({**fields, **changes})})


def add_file(path: str) -> Change:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")

    return change


SEALED: dict[str, tuple[Change, str]] = {
    "a run id that is a path": (
        table("runs", run_id=in_first("run_id", "../../../etc/passwd")),
        r"'\.\./\.\./\.\./etc/passwd' is no run id",
    ),
    "a run id in capitals": (
        table("runs", run_id=in_first("run_id", "F" * 32)),
        "is no run id; that has 32 hexadecimal digits",
    ),
    "no run id": (table("runs", run_id=in_first("run_id", None)), "None is no run id"),
    "one run id twice": (same_run_twice, "it names the run id .* twice"),
    "an unknown status": (
        table("runs", status=pl.lit("DONE")),
        "its status is 'DONE', not one of RUNNING, SCHEDULED, FINISHED, FAILED, KILLED",
    ),
    "no status": (table("runs", status=pl.lit(None, pl.String)), "its status is None"),
    "no start": (table("runs", start_time=pl.lit(0, pl.Int64)), "its times are 0 and"),
    "an end before 1970": (table("runs", end_time=pl.lit(-1, pl.Int64)), "and -1, not ms"),
    "no name": (table("runs", name=pl.lit("")), "its name is ''"),
    "a name with an escape": (
        table("runs", name=pl.lit("\x1b[2Jgone")),
        r"its name is '\\x1b\[2Jgone'",
    ),
    "a long name": (table("runs", name=pl.lit("x" * 251)), "a name has 1 to 250 characters"),
    "a kind that the tags do not have": (
        table("runs", kind=pl.lit("law")),
        "its kind is 'law', its tag suite.kind is another",
    ),
    "a parent that the tags do not have": (
        table("runs", parent_run_id=pl.lit(UNKNOWN)),
        f"its parent_run_id is '{UNKNOWN}'",
    ),
    "tags of no run": (
        table("tags", run_id=in_first("run_id", UNKNOWN)),
        f"'tags.parquet' names the run '{UNKNOWN}', which it lacks",
    ),
    "a tag twice": (twice("tags"), "'tags.parquet' has '.*' of run .* twice"),
    "a param twice": (twice("params"), "'params.parquet' has 'rank' of run .* twice"),
    "an input twice": (twice("inputs"), "the input maths d of run .* twice"),
    "a tag without a value": (
        table("tags", value=in_first("value", None)),
        "'tags.parquet' leaves a field empty",
    ),
    "a param that MLflow would cut": (
        table("params", value=pl.lit("x" * 6_001)),
        "the parameter rank has 6001 characters; MLflow takes 6000",
    ),
    "a tag that MLflow would cut": (
        more_tags(note2="x" * 8_001),
        "the tag note2 has 8001 characters; MLflow takes 8000",
    ),
    "a NUL": (more_tags(note2="a\0b"), "the tag note2 holds a NUL character"),
    "a param named as a path": (
        table("params", key=pl.lit("../rank")),
        r"MLflow does not take '\.\./rank' for the name of a parameter",
    ),
    "a tag named as markup": (
        more_tags(**{"<script>": "x"}),
        "MLflow does not take '<script>' for the name of a tag",
    ),
    "a tag with a newline at its end": (
        more_tags(**{"note2\n": "x"}),
        r"MLflow does not take 'note2\\n' for the name of a tag",
    ),
    "a metric named as a path": (
        curve(key=pl.lit("/loss")),
        "MLflow does not take '/loss' for the name of a metric",
    ),
    "a metric with a long name": (
        curve(key=pl.lit("x" * 251)),
        "for the name of a metric: that has at most 250",
    ),
    "an empty metric": (curve(key=pl.lit("")), "MLflow does not take '' for the name of a metric"),
    "a point without a value": (
        curve(value=pl.lit(None, pl.Float64)),
        "a point of its curves lacks a value",
    ),
    "a point before 1970": (
        curve(timestamp=pl.lit(-1, pl.Int64)),
        "a point of its curves is older than 1970",
    ),
    "a point twice": (double_point, "a point of its curves is there twice"),
    "points of another run": (curve(run_id=pl.lit(UNKNOWN)), "holds points of another run"),
    "steps that are not whole": (
        curve(step=pl.lit(1.5)),
        "has the columns run_id: String, key: String, step: Float64",
    ),
    "times as text": (
        table("runs", start_time=pl.lit("now")),
        "'runs.parquet' has the columns run_id: String, .*start_time: String",
    ),
    "another column": (table("runs", extra=pl.lit(1)), "parent_run_id: String, extra: Int32"),
    "a digest that MLflow does not take": (
        table("inputs", digest=pl.lit("x" * 37)),
        "MLflow does not take an input: 'digest' exceeds",
    ),
    "inputs whose tags are a list": (
        table("inputs", tags=pl.lit("[1]")),
        r"the tags of an input are '\[1\]'",
    ),
    "inputs whose tags are no JSON": (table("inputs", tags=pl.lit("{")), "Expecting property name"),
    "an attempt that is none": (
        more_tags(**{"suite.attempt.1": "{}"}),
        "its attempts cannot be read: the tag suite.attempt.1 does not describe an attempt",
    ),
    "an attempt that began never": (attempt(started="x"), "does not say when it began"),
    "an attempt too late for a clock": (attempt(started=2**70), "does not say when it began"),
    "a former id that is none": (
        claims("<b>", "<b>"),
        "do not agree on the ids that it had: '<b>'",
    ),
    "former ids that disagree": (claims("a" * 32, "b" * 32), "do not agree on the ids that it had"),
    "a former id without the others": (
        more_tags(**{"suite.imported.run_id": "a" * 32}),
        "do not agree on the ids that it had: ''",
    ),
    "a run that claims to be the other": (
        claim_to_be_the_other,
        "more than one run that is, or was,",
    ),
    "a former study that is a path": (
        more_tags(**{"suite.imported.studies": "../x"}),
        r"'\.\./x' is no name of a study",
    ),
    "artifacts of no run": (
        add_file(f"artifacts/{UNKNOWN}/x"),
        f"'artifacts/{UNKNOWN}/x' belongs to none of its runs",
    ),
    "curves of no run": (
        add_file(f"curves/{UNKNOWN}.parquet"),
        f"'curves/{UNKNOWN}.parquet' belongs to none",
    ),
    "a file that no part has": (add_file("setup.py"), "'setup.py' belongs to none"),
    "counts that are wrong": (
        lambda folder: recount(folder, points=7),
        "it has 2 points, not 7",
    ),
    "no runs": (
        lambda folder: (
            table("runs")(folder)
            or pl.read_parquet(folder / "runs.parquet")
            .clear()
            .write_parquet(folder / "runs.parquet")
        ),
        "it has no runs",
    ),
    "no table": (
        lambda folder: (folder / "params.parquet").unlink(),
        r"it has no file 'params\.parquet'",
    ),
    "no curves": (
        lambda folder: (folder / "curves" / f"{run_ids(folder)[0]}.parquet").unlink(),
        r"it has no file 'curves/.*\.parquet'",
    ),
    "a table that is text": (
        lambda folder: (folder / "params.parquet").write_text("run_id,key,value\n"),
        "'params.parquet' cannot be read as parquet",
    ),
    "an empty table": (
        lambda folder: (folder / "params.parquet").write_bytes(b""),
        "'params.parquet' cannot be read as parquet",
    ),
}


@pytest.mark.parametrize("case", SEALED)
def test_content_that_no_store_should_get_is_refused(
    hostile: Path, tmp_path: Path, reseal: Reseal, case: str
) -> None:
    change, said = SEALED[case]
    change(hostile)
    reseal(hostile)
    refused(hostile, tmp_path, said)


def link(place: str, to: str) -> Change:
    def change(folder: Path) -> None:
        path = next(folder.glob(place))
        path.unlink() if path.is_file() else shutil.rmtree(path)
        path.symlink_to(to)

    return change


def cut(folder: Path) -> None:
    path = folder / "tags.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def flip(folder: Path) -> None:
    path = folder / "tags.parquet"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)


def name_outside(folder: Path) -> None:
    (folder.parent / "outside").write_text("x")
    contents = json.loads((folder / "study.json").read_text())
    contents["files"]["artifacts/../../outside"] = {"sha256": "0" * 64, "size": 1}
    (folder / "study.json").write_text(json.dumps(contents))


def huge(folder: Path) -> None:
    with (folder / "study.json").open("r+b") as file:
        file.truncate((64 << 20) + 1)


UNSEALED: dict[str, tuple[Change, str]] = {
    "a link for an artifact": (link("artifacts/*/deep/*", "/etc/passwd"), "is a link or a special"),
    "a link for a folder": (link("artifacts/*/deep", "/etc"), "is a link or a special file"),
    "a link for a table": (link("tags.parquet", "/etc/passwd"), "is a link or a special file"),
    "a link for the contents": (link("study.json", "/etc/passwd"), "is a link or a special file"),
    "a link that leads nowhere": (link("report/index.html", "/no/such"), "is a link or a special"),
    "a pipe": (lambda folder: os.mkfifo(folder / "report" / "pipe"), "is a link or a special file"),
    "a name with a control character": (
        lambda folder: (folder / "report" / "a\x1b[2J").write_text("x"),
        r"the path 'report/a\\x1b\[2J' is not allowed",
    ),
    "a name that is not Unicode": (
        lambda folder: Path(os.fsdecode(bytes(folder) + b"/report/\xff")).write_text("x"),
        "is not allowed: it holds a control character, or is not Unicode",
    ),
    "a path that leads out": (name_outside, r"'artifacts/\.\./\.\./outside' is not allowed"),
    "a table that was cut": (cut, r"'tags\.parquet' has \d+ bytes, not \d+"),
    "a table with another bit": (flip, r"'tags\.parquet' has another SHA-256"),
    "an artifact that was edited": (
        lambda folder: next(folder.glob("artifacts/*/deep/*")).write_text("<p>TINY"),
        "has another SHA-256 than when it was written",
    ),
    "a file too few": (
        lambda folder: (folder / "report" / "index.html").unlink(),
        r"1 of its files are missing, such as 'report/index\.html'",
    ),
    "a file too many": (
        lambda folder: (folder / ".DS_Store").write_text("x"),
        r"'\.DS_Store' is not among the files that its study\.json names; remove it",
    ),
    "no contents": (lambda folder: (folder / "study.json").unlink(), r"it has no study\.json"),
    "huge contents": (huge, r"study\.json is larger than"),
    "contents that are not text": (
        lambda folder: (folder / "study.json").write_bytes(b"\xff\xfe"),
        "codec can't decode",
    ),
}


@pytest.mark.parametrize("case", UNSEALED)
def test_a_folder_that_is_not_what_was_written_is_refused(
    hostile: Path, tmp_path: Path, case: str
) -> None:
    change, said = UNSEALED[case]
    change(hostile)
    refused(hostile, tmp_path, said)


def test_a_link_to_a_folder_and_other_places_are_refused(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(hostile)
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "link", tmp_path, "link is a link; give the folder")
    refused(tmp_path / "file", tmp_path, "file is not a folder; give the folder")
    refused(tmp_path / "nothing", tmp_path, "nothing is not a folder; give the folder")


def test_a_small_file_that_unpacks_to_much_is_refused(
    hostile: Path, tmp_path: Path, reseal: Reseal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hostile / "curves" / f"{run_ids(hostile)[0]}.parquet"
    row = pl.read_parquet(path)
    pl.concat([row] * 100_000).write_parquet(path)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr("suite.exchange.folder._MOST_ROWS", 99_999)
    reseal(hostile)
    refused(hostile, tmp_path, r"unpacks to 100,000 rows of [\d,]+ bytes; at most 99,999 and")


def test_markup_in_names_and_values_is_kept_as_text(
    hostile: Path, tmp_path: Path, reseal: Reseal
) -> None:
    table("runs", name=pl.lit("<script>alert(1)</script>"))(hostile)
    more_tags(note2="<img src=x onerror=alert(1)>\x1b[2J\n")(hostile)
    reseal(hostile)
    runs = read_runs(ExportFolder.open(hostile))
    assert {run.name for run in runs} == {"<script>alert(1)</script>"}
    assert runs[0].tags["note2"] == "<img src=x onerror=alert(1)>\x1b[2J\n"


def test_a_folder_with_signs_of_patterns_in_its_path_is_read(
    tiny_export: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a [b]* ? ü #1 %20"
    shutil.copytree(tiny_export, folder)
    assert [run.points for run in read_runs(ExportFolder.open(folder))] == [1, 1]


@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["runs", "tags", "inputs"]),
    cut_at=st.none() | st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
)
def test_damaged_tables_under_a_right_digest_are_refused_or_read(
    hostile: Path,
    tiny_export: Path,
    reseal: Reseal,
    name: str,
    cut_at: float | None,
    flips: list[tuple[float, int]],
) -> None:
    content = bytearray((tiny_export / f"{name}.parquet").read_bytes())
    for place, bits in flips:
        content[int(place * len(content))] ^= bits
    if cut_at is not None:
        del content[int(cut_at * len(content)) :]
    (hostile / f"{name}.parquet").write_bytes(content)
    reseal(hostile)
    refusal = ""
    try:
        assert len(read_runs(ExportFolder.open(hostile))) == 2
    except InputError as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith(f"{hostile} cannot be imported: ")
    shutil.copyfile(tiny_export / f"{name}.parquet", hostile / f"{name}.parquet")

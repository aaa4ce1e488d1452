from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import SuiteError
from suite.tracking.processes import WorkingProcess
from suite.tracking.spool import (
    Artifact,
    End,
    Params,
    Points,
    Record,
    SpoolFile,
    SpoolWriter,
    Tags,
    spools,
)

OWNER = WorkingProcess(host="here", pid=7, started=1.5)
TEXT = st.text(max_size=30)
POINTS = st.builds(
    Points,
    step=st.integers(-(2**63), 2**63 - 1),
    at=st.integers(0, 2**53),
    values=st.dictionaries(TEXT, st.floats(), max_size=5),
)
RECORDS = st.one_of(
    POINTS,
    st.builds(Tags, st.dictionaries(TEXT, TEXT, max_size=3)),
    st.builds(Params, st.dictionaries(TEXT, TEXT, max_size=3)),
    st.builds(Artifact, TEXT, TEXT),
    st.builds(End, TEXT, st.integers(0, 2**53)),
)


def spool_at(folder: Path) -> SpoolFile:
    return SpoolFile.of(folder, "a" * 32, 3)


def bits(record: Record | bytes) -> object:
    """A record so that NaN equals itself and 0.0 differs from -0.0."""
    assert not isinstance(record, bytes)
    if isinstance(record, Points):
        return record.step, record.at, [(k, repr(v)) for k, v in record.values.items()]
    return record


@given(records=st.lists(RECORDS, max_size=8))
def test_what_was_appended_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    spool = spool_at(tmp_path_factory.mktemp("spool"))
    writer = SpoolWriter(spool, OWNER)
    for record in records:
        writer.append(record)
    writer.close()
    found = list(spool.records(0))
    assert [bits(record) for record, _ in found] == [bits(record) for record in records]
    assert spool.owner() == OWNER
    # every offset continues where it says
    for number, (_, offset) in enumerate(found, start=1):
        assert len(list(spool.records(offset))) == len(records) - number


def test_the_name_tells_run_and_attempt(tmp_path: Path) -> None:
    for run, attempt in (("b" * 32, 2), ("b" * 32, 10), ("a" * 32, 1)):
        SpoolWriter(SpoolFile.of(tmp_path, run, attempt), OWNER).close()
    for stray in ("notes.spool", "x.y.spool", "a.1.offset", ".a.1.spool.part"):
        (tmp_path / stray).touch()
    assert [(spool.run_id[0], spool.attempt) for spool in spools(tmp_path)] == [
        ("a", 1),
        ("b", 2),
        ("b", 10),
    ]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_off_is_not_given(tmp_path: Path, cut: int) -> None:
    spool = spool_at(tmp_path)
    writer = SpoolWriter(spool, OWNER)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    writer.append(Points(step=2, at=2, values={"loss": 2.0}))
    whole = spool.path.read_bytes()
    spool.path.write_bytes(whole[:-cut])
    (record, _), *rest = spool.records(0)
    assert record == Points(step=1, at=1, values={"loss": 1.0})
    assert rest == []


@pytest.mark.parametrize(
    "line",
    [
        b"\0\0\0\0\n",
        b"nonsense\n",
        b"[1, 2]\n",
        b'{"kind":"points","step":1.5,"at":1,"values":{}}\n',
        b'{"kind":"points","step":1,"at":1,"values":{"loss":"much"}}\n',
        b'{"kind":"points","step":1,"at":1}\n',
        b'{"kind":"tags","values":{"a":1}}\n',
        b'{"kind":"tags","values":{"a":"b"},"more":1}\n',
        b'{"kind":"unheard of"}\n',
        b'"text"\n',
        b"\xff\xfe\n",
    ],
)
def test_a_damaged_line_is_given_as_it_is_and_the_next_is_read(tmp_path: Path, line: bytes) -> None:
    spool = spool_at(tmp_path)
    writer = SpoolWriter(spool, OWNER)
    with spool.path.open("ab") as file:
        file.write(line)
    writer.append(Tags({"a": "b"}))
    assert [record for record, _ in spool.records(0)] == [line, Tags({"a": "b"})]


def test_a_damaged_first_line_names_no_owner(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    assert spool.owner() is None, "not there yet"
    SpoolWriter(spool, OWNER).close()
    spool.path.write_bytes(spool.path.read_bytes()[1:])
    assert spool.owner() is None


def test_how_far_it_was_sent_is_remembered_and_what_waits_is_counted(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    writer = SpoolWriter(spool, OWNER)
    for step in range(4):
        writer.append(Points(step=step, at=step, values={"a": 1.0, "b": math.nan}))
    writer.append(End("FINISHED", 9))
    assert (spool.sent, spool.waiting()) == (0, 8)
    offsets = [offset for _, offset in spool.records(0)]
    spool.mark_sent(offsets[2])
    assert (spool.sent, spool.waiting()) == (offsets[2], 2)
    spool.path.with_suffix(".offset").write_text("rubbish")
    assert (spool.sent, spool.waiting()) == (0, 8), "sent again, which changes nothing"
    spool.delete()
    assert spool.waiting() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_half_a_line_is_left_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_at(tmp_path)
    writer = SpoolWriter(spool, OWNER)
    writer.append(Tags({"a": "b"}))
    before = spool.path.read_bytes()
    write, calls = os.write, 0

    def fill(file: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(file, data[:7])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", fill)
        with pytest.raises(SuiteError, match=r"a{32}\.3\.spool cannot be written \(No space left"):
            writer.append(Tags({"c": "d"}))
    assert spool.path.read_bytes() == before
    writer.append(Tags({"e": "f"}))
    assert [record for record, _ in spool.records(0)] == [Tags({"a": "b"}), Tags({"e": "f"})]


def test_an_attempt_learns_that_its_spool_was_taken_away(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    writer = SpoolWriter(spool, OWNER)
    writer.append(Tags({"a": "b"}))
    spool.delete()
    with pytest.raises(SuiteError, match="another process has taken this one for gone"):
        writer.append(Points(step=1, at=1, values={"loss": 1.0}))


def test_a_spool_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    with pytest.raises(SuiteError, match="cannot be written"):
        SpoolWriter(spool_at(tmp_path / "spool"), OWNER)


def test_artifacts_of_one_name_do_not_meet(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "spool")
    writer = SpoolWriter(spool, OWNER)
    for content in ("one", "two"):
        (tmp_path / "note.txt").write_text(content)
        writer.keep(tmp_path / "note.txt", "notes")
    records = [record for record, _ in spool.records(0)]
    assert [record.folder for record in records if isinstance(record, Artifact)] == ["notes"] * 2
    kept = [record.file for record in records if isinstance(record, Artifact)]
    assert [(spool.files / name).read_text() for name in kept] == ["one", "two"]


def test_lines_are_json(tmp_path: Path) -> None:
    spool = spool_at(tmp_path)
    SpoolWriter(spool, OWNER).append(Points(step=1, at=2, values={"Größe\n": 0.1}))
    lines = spool.path.read_text(encoding="ascii").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"owner": {"host": "here", "pid": 7, "started": 1.5}},
        {"kind": "points", "step": 1, "at": 2, "values": {"Größe\n": 0.1}},
    ]

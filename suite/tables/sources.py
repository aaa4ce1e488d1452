"""Tables in: CSV, Parquet and JSON lines, with the place of every row in its file."""

from __future__ import annotations

import codecs
import csv
import difflib
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from suite.errors import InputError

ROW = "__row"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A table, and what to call its rows.

    Attributes:
        name: of the file or the experiment.
        digest: SHA-256 of the file; empty for what is no file.
        frame: the columns, and ``ROW``, the number of each row in it.
        place: how messages call the row of that number, such as ``line 17 of runs.csv``.
        tracked: the rows are points of tracked runs, with their ``run_id`` and ``status``.
    """

    name: str
    digest: str
    frame: pl.DataFrame
    place: Callable[[int], str]
    tracked: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the file has."""
        return [name for name in self.frame.columns if name != ROW]

    def check_column(self, name: str, purpose: str) -> None:
        """Refuse a column that is absent.

        Args:
            name: the column.
            purpose: what it was wanted for, such as ``--loss``.

        Raises:
            InputError: naming the columns that there are.
        """
        if name in self.columns:
            return
        close = difflib.get_close_matches(name, self.columns, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InputError(
            f"{self.name} has no column {name!r}{hint}; it has {_listed(self.columns)}",
            key=purpose,
        )


def read_table(path: Path) -> Table:
    """Read a table by the ending of its name.

    Rows of a text file that hold nothing at all are left out.

    Raises:
        InputError: there is no such file, its name ends otherwise, or it cannot be read.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(
            f"{path} is no table that can be read; its name must end with {', '.join(_SUFFIXES)}"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.suffix.lower() != ".parquet" and content.startswith(_UTF_16):
        raise InputError(
            f"{path} is text in UTF-16; save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8"
        )
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            frame, place = _numbered(pl.read_parquet(content)), _row_place(path)
        elif suffix in (".jsonl", ".ndjson"):
            frame, place = _read_lines(content, path)
        else:
            frame, place = _read_separated(content, path, "\t" if suffix == ".tsv" else ",")
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no {suffix[1:]} table: {reason}") from error
    if frame.is_empty():
        raise InputError(f"{path} has no rows")
    return Table(
        name=path.name,
        digest=hashlib.sha256(content).hexdigest(),
        frame=frame,
        place=place,
    )


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))


def _row_place(path: Path) -> Callable[[int], str]:
    return lambda row: f"row {row + 1} of {path.name}"


def _read_separated(
    content: bytes, path: Path, separator: str
) -> tuple[pl.DataFrame, Callable[[int], str]]:
    head = next(csv.reader(io.StringIO(content.decode("utf-8-sig")), delimiter=separator), [])
    twice = [name for name in dict.fromkeys(head) if name and head.count(name) > 1]
    if twice:
        raise InputError(
            f"{path} has {head.count(twice[0])} columns {twice[0]!r}; give each a name of its own"
        )
    frame = pl.read_csv(content, separator=separator, infer_schema_length=None)
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise InputError(
            f"{path} has the one column {frame.columns[0]!r}; separate columns with "
            f"{'a tab' if separator == chr(9) else 'commas'}"
        )
    numbered = _numbered(frame)
    filled = pl.any_horizontal(pl.col(frame.columns).is_not_null())

    def place(row: int) -> str:
        # Quoted text may hold line breaks, so rows are counted by a reader and not by number.
        lines = csv.reader(
            io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=separator
        )
        before = 0
        for record, _ in enumerate(lines):
            if record == row + 1:
                return f"line {before + 1} of {path.name}"
            before = lines.line_num
        return f"row {row + 1} of {path.name}"

    return numbered.filter(filled), place


def _read_lines(content: bytes, path: Path) -> tuple[pl.DataFrame, Callable[[int], str]]:
    if content.decode("utf-8-sig").lstrip().startswith("["):
        raise InputError(
            f"{path} is one JSON array; write one object a line, such as with jq -c '.[]'"
        )
    rows, numbers = [], []
    for number, line in enumerate(content.decode("utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"line {number} of {path.name} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {path.name} is no JSON object")
        rows.append(row)
        numbers.append(number)
    frame = pl.from_dicts(rows, infer_schema_length=None) if rows else pl.DataFrame()
    return _numbered(frame), lambda row: f"line {numbers[row]} of {path.name}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:30])
    return shown + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def from_frame(
    name: str, frame: pl.DataFrame, place: Callable[[int], str], *, tracked: bool = False
) -> Table:
    """A table that comes from no file."""
    return Table(name=name, digest="", frame=_numbered(frame), place=place, tracked=tracked)

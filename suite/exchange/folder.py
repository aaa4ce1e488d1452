"""An export folder as it is read: whole, with the digests that it claims, and typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from suite.errors import InputError
from suite.exchange.artifacts import record_of, regular_files
from suite.exchange.layout import (
    CONTENTS_NAME,
    CURVE_SCHEMA,
    TABLES,
    Contents,
    curve_file,
    table_file,
)

_LARGEST_CONTENTS = 64 << 20  # bytes of study.json: some 400,000 artifacts
_LARGEST_TABLE = 2 << 30  # bytes of one table in memory, as its file declares them
_MOST_ROWS = 50_000_000  # of one file: run-length coding makes them almost free to write


@dataclass(frozen=True, kw_only=True)
class ExportFolder:
    """An export on disk whose files are those that its ``study.json`` names, byte for byte.

    Attributes:
        path: the folder.
        contents: its ``study.json``.
    """

    path: Path
    contents: Contents

    @classmethod
    def open(cls, path: Path) -> ExportFolder:
        """Check that a folder is a whole export.

        Raises:
            InputError: if it is not; the message names the file and the reason.
        """
        if path.is_symlink() or not path.is_dir():
            kind = "a link" if path.is_symlink() else "not a folder"
            raise InputError(f"{path} is {kind}; give the folder that `suite export` has written")
        try:
            found = set(regular_files(path))
            contents = Contents.from_json(_read_contents(path / CONTENTS_NAME))
        except (OSError, ValueError) as error:
            raise _unusable(path, str(error)) from error
        named = {CONTENTS_NAME, *contents.files}
        if lost := sorted(named - found):
            raise _unusable(path, f"{len(lost)} of its files are missing, such as {lost[0]!r}")
        if strange := sorted(found - named):
            raise _unusable(
                path,
                f"{strange[0]!r} is not among the files that its {CONTENTS_NAME} names; remove it",
            )
        for name, record in contents.files.items():
            size = (path / name).stat().st_size
            if size != record.size:
                raise _unusable(path, f"{name!r} has {size} bytes, not {record.size}")
            if record_of(path / name) != record:
                raise _unusable(path, f"{name!r} has another SHA-256 than when it was written")
        return cls(path=path, contents=contents)

    def table(self, name: str) -> pl.DataFrame:
        """One of ``TABLES``.

        Raises:
            InputError: if the file is not such a table.
        """
        return self._parquet(table_file(name), TABLES[name])

    def curve(self, run_id: str) -> pl.DataFrame:
        """All points of a run, sorted, with the columns of ``CURVE_SCHEMA``.

        Raises:
            InputError: if the file does not hold curves of that run.
        """
        curve = self._parquet(curve_file(run_id), CURVE_SCHEMA)
        if (curve["run_id"] != run_id).any():
            raise self.unusable(f"{curve_file(run_id)!r} holds points of another run")
        return curve.sort("key", "step", "timestamp", "value")

    def unusable(self, reason: str) -> InputError:
        """The error that says why the folder is refused."""
        return _unusable(self.path, reason)

    def _parquet(self, name: str, schema: pl.Schema) -> pl.DataFrame:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet

        if name not in self.contents.files:
            raise self.unusable(f"it has no file {name!r}")
        try:
            with (self.path / name).open("rb") as file:  # polars takes [] in a path for a pattern
                footer = parquet.read_metadata(file)
                sizes = [footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)]
                if footer.num_rows > _MOST_ROWS or sum(sizes) > _LARGEST_TABLE:
                    raise self.unusable(
                        f"{name!r} unpacks to {footer.num_rows:,} rows of {sum(sizes):,} bytes; at "
                        f"most {_MOST_ROWS:,} and {_LARGEST_TABLE:,} are read"
                    )
                file.seek(0)
                found = pl.Schema(pl.read_parquet_schema(file))
                if found != schema:
                    raise self.unusable(f"{name!r} has the columns {_shown(found)}")
                file.seek(0)
                return pl.read_parquet(file)
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,  # what polars says of some damaged files
            pyarrow.ArrowException,
            OSError,
            OverflowError,
        ) as error:
            raise self.unusable(f"{name!r} cannot be read as parquet: {error}") from error


def _shown(schema: pl.Schema) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in schema.items())[:300]


def _read_contents(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"it has no {CONTENTS_NAME}")
    if path.stat().st_size > _LARGEST_CONTENTS:
        raise ValueError(f"its {CONTENTS_NAME} is larger than {_LARGEST_CONTENTS:,} bytes")
    return path.read_text(encoding="utf-8")


def _unusable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} cannot be imported: {reason}; nothing was written; export the study again, or "
        "copy the folder again"
    )

"""Documents from local files: txt (a file is a document), jsonl and parquet (a row is one)."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from pathlib import Path

from suite.corpora.filters import parse_filters
from suite.corpora.rows import Row, require_columns, row_texts
from suite.errors import InputError
from suite.study import CorpusSpec

_SUFFIXES = (".txt", ".jsonl", ".parquet")


def file_documents(spec: CorpusSpec, *, key: str, base: Path) -> Iterator[str]:
    """Documents of all files that match ``spec.path``, in the order of the files' paths.

    Args:
        spec: names the glob (``**`` crosses folders), the text column and the filters.
        key: key path of the corpus in the study file.
        base: folder that a relative glob starts from.

    Raises:
        InputError: if nothing matches, or a file cannot be read as its suffix promises.
    """
    for path in matching_files(spec, key=key, base=base):
        try:
            if path.suffix == ".txt":
                yield _whole_text(path, key=key)
            elif path.suffix == ".jsonl":
                yield from row_texts(_jsonl_rows(path, key=key), spec, key=key)
            else:
                yield from row_texts(_parquet_rows(path, spec, key=key), spec, key=key)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error}", key=f"{key}.path") from error


def matching_files(spec: CorpusSpec, *, key: str, base: Path) -> tuple[Path, ...]:
    """The files that the glob matches, sorted, each once.

    Raises:
        InputError: if there are none, one has an unknown suffix, or ``column`` or ``where`` is
            set although a text file, which has no columns, is among them.
    """
    try:
        pattern = str(Path(spec.path or "").expanduser())
    except RuntimeError as error:
        raise InputError(f"got {spec.path!r}: {error}", key=f"{key}.path") from error
    names = glob.glob(pattern, root_dir=base, recursive=True)
    paths = sorted({base / name for name in names}, key=Path.as_posix)
    paths = [path for path in paths if path.is_file()]
    if not paths:
        folders = [name for name in names if (base / name).is_dir()]
        cure = f"; that is a folder, so give a glob such as {folders[0]}/*.txt" if folders else ""
        raise InputError(
            f"no file matches {spec.path!r}, searched from {base.resolve()}{cure}",
            key=f"{key}.path",
        )
    for path in paths:
        if path.suffix not in _SUFFIXES:
            raise InputError(
                f"{path} has a suffix that is not read; allowed are {', '.join(_SUFFIXES)}",
                key=f"{key}.path",
            )
        for field, is_set in (("column", spec.column != "text"), ("where", bool(spec.where))):
            if is_set and path.suffix == ".txt":
                raise InputError(
                    f"{path} is a text file and has no columns; leave {field} out",
                    key=f"{key}.{field}",
                )
    return tuple(paths)


def _whole_text(path: Path, *, key: str) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} line {line} (byte {error.start} of the file) is not UTF-8; convert the file",
            key=f"{key}.path",
        ) from error


def _jsonl_rows(path: Path, *, key: str) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path} line {number}"
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{place} (byte {error.start} of the line) is not UTF-8; convert the file",
                    key=f"{key}.path",
                ) from error
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} is not JSON: {error}", key=f"{key}.path") from error
            if not isinstance(row, dict):
                raise InputError(
                    f"{place} holds a {type(row).__name__}; each line must hold an object",
                    key=f"{key}.path",
                )
            yield place, row


def _parquet_rows(path: Path, spec: CorpusSpec, *, key: str) -> Iterator[tuple[str, Row]]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    filters = parse_filters(spec.where, key=key)
    wanted = list(dict.fromkeys((spec.column, *(each.column for each in filters))))
    try:
        with parquet.ParquetFile(path) as table:
            require_columns(table.schema_arrow.names, spec, filters, place=str(path), key=key)
            number = 0
            for batch in table.iter_batches(batch_size=1024, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} is not a parquet file: {error}", key=f"{key}.path") from error

"""From rows of named columns to the texts in them; shared by jsonl, parquet and hub sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from suite.corpora.filters import RowFilter, parse_filters
from suite.errors import InputError
from suite.study import CorpusSpec

Row = Mapping[str, object]


def row_texts(rows: Iterable[tuple[str, Row]], spec: CorpusSpec, *, key: str) -> Iterator[str]:
    """Texts of the rows that pass every filter; a null counts as an empty text.

    A row that holds a list of texts, such as the attempts at one problem, gives each of them.

    Args:
        rows: pairs of the place of a row (for messages) and its values by column.
        spec: names the text column and the filters.
        key: key path of the corpus in the study file.

    Raises:
        InputError: if a column is absent, or a text is no string of valid Unicode.
    """
    filters = parse_filters(spec.where, key=key)
    for place, row in rows:
        require_columns(row.keys(), spec, filters, place=place, key=key)
        if all(row_filter.accepts(row, place=place) for row_filter in filters):
            value = row[spec.column]
            for one in value if isinstance(value, list) else [value]:
                yield _text(one, spec, place=place, key=key)


def require_columns(
    columns: Collection[str],
    spec: CorpusSpec,
    filters: Sequence[RowFilter],
    *,
    place: str,
    key: str,
) -> None:
    """Checks that the text column and those of the filters are there.

    Raises:
        InputError: with the key of the text column or of the filter, listing the columns.
    """
    wanted = [(spec.column, f"{key}.column"), *((each.column, each.key) for each in filters)]
    for column, column_key in wanted:
        if column not in columns:
            listed = ", ".join(columns) or "none at all"
            raise InputError(
                f"{place} has no column {column!r}; its columns are {listed}", key=column_key
            )


def _text(value: object, spec: CorpusSpec, *, place: str, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"column {spec.column!r} holds a {type(value).__name__} at {place}; it must hold text, "
            "or lists of texts",
            key=f"{key}.column",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        raise InputError(
            f"column {spec.column!r} holds an unpaired surrogate at {place}, character "
            f"{error.start}; it must hold valid Unicode",
            key=f"{key}.column",
        ) from error
    return value

"""Where imported runs come from: the ids that they had elsewhere, and text that names those.

MLflow gives every run that is created an id of its own. What a run said of others (its parent,
the cells that a law has fitted, a sentence with an id in it) is therefore translated when it
is imported. Files are not: a report or an artifact keeps its bytes, and with them the ids that
its runs had when it was made. The tags of the runs tell which those are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from suite.errors import SuiteError

RUN_ID_TAG = "suite.imported.run_id"
"""The id that a run had where it was made; an import of an import keeps it."""
RUN_IDS_TAG = "suite.imported.run_ids"
"""Every id that a run had before, oldest first, separated by spaces."""
STUDIES_TAG = "suite.imported.studies"
"""Every name that the study had before, oldest first, separated by spaces."""
WHOLE_TAG = "suite.imported.digest"
"""Digest of all that was imported; set last, so that a run without it was cut off."""
_ID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])")


def former_ids(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The ids that a run had before, oldest first; none for a run that was made here."""
    return tuple(tags.get(RUN_IDS_TAG, "").split())


def former_studies(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The names that a run's study had before, oldest first."""
    return tuple(tags.get(STUDIES_TAG, "").split())


def origin_tags(run_id: str, study: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that tell of a run's origin, for the run that is made of it.

    Args:
        run_id: the id that it has now.
        study: the name that its study has now.
        tags: the tags that it has now.
    """
    ids = (*former_ids(tags), run_id)
    studies = dict.fromkeys((*former_studies(tags), study))
    return {RUN_ID_TAG: ids[0], RUN_IDS_TAG: " ".join(ids), STUDIES_TAG: " ".join(studies)}


def translate(text: str, ids: Mapping[str, str]) -> str:
    """The text with each run id in it that ``ids`` knows replaced; the rest as it is."""
    return _ID.sub(lambda found: ids.get(found[0], found[0]), text)


@dataclass(frozen=True)
class Origins:
    """What the runs of one study were called before they were imported.

    Attributes:
        ids: each former run id with the id that the run has here.
        studies: former names of the study.
    """

    ids: Mapping[str, str]
    studies: frozenset[str]

    def under_present_ids(self, entries: pl.DataFrame) -> pl.DataFrame:
        """A manifest's entries as they read with the ids that the runs have here.

        Args:
            entries: a frame in any of whose text columns a run id may stand.

        Returns:
            The same rows; those that name present ids, or none, are as they were.
        """
        if not self.ids:
            return entries
        return entries.with_columns(
            pl.col(column).replace(_changed(entries[column], self.ids))
            for column, kind in entries.schema.items()
            if kind == pl.String
        )


def _changed(texts: pl.Series, ids: Mapping[str, str]) -> dict[str, str]:
    translated = {text: translate(text, ids) for text in texts.drop_nulls().unique()}
    return {old: new for old, new in translated.items() if old != new}


def read_origins(tags: pl.DataFrame) -> Origins:
    """The origins of a study's runs, from their tags.

    Args:
        tags: run_id, key, value of all runs of the study.

    Raises:
        SuiteError: if two runs claim the same former id.
    """
    present = set(tags["run_id"])
    ids: dict[str, str] = {}
    for run_id, value in _values(tags, RUN_IDS_TAG):
        for former in value.split():
            if ids.setdefault(former, run_id) != run_id:
                raise SuiteError(
                    f"the runs {ids[former]} and {run_id} both say in their tag {RUN_IDS_TAG} that "
                    f"they were {former}; the tag was edited, or a run was copied; delete the one "
                    "that is wrong"
                )
    studies = {name for _, value in _values(tags, STUDIES_TAG) for name in value.split()}
    return Origins(
        ids={former: now for former, now in ids.items() if former not in present},
        studies=frozenset(studies),
    )


def _values(tags: pl.DataFrame, key: str) -> Iterable[tuple[str, str]]:
    return tags.filter(pl.col("key") == key).select("run_id", "value").iter_rows()

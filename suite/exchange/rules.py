"""What every store takes: checked before an import writes anything, because none can undo."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from suite.errors import SuiteError
from suite.exchange.layout import RUN_ID, check_study_name
from suite.tracking.curves import attempts_from_tags
from suite.tracking.origins import RUN_ID_TAG, former_ids, former_studies

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
POINT_IDENTITY = ["key", "step", "timestamp", "value"]
_COPIED_TAGS = {"suite.kind": "kind", "suite.cell": "cell", "mlflow.parentRunId": "parent_run_id"}
_LONGEST_NAME = 250


def check_row(row: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    """See that a run's row is one, and that its tags agree with it.

    Raises:
        ValueError: if not.
    """
    name, status, start, end = (row[key] for key in ("name", "status", "start_time", "end_time"))
    if not name or len(name) > _LONGEST_NAME or _has_controls(name):
        raise ValueError(
            f"its name is {name!r:.300}; a name has 1 to {_LONGEST_NAME} characters, none of them "
            "a control character"
        )
    if status not in STATUSES:
        raise ValueError(f"its status is {status!r:.100}, not one of {', '.join(STATUSES)}")
    if start is None or start < 1 or (end is not None and end < 1):
        raise ValueError(f"its times are {start} and {end}, not ms since 1970")
    for tag, column in _COPIED_TAGS.items():
        if tags.get(tag) != row[column]:
            raise ValueError(f"its {column} is {row[column]!r:.300}, its tag {tag} is another")
    _check_origin(tags)
    _check_attempts(tags)


def _check_origin(tags: Mapping[str, str]) -> None:
    former = former_ids(tags)
    first = [tags[RUN_ID_TAG]] if RUN_ID_TAG in tags else []
    if list(former[:1]) != first or not all(RUN_ID.fullmatch(one) for one in former):
        raise ValueError(f"its tags do not agree on the ids that it had: {' '.join(former)!r:.200}")
    for study in former_studies(tags):
        check_study_name(study)


def _check_attempts(tags: Mapping[str, str]) -> None:
    try:
        for attempt in attempts_from_tags(tags):
            times = (attempt.number, attempt.started, attempt.resumed_from)
            if not all(type(time) is int and abs(time) < 2**63 for time in times):
                raise ValueError(f"its attempt {attempt.number!r:.100} does not say when it began")
    except (SuiteError, TypeError, RecursionError) as error:  # numbers that do not compare
        raise ValueError(f"its attempts cannot be read: {error!s:.300}") from error


def check_texts(tags: Mapping[str, str], params: Mapping[str, str]) -> None:
    """See that MLflow takes tags and parameters, and does not cut them.

    Raises:
        ValueError: if not.
    """
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_TAG_VAL_LENGTH

    limits = (("tag", tags, MAX_TAG_VAL_LENGTH), ("parameter", params, MAX_PARAM_VAL_LENGTH))
    for what, texts, longest in limits:
        for key, value in texts.items():
            _check_key(what, key)
            if len(value) > longest:
                raise ValueError(
                    f"the {what} {key} has {len(value)} characters; MLflow takes {longest}"
                )
            if "\0" in value:
                raise ValueError(f"the {what} {key} holds a NUL character")


def check_points(curve: pl.DataFrame) -> None:
    """See that MLflow takes the points of a run, and keeps each of them.

    Raises:
        ValueError: if not.
    """
    if any(curve[column].has_nulls() for column in POINT_IDENTITY):
        raise ValueError("a point of its curves lacks a value")
    for key in curve["key"].unique().sort():
        _check_key("metric", key)
    if (curve["timestamp"] < 0).any():
        raise ValueError("a point of its curves is older than 1970")
    if curve.select(POINT_IDENTITY).is_duplicated().any():
        raise ValueError("a point of its curves is there twice")


def check_inputs(inputs: Sequence[DatasetInput]) -> None:
    """See that MLflow takes data sets.

    Raises:
        ValueError: if not.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_dataset_inputs

    try:
        _validate_dataset_inputs([*inputs])
    except MlflowException as error:
        raise ValueError(f"MLflow does not take an input: {error.message:.300}") from error
    texts = [text for one in inputs for text in one.dataset.to_dictionary().values()]
    texts += [text for one in inputs for tag in one.tags for text in (tag.key, tag.value)]
    if any("\0" in (text or "") for text in texts):
        raise ValueError("an input holds a NUL character")


def _check_key(what: str, key: str) -> None:
    from mlflow.utils import validation

    if (
        not validation.validate_param_and_metric_name(key)  # type: ignore[no-untyped-call]
        or validation.path_not_unique(key)  # type: ignore[no-untyped-call]
        or len(key) > validation.MAX_ENTITY_KEY_LENGTH
        or _has_controls(key)  # MLflow lets a newline at the end pass
    ):
        raise ValueError(
            f"MLflow does not take {key!r:.300} for the name of a {what}: that has at most "
            f"{validation.MAX_ENTITY_KEY_LENGTH} letters, digits, '_', '-', '.', ':', '/' and "
            "spaces, and is no path that leads elsewhere"
        )


def _has_controls(text: str) -> bool:
    return any(unicodedata.category(letter) == "Cc" for letter in text)

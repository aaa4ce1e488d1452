from __future__ import annotations

import itertools
import time

import pytest
import requests
import sqlalchemy.exc as sa
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos import databricks_pb2 as codes

from suite.errors import InputError
from suite.tracking.patience import TrackerAwayError, passes, patience, patiently


def database_error(kind: type[sa.DBAPIError], code: int) -> MlflowException:
    error = MlflowException("database", error_code=code)
    error.__cause__ = kind("SELECT", {}, Exception("driver"))
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError("refused"), True),
        (requests.exceptions.ReadTimeout("slow"), True),
        (requests.exceptions.ConnectionError("cut"), True),
        (MlflowException("API request failed with exception ..."), True),
        (MlflowException("busy", error_code=codes.REQUEST_LIMIT_EXCEEDED), True),
        (MlflowException("away", error_code=codes.TEMPORARILY_UNAVAILABLE), True),
        (RestException({"error_code": "INTERNAL_ERROR", "message": "oops"}), True),
        (database_error(sa.OperationalError, codes.TEMPORARILY_UNAVAILABLE), True),
        (database_error(sa.InterfaceError, codes.BAD_REQUEST), True),
        (database_error(sa.IntegrityError, codes.BAD_REQUEST), False),
        (MlflowException("what?", error_code=codes.BAD_REQUEST), False),
        (MlflowException("deleted", error_code=codes.INVALID_PARAMETER_VALUE), False),
        (MlflowException("no run", error_code=codes.RESOURCE_DOES_NOT_EXIST), False),
        (MlflowException("who?", error_code=codes.PERMISSION_DENIED), False),
        (RestException({"error_code": "RESOURCE_ALREADY_EXISTS", "message": "again"}), False),
        (ValueError("a mistake of ours"), False),
    ],
)
def test_what_may_pass(error: Exception, expected: bool) -> None:
    assert passes(error) is expected


def test_an_action_is_tried_until_it_succeeds() -> None:
    tries: list[int] = []

    def action() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "done"

    assert patiently(action, seconds=60) == "done"
    assert len(tries) == 3


def test_a_lasting_answer_is_raised_at_once() -> None:
    tries: list[int] = []

    def action() -> None:
        tries.append(1)
        raise MlflowException("no", error_code=codes.PERMISSION_DENIED)

    with pytest.raises(MlflowException, match="no"):
        patiently(action, seconds=60)
    assert len(tries) == 1


def test_patience_ends_and_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tries: list[float] = []

    def action() -> None:
        tries.append(now[0])
        raise ConnectionError("refused\nand more")

    with pytest.raises(TrackerAwayError) as caught:
        patiently(action, seconds=30)
    assert caught.value.reason == "refused"
    for part in ("(refused)", "waited 30 s", "SUITE_TRACKER_PATIENCE", "same command is run again"):
        assert part in str(caught.value)
    assert now[0] == pytest.approx(30)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[0] <= 0.1
    assert max(pauses) <= 5.0
    assert max(pauses) > 2.0, "pauses grow, so that a tracker that starts is left alone"


@pytest.mark.parametrize(("text", "seconds"), [("", 120.0), ("0", 0.0), ("2.5", 2.5)])
def test_patience_is_set_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", text)
    assert patience() == seconds


@pytest.mark.parametrize("text", ["long", "-1", "inf", "nan"])
def test_patience_that_is_no_number_of_seconds_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", text)
    with pytest.raises(InputError, match="is not a number of seconds"):
        patience()

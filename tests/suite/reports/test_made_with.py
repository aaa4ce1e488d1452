from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from suite.reports.made_with import MadeWith, UnreadableCodeError, made_with, warnings_about
from suite.tracking.curves import Attempt

CLEAN = {
    "suite.version": "0.1.0",
    "suite.python": "3.11.7",
    "suite.git.commit": "a" * 40,
    "suite.git.dirty": "false",
    "suite.source": "1" * 64,
    "suite.package.torch": "2.13.0",
    "suite.package.numpy": "2.4.6",
}
DIRTY = CLEAN | {"suite.git.dirty": "true", "suite.source": "2" * 64}


def run(number: int, *attempts: Mapping[str, str]) -> MadeWith:
    return MadeWith(run_id=f"{number:032x}", name=f"run {number}", attempts=attempts)


def called(*numbers: int) -> str:
    return ", ".join(f"run {number} ({number:032x})" for number in numbers)


def test_runs_of_one_clean_tree_and_one_set_of_versions_need_no_word() -> None:
    assert list(warnings_about([run(n, CLEAN) for n in range(50)])) == []
    assert list(warnings_about([])) == []


def test_fifty_runs_of_a_dirty_tree_make_one_short_line() -> None:
    (line,) = warnings_about([run(n, DIRTY) for n in range(50)])
    assert line == (
        "made from a source tree with changes that no commit holds: 50 of 50 runs: "
        f"{called(0, 1, 2)} and 47 more"
    )


@pytest.mark.parametrize(
    ("other", "label"),
    [
        ({"suite.git.commit": "b" * 40}, f"commit {'b' * 12}"),
        ({"suite.git.dirty": "unknown"}, f"commit {'a' * 12} with changes, source 11111111"),
        ({"suite.git.dirty": "true"}, f"commit {'a' * 12} with changes, source 11111111"),
    ],
)
def test_runs_from_other_code_are_named_and_the_rest_counted(
    other: Mapping[str, str], label: str
) -> None:
    runs = [run(n, CLEAN | other if n in (3, 7) else CLEAN) for n in range(40)]
    lines = list(warnings_about(runs))
    assert lines[-1] == (
        f"made from different code: commit {'a' * 12} (38 runs); {label} (2 runs: {called(3, 7)})"
    )
    assert len(lines) == (1 if "suite.git.commit" in other else 2)


def test_a_changed_tree_that_could_not_be_read_is_said_to_be_unknown() -> None:
    unknown = CLEAN | {"suite.git.dirty": "unknown"}
    assert list(warnings_about([run(1, unknown)])) == [
        "made from a source tree whose changes could not be read: 1 of 1 runs: " + called(1)
    ]


def test_two_wheels_are_told_apart_by_their_source() -> None:
    wheel = {key: value for key, value in CLEAN.items() if not key.startswith("suite.git")}
    runs = [run(1, wheel), run(2, wheel | {"suite.source": "3" * 64})]
    assert list(warnings_about(runs)) == [
        f"made from different code: no commit, source 11111111 (1 run: {called(1)}); "
        f"no commit, source 33333333 (1 run: {called(2)})"
    ]


def test_versions_that_differ_together_share_one_line() -> None:
    other = CLEAN | {"suite.package.torch": "2.14.0", "suite.python": "3.12.1"}
    runs = [run(n, other if n == 5 else CLEAN) for n in range(6)]
    assert list(warnings_about(runs)) == [
        "made with different versions: Python 3.11.7, torch 2.13.0 (5 runs); "
        f"Python 3.12.1, torch 2.14.0 (1 run: {called(5)})"
    ]


def test_many_kinds_are_counted_rather_than_listed() -> None:
    runs = [run(n, CLEAN | {"suite.package.torch": f"2.{n}"}) for n in range(30)]
    (line,) = warnings_about(runs)
    assert line.endswith("; 26 more kinds (26 runs)")
    assert line.count("torch") == 4


def test_a_run_that_was_resumed_after_an_edit_is_seen() -> None:
    runs = [*(run(n, CLEAN) for n in range(5)), run(9, CLEAN, DIRTY, DIRTY)]
    assert list(warnings_about(runs)) == [
        "made from a source tree with changes that no commit holds: 1 of 6 runs: " + called(9),
        f"made from different code: commit {'a' * 12} (5 runs); commit {'a' * 12} → "
        f"commit {'a' * 12} with changes, source 22222222 (1 run: {called(9)})",
    ]
    (alone,) = warnings_about([run(9, CLEAN, CLEAN | {"suite.git.commit": "b" * 40})])
    assert alone == (
        f"made from different code: commit {'a' * 12} → commit {'b' * 12} (1 run: {called(9)})"
    )


def test_runs_without_a_record_are_counted_apart() -> None:
    runs = [run(1, CLEAN), run(2), run(3)]
    assert list(warnings_about(runs)) == [
        "made with nothing on record: 2 of 3 runs: " + called(2, 3)
    ]


def tags(*attempts: tuple[int, Mapping[str, str]]) -> dict[str, str]:
    """Tags of a run, given for each attempt what it resumed from and its code."""
    found = {"suite.kind": "pretraining"}
    for number, (resumed_from, code) in enumerate(attempts, 1):
        attempt = Attempt(
            number=number, started=number, resumed_from=resumed_from, host="h", pid=1, device="cpu"
        )
        found |= dict([attempt.to_tag()])
        found[f"suite.provenance.{number}"] = json.dumps(code)
    return found


def test_attempts_are_read_in_order() -> None:
    codes = [CLEAN | {"suite.version": f"0.{n}"} for n in range(11)]
    found = made_with("r", "n", tags(*((n, code) for n, code in enumerate(codes))))
    assert list(found.attempts) == codes
    assert found.values("suite.version") == tuple(f"0.{n}" for n in range(11))


def test_an_attempt_whose_points_were_all_overtaken_does_not_count() -> None:
    found = made_with("r", "n", tags((-1, DIRTY), (-1, CLEAN), (500, CLEAN)))
    assert found.attempts == (CLEAN, CLEAN)
    assert list(warnings_about([found])) == []


def test_a_run_without_records_of_attempts_is_judged_by_its_own_tags() -> None:
    assert made_with("r", "n", {**DIRTY, "suite.kind": "law"}).attempts == (DIRTY,)
    assert made_with("r", "n", {"suite.kind": "law"}).attempts == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suite.provenance.1", "{"),
        ("suite.provenance.1", "[]"),
        ("suite.provenance.1", '{"suite.version": 1}'),
        ("suite.provenance.one", "{}"),
    ],
)
def test_a_record_that_was_edited_is_named(key: str, value: str) -> None:
    with pytest.raises(UnreadableCodeError, match=f"its tag {key} is "):
        made_with("r", "n", {key: value})

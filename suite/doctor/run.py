"""All checks in order: looked at, mended where that is asked for, told block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from rich.console import Console
from rich.text import Text

from suite.doctor.artifact_checks import check_artifacts, check_reports
from suite.doctor.checkpoint_checks import check_checkpoints
from suite.doctor.clock_check import check_clock
from suite.doctor.environment_checks import check_devices, check_packages
from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, Outcome
from suite.doctor.home_checks import check_disk, check_folder
from suite.doctor.journal_check import check_journal
from suite.doctor.leftover_checks import check_cache, check_unfinished
from suite.doctor.spool_checks import check_spools
from suite.doctor.store_checks import check_schema, check_store
from suite.doctor.work_checks import check_cut_off, check_studies
from suite.errors import InputError, SuiteError
from suite.tracking.home import Home

Check = Callable[[Examination], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("home", check_folder),
    ("disk", check_disk),
    ("tracking store", check_store),
    ("schema", check_schema),
    ("clock", check_clock),
    ("studies at work", check_studies),
    ("spool", check_spools),
    ("cut-off runs", check_cut_off),
    ("checkpoints and models", check_checkpoints),
    ("artifacts", check_artifacts),
    ("cache", check_cache),
    ("half-made files", check_unfinished),
    ("searches", check_journal),
    ("reports", check_reports),
    ("packages", check_packages),
    ("devices", check_devices),
)
"""What is looked at; a later check sees what an earlier one has mended."""
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red", "mended": "green"}
_MOST_PLACES = 10


def examine(home: Home, *, fix: bool = False) -> Iterator[tuple[str, Outcome]]:
    """Look at a home, and mend what can be.

    Args:
        home: the home.
        fix: whether to mend; without it nothing is written.

    Yields:
        Title of the check and what came of a finding, as it comes.

    Raises:
        InputError: if there is no such folder.
    """
    if not home.root.is_dir():
        what = "is not a folder" if home.root.exists() else "does not exist"
        raise InputError(
            f"the home {home.root} {what}; name another with --home or SUITE_HOME, or make it "
            "with `suite run STUDY`"
        )
    if fix:
        home.create()  # says so at once if nothing can be written
    with closing(Examination(home, fix=fix)) as exam:
        for title, check in CHECKS:
            for finding in _findings(check, exam):
                yield title, _settle(finding) if fix else Outcome(finding=finding)


def _findings(check: Check, exam: Examination) -> Iterator[Finding]:
    """The findings of a check; that it broke off is one, and the other checks go on."""
    try:
        yield from check(exam)
    except SuiteError as error:
        yield Finding(severity="error", what=str(error))
    except Exception as error:  # what is damaged breaks in ways that nobody has foreseen
        yield Finding(
            severity="error",
            what=f"this could not be looked at ({type(error).__name__}: {error})",
        )


def _settle(finding: Finding) -> Outcome:
    if finding.mend is None:
        return Outcome(finding=finding)
    try:
        return Outcome(finding=finding, mended=finding.mend())
    except (SuiteError, OSError) as error:
        return Outcome(finding=finding, failed=str(error))
    except Exception as error:  # one thing that cannot be mended must not keep the rest from it
        return Outcome(finding=finding, failed=f"{type(error).__name__}: {error}")


def run_doctor(home: Home, *, fix: bool = False, console: Console | None = None) -> int:
    """Examine a home and print what was found, a block for each check.

    Returns:
        0 if nothing is left to do, else 1.

    Raises:
        InputError: if there is no such home.
    """
    shown = console or Console(highlight=False)
    last = ""
    outcomes = []
    for title, outcome in examine(home, fix=fix):
        if title != last:
            shown.print(Text(title, style="bold"))
            last = title
        for label, text in lines(outcome, fix=fix):
            shown.print(Text(f"  {label:9}", style=_STYLES.get(label, "")) + text, soft_wrap=True)
        outcomes.append(outcome)
    shown.print(summary(outcomes, fix=fix), markup=False, soft_wrap=True)
    return 1 if any(outcome.left for outcome in outcomes) else 0


def lines(outcome: Outcome, *, fix: bool) -> Iterator[tuple[str, str]]:
    """Label and text of each line of an outcome, on a terminal without surprises."""
    finding = outcome.finding
    yield finding.severity, _plain(finding.what)
    for place in finding.where[:_MOST_PLACES]:
        yield "", _plain(place)
    if len(finding.where) > _MOST_PLACES:
        yield "", f"and {len(finding.where) - _MOST_PLACES:,} more"
    if outcome.mended is not None:
        yield "mended", _plain(outcome.mended)
        return
    if outcome.failed is not None:
        yield "failed", _plain(outcome.failed)
    if finding.remedy:
        label = "hint" if finding.severity == "note" else "to do"
        yield ("--fix" if finding.mend is not None and not fix else label), _plain(finding.remedy)


def summary(outcomes: list[Outcome], *, fix: bool) -> str:
    """One sentence on all of it."""
    mended = sum(outcome.mended is not None for outcome in outcomes)
    left = [outcome for outcome in outcomes if outcome.left]
    by_itself = sum(outcome.finding.mend is not None for outcome in left)
    if fix:
        return f"{mended} thing(s) mended, {len(left)} left for you"
    if not left:
        return "nothing to mend"
    return (
        f"{len(left)} thing(s) to mend: `suite doctor --fix` mends {by_itself}, "
        f"{len(left) - by_itself} left for you"
    )


def _plain(text: str) -> str:
    """Text whose control characters, such as those of a run's name, are shown escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )

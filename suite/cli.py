"""The command ``suite``: parse, call, print."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from suite.arguments import build_parser
from suite.errors import InputError, SuiteError
from suite.terminal import say

if TYPE_CHECKING:
    from suite.study import Study
    from suite.tracking.home import Home


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when it is done, 1 when the study failed or differs, 2 when the input is wrong, 130
        when the user stopped it.
    """
    # Threads that spin while they wait make small models ten times slower beside other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help()
        return 0
    try:
        with _stopped_in_words():
            code = _VERBS[options.verb](options)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter ends
        return code
    except SuiteError as error:
        if options.debug:
            traceback.print_exc()
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        # only some commands keep what they have done so far, and say so themselves
        say("stopped; run the same command again")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if options.debug else "\n(--debug shows where it came from)"
        if options.debug:
            traceback.print_exc()
        say(f"error: {type(error).__name__}: {error}{hint}")
        return 1


@contextlib.contextmanager
def _stopped_in_words() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with its clean-up and a last word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(text: str) -> None:
    """One line of what was asked for, on standard output."""
    say(text, sys.stdout)


def _studies(options: argparse.Namespace) -> int:
    from suite.study_file import load_study, shipped_studies

    for name, path in shipped_studies().items():
        study, _ = load_study(str(path))
        _show(f"{name:16} {study.title}")
    return 0


def _plan(options: argparse.Namespace) -> int:
    from suite.planning import plan_study, print_plan
    from suite.rates import assumed_rates
    from suite.study_file import load_study

    study, _ = load_study(options.study, options.overrides)
    rates = assumed_rates(
        study,
        measure=options.measure,
        peak_tflops=options.peak_tflops,
        peak_float64_tflops=options.peak_float64_tflops,
        utilisation=options.utilisation,
    )
    plan = plan_study(
        study,
        peak_flops=rates.flops,
        double_peak_flops=rates.double_flops,
        utilisation=rates.utilisation,
        rates=rates.origin,
    )
    print_plan(plan)
    return 0


def _run(options: argparse.Namespace) -> int:
    from suite.runner import run_study
    from suite.stopping import StopRequested
    from suite.tracking.home import Home

    try:
        outcome = run_study(options.study, Home.at(options.home), overrides=options.overrides)
    except StopRequested:
        say("stopped at a safe point; run the same command again to go on")
        return 130
    _show(f"report: {outcome.page}")
    if outcome.failures:
        say(f"{len(outcome.failures)} cell(s) failed:")
        for name, reason in outcome.failures.items():
            say(f"  {name}: {reason}")
        return 1
    return 0


def _tracked_study(options: argparse.Namespace, home: Home) -> tuple[str, Study | None]:
    """Name of a study in the store, and what its file says.

    A study that came from elsewhere has runs here and no file: its name is enough.

    Raises:
        InputError: if there is neither.
    """
    from suite.study_file import load_study
    from suite.tracking.reader import open_reader, without_password

    try:
        study, _ = load_study(options.study, getattr(options, "overrides", ()))
    except InputError as unknown:
        if getattr(options, "overrides", ()) or os.path.exists(options.study):
            raise
        try:
            tracked = not open_reader(home).runs(options.study).is_empty()
        except SuiteError as error:
            raise type(error)(f"{unknown}; and its runs cannot be looked for: {error}") from error
        if tracked:
            return options.study, None
        raise InputError(
            f"{unknown}; and {without_password(home.tracking_uri)} has no runs of it"
        ) from unknown
    return study.name, study


def _report(options: argparse.Namespace) -> int:
    from suite.containment import contained_folder
    from suite.reports.build import build_report
    from suite.tracking.home import Home
    from suite.tracking.reader import open_reader

    home = Home.at(options.home)
    name, study = _tracked_study(options, home)
    out = contained_folder(home.reports / name, home.reports)
    report = build_report(open_reader(home), name, study.report.panels if study else None, out)
    _show(f"report: {report.page}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from suite.reports.verify import verify
    from suite.tracking.home import Home
    from suite.tracking.reader import open_reader

    home = Home.at(options.home)
    study, _ = _tracked_study(options, home)
    manifest = home.reports / study / "manifest.json"
    kept = home.artifacts / study
    # a shared store holds runs of other homes, whose artifacts are not in this one
    artifacts = kept if home.owns_database else None
    result = verify(open_reader(home), study, manifest, artifacts=artifacts)
    for line in result.lines():
        _show(line)
    for warning in result.warnings:
        _show(f"warning: {warning}")
    if result.ok:
        _show(
            f"{study}: {result.num_entries:,} entries of {len(result.run_ids)} runs are as "
            "the store has them"
        )
    return 0 if result.passes(strict=options.strict) else 1


def _export(options: argparse.Namespace) -> int:
    from pathlib import Path

    from suite.exchange.export import export_study
    from suite.tracking.home import Home

    home = Home.at(options.home)
    study, _ = _tracked_study(options, home)
    done = export_study(home, study, Path(options.out))
    _show(
        f"{done.folder}: {done.runs} runs, {done.points:,} points, {done.artifacts} artifacts, "
        f"{done.size / 1e6:.1f} MB"
    )
    return 0


def _import(options: argparse.Namespace) -> int:
    from pathlib import Path

    from suite.exchange.load import import_study
    from suite.tracking.home import Home

    home = Home.at(options.home)
    done = import_study(Path(options.folder), home, name=options.name)
    if not done.new:
        _show(f"{done.study}: all {done.known} runs are in {home.root} already")
    else:
        _show(
            f"{done.study}: {done.new} runs, {done.points:,} points, {done.artifacts} artifacts "
            f"are new in {home.root}" + (f"; {done.known} were there" if done.known else "")
        )
    if done.report is not None:
        _show(f"`suite verify {done.study}` compares its report with what is now in the store")
    return 0


def _fit(options: argparse.Namespace) -> int:
    from suite.tables.command import run_fit

    return run_fit(options)


def _predict(options: argparse.Namespace) -> int:
    from suite.answers.command import run_predict
    from suite.tracking.home import Home

    home = Home.at(options.home)
    name, study = _tracked_study(options, home)
    return run_predict(options, home, name, study)


def _doctor(options: argparse.Namespace) -> int:
    from suite.doctor.run import run_doctor
    from suite.tracking.home import Home

    return run_doctor(Home.at(options.home), fix=options.fix)


def _ui(options: argparse.Namespace) -> int:
    from suite.tracking.home import Home
    from suite.ui import serve

    return serve(
        Home.at(options.home),
        port=options.port,
        host=options.host,
        allowed_hosts=options.allowed_hosts,
    )


_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "studies": _studies,
    "plan": _plan,
    "run": _run,
    "report": _report,
    "verify": _verify,
    "predict": _predict,
    "fit": _fit,
    "ui": _ui,
    "export": _export,
    "import": _import,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())

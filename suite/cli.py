"""The command ``suite``: parse, call, print."""

from __future__ import annotations

import argparse
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import suite
from suite.errors import SuiteError

_EPILOG = """\
A study is one YAML file: corpora, models, budgets, searches, law, report. STUDY is the name of
a shipped study (see `suite studies`) or the path of your own file.

  suite plan demo                     what would run: cells, parameters, FLOPs, memory, time
  suite run demo                      run every stage that is not finished; again: a no-op
  suite run demo --set seed=1         any key of the study can be set from here
  suite report demo                   build figures and page from the tracking store alone
  suite verify demo                   rebuild and compare; exit 1 if a plotted value changed
  suite ui                            follow the runs in MLflow's own pages

State lives in one folder, the home: ./mlruns unless --home or SUITE_HOME says otherwise.
Exit codes: 0 done, 1 the study failed or differs, 2 the input is wrong, 130 stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when it is done, 1 when the study failed or differs, 2 when the input is wrong, 130
        when the user stopped it.
    """
    # Threads that spin while they wait make small models ten times slower beside other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help()
        return 0
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter ends
        return code
    except SuiteError as error:
        if options.debug:
            traceback.print_exc()
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("stopped; run the same command again to go on")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if options.debug else "\n(--debug shows where it came from)"
        if options.debug:
            traceback.print_exc()
        _say(f"error: {type(error).__name__}: {error}{hint}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="suite",
        description=suite.__doc__.splitlines()[0] if suite.__doc__ else None,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"suite {suite.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument(
        "--home",
        metavar="FOLDER",
        help="folder that holds all state (default: SUITE_HOME, else ./mlruns)",
    )
    debug = argparse.ArgumentParser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show tracebacks")
    common = [home, debug]
    study = argparse.ArgumentParser(add_help=False)
    study.add_argument("study", metavar="STUDY", help="name of a shipped study, or a YAML file")
    study.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set a key of the study, such as pretraining.tokens=200000; may be repeated",
    )
    for name, run, parents, text in (
        ("studies", _studies, [debug], "list the shipped studies"),
        ("plan", _plan, [study, debug], "show cells, FLOPs, memory and time; run nothing"),
        ("run", _run, [study, *common], "run every stage that is not finished, then report"),
        (
            "report",
            _report,
            [study, *common],
            "build the report from the tracking store alone",
        ),
        (
            "verify",
            _verify,
            [study, *common],
            "rebuild the report from the store and compare",
        ),
        ("ui", _ui, common, "open the MLflow UI on the home"),
    ):
        verb = verbs.add_parser(
            name, parents=parents, help=text, description=text[0].upper() + text[1:] + "."
        )
        verb.set_defaults(run=run)
        if name == "plan":
            verb.add_argument(
                "--utilisation",
                type=_share,
                default=0.4,
                metavar="SHARE",
                help="share of the peak that the work is assumed to reach (default: 0.4)",
            )
            verb.add_argument(
                "--peak-tflops",
                type=_positive,
                default=989.0,
                metavar="TFLOPS",
                help="peak of one device (default: 989, an H100 or H200 in bf16)",
            )
            verb.add_argument(
                "--peak-float64-tflops",
                type=_positive,
                default=67.0,
                metavar="TFLOPS",
                help="its peak in float64, for KV moments and solves (default: 67, likewise)",
            )
        if name == "ui":
            verb.add_argument("--port", type=_port, default=5000, help="port (default: 5000)")
    return parser


def _share(text: str) -> float:
    value = _positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is more than 1; give a share above 0 and up to 1")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 1 to 65535")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _studies(options: argparse.Namespace) -> int:
    from suite.study_file import load_study, shipped_studies

    for name, path in shipped_studies().items():
        study, _ = load_study(str(path))
        print(f"{name:16} {study.title}")
    return 0


def _plan(options: argparse.Namespace) -> int:
    from suite.planning import plan_study, print_plan
    from suite.study_file import load_study

    study, _ = load_study(options.study, options.overrides)
    plan = plan_study(
        study,
        peak_flops=options.peak_tflops * 1e12,
        double_peak_flops=options.peak_float64_tflops * 1e12,
        utilisation=options.utilisation,
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
        _say("stopped at a safe point; run the same command again to go on")
        return 130
    print(f"report: {outcome.page}")
    if outcome.failures:
        _say(f"{len(outcome.failures)} cell(s) failed:")
        for name, reason in outcome.failures.items():
            _say(f"  {name}: {reason}")
        return 1
    return 0


def _report(options: argparse.Namespace) -> int:
    from suite.reports.build import build_report
    from suite.study_file import load_study
    from suite.tracking.home import Home
    from suite.tracking.reader import open_reader

    study, _ = load_study(options.study, options.overrides)
    home = Home.at(options.home)
    report = build_report(
        open_reader(home), study.name, study.report.panels, home.reports / study.name
    )
    print(f"report: {report.page}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from suite.reports.verify import verify
    from suite.study_file import load_study
    from suite.tracking.home import Home
    from suite.tracking.reader import open_reader

    study, _ = load_study(options.study, options.overrides)
    home = Home.at(options.home)
    result = verify(open_reader(home), study.name, home.reports / study.name / "manifest.json")
    for line in result.lines():
        print(line)
    if result.ok:
        print(
            f"{study.name}: {result.num_entries:,} entries of {len(result.run_ids)} runs are as "
            "the store has them"
        )
    return 0 if result.ok else 1


def _ui(options: argparse.Namespace) -> int:
    from suite.tracking.home import Home
    from suite.ui import serve

    return serve(Home.at(options.home), port=options.port)


if __name__ == "__main__":
    sys.exit(main())

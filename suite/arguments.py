"""What the command line takes: verbs, options and their help."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import suite
from suite.fit_arguments import add_fit_options
from suite.predict_arguments import add_predict_options

_EPILOG = """\
A study is one YAML file: corpora, models, budgets, searches, law, report. STUDY is the name of
a shipped study (see `suite studies`) or the path of your own file.

  suite plan demo                     what would run: cells, parameters, FLOPs, memory, time
  suite run demo                      run every stage that is not finished; again: a no-op
  suite run demo --set seed=1         any key of the study can be set from here
  suite report demo                   build figures and page from the tracking store alone
  suite verify demo                   rebuild and compare; exit 1 if a plotted value changed
  suite predict demo --flops 1e18     what the law expects: losses, the best use of a budget
  suite fit runs.csv --loss loss      fit a law to any table of N, D and loss
  suite ui                            follow the runs in MLflow's own pages
  suite export demo --out demo-runs   runs, curves and artifacts as one folder
  suite import demo-runs              bring it into another home, or to a server
  suite doctor                        what is wrong with the home; --fix mends it

State lives in one folder, the home: ./mlruns unless --home or SUITE_HOME says otherwise.
Exit codes: 0 done, 1 the study failed or differs, 2 the input is wrong, 130 stopped.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command, with every verb and its help."""
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
    for name, parents, text in (
        ("studies", [debug], "list the shipped studies"),
        ("plan", [study, debug], "show cells, FLOPs, memory and time; run nothing"),
        ("run", [study, *common], "run every stage that is not finished, then report"),
        (
            "report",
            [study, *common],
            "build the report from the tracking store alone",
        ),
        (
            "verify",
            [study, *common],
            "rebuild the report from the store and compare",
        ),
        (
            "predict",
            [study, *common],
            "ask the study's law: a loss to expect, the best use of a budget, the next cell",
        ),
        ("fit", common, "fit a law to a table of runs, or to the runs of any experiment"),
        ("ui", common, "open the MLflow UI on the home"),
        ("export", common, "write a study's runs, curves and artifacts to a folder"),
        ("import", common, "bring an exported study into a home, or to a server"),
        ("doctor", common, "look for what is wrong with the home; mend it on request"),
    ):
        verb = verbs.add_parser(
            name, parents=parents, help=text, description=text[0].upper() + text[1:] + "."
        )
        _OPTIONS.get(name, _no_options)(verb)
    return parser


def _no_options(verb: argparse.ArgumentParser) -> None:
    """Leave a verb with what all of them have."""


def _plan_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--utilisation",
        type=_share,
        metavar="SHARE",
        help="share of the peak that the work is assumed to reach (default: 0.4; with --measure "
        "1, since products are most of the work)",
    )
    verb.add_argument(
        "--measure",
        action="store_true",
        help="take the rates of products that this machine is seen to reach, in the precision of "
        "the study, for peaks that are not given",
    )
    verb.add_argument(
        "--peak-tflops",
        type=_positive,
        metavar="TFLOPS",
        help="peak of one device (default: 989, an H100 or H200 in bf16)",
    )
    verb.add_argument(
        "--peak-float64-tflops",
        type=_positive,
        metavar="TFLOPS",
        help="its peak in float64, for KV moments and solves (default: 67, likewise)",
    )


def _verify_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--strict",
        action="store_true",
        help="exit 1 for warnings too: plotted runs from a dirty tree, or from different versions",
    )


def _ui_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--port", type=_port, default=5000, help="port (default: 5000)")
    verb.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, this machine only); another one lets "
        "whoever reaches it read, edit and delete every run, and needs --allowed-hosts",
    )
    verb.add_argument(
        "--allowed-hosts",
        type=_names,
        default=(),
        metavar="NAME[,NAME]",
        help="host names under which browsers may ask for the pages, with --host",
    )


def _export_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", metavar="STUDY", help="name of a study in the home, or its file")
    verb.add_argument(
        "--out", required=True, metavar="FOLDER", help="folder to write; it must not exist yet"
    )


def _import_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", metavar="FOLDER", help="what `suite export` has written")
    verb.add_argument(
        "--name", metavar="NAME", help="name of the study in this home (default: its own)"
    )


def _doctor_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--fix",
        action="store_true",
        help="mend what can be: an old schema (after a backup), runs that were cut off, values "
        "that wait in the spool, leftovers",
    )


_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "plan": _plan_options,
    "verify": _verify_options,
    "predict": add_predict_options,
    "fit": add_fit_options,
    "ui": _ui_options,
    "export": _export_options,
    "import": _import_options,
    "doctor": _doctor_options,
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


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

"""What ``suite fit`` takes."""

from __future__ import annotations

import argparse
import math

from suite.predict_arguments import amount

_VARIABLES = (
    ("n", "parameters", "N, parameters"),
    ("d", "tokens", "D, tokens; with --from-mlflow the default is step"),
    ("t", "recurrence", "T_m, loops"),
    ("step", "step", "T, the step whose loss it is (looplm_stepwise)"),
    ("n-once", "parameters_once", "parameters outside the loop (recurrence_equivalence)"),
    ("n-rec", "parameters_recurrent", "parameters within the loop (recurrence_equivalence)"),
    ("unique", "unique_tokens", "unique tokens (data_constrained)"),
    ("x", "x", "the one variable of the law power"),
)

FIT_EPILOG = """\
FORM is one of chinchilla, looplm_total, looplm_stepwise, recurrence_equivalence,
data_constrained and power, or a sum of terms such as 'parameters + tokens + recurrence'
(before a term, 'shifted' adds a shift and 'rising' lets the loss grow with it).
COLUMN may be a product, such as params_m*1e6.

  suite fit runs.csv --n params --d tokens --loss loss --out fit
  suite fit curves.parquet --n params --d tokens --loss loss --group run --final 5
  suite fit runs.csv --n params --d tokens --t loops --loss loss --form looplm_total \\
      --hold-out size=1B --group run --bootstrap 500
  suite fit runs.csv --n params --predict params=13e9,tokens=5T --flops 1e24 --bootstrap 500
  suite fit --from-mlflow my-runs --n model.params --loss val_loss --where "status == 'FINISHED'"
"""


def add_fit_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of ``suite fit`` to its parser."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = FIT_EPILOG
    verb.add_argument(
        "table",
        metavar="TABLE",
        nargs="?",
        help="a .csv, .tsv, .parquet or .jsonl file, a row a point",
    )
    verb.add_argument(
        "--from-mlflow",
        metavar="EXPERIMENT",
        help="read the runs of an experiment instead: COLUMN is then a param, a metric logged at "
        "the same steps, step, run_id, name or status, and --loss a metric; a metric called as one "
        "of these is metric.step and so on",
    )
    verb.add_argument(
        "--form", default="chinchilla", metavar="FORM", help="the law (default: chinchilla)"
    )
    columns = verb.add_argument_group("columns")
    for option, variable, text in _VARIABLES:
        columns.add_argument(
            f"--{option}",
            dest=variable,
            metavar="COLUMN",
            help=f"{text} (default: {variable})" if ";" not in text else f"{text}, else {variable}",
        )
    columns.add_argument(
        "--loss", default="loss", metavar="COLUMN", help="loss in nats (default: loss)"
    )
    columns.add_argument(
        "--group",
        metavar="COLUMN",
        help="tells runs apart: curves are drawn and resampled by it (default: a row a run, or "
        "run_id with --from-mlflow)",
    )
    rows = verb.add_argument_group("rows")
    rows.add_argument(
        "--where",
        metavar="FILTER",
        action="append",
        default=[],
        help='use only rows that pass, such as "loss > 0" or "name != \'test\'"; may be repeated',
    )
    rows.add_argument(
        "--hold-out",
        metavar="COLUMN=VALUE",
        action="append",
        default=[],
        help='keep such rows from the fit, to judge it by; a filter such as "params >= 1e9" '
        "will do; may be repeated",
    )
    rows.add_argument(
        "--final",
        type=_positive_count,
        default=0,
        metavar="K",
        help="one point a group: its last row by tokens, with the mean of its last K losses",
    )
    rows.add_argument(
        "--drop-highest",
        type=_count,
        default=0,
        metavar="K",
        help="leave out the K points with the highest losses, of those that are fitted",
    )
    fit = verb.add_argument_group("fit")
    fit.add_argument(
        "--delta",
        type=_delta,
        default=1e-3,
        metavar="NATS",
        help="threshold of the Huber loss on log loss; inf is least squares (default: 1e-3)",
    )
    fit.add_argument(
        "--starts", type=_positive_count, default=500, help="starts of the optimiser (default: 500)"
    )
    fit.add_argument("--seed", type=_count, default=0, help="seed of starts and resamples")
    fit.add_argument(
        "--bootstrap",
        type=_count,
        default=0,
        metavar="RESAMPLES",
        help="intervals from so many resamples of the groups, at least 100, more with few groups "
        "(default: 0, no intervals)",
    )
    fit.add_argument(
        "--fix",
        type=_assignment,
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="for data_constrained: E, A, alpha, B and beta of the plain law, all five, which "
        "then stay",
    )
    ask = verb.add_argument_group("questions to the law")
    ask.add_argument(
        "--predict",
        type=_assignments,
        metavar="NAME=VALUE[,NAME=VALUE]",
        action="append",
        default=[],
        help="loss to expect there, such as params=13e9,tokens=5T; a value for each variable of "
        "the law, by its column, its name or its letter; may be repeated",
    )
    ask.add_argument(
        "--flops",
        type=amount,
        metavar="C",
        help="the N and D of the lowest loss for so many FLOPs, taking C = 6 N D; for a study, "
        "`suite predict` counts loops and heads too",
    )
    ask.add_argument(
        "--profile",
        metavar="SYMBOL",
        action="append",
        default=[],
        help="profile interval of E, an exponent or a shift, with --bootstrap; may be repeated",
    )
    ask.add_argument(
        "--compare",
        metavar="FORM",
        action="append",
        default=[],
        help="another law, whose error on the rows of --hold-out, or on each N held out in turn, "
        "is compared with this one's; may be repeated",
    )
    verb.add_argument(
        "--out",
        metavar="FOLDER",
        help="write fit.json, points.csv and figures there; an earlier fit is replaced",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _positive_count(text: str) -> int:
    if _count(text) == 0:
        raise argparse.ArgumentTypeError("0 is too few; give at least 1")
    return int(text)


def _delta(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, nor inf")
    return value


def _assignments(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not sign or not name.strip():
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE, such as tokens=5T")
        if name.strip() in found:
            raise argparse.ArgumentTypeError(f"{name.strip()} is given twice in {text!r}")
        found[name.strip()] = amount(value)
    return found


def _assignment(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        shown = f"{text!r} is not NAME=VALUE" + (" with a number" if sign else "")
        raise argparse.ArgumentTypeError(f"{shown}, such as alpha=0.35") from None

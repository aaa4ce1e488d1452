"""What ``suite predict`` takes."""

from __future__ import annotations

import argparse

from suite.amounts import read_amount
from suite.errors import InputError

PREDICT_EPILOG = """\
The law is the newest finished one that `suite run STUDY` has fitted; its intervals come from
refits to resampled cells. N counts what the law counts. What a token costs follows from the
study's own shapes; between two sizes it is a straight line in logarithms.

  suite predict demo                              both answers for ten times the largest cell
  suite predict demo --size 1.36B --tokens 40B    loss to expect, at every T_m
  suite predict demo --size 2e9 --recurrence 4    any N will do; tokens as the study's
  suite predict demo --flops 1e21                 best N, D and T_m for a budget, and its loss
  suite predict demo --next                       cells whose runs would tell most
  suite predict demo --next --size 1.36B --tokens 1T   most of the loss of this one

An interval is that of the law: a run of its own scatters about it, by what is said below it.
A warning says which answers hang on parameters that the cells do not identify.
"""


def add_predict_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of ``suite predict`` to its parser."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = PREDICT_EPILOG
    question = verb.add_argument_group("questions")
    question.add_argument(
        "--size",
        metavar="N",
        help="loss to expect of a size: its name in the study, or parameters such as 2.6B",
    )
    question.add_argument(
        "--flops",
        type=amount,
        metavar="C",
        help="the best N, D and T_m for a budget in FLOPs, such as 1e21",
    )
    question.add_argument(
        "--next",
        action="store_true",
        dest="next_cell",
        help="which cell to run next, by the variance that it would remove: of the loss of --size, "
        "else of the best use of --flops, else of ten times the largest cell",
    )
    detail = verb.add_argument_group("details")
    detail.add_argument(
        "--recurrence",
        type=_recurrence,
        metavar="T",
        help="T_m (default: each of the study)",
    )
    detail.add_argument(
        "--tokens",
        type=amount,
        metavar="D",
        help="tokens, such as 20B, with --size (default: the most that were fitted)",
    )


def amount(text: str) -> float:
    """A positive number for argparse; see ``read_amount``."""
    try:
        return read_amount(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _recurrence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)

"""What the law of a study must satisfy: a form that its grid can feed, and cells left to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.errors import InputError
from suite.study import LawSpec, PretrainingSpec

if TYPE_CHECKING:
    from suite.laws.forms import Form

_AXES = {"sizes": {"parameters", "parameters_recurrent"}, "recurrences": {"recurrence"}}
"""Variables whose levels are those of an axis of the grid."""
_ABSENT = {
    "x": "it reads a variable x of the user's choice, and the runs of a study have none",
    "unique_tokens": (
        "it is fitted to runs on several amounts of unique text, and the cells of a study share "
        "one corpus"
    ),
}
_STEP_METRICS = ("train/loss_at_step", "val/loss_at_step")


def check_law(law: LawSpec, pretraining: PretrainingSpec) -> None:
    """Raise ``InputError`` for the first rule that the law breaks."""
    form = _form(law)
    _check_intervals_and_tests(law)
    _check_steps(form, law, pretraining)
    _check_hold_out(form, law, pretraining)


def _form(law: LawSpec) -> Form:
    from suite.laws.forms import get_form

    try:
        form = get_form(law.form)
    except InputError as error:
        raise InputError(str(error), key="law.form") from None
    for variable, reason in _ABSENT.items():
        if variable in form.variables:
            raise InputError(
                f"got {law.form!r}; {reason}, so choose another law, or fit a table of runs with "
                "`suite fit`",
                key="law.form",
            )
    return form


def _check_intervals_and_tests(law: LawSpec) -> None:
    from suite.laws.intervals import FEWEST_RESAMPLES

    if 0 < law.resamples < FEWEST_RESAMPLES:
        raise InputError(
            f"got {law.resamples}; the tails of an interval need at least {FEWEST_RESAMPLES}, and "
            "0 makes no intervals",
            key="law.resamples",
        )
    for position, kind in enumerate(law.tests):
        if kind in law.tests[:position]:
            raise InputError(f"got {kind!r} twice; each may be given once", key="law.tests")


def _check_steps(form: Form, law: LawSpec, pretraining: PretrainingSpec) -> None:
    """A law of the loop step reads the losses of all steps of one T_m; others, a total loss."""
    steps = law.metric in _STEP_METRICS
    if "step" not in form.variables:
        if steps:
            raise InputError(
                f"got {law.metric!r}, the losses of all loop steps; the law {law.form!r} does not "
                "read the step, so take train/total_loss or val/total_loss",
                key="law.metric",
            )
        return
    if not steps:
        raise InputError(
            f"got {law.metric!r}; the law {law.form!r} is one of the loop step, so take "
            + " or ".join(_STEP_METRICS),
            key="law.metric",
        )
    if len(pretraining.recurrences) > 1 or pretraining.recurrences[0] < 2:
        raise InputError(
            f"got {list(pretraining.recurrences)}; the law {law.form!r} is fitted to the steps of "
            "one T_m, so give one of at least 2",
            key="pretraining.recurrences",
        )


def _check_hold_out(form: Form, law: LawSpec, pretraining: PretrainingSpec) -> None:
    sizes = [size.name for size in pretraining.sizes]
    for position, name in enumerate(law.hold_out.sizes):
        if name not in sizes:
            raise InputError(
                f"no size {name!r}; the study's sizes are {', '.join(sizes)}",
                key=f"law.hold_out.sizes[{position}]",
            )
    for position, recurrence in enumerate(law.hold_out.recurrences):
        if recurrence not in pretraining.recurrences:
            raise InputError(
                f"no recurrence {recurrence}; the study's are "
                + ", ".join(map(str, pretraining.recurrences)),
                key=f"law.hold_out.recurrences[{position}]",
            )
    left = [
        (size, recurrence)
        for size in sizes
        for recurrence in pretraining.recurrences
        if not law.hold_out.covers(size, recurrence)
    ]
    if not left:
        raise InputError(
            f"got sizes {list(law.hold_out.sizes)} and recurrences "
            f"{list(law.hold_out.recurrences)}; they hold out every cell and nothing is left to "
            "fit, so leave out fewer",
            key="law.hold_out",
        )
    levels = {
        "sizes": len({size for size, _ in left}),
        "recurrences": len({recurrence for _, recurrence in left}),
    }
    for axis, variables in _AXES.items():
        if variables.intersection(form.variables) and levels[axis] < 2:
            key = f"pretraining.{axis}" if len(getattr(pretraining, axis)) < 2 else "law.hold_out"
            raise InputError(
                f"got {levels[axis]} of pretraining.{axis} left to fit; the law {law.form!r} needs "
                "at least two, so add some or hold out fewer",
                key=key,
            )

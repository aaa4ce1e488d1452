"""What one ``suite fit`` asks for, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from suite.errors import InputError
from suite.laws.forms import VARIABLES, Form, check_plain, get_form

OPTIONS: dict[str, str] = {
    "parameters": "--n",
    "tokens": "--d",
    "recurrence": "--t",
    "step": "--step",
    "parameters_once": "--n-once",
    "parameters_recurrent": "--n-rec",
    "unique_tokens": "--unique",
    "x": "--x",
}
"""The option that names the column of each variable; the default is the variable's own name."""


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Settings of one fit of a table.

    Attributes:
        form: name of the law, or a sum of terms.
        columns: column of each variable that the user named; see ``suite.tables.columns``.
        loss: column of the loss, in nats.
        group: column that tells the runs apart; none makes every row a run of its own.
        where: filters such as ``loss > 0``; rows must pass all.
        hold_out: conditions such as ``size=1B``; rows that meet any are kept from the fit.
        drop_highest: this many of the fitted rows, those with the highest losses, are left out.
        final: of each group only the last row by tokens is kept, with the mean of the group's
            last ``final`` losses, no held-out one with those fitted; 0 keeps all rows.
        fixed: parameters of the plain law of ``data_constrained``, which then stay.
        huber_delta: threshold of the Huber loss, in nats of log loss.
        starts: starts of the optimiser.
        seed: seed of the starts and of the resamples.
        bootstrap: resamples of the groups, for intervals; 0 makes none.
        predict: points whose loss is asked for: values by variable, or by its column.
        flops: budget to spend in the best way, with C = 6 N D; none does not ask.
        profile: parameters whose profile interval is asked for.
        compare: other laws whose held-out errors are compared with this one's.
    """

    form: str = "chinchilla"
    columns: Mapping[str, str] = field(default_factory=dict)
    loss: str = "loss"
    group: str | None = None
    where: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()
    drop_highest: int = 0
    final: int = 0
    fixed: Mapping[str, float] = field(default_factory=dict)
    huber_delta: float = 1e-3
    starts: int = 500
    seed: int = 0
    bootstrap: int = 0
    predict: tuple[Mapping[str, float], ...] = ()
    flops: float | None = None
    profile: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()

    def law(self) -> Form:
        """The law, once the request makes sense.

        Raises:
            InputError: naming the option that does not.
        """
        form = get_form(self.form)
        for name in self.columns:
            if name not in VARIABLES:
                raise ValueError(f"{name!r} is no variable")
        if self.final and self.group is None:
            raise InputError("it takes the last rows of each group, so name --group", key="--final")
        if self.final and "tokens" not in form.variables:
            raise InputError(
                f"it takes the last rows by tokens, which the law {form.name!r} does not read",
                key="--final",
            )
        repeats = form.name == "data_constrained"
        if self.fixed and not repeats:
            raise InputError(
                "it is for the plain law within data_constrained; drop it, or give --form "
                "data_constrained",
                key="--fix",
            )
        if self.fixed:
            try:
                check_plain(self.fixed)
            except InputError as error:
                raise InputError(f"{error}; repeat --fix NAME=VALUE", key="--fix") from None
        self._check_profile(form)
        self._check_compare()
        self.places(form)
        if self.flops is not None and set(form.variables) != {"parameters", "tokens"}:
            raise InputError(
                f"C = 6 N D settles the cost of laws of N and D alone, and {form.name!r} reads "
                f"{', '.join(form.variables)}; `suite predict STUDY` takes a study's own costs",
                key="--flops",
            )
        return form

    def _check_profile(self, form: Form) -> None:
        if self.profile and not self.bootstrap:
            raise InputError(
                "the resamples say how far a profile may rise; give --bootstrap too",
                key="--profile",
            )
        if self.profile and form.name == "data_constrained":
            raise InputError(
                "there are no profiles of data_constrained; its intervals are those of --bootstrap",
                key="--profile",
            )
        shapes = [symbol.name for term in form.terms for symbol in term.symbols[1:]]
        allowed = ([form.constant.name] if form.constant else []) + shapes
        for name in self.profile:
            if name not in allowed:
                raise InputError(
                    f"{name!r} has no profile in {form.name!r}; there are {', '.join(allowed)}",
                    key="--profile",
                )

    def _check_compare(self) -> None:
        names = [get_form(name).name for name in (self.form, *self.compare)]
        for position, name in enumerate(names if self.compare else ()):
            if name == "data_constrained":
                raise InputError("data_constrained cannot be compared yet", key="--compare")
            if name in names[:position]:
                raise InputError(f"the law {name} is given twice", key="--compare")
            if self.final and "tokens" not in get_form(name).variables:
                raise InputError(
                    f"--final takes rows by tokens, which the law {name!r} does not read",
                    key="--compare",
                )

    def places(self, form: Form) -> tuple[dict[str, float], ...]:
        """The points of ``predict``, by variable.

        Raises:
            InputError: a value for a variable of the law is missing, or belongs to none.
        """
        names = {VARIABLES[name].letter: name for name in form.variables}
        names |= {name: name for name in form.variables}
        names |= {self.column(name): name for name in form.variables}
        found = []
        for asked in self.predict:
            unknown = [name for name in asked if name not in names]
            place = {names[name]: value for name, value in asked.items() if name in names}
            missing = [self.column(name) for name in form.variables if name not in place]
            if unknown or missing or len(place) != len(asked):
                listed = ", ".join(asked)
                raise InputError(
                    f"the law {form.name!r} needs a value for each of "
                    f"{', '.join(map(self.column, form.variables))}, and no other; got {listed}",
                    key="--predict",
                )
            found.append(place)
        return tuple(found)

    def column(self, variable: str) -> str:
        """Column of a variable of the law: the one named, or that of the variable's name."""
        return self.columns.get(variable, variable)

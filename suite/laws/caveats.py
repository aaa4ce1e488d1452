"""What a reader should know of a prediction: how far from the fitted cells it was asked for."""

from __future__ import annotations

from suite.laws._terms import VARIABLES, Term
from suite.laws.kept import KeptLaw

_SLACK = 1e-9  # relative; numbers that differ by less are the same size
_NEAR = 1.05  # a factor beyond the fitted points that is not worth a word


def caveats(
    law: KeptLaw, *, parameters: float, tokens: float, recurrence: float
) -> tuple[str, ...]:
    """Where the law is asked beyond its points, and which answers hang on what they leave open.

    Args:
        law: the law; without ``points`` nothing can be said.
        parameters: N of the question.
        tokens: D of the question.
        recurrence: T_m of the question; for a law of the loop step, the step.

    Returns:
        Plain sentences, the gravest first; none where the fitted cells surround the question.
    """
    if not law.points:
        return ()
    found = []
    for term in law.law.terms:
        spent = [symbol.name for symbol in term.symbols if symbol.name in law.unidentified]
        if spent and not _was_fitted(law, term, parameters, recurrence):
            names = " and ".join(VARIABLES[name].letter for name in term.variables)
            found.append(
                f"the answer hangs on {', '.join(spent)}, which the points do not identify: trust "
                f"neither it nor its interval at other {names} than were fitted"
            )
    reads = law.law.variables
    sizes = [point["parameters"] for point in law.points]
    if not min(sizes) / _NEAR <= parameters <= max(sizes) * _NEAR:
        side = "above" if parameters > max(sizes) else "below"
        found.append(
            f"N {parameters:.3g} lies {side} the fitted sizes ({min(sizes):.3g} to "
            f"{max(sizes):.3g}): an extrapolation"
        )
    longest = max(point["tokens"] for point in law.points)
    if tokens > longest * _NEAR:
        found.append(
            f"D {tokens:.3g} lies beyond the fitted tokens (up to {longest:.3g}): an extrapolation"
        )
    levels = sorted({point["recurrence"] for point in law.points})
    for name in ("recurrence", "step"):
        if name in reads and recurrence not in levels:
            listed = ", ".join(f"{level:g}" for level in levels)
            letter = VARIABLES[name].letter
            found.append(f"no cell with {letter} {recurrence:g} was fitted, only with {listed}")
    return tuple(found)


def _was_fitted(law: KeptLaw, term: Term, parameters: float, recurrence: float) -> bool:
    """Whether a term was fitted at these very values of its variables."""
    if "tokens" in term.variables:
        return False
    by_size = any(name.startswith("parameters") for name in term.variables)
    by_recurrence = not {"recurrence", "step"}.isdisjoint(term.variables)
    return any(
        (not by_size or abs(point["parameters"] - parameters) <= _SLACK * parameters)
        and (not by_recurrence or point["recurrence"] == recurrence)
        for point in law.points
    )

"""Which panels a report can have, and how each is made from tracked data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.errors import InputError
from suite.reports.error_grid import ErrorGridDisplay
from suite.reports.loss_grid import LossGridDisplay
from suite.reports.pareto import ParetoDisplay
from suite.reports.parity import ParityDisplay
from suite.reports.points import Display, NoDataError
from suite.reports.records import Tracked
from suite.reports.residual_grid import ResidualGridDisplay

_DISPLAYS: dict[str, Callable[[Tracked], Display]] = {
    LossGridDisplay.name: LossGridDisplay.from_tracked,
    ErrorGridDisplay.name: ErrorGridDisplay.from_tracked,
    ParityDisplay.name: ParityDisplay.from_tracked,
    ResidualGridDisplay.name: ResidualGridDisplay.from_tracked,
    ParetoDisplay.name: ParetoDisplay.from_tracked,
}
PANELS = tuple(_DISPLAYS)


@dataclass(frozen=True, kw_only=True)
class SkippedPanel:
    """A panel without data that was not asked for by name.

    Attributes:
        panel: its name.
        reason: what it lacks.
    """

    panel: str
    reason: str


def make_displays(
    tracked: Tracked, panels: Sequence[str] | None
) -> tuple[tuple[Display, ...], tuple[SkippedPanel, ...]]:
    """Compute the panels of a report.

    Args:
        tracked: data of the study.
        panels: names in order; None takes all that have data.

    Returns:
        The displays, and the panels that were passed over.

    Raises:
        InputError: if a name is unknown or given twice, or (as ``NoDataError``) a named panel has
            no data.
    """
    displays: list[Display] = []
    skipped: list[SkippedPanel] = []
    for position, name in enumerate(PANELS if panels is None else panels):
        key = f"report.panels[{position}]"
        if name not in _DISPLAYS:
            raise InputError(f"got {name!r}; the panels are {', '.join(PANELS)}", key=key)
        if any(display.name == name for display in displays):
            raise InputError(f"{name!r} is given twice", key=key)
        try:
            displays.append(_DISPLAYS[name](tracked))
        except NoDataError as reason:
            if panels is not None:
                raise NoDataError(
                    f"the panel {name!r} cannot be drawn: {reason}; run its stage with "
                    f"`suite run {tracked.study}`, or leave it out",
                    key=key,
                ) from reason
            skipped.append(SkippedPanel(panel=name, reason=str(reason)))
    return tuple(displays), tuple(skipped)

"""What a check has found, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check has looked at.

    Attributes:
        severity: ``ok`` as it should be; ``note`` worth knowing; ``warning`` should be put
            right; ``error`` stands in the way of work, or values may be lost.
        what: one sentence.
        where: paths, runs or sizes, one a line.
        remedy: what mending would do where there is ``mend``, else what the person must do.
        mend: puts it right and says what it did, in one sentence; may raise ``SuiteError`` or
            ``OSError``. None where only a person can.
    """

    severity: Severity
    what: str
    where: tuple[str, ...] = ()
    remedy: str = ""
    mend: Callable[[], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finding after it was, or was not, mended.

    Attributes:
        finding: what was found.
        mended: what was done about it, if it is put right.
        failed: why it could not be mended, if that was tried.
    """

    finding: Finding
    mended: str | None = None
    failed: str | None = None

    @property
    def left(self) -> bool:
        """Whether there is something yet to do about it."""
        if self.mended is not None:
            return False
        return self.finding.mend is not None or self.finding.severity in ("warning", "error")


def ok(what: str) -> Finding:
    """Something that is as it should be."""
    return Finding(severity="ok", what=what)


def note(what: str, *where: str, remedy: str = "") -> Finding:
    """Something worth knowing that asks for nothing."""
    return Finding(severity="note", what=what, where=where, remedy=remedy)

"""The two ways in which a command can end badly, as exceptions with exit codes."""

from __future__ import annotations


class SuiteError(Exception):
    """Work that was rightly asked for failed; the message names the cure (exit code 1)."""

    exit_code = 1


class InputError(SuiteError, ValueError):
    """What the user gave is wrong: a key, a value, a file (exit code 2).

    Args:
        message: what is wrong, the value seen and what is allowed, in one sentence or two.
        key: dotted path of the study key at fault, such as ``calibration.niter[0]``.
    """

    exit_code = 2

    def __init__(self, message: str, *, key: str | None = None) -> None:
        self.key = key
        super().__init__(f"{key}: {message}" if key else message)

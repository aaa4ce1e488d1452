"""Text for a person's terminal: it cannot command the terminal, and the terminal may be gone."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from typing import TextIO

_KEPT = "\n\t\u200c\u200d"  # the joiners spell words of several scripts, and emoji
_COMMANDS = ("Cc", "Cf", "Cs", "Zl", "Zp")
_GONE = (errno.EIO, errno.EPIPE)  # a terminal that hung up, a pipe that nobody reads


def shown(text: str) -> str:
    r"""Text with the characters that a terminal obeys written out, such as ``\x1b``.

    Those are control characters, what reorders text or joins lines unseen, and halves of
    surrogate pairs. Line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _COMMANDS
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def say(text: str, stream: TextIO | None = None) -> None:
    """Write one line, as ``shown``; to a terminal that is gone, nothing.

    Args:
        text: the line.
        stream: default standard error.

    Raises:
        OSError: if it cannot be written for another reason.
    """
    stream = stream or sys.stderr
    line = shown(text)
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _let_go(stream)


class LastingStream:
    """A text stream whose loss costs what is written to it, and not the work that writes.

    Progress is worth less than what it tells of: once the terminal was closed, or the pipe has
    no reader, what follows goes nowhere.

    Args:
        stream: standard error, or what stands for it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """Of the stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream was a terminal and still is."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if error.errno in _GONE:
            _let_go(self._stream)


def _let_go(stream: TextIO) -> None:
    """Send what the stream still holds, and all that follows, nowhere.

    The stream itself would fail again when the interpreter flushes it at the end.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)

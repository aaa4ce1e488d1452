"""One run's texts, read as what they mean: whole numbers, lists, tags by prefix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_ValueT = TypeVar("_ValueT")


class UnreadableError(ValueError):
    """A run lacks a setting, or holds one that cannot be read."""


class RunText:
    """The texts of one run; each reader raises ``UnreadableError`` for what it cannot read.

    Args:
        row: the run's row in the frame of runs.
        params: its parameters.
        tags: its tags.
    """

    def __init__(
        self, row: Mapping[str, Any], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        self.row = row
        self.params = params
        self.tags = tags

    def text(self, key: str) -> str:
        """A parameter."""
        try:
            return self.params[key]
        except KeyError:
            raise UnreadableError(f"it has no parameter {key}") from None

    def integer(self, key: str) -> int:
        """A parameter that is a whole number."""
        return read_text(key, self.text(key), int)

    def number(self, key: str) -> float:
        """A parameter that is a number."""
        return read_text(key, self.text(key), float)

    def names(self, key: str) -> tuple[str, ...]:
        """A parameter that is a JSON list of names."""
        return tuple(str(item) for item in self._list(key, self.text(key)))

    def integers(self, key: str) -> tuple[int, ...]:
        """A parameter that is a JSON list of whole numbers."""
        return tuple(read_text(key, str(item), int) for item in self._list(key, self.text(key)))

    def sentences(self, tag: str) -> tuple[str, ...]:
        """A tag that is a JSON list of sentences; empty where it is not set."""
        return tuple(str(item) for item in self._list(tag, self.tags.get(tag, "[]")))

    def sentences_by_name(self, tag: str) -> dict[str, tuple[str, ...]]:
        """A tag that is a JSON object of sentences, each with names; sentences by name."""
        text = self.tags.get(tag, "{}")
        value = read_text(tag, text, json.loads)
        if not isinstance(value, dict) or not all(isinstance(n, list) for n in value.values()):
            raise UnreadableError(f"its {tag} is {text!r}, not a JSON object of lists")
        found: dict[str, tuple[str, ...]] = {}
        for sentence, names in value.items():
            for name in map(str, names):
                found[name] = (*found.get(name, ()), sentence)
        return found

    def tagged(self, prefix: str) -> dict[str, str]:
        """Tags that begin with ``prefix``, without it."""
        return {
            key.removeprefix(prefix): value
            for key, value in sorted(self.tags.items())
            if key.startswith(prefix)
        }

    @staticmethod
    def _list(key: str, text: str) -> list[object]:
        value = read_text(key, text, json.loads)
        if not isinstance(value, list):
            raise UnreadableError(f"its {key} is {text!r}, not a JSON list")
        return value

    @property
    def run(self) -> dict[str, Any]:
        """The fields of ``TrackedRun``."""
        return {
            "run_id": self.row["run_id"],
            "name": self.row["name"] or self.row["run_id"],
            "status": self.row["status"],
            "failure": self.tags.get("suite.failure"),
            "attempts": read_text("suite.attempts", self.tags.get("suite.attempts", "1"), int),
            "start_time": self.row["start_time"] or 0,
        }

    @property
    def cell(self) -> str:
        """The fingerprint."""
        cell: str | None = self.row["cell"]
        if cell is None:
            raise UnreadableError("it has no tag suite.cell")
        return cell


def read_text(key: str, text: str, kind: Callable[[str], _ValueT]) -> _ValueT:
    """Read the text of ``key`` as ``kind``.

    Raises:
        UnreadableError: if it is none.
    """
    try:
        return kind(text)
    except ValueError:
        raise UnreadableError(f"its {key} is {text!r}, which cannot be read") from None

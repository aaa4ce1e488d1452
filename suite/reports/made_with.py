"""Warnings about the code behind plotted runs: uncommitted changes, and versions that differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite.tracking.curves import attempts_from_tags
from suite.tracking.provenance import COMPUTING, PROVENANCE_TAG

_VERSIONS = {
    "suite.version": "suite",
    "suite.python": "Python",
    **{f"suite.package.{name}": name for name in COMPUTING},
}
_CODE = ("suite.git.commit", "suite.git.dirty", "suite.source")
_MOST_NAMED = 3  # runs of one group
_MOST_GROUPS = 4
Code = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class MadeWith:
    """The code behind one run.

    Attributes:
        run_id: the run.
        name: its name.
        attempts: tags of provenance, of each attempt whose points may count, in order; empty
            where nothing is on record.
    """

    run_id: str
    name: str
    attempts: tuple[Code, ...]

    def __str__(self) -> str:
        """Name it for a person."""
        return f"{self.name} ({self.run_id})"

    def values(self, key: str) -> tuple[str | None, ...]:
        """What a tag was in the attempts, without repetitions."""
        found = [attempt.get(key) for attempt in self.attempts]
        return tuple(value for at, value in enumerate(found) if at == 0 or value != found[at - 1])


class UnreadableCodeError(ValueError):
    """A tag of provenance that was edited into something else."""


def made_with(run_id: str, name: str, tags: Mapping[str, str]) -> MadeWith:
    """The code behind a run, from its tags.

    Attempts that came before one that started afresh have left no point, and are left out.

    Raises:
        UnreadableCodeError: if a tag cannot be read.
    """
    fresh = max((a.number for a in attempts_from_tags(tags) if a.resumed_from < 0), default=0)
    by_attempt = {
        number: code
        for key, value in tags.items()
        if key.startswith(PROVENANCE_TAG)
        for number, code in [_read(key, value)]
        if number >= fresh
    }
    attempts = [code for _, code in sorted(by_attempt.items())]
    if not attempts:
        whole = {key: tags[key] for key in (*_VERSIONS, *_CODE) if key in tags}
        attempts = [whole] if whole else []
    return MadeWith(run_id=run_id, name=name, attempts=tuple(attempts))


def _read(key: str, value: str) -> tuple[int, Code]:
    try:
        number = int(key.removeprefix(PROVENANCE_TAG))
        code = json.loads(value)
    except ValueError:
        code = None
    if not isinstance(code, dict) or not all(isinstance(text, str) for text in code.values()):
        raise UnreadableCodeError(
            f"its tag {key} is {value[:200]!r}, which is no record of code; it was edited"
        )
    return number, code


def warnings_about(runs: Sequence[MadeWith]) -> Iterator[str]:
    """What a reader of figures that show these runs should know of their code."""
    total = len(runs)
    for state, words in (
        ("true", "made from a source tree with changes that no commit holds"),
        ("unknown", "made from a source tree whose changes could not be read"),
    ):
        found = [run for run in runs if state in run.values("suite.git.dirty")]
        if found:
            yield f"{words}: {len(found)} of {total} runs: {_named(found)}"
    known = [run for run in runs if run.attempts]
    code = _groups(known, lambda run: _chain(map(_code_label, run.attempts)))
    if len(code) > 1 or any("→" in label for label in code):
        yield f"made from different code: {_listed(code)}"
    differing = [key for key in _VERSIONS if len(_distinct(known, key)) > 1]
    versions = _groups(
        known,
        lambda run: ", ".join(
            f"{_VERSIONS[key]} {_chain(value or 'unknown' for value in run.values(key))}"
            for key in differing
        ),
    )
    if differing:
        yield f"made with different versions: {_listed(versions)}"
    if len(known) < total:
        unknown = [run for run in runs if not run.attempts]
        yield f"made with nothing on record: {len(unknown)} of {total} runs: {_named(unknown)}"


def _distinct(runs: Iterable[MadeWith], key: str) -> set[str]:
    return {value for run in runs for value in run.values(key) if value is not None}


def _code_label(code: Code) -> str:
    """Commit, and what else tells two states of the source apart."""
    commit, source = code.get("suite.git.commit"), code.get("suite.source", "unknown")[:8]
    if commit is None:
        return f"no commit, source {source}"
    if code.get("suite.git.dirty") == "false":
        return f"commit {commit[:12]}"
    return f"commit {commit[:12]} with changes, source {source}"


def _chain(values: Iterable[str]) -> str:
    """What the attempts of a run had, in order; one entry where all had the same."""
    found = list(values)
    return " → ".join(text for at, text in enumerate(found) if at == 0 or text != found[at - 1])


def _groups(
    runs: Iterable[MadeWith], label: Callable[[MadeWith], str]
) -> dict[str, list[MadeWith]]:
    """Runs by label, the label of most runs first."""
    labels = [(label(run), run) for run in runs]
    count = Counter(text for text, _ in labels)
    grouped: dict[str, list[MadeWith]] = {
        text: [] for text in sorted(count, key=lambda text: (-count[text], text))
    }
    for text, run in labels:
        grouped[text].append(run)
    return grouped


def _listed(groups: Mapping[str, Sequence[MadeWith]]) -> str:
    """Groups with their counts; whoever is not in the largest is named."""
    parts = []
    for place, (label, runs) in enumerate(list(groups.items())[:_MOST_GROUPS]):
        count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
        named = place > 0 or len(groups) == 1 or len(runs) <= _MOST_NAMED
        parts.append(f"{label} ({count}: {_named(runs)})" if named else f"{label} ({count})")
    further = list(groups.values())[_MOST_GROUPS:]
    if further:
        parts.append(f"{len(further)} more kinds ({sum(map(len, further))} runs)")
    return "; ".join(parts)


def _named(runs: Sequence[MadeWith]) -> str:
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return ", ".join(map(str, runs[:_MOST_NAMED])) + more

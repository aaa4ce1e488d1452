"""Which schema the installed MLflow wants, without loading it.

MLflow keeps its schema with alembic: one file a step, which names itself and the step before.
Loading those files the usual way takes all of MLflow, seconds of it, for two names in each.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from suite.errors import SuiteError

_NAMES = ("revision", "down_revision")


@functools.cache
def revision_order() -> tuple[str, ...]:
    """Revisions of the installed MLflow, oldest first.

    Raises:
        SuiteError: if its files do not form one line.
    """
    after = {}
    for file in sorted(_folder().glob("*.py")):
        named = _named(file.read_text(encoding="utf-8"))
        if "revision" in named:
            after[named.get("down_revision")] = str(named["revision"])
    order: list[str] = []
    step = after.pop(None, None)
    while step is not None:
        order.append(step)
        step = after.pop(step, None)
    if not order or after:
        raise SuiteError(f"the schema steps of MLflow in {_folder()} do not form one line")
    return tuple(order)


def head_revision() -> str:
    """The revision that the installed MLflow works with."""
    return revision_order()[-1]


def _folder() -> Path:
    found = importlib.util.find_spec("mlflow")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "store" / "db_migrations" / "versions"


def _named(source: str) -> dict[str, object]:
    """Constants that a revision's file sets at its top level."""
    found: dict[str, object] = {}
    for line in ast.parse(source).body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        if isinstance(line, ast.AnnAssign):
            targets = [line.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id in _NAMES:
                assert isinstance(line, (ast.Assign, ast.AnnAssign))
                assert isinstance(line.value, ast.Constant)
                found[target.id] = line.value.value
    return found

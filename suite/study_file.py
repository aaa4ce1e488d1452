"""A study file in, a checked ``Study`` out.

YAML is read safely (``suite.study_yaml``), overrides from the command line are laid over it,
types are checked by pydantic in strict mode, and what types cannot say (names that must exist,
budgets that must increase) is checked by ``suite.study_rules``. The first error found is raised
as an ``InputError`` that names the key path, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from suite.errors import InputError
from suite.study import SizeSpec, Study
from suite.study_rules import check_study
from suite.study_yaml import join_key, read_yaml

_STUDY = TypeAdapter(Study)
_SHIPPED = resources.files("suite") / "studies"
_OVERRIDE_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[0-9]+\])*")
_LONGEST_VALUE = 200  # characters of a wrong value that a message shows
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")

# pydantic's kinds of error in the words of a study file
_ALLOWED = {
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text",
    "string_too_short": "text of {min_length} or more characters",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number, in digits such as 10_000",
    "float_type": "a number",
    "literal_error": "{expected}",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:.10g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list of {min_length} or more items",
    "too_long": "a list of {max_length} or fewer items",
}


def shipped_studies() -> dict[str, Path]:
    """Names and paths of the studies that come with the package, sorted by name."""
    folder = Path(str(_SHIPPED))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def locate_study(study: str) -> Path:
    """Path of a study given as a shipped name or as a path.

    Raises:
        InputError: if it is neither.
    """
    shipped = shipped_studies()
    if study in shipped:
        return shipped[study]
    path = Path(study)
    if path.is_file():
        return path
    near = difflib.get_close_matches(study, shipped, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"no study {study!r}: {hint}it must be a YAML file or one of the shipped studies: "
        + ", ".join(shipped)
    )


def load_study(study: str, overrides: Sequence[str] = ()) -> tuple[Study, Path]:
    """Read and check a study.

    Args:
        study: shipped name, or path of a YAML file.
        overrides: ``key.path=value`` settings laid over the file; values are YAML.

    Returns:
        The study, and the folder that its relative paths start from.

    Raises:
        InputError: for anything that is wrong with it.
    """
    path = locate_study(study)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the study file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"the study file {path} is not UTF-8 text: byte {error.start} is "
            f"0x{error.object[error.start]:02x}; save it as UTF-8"
        ) from error
    return parse_study(text, overrides=overrides, source=str(path)), path.resolve().parent


def parse_study(text: str, *, overrides: Sequence[str] = (), source: str = "study") -> Study:
    """Check YAML text; see ``load_study``."""
    data = read_yaml(text, source=source)
    if not isinstance(data, dict):
        raise InputError(f"{source} must hold a mapping with the keys name, corpora, ...")
    for override in overrides:
        _lay_over(data, override)
    _name_presets(data)
    try:
        study = _STUDY.validate_json(json.dumps(data), strict=True, extra="forbid")
    except ValidationError as error:
        raise _as_input_error(error) from error
    check_study(study)
    return study


def _lay_over(data: dict[str, Any], override: str) -> None:
    """Set one ``a.b[0].c=value``; list positions must exist, mappings are made."""
    path, equals, value = override.partition("=")
    spoiled = re.search("[\ud800-\udfff]", path)
    if not equals or spoiled or not _OVERRIDE_PATH.fullmatch(path):
        raise InputError(
            "--set takes KEY=VALUE, such as pretraining.tokens=200000 or calibration.niter[0]=2; "
            f"got {override!r}"
        )
    *steps, last = re.findall(r"[^.\[\]]+", path)
    here: Any = data
    for step in steps:
        step = _existing_step(here, step, path)
        if isinstance(here, dict) and here.get(step) is None:
            here[step] = {}
        here = here[step]
    here[_existing_step(here, last, path)] = read_yaml(
        value, source=f"the value of --set {path}", key=path
    )


def _existing_step(here: Any, step: str, path: str) -> str | int:
    """A step into ``here``: a key of a mapping, or a position that a list has."""
    if isinstance(here, dict):
        return step
    if not isinstance(here, list):
        raise InputError(f"{here!r} has no part {step!r}", key=path)
    if re.fullmatch("[0-9]+", step) and int(step) < len(here):
        return int(step)
    has = f"positions 0 to {len(here) - 1}" if here else "no positions, it is empty"
    raise InputError(f"got the position {step!r}; the list has {has}", key=path)


def _name_presets(data: dict[str, Any]) -> None:
    """Replace preset names in ``pretraining.sizes`` by their shapes."""
    from lightning_modules.looplm.sizes import PRESETS

    pretraining = data.get("pretraining")
    sizes = pretraining.get("sizes") if isinstance(pretraining, dict) else None
    if not isinstance(sizes, list):
        return
    for position, size in enumerate(sizes):
        if isinstance(size, str):
            if size not in PRESETS:
                raise InputError(
                    f"no size {size!r}; the presets are {', '.join(PRESETS)}, or give a shape "
                    "{name, num_hidden_layers, hidden_size}",
                    key=f"pretraining.sizes[{position}]",
                )
            preset = PRESETS[size]
            sizes[position] = {
                f.name: getattr(preset, f.name)
                for f in dataclasses.fields(SizeSpec)
                if getattr(preset, f.name) is not None
            }


def _as_input_error(error: ValidationError) -> InputError:
    """The first error of pydantic, in the words of the study file.

    An unknown key comes before all others: a mistyped key is often also a missing one.
    """
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "unexpected_keyword_argument"]
    if unknown:
        *above, last = unknown[0]["loc"]
        known = _known_keys(above)
        near = difflib.get_close_matches(str(last), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return InputError(
            f"unknown key {last!r}{hint} Known keys here: {', '.join(known)}.",
            key=_key_path(unknown[0]["loc"]),
        )
    first = problems[0]
    *above, last = first["loc"]
    if first["type"] in _MISSING and isinstance(last, str):
        return InputError("this key is missing; it is required", key=_key_path(first["loc"]))
    got = json.dumps(first["input"], ensure_ascii=False)
    if len(got) > _LONGEST_VALUE:
        got = f"{got[:_LONGEST_VALUE]}..."
    if first["type"] in _MISSING:
        return InputError(
            f"got {got}; the list needs an item at position {last}", key=_key_path(above)
        )
    path = _value_path(first["loc"])
    allowed = [_allowed(p) for p in problems if _value_path(p["loc"]) == path]
    return InputError(f"got {got}; it must be {' or '.join(dict.fromkeys(allowed))}", key=path)


def _allowed(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "dataclass_type":
        return f"a mapping with keys of {', '.join(_known_keys(problem['loc']))}"
    return _ALLOWED[problem["type"]].format(**problem.get("ctx", {}))


def _key_path(location: Sequence[int | str]) -> str:
    path = ""
    for step in location:
        path = join_key(path, step)
    return path


def _value_path(location: Sequence[int | str]) -> str:
    """Key path of a value; the last step of a location may name an alternative of its type."""
    *above, last = location
    if isinstance(last, str) and last.startswith(("constrained-", "literal[")):
        return _key_path(above)
    return _key_path(location)


def _known_keys(location: Sequence[int | str]) -> list[str]:
    """Keys of the record at a place of the study."""
    here: Any = Study
    for step in location:
        if dataclasses.is_dataclass(here):
            here = typing.get_type_hints(here)[str(step)]
            if type(None) in typing.get_args(here):
                here = _held(here)
        else:
            here = _held(here)
    return [field.name for field in dataclasses.fields(here)]


def _held(annotation: Any) -> Any:
    """The T of ``T | None``, ``tuple[T, ...]`` and ``dict[str, T]``."""
    parts = reversed(typing.get_args(annotation))
    return next(part for part in parts if part not in (type(None), ...))

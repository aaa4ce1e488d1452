"""YAML text in, plain data out: text keys, finite numbers, each key once, nothing shared."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from suite.errors import InputError

_TAG = "tag:yaml.org,2002:"
_NOT_TEXT = re.compile("[\ud800-\udfff]")
_MOST_VALUES = 100_000
_LARGEST = 2**63  # token counts and seeds are 64-bit integers further on


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``3e-4`` is a number and a date is text."""


_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str, *, source: str, key: str = "") -> Any:
    """Read one YAML document.

    Args:
        text: the document.
        source: what messages call it.
        key: key path in the study that the document is the value of.

    Returns:
        Dictionaries, lists, text, whole numbers, finite floats, booleans and None. Aliases are
        copied, so that changing one place changes no other.

    Raises:
        InputError: if it is not valid YAML, or holds anything else.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _expanded(node, {}) > _MOST_VALUES:
                raise InputError(
                    f"{source} holds more than {_MOST_VALUES:,} values, counted as often as "
                    "aliases repeat them"
                )
            _check_keys(node, key, set())
            data = _construct(loader, node, source)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"{source} is not valid YAML{where}: {problem}") from error
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply") from error
    return _plain(data, key, frozenset())


def join_key(path: str, step: str | int) -> str:
    """Key path one step further: ``calibration.niter`` and 0 make ``calibration.niter[0]``.

    A key that holds a line break or another control character is shown escaped.
    """
    if isinstance(step, int):
        return f"{path}[{step}]"
    shown = step if step.isprintable() else json.dumps(step)
    return f"{path}.{shown}" if path else shown


def _construct(loader: _Loader, node: yaml.Node, source: str) -> Any:
    try:
        return loader.construct_document(node)
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML lets whatever its parsers of numbers and dates raise come through
        raise InputError(f"{source} holds a value that its tag does not allow: {error}") from error


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Number of values when aliases are written out; a few lines of them can stand for billions."""
    if id(node) not in known:
        known[id(node)] = 0  # inside itself it adds nothing; that is refused later
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


def _check_keys(node: yaml.Node, path: str, seen: set[int]) -> None:
    """Refuse keys that are not text, merge keys, and keys given twice."""
    if id(node) in seen:  # reached before through an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for position, child in enumerate(node.value):
            _check_keys(child, join_key(path, position), seen)
    elif isinstance(node, yaml.MappingNode):
        given: set[str] = set()
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"line {line} has a list or mapping for a key; keys are text")
            if key.tag == f"{_TAG}merge":
                # not part of YAML 1.2, and PyYAML 6.0.4 mixes up merges of merges
                raise InputError(
                    f"line {line} has a merge key (<<); write its keys out", key=path or None
                )
            if key.value in given:
                raise InputError(
                    f"line {line} gives the key {key.value!r} a second time; keep one",
                    key=join_key(path, key.value),
                )
            given.add(key.value)
            _check_keys(child, join_key(path, key.value), seen)


def _plain(value: Any, path: str, above: frozenset[int]) -> Any:
    if isinstance(value, (dict, list)):
        if id(value) in above:
            raise InputError("this value contains itself; write it out", key=path or None)
        above |= {id(value)}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InputError(
                    f"got the key {key!r}; keys are text, so write it in quotes", key=path or None
                )
            if _NOT_TEXT.search(key):
                raise InputError(
                    f"got the key {key!r}; it must be text that UTF-8 can hold",
                    key=path or None,
                )
        return {key: _plain(part, join_key(path, key), above) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, join_key(path, n), above) for n, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"got {value}; it must be a finite number", key=path)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InputError(
            f"got a number of {value.bit_length()} bits; it must be below 2^63", key=path
        )
    if isinstance(value, str) and _NOT_TEXT.search(value):
        raise InputError(f"got {value!r}; it must be text that UTF-8 can hold", key=path)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise InputError(
        f"got a {type(value).__name__}; it must be text, a number, true, false, null, a list or a "
        "mapping",
        key=path,
    )

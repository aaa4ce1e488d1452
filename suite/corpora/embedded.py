"""Text that needs no network: the reference prose of the running Python, and worked maths."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from suite.corpora.worked_math import worked_math

# Parts of two hard dependencies whose docstrings are mostly prose. Left out are the parts that
# repeat one text with other names (numpy.polynomial, the distributions of scipy.stats), because
# such twins on both sides of the split would make held-out loss look better than it is.
_DOCUMENTED = (
    "numpy/_core",
    "numpy/fft",
    "numpy/lib",
    "numpy/linalg",
    "numpy/ma",
    "scipy/cluster",
    "scipy/interpolate",
    "scipy/linalg",
    "scipy/ndimage",
    "scipy/signal",
    "scipy/spatial",
)
_SHORTEST_DOCSTRING = 200
_WORKED_MATH_SEED = 0
_WORKED_MATH_DOCUMENTS = 4_000


@cache
def pydocs() -> tuple[str, ...]:
    """Language reference topics of the running Python and docstrings of numpy and scipy.

    One topic of ``pydoc_data`` is one document, one docstring of at least 200 characters is one
    document; repeated ones are kept once. Docstrings are parsed from the source files, so
    nothing is imported. Another version of Python, numpy or scipy has other text, and with it
    another digest.

    Returns:
        Topics by name, then docstrings by file and place in it.
    """
    from pydoc_data.topics import topics

    documents = dict.fromkeys(topics[name].strip() + "\n" for name in sorted(topics))
    for part in _DOCUMENTED:
        package, _, folder = part.partition("/")
        found = find_spec(package)
        assert found is not None, f"{package} is a dependency of this package"
        assert found.origin is not None, f"{package} has source files"
        documents.update(dict.fromkeys(_docstrings(Path(found.origin).parent / folder)))
    return tuple(documents)


@cache
def _worked_math() -> tuple[str, ...]:
    return worked_math(seed=_WORKED_MATH_SEED, num_documents=_WORKED_MATH_DOCUMENTS)


EMBEDDED: dict[str, Callable[[], tuple[str, ...]]] = {
    "pydocs": pydocs,
    "worked_math": _worked_math,
}
"""Embedded corpora by name, each a function that gives its documents."""


def embedded_documents(name: str) -> tuple[str, ...]:
    """All documents of an embedded corpus; made once a process.

    Args:
        name: a key of ``EMBEDDED``.
    """
    return EMBEDDED[name]()


def _docstrings(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py"), key=Path.as_posix):
        source = path.read_bytes()
        if "tests" in path.parts or b'"""' not in source:
            continue
        with warnings.catch_warnings():
            # Escapes such as "\d" in the docstrings of others are no concern of our users.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        yield from _docstrings_below(tree)


def _docstrings_below(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[str]:
    docstring = ast.get_docstring(node)
    if docstring and len(docstring) >= _SHORTEST_DOCSTRING:
        yield docstring + "\n"
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_below(child)

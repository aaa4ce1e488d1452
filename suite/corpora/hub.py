"""Documents streamed from a Hugging Face dataset, or from a local folder of its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suite.corpora.places import find_folder
from suite.corpora.rows import Row, row_texts
from suite.errors import InputError
from suite.study import CorpusSpec

# Rows among which a streaming shuffle chooses the next one. The order depends on it, so it is
# written here and not left to the default of the library.
_SHUFFLE_BUFFER = 10_000


def hub_documents(spec: CorpusSpec, *, key: str, base: Path) -> Iterator[str]:
    """Texts of a dataset in streaming order; nothing is read beyond what is asked for.

    Args:
        spec: dataset, configuration, split, revision, shuffle seed, text column and filters.
            ``path`` names a folder, relative to ``base``, if there is one, and a hub id if not.
        key: key path of the corpus in the study file.
        base: folder that a relative path starts from.

    Raises:
        InputError: if the dataset cannot be found, reached or read, saying what was tried.
    """
    return row_texts(_rows(spec, key=key, base=base), spec, key=key)


def _rows(spec: CorpusSpec, *, key: str, base: Path) -> Iterator[tuple[str, Row]]:
    import datasets  # type: ignore[import-untyped]

    assert spec.path is not None
    path = spec.path
    if (folder := find_folder(path, base=base)) is not None:
        path = str(folder.resolve())
    elif path.startswith((".", "/", "~")):
        raise InputError(f"{spec.path!r} is not a folder, seen from {base}", key=f"{key}.path")
    asked = f"{path} (name {spec.name}, split {spec.split}, revision {spec.revision})"
    try:
        dataset = datasets.load_dataset(
            path, spec.name, split=spec.split, streaming=True, revision=spec.revision
        )
        if spec.shuffle_seed is not None:
            dataset = dataset.shuffle(seed=spec.shuffle_seed, buffer_size=_SHUFFLE_BUFFER)
        for number, row in enumerate(dataset, start=1):
            yield f"{path} row {number}", row
    except Exception as error:
        # Readers, hub client and network stack each have exceptions of their own, and all of
        # them mean the same here: this dataset cannot be had.
        raise InputError(
            f"cannot stream {asked}: {type(error).__name__}: {error}; check the id, the name and "
            "the network, or give a local folder of parquet files",
            key=f"{key}.path",
        ) from error

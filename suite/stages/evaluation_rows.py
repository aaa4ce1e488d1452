"""Rows of evaluation corpora on their way into the cache, for studies that ask for intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from suite.atomic import replace_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_modules.kv.layout import Kind
    from lightning_modules.kv.stored_rows import RowsWriter
    from suite.corpora import Cut
    from suite.corpora.tokens import CalibrationPiece


def document_rows(
    pieces: Sequence[CalibrationPiece], how: Cut, *, tokens: int
) -> NDArray[np.int64]:
    """Kept tokens of each document among the first ``tokens``.

    A document goes on in the next piece only where a piece has the full length. One that ends
    with a full piece is taken together with the next: groups are still of whole documents.

    Args:
        pieces: of documents, one after another.
        how: how they were cut.
        tokens: of the evaluation.
    """
    counts: list[int] = []
    goes_on = False
    left = tokens
    for piece in pieces:
        kept = min(how.kept(piece), left)
        left -= kept
        if goes_on and counts:
            counts[-1] += kept
        else:
            counts.append(kept)
        goes_on = len(piece) == how.sequence_length
    return np.array([count for count in counts if count], dtype=np.int64)


class RowsKeeper:
    """Keeps the rows of evaluation corpora in files beside those of their moments.

    A file appears once a corpus is finished. Used as a context, which removes what is not.

    Args:
        places: file of moments of each corpus.
        documents: rows of each document, by corpus.
    """

    def __init__(
        self, places: Mapping[str, Path], documents: Mapping[str, NDArray[np.int64]]
    ) -> None:
        self._places = places
        self._documents = documents
        self._open: dict[tuple[str, Kind], tuple[RowsWriter, BinaryIO, Path]] = {}
        self._exit = ExitStack()

    def __enter__(self) -> RowsKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def __call__(self, corpus: str, keys: Tensor, values: Tensor) -> None:
        """Take the next rows of a corpus."""
        both: tuple[tuple[Kind, Tensor], ...] = (("key", keys), ("value", values))
        for kind, rows in both:
            if rows.shape[1] and len(rows):
                self._writer(corpus, kind).append(rows)

    def _writer(self, corpus: str, kind: Kind) -> RowsWriter:
        from lightning_modules.kv.stored_rows import RowsWriter

        if (corpus, kind) not in self._open:
            folder = self._places[corpus].parent
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f".{kind}-rows.{uuid4().hex}.part"
            file = part.open("xb")
            self._exit.callback(part.unlink, missing_ok=True)
            self._exit.callback(file.close)
            documents = self._documents[corpus]
            writer = RowsWriter(file, count=int(documents.sum()), documents=documents)
            self._open[corpus, kind] = (writer, file, part)
        return self._open[corpus, kind][0]

    def finish(self, corpus: str) -> None:
        """See that all rows of a corpus are in its files, and put these in their places."""
        from lightning_modules.kv.stored_rows import rows_path

        for (name, kind), (writer, file, part) in self._open.items():
            if name == corpus:
                writer.close()
                file.close()
                replace_atomically(rows_path(self._places[corpus], kind), part.rename)

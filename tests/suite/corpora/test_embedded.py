"""The text that comes with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from suite.corpora import Corpus, load_corpus
from suite.errors import InputError
from suite.study import CorpusSpec


def embedded(name: str, **fields: object) -> Corpus:
    return load_corpus(name, CorpusSpec(source="embedded", **fields), base=Path())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pydocs", "worked_math"])
def test_embedded_corpora_are_large_and_distinct(name: str) -> None:
    corpus = embedded(name)
    assert corpus.num_characters >= 1_200_000
    assert len(set(corpus.documents)) == corpus.num_documents
    held_out = sum(map(len, corpus.held_out)) / corpus.num_characters
    assert 0.06 < held_out < 0.14


def test_pydocs_holds_every_topic_and_docstrings_as_help_shows_them() -> None:
    import inspect

    import numpy as np

    documents = set(embedded("pydocs").documents)
    assert all(text.strip() + "\n" in documents for text in topics.values())
    for documented in (np.polyfit, np.histogram):
        docstring = inspect.getdoc(inspect.unwrap(documented))
        assert docstring is not None
        assert docstring.strip() + "\n" in documents


def test_worked_math_is_the_same_text_on_every_machine() -> None:
    corpus = embedded("worked_math")
    assert corpus.num_documents == 4_000
    assert corpus.digest == "0a75d2c949879c50"


def test_digests_agree_between_processes() -> None:
    script = (
        "from pathlib import Path; from suite.corpora import load_corpus; "
        "from suite.study import CorpusSpec; "
        "print(load_corpus('pydocs', CorpusSpec(source='embedded'), base=Path()).digest)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == embedded("pydocs").digest


def test_path_names_the_text_and_the_corpus_keeps_its_own_name() -> None:
    corpus = embedded("reference", path="pydocs", max_documents=20)
    assert corpus.documents == embedded("pydocs").documents[:20]


def test_unknown_embedded_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'pydoc'.*pydocs, worked_math") as caught:
        embedded("pydoc")
    assert caught.value.key == "corpora.pydoc.path"

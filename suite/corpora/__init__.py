"""Text in: from embedded sources, files or the Hugging Face hub to tokens.

In: a ``CorpusSpec`` of a study and the name of a tokenizer. Out: documents split into training
and held-out ones by their own text, digests of everything that decides them, and token streams
(pretraining) or pieces of documents (calibration). Importing this package loads no tokenizer
library, no torch and no data-frame library.
"""

from __future__ import annotations

from suite.corpora.documents import Corpus, load_corpus
from suite.corpora.embedded import EMBEDDED
from suite.corpora.mixture import Mixture
from suite.corpora.parts import Part, Split
from suite.corpora.selection import Cut, ExhaustedError, cut_for, select_documents
from suite.corpora.tokenizers import Tokenizer, load_tokenizer
from suite.corpora.tokens import TokenStream, join_documents, token_stream

__all__ = [
    "EMBEDDED",
    "Corpus",
    "Cut",
    "ExhaustedError",
    "Mixture",
    "Part",
    "Split",
    "TokenStream",
    "Tokenizer",
    "cut_for",
    "join_documents",
    "load_corpus",
    "load_tokenizer",
    "select_documents",
    "token_stream",
]

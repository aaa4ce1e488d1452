"""What a study's cells are made from, each loaded once: corpora, tokenizers, token streams."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from suite.errors import InputError
from suite.study import CalibrationSpec, CorpusSpec, Study
from suite.tracking.home import Home
from suite.tracking.store import DatasetRecord

if TYPE_CHECKING:
    from suite.corpora import Corpus, Cut, Mixture, Split, Tokenizer, TokenStream
    from suite.corpora.tokens import CalibrationPiece


class Materials:
    """Corpora and tokenizers of one study.

    Args:
        study: the study.
        base: folder that its relative paths start from.
        home: where tokenizers and streams are cached.
    """

    def __init__(self, study: Study, base: Path, home: Home) -> None:
        self.study = study
        self.base = base
        self.home = home
        self._corpora: dict[str, Corpus] = {}
        self._tokenizer: Tokenizer | None = None

    def corpus(self, name: str) -> Corpus | Mixture:
        """A corpus or a mixture of the study, by name."""
        from suite.corpora import Mixture

        spec = self.study.corpora[name]
        if spec.source != "mixture":
            return self._plain(name)
        shares = tuple((self._plain(part), weight) for part, weight in spec.of.items())
        return Mixture(name=name, shares=shares)

    def _plain(self, name: str) -> Corpus:
        from suite.corpora import load_corpus

        if name not in self._corpora:
            self._corpora[name] = load_corpus(name, self.study.corpora[name], base=self.base)
        return self._corpora[name]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the study's pretraining stage."""
        from suite.corpora import load_tokenizer

        pretraining = self.study.pretraining
        assert pretraining is not None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(
                pretraining.tokenizer,
                corpus=self._plain(pretraining.corpus),
                cache=self.home.cache,
                key="pretraining.tokenizer",
                base=self.base,
            )
        return self._tokenizer

    def stream(self, split: Split) -> TokenStream:
        """Tokens of one side of the pretraining corpus."""
        from suite.corpora import token_stream

        assert self.study.pretraining is not None
        return token_stream(
            self._plain(self.study.pretraining.corpus),
            split,
            self.tokenizer(),
            cache=self.home.cache,
        )

    def pieces(
        self,
        corpus: str,
        split: Split,
        tokenizer: Tokenizer,
        tokens: int,
        spec: CalibrationSpec,
        *,
        key: str | None = None,
    ) -> list[CalibrationPiece]:
        """Sequences of documents in the order of the study, until they hold enough kept tokens.

        The last batch is whole where the corpus allows it: how a sequence is padded can change
        its last bits, and no budget may change those of another.

        Args:
            corpus: name of the corpus or mixture.
            split: side of it.
            tokenizer: the model's.
            tokens: kept tokens: those of each sequence but its sinks and its dropped last ones.
            spec: the calibration stage.
            key: key path to blame; default that of the stage's budgets or evaluation tokens.

        Raises:
            InputError: if the documents have fewer; the message says how many.
        """
        from suite.corpora import ExhaustedError, cut_for, select_documents

        how = cut_for(spec, tokenizer)
        documents = select_documents(
            self.corpus(corpus).parts(split), tokenizer, spec.documents, how, seed=self.study.seed
        )
        found: list[CalibrationPiece] = []
        kept, ended = 0, ""
        try:
            for piece in itertools.chain.from_iterable(documents):
                if kept >= tokens and len(found) % spec.batch_size == 0:
                    break
                found.append(piece)
                kept += how.kept(piece)
        except ExhaustedError as error:
            ended = f", where those of {error.stratum} end"
        if kept >= tokens:
            return found
        side, blamed = (
            ("training", "calibration.budgets")
            if split == "train"
            else ("held-out", "calibration.evaluation_tokens")
        )
        raise InputError(
            f"got {tokens:,} tokens; the {side} documents of {corpus!r} give {kept:,} "
            f"without the {_left_out(how)} of each sequence{ended}, so at most that many",
            key=key or blamed,
        )

    def dataset(self, name: str, context: str) -> DatasetRecord:
        """A corpus as a run's MLflow dataset."""
        corpus = self.corpus(name)
        spec = self.study.corpora[name]
        return DatasetRecord(
            name=name,
            digest=corpus.digest,
            source=f"{spec.source}:{_source(name, spec)}",
            context=context,
            profile={
                "num_documents": corpus.num_documents,
                "num_characters": corpus.num_characters,
            },
        )


def _left_out(how: Cut) -> str:
    """Positions of a sequence that do not count, in words."""
    first = f"first {how.left_out}"
    return f"{first} and the last {how.drop_last}" if how.drop_last else first


def _source(name: str, spec: CorpusSpec) -> str:
    if spec.source == "mixture":
        return " + ".join(f"{weight:g} {part}" for part, weight in spec.of.items())
    return spec.path or name

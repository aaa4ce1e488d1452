"""What a study's cells are made from, each loaded once: corpora, tokenizers, token streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from suite.errors import InputError
from suite.study import CalibrationSpec, Study
from suite.tracking.home import Home
from suite.tracking.store import DatasetRecord

if TYPE_CHECKING:
    from suite.corpora import Corpus, Split, Tokenizer, TokenStream
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

    def corpus(self, name: str) -> Corpus:
        """A corpus of the study, by name."""
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
                corpus=self.corpus(pretraining.corpus),
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
            self.corpus(self.study.pretraining.corpus),
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
        """Pieces of documents in their seeded order, until they hold enough kept tokens.

        The last batch is whole where the corpus allows it: how a sequence is padded can change
        its last bits, and no budget may change those of another.

        Args:
            corpus: name of the corpus.
            split: side of it.
            tokenizer: the model's.
            tokens: kept tokens, the sinks of each piece left out.
            spec: the calibration stage.
            key: key path to blame; default that of the stage's budgets or evaluation tokens.

        Raises:
            InputError: if the documents have fewer; the message says how many.
        """
        from suite.corpora import pieces

        found: list[CalibrationPiece] = []
        kept = 0
        for piece in pieces(
            self.corpus(corpus).side(split),
            tokenizer,
            sequence_length=spec.sequence_length,
            seed=self.study.seed,
        ):
            if kept >= tokens and len(found) % spec.batch_size == 0:
                break
            if len(piece) > spec.sinks:
                found.append(piece)
                kept += len(piece) - spec.sinks
        if kept >= tokens:
            return found
        side, blamed = (
            ("training", "calibration.budgets")
            if split == "train"
            else ("held-out", "calibration.evaluation_tokens")
        )
        raise InputError(
            f"got {tokens:,} tokens; the {side} documents of {corpus!r} give {kept:,} without the "
            f"first {spec.sinks} of each sequence, so at most that many",
            key=key or blamed,
        )

    def dataset(self, name: str, context: str) -> DatasetRecord:
        """A corpus as a run's MLflow dataset."""
        corpus = self.corpus(name)
        spec = self.study.corpora[name]
        return DatasetRecord(
            name=name,
            digest=corpus.digest,
            source=f"{spec.source}:{spec.path or name}",
            context=context,
            profile={
                "num_documents": corpus.num_documents,
                "num_characters": corpus.num_characters,
            },
        )

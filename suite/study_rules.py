"""What a study must satisfy beyond its types: names that exist, numbers that fit together."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from suite.errors import InputError
from suite.law_rules import check_law
from suite.study import (
    CalibrationSpec,
    CorpusSpec,
    ModelSpec,
    PretrainingSpec,
    SearchSpec,
    Study,
)
from suite.terminal import shown

_LONGEST_NAME = 100
_LONGEST_TITLE = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MLFLOW_DEFAULT = "Default"  # MLflow's own experiment, whose artifacts lie outside the home
_BYTE_VOCABULARY = 257
_SMALLEST_VOCABULARY = 258
PANEL_STAGES = {
    "loss_grid": "pretraining",
    "parity": "law",
    "residuals": "law",
    "error_grid": "calibration",
    "pareto": "searches",
}


def check_study(study: Study) -> None:
    """Raise ``InputError`` for the first rule that the study breaks."""
    _check_name(study.name, "name")
    if study.name == _MLFLOW_DEFAULT:
        raise InputError(
            f"got {study.name!r}, which MLflow keeps for itself; choose another name", key="name"
        )
    _check_line(study.title, "title", longest=_LONGEST_TITLE)
    for corpus in study.corpora:
        _check_name(corpus, "corpora")
    if not study.corpora:
        raise InputError("got {}; a study needs at least one corpus", key="corpora")
    for name, spec in study.corpora.items():
        if spec.source == "mixture":
            _check_mixture(study, name, spec)
        elif spec.of:
            raise InputError(
                f"got {dict(spec.of)}; only the source mixture has parts", key=f"corpora.{name}.of"
            )
        elif spec.source != "embedded" and spec.path is None:
            raise InputError(
                f"this key is missing; source {spec.source!r} needs it", key=f"corpora.{name}.path"
            )
    if study.pretraining is None and study.calibration is None:
        raise InputError(
            "this stage is missing, and so is calibration; a study needs one of them",
            key="pretraining",
        )
    if study.pretraining is not None:
        _check_pretraining(study, study.pretraining)
    if study.law is not None:
        if study.pretraining is None:
            raise InputError("a law needs the stage pretraining, which is missing", key="law")
        check_law(study.law, study.pretraining)
    if study.calibration is not None:
        _check_calibration(study, study.calibration)
    if study.searches and study.calibration is None:
        raise InputError("a search needs the stage calibration, which is missing", key="searches")
    for position, search in enumerate(study.searches):
        assert study.calibration is not None
        _check_search(study, study.calibration, search, f"searches[{position}]")
    _refuse_repeats([search.name for search in study.searches], "searches")
    _refuse_repeats(study.report.panels or (), "report.panels")
    for position, panel in enumerate(study.report.panels or ()):
        if not getattr(study, PANEL_STAGES[panel]):
            raise InputError(
                f"the panel {panel!r} draws the stage {PANEL_STAGES[panel]}, which the study lacks",
                key=f"report.panels[{position}]",
            )


def _check_name(name: str, key: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise InputError(
            f"got {name!r}; a name has at most 100 letters, digits, '-', '_' and '.', and starts "
            "with a letter or digit",
            key=key,
        )


def _check_line(text: str, key: str, *, longest: int) -> None:
    """Refuse what would not be one line on a page and a terminal, as it is written here."""
    if len(text) > longest:
        raise InputError(f"got {len(text)} characters; at most {longest} are shown", key=key)
    if shown(text) != text or "\n" in text or "\t" in text:
        raise InputError(
            f"got {text!r}; give one line, without control characters or marks that change the "
            "direction of writing",
            key=key,
        )


def _check_corpus(study: Study, corpus: str, key: str) -> None:
    if corpus not in study.corpora:
        raise InputError(
            f"no corpus {corpus!r}; the study's corpora are {', '.join(study.corpora)}", key=key
        )


def _check_mixture(study: Study, name: str, spec: CorpusSpec) -> None:
    key = f"corpora.{name}.of"
    if len(spec.of) < 2:
        raise InputError(
            f"got {dict(spec.of)}; a mixture needs at least two corpora of the study and their "
            "shares, such as {fineweb: 0.5, openr1: 0.5}",
            key=key,
        )
    for part in spec.of:
        _check_corpus(study, part, f"{key}.{part}")
        if study.corpora[part].source == "mixture":
            raise InputError("is a mixture itself; name its corpora here", key=f"{key}.{part}")
    defaults = CorpusSpec(source="mixture")
    for field in fields(spec):
        if field.name not in ("source", "of") and getattr(spec, field.name) != getattr(
            defaults, field.name
        ):
            raise InputError(
                f"got {getattr(spec, field.name)!r}; a mixture has only source and of, so set it "
                "at its corpora",
                key=f"corpora.{name}.{field.name}",
            )


def _check_documents(calibration: CalibrationSpec) -> None:
    """Refuse lengths of documents that exclude each other."""
    spec, key = calibration.documents, "calibration.documents"
    if spec.most is not None and spec.most < spec.least:
        raise InputError(
            f"got {spec.most}; documents have at least {spec.least} tokens (least), so give at "
            "least that",
            key=f"{key}.most",
        )
    for one, other in (("long_from", "long_share"), ("long_share", "long_from")):
        if getattr(spec, one) is not None and getattr(spec, other) is None:
            raise InputError(f"this key is missing; it goes with {one}", key=f"{key}.{other}")
    most = float("inf") if spec.most is None else spec.most
    if spec.long_from is not None and not spec.least < spec.long_from <= most:
        raise InputError(
            f"got {spec.long_from}; documents have {spec.least} to {most:,} tokens, and some must "
            "be shorter than that and some not",
            key=f"{key}.long_from",
        )


def _refuse_repeats(
    values: Iterable[object], key: str, cure: str = "each may be given once"
) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InputError(f"got {value!r} twice; {cure}", key=key)
        seen.add(value)


def vocabulary(spec: PretrainingSpec) -> int | None:
    """Size of the study's vocabulary, as far as the tokenizer's name tells it.

    Raises:
        InputError: if the name asks for a vocabulary that cannot be.
    """
    if spec.tokenizer == "byte":
        return _BYTE_VOCABULARY
    if not spec.tokenizer.startswith("bpe-"):
        return None
    digits = spec.tokenizer.removeprefix("bpe-")
    if not re.fullmatch("[0-9]{1,9}", digits) or int(digits) < _SMALLEST_VOCABULARY:
        raise InputError(
            f"got {spec.tokenizer!r}; bpe-<vocabulary> needs a number of at least "
            f"{_SMALLEST_VOCABULARY}",
            key="pretraining.tokenizer",
        )
    return int(digits)


def _check_pretraining(study: Study, pretraining: PretrainingSpec) -> None:
    from lightning_modules.looplm.sizes import resolve

    _check_corpus(study, pretraining.corpus, "pretraining.corpus")
    if study.corpora[pretraining.corpus].source == "mixture":
        raise InputError(
            f"got {pretraining.corpus!r}, a mixture; mixtures are for calibration, so name one of "
            "its corpora",
            key="pretraining.corpus",
        )
    smallest_vocabulary = vocabulary(pretraining) or 1
    for position, size in enumerate(pretraining.sizes):
        _check_name(size.name, f"pretraining.sizes[{position}].name")
        try:
            resolve(size, vocab_size=smallest_vocabulary)
        except InputError as error:
            reason = str(error).removeprefix(f"{error.key}: ")
            raise InputError(reason, key=f"pretraining.sizes[{position}]") from error
    _refuse_repeats([size.name for size in pretraining.sizes], "pretraining.sizes")
    shapes = [resolve(size, vocab_size=smallest_vocabulary) for size in pretraining.sizes]
    for position, shape in enumerate(shapes):
        first = shapes.index(shape)
        if first < position:
            raise InputError(
                f"got {pretraining.sizes[position].name!r}, the same shape as "
                f"{pretraining.sizes[first].name!r}; a cell is never run twice, so keep one",
                key=f"pretraining.sizes[{position}]",
            )
    _refuse_repeats(pretraining.recurrences, "pretraining.recurrences")
    batch_tokens = pretraining.batch_size * pretraining.sequence_length
    if pretraining.tokens < batch_tokens:
        raise InputError(
            f"got {pretraining.tokens}; one batch has {batch_tokens} tokens (batch_size x "
            "sequence_length), so at least that many",
            key="pretraining.tokens",
        )
    micro = pretraining.micro_batch_size
    if micro is not None and pretraining.batch_size % micro:
        raise InputError(
            f"got {micro}; it must divide batch_size = {pretraining.batch_size}",
            key="pretraining.micro_batch_size",
        )


def model_label(model: ModelSpec) -> str:
    """How figures and messages call a model."""
    if model.label:
        return model.label
    if model.size is not None:
        return f"{model.size} Tm={model.recurrence}"
    name = (model.path or "").rstrip("/").rsplit("/", 1)[-1]
    return model.gguf_file.removesuffix(".gguf") if model.gguf_file else name


def _check_model(study: Study, model: ModelSpec, key: str) -> None:
    if (model.size is None) == (model.path is None):
        got = "neither size nor path" if model.size is None else "both size and path"
        raise InputError(
            f"got {got}; give either size and recurrence (a cell of this study) or path (a "
            "checkpoint)",
            key=key,
        )
    of_checkpoints = ("revision", "gguf_file", "trust_remote_code")
    for name in ("recurrence",) if model.size is None else of_checkpoints:
        if getattr(model, name):
            raise InputError(
                f"got {getattr(model, name)!r}; it goes with "
                + ("size, not with path" if model.size is None else "path, not with size"),
                key=f"{key}.{name}",
            )
    if model.size is None:
        return
    if study.pretraining is None:
        raise InputError(
            f"got {model.size!r}; the study pretrains no model, so give path", key=f"{key}.size"
        )
    sizes = [size.name for size in study.pretraining.sizes]
    if model.size not in sizes:
        raise InputError(
            f"the study does not pretrain a size {model.size!r}; it pretrains {', '.join(sizes)}",
            key=f"{key}.size",
        )
    recurrences = ", ".join(map(str, study.pretraining.recurrences))
    if model.recurrence is None:
        raise InputError(
            f"this key is missing; with size it is one of {recurrences}", key=f"{key}.recurrence"
        )
    if model.recurrence not in study.pretraining.recurrences:
        raise InputError(
            f"the study does not pretrain T_m = {model.recurrence}; it pretrains {recurrences}",
            key=f"{key}.recurrence",
        )


def _check_rank(study: Study, model: ModelSpec, rank: int, key: str) -> None:
    """Refuse a rank that is more than the model's width."""
    from lightning_modules.looplm.sizes import resolve

    features: int | None = None
    if model.shape is not None:
        features = model.shape.layers * model.shape.heads * model.shape.head_dim
    elif model.size is not None and study.pretraining is not None:
        size = next(s for s in study.pretraining.sizes if s.name == model.size)
        shape = resolve(size, vocab_size=vocabulary(study.pretraining) or 1)
        assert model.recurrence is not None
        features = shape.num_hidden_layers * shape.hidden_size * model.recurrence
    if features is not None and rank > features:
        raise InputError(
            f"got {rank}; keys and values of {model_label(model)} have p = {features} features "
            "(loops x layers x heads x head width), so the rank is at most that",
            key=key,
        )


def _check_increasing(values: Sequence[int], key: str) -> None:
    for position, (before, after) in enumerate(itertools.pairwise(values), start=1):
        if after <= before:
            raise InputError(
                f"got {after} after {before}; budgets must increase", key=f"{key}[{position}]"
            )


def _check_calibration(study: Study, calibration: CalibrationSpec) -> None:
    for position, model in enumerate(calibration.models):
        _check_model(study, model, f"calibration.models[{position}]")
    _refuse_repeats(
        [model_label(model) for model in calibration.models],
        "calibration.models",
        "give one of the models another label",
    )
    for position, model in enumerate(calibration.models):
        _check_line(
            model_label(model), f"calibration.models[{position}].label", longest=_LONGEST_NAME
        )
        same = replace(model, label=None, shape=None)
        if any(replace(m, label=None, shape=None) == same for m in calibration.models[:position]):
            raise InputError(
                f"got {model_label(model)!r}, a model that stands before under another label; a "
                "cell is never run twice, so keep one",
                key=f"calibration.models[{position}]",
            )
    for key in ("calibrate_on", "evaluate_on"):
        for position, corpus in enumerate(getattr(calibration, key)):
            _check_corpus(study, corpus, f"calibration.{key}[{position}]")
        _refuse_repeats(getattr(calibration, key), f"calibration.{key}")
    _refuse_repeats(calibration.niter, "calibration.niter")
    _check_increasing(calibration.budgets, "calibration.budgets")
    for name in ("sinks", "drop_last"):
        left_out = getattr(calibration, name)
        if left_out >= calibration.sequence_length:
            raise InputError(
                f"got {left_out}; a sequence has {calibration.sequence_length} positions "
                "(sequence_length), so it must be fewer",
                key=f"calibration.{name}",
            )
    if calibration.sinks + calibration.drop_last >= calibration.sequence_length:
        raise InputError(
            f"got {calibration.drop_last}; with sinks = {calibration.sinks} nothing is left of a "
            f"sequence of {calibration.sequence_length} positions",
            key="calibration.drop_last",
        )
    _check_documents(calibration)
    if calibration.intervals == 1:
        raise InputError("got 1; a jackknife needs at least 2 groups", key="calibration.intervals")
    for model in calibration.models:
        _check_rank(study, model, calibration.rank, "calibration.rank")


def _check_search(study: Study, calibration: CalibrationSpec, search: SearchSpec, key: str) -> None:
    _check_name(search.name, f"{key}.name")
    if search.model >= len(calibration.models):
        raise InputError(
            f"got {search.model}; calibration.models has positions 0 to "
            f"{len(calibration.models) - 1}",
            key=f"{key}.model",
        )
    for which in ("calibrate_on", "evaluate_on"):
        corpus = getattr(search, which)
        if corpus is not None:
            _check_corpus(study, corpus, f"{key}.{which}")
    _refuse_repeats(search.objectives, f"{key}.objectives")
    for axis in ("niter", "tokens", "rank"):
        _refuse_repeats(getattr(search.over, axis), f"{key}.over.{axis}")
    fewest = min(search.over.tokens)
    for position, rank in enumerate(search.over.rank):
        where = f"{key}.over.rank[{position}]"
        if rank > fewest:  # which would be another combination under a second name
            raise InputError(
                f"got {rank}; the fewest tokens of the search are {fewest} (over.tokens), so the "
                f"rank is at most {fewest}",
                key=where,
            )
        _check_rank(study, calibration.models[search.model], rank, where)
    combinations = len(search.over.niter) * len(search.over.tokens) * len(search.over.rank)
    if search.trials > combinations:
        raise InputError(
            f"got {search.trials}; over has {combinations} combinations, so at most that many",
            key=f"{key}.trials",
        )

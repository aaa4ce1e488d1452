from __future__ import annotations

from pathlib import Path

import pytest

from suite.corpora import load_tokenizer
from suite.corpora.byte_level import SMALLEST_VOCABULARY
from suite.errors import InputError
from suite.study import ModelSpec, PretrainingSpec, SizeSpec
from suite.study_file import parse_study
from suite.study_rules import model_label, vocabulary

STUDY = """\
name: tiny
corpora: {prose: {source: embedded, path: pydocs}}
pretraining:
  corpus: prose
  tokenizer: byte
  sizes: [{name: small, num_hidden_layers: 2, hidden_size: 32}]
  recurrences: [1, 4]
  tokens: 2048
calibration:
  models: [{size: small, recurrence: 1}, {path: some/model}]
  calibrate_on: [prose]
  evaluate_on: [prose]
  budgets: [64, 128]
  rank: 64
searches:
  - {name: kv, over: {niter: [1, exact], tokens: [64, 128], rank: [64]}, trials: 4}
"""


@pytest.mark.parametrize(
    "edit",
    [
        "calibration.rank=64",  # p = 1 loop x 2 layers x 32, and the smallest budget
        "calibration.models=[{size: small, recurrence: 4}]",
        "calibration.sinks=1023",  # of 1024 positions
        "pretraining.tokens=2048",  # one batch
        "pretraining.micro_batch_size=16",
        "pretraining.tokenizer=bpe-258",
        "pretraining.tokenizer=some/tokenizer",
        "pretraining.sizes[0].vocab_size=257",  # the byte tokenizer's
        "searches[0].trials=4",  # every combination
        "report.panels=[error_grid, loss_grid]",
        f"name={'n' * 100}",
    ],
)
def test_values_on_the_border_are_allowed(edit: str) -> None:
    parse_study(STUDY, overrides=[edit])


@pytest.mark.parametrize(("recurrence", "features"), [(1, 64), (4, 256)])
def test_a_looped_model_has_as_many_features_as_loops_x_layers_x_width(
    recurrence: int, features: int
) -> None:
    edits = [
        f"calibration.models=[{{size: small, recurrence: {recurrence}}}]",
        "calibration.budgets=[1000]",
        "searches=[]",
    ]
    parse_study(STUDY, overrides=[*edits, f"calibration.rank={features}"])
    with pytest.raises(InputError, match=f"p = {features} features"):
        parse_study(STUDY, overrides=[*edits, f"calibration.rank={features + 1}"])


def test_a_checkpoint_of_unknown_shape_may_be_asked_for_any_rank() -> None:
    edits = ["calibration.models=[{path: some/model}]", "calibration.budgets=[5000]", "searches=[]"]
    parse_study(STUDY, overrides=[*edits, "calibration.rank=5001"])


def test_ranks_of_a_search_are_held_to_its_fewest_tokens() -> None:
    edits = ["searches[0].over.tokens=[30, 60]", "searches[0].trials=1"]
    parse_study(STUDY, overrides=[*edits, "searches[0].over.rank=[30]"])
    with pytest.raises(InputError, match=r"got 31; the fewest tokens of the search are 30"):
        parse_study(STUDY, overrides=[*edits, "searches[0].over.rank=[29, 31]"])


def test_the_vocabulary_of_a_size_must_hold_the_tokenizer() -> None:
    edits = ["pretraining.tokenizer=bpe-300", "pretraining.sizes[0].vocab_size=299"]
    with pytest.raises(InputError, match=r"pretraining.sizes\[0\]: .* vocab_size 299.* 300 tokens"):
        parse_study(STUDY, overrides=edits)


@pytest.mark.parametrize(
    ("form", "sizes", "recurrences", "enough"),
    [
        ("looplm_total", "[53M, 134M, 374M]", "[1, 2, 4]", True),
        ("looplm_total", "[53M, 134M]", "[1, 2, 4]", False),  # one size is held out
        ("looplm_total", "[53M, 134M, 374M]", "[2, 4]", False),  # one recurrence, too
        ("chinchilla", "[53M, 134M, 374M]", "[2, 4]", True),
        ("chinchilla", "[53M, 134M]", "[2, 4]", False),
        ("recurrence_equivalence", "[53M, 134M, 374M]", "[1, 2, 4]", True),
        ("recurrence_equivalence", "[53M, 134M, 374M]", "[2, 4]", False),
        ("parameters + tokens + rising recurrence", "[53M, 134M, 374M]", "[1, 2, 4]", True),
        ("parameters + tokens + rising recurrence", "[53M, 134M, 374M]", "[2, 4]", False),
    ],
)
def test_a_law_needs_two_levels_of_each_of_its_variables(
    form: str, sizes: str, recurrences: str, enough: bool
) -> None:
    edits = [
        f"pretraining.sizes={sizes}",
        f"pretraining.recurrences={recurrences}",
        "calibration=null",
        "searches=[]",
        f"law={{form: {form}, hold_out: {{sizes: [134M], recurrences: [4]}}}}",
    ]
    if enough:
        assert parse_study(STUDY, overrides=edits).law is not None
    else:
        with pytest.raises(InputError, match=r"got 1 of pretraining\..* needs at least two"):
            parse_study(STUDY, overrides=edits)


@pytest.mark.parametrize(
    ("model", "label"),
    [
        (ModelSpec(size="53M", recurrence=4), "53M Tm=4"),
        (ModelSpec(path="meta-llama/Llama-3.1-8B"), "Llama-3.1-8B"),
        (ModelSpec(path="./models/mine/"), "mine"),
        (ModelSpec(path="folder", gguf_file="small.Q8_0.gguf"), "small.Q8_0"),
        (ModelSpec(path="meta-llama/Llama-3.1-8B", label="Llama"), "Llama"),
    ],
)
def test_models_are_called_by_what_tells_them_apart(model: ModelSpec, label: str) -> None:
    assert model_label(model) == label


def test_vocabularies_are_those_of_the_tokenizers() -> None:
    def spec(tokenizer: str) -> PretrainingSpec:
        size = SizeSpec(name="s", num_hidden_layers=1, hidden_size=16)
        return PretrainingSpec(corpus="c", sizes=(size,), tokens=4096, tokenizer=tokenizer)

    byte = load_tokenizer("byte", corpus=None, cache=Path(), key="tokenizer", base=Path())
    assert vocabulary(spec("byte")) == byte.vocab_size == 257
    assert vocabulary(spec("bpe-32000")) == 32_000
    assert vocabulary(spec(f"bpe-{SMALLEST_VOCABULARY}")) == SMALLEST_VOCABULARY
    assert vocabulary(spec("org/tokenizer")) is None
    with pytest.raises(InputError, match=f"at least {SMALLEST_VOCABULARY}"):
        vocabulary(spec(f"bpe-{SMALLEST_VOCABULARY - 1}"))


MIXTURE = "corpora.mix={source: mixture, of: {prose: 1, maths: 3}}"
MATHS = "corpora.maths={source: embedded, path: worked_math}"


@pytest.mark.parametrize(
    "edits",
    [
        [MATHS, MIXTURE, "calibration.calibrate_on=[mix]"],
        ["calibration.drop_last=1019"],  # of 1024 positions, 4 of them sinks
        ["calibration.documents={least: 5, most: 9, long_from: 9, long_share: 0.5}"],
    ],
)
def test_mixtures_and_lengths_are_allowed(edits: list[str]) -> None:
    parse_study(STUDY, overrides=edits)


@pytest.mark.parametrize(
    ("edits", "key", "words"),
    [
        (
            [MATHS, MIXTURE, "pretraining.corpus=mix"],
            "pretraining.corpus",
            "name one of its corpora",
        ),
        (["corpora.mix={source: mixture, of: {prose: 1}}"], "corpora.mix.of", "at least two"),
        (["corpora.mix={source: mixture}"], "corpora.mix.of", "at least two"),
        (
            ["corpora.mix={source: mixture, of: {prose: 1, verse: 1}}"],
            "corpora.mix.of.verse",
            "no corpus 'verse'",
        ),
        (
            [MATHS, MIXTURE, "corpora.more={source: mixture, of: {prose: 1, mix: 1}}"],
            "corpora.more.of.mix",
            "is a mixture itself",
        ),
        (
            [MATHS, MIXTURE, "corpora.mix.held_out=0.2"],
            "corpora.mix.held_out",
            "set it at its corpora",
        ),
        (["corpora.prose.of={prose: 1}"], "corpora.prose.of", "only the source mixture"),
        (["calibration.drop_last=1020"], "calibration.drop_last", "nothing is left"),
        (["calibration.intervals=1"], "calibration.intervals", "at least 2 groups"),
        (["calibration.documents={least: 9, most: 8}"], "calibration.documents.most", "at least 9"),
        (
            ["calibration.documents={long_share: 0.5}"],
            "calibration.documents.long_from",
            "goes with long_share",
        ),
        (
            ["calibration.documents={long_from: 9}"],
            "calibration.documents.long_share",
            "goes with long_from",
        ),
        (
            ["calibration.documents={least: 9, long_from: 9, long_share: 0.5}"],
            "calibration.documents.long_from",
            "some must be shorter",
        ),
    ],
)
def test_mixtures_and_lengths_that_cannot_be_are_refused(
    edits: list[str], key: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        parse_study(STUDY, overrides=edits)
    assert raised.value.key == key

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from suite.cells import Cell, calibration_cell, moments_settings, pretraining_cells
from suite.fingerprint import fingerprint
from suite.materials import Materials
from suite.study_file import parse_study
from suite.tracking.home import Home
from suite.tracking.store import flatten

STUDY = """\
name: tiny
corpora:
  prose: {source: files, path: prose.jsonl, held_out: 0.3}
  maths: {source: files, path: maths.jsonl, held_out: 0.3}
pretraining:
  corpus: prose
  tokenizer: byte
  sizes:
    - {name: small, num_hidden_layers: 2, hidden_size: 32}
    - {name: large, num_hidden_layers: 3, hidden_size: 64}
  recurrences: [1, 4]
  tokens: 8192
  sequence_length: 64
  batch_size: 16
  evaluate_every: 1024
calibration:
  models: [{size: small, recurrence: 1}, {path: some/model}]
  calibrate_on: [prose]
  evaluate_on: [maths, prose]
  budgets: [100, 200]
  niter: [1, exact]
  rank: 16
"""

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
SETTINGS = st.dictionaries(st.text(max_size=5), PLAIN, max_size=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of two corpora."""
    for name in ("prose", "maths"):
        lines = [json.dumps({"text": f"{name} document {n}"}) for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def materials(folder: Path, edits: list[str], text: str = STUDY) -> Materials:
    home = Home(root=folder / "home", tracking_uri="")
    return Materials(parse_study(text, overrides=edits), folder, home)


def first_pretraining(folder: Path, *edits: str, text: str = STUDY) -> Cell:
    edits = ("calibration.models=[{path: some/model}]", *edits)
    return next(iter(pretraining_cells(materials(folder, list(edits), text)).values()))


def first_calibration(folder: Path, *edits: str, text: str = STUDY, identity: str = "m") -> Cell:
    made = materials(folder, list(edits), text)
    spec = made.study.calibration
    assert spec is not None
    return calibration_cell(
        made,
        spec,
        spec.models[0],
        identity=identity,
        corpus=spec.calibrate_on[0],
        niter=spec.niter[0],
    )


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(part) for part in value] if isinstance(value, list) else value


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of all leaves, empty containers among them."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[str | int, ...]] = []
    for key, part in parts:
        inner = isinstance(part, (dict, list)) and part
        found += places(part, (*path, key)) if inner else [(*path, key)]
    return found


def tree(value: Any) -> Any:
    """The value with the type of each part beside it: 1, 1.0 and True are told apart."""
    if isinstance(value, dict):
        return {key: tree(part) for key, part in value.items()}
    if isinstance(value, list):
        return [tree(part) for part in value]
    return type(value).__name__, repr(value)


def test_a_fingerprint_is_16_digits_of_the_sha256_of_canonical_json() -> None:
    canonical = b'{"a":"\\u00e9","b":[1,2.5,null,true],"c":{"x":-0.0001}}'
    settings_ = {"c": {"x": -1e-4}, "b": (1, 2.5, None, True), "a": "é"}
    assert fingerprint(settings_) == hashlib.sha256(canonical).hexdigest()[:16]
    # written down, so that no change of the code moves finished cells unnoticed
    assert fingerprint(settings_) == "9443e89eabc036f0"


@given(SETTINGS)
@settings(max_examples=50, deadline=None)
def test_the_order_of_keys_does_not_enter(settings_: dict[str, Any]) -> None:
    assert fingerprint(reordered(settings_)) == fingerprint(settings_)


@given(SETTINGS, st.data(), PLAIN)
@settings(max_examples=100, deadline=None)
def test_every_value_enters(settings_: dict[str, Any], data: st.DataObject, new: object) -> None:
    leaves = places(settings_)
    assume(leaves)
    path = data.draw(st.sampled_from(leaves))
    changed = json.loads(json.dumps(settings_))
    assert tree(changed) == tree(settings_)
    here = changed
    for step in path[:-1]:
        here = here[step]
    assume(tree(here[path[-1]]) != tree(new))
    here[path[-1]] = new
    assert fingerprint(changed) != fingerprint(settings_)


@pytest.mark.parametrize("values", [(1, 1.0, True, "1"), (0, 0.0, False, None, "", [], {})])
def test_equal_values_of_other_types_are_told_apart(values: tuple[object, ...]) -> None:
    assert len({fingerprint({"x": value}) for value in values}) == len(values)


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", 1j, Path("x"), len, frozenset()])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"y": (1, v)}])
def test_values_without_a_stable_text_are_refused(value: object, wrap: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        fingerprint({"x": wrap(value)})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        fingerprint({"x": [value]})


@pytest.mark.parametrize("key", [1, 1.5, None, True, ("a",)])
def test_keys_that_are_not_text_are_refused(key: object) -> None:
    with pytest.raises(TypeError, match="text keys"):
        fingerprint({"x": {key: 1}})


def test_another_process_finds_the_same_fingerprint() -> None:
    program = (
        "from suite.fingerprint import fingerprint\n"
        "keys = {'seed', 'tokens', 'shape', 'corpus', 'niter'}\n"  # a set: its order is hashed
        "print(fingerprint({key: [key, 0.1] for key in keys}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "7")
    }
    here = fingerprint({key: [key, 0.1] for key in ("corpus", "niter", "seed", "shape", "tokens")})
    assert found == {here}


@pytest.mark.parametrize(
    "edit",
    [
        "seed=1",
        "pretraining.sizes[0].num_hidden_layers=3",
        "pretraining.sizes[0].hidden_size=48",
        "pretraining.sizes[0].intermediate_size=16",
        "pretraining.sizes[0].num_attention_heads=1",
        "pretraining.sizes[0].vocab_size=300",
        "pretraining.recurrences[0]=2",
        "pretraining.tokens=9216",
        "pretraining.sequence_length=32",
        "pretraining.batch_size=8",
        "pretraining.evaluate_every=2048",
        "pretraining.evaluation_tokens=64",
        "pretraining.branch_gain=0.5",
        "pretraining.gate_bias=-1.0",
        "pretraining.objective.form=kl",
        "pretraining.objective.beta=0.1",
        "pretraining.optimizer.learning_rate=1e-3",
        "pretraining.optimizer.betas=[0.9, 0.99]",
        "pretraining.optimizer.weight_decay=0",
        "pretraining.optimizer.gradient_clip=2",
        "pretraining.optimizer.warmup_tokens=0",
        "pretraining.optimizer.schedule=cosine",
        "pretraining.optimizer.final_share=0",
        "pretraining.trainer.precision=64-true",
        "pretraining.tokenizer=bpe-258",
        "pretraining.corpus=maths",
        "corpora.prose.held_out=0.5",
        "corpora.prose.max_documents=20",
    ],
)
def test_whatever_decides_a_trained_model_enters_its_fingerprint(folder: Path, edit: str) -> None:
    assert first_pretraining(folder, edit).fingerprint != first_pretraining(folder).fingerprint


@pytest.mark.parametrize(
    "edit",
    [
        "name=other",
        "title=another title",
        "pretraining.sizes[0].name=tiny",
        "pretraining.sizes[0].intermediate_size=96",  # what it defaults to
        "pretraining.sizes=[{name: only, num_hidden_layers: 2, hidden_size: 32}]",
        "pretraining.recurrences=[1]",
        "pretraining.tokens=8191",  # rounded up to the same whole batches
        "pretraining.micro_batch_size=4",
        "pretraining.checkpoint_every=4096",
        "pretraining.optimizer.weight_decay=0.1",
        "pretraining.trainer.accelerator=gpu",
        "pretraining.trainer.devices=8",
        "pretraining.trainer.num_nodes=2",
        "pretraining.trainer.strategy=fsdp",
        "pretraining.trainer.num_workers=4",
        "law={form: chinchilla}",
        "calibration.rank=8",
        "report={panels: [loss_grid]}",
    ],
)
def test_whatever_does_not_decide_it_stays_out(folder: Path, edit: str) -> None:
    assert first_pretraining(folder, edit).fingerprint == first_pretraining(folder).fingerprint


def test_other_text_is_another_cell_and_a_renamed_corpus_is_not(folder: Path) -> None:
    cell = first_pretraining(folder)
    renamed = first_pretraining(
        folder,
        text=STUDY.replace("prose", "text", 1)
        .replace("corpus: prose", "corpus: text")
        .replace("[prose]", "[text]")
        .replace("maths, prose", "maths, text"),
    )
    assert renamed.labels["corpus"] == {"name": "text"}
    assert renamed.fingerprint == cell.fingerprint
    with (folder / "prose.jsonl").open("a") as file:
        file.write('\n{"text": "one more"}')
    assert first_pretraining(folder).fingerprint != cell.fingerprint


@pytest.mark.parametrize(
    "edit",
    [
        "seed=1",
        "calibration.budgets=[100, 201]",
        "calibration.niter=[2]",
        "calibration.niter=[exact]",
        "calibration.rank=8",
        "calibration.sequence_length=512",
        "calibration.batch_size=2",
        "calibration.sinks=0",
        "calibration.evaluation_tokens=64",
        "calibration.trainer.precision=bf16-true",
        "calibration.calibrate_on=[maths]",
        "calibration.evaluate_on=[maths]",
        "corpora.prose.held_out=0.5",
    ],
)
def test_whatever_decides_a_basis_and_its_errors_enters_its_fingerprint(
    folder: Path, edit: str
) -> None:
    assert first_calibration(folder, edit).fingerprint != first_calibration(folder).fingerprint


@pytest.mark.parametrize(
    "edit",
    [
        "name=other",
        "calibration.models[0].label=mine",
        "calibration.niter=[1]",
        "calibration.evaluate_on=[prose, maths]",
        "calibration.trainer.accelerator=gpu",
        "calibration.trainer.devices=2",
        "calibration.trainer.num_workers=2",
    ],
)
def test_labels_and_devices_stay_out_of_a_calibration_cell(folder: Path, edit: str) -> None:
    assert first_calibration(folder, edit).fingerprint == first_calibration(folder).fingerprint


def test_a_calibration_cell_follows_its_model(folder: Path) -> None:
    one, other = (first_calibration(folder, identity=identity) for identity in "ab")
    assert one.fingerprint != other.fingerprint


def test_moments_are_shared_by_all_niter_ranks_and_budgets(folder: Path) -> None:
    def moments(*edits: str) -> dict[str, object]:
        made = materials(folder, list(edits))
        assert made.study.calibration is not None
        return moments_settings(made, made.study.calibration, identity="m")

    same = ["calibration.niter=[2]", "calibration.rank=8", "calibration.budgets=[150]"]
    assert moments(*same) == moments()
    assert moments("calibration.sinks=0") != moments()


def test_kinds_do_not_share_fingerprints() -> None:
    cells = [
        Cell(kind=kind, name="x", settings={"a": 1}, labels={})
        for kind in ("search", "trial", "law", "report")
    ]
    assert len({cell.fingerprint for cell in cells}) == 4


def test_cells_cover_the_grid_with_t_m_varying_slowest(folder: Path) -> None:
    cells = pretraining_cells(materials(folder, []))
    assert list(cells) == [("small", 1), ("large", 1), ("small", 4), ("large", 4)]
    assert [cell.name for cell in cells.values()] == [
        "pretrain small Tm=1",
        "pretrain large Tm=1",
        "pretrain small Tm=4",
        "pretrain large Tm=4",
    ]
    assert len({cell.fingerprint for cell in cells.values()}) == 4


def test_a_study_without_pretraining_has_no_such_cells(folder: Path) -> None:
    edits = ["pretraining=null", "calibration.models=[{path: some/model}]"]
    assert pretraining_cells(materials(folder, edits)) == {}


def test_a_run_logs_the_contract_names(folder: Path) -> None:
    cell = first_pretraining(folder)
    params = flatten(cell.parameters)
    digest = materials(folder, []).corpus("prose").digest
    assert (
        params.items()
        >= {
            "size.name": "small",
            "size.num_hidden_layers": "2",
            "size.hidden_size": "32",
            "recurrence": "1",
            "tokens": "8192",
            "corpus.name": "prose",
            "corpus.digest": digest,
            "tokenizer": "byte",
            "objective.form": "entropy",
            "objective.beta": "0.05",
            "optimizer.learning_rate": "0.003",
            "optimizer.betas": "[0.9, 0.95]",
        }.items()
    )
    # two layers of 4 x 32^2 attention, 3 x 32 x 96 SwiGLU and 4 norms; 257 tokens
    looped = 2 * (4 * 32**2 + 3 * 32 * 96 + 4 * 32)
    assert int(params["parameters.looped"]) == looped
    assert int(params["parameters.head"]) == 257 * 32
    assert int(params["parameters.non_embedding"]) == looped + 32 + 33
    assert int(params["parameters.total"]) == looped + 32 + 33 + 2 * 257 * 32

    params = flatten(first_calibration(folder).parameters)
    assert (
        params.items()
        >= {
            "model.label": "small Tm=1",
            "calibrate_on": "prose",
            "evaluate_on": '["maths", "prose"]',
            "niter": "1",
            "rank": "16",
            "budgets": "[100, 200]",
        }.items()
    )

"""What is tracked of the errors of a budget: metrics, a curve over rank, layers and heads."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from lightning_modules.kv.errors import DEFINITIONS
from lightning_modules.kv.figures import ErrorFigures, log_spaced_ranks
from lightning_modules.kv.layout import KVEntry, KVLayout
from lightning_modules.kv.pair import CentredPair, MomentsPair
from lightning_modules.kv.solve import Calibration, calibrate

RANK = 6
LAYOUT = KVLayout(
    keys=(
        KVEntry(loop=0, layer=0, heads=2, head_dim=4, offset=0),
        KVEntry(loop=0, layer=2, heads=1, head_dim=4, offset=8),
        KVEntry(loop=1, layer=0, heads=2, head_dim=4, offset=12),
    ),
    values=(KVEntry(loop=0, layer=0, heads=2, head_dim=4, offset=0),),
)


def moments(seed: int) -> CentredPair:
    generator = torch.Generator().manual_seed(seed)
    pair = MomentsPair(20, 8, layout=LAYOUT)
    pair.update(torch.randn(90, 20, generator=generator), torch.randn(90, 8, generator=generator))
    return pair.centred()


@pytest.fixture
def solved() -> Calibration:
    return calibrate(moments(0), rank=RANK, niter="exact", seed=0)


@pytest.mark.parametrize("rank", [1, 2, 3, 16, 48, 1728, 10_000])
def test_at_most_sixteen_ranks_are_tracked_with_both_ends(rank: int) -> None:
    ranks = log_spaced_ranks(rank)
    assert (ranks[0], ranks[-1]) == (1, rank)
    assert len(ranks) <= 16
    assert ranks == sorted(set(ranks))
    if rank > 1000:
        factors = [after / before for before, after in itertools.pairwise(ranks[6:])]
        assert max(factors) < 1.2 * min(factors)


def test_metrics_are_the_errors_at_full_rank_and_along_the_curve(solved: Calibration) -> None:
    evaluation = {"one": moments(1), "two": moments(2)}
    figures = ErrorFigures(tokens=90)
    for corpus, pair in evaluation.items():
        figures.add(corpus, solved.evaluate(pair))
    expected = solved.errors(evaluation)
    assert {name: figures.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)
    others = figures.metrics.keys() - expected.keys()
    assert others == {
        f"{kind}/relative_error/{corpus}/rank_{rank}"
        for kind in ("key", "value")
        for corpus in evaluation
        for rank in range(1, RANK + 1)
    }
    curve = figures.curve["value"]["two"]
    assert [*curve] == [*DEFINITIONS]
    assert curve["relative_error"][-1] == figures.metrics["value/relative_error/two"]
    assert curve["relative_error"][3] == figures.metrics["value/relative_error/two/rank_4"]


def test_layers_and_heads_are_those_of_the_layout(solved: Calibration) -> None:
    figures = ErrorFigures(tokens=90)
    pair = moments(1)
    evaluated = solved.evaluate(pair)
    figures.add("one", evaluated)
    table = json.loads(json.dumps(figures.by_layer, allow_nan=False))
    assert table["tokens"] == 90
    layers = table["key"]["one"]["layers"]
    assert [(layer["loop"], layer["layer"]) for layer in layers] == [(0, 0), (0, 2), (1, 0)]
    assert [[head["head"] for head in layer["heads"]] for layer in layers] == [[0, 1], [0], [0, 1]]
    assert table["key"]["one"]["ranks"] == [1, 2, 3, 4, 5, 6]
    heads = evaluated["key"].heads
    assert heads is not None
    # the last layer: heads 3 and 4 of the row, columns 12 to 20
    expected = heads.squared[3:].sum(axis=0) / heads.norm[3:].sum()
    assert layers[2]["relative_squared_error"] == pytest.approx(expected.tolist())
    assert layers[2]["heads"][1]["relative_squared_error"] == pytest.approx(
        (heads.squared[4] / heads.norm[4]).tolist()
    )


def test_intervals_stand_beside_their_figure(solved: Calibration) -> None:
    figures = ErrorFigures(tokens=90)
    ends = {name: (0.1, 0.2) for name in DEFINITIONS}
    figures.add("one", solved.evaluate(moments(1)), {"key": ends, "value": ends})
    assert figures.metrics["key/relative_error/one/lower"] == 0.1
    assert figures.metrics["key/relative_error/one/upper"] == 0.2
    assert figures.curve["value"]["one"]["interval_at_full_rank"] == {
        name: [0.1, 0.2] for name in DEFINITIONS
    }


def test_what_is_not_a_number_is_null(solved: Calibration) -> None:
    pair = MomentsPair(20, 8, layout=LAYOUT)
    pair.update(torch.ones(1, 20), torch.ones(1, 8))
    figures = ErrorFigures(tokens=90)
    figures.add("one", solved.evaluate(pair.centred()))
    text = json.dumps([figures.curve, figures.by_layer], allow_nan=False)
    assert json.loads(text)[0]["key"]["one"]["centred_relative_error"] == [None] * RANK


def test_without_a_layout_there_are_no_layers() -> None:
    pair = MomentsPair(20, 8)
    pair.update(torch.randn(90, 20), torch.randn(90, 8))
    solved = calibrate(pair.centred(), rank=RANK, niter="exact", seed=0)
    figures = ErrorFigures(tokens=90)
    figures.add("one", solved.evaluate(pair.centred()))
    assert figures.by_layer == {"tokens": 90}
    assert len(figures.curve["key"]["one"]["relative_error"]) == RANK

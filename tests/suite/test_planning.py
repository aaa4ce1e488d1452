from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from lightning_modules.looplm.sizes import PRESETS, resolve
from suite.cli import main
from suite.planning import format_bytes, plan_study, print_plan, training_memory
from suite.rates import measured
from suite.study import (
    CalibrationSpec,
    KVShape,
    ModelSpec,
    Niter,
    PretrainingSpec,
    SizeSpec,
    Study,
    TrainerSpec,
)
from suite.study_file import load_study, parse_study

# layers, hidden size and block parameters of the published grid, as its table gives them
GRID = {
    "53M": (6, 512, 20_447_232),
    "134M": (12, 768, 84_934_656),
    "374M": (24, 1024, 308_281_344),
    "778M": (24, 1536, 679_477_248),
    "1.36B": (24, 2048, 1_233_125_376),
}
RECURRENCES = (2, 4, 8)
TOKENS = 20_000_000_000
H200 = 989e12
LLAMA = KVShape(layers=32, heads=8, head_dim=128, parameters=8_030_261_248)


def plan(study: Study) -> Any:
    return plan_study(study, peak_flops=H200, double_peak_flops=67e12, utilisation=0.4)


def grid_study(sequence_length: int) -> Study:
    study, _ = load_study("looplm-scaling")
    assert study.pretraining is not None
    spec = replace(study.pretraining, sequence_length=sequence_length, batch_size=256)
    return replace(study, pretraining=spec)


def calibration(
    niter: tuple[Niter, ...],
    *,
    budgets: tuple[int, ...] = (160_000,),
    evaluate_on: tuple[str, ...] = (),
    calibrate_on: tuple[str, ...] = ("a",),
    rank: int = 10_000,
    shape: KVShape | None = LLAMA,
    precision: Any = "bf16-true",
) -> Study:
    """A study of one model, unchecked: it may lack evaluation corpora."""
    spec = CalibrationSpec(
        models=(ModelSpec(path="m", shape=shape),),
        calibrate_on=calibrate_on,
        evaluate_on=evaluate_on,
        budgets=budgets,
        niter=niter,
        rank=rank,
        evaluation_tokens=1_000,
        trainer=TrainerSpec(precision=precision),
    )
    return Study(name="s", corpora={}, calibration=spec)


def test_training_flops_of_a_preset_by_hand() -> None:
    cell = next(c for c in plan(grid_study(4096)).cells if c.name == "pretrain 134M Tm=4")
    attention = 4 * 12 * 768 * 768
    swiglu = 3 * 12 * 768 * 2048
    head = 32_000 * 768
    per_token = 4 * (6 * (attention + swiglu + head) + 12 * 12 * 768 * 4096)
    tokens = 19_074 * 256 * 4096  # whole batches
    assert cell.flops == pytest.approx(per_token * tokens, rel=1e-12)
    assert cell.tokens == tokens
    assert cell.parameters == 134_125_057


@pytest.mark.parametrize("sequence_length", [128, 2048, 4096])
def test_training_flops_of_the_grid_from_the_published_table(sequence_length: int) -> None:
    planned = plan(grid_study(sequence_length))
    assert len(planned.cells) == 15
    expected = {
        f"pretrain {name} Tm={recurrence}": recurrence
        * (6 * (block + 32_000 * hidden) + 12 * layers * hidden * sequence_length)
        for name, (layers, hidden, block) in GRID.items()
        for recurrence in RECURRENCES
    }
    assert {cell.name: cell.flops / cell.tokens for cell in planned.cells} == pytest.approx(
        expected, rel=1e-12
    )


def test_the_grid_costs_the_known_4_2e21_without_attention_scores() -> None:
    """4.2e21 and 3,000 H200-hours count the weights alone, as for short sequences."""
    weights = sum(
        recurrence * 6 * (block + 32_000 * hidden)
        for _, hidden, block in GRID.values()
        for recurrence in RECURRENCES
    )
    assert weights * TOKENS == pytest.approx(4.2e21, rel=0.01)
    short = plan(grid_study(128))
    assert short.flops == pytest.approx(4.2e21, rel=0.02)
    assert short.total_hours == pytest.approx(3_000, rel=0.02)


@pytest.mark.parametrize(("sequence_length", "share"), [(2048, 0.2), (4096, 0.4)])
def test_attention_scores_come_on_top(sequence_length: int, share: float) -> None:
    """A fifth more at 2,048 tokens a sequence, two fifths at 4,096."""
    planned = plan(grid_study(sequence_length))
    layers_x_hidden = 6 * 512 + 12 * 768 + 24 * 1024 + 24 * 1536 + 24 * 2048
    scores = 12 * sequence_length * layers_x_hidden * sum(RECURRENCES) * planned.cells[0].tokens
    assert planned.flops - scores == pytest.approx(4.225e21, rel=0.001)
    assert planned.flops == pytest.approx((1 + share) * 4.225e21, rel=0.001)


def test_calibration_by_hand_for_llama() -> None:
    """The two kinds of work per matrix that are on record for 160K tokens and rank 10,000."""
    p, r, n = 32_768, 10_000, 160_000
    whole = plan(calibration((8,))).cells[0].flops
    solves = plan(calibration((8,))).cells[0].flops - plan(calibration((0,))).cells[0].flops
    step = solves / 2 / 8  # keys and values; niter 8 has eight more steps than niter 0
    assert step == pytest.approx(2 * p**2 * r + 4 * p * r**2 - 4 * r**3 / 3, rel=1e-9)

    forward = 2 * LLAMA.parameters * n
    assert forward == pytest.approx(2.6e15, rel=0.02)
    moments = (whole - forward - 2 * 9 * step) / 2
    assert moments == pytest.approx(n * p**2, rel=1e-9)  # the half of 2 n p^2 that is computed
    assert 2 * moments + 9 * step == pytest.approx(6.4e14, rel=0.01)


def test_an_eigensolver_costs_nine_cubes() -> None:
    exact, none = (plan(calibration((niter,))).cells[0].flops for niter in ("exact", 0))
    step = 2 * 32_768**2 * 1e4 + 4 * 32_768 * 1e8 - 4e12 / 3
    assert exact - none == pytest.approx(2 * (9 * 32_768**3 - step), rel=1e-9)


def test_passes_that_cells_share_are_counted_once() -> None:
    """Two calibration corpora x two niter: four solves, two passes and one evaluation."""
    cells = plan(calibration((1, 1), calibrate_on=("a", "b"), evaluate_on=("c", "d", "e"))).cells
    per_token = 2 * LLAMA.parameters + 2 * 32_768**2
    first, second, third, fourth = (cell.flops for cell in cells)
    assert first - second == pytest.approx(per_token * (160_000 + 3 * 1_000), rel=1e-9)
    assert third - fourth == pytest.approx(per_token * 160_000, rel=1e-9)
    assert second == fourth


def test_errors_are_counted_at_every_budget_and_corpus() -> None:
    def flops(budgets: tuple[int, ...], corpora: tuple[str, ...]) -> float:
        cells = plan(calibration((1, 1), budgets=budgets, evaluate_on=corpora)).cells
        return float(cells[1].flops)

    solve = 2 * 2 * (2 * 32_768**2 * 1e4 + 4 * 32_768 * 1e8 - 4e12 / 3)
    error = 2 * 2 * 32_768**2 * 1e4
    assert flops((1, 2, 3), ("a", "b")) == pytest.approx(3 * (solve + 2 * error), rel=1e-9)


def test_a_looped_model_is_calibrated_over_all_its_loops() -> None:
    study = parse_study(
        """
        name: s
        corpora: {a: {source: embedded, path: pydocs}}
        pretraining:
          {corpus: a, tokenizer: byte, tokens: 4096, recurrences: [1, 4],
           sizes: [{name: x, num_hidden_layers: 2, hidden_size: 32}]}
        calibration:
          models: [{size: x, recurrence: 1}, {size: x, recurrence: 4}]
          calibrate_on: [a]
          evaluate_on: [a]
          budgets: [1000]
          niter: [0]
          rank: 1
        """
    )
    one, four = (cell.parameters for cell in plan(study).cells if "calibrate" in cell.name)
    looped = 2 * (4 * 32**2 + 3 * 32 * 96 + 4 * 32)
    assert four - one == 3 * looped
    assert one == looped + 32 + 33 + 2 * 257 * 32


def test_an_undeclared_shape_is_an_open_cost() -> None:
    cells = plan(calibration((1,), shape=None)).cells
    assert (cells[0].parameters, cells[0].flops, cells[0].memory) == (None, None, None)
    assert plan(calibration((1,), shape=None)).flops == 0


def memory(recurrence: int = 2, size: str = "53M", **changes: Any) -> float:
    trainer = TrainerSpec(
        precision=changes.pop("precision", "32-true"),
        devices=changes.pop("devices", 1),
        num_nodes=changes.pop("num_nodes", 1),
    )
    spec = PretrainingSpec(
        corpus="a",
        sizes=(SizeSpec(name="x", num_hidden_layers=1, hidden_size=64),),
        tokens=10**6,
        trainer=trainer,
        **{"sequence_length": 256, "batch_size": 8, **changes},
    )
    return training_memory(spec, resolve(PRESETS[size], vocab_size=32_000), recurrence)


def test_memory_by_hand() -> None:
    tokens = 8 * 256
    states = 16 * 53_228_545
    activations = tokens * 2 * 6 * (10 * 512 + 3 * 1536) * 4
    logits = tokens * 2 * 32_000 * 3 * 4  # below the size of a chunk
    assert memory() == states + activations + logits


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"recurrence": 4}),
        ({}, {"size": "134M"}),
        ({}, {"sequence_length": 512}),
        ({}, {"batch_size": 16}),
        ({"micro_batch_size": 2}, {"micro_batch_size": 4}),
        ({"micro_batch_size": 2}, {}),
        ({"precision": "bf16-mixed"}, {"precision": "32-true"}),
        ({"precision": "32-true"}, {"precision": "64-true"}),
        ({"devices": 4}, {"devices": 2}),
        ({"devices": 2, "num_nodes": 2}, {"devices": 2}),
    ],
)
def test_memory_grows_with_what_a_device_holds(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert memory(**less) < memory(**more)


def test_memory_follows_the_share_of_one_device_and_no_more() -> None:
    assert memory(devices=4) == memory(micro_batch_size=2)
    assert memory(micro_batch_size=2, batch_size=64) == memory(micro_batch_size=2)
    assert memory(devices="auto") == memory()


def test_memory_of_a_calibration_is_that_of_its_matrices() -> None:
    (cell,) = plan(calibration((8,))).cells
    p, r = 32_768, 10_000
    blocks = 10 * 8 * p * r  # of the solver, beside one matrix; more than the two of a pass
    assert cell.memory == 8_030_261_248 * 2 + 8 * p**2 + blocks
    (exact,) = plan(calibration(("exact",))).cells
    assert exact.memory == 8_030_261_248 * 2 + 5 * 8 * p**2
    (small,) = plan(calibration((8,), rank=1_000)).cells
    assert small.memory == 8_030_261_248 * 2 + 2 * 8 * p**2
    assert plan(calibration((8,), rank=1, precision="32-true")).cells[0].memory > 4 * 8.03e9


def test_hours_follow_peak_and_utilisation() -> None:
    study = load_study("demo")[0]
    slow = plan_study(study, peak_flops=1e12, double_peak_flops=1e11, utilisation=0.5)
    trained = slow.cells[0]
    assert slow.hours(trained) == pytest.approx(trained.flops / 0.5e12 / 3600)
    calibrated = slow.cells[-1]
    assert calibrated.double_flops > 0
    single = calibrated.flops - calibrated.double_flops
    seconds = single / 0.5e12 + calibrated.double_flops / 0.05e12
    assert slow.hours(calibrated) == pytest.approx(seconds / 3600)
    assert slow.flops == plan(study).flops > 0


@pytest.mark.parametrize("name", ["demo", "looplm-scaling", "kv-calibration"])
def test_shipped_studies_are_planned_cell_by_cell(name: str) -> None:
    study, _ = load_study(name)
    planned = plan(study)
    cells = 0
    if study.pretraining is not None:
        cells += len(study.pretraining.sizes) * len(study.pretraining.recurrences)
    if study.calibration is not None:
        spec = study.calibration
        cells += len(spec.models) * len(spec.calibrate_on) * len(spec.niter)
    assert len(planned.cells) == cells
    assert len({cell.name for cell in planned.cells}) == cells
    assert all(cell.flops > 0 and cell.memory > 0 for cell in planned.cells)


def test_the_table_names_cells_totals_and_what_is_not_known() -> None:
    text = io.StringIO()
    print_plan(plan(grid_study(128)), Console(file=text, width=200))
    assert "looplm-scaling: 15 cells" in text.getvalue()
    assert "pretrain 1.36B Tm=8" in text.getvalue()
    assert "1.36B" in text.getvalue()
    assert "In all 4.28e+21 FLOPs" in text.getvalue()
    assert "40% of 989 TFLOP/s" in text.getvalue()
    assert "?" not in text.getvalue()

    text = io.StringIO()
    print_plan(plan(calibration((1,), shape=None)), Console(file=text, width=200))
    assert "declared as `shape`" in text.getvalue()


@pytest.mark.parametrize(("width", "h100", "h200"), [(32_768, True, True), (65_536, False, True)])
def test_it_is_said_which_devices_hold_the_largest_cell(width: int, h100: bool, h200: bool) -> None:
    shape = KVShape(layers=1, heads=1, head_dim=width, parameters=8_030_261_248)
    planned = plan(calibration((8,), evaluate_on=("a", "b"), shape=shape, rank=900))
    # weights, and one matrix with the blocks of its solver, or the two of a pass
    needed = 2 * 8_030_261_248 + max(2 * 8 * width**2, 8 * width**2 + 8 * 8 * width * 900)
    assert planned.cells[0].memory == pytest.approx(needed)
    assert (needed <= 80e9, needed <= 141e9) == (h100, h200)
    text = io.StringIO()
    print_plan(planned, Console(file=text, width=400))
    words = {True: "fits", False: "does not fit"}
    assert f"{words[h100]} an H100 (80 GB), {words[h200]} an H200 (141 GB)." in text.getvalue()


def test_held_out_cells_are_planned_last_and_said_to_be() -> None:
    study, _ = load_study("demo")
    planned = plan(study)
    trained = [cell.name for cell in planned.cells if cell.name.startswith("pretrain")]
    sizes, recurrences = ("tiny", "small", "medium"), (1, 2, 4)
    held_out = [f"pretrain large Tm={recurrence}" for recurrence in recurrences]
    assert trained == [
        *(f"pretrain {size} Tm={recurrence}" for recurrence in recurrences for size in sizes),
        *held_out,
    ]
    assert planned.held_out == tuple(held_out)
    text = io.StringIO()
    print_plan(planned, Console(file=text, width=400))
    assert (
        "The law predicts the held-out cells once the other pretraining cells have finished, and "
        f"before any of them begins: {', '.join(held_out)}.\n"
    ) in text.getvalue()

    text = io.StringIO()
    print_plan(plan(replace(study, law=None)), Console(file=text, width=400))
    assert "predicts" not in text.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (12_000, "12 KB"), (3.4e8, "340 MB"), (1.23e9, "1.23 GB")],
)
def test_bytes_are_written_in_the_unit_that_fits(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_measured_rates_are_operations_over_the_least_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock of our own: products of 64 x 64 take 4, 2, 3 and 5 s, then twice as long."""
    took = [4.0, 2.0, 3.0, 5.0, 8.0, 4.0, 6.0, 10.0]
    times = itertools.chain.from_iterable((100.0 * at, 100.0 * at + s) for at, s in enumerate(took))
    monkeypatch.setattr("suite.rates.time.perf_counter", times.__next__)
    monkeypatch.setattr("suite.rates._SIDE", {"cpu": 64})
    rates, words = measured(TrainerSpec(accelerator="cpu", precision="bf16-mixed"))
    assert rates == (2 * 64**3 / 2.0, 2 * 64**3 / 4.0)
    assert words == "measured on this CPU in bfloat16"


def test_what_is_given_stands_beside_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("suite.rates.measured", lambda trainer: ((3e12, 2e12), "measured here"))
    study, _ = load_study("kv-calibration")
    for given, flops, double, share in (
        ([], 3e12, 2e12, 1.0),
        (["--peak-tflops", "5"], 5e12, 2e12, 1.0),
        (["--peak-float64-tflops", "7", "--utilisation", "0.5"], 3e12, 7e12, 0.5),
    ):
        assert main(["plan", "kv-calibration", "--measure", *given]) == 0
        said = " ".join(capsys.readouterr().out.split())
        expected = plan_study(study, peak_flops=flops, double_peak_flops=double, utilisation=share)
        assert f"{expected.total_hours:,.3g} device-hours at {share:.0%} of" in said
        assert "measured here." in said

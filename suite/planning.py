"""What a study would cost, from arithmetic alone: no corpus, no model and no store is opened."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_modules.kv_footprint import BLOCKS, EXACT_MATRICES
from lightning_modules.looplm.sizes import (
    Shape,
    count_parameters,
    format_count,
    resolve,
    training_flops_per_token,
)
from lightning_modules.schedule import PretrainingPlan
from suite.study import (
    CalibrationSpec,
    HoldOut,
    KVShape,
    ModelSpec,
    Niter,
    PretrainingSpec,
    Study,
)
from suite.study_rules import model_label, vocabulary
from suite.terminal import shown

_STATE_BYTES = 16  # float32 weights, gradients and AdamW's two averages, a parameter
_ACTIVATION_BYTES = {"32-true": 4, "64-true": 8}
_OPEN_ROWS = 1_024  # of the block under way, which a file of moments holds, too
_DEVICES = {"H100": 80e9, "H200": 141e9}  # bytes of memory, as their makers state it


@dataclass(frozen=True, kw_only=True)
class CellCost:
    """Cost of one cell.

    Attributes:
        name: as its run is called.
        parameters: of the model, or none where they are not known before it is loaded.
        tokens: trained on, or calibrated on.
        flops: floating-point operations; pretraining's evaluations are left out.
        double_flops: those that are done in float64: moments, solves and errors.
        memory: bytes on one device at its peak, or none where not known.
    """

    name: str
    parameters: int | None
    tokens: int
    flops: float | None
    memory: float | None
    double_flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Costs of a study.

    Attributes:
        study: its name.
        cells: in the order in which they run.
        peak_flops: peak of one device, operations a second.
        double_peak_flops: its peak in float64.
        utilisation: share of either peak that is assumed to be reached.
        cache_bytes: KV moments on disk, as far as shapes are known.
        searches: trials of all searches.
        held_out: names of the cells that the law holds out; they run after the other
            pretraining cells, once the law has predicted them.
        rates: where the peaks come from, in words; none where they were given.
    """

    study: str
    cells: tuple[CellCost, ...]
    peak_flops: float
    double_peak_flops: float
    utilisation: float
    cache_bytes: float
    searches: int
    held_out: tuple[str, ...] = ()
    rates: str | None = None

    @property
    def flops(self) -> float:
        """Operations of all cells whose cost is known."""
        return sum(cell.flops or 0.0 for cell in self.cells)

    def hours(self, cell: CellCost) -> float:
        """Device-hours of a cell; 0 where its cost is not known."""
        single = (cell.flops or 0.0) - cell.double_flops
        seconds = single / self.peak_flops + cell.double_flops / self.double_peak_flops
        return seconds / self.utilisation / 3600

    @property
    def total_hours(self) -> float:
        """Device-hours of all cells whose cost is known."""
        return sum(map(self.hours, self.cells))


def plan_study(
    study: Study,
    *,
    peak_flops: float,
    double_peak_flops: float,
    utilisation: float,
    rates: str | None = None,
) -> Plan:
    """Cost every cell of a study.

    A pretraining cell costs ``training_flops_per_token`` a token. A calibration cell costs its
    forward pass (2 N operations a token), moments (2 p^2 a token, keys and values, at half for
    symmetry), solves (see ``_solve_flops``) and errors. Passes that cells share are counted with
    the first of them: over a calibration corpus on its first niter, over the evaluation corpora
    on the first cell of a model.

    Args:
        study: the study.
        peak_flops: peak of one device, operations a second.
        double_peak_flops: its peak in float64.
        utilisation: share of the peak, above 0 and at most 1.
        rates: where the peaks come from, in words.
    """
    cells: list[CellCost] = []
    held_out: list[CellCost] = []
    if study.pretraining is not None:
        hold_out = study.law.hold_out if study.law is not None else HoldOut()
        held_out = _pretraining(study.pretraining, hold_out, held_out=True)
        cells += [*_pretraining(study.pretraining, hold_out, held_out=False), *held_out]
    if study.calibration is not None:
        cells += _calibration(study, study.calibration)
    return Plan(
        study=study.name,
        cells=tuple(cells),
        peak_flops=peak_flops,
        double_peak_flops=double_peak_flops,
        utilisation=utilisation,
        cache_bytes=_cache_bytes(study, study.calibration) if study.calibration else 0.0,
        searches=sum(search.trials for search in study.searches),
        held_out=tuple(cell.name for cell in held_out),
        rates=rates,
    )


def _pretraining(spec: PretrainingSpec, hold_out: HoldOut, *, held_out: bool) -> list[CellCost]:
    plan = PretrainingPlan.of(spec)
    costs = []
    for recurrence in spec.recurrences:
        for size in spec.sizes:
            if hold_out.covers(size.name, recurrence) is not held_out:
                continue
            shape = resolve(size, vocab_size=vocabulary(spec) or size.vocab_size or 32_000)
            flops = training_flops_per_token(shape, recurrence, spec.sequence_length)
            costs.append(
                CellCost(
                    name=f"pretrain {size.name} Tm={recurrence}",
                    parameters=count_parameters(shape).total,
                    tokens=plan.tokens,
                    flops=float(flops) * plan.tokens,
                    memory=training_memory(spec, shape, recurrence),
                )
            )
    return costs


def training_memory(spec: PretrainingSpec, shape: Shape, recurrence: int) -> float:
    """Bytes on one device: states, saved activations of all loops, and one chunk of logits.

    A layer saves, per token, about 10 times the hidden size (inputs of norms, projections and
    residual sums) and 3 times the SwiGLU width; attention saves no matrix of scores.
    """
    devices = 1 if spec.trainer.devices == "auto" else spec.trainer.devices
    micro = spec.micro_batch_size or -(-spec.batch_size // (devices * spec.trainer.num_nodes))
    tokens = micro * spec.sequence_length
    width = _ACTIVATION_BYTES.get(spec.trainer.precision, 2)
    layer = 10 * shape.hidden_size + 3 * shape.intermediate_size
    activations = tokens * recurrence * shape.num_hidden_layers * layer * width
    logits = min(tokens * recurrence * shape.vocab_size, 2**27) * 3 * 4
    return float(_STATE_BYTES * count_parameters(shape).total + activations + logits)


def _calibration(study: Study, spec: CalibrationSpec) -> list[CellCost]:
    costs = []
    for model in spec.models:
        shape = model.shape or _looped_shape(study, model)
        evaluated = len(spec.evaluate_on) * spec.evaluation_tokens
        for corpus in spec.calibrate_on:
            passed = spec.budgets[-1]
            for niter in spec.niter:
                costs.append(
                    _calibration_cell(spec, model, shape, corpus, niter, forward=passed + evaluated)
                )
                passed = evaluated = 0
    return costs


def _looped_shape(study: Study, model: ModelSpec) -> KVShape | None:
    spec = study.pretraining
    if spec is None or model.size is None or model.recurrence is None:
        return None
    size = next(size for size in spec.sizes if size.name == model.size)
    shape = resolve(size, vocab_size=vocabulary(spec) or size.vocab_size or 32_000)
    counts = count_parameters(shape)
    return KVShape(
        layers=shape.num_hidden_layers * model.recurrence,
        heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        parameters=counts.total + (model.recurrence - 1) * counts.looped,
    )


def _calibration_cell(
    spec: CalibrationSpec,
    model: ModelSpec,
    shape: KVShape | None,
    corpus: str,
    niter: Niter,
    *,
    forward: int,
) -> CellCost:
    """Cost of one cell, of which ``forward`` tokens go through the model."""
    flops = memory = None
    double = 0.0
    if shape is not None:
        width = shape.layers * shape.heads * shape.head_dim
        passes = forward * (2.0 * shape.parameters + 2.0 * width**2)
        solves = 2 * len(spec.budgets) * _solve_flops(width, spec.rank, niter)
        errors = 2 * len(spec.budgets) * len(spec.evaluate_on) * 2.0 * width**2 * spec.rank
        flops = passes + solves + errors
        double = flops - forward * 2.0 * shape.parameters
        weights = shape.parameters * _ACTIVATION_BYTES.get(spec.trainer.precision, 2)
        # beside the model: the sums of keys and values in a pass, then one matrix at a time with
        # what its solver works on
        matrix = 8.0 * width**2
        blocks = BLOCKS * 8.0 * width * spec.rank
        solver = EXACT_MATRICES * matrix if niter == "exact" else matrix + blocks
        memory = weights + max(2 * matrix, solver)
    return CellCost(
        name=f"calibrate {model_label(model)} on {corpus} niter={niter}",
        parameters=shape.parameters if shape else None,
        tokens=spec.budgets[-1],
        flops=flops,
        memory=memory,
        double_flops=double,
    )


def _cache_bytes(study: Study, spec: CalibrationSpec) -> float:
    """Keys and values at every budget and of every evaluation corpus, and rows for intervals."""
    total = 0.0
    for model in spec.models:
        shape = model.shape or _looped_shape(study, model)
        if shape is not None:
            width = shape.layers * shape.heads * shape.head_dim
            files = len(spec.calibrate_on) * len(spec.budgets) + len(spec.evaluate_on)
            total += files * 2 * 8.0 * width * (width + _OPEN_ROWS)
            if spec.intervals:
                rows = len(spec.evaluate_on) * spec.evaluation_tokens
                total += rows * 2 * width * _ACTIVATION_BYTES.get(spec.trainer.precision, 2)
    return total


def _solve_flops(width: int, rank: int, niter: Niter) -> float:
    """Operations of one basis: products with C and orthonormalisations, or an eigensolver.

    A subspace step multiplies C (p x p) by p x r (2 p^2 r) and orthonormalises the result by
    Householder (4 p r^2 - 4 r^3 / 3 with Q); there are niter + 1 of them. A symmetric eigensolver
    with vectors takes about 9 p^3 (Golub and Van Loan, sections 5.2 and 8.3).
    """
    if niter == "exact":
        return 9.0 * width**3
    orthonormalise = 4.0 * width * rank**2 - 4.0 * rank**3 / 3.0
    return (niter + 1) * (2.0 * width**2 * rank + orthonormalise)


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Show a plan as a table with its totals."""
    console = console or Console(highlight=False)
    table = Table(title=f"{plan.study}: {len(plan.cells)} cells", title_justify="left")
    table.add_column("cell", overflow="fold")
    for column in ("parameters", "tokens", "FLOPs", "memory", "device-hours"):
        table.add_column(column, justify="right", no_wrap=True)
    for cell in plan.cells:
        table.add_row(
            Text(shown(cell.name)),
            "?" if cell.parameters is None else format_count(cell.parameters),
            format_count(cell.tokens),
            "?" if cell.flops is None else f"{cell.flops:.2e}",
            "?" if cell.memory is None else format_bytes(cell.memory),
            "?" if cell.flops is None else f"{plan.hours(cell):.3g}",
        )
    console.print(table)
    known = sum(cell.flops is not None for cell in plan.cells)
    if known:
        console.print(
            f"In all {'' if known == len(plan.cells) else 'at least '}{plan.flops:.3g} FLOPs, "
            f"{plan.total_hours:,.3g} device-hours at "
            f"{plan.utilisation:.0%} of {_tera(plan.peak_flops)} TFLOP/s "
            f"({_tera(plan.double_peak_flops)} in float64, for moments and solves)"
            f"{f', {plan.rates}' if plan.rates else ''}."
        )
    if plan.held_out:
        console.print(
            "The law predicts the held-out cells once the other pretraining cells have finished, "
            f"and before any of them begins: {shown(', '.join(plan.held_out))}.",
            markup=False,
        )
    if any(cell.double_flops for cell in plan.cells):
        console.print("Passes that calibration cells share are counted with the first of them.")
    if needed := [cell.memory for cell in plan.cells if cell.memory is not None]:
        console.print(
            f"The largest cell needs {format_bytes(max(needed))} on one device: "
            + ", ".join(
                f"{'fits' if max(needed) <= memory else 'does not fit'} an {name} "
                f"({format_bytes(memory)})"
                for name, memory in _DEVICES.items()
            )
            + "."
        )
    if plan.cache_bytes:
        console.print(f"KV moments take {format_bytes(plan.cache_bytes)} in the home's cache.")
    if plan.searches:
        console.print(f"Searches add {plan.searches} solves, not counted above.")
    if any(cell.flops is None for cell in plan.cells):
        console.print("? : the model's shape is known once it is loaded, or declared as `shape`.")


def _tera(flops: float) -> str:
    """Tera-operations a second, in whole ones where there are many."""
    tera = flops / 1e12
    return f"{tera:,.0f}" if tera >= 10 else f"{tera:.2g}"


def format_bytes(count: float) -> str:
    """Bytes in the unit that fits: ``1.2 GB``, ``340 MB``, ``12 KB``."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"

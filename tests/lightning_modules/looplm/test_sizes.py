from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from lightning_modules.looplm.sizes import (
    PRESET_VOCAB_SIZE,
    PRESETS,
    Shape,
    count_parameters,
    format_count,
    resolve,
    training_flops_per_token,
)
from suite.errors import InputError
from suite.study import SizeSpec

GRID_RECURRENCES = (2, 4, 8)


def small(**settings: int) -> SizeSpec:
    return SizeSpec(name="small", **({"num_hidden_layers": 2, "hidden_size": 64} | settings))


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "ffn", "block", "total"),
    [
        ("53M", 6, 512, 1536, 20_447_232, 53_228_545),
        ("134M", 12, 768, 2048, 84_934_656, 134_125_057),
        ("374M", 24, 1024, 2816, 308_281_344, 373_917_697),
        ("778M", 24, 1536, 4096, 679_477_248, 777_931_777),
        ("1.36B", 24, 2048, 5632, 1_233_125_376, 1_364_398_081),
    ],
)
def test_presets_have_the_published_shapes_and_counts(
    name: str, layers: int, hidden: int, ffn: int, block: int, total: int
) -> None:
    shape = resolve(PRESETS[name], vocab_size=PRESET_VOCAB_SIZE)
    counts = count_parameters(shape)
    assert (shape.num_hidden_layers, shape.hidden_size, shape.intermediate_size) == (
        layers,
        hidden,
        ffn,
    )
    assert shape.head_dim == 64
    assert (counts.matrices, counts.total) == (block, total)
    assert format_count(counts.total) == name


def test_ouro_2_6b_has_its_published_count() -> None:
    shape = Shape(
        num_hidden_layers=48,
        hidden_size=2048,
        intermediate_size=5632,
        num_attention_heads=16,
        head_dim=128,
        vocab_size=49_152,
    )
    assert count_parameters(shape).total == 2_667_974_657


def test_parts_add_up_and_62_percent_of_the_smallest_preset_is_embeddings() -> None:
    counts = count_parameters(resolve(PRESETS["53M"], vocab_size=32_000))
    assert counts.non_embedding == counts.looped + counts.final_norm + counts.gate
    assert counts.total == counts.non_embedding + 2 * 32_000 * 512
    assert counts.looped - counts.matrices == 6 * 4 * 512
    assert (counts.embedding + counts.head) / counts.total == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize(
    ("hidden", "ffn", "heads"),
    [(32, 96, 2), (64, 176, 4), (96, 256, 6), (128, 352, 8), (240, 640, 15), (256, 768, 4)],
)
def test_left_out_widths_follow_the_rule_for_small_and_large_models(
    hidden: int, ffn: int, heads: int
) -> None:
    shape = resolve(small(hidden_size=hidden), vocab_size=512)
    assert (shape.intermediate_size, shape.num_attention_heads) == (ffn, heads)
    assert shape.head_dim == (16 if hidden < 256 else 64)


def test_given_widths_win_over_the_rule() -> None:
    spec = small(intermediate_size=192, num_attention_heads=2, vocab_size=1000)
    assert resolve(spec, vocab_size=512) == Shape(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=192,
        num_attention_heads=2,
        head_dim=32,
        vocab_size=1000,
    )
    assert resolve(replace(spec, vocab_size=None), vocab_size=512).vocab_size == 512


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden_size": 72}, "72.*multiple of 16"),
        ({"hidden_size": 8}, "8.*multiple of 16"),
        ({"hidden_size": 320 + 16}, "336.*multiple of 64"),
        ({"num_attention_heads": 3}, "64.*num_attention_heads 3"),
        ({"hidden_size": 60, "num_attention_heads": 4}, "width 15"),
        ({"vocab_size": 256}, "256.*512"),
    ],
)
def test_impossible_shapes_are_refused_with_the_value_and_the_cure(
    settings: dict[str, int], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        resolve(small(**settings), vocab_size=512)
    assert caught.value.key == "pretraining.sizes"
    assert "'small'" in str(caught.value)


def test_six_n_d_overcounts_small_models_most() -> None:
    # Without attention, the ratio of 6 N D T_m to the real count: 45 % and 5 % too much.
    for name, excess in (("53M", 1.445), ("1.36B", 1.051)):
        shape = resolve(PRESETS[name], vocab_size=32_000)
        naive = 6 * count_parameters(shape).total * 4
        assert naive / training_flops_per_token(shape, 4, 0) == pytest.approx(excess, abs=0.001)


def test_the_published_grid_costs_about_4_2e21_flops() -> None:
    total = sum(
        20_000_000_000 * training_flops_per_token(resolve(spec, vocab_size=32_000), recurrence, 0)
        for spec in PRESETS.values()
        for recurrence in GRID_RECURRENCES
    )
    assert total == pytest.approx(4.22e21, rel=0.002)


def test_flops_grow_linearly_with_recurrence_and_with_length_in_attention_only() -> None:
    shape = resolve(PRESETS["134M"], vocab_size=32_000)
    once = training_flops_per_token(shape, 1, 1024)
    assert training_flops_per_token(shape, 8, 1024) == 8 * once
    assert training_flops_per_token(shape, 1, 2048) - once == 12 * 12 * 768 * 1024


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (59_713, "60K"),
        (999_499, "999K"),
        (999_500, "1M"),
        (53_228_545, "53M"),
        (999_499_999, "999M"),
        (999_500_000, "1.00B"),
        (1_364_398_081, "1.36B"),
        (2_667_974_657, "2.67B"),
    ],
)
def test_counts_are_written_as_models_are_named(count: int, text: str) -> None:
    assert format_count(count) == text


def test_sizes_can_be_costed_without_torch() -> None:
    program = (
        "import sys, lightning_modules.looplm.sizes;"
        "print({'torch', 'transformers', 'lightning'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr

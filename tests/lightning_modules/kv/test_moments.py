from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from lightning_modules.kv.moments import CentredMoments, Moments
from suite.errors import SuiteError

P = 24


def rows(count: int, *, mean: float = 0.0, seed: int = 0, width: int = P) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    centre = mean * torch.randn(width, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, width, generator=generator, dtype=torch.float64)
    return noise @ mixing / width**0.5 + centre


def two_pass(data: Tensor) -> tuple[Tensor, Tensor]:
    data = data.double()
    mean = data.mean(dim=0)
    return mean, (data - mean).T @ (data - mean)


def moments_of(data: Tensor, *, block: int = 16, **options: torch.dtype) -> CentredMoments:
    moments = Moments(data.shape[1], block=block, **options)
    moments.update(data)
    return moments.snapshot()


def assert_same_bits(left: CentredMoments, right: CentredMoments) -> None:
    assert left.count == right.count
    assert torch.equal(left.mean, right.mean)
    assert torch.equal(left.scatter, right.scatter)


def relative(left: Tensor, right: Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_moments_equal_a_two_pass_computation(count: int, mean: float) -> None:
    data = rows(count, mean=mean)
    moments = moments_of(data)
    expected_mean, expected_scatter = two_pass(data)
    assert moments.count == count
    assert relative(moments.mean, expected_mean) < 1e-14
    # One row scatters by nothing, so compare on the scale of the spread.
    assert float((moments.scatter - expected_scatter).norm()) < 1e-11 * (1 + count) * P**0.5
    assert torch.equal(moments.scatter, moments.scatter.T)


def test_wide_rows_are_right_on_every_panel() -> None:
    data = rows(40, width=2100, mean=3.0)
    moments = moments_of(data)
    joined = moments_of(data[:7]) + moments_of(data[7:])
    for scatter in (moments.scatter, joined.scatter):
        assert relative(scatter, two_pass(data)[1]) < 1e-13
        assert torch.equal(scatter, scatter.T)


@pytest.mark.parametrize(("mean", "raw_error", "error"), [(1e3, 1e-10, 1e-13), (1e6, 1e-4, 1e-10)])
def test_a_large_mean_costs_no_digits(mean: float, raw_error: float, error: float) -> None:
    data = rows(500, mean=mean)
    _, expected = two_pass(data)
    raw = data.T @ data - data.sum(0)[:, None] * data.mean(0)
    assert relative(raw, expected) > raw_error
    assert relative(moments_of(data).scatter, expected) < error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_any_floating_type_are_exact(dtype: torch.dtype) -> None:
    data = rows(100).to(dtype)
    assert relative(moments_of(data).scatter, two_pass(data)[1]) < 1e-14


@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_single_precision_products_keep_six_digits_whatever_the_mean(mean: float) -> None:
    data = rows(500, mean=mean).float()
    moments = moments_of(data, block=128, gram_dtype=torch.float32)
    assert relative(moments.scatter, two_pass(data)[1]) < 1e-6


@settings(deadline=None, max_examples=25)
@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    looks=st.sets(st.integers(0, 11)),
    gram_dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_batching_and_snapshots_leave_every_bit_alone(
    cuts: list[int], looks: set[int], gram_dtype: torch.dtype
) -> None:
    data = rows(sum(cuts), mean=2.0)
    moments = Moments(P, block=16, gram_dtype=gram_dtype)
    seen = 0
    for index, batch in enumerate(data.split(cuts)):
        moments.update(batch)
        seen += len(batch)
        assert moments.num_rows == seen
        if index in looks:
            assert_same_bits(moments.snapshot(), moments_of(data[:seen], gram_dtype=gram_dtype))
    assert_same_bits(moments.snapshot(), moments_of(data, gram_dtype=gram_dtype))


def test_a_snapshot_does_not_change_afterwards() -> None:
    data = rows(40)
    moments = Moments(P, block=16)
    moments.update(data[:20])
    early = moments.snapshot()
    moments.update(data[20:])
    assert_same_bits(early, moments_of(data[:20]))


@pytest.mark.parametrize("stop", [5, 16, 39])
def test_a_restart_inside_a_block_leaves_every_bit_alone(stop: int) -> None:
    data = rows(60, mean=2.0)
    moments = Moments(P, block=16)
    moments.update(data[:stop])
    file = io.BytesIO()
    torch.save(moments.state_dict(), file)
    file.seek(0)
    resumed = Moments(P, block=16)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    resumed.update(data[stop:])
    moments.update(data[stop:])
    assert_same_bits(resumed.snapshot(), moments_of(data))
    assert_same_bits(moments.snapshot(), moments_of(data))


def test_loading_leaves_the_loaded_tensors_alone() -> None:
    moments = Moments(P, block=16)
    moments.update(rows(20))
    state = moments.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    resumed = Moments(P, block=16)
    resumed.load_state_dict(state)
    resumed.update(rows(20))
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Moments(P + 1, block=16), "width 24 and block 16"),
        (Moments(P, block=8), "buffer is torch.float64"),
        (Moments(P, block=16, gram_dtype=torch.float32), "buffer is torch.float32"),
        (torch.nn.Linear(1, 1), r"Missing key.*outer"),
    ],
)
def test_a_state_of_other_moments_is_refused(other: torch.nn.Module, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        Moments(P, block=16).load_state_dict(other.state_dict())


def test_autocast_and_module_casts_do_not_lower_the_precision() -> None:
    data = rows(40).float()
    for gram_dtype in (torch.float32, torch.float64):
        moments = Moments(P, block=16, gram_dtype=gram_dtype).half()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            moments.update(data)
            assert_same_bits(moments.snapshot(), moments_of(data, gram_dtype=gram_dtype))


def test_reset_forgets_all_rows() -> None:
    moments = Moments(P, block=16)
    moments.update(rows(40, seed=1))
    moments.reset()
    moments.update(rows(20))
    assert_same_bits(moments.snapshot(), moments_of(rows(20)))


def test_forward_adds_the_batch_and_returns_its_moments() -> None:
    data = rows(40)
    moments = Moments(P, block=16)
    moments.update(data[:10])
    count, mean, scatter = moments(data[10:])
    assert_same_bits(
        CentredMoments(count=int(count), mean=mean, scatter=scatter), moments_of(data[10:])
    )
    assert_same_bits(moments.snapshot(), moments_of(data))


@pytest.mark.parametrize(("first", "second"), [(1, 1), (30, 70), (99, 1)])
def test_the_sum_of_two_is_the_moments_of_both(first: int, second: int) -> None:
    data = rows(first + second, mean=1e3)
    joined = moments_of(data[:first]) + moments_of(data[first:])
    expected_mean, expected_scatter = two_pass(data)
    assert joined.count == first + second
    assert relative(joined.mean, expected_mean) < 1e-14
    assert relative(joined.scatter, expected_scatter) < 1e-11
    assert torch.equal(joined.scatter, joined.scatter.T)


def test_sums_of_squares_and_scatter_about_another_point() -> None:
    data, centre = rows(50, mean=2.0), torch.arange(P, dtype=torch.float64)
    moments = moments_of(data)
    assert moments.sum_of_squares == pytest.approx(float(data.square().sum()), rel=1e-13)
    centred = (data - data.mean(0)).square().sum()
    assert moments.centred_sum_of_squares == pytest.approx(float(centred), rel=1e-13)
    expected = (data - centre).T @ (data - centre)
    assert relative(moments.centred_about(centre), expected) < 1e-14
    assert relative(moments.centred_about(torch.zeros(P)), data.T @ data) < 1e-14


def test_a_file_gives_back_every_bit(tmp_path: Path) -> None:
    moments = moments_of(rows(30))
    path = tmp_path / "moments.safetensors"
    moments.save(path)
    moments.save(path)
    assert_same_bits(CentredMoments.load(path), moments)
    assert [file.name for file in tmp_path.iterdir()] == ["moments.safetensors"]


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "moments.safetensors"
    moments_of(rows(30)).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        SuiteError, match=r"moments\.safetensors is damaged or holds something else"
    ):
        CentredMoments.load(path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": torch.zeros(3)},
        {"count": torch.tensor(3), "mean": torch.zeros(3), "scatter": torch.zeros(3, 2)},
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(SuiteError, match="delete it"):
        CentredMoments.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, P + 1), torch.zeros(P), torch.zeros(3, P, dtype=torch.int64)]
)
def test_rows_of_another_shape_or_type_are_refused(bad: Tensor) -> None:
    with pytest.raises(ValueError, match=rf"\[n, {P}\]"):
        Moments(P).update(bad)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="block 0"):
        Moments(P, block=0)
    with pytest.raises(ValueError, match="bfloat16"):
        Moments(P, gram_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="no rows"):
        Moments(P).snapshot()
    with pytest.raises(ValueError, match="width 24 and 3"):
        moments_of(rows(5)) + moments_of(torch.ones(5, 3))


def _rank_of_two(rank: int, port: int, counts: tuple[int, int], folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    data = rows(sum(counts) + 20, mean=1e3)
    own = data[: counts[0]] if rank == 0 else data[counts[0] : sum(counts)]
    moments = Moments(P, block=16)
    moments.update(own)
    moments.over_ranks().save(Path(folder) / f"first-{rank}")
    assert_same_bits(moments.snapshot(), moments_of(own))
    # Rows go on arriving after the ranks have spoken.
    moments.update(data[sum(counts) :][rank * 10 : rank * 10 + 10])
    moments.over_ranks().save(Path(folder) / f"second-{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(40, 7)])
def test_two_ranks_give_the_moments_of_one(tmp_path: Path, counts: tuple[int, int]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank_of_two, args=(port, counts, str(tmp_path)), nprocs=2)
    data = rows(sum(counts) + 20, mean=1e3)
    for name, count in (("first", sum(counts)), ("second", len(data))):
        one, two = (CentredMoments.load(tmp_path / f"{name}-{rank}") for rank in (0, 1))
        assert_same_bits(one, two)
        expected_mean, expected_scatter = two_pass(data[:count])
        assert one.count == count
        assert relative(one.mean, expected_mean) < 1e-14
        assert relative(one.scatter, expected_scatter) < 1e-11

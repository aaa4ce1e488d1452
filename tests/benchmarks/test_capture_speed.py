"""A forward pass with keys and values captured against one without, at the shape of SmolLM2."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_modules.kv.capture import KVCapture

pytestmark = pytest.mark.benchmark

ROUNDS = 7


def least_seconds(*works: Callable[[], object]) -> list[float]:
    """Least seconds of each, taken in turn, so that other work slows all of them alike."""
    best = [float("inf")] * len(works)
    for turn in range(ROUNDS + 1):
        for position, work in enumerate(works):
            begun = time.perf_counter()
            work()
            if turn:  # the first is for warming up
                best[position] = min(best[position], time.perf_counter() - begun)
    return best


def test_a_forward_pass_with_capture_costs_at_most_a_tenth_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1_024,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 1_024, (1, 512))

    def plain() -> None:
        with torch.inference_mode():
            model.model(input_ids=ids, use_cache=False)

    by_hooks = KVCapture(model)
    monkeypatch.setattr("lightning_modules.kv.capture.hook_route", lambda *probed: None)
    by_cache = KVCapture(model)
    assert by_hooks.route == "hooks: LlamaAttention k_proj, v_proj"
    assert by_cache.route == "cache: LlamaForCausalLM keys, rotary undone in halves"
    assert by_hooks.layout.key_width == 5_760

    def hooks() -> None:
        with by_hooks:
            by_hooks.capture(ids)

    def cache() -> None:
        with by_cache:
            by_cache.capture(ids)

    without, with_hooks, with_cache = least_seconds(plain, hooks, cache)
    with capsys.disabled():
        print(
            f"\nforward pass of {ids.numel()} tokens, p = 5,760, {torch.get_num_threads()} "
            f"threads, load {psutil.getloadavg()[0]:.1f}: without capture {without:.3f} s, "
            f"by hooks {with_hooks:.3f} s (ratio {with_hooks / without:.3f}), "
            f"by the cache {with_cache:.3f} s (ratio {with_cache / without:.3f})"
        )
    assert with_hooks <= 1.10 * without
    assert with_cache <= 1.10 * without

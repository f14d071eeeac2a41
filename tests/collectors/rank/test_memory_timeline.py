"""Memory by category: blocks told apart by hand, and real steps against what they must hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from collectors.rank.memory import live_tensor_bytes, states_of
from collectors.rank.memory_snapshot import (
    CATEGORIES,
    BlockChange,
    MemoryCurve,
    Span,
    Storage,
    curve_of,
    mark_phase,
    record_curve,
)
from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready

CPU = torch.device("cpu")
FORWARD, BACKWARD = Span(name="forward", start_ns=10, end_ns=20), Span(name="backward", start_ns=30, end_ns=40)


def change(time_ns: int, address: int, size_bytes: int) -> BlockChange:
    return BlockChange(time_ns=time_ns, address=address, size_bytes=size_bytes)


def held(curve: MemoryCurve) -> list[tuple[int, dict[str, int]]]:
    return [
        (time_ns, {name: size for name, size in zip(CATEGORIES, row, strict=True) if size})
        for time_ns, row in zip(curve.times_ns.tolist(), curve.held_bytes.tolist(), strict=True)
    ]


def curve(
    *changes: BlockChange, before: dict[int, Storage] | None = None, after: dict[int, Storage] | None = None
) -> list[tuple[int, dict[str, int]]]:
    return held(curve_of(changes, [BACKWARD, FORWARD], before=before or {}, after=after or {}))


def test_what_outlives_forward_is_an_activation_and_what_does_not_is_temporary() -> None:
    blocks = [change(11, 1, 100), change(12, 2, 7), change(19, 2, -7), change(31, 1, -100)]
    assert curve(*blocks) == [
        (11, {"activations": 100}),
        (12, {"activations": 100, "temporary": 7}),
        (19, {"activations": 100}),
        (31, {}),
    ]


def test_what_outlives_another_phase_or_is_made_in_none_is_other() -> None:
    assert curve(change(25, 1, 5), change(31, 2, 6)) == [(25, {"other": 5}), (31, {"other": 11})]


def test_a_block_that_states_lie_in_afterwards_is_theirs_from_the_beginning() -> None:
    after = {1: Storage(part="gradients", size_bytes=64)}
    assert curve(change(31, 1, 64), after=after) == [(31, {"gradients": 64})]


def test_an_address_that_is_given_out_again_is_another_block() -> None:
    after = {1: Storage(part="gradients", size_bytes=64)}
    blocks = [change(11, 1, 100), change(31, 1, -100), change(32, 1, 64)]
    assert curve(*blocks, after=after) == [(11, {"activations": 100}), (31, {}), (32, {"gradients": 64})]


def test_a_block_that_was_dropped_unheard_ends_when_its_address_is_given_out_again() -> None:
    assert curve(change(11, 1, 100), change(35, 1, 8)) == [(11, {"activations": 100}), (35, {"other": 8})]


def test_a_state_that_the_step_keeps_is_there_from_the_first_change_on() -> None:
    weights = {9: Storage(part="parameters", size_bytes=40)}
    assert curve(change(11, 1, 2), before=weights, after=weights) == [(11, {"parameters": 40, "activations": 2})]


def test_a_state_that_the_step_drops_is_there_until_then() -> None:
    old = {9: Storage(part="gradients", size_bytes=40)}
    assert curve(change(5, 1, 1), change(8, 9, -40), before=old) == [
        (5, {"gradients": 40, "other": 1}),
        (8, {"other": 1}),
    ]


def test_a_state_that_is_gone_unheard_was_never_there() -> None:
    old = {9: Storage(part="gradients", size_bytes=40)}
    assert curve(change(5, 1, 1), before=old) == [(5, {"other": 1})]
    new = curve(change(5, 1, 1), change(31, 9, 40), before=old, after=old)
    assert new == [(5, {"other": 1}), (31, {"gradients": 40, "other": 1})]


def test_a_block_of_no_state_that_is_older_than_the_step_is_not_seen() -> None:
    assert curve(change(5, 1, -100)) == []


def test_a_real_step_against_a_hand_made_count() -> None:
    model = nn.Sequential(nn.Linear(100, 50, bias=False), nn.ReLU())
    optimizer = AdamW(model.parameters(), fused=True)
    x_bd = torch.randn(30, 100)

    def step() -> None:
        optimizer.zero_grad()
        with mark_phase("forward"):
            scratch = torch.zeros(1_000_000, dtype=torch.uint8)
            out_bd = model(x_bd)
            del scratch
        with mark_phase("backward"):
            out_bd.sum().backward()
        with mark_phase("optimizer"):
            optimizer.step()

    step()
    weight_bytes, out_bytes = 4 * 100 * 50, 4 * 30 * 50
    found = record_curve(step, CPU, lambda: states_of(model, optimizer))
    assert found.peak() == {
        "parameters": weight_bytes,
        "optimizer": 2 * weight_bytes + 4,
        "activations": out_bytes,  # What ReLU gives, which its backward needs.
        "temporary": 1_000_000 + out_bytes,  # What it was given, which nobody needs any more.
        "total": 3 * weight_bytes + 4 + 1_000_000 + 2 * out_bytes,
    }
    (*_, (_, left)) = held(found)
    assert left.pop("other", 0) < 100
    assert left == {"parameters": weight_bytes, "gradients": weight_bytes, "optimizer": 2 * weight_bytes + 4}


class SwitchedMarks:
    """Marks phases while it is on."""

    def __init__(self) -> None:
        self.is_on = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with mark_phase(name) if self.is_on else nullcontext():
            yield


def look(setup: SmallSetup) -> tuple[dict[str, int], dict[str, int]]:
    """A step by the tracker of live tensors, and one by its blocks."""
    marks = SwitchedMarks()
    ready = make_ready(setup, marks.phase)
    for _ in range(2):
        ready.step()
    model, optimizer = ready.workload.model, ready.workload.optimizer
    assert isinstance(optimizer, AdamW)
    live = live_tensor_bytes(ready.step, model, optimizer)
    marks.is_on = True
    peak = record_curve(ready.step, CPU, lambda: states_of(model, optimizer)).peak()
    return {sample.labels["category"]: int(sample.value) for sample in live}, peak


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("ddp", 2)])
def test_two_accounts_of_a_step_agree_but_for_what_is_older_than_it(
    strategy: str, ranks: int, on_ranks: OnRanks
) -> None:
    setup = small_setup(strategy, ranks=ranks)
    tokens_bytes = 8 * setup.shape.batch // ranks * (setup.shape.sequence + 1)
    for live, peak in on_ranks(ranks, look, setup):
        assert peak["total"] == live["total"] - live["buffers"] - tokens_bytes
        for state in ("parameters", "gradients", "optimizer"):
            assert peak[state] == live[state]
        assert peak["activations"] + peak["temporary"] == live["activations"] + live["temporary"] - tokens_bytes

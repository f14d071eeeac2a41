"""A checkpoint is loaded bit by bit, and training goes on as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from tests.support.ranks import OnRanks
from tests.workloads.core.checkpoints.saving_runs import Resumed, load_and_train, train_and_save
from tests.workloads.training.setups import SMALL, ranks_of, small_setup
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue

ONCE_IN_A_PROCESS = ("deepspeed", "parameter_server")
TWO_BLOCKS = replace(SMALL, layers=2)

VARIANTS: Mapping[str, tuple[Mapping[str, OptionValue], ...]] = {
    "fsdp": ({"offload": True},),
    "deepspeed": ({"stage": 0}, {"stage": 1}, {"stage": 3}),
    "parameter_server": ({"mode": "asynchronous"},),
}


def cases() -> Iterator[Any]:
    for spec in SPECS:
        if spec.kind == "training":
            for options in ({}, *VARIANTS.get(spec.name, ())):
                words = [spec.name, *(f"{name}={value}" for name, value in options.items())]
                marks = [pytest.mark.slow] if options and spec.name in ONCE_IN_A_PROCESS else []
                yield pytest.param(spec.name, options, id=" ".join(words), marks=marks)


@pytest.mark.parametrize(("strategy", "options"), [*cases()])
def test_training_goes_on_bit_by_bit(
    strategy: str,
    options: Mapping[str, OptionValue],
    on_ranks: OnRanks,
    on_fresh_ranks: OnRanks,
    tmp_path: Path,
) -> None:
    spec = spec_of(strategy)
    setup = small_setup(strategy, ranks=ranks_of(spec), options=options)
    if "stage" not in spec.mesh(setup):
        setup = replace(setup, shape=TWO_BLOCKS)
    start = on_fresh_ranks if strategy in ONCE_IN_A_PROCESS else on_ranks
    saved = start(setup.ranks, train_and_save, setup, tmp_path / "checkpoint")
    loaded = start(setup.ranks, load_and_train, setup, tmp_path / "checkpoint")
    assert any(name.startswith("optimizer.") or ".optimizer." in name for name in saved[0].states)
    for before, after in zip(saved, loaded, strict=True):
        assert before.states.keys() == after.states.keys()
        for name, tensor in before.states.items():
            assert torch.equal(tensor, after.states[name]), name
        assert before.losses == after.losses


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "pipeline_naive"])
def test_a_save_in_the_background_holds_the_states_of_its_moment(
    strategy: str, on_ranks: OnRanks, tmp_path: Path
) -> None:
    setup = small_setup(strategy, ranks=2)
    saved = on_ranks(2, train_and_save, setup, tmp_path / "checkpoint", "async")
    loaded = on_ranks(2, load_and_train, setup, tmp_path / "checkpoint")
    for before, after in zip(saved, loaded, strict=True):
        assert all(torch.equal(tensor, after.states[name]) for name, tensor in before.states.items())
        assert before.losses == after.losses


def test_fp16_goes_on_at_its_scale(on_ranks: OnRanks, tmp_path: Path) -> None:
    setup = small_setup("ddp", ranks=2, precision="fp16", shape=TWO_BLOCKS)
    saved = on_ranks(2, train_and_save, setup, tmp_path / "checkpoint")
    loaded = on_ranks(2, load_and_train, setup, tmp_path / "checkpoint")
    assert [rank.progress for rank in saved] == [rank.progress for rank in loaded]
    assert saved[0].progress["scale"] > 1
    assert [rank.losses for rank in saved] == [rank.losses for rank in loaded]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("single", {}), ("ddp", {"grad_dtype": "bf16"}), ("zero1", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_weights_in_bf16_go_on_from_their_master(
    strategy: str, options: Mapping[str, OptionValue], on_ranks: OnRanks, tmp_path: Path
) -> None:
    ranks = 1 if strategy == "single" else 2
    setup = small_setup(
        strategy, ranks=ranks, precision="bf16", shape=TWO_BLOCKS, options={**options, "weights": "bf16"}
    )
    saved = on_ranks(ranks, train_and_save, setup, tmp_path / "checkpoint")
    loaded = on_ranks(ranks, load_and_train, setup, tmp_path / "checkpoint")
    for before, after in zip(saved, loaded, strict=True):
        assert before.states.keys() == after.states.keys()
        assert all(torch.equal(tensor, after.states[name]) for name, tensor in before.states.items())
        assert before.losses == after.losses
    states = all_states(saved)
    # A weight in bf16, and its master and two moments in fp32; the count of steps is one number.
    assert sum(state.nbytes for state in states.values() if state.dim()) == 14 * setup.shape.parameters()


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "options"), [("fsdp", {}), ("deepspeed", {"stage": 3})], ids=str)
def test_a_workload_that_has_trained_goes_back(
    strategy: str, options: Mapping[str, OptionValue], on_fresh_ranks: OnRanks, tmp_path: Path
) -> None:
    setup = small_setup(strategy, ranks=2, shape=TWO_BLOCKS, options=options)
    saved = on_fresh_ranks(2, train_and_save, setup, tmp_path / "checkpoint")
    loaded = on_fresh_ranks(2, load_and_train, setup, tmp_path / "checkpoint", 1)
    assert [rank.losses for rank in saved] == [rank.losses for rank in loaded]


RESIZED: tuple[tuple[str, Mapping[str, OptionValue]], ...] = (
    ("ddp", {}),
    ("zero1", {}),
    ("zero2", {}),
    ("fsdp", {}),
    ("hsdp", {}),
    ("tensor_parallel", {}),
    ("one_f_one_b", {"microbatches": 8}),
    ("three_d", {"tensor_ranks": 1, "data_axis": "fsdp"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
@pytest.mark.parametrize(("strategy", "options"), RESIZED, ids=lambda value: value if isinstance(value, str) else "")
def test_another_number_of_ranks_goes_on(
    strategy: str, options: Mapping[str, OptionValue], before: int, after: int, on_ranks: OnRanks, tmp_path: Path
) -> None:
    """All states are equal bit by bit; losses as far as sums in another order allow."""
    folder = tmp_path / "checkpoint"
    old_setup, new_setup = (
        small_setup(strategy, ranks=ranks, options=options, shape=replace(SMALL, kv_heads=4))
        for ranks in (before, after)
    )
    if "stage" not in spec_of(strategy).mesh(old_setup):
        old_setup, new_setup = (
            replace(setup, shape=replace(TWO_BLOCKS, kv_heads=4)) for setup in (old_setup, new_setup)
        )
    saved = on_ranks(before, train_and_save, old_setup, folder)
    loaded = on_ranks(after, load_and_train, new_setup, folder)
    old, new = all_states(saved), all_states(loaded)
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name]), name
    assert mean_losses(loaded) == pytest.approx(mean_losses(saved), rel=1e-5)


def all_states(ranks: Sequence[Resumed]) -> dict[str, torch.Tensor]:
    return {name: tensor for rank in ranks for name, tensor in rank.states.items()}


def mean_losses(ranks: Sequence[Resumed]) -> list[float]:
    """The loss of each step, over the ranks that compute one."""
    return [
        fmean(loss for loss in step if loss is not None) for step in zip(*(rank.losses for rank in ranks), strict=True)
    ]

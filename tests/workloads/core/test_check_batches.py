"""The batches of a convergence check: short epochs, and the mistake of a sampler that is never told its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from tests.workloads.training.setups import small_setup
from workloads.core.data import make_batches
from workloads.options import Check, Mistake
from workloads.spec import DataShare


def rows(steps: int, mistakes: Sequence[Mistake] = ()) -> list[list[list[int]]]:
    """The sequences of each step, on the first of two data ranks."""
    check = Check(epoch_steps=2, data_ranks=2, has_batch_norm=False, mistakes=tuple(mistakes))
    with closing(make_batches(small_setup(options=check.options()), DataShare(rank=0, ranks=2))) as batches:
        return [next(batches).tolist() for _ in range(steps)]


def test_an_epoch_of_a_check_ends_after_its_steps_and_the_next_has_another_order() -> None:
    first, second = rows(4)[:2], rows(4)[2:]
    assert first != second


def test_the_mistake_repeats_the_first_epoch_and_changes_nothing_in_it() -> None:
    wrong = rows(6, ["sampler_epoch"])
    assert wrong[:2] == rows(2)
    assert wrong[2:4] == wrong[:2]
    assert wrong[4:6] == wrong[:2]

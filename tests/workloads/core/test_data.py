"""The batches of a rank: the same for any number of ranks, new in each epoch, and ended on request."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.workloads.training.setups import SMALL, small_setup
from workloads.core.data import Batches, Progressions, to_device
from workloads.spec import OptionValue


def make_batches(data_rank: int = 0, data_ranks: int = 1, epoch_steps: int = 2, **options: OptionValue) -> Batches:
    setup = small_setup(options=options)
    return Batches(setup, data_rank=data_rank, data_ranks=data_ranks, epoch_steps=epoch_steps)


def take(batches: Batches, steps: int) -> Iterator[Tensor]:
    with closing(batches):
        for _ in range(steps):
            yield next(batches)


def rows(*batches_bs: Tensor) -> list[tuple[int, ...]]:
    return sorted(tuple(row_s) for tokens_bs in batches_bs for row_s in tokens_bs.tolist())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("data_ranks", [2, 4])
def test_ranks_share_out_the_same_sequences_however_many_they_are(data_ranks: int, accumulate: int) -> None:
    steps = 5
    whole = list(take(make_batches(), steps))
    shares = [list(take(make_batches(rank, data_ranks, accumulate=accumulate), steps)) for rank in range(data_ranks)]
    for step in range(steps):
        assert rows(*(share[step] for share in shares)) == rows(whole[step])


def test_a_batch_is_that_of_one_optimizer_step() -> None:
    batches = make_batches(data_ranks=2, accumulate=2)
    (tokens_bs,) = take(batches, 1)
    assert tokens_bs.shape == (SMALL.batch // 2, SMALL.sequence + 1)
    assert len(tokens_bs) == batches.sequences
    assert tokens_bs.dtype == torch.int64
    assert int(tokens_bs.min()) >= 0
    assert int(tokens_bs.max()) < SMALL.vocabulary


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_has_each_sequence_once_and_the_next_another_order(workers: int) -> None:
    first, second, third, fourth = take(make_batches(workers=workers), 4)
    assert rows(first, second) == rows(third, fourth)
    assert rows(first) != rows(third)


def test_worker_processes_change_no_batch() -> None:
    for alone, by_workers in zip(take(make_batches(), 3), take(make_batches(workers=2), 3), strict=True):
        assert torch.equal(alone, by_workers)


def test_workers_end_at_close() -> None:
    batches = make_batches(workers=2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert not multiprocessing.active_children()


def test_a_delay_sleeps_once_in_each_batch() -> None:
    slept_s: list[float] = []
    setup = small_setup(options={"loader_delay_ms": 250.0})
    with closing(Batches(setup, data_rank=0, data_ranks=1, sleep=slept_s.append)) as batches:
        for _ in range(3):
            next(batches)
    assert slept_s == [0.25, 0.25, 0.25]


def test_no_delay_sleeps_never() -> None:
    slept_s: list[float] = []
    with closing(Batches(small_setup(), data_rank=0, data_ranks=1, sleep=slept_s.append)) as batches:
        next(batches)
    assert slept_s == []


def test_most_tokens_follow_their_neighbours() -> None:
    shape = replace(SMALL, vocabulary=1000, sequence=512)
    tokens_s = Progressions(shape, seed=0, sequences=1)[0]
    steps_s = np.diff(tokens_s) % shape.vocabulary
    stride = np.bincount(steps_s).argmax()
    assert 1 <= stride <= 4
    # A replaced token breaks two steps: 0.9 squared are left.
    assert (steps_s == stride).mean() == pytest.approx(0.81, abs=0.06)


def test_items_depend_on_seed_and_index_only() -> None:
    first, again = (Progressions(SMALL, seed=3, sequences=10) for _ in range(2))
    other = Progressions(SMALL, seed=4, sequences=10)
    assert np.array_equal(first[5], again[5])
    assert not np.array_equal(first[5], first[6])
    assert not np.array_equal(first[5], other[5])


def test_a_sequence_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match="10"):
        Progressions(SMALL, seed=0, sequences=10)[10]


def test_the_batch_arrives_on_the_device() -> None:
    (tokens_bs,) = take(make_batches(), 1)
    assert to_device(tokens_bs, torch.device("meta")).device.type == "meta"


def test_sequences_count_up_in_strides_of_one_to_four_and_a_tenth_of_the_tokens_is_chance() -> None:
    """As `Progressions` says of itself, found without its generator: the stride that most neighbours agree on."""
    shape = replace(SMALL, vocabulary=1000, sequence=255)
    sequences = Progressions(shape, seed=3, sequences=200)
    positions = np.arange(256)
    strides, replaced = set(), 0
    for number in range(200):
        tokens_s = sequences[number]
        differences, counts = np.unique(np.diff(tokens_s) % 1000, return_counts=True)
        stride = int(differences[counts.argmax()])
        _, counts = np.unique((tokens_s - stride * positions) % 1000, return_counts=True)
        strides.add(stride)
        replaced += 256 - int(counts.max())
    assert strides == {1, 2, 3, 4}
    # Of 51,200 tokens: the standard deviation is 68.
    assert abs(replaced - 0.1 * 51_200 * 999 / 1000) < 5 * 68

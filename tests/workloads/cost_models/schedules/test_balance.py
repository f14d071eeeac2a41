"""The cut of blocks into stages, against all cuts that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.cost_models.schedules import balance, equal_layers, flops_balance
from workloads.cost_models.shape import PRESETS

costs = st.integers(min_value=0, max_value=9)


def all_cuts(blocks: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, blocks), stages - 1):
        ends = (0, *inner, blocks)
        yield tuple(end - start for start, end in pairwise(ends))


def longest(blocks: Sequence[float], cut: Sequence[int], before: float, after: float) -> float:
    sums, start = [], 0
    for count in cut:
        sums.append(sum(blocks[start : start + count]))
        start += count
    sums[0] += before
    sums[-1] += after
    return max(sums)


@given(blocks=st.lists(costs, min_size=1, max_size=7), before=costs, after=costs, data=st.data())
def test_no_other_cut_has_a_shorter_longest_stage(
    blocks: list[int], before: int, after: int, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(min_value=1, max_value=len(blocks)))
    found = balance(blocks, stages, before=before, after=after)
    cuts = list(all_cuts(len(blocks), stages))
    assert found in cuts
    assert longest(blocks, found, before, after) == min(longest(blocks, cut, before, after) for cut in cuts)


@pytest.mark.parametrize(
    ("blocks", "stages", "before", "after", "expected"),
    [
        ([1.0] * 8, 4, 0.0, 0.0, (2, 2, 2, 2)),
        ([1.0] * 8, 2, 0.0, 6.0, (7, 1)),
        ([1.0] * 6, 2, 4.0, 0.0, (1, 5)),
        ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2, 0.0, 0.0, (1, 5)),
        ([3.0, 1.0, 4.0], 1, 0.0, 0.0, (3,)),
    ],
)
def test_cuts_found_by_hand(
    blocks: list[float], stages: int, before: float, after: float, expected: tuple[int, ...]
) -> None:
    assert balance(blocks, stages, before=before, after=after) == expected


def test_of_cuts_that_are_as_good_early_stages_have_more_blocks() -> None:
    assert balance([1.0] * 7, 2) == (4, 3)


@pytest.mark.parametrize("stages", [0, 4])
def test_a_stage_without_a_block_is_refused(stages: int) -> None:
    with pytest.raises(ValueError, match=f"stages is {stages}; 3 blocks can be cut into 1 to 3"):
        balance([1.0] * 3, stages)


def test_equal_layers_are_equal_or_refused() -> None:
    assert equal_layers(12, 4) == (3, 3, 3, 3)
    with pytest.raises(ValueError, match="layers is 12, which 5 stages do not divide"):
        equal_layers(12, 5)


def test_a_heavy_head_takes_blocks_from_the_last_stage() -> None:
    shape = replace(PRESETS["tiny"], layers=8)
    # A head of so many words multiplies as many weights as three blocks, and has no attention between them.
    wordy = replace(shape, vocabulary=3 * shape.block_parameters() // shape.width)
    assert flops_balance(replace(shape, vocabulary=2), 2) == (4, 4)
    assert flops_balance(wordy, 2) == (5, 3)

"""One rank's collectives find their places among another's, whatever the clocks show."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.cross_rank.collective_order import CollectiveSequence, Shift, best_shift, ran_together
from collectors.traces.timeline import ABSENT

MILLISECOND_NS = 1_000_000


def _sequence(
    kinds: list[int], end_ns: list[int], lasts_ns: int = 1000, steps: list[int] | None = None
) -> CollectiveSequence:
    return CollectiveSequence(
        kinds=np.array(kinds, dtype=np.int64),
        steps=np.array([ABSENT] * len(kinds) if steps is None else steps, dtype=np.int64),
        start_ns=np.array(end_ns, dtype=np.int64) - lasts_ns,
        end_ns=np.array(end_ns, dtype=np.int64),
    )


def _shift(one: CollectiveSequence, other: CollectiveSequence) -> int | None:
    shift = best_shift(one, other)
    return None if shift is None else shift.positions


@given(seed=st.integers(0, 10_000), shift=st.integers(0, 6), apart_ns=st.integers(-(10**9), 10**9))
def test_steps_of_unlike_lengths_tell_where_a_trace_begins_that_was_cut(seed: int, shift: int, apart_ns: int) -> None:
    chance = random.Random(seed)
    end_ns = np.cumsum([chance.randint(MILLISECOND_NS, 3 * MILLISECOND_NS) for _ in range(14)]).tolist()
    noisy_ns = [end + apart_ns + chance.randint(0, 5_000) for end in end_ns]
    whole, cut = _sequence([7] * 14, end_ns), _sequence([7] * (14 - shift), noisy_ns[shift:])
    assert _shift(whole, cut) == shift
    assert _shift(cut, whole) == -shift


def test_kinds_tell_the_place_even_where_steps_are_alike() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(6)]
    assert _shift(_sequence([1, 2, 3, 1, 4, 3], end_ns), _sequence([1, 4, 3], end_ns[3:])) == 3


def test_where_nothing_tells_places_apart_the_traces_begin_together() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(6)]
    assert _shift(_sequence([1] * 6, end_ns), _sequence([1] * 4, end_ns[:4])) == 0


def test_two_collectives_that_both_ranks_have_are_too_few_to_tell_of_a_cut() -> None:
    assert _shift(_sequence([1, 1, 1], [0, 1000, 900_000]), _sequence([1, 1, 1], [0, 300_000, 600_000])) == 0


def test_orders_that_are_too_unlike_do_not_agree() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(4)]
    assert _shift(_sequence([1, 2, 1, 2], end_ns), _sequence([3, 4, 1, 3], end_ns)) is None


def test_ranks_that_were_not_in_a_collective_at_one_time_were_not_in_it_together() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(8)]
    other_ns = [end + (number % 2) * 400_000 for number, end in enumerate(end_ns)]
    assert not ran_together(_sequence([1] * 8, end_ns), _sequence([1] * 8, other_ns), 0)
    assert ran_together(_sequence([1] * 8, end_ns), _sequence([1] * 8, [end + 10**12 for end in end_ns]), 0)


def test_equal_numbers_of_steps_tell_the_place_where_ends_would_tell_another() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(8)]
    one = _sequence([1] * 8, end_ns, steps=[4, 4, 5, 5, 6, 6, 7, 7])
    other = _sequence([1] * 8, end_ns, steps=[6, 6, 7, 7, 8, 8, 9, 9])
    assert best_shift(one, other) == Shift(positions=4, is_by_steps=True, shared_ratio=0.5)
    assert best_shift(other, one) == Shift(positions=-4, is_by_steps=True, shared_ratio=0.5)


def test_a_quarter_of_the_steps_in_common_is_enough_where_they_are_numbered() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(4)]
    shift = best_shift(_sequence([1] * 4, end_ns, steps=[0, 1, 2, 3]), _sequence([1] * 4, end_ns, steps=[3, 4, 5, 6]))
    assert shift == Shift(positions=3, is_by_steps=True, shared_ratio=0.25)


def test_a_collective_before_the_first_numbered_step_moves_no_place() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(4)]
    assert (
        _shift(_sequence([1] * 4, end_ns, steps=[0, 1, 2, 3]), _sequence([1] * 4, end_ns, steps=[ABSENT, 1, 2, 3])) == 0
    )


def test_traces_whose_numbered_steps_are_all_others_have_no_place() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(4)]
    assert (
        best_shift(_sequence([1] * 4, end_ns, steps=[0, 0, 1, 1]), _sequence([1] * 4, end_ns, steps=[2, 2, 3, 3]))
        is None
    )


def test_numbers_that_kinds_gainsay_are_not_gone_by() -> None:
    end_ns = [MILLISECOND_NS * number for number in range(4)]
    one, other = (
        _sequence([1, 2, 3, 4], end_ns, steps=[0, 1, 2, 3]),
        _sequence([1, 2, 3, 4], end_ns, steps=[1, 2, 3, 4]),
    )
    assert best_shift(one, other) == Shift(positions=0)


def test_places_that_fit_as_well_are_counted() -> None:
    ends_ns = [0, 300_000, 600_000, 900_000, 1_200_000, 1_500_000]
    uneven_ns = [end + 40_000 * (number % 2) for number, end in enumerate(ends_ns)]
    shift = best_shift(_sequence([1] * 6, ends_ns), _sequence([1] * 6, uneven_ns))
    assert shift is not None
    assert not shift.is_by_steps
    assert shift.ties > 0


def test_ends_are_compared_to_the_nanosecond_whatever_the_clocks_count_from() -> None:
    since_ns = 1_795_187_272_350_042_681
    ends_ns = [0, 3_000_000, 4_000_000, 9_000_000]
    assert _shift(_sequence([1] * 4, ends_ns), _sequence([1] * 4, [since_ns + end for end in ends_ns])) == 0

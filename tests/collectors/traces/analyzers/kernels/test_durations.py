"""The middle and the spread of durations agree with those of numpy and of the definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.kernels import Durations, durations


def test_the_figures_of_a_few_are_what_they_are_by_hand() -> None:
    values_ns = np.array([5, 100, 1, 3, 4, 200], dtype=np.int64)
    assert durations(values_ns, np.array([7, 9, 7, 7, 7, 9])) == {
        7: Durations(
            count=4, total_ns=13, mean_ns=3, median_ns=4, deviation_ns=1, p95_ns=5, longest_ns=5
        ),  # The mean is 3.25, the median 3.5; the distances from 4 are 3, 1, 0 and 1.
        9: Durations(count=2, total_ns=300, mean_ns=150, median_ns=150, deviation_ns=50, p95_ns=200, longest_ns=200),
    }


def test_95_percent_of_twenty_do_not_exceed_the_nineteenth() -> None:
    found = durations(np.arange(1, 21, dtype=np.int64), np.zeros(20, dtype=np.int64))
    assert found[0].p95_ns == 19


def test_sums_that_exceed_64_bits_are_exact() -> None:
    (found,) = durations(np.array([2**62 + 1, 2**62, 2**62 + 2], dtype=np.int64), np.zeros(3, dtype=np.int64)).values()
    assert (found.total_ns, found.mean_ns, found.median_ns) == (3 * 2**62 + 3, 2**62 + 1, 2**62 + 1)


def test_none_have_no_figures() -> None:
    assert durations(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)) == {}


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 3)), min_size=1, max_size=60))
def test_every_group_is_as_if_it_were_alone(pairs: list[tuple[int, int]]) -> None:
    values_ns, group = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    found = durations(values_ns, group)
    assert list(found) == sorted(set(group.tolist()))
    for number, figures in found.items():
        mine = values_ns[group == number]
        assert (figures.count, figures.total_ns, figures.longest_ns) == (mine.size, mine.sum(), mine.max())
        assert abs(figures.mean_ns - mine.mean()) <= 0.501
        assert figures.median_ns == np.ceil(np.median(mine))
        assert figures.deviation_ns == np.ceil(np.median(np.abs(mine - figures.median_ns)))
        assert (mine <= figures.p95_ns).sum() * 100 >= 95 * mine.size
        assert (mine < figures.p95_ns).sum() * 100 < 95 * mine.size

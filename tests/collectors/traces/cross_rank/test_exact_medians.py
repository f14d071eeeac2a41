"""Medians of moments are exact at any time."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.traces.cross_rank.collective_order import median_ns

UNIX_NS = 1_795_187_272_350_042_681


@pytest.mark.parametrize("since_ns", [0, UNIX_NS, -UNIX_NS])
def test_the_median_is_exact_however_large_the_moments_are(since_ns: int) -> None:
    moments_ns = np.array([7, 1, 4], dtype=np.int64) + since_ns
    assert median_ns(moments_ns).tolist() == since_ns + 4


def test_of_an_even_number_the_half_is_cut_off() -> None:
    assert median_ns(np.array([[1, 4], [UNIX_NS, UNIX_NS + 3]], dtype=np.int64), axis=1).tolist() == [2, UNIX_NS + 1]

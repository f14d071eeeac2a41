"""The median of moments, exact however large they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times


def median_ns(moments_ns: Times, axis: int = 0) -> Times:
    """The median along the axis, half a nanosecond cut off.

    A float holds moments near each other to the nanosecond only after what they have in common is taken off.
    """
    first_ns = np.take(moments_ns, [0], axis=axis)
    apart_ns: NDArray[np.float64] = np.median((moments_ns - first_ns).astype(np.float64), axis=axis)
    middle_ns: Times = np.take(first_ns, 0, axis=axis) + np.floor(apart_ns).astype(np.int64)
    return middle_ns

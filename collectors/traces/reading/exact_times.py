"""Nanoseconds of what a trace writes as decimal microseconds, without a floating point that rounds them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np

from collectors.traces.intervals import Times

EXACT_BELOW_US = 2.0**43
"""Below it neighbouring doubles are less than a nanosecond apart, so that the nearest one tells the nanosecond."""

NANOSECONDS_FROM_US = 10**17
"""What is not less cannot be microseconds since 1970: it counts nanoseconds."""

LARGEST_US = (2**63 - 1) // 1000


class Inexact(ValueError):
    """A number is too large for a double to tell its nanoseconds, or has part of one; its digits tell."""


def of_numbers(values: Sequence[object]) -> Times:
    """Nanoseconds of microseconds that were read as integers and doubles.

    Raises:
        Inexact: these numbers do not tell them.
    """
    if not values:
        return np.empty(0, dtype=np.int64)
    numbers = np.array(values)
    if numbers.dtype == np.int64 and numbers.min() >= -LARGEST_US and numbers.max() <= LARGEST_US:
        whole_ns: Times = numbers * 1000
        return whole_ns
    if numbers.dtype != np.float64 or not np.abs(numbers).max() < EXACT_BELOW_US:
        raise Inexact
    whole = np.floor(numbers)
    # Both differences are exact, so that only the double's own distance from the digits is rounded away.
    nearest_ns: Times = whole.astype(np.int64) * 1000 + np.rint((numbers - whole) * 1000).astype(np.int64)
    if not np.array_equal(nearest_ns / 1000, numbers):  # More than three decimals, which digits alone round.
        raise Inexact
    return nearest_ns


def of_digits(starts: Sequence[bytes], durations: Sequence[bytes]) -> tuple[Times, Times]:
    """Nanoseconds of starts, and of durations or none, as they are written; each event's start tells its own unit.

    Raises:
        ValueError: one is no number.
        OverflowError: one is beyond 64 bits.
    """
    starts_ns, durations_ns = ([exact_ns(digits) for digits in column] for column in (starts, durations))
    counts_ns = [start_ns >= 1000 * NANOSECONDS_FROM_US for start_ns in starts_ns]
    if any(counts_ns):
        starts_ns, durations_ns = (
            [value // 1000 if is_counted else value for is_counted, value in zip(counts_ns, column, strict=False)]
            for column in (starts_ns, durations_ns)
        )
    return np.array(starts_ns, dtype=np.int64), np.array(durations_ns, dtype=np.int64)


def exact_ns(digits: bytes) -> int:
    """Nanoseconds of the digits of microseconds; what is less than one is rounded.

    Raises:
        ValueError: it is no number, or one of more than 30 letters.
        OverflowError: it is beyond 64 bits.
    """
    whole, _, decimals = digits.partition(b".")
    if len(decimals) <= 3 and whole.isdigit() and (not decimals or decimals.isdigit()):
        return int(whole + decimals.ljust(3, b"0"))
    if not digits or digits[:1] not in b"-0123456789" or len(digits) > 30:
        raise ValueError("no time")
    number = msgspec.json.decode(digits, type=Decimal)
    if number and number.adjusted() > 30:
        raise OverflowError("a time is beyond 64 bits")
    return round(number * 1000)

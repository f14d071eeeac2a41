"""Decimal microseconds become nanoseconds without a floating point that rounds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.reading.decoders import EXACT_BELOW_US, Inexact, exact_ns, ns_of_digits, ns_of_numbers

BOUND_NS = int(EXACT_BELOW_US) * 1000


def _written(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03}"


@given(st.lists(st.one_of(st.integers(0, BOUND_NS - 1), st.integers(BOUND_NS - 10**6, BOUND_NS - 1)), min_size=1))
def test_below_the_bound_the_nearest_double_tells_the_nanosecond(times_ns: list[int]) -> None:
    assert ns_of_numbers([float(_written(time_ns)) for time_ns in times_ns]).tolist() == times_ns


def test_from_the_bound_on_doubles_are_refused() -> None:
    with pytest.raises(Inexact):
        ns_of_numbers([1.5, EXACT_BELOW_US])
    # Two nanoseconds that one double stands for: no rule could tell them apart.
    assert float("8796093022208.001") == float("8796093022208.002")


def test_whole_microseconds_are_exact_up_to_64_bits() -> None:
    assert ns_of_numbers([1661203462598738, -3, 0]).tolist() == [1661203462598738000, -3000, 0]
    with pytest.raises(Inexact):
        ns_of_numbers([2**63 // 1000 + 1])


def test_integers_and_doubles_may_be_mixed() -> None:
    assert ns_of_numbers([3, 2.001]).tolist() == [3000, 2001]


@pytest.mark.parametrize("number", [1.0005, 1.0015, 1234567.89012])
def test_more_than_three_decimals_are_left_to_the_digits(number: float) -> None:
    with pytest.raises(Inexact):
        ns_of_numbers([2.5, number])


@pytest.mark.parametrize("missing", [None, "1.5"])
def test_what_is_no_number_is_refused(missing: object) -> None:
    with pytest.raises(Inexact):
        ns_of_numbers([1.5, missing])


@given(st.integers(-(2**63), 2**63 - 1))
def test_digits_tell_every_nanosecond_of_64_bits(time_ns: int) -> None:
    starts_ns, _ = ns_of_digits([_written(time_ns).encode()], [])
    assert starts_ns.tolist() == [time_ns]


@pytest.mark.parametrize(
    ("digits", "time_ns"),
    [
        (b"1.5", 1500),
        (b"1.05", 1050),
        (b"7", 7000),
        (b"-1.001", -1001),
        (b"1e3", 1_000_000),
        (b"1.0005", 1000),
        (b"1.0015", 1002),
        (b"0.000", 0),
        (b"1e-400", 0),
    ],
)
def test_digits_are_read_as_json_writes_them(digits: bytes, time_ns: int) -> None:
    assert exact_ns(digits) == time_ns


@pytest.mark.parametrize("digits", [b"", b"null", b'"1"', b"1." + b"1" * 31, b"true"])
def test_what_is_no_time_is_refused(digits: bytes) -> None:
    with pytest.raises(ValueError, match="no time"):
        exact_ns(digits)


def test_a_time_beyond_64_bits_becomes_the_largest() -> None:
    starts_ns, durations_ns = ns_of_digits([b"1e300", b"9223372036854775.808", b"1"], [b"2", b"3", b"-1e300"])
    assert starts_ns.tolist() == [2**63 - 1, 2**63 - 1, 1000]
    assert durations_ns[2] == -(2**63)


def test_numbers_that_cannot_be_microseconds_are_nanoseconds() -> None:
    starts_ns, durations_ns = ns_of_digits([b"1711964646000123456", b"1711964646000123457"], [b"5", b"1234"])
    assert starts_ns.tolist() == [1711964646000123456, 1711964646000123457]
    assert durations_ns.tolist() == [5, 1234]


def test_one_events_unit_says_nothing_of_anothers() -> None:
    starts_ns, durations_ns = ns_of_digits([b"1711964646000123456", b"0"], [b"5", b"5"])
    assert starts_ns.tolist() == [1711964646000123456, 0]
    assert durations_ns.tolist() == [5, 5000]

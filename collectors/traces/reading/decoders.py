"""The two decoders of a trace's chunks: the scanner in C, and msgspec's typed structs in Python.

The scanner is tried first and refuses chunks that it is not sure of; the Python decoder is the last, and reads
everything that kineto has written since 2021. Neither knows the meaning of an event. `raw_events` has the rules for
decoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.reading.raw_events import (
    CATEGORIES,
    KNOWN_PHASES,
    NOT_KEPT,
    OF_2021,
    CollectiveArgs,
    RawEvents,
    decode_collective_args,
)
from collectors.traces.timeline import (
    ABSENT,
    ALLOCATION_COLUMNS,
    NO_ALLOCATIONS,
    Allocations,
    numbered,
    numbered_except,
)

# Times: decimal microseconds of a trace become exact nanoseconds, without floating-point rounding.

EXACT_BELOW_US = 2.0**43
"""Below this, adjacent doubles are less than a nanosecond apart, so the nearest double determines the nanosecond."""

NANOSECONDS_FROM_US = 10**17
"""Times from here on cannot be microseconds since 1970, so they are nanoseconds."""

LARGEST_NS = 2**63 - 1
LARGEST_US = LARGEST_NS // 1000


class Inexact(ValueError):
    """A double does not determine the nanosecond (too large, or more than three decimals); its digits do."""


def ns_of_numbers(values: Sequence[object]) -> Times:
    """Convert microseconds, read as integers and doubles, to nanoseconds.

    Raises:
        Inexact: the numbers do not determine the nanoseconds.
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
    # `numbers - whole` is exact, so rint removes only the difference between a double and its digits.
    nearest_ns: Times = whole.astype(np.int64) * 1000 + np.rint((numbers - whole) * 1000).astype(np.int64)
    if not np.array_equal(nearest_ns / 1000, numbers):  # More than three decimals: rounding needs the digits.
        raise Inexact
    return nearest_ns


def ns_of_digits(starts: Sequence[bytes], durations: Sequence[bytes]) -> tuple[Times, Times]:
    """Convert the digits of starts and durations to nanoseconds; each event's start decides the unit of both.

    durations: one per start, or none at all. A time beyond 64 bits is clipped to the largest 64-bit number.

    Raises:
        ValueError: a time is not a number.
    """
    starts_ns, durations_ns = ([exact_ns(digits) for digits in column] for column in (starts, durations))
    counts_ns = [start_ns >= 1000 * NANOSECONDS_FROM_US for start_ns in starts_ns]
    if any(counts_ns):
        starts_ns, durations_ns = (
            [value // 1000 if is_counted else value for is_counted, value in zip(counts_ns, column, strict=False)]
            for column in (starts_ns, durations_ns)
        )
    within = [
        [min(max(value, -LARGEST_NS - 1), LARGEST_NS) for value in column] for column in (starts_ns, durations_ns)
    ]
    return np.array(within[0], dtype=np.int64), np.array(within[1], dtype=np.int64)


def exact_ns(digits: bytes) -> int:
    """Convert decimal microseconds to whole nanoseconds, rounded; any number beyond 10**30 microseconds gives 10**33.

    Raises:
        ValueError: it is not a number, or has more than 30 characters.
    """
    whole, _, decimals = digits.partition(b".")
    if len(decimals) <= 3 and whole.isdigit() and (not decimals or decimals.isdigit()):
        return int(whole + decimals.ljust(3, b"0"))
    if not digits or digits[:1] not in b"-0123456789" or len(digits) > 30:
        raise ValueError("no time")
    number = msgspec.json.decode(digits, type=Decimal)
    if number and number.adjusted() > 30:
        return 10**33 if number > 0 else -(10**33)
    return round(number * 1000)


# The scanner in C, if it was built.

try:
    from collectors.traces.reading import _scanner
except ImportError:  # The package was built without a compiler, or the source tree was not built.
    _scanner = None  # type: ignore[assignment]

IS_BUILT = _scanner is not None

# The memory layout of the scanner's structures.
ROW = np.dtype(
    [
        ("start_ns", np.int64),
        ("duration_ns", np.int64),
        ("process", np.int64),
        ("thread", np.int64),
        ("correlation", np.int64),
        ("name", np.int32),
        ("shape", np.int32),
        ("category", np.int8),
    ],
    align=True,
)
SAID = np.dtype([("row", np.int64), ("begin", np.int64), ("end", np.int64)], align=True)
ALLOCATION = np.dtype(
    [
        ("time_ns", np.int64),
        ("address", np.uint64),
        ("change_bytes", np.int64),
        ("allocated_bytes", np.int64),
        ("thread", np.int64),
        ("device", np.int16),
    ],
    align=True,
)
_NOT_KEPT = tuple(sorted(NOT_KEPT))


def decode_by_scanner(chunk: bytes | bytearray | memoryview) -> RawEvents | None:
    """Decode the chunk; return None if the scanner is not sure of it, or was not built."""
    if _scanner is None:
        return None
    scanned = _scanner.scan(chunk, CATEGORIES, _NOT_KEPT, KNOWN_PHASES)
    if scanned is None:
        return None
    rows, names, shapes, args_spans, allocations, without_address, unknown, unread_phases = scanned
    if not OF_2021.keys().isdisjoint(unknown):
        return None
    text = memoryview(chunk)
    try:
        collective_args = tuple(
            (row, decode_collective_args(text[begin:end]))
            for row, begin, end in np.frombuffer(args_spans, SAID).tolist()
        )
    except msgspec.DecodeError:
        return None
    row, allocation = np.frombuffer(rows, ROW), np.frombuffer(allocations, ALLOCATION)
    columns: dict[str, Any] = {name: row[name] for name in ROW.names or ()}
    return RawEvents(
        names=names,
        shapes=shapes,
        collective_args=collective_args,
        allocations=Allocations(**{name: allocation[name] for name in ALLOCATION_COLUMNS}),
        without_address=without_address,
        unknown=frozenset(unknown),
        unread_phases=frozenset(unread_phases),
        **columns,
    )


# The decoder in Python. Its typed structs have only the needed fields, so msgspec skips all others.

NOTHING = msgspec.Raw(b"")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for a text that is not JSON of the expected type."""

MEMORY = "[memory]"


class Args(CollectiveArgs, frozen=True, gc=False):
    """The needed fields of an event's args; None or the default if missing."""

    correlation: int = ABSENT
    shape: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    address: int | None = msgspec.field(default=None, name="Addr")
    change_bytes: int | None = msgspec.field(default=None, name="Bytes")
    allocated_bytes: int = msgspec.field(default=ABSENT, name="Total Allocated")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device: int = msgspec.field(default=ABSENT, name="Device Id")
    shape_of_2021: msgspec.Raw = msgspec.field(default=NOTHING, name="Input dims")


# Both structs have their fields in kineto's order, which msgspec reads fastest.
class EventWithNumbers(msgspec.Struct, gc=False):
    """An event; None for a missing field."""

    ph: str
    cat: str = ""
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class EventWithDigits(msgspec.Struct, gc=False):
    """An event with its times as the written digits."""

    ph: str
    cat: str = ""
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None


Event: TypeAlias = EventWithNumbers | EventWithDigits
NUMBERS = {name: number for number, name in enumerate(CATEGORIES)}
NUMBERS |= {name: NUMBERS[now] for name, now in OF_2021.items()}
KNOWN = NOT_KEPT | NUMBERS.keys()
PHASES = frozenset(KNOWN_PHASES)

PROBLEMS = (*UNDECODABLE, ValueError, TypeError, OverflowError)
"""The exceptions from decoding a chunk if an event in it is malformed or incomplete."""

_plain = msgspec.json.Decoder(list[EventWithNumbers])
_written = msgspec.json.Decoder(list[EventWithDigits])


def decode_in_python(chunk: bytes | bytearray | memoryview) -> RawEvents | None:
    """Decode the chunk; return None if an event in it is malformed or incomplete."""
    try:
        try:
            return columns(_plain.decode(chunk))
        except Inexact:
            return columns(_written.decode(chunk))
    except PROBLEMS:
        return None


def columns(events: Sequence[Event]) -> RawEvents:
    """Return the events as columns.

    Raises:
        Inexact: exact times need the digits.
        ValueError, TypeError, OverflowError: an event is incomplete, or has a number beyond 64 bits.
    """
    complete = [event for event in events if event.ph == "X"]
    categories = [event.cat for event in complete]
    if not NUMBERS.keys() >= (distinct := set(categories)):
        complete = [event for event in complete if event.cat in NUMBERS]
        categories = [event.cat for event in complete]
    names, name = numbered([event.name for event in complete])
    if None in names:
        raise ValueError("an event has no name")
    shapes, shape = _shapes(complete)
    changes = [event for event in events if event.ph == "i" and event.name == MEMORY]
    with_address = [event for event in changes if event.args is not None and event.args.address is not None]
    start_ns, duration_ns = _times(complete)
    return RawEvents(
        names=tuple(str(each) for each in names),
        name=name,
        category=np.fromiter(map(NUMBERS.__getitem__, categories), dtype=np.int8, count=len(categories)),
        start_ns=start_ns,
        duration_ns=duration_ns,
        process=_process_or_thread([event.pid for event in complete]),
        thread=_process_or_thread([event.tid for event in complete]),
        correlation=_column([_correlation(event.args) for event in complete]),
        shapes=shapes,
        shape=shape,
        collective_args=tuple(
            (row, CollectiveArgs(**{name: getattr(args, name) for name in CollectiveArgs.__struct_fields__}))
            for row, args in enumerate(event.args for event in complete)
            if args is not None and args.collective is not None
        ),
        allocations=_allocations(with_address),
        without_address=len(changes) - len(with_address),
        unknown=frozenset(distinct - KNOWN),
        unread_phases=frozenset({event.ph for event in events} - PHASES),
        misfits=tuple(
            "correlation" for event in complete if event.args is not None and event.args.correlation > LARGEST_NS
        ),
    )


def _correlation(args: Args | None) -> int:
    return ABSENT if args is None or not 0 <= args.correlation <= LARGEST_NS else args.correlation


def _shapes(complete: Sequence[Event]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    raws = [NOTHING if event.args is None else event.args.shape for event in complete]
    # Joining and splitting is twice as fast as calling bytes() on each; JSON contains no zero byte.
    texts = b"\0".join(raws).split(b"\0") if raws else []
    if not any(texts):
        texts = [b"" if event.args is None else bytes(event.args.shape_of_2021) for event in complete]
    distinct, number = numbered_except(b"", texts)
    return tuple(str(text, "utf-8") for text in distinct), number


def _times(events: Sequence[Event]) -> tuple[Times, Times]:
    """Return starts and durations in nanoseconds."""
    if written := [event for event in events if isinstance(event, EventWithDigits)]:
        return ns_of_digits([bytes(event.ts) for event in written], [bytes(event.dur) for event in written])
    return ns_of_numbers([event.ts for event in events]), ns_of_numbers([event.dur for event in events])


def _process_or_thread(values: Sequence[int | str | None]) -> NDArray[np.int64]:
    """Return processes or threads as numbers; in 2021 they were strings such as "stream 7"."""
    numbers = [int(value.rpartition(" ")[2]) if isinstance(value, str) else value for value in values]
    # Some writers use 2**64 - 1 for a stream; any unique number can replace it.
    return _column([n if n is None or -LARGEST_NS <= n <= LARGEST_NS else n % 2**32 for n in numbers])


def _allocations(events: Sequence[Event]) -> Allocations:
    """Return the changes of memory as columns; all must have an address."""
    if not events:
        return NO_ALLOCATIONS
    args = [event.args for event in events if event.args is not None]
    addresses = [each.address for each in args if each.address is not None]
    changes = [each.change_bytes for each in args if each.change_bytes is not None]
    if len(changes) < len(events):
        raise ValueError("a change of memory has no size")
    if written := [event for event in events if isinstance(event, EventWithDigits)]:
        time_ns, _ = ns_of_digits([bytes(event.ts) for event in written], [])
    else:
        time_ns = ns_of_numbers([event.ts for event in events])
    return Allocations(
        time_ns=time_ns,
        address=np.array([address % 2**64 for address in addresses], dtype=np.uint64),
        change_bytes=_column(changes),
        allocated_bytes=_column([each.allocated_bytes for each in args]),
        device=np.array([each.device if each.device_type else ABSENT for each in args], dtype=np.int16),
        thread=_column([event.tid if isinstance(event.tid, int) else ABSENT for event in events]),
    )


def _column(values: Sequence[object]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64, count=len(values))

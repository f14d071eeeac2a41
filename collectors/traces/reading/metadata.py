"""What stands in a trace around its events: its rank, its world, its base time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec

from collectors.traces.reading.decoders import UNDECODABLE
from collectors.traces.reading.json_chunks import Window

V = TypeVar("V")

LARGEST_HEAD_BYTES = 1 << 26

MOST_DIGITS = 10
"""Of a rank, which has 31 bits."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_INTEGERS = re.compile(r"\d+")
_PLACE = re.compile(r"\(byte (\d+)\)")
"""Where msgspec says that a text broke."""

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
BaseTime = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

Around = Mapping[str, msgspec.Raw]
"""The other keys of the trace, each with the text of its value."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ProcessGroup(msgspec.Struct):
    """An entry of distributedInfo's pg_config. ranks: a list, or one written as text."""

    pg_name: str
    ranks: list[int] | str = msgspec.field(default_factory=list)


class DistributedInfo(msgspec.Struct):
    """What torch says of the world that the rank is in."""

    rank: Rank | None = None
    world_size: Rank | None = None


class _Groups(msgspec.Struct):
    pg_config: list[ProcessGroup] | dict[str, ProcessGroup] = msgspec.field(default_factory=list)


class Device(msgspec.Struct):
    """An entry of deviceProperties."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a trace says of its rank; None and empty where it does not."""

    base_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    device_name: str | None = None
    host: str | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class NoEvents(ValueError):
    """The text has no list of events. at: the byte where it stops being a trace."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def go_to_events(window: Window, *, largest_head_bytes: int = LARGEST_HEAD_BYTES) -> tuple[Around | None, bool]:
    """Move the window's start behind the bracket that opens the events, which is looked for that far at least.

    Returns: the keys before it, None where they cannot be read; and whether the events are all that the text holds.

    Raises:
        NoEvents: there is no such bracket.
    """
    if (bare := _BARE.match(window.text, window.start, window.end)) is not None:
        window.start = bare.end()
        return {}, True
    while True:
        for match in _EVENTS.finditer(window.text, window.start, window.end):
            # Within a string or another object, what is before it would not be whole.
            around = _decoded(bytes(window.text[window.start : match.start()]) + b'"traceEvents":[]}')
            if around is not None:
                window.start = match.end()
                return around, False
        if window.is_last or window.end - window.start > largest_head_bytes:
            break
        window.fill()
    if (match_ := _EVENTS.search(window.text, window.start, window.end)) is not None:
        window.start = match_.end()
        return None, False
    raise _no_events(window)


def tail(window: Window, *, is_bare: bool) -> Around | None:
    """The keys behind the events, behind which the window's start is; None where they cannot be read.

    is_bare: there should be nothing.
    """
    while not window.is_last and window.end - window.start <= LARGEST_HEAD_BYTES:
        window.fill()
    text = bytes(window.text[window.start : window.end]).strip()
    if is_bare:
        return None if text else {}
    return _decoded(b"{" + text.removeprefix(b","))


def surroundings(around: Around) -> Surroundings:
    """What the keys say; what is not as torch writes it says nothing."""
    distributed = _value(around, "distributedInfo", DistributedInfo) or DistributedInfo()
    groups = _value(around, "distributedInfo", _Groups) or _Groups()
    devices = _value(around, "deviceProperties", list[Device])
    listed = groups.pg_config.values() if isinstance(groups.pg_config, dict) else groups.pg_config
    return Surroundings(
        base_ns=_value(around, "baseTimeNanoseconds", BaseTime),
        rank=distributed.rank,
        world_size=distributed.world_size,
        device_name=devices[0].name if devices else None,
        host=_value(around, "host_name", str),
        groups={group.pg_name: ranks_of(group.ranks) for group in listed},
    )


def ranks_of(written: Iterable[int] | str) -> tuple[int, ...]:
    """The ranks of a list, or of its text; none where the text leaves some out, or holds a number that is no rank."""
    if not isinstance(written, str):
        return tuple(written)
    found = _INTEGERS.findall(written)
    if "..." in written or any(len(digits) > MOST_DIGITS for digits in found):
        return ()
    return tuple(map(int, found))


def _value(around: Around, key: str, type_: type[V]) -> V | None:
    try:
        return msgspec.json.decode(around[key], type=type_) if key in around else None
    except UNDECODABLE:
        return None


def _decoded(text: bytes) -> Around | None:
    try:
        return _object.decode(text)
    except UNDECODABLE:
        return None


def _no_events(window: Window) -> NoEvents:
    if not window.is_last:
        return NoEvents(0, f'it has no "traceEvents" in its first {window.place(window.end)} bytes')
    text = bytes(window.text[window.start : window.end])
    if not text.strip():
        return NoEvents(0, "it is empty")
    try:
        msgspec.json.decode(text)
    except UNDECODABLE as error:
        at, why = _break(text, error)
        return NoEvents(window.at + at, f"it is no JSON: {why}")
    return NoEvents(0, 'it has no "traceEvents", and is no list of events')


def _break(text: bytes, error: Exception) -> tuple[int, str]:
    """The byte of the text where it broke, and why."""
    if isinstance(error, UnicodeDecodeError):
        # msgspec counts from the start of the string in which there is no letter.
        try:
            text.decode()
        except UnicodeDecodeError as of_text:
            return of_text.start, str(of_text)
    place = _PLACE.search(str(error))
    return len(text) if place is None else int(place[1]), str(error)

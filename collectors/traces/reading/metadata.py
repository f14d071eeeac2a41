"""Metadata of a trace, before and after its list of events: rank, world size, process groups, host, base time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec

from collectors.traces.reading.decoders import UNDECODABLE
from collectors.traces.reading.json_chunks import TextWindow
from collectors.traces.timeline import About

V = TypeVar("V")

LARGEST_HEAD_BYTES = 1 << 26
"""Maximum size of the text before the list of events, and of the text after it."""

MOST_DIGITS = 10
"""Maximum number of digits of a rank, which has 31 bits."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_INTEGERS = re.compile(r"\d+")
_PLACE = re.compile(r"\(byte (\d+)\)")
"""The place of an error in msgspec's message."""

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
BaseTime = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

TopLevelKeys = Mapping[str, msgspec.Raw]
"""The trace's keys other than its events, with their values as text."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class RecordedGroup(msgspec.Struct):
    """An entry of distributedInfo's pg_config. ranks: a list, or a list written as text."""

    pg_name: str
    ranks: list[int] | str = msgspec.field(default_factory=list)


class DistributedInfo(msgspec.Struct):
    """torch's information on the rank and its world."""

    rank: Rank | None = None
    world_size: Rank | None = None


class _Groups(msgspec.Struct):
    pg_config: list[RecordedGroup] | dict[str, RecordedGroup] = msgspec.field(default_factory=list)


class RecordedDevice(msgspec.Struct):
    """An entry of deviceProperties."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetadata:
    """A trace's information on its rank and its times; None if missing. base_ns: the origin of its times."""

    base_ns: int | None = None
    rank: int | None = None
    about: About = field(default_factory=About)


class NoEvents(ValueError):
    """The text has no list of events. at: the byte from which it is not a trace."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def go_to_events(
    window: TextWindow, *, largest_head_bytes: int = LARGEST_HEAD_BYTES
) -> tuple[TopLevelKeys | None, bool]:
    """Move the window's start past the bracket that opens the list of events.

    largest_head_bytes: minimum size of the text to search for it.
    Returns: the keys before it, None if they cannot be read; and whether the text is the list alone, without keys.

    Raises:
        NoEvents: there is no such bracket.
    """
    if (bare := _BARE.match(window.text, window.start)) is not None:
        window.start = bare.end()
        return {}, True
    while True:
        for match in _EVENTS.finditer(window.text, window.start):
            # Closing the object here gives valid JSON, unless the match is inside a string or a nested object.
            keys = _decoded(window.text[window.start : match.start()] + b'"traceEvents":[]}')
            if keys is not None:
                window.start = match.end()
                return keys, False
        if window.is_last or window.unread_bytes > largest_head_bytes:
            break
        window.fill()
    if (match_ := _EVENTS.search(window.text, window.start)) is not None:
        window.start = match_.end()
        return None, False
    raise _no_events(window)


def read_tail(window: TextWindow, *, is_bare: bool) -> TopLevelKeys | None:
    """Return the keys after the list of events, at the window's start; None if they cannot be read.

    is_bare: the text is the list alone, so that nothing should follow.
    """
    while not window.is_last and window.unread_bytes <= LARGEST_HEAD_BYTES:
        window.fill()
    text = window.text[window.start :].strip()
    if is_bare:
        return None if text else {}
    return _decoded(b"{" + text.removeprefix(b","))


def read_metadata(keys: TopLevelKeys) -> TraceMetadata:
    """Parse the keys; ignore values that differ from torch's format."""
    distributed = _value(keys, "distributedInfo", DistributedInfo) or DistributedInfo()
    groups = _value(keys, "distributedInfo", _Groups) or _Groups()
    devices = _value(keys, "deviceProperties", list[RecordedDevice])
    listed = groups.pg_config.values() if isinstance(groups.pg_config, dict) else groups.pg_config
    return TraceMetadata(
        base_ns=_value(keys, "baseTimeNanoseconds", BaseTime),
        rank=distributed.rank,
        about=About(
            world_size=distributed.world_size,
            device_name=devices[0].name if devices else None,
            host=_value(keys, "host_name", str),
            groups={group.pg_name: ranks_of(group.ranks) for group in listed},
        ),
    )


def ranks_of(written: Iterable[int] | str) -> tuple[int, ...]:
    """Return the ranks in a list, or in its text; empty if the text abbreviates them or has too long a number."""
    if not isinstance(written, str):
        return tuple(written)
    numbers = _INTEGERS.findall(written)
    if "..." in written or any(len(digits) > MOST_DIGITS for digits in numbers):
        return ()
    return tuple(map(int, numbers))


def _value(keys: TopLevelKeys, key: str, type_: type[V]) -> V | None:
    try:
        return msgspec.json.decode(keys[key], type=type_) if key in keys else None
    except UNDECODABLE:
        return None


def _decoded(text: bytes) -> TopLevelKeys | None:
    try:
        return _object.decode(text)
    except UNDECODABLE:
        return None


def _no_events(window: TextWindow) -> NoEvents:
    if not window.is_last:
        return NoEvents(0, f'it has no "traceEvents" in its first {window.offset + window.unread_bytes} bytes')
    text = window.text[window.start :]
    if not text.strip():
        return NoEvents(0, "it is empty")
    try:
        msgspec.json.decode(text)
    except UNDECODABLE as error:
        at, why = _break(text, error)
        return NoEvents(window.offset + at, f"it is not JSON: {why}")
    return NoEvents(0, 'it has no "traceEvents", and is not a list of events')


def _break(text: bytes, error: Exception) -> tuple[int, str]:
    """Return the byte at which decoding the text failed, and why."""
    if isinstance(error, UnicodeDecodeError):
        # msgspec counts from the start of the string with the invalid byte; decode again to count from the text's.
        try:
            text.decode()
        except UnicodeDecodeError as of_text:
            return of_text.start, str(of_text)
    place = _PLACE.search(str(error))
    return len(text) if place is None else int(place[1]), str(error)

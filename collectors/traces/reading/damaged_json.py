"""Where the events of a text begin and end, exactly, also where the text is broken: slow, for what is not as usual."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from collectors.traces.reading.decoders import PROBLEMS, UNDECODABLE, Args, Written, columns
from collectors.traces.reading.json_chunks import Window
from collectors.traces.reading.raw_events import RawEvents

# One event of a trace, read with what of it is good: kineto writes what is no JSON, and others what is no kineto's.

# Bandwidths of copies that took no time, and the like; or a whole string, in which a name may hold the same letters.
_STRING_OR_NO_NUMBER = re.compile(
    rb'("[^"\\]*(?:\\.[^"\\]*)*")|:\s*[+-]?(?:inf(?:inity)?|nan)\b', re.IGNORECASE | re.DOTALL
)


class _ButArgs(Written, gc=False):
    args: Any = None


class _OfArgs(msgspec.Struct, gc=False):
    args: dict[str, msgspec.Raw] = {}


_event = msgspec.json.Decoder(Written)
_but_args = msgspec.json.Decoder(_ButArgs)
_of_args = msgspec.json.Decoder(_OfArgs)


def lenient(text: bytes) -> Written | None:
    """The event of this text; None where it is none.

    What is no number, letters that are none, and a value of another type than kineto's harm only what they stand in.
    """
    try:
        return _event.decode(text)
    except UNDECODABLE:
        mended = (
            _STRING_OR_NO_NUMBER.sub(lambda match: match[1] or b": null", text)
            .decode("utf-8", errors="replace")
            .encode()
        )
    try:
        event = _but_args.decode(mended)
        event.args = _args(_of_args.decode(mended).args)
    except UNDECODABLE:
        return None
    return event


def _args(values: Mapping[str, msgspec.Raw]) -> Args:
    """Those that are of their type; the others say nothing."""
    fit: dict[str, Any] = {}
    for field in msgspec.structs.fields(Args):
        if field.encode_name in values:
            with suppress(*UNDECODABLE):
                fit[field.name] = msgspec.json.decode(values[field.encode_name], type=field.type)
    return Args(**fit)


LARGEST_EVENT_BYTES = 1 << 26
LONGEST_BEGINNING_BYTES = 256
SEARCHED_BYTES = 1 << 16

_FIRST_KEYS = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:'

_BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*(?=" + _FIRST_KEYS + rb")")
_EVENT = re.compile(_FIRST_KEYS)

# A string has no line break in it, or it is none: so a quotation mark too many does no harm beyond its line.
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|["\[\]{}]')
_SPACE = re.compile(rb"[\s,]*")


def likely_boundary(window: Window) -> int | None:
    """The index of a comma that seems to stand between two events, far back in the window.

    Whether it does is told by reading what is before it: cut elsewhere it is no JSON.
    """
    for begin in (max(window.start, window.end - SEARCHED_BYTES), window.start):
        index = None
        for match in _BETWEEN_EVENTS.finditer(window.text, begin, window.end):
            index = match.start(1)
        if index is not None:
            return index
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What was found in a window.

    raw: the events that are whole and good. broken_at: where in the text such begin as are not.
    is_end: nothing of the events is left behind the window's start. is_closed: the bracket behind them was seen.
    is_whole: none is left that begins and does not end. left_at: where in the text the first begins that is left.
    """

    raw: RawEvents
    broken_at: tuple[int, ...]
    is_end: bool
    is_closed: bool
    is_whole: bool
    left_at: int


def split(window: Window) -> Split:
    """The events of the window, from its start on; the window's start moves behind them."""
    events: list[tuple[int, Written]] = []
    broken_at: list[int] = []
    while True:
        _pass(window)
        place, is_whole = window.at, window.start >= window.end
        if is_whole or window.text[window.start : window.start + 1] == b"]":
            break
        end = _end_of_event(window)
        if end is None and not window.is_last:
            break
        event = lenient(bytes(window.text[window.start : end])) if end else None
        if end and event is not None:
            events.append((place, event))
            window.start = end
        elif _go_to_next(window):
            broken_at.append(place)
        else:
            if end is not None:
                broken_at.append(place)
            break
    is_closed = window.start < window.end and window.text[window.start : window.start + 1] == b"]"
    window.start += is_closed
    raw, unfit_at = _columns(events)
    return Split(
        raw=raw,
        broken_at=tuple(sorted((*broken_at, *unfit_at))),
        is_end=is_closed or window.is_last,
        is_closed=is_closed,
        is_whole=is_whole,
        left_at=place,
    )


def _pass(window: Window) -> None:
    """Go behind the spaces and commas that are next."""
    match = _SPACE.match(window.text, window.start, window.end)
    assert match is not None
    window.start = match.end()


def _end_of_event(window: Window) -> int | None:
    """Behind the brace that closes what opens here; 0 where it is broken, None where the window ends before it."""
    if window.text[window.start : window.start + 1] != b"{":
        return 0
    depth = 0
    is_too_large = window.end - window.start > LARGEST_EVENT_BYTES
    for token in _TOKEN.finditer(window.text, window.start, window.end):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        elif mark == b'"':
            is_last_line = window.text.find(b"\n", token.start(), window.end) < 0
            return None if is_last_line and not is_too_large else 0
        if depth == 0:
            return token.end()
    return 0 if is_too_large else None


def _go_to_next(window: Window) -> bool:
    """Go to what looks like the beginning of another event; false where there is none, and then nothing is left."""
    window.start += 1
    while (match := _EVENT.search(window.text, window.start, window.end)) is None:
        if window.is_last:
            return False
        window.start = max(window.start, window.end - LONGEST_BEGINNING_BYTES)
        window.fill()
    window.start = match.start()
    return True


def _columns(events: Sequence[tuple[int, Written]]) -> tuple[RawEvents, list[int]]:
    """The events that have what they need, and the places of the others."""
    try:
        return columns([event for _, event in events]), []
    except PROBLEMS:
        fit = [_is_fit(event) for _, event in events]
        good = [event for is_fit, (_, event) in zip(fit, events, strict=True) if is_fit]
        return columns(good), [place for is_fit, (place, _) in zip(fit, events, strict=True) if not is_fit]


def _is_fit(event: Written) -> bool:
    try:
        columns([event])
    except PROBLEMS:
        return False
    return True

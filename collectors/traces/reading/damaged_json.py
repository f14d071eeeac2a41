"""Splits a trace's text into events, exactly, even where the text is broken.

`split` is slow and used only at the end of a text and where no decoder takes a chunk; `likely_boundary`
guesses where a chunk may end.
"""

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

# Lenient decoding of one event: kineto writes some invalid JSON, other writers values of other types.

# inf or nan as a value, such as the bandwidth of a copy that took no time; or a whole string, which may hold the same
# letters and is kept.
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
    """Return the event of this text; None if it is not one.

    inf and nan become null and invalid UTF-8 is replaced; a value of args that is not of kineto's type is left out.
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
    """Return the args whose values have the right type; leave out the others."""
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

# A string ends before its line does, so a stray quotation mark does no harm beyond its line.
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|["\[\]{}]')
_SPACE = re.compile(rb"[\s,]*")


def likely_boundary(window: Window) -> int | None:
    """Return the index of a comma, late in the window, that seems to stand between two events; None if none does.

    Decoding the text before it tells whether the guess was right: cut anywhere else, that text is not valid JSON.
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
    """What was found in a window. Places are bytes of the whole text.

    raw: the good events. broken_at: the places where broken events begin.
    is_end: no events are left after the window's start. is_closed: the closing bracket of the list was seen.
    is_whole: the window ends right behind an event, without a bracket. left_at: the place where the unread rest begins.
    """

    raw: RawEvents
    broken_at: tuple[int, ...]
    is_end: bool
    is_closed: bool
    is_whole: bool
    left_at: int


def split(window: Window) -> Split:
    """Read the events of the window from its start on, and move the window's start behind them."""
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
    """Skip spaces and commas."""
    match = _SPACE.match(window.text, window.start, window.end)
    assert match is not None
    window.start = match.end()


def _end_of_event(window: Window) -> int | None:
    """Return the index behind the brace that ends the event here; 0 if it is broken, None if the window ends first."""
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
        elif mark == b'"':  # A quotation mark without an end on its line: broken, or cut by the window's end.
            is_last_line = window.text.find(b"\n", token.start(), window.end) < 0
            return None if is_last_line and not is_too_large else 0
        if depth == 0:
            return token.end()
    return 0 if is_too_large else None


def _go_to_next(window: Window) -> bool:
    """Move to what looks like the beginning of the next event; return False if the text holds no more."""
    window.start += 1
    while (match := _EVENT.search(window.text, window.start, window.end)) is None:
        if window.is_last:
            return False
        window.start = max(window.start, window.end - LONGEST_BEGINNING_BYTES)
        window.fill()
    window.start = match.start()
    return True


def _columns(events: Sequence[tuple[int, Written]]) -> tuple[RawEvents, list[int]]:
    """Return the events that have all that they need as columns, and the places of the others."""
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

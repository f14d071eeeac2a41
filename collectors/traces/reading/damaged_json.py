"""Splits a trace's text into events, exactly, even where the text is broken.

`split` is slow and used only at the end of a text and where no decoder takes a chunk; `likely_boundary`
guesses where a chunk may end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from collectors.traces.reading.decoders import PROBLEMS, UNDECODABLE, Args, EventWithDigits, columns
from collectors.traces.reading.json_chunks import Window, null_for_inf_and_nan
from collectors.traces.reading.raw_events import RawEvents

# Lenient decoding of one event: kineto writes some invalid JSON, other writers values of other types.


class _EventWithAnyArgs(EventWithDigits, gc=False):
    # Values are decoded one by one, so that one of another type costs no other.
    args: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)  # type: ignore[assignment]


_event = msgspec.json.Decoder(EventWithDigits)
_event_with_any_args = msgspec.json.Decoder(_EventWithAnyArgs)


def decode_leniently(text: bytes) -> EventWithDigits | None:
    """Return the event of this text; None if it is not one.

    inf and nan become null and invalid UTF-8 is replaced; a value of args that is not of kineto's type is left out.
    """
    try:
        return _event.decode(text)
    except UNDECODABLE:
        mended = null_for_inf_and_nan(text).decode("utf-8", errors="replace").encode()
    try:
        event = _event_with_any_args.decode(mended)
    except UNDECODABLE:
        return None
    fit: dict[str, Any] = {}
    for field in msgspec.structs.fields(Args):
        if field.encode_name in event.args:
            with suppress(*UNDECODABLE):
                fit[field.name] = msgspec.json.decode(event.args[field.encode_name], type=field.type)
    return EventWithDigits(**{**msgspec.structs.asdict(event), "args": Args(**fit)})


LARGEST_EVENT_BYTES = 1 << 26
LONGEST_BEGINNING_BYTES = 256
SEARCHED_BYTES = 1 << 16

_FIRST_KEYS = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:'

_BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*(?=" + _FIRST_KEYS + rb")")
_EVENT = re.compile(_FIRST_KEYS)

# A string ends before its line does, so a stray quotation mark does no harm beyond its line.
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|["\[\]{}]')
_NO_SPACE_OR_COMMA = re.compile(rb"[^\s,]")


def likely_boundary(window: Window) -> int | None:
    """Return the index of a comma, late in the window, that seems to stand between two events; None if none does.

    Decoding the text before it tells whether the guess was right: cut anywhere else, that text is not valid JSON.
    """
    for begin in (max(window.start, len(window.text) - SEARCHED_BYTES), window.start):
        index = None
        for match in _BETWEEN_EVENTS.finditer(window.text, begin):
            index = match.start(1)
        if index is not None:
            return index
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What was found in a window. Places are bytes of the whole text.

    raw: the good events. broken_at: the places where broken events begin.
    end: how the list of events ends: closed by its bracket, unclosed right behind an event, or cut. None if the text
    goes on. rest_at: the place where the unread rest begins.
    """

    raw: RawEvents
    broken_at: tuple[int, ...]
    end: Literal["closed", "unclosed", "cut"] | None
    rest_at: int


def split(window: Window) -> Split:
    """Read the events of the window from its start on, and move the window's start behind them."""
    events: list[tuple[int, EventWithDigits]] = []
    broken_at: list[int] = []
    while True:
        following = _NO_SPACE_OR_COMMA.search(window.text, window.start)
        window.start = len(window.text) if following is None else following.start()
        rest_at = window.offset
        if following is None or following[0] == b"]":
            break
        end = _end_of_event(window)
        if end is None and not window.is_last:
            break  # The event goes on behind the window.
        event = decode_leniently(window.text[window.start : end]) if end else None
        if end and event is not None:
            events.append((rest_at, event))
            window.start = end
        elif _go_to_next(window):
            broken_at.append(rest_at)
        else:
            if end is not None:
                broken_at.append(rest_at)
            break
    raw, unfit_at = _columns(events)
    found = Split(raw=raw, broken_at=tuple(sorted((*broken_at, *unfit_at))), end=None, rest_at=rest_at)
    if window.text.startswith(b"]", window.start):
        window.start += 1
        return replace(found, end="closed")
    if window.is_last:
        return replace(found, end="unclosed" if following is None else "cut")
    return found


def _end_of_event(window: Window) -> int | None:
    """Return the index behind the brace that ends the event here; 0 if it is broken, None if the window ends first."""
    if not window.text.startswith(b"{", window.start):
        return 0
    depth = 0
    is_too_large = window.unread_bytes > LARGEST_EVENT_BYTES
    for token in _TOKEN.finditer(window.text, window.start):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        elif mark == b'"':  # A quotation mark without an end on its line: broken, or cut by the window's end.
            is_last_line = window.text.find(b"\n", token.start()) < 0
            return None if is_last_line and not is_too_large else 0
        if depth == 0:
            return token.end()
    return 0 if is_too_large else None


def _go_to_next(window: Window) -> bool:
    """Move to what looks like the beginning of the next event; return False if the text holds no more."""
    window.start += 1
    while (match := _EVENT.search(window.text, window.start)) is None:
        if window.is_last:
            return False
        window.start = max(window.start, len(window.text) - LONGEST_BEGINNING_BYTES)
        window.fill()
    window.start = match.start()
    return True


def _columns(events: Sequence[tuple[int, EventWithDigits]]) -> tuple[RawEvents, list[int]]:
    """Return the events that have all that they need as columns, and the places of the others."""
    try:
        return columns([event for _, event in events]), []
    except PROBLEMS:
        good, unfit_at = [], []
        for place, event in events:
            try:
                columns([event])
                good.append(event)
            except PROBLEMS:
                unfit_at.append(place)
        return columns(good), unfit_at

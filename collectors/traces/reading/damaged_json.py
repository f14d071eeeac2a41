"""Splits a trace's text exactly into events, even if it is broken.

`split` is slow, and used only at the end of a text and for chunks that no decoder accepts; `likely_boundary` guesses
where a chunk may end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from collectors.traces.reading.decoders import NOTHING, NUMBERS, PROBLEMS, UNDECODABLE, Args, EventWithDigits, columns
from collectors.traces.reading.json_chunks import TextWindow, null_for_inf_and_nan
from collectors.traces.reading.raw_events import AT_WORK, CALLS, CATEGORIES, ON_DEVICE, RawEvents
from collectors.traces.timeline import ABSENT

# Lenient decoding of an event: kineto writes some invalid JSON, and other writers use other types.


ON_DEVICE_NAMES = frozenset(CATEGORIES[number] for number in ON_DEVICE)
LAUNCHED_OR_LAUNCHES = frozenset(CATEGORIES[number] for number in (*AT_WORK, *CALLS))

NULL = msgspec.Raw(b"null")

_event = msgspec.json.Decoder(EventWithDigits)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Place(msgspec.Struct):
    # An event on a device has its place twice: here in its args, and as pid and tid.
    device: int | None = None
    stream: int | None = None


def decode_leniently(text: bytes) -> tuple[EventWithDigits, tuple[str, ...]] | None:
    """Return the event in this text, and the names of the arguments that were left out; None if it is not an event.

    inf and nan become null, and invalid UTF-8 is replaced. Values of a type that kineto does not use are left out; a
    name is then the value's text, and an event on a device gets device and stream from its args.
    """
    try:
        event = _event.decode(text)
        if event.cat not in ON_DEVICE_NAMES or (_is_place(event.pid) and _is_place(event.tid)):
            return event, ()
        mended = text
    except UNDECODABLE:
        mended = null_for_inf_and_nan(text).decode("utf-8", errors="replace").encode()
    try:
        members = _members.decode(mended)
    except UNDECODABLE:
        return None
    args = _members_of(members.pop("args", NOTHING))
    fit = {name: value for name, value in _fitting(members, EventWithDigits).items() if value is not None}
    if "ph" not in fit:
        return None
    if "name" in members:
        fit.setdefault("name", bytes(members["name"]).decode())
    if fit.get("cat") in ON_DEVICE_NAMES:
        place = _fitting(args, _Place)
        fit = {name: value for name, value in fit.items() if name not in ("pid", "tid") or _is_place(value)}
        fit = {"pid": place.get("device"), "tid": place.get("stream"), **fit}
    elif "pid" in members:
        fit.setdefault("pid", 0)
    fit_args = _fitting(args, Args)
    misfits = [
        field.encode_name
        for field in msgspec.structs.fields(Args)
        if field.name not in fit_args and args.get(field.encode_name, NOTHING) not in (NOTHING, NULL)
    ]
    return EventWithDigits(**fit, args=Args(**fit_args)), tuple(misfits) if fit.get("cat") in NUMBERS else ()


def _is_place(value: object) -> bool:
    """Return whether a decoder can turn a process or a thread into a number."""
    return isinstance(value, int) or (isinstance(value, str) and value.rpartition(" ")[2].isdecimal())


def _members_of(text: msgspec.Raw) -> dict[str, msgspec.Raw]:
    try:
        return _members.decode(text)
    except UNDECODABLE:
        return {}


def _fitting(members: dict[str, msgspec.Raw], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the values that fit the struct's types, by attribute."""
    fit: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.encode_name in members:
            with suppress(*UNDECODABLE):
                fit[field.name] = msgspec.json.decode(members[field.encode_name], type=field.type)
    return fit


LARGEST_EVENT_BYTES = 1 << 26
LONGEST_BEGINNING_BYTES = 256
SEARCHED_BYTES = 1 << 16

_FIRST_KEYS = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:'

_BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*(?=" + _FIRST_KEYS + rb")")
_EVENT = re.compile(_FIRST_KEYS)

# A string ends within its line, so a stray quotation mark does no harm beyond it.
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|["\[\]{}]')
_BRACKET = re.compile(rb"\]")
_NO_SPACE_OR_COMMA = re.compile(rb"[^\s,]")


def likely_boundary(window: TextWindow) -> int | None:
    """Return the index of a comma late in the window that seems to separate two events; None if there is none.

    Decoding the text before it shows whether the guess was right: cut anywhere else, the text is not valid JSON.
    """
    for begin in (max(window.start, len(window.text) - SEARCHED_BYTES), window.start):
        index = None
        for match in _BETWEEN_EVENTS.finditer(window.text, begin):
            index = match.start(1)
        if index is not None:
            return index
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEvents:
    """The events in a window. Places are byte offsets in the whole text.

    raw: the valid events. broken_at: places where broken events begin.
    end: how the list of events ends: closed by its bracket, unclosed right after an event, or cut. None if the text
    continues. rest_at: the place where the unread rest begins.
    """

    raw: RawEvents
    broken_at: tuple[int, ...]
    end: Literal["closed", "unclosed", "cut"] | None
    rest_at: int


def split(window: TextWindow, *, is_bare: bool = False) -> SplitEvents:
    """Read the events of the window from its start, and move the window's start past them.

    is_bare: the text is the list alone, so that nothing follows its bracket.
    """
    events: list[tuple[int, EventWithDigits]] = []
    misfits: list[str] = []
    broken_at: list[int] = []
    while True:
        following = _NO_SPACE_OR_COMMA.search(window.text, window.start)
        window.start = len(window.text) if following is None else following.start()
        rest_at = window.offset
        if following is None or following[0] == b"]":
            break
        end = _end_of_event(window)
        if end is None and not window.is_last:
            break  # The event continues after the window.
        lenient = decode_leniently(window.text[window.start : end]) if end else None
        if end and lenient is not None:
            events.append((rest_at, lenient[0]))
            misfits += lenient[1]
            window.start = end
        elif _go_to_end_of_list(window, is_bare=is_bare):
            broken_at.append(rest_at)
            break
        elif _go_to_next(window):
            broken_at.append(rest_at)
        else:
            if end is not None:
                broken_at.append(rest_at)
            break
    raw, unfit_at = _columns(events)
    raw = replace(raw, misfits=(*raw.misfits, *misfits))
    halves = SplitEvents(raw=raw, broken_at=tuple(sorted((*broken_at, *unfit_at))), end=None, rest_at=rest_at)
    if window.text.startswith(b"]", window.start):
        window.start += 1
        return replace(halves, end="closed")
    if window.is_last:
        return replace(halves, end="unclosed" if following is None else "cut")
    return halves


def _end_of_event(window: TextWindow) -> int | None:
    """Return the index after the brace that ends this event; 0 if it is broken, None if the window ends first."""
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
        elif mark == b'"':  # A string that does not end on its line is broken, or cut by the window's end.
            is_last_line = window.text.find(b"\n", token.start()) < 0
            return None if is_last_line and not is_too_large else 0
        if depth == 0:
            return token.end()
    return 0 if is_too_large else None


def _go_to_next(window: TextWindow) -> bool:
    """Move to the likely start of the next event; return False if the text has no more."""
    window.start += 1
    while (match := _EVENT.search(window.text, window.start)) is None:
        if window.is_last:
            return False
        window.start = max(window.start, len(window.text) - LONGEST_BEGINNING_BYTES)
        window.fill()
    window.start = match.start()
    return True


def _go_to_end_of_list(window: TextWindow, *, is_bare: bool) -> bool:
    """Move past a broken event to the bracket that ends the list; return False if another event may come before it.

    The bracket is recognised by the text after it: the rest of a whole trace.
    """
    if not window.is_last:
        return False
    following = _EVENT.search(window.text, window.start + 1)
    for bracket in _BRACKET.finditer(
        window.text, window.start, len(window.text) if following is None else following.start()
    ):
        behind = window.text[bracket.end() :].strip()
        if not behind if is_bare else behind.startswith((b",", b"}")) and _is_object(b"{" + behind.removeprefix(b",")):
            window.start = bracket.start()
            return True
    return False


def _is_object(text: bytes) -> bool:
    try:
        _members.decode(text)
    except UNDECODABLE:
        return False
    return True


def _columns(events: Sequence[tuple[int, EventWithDigits]]) -> tuple[RawEvents, list[int]]:
    """Return the complete events as columns, and the places of the others."""
    try:
        return columns([event for _, event in events]), []
    except PROBLEMS:
        good, unfit_at, untimed = [], [], []
        for place, event in events:
            try:
                columns([event])
                good.append(event)
            except PROBLEMS:
                unfit_at.append(place)
                if event.cat in LAUNCHED_OR_LAUNCHES and event.args is not None:
                    untimed.append(event.args.correlation)
        return replace(columns(good), untimed=tuple(number for number in untimed if number != ABSENT)), unfit_at

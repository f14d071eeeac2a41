"""One event of a trace, read with what of it is good: kineto writes what is no JSON, and others what is no kineto's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from collectors.traces.reading.trace_events import UNDECODABLE, Args, Written

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

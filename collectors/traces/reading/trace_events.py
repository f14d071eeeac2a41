"""An event as kineto writes it, as far as it is read: typed structs, so that all else is passed over unread."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from collectors.traces.reading.raw_events import Said
from collectors.traces.spans import ABSENT

NOTHING = msgspec.Raw(b"")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a text that is no JSON of the wanted type."""

MEMORY = "[memory]"


class Args(Said, frozen=True, gc=False):
    """What is read of the args of any event; None where they do not say."""

    correlation: int = ABSENT
    shape: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    address: int | None = msgspec.field(default=None, name="Addr")
    change_bytes: int | None = msgspec.field(default=None, name="Bytes")
    allocated_bytes: int = msgspec.field(default=ABSENT, name="Total Allocated")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device: int = msgspec.field(default=ABSENT, name="Device Id")
    shape_of_2021: msgspec.Raw = msgspec.field(default=NOTHING, name="Input dims")


# In both the fields stand in the order in which kineto writes them: msgspec reads that fastest.
class Plain(msgspec.Struct, gc=False):
    """An event; None where it does not say."""

    ph: str
    cat: str = ""
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class Written(msgspec.Struct, gc=False):
    """An event with the digits of its times, as they are written."""

    ph: str
    cat: str = ""
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None


Event: TypeAlias = Plain | Written

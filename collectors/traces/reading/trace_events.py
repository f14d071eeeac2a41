"""An event as kineto writes it, as far as it is read: typed structs, so that all else is passed over unread."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from collectors.traces.spans import ABSENT

NOTHING = msgspec.Raw(b"")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a text that is no JSON of the wanted type."""

MEMORY = "[memory]"


class Args(msgspec.Struct, gc=False):
    """What is read of the args of any event; None where they do not say."""

    correlation: int = ABSENT
    shape: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    dtype: str | None = None
    given_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    filled_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    destination: int | None = msgspec.field(default=None, name="Dst Rank")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    external_id: int | None = msgspec.field(default=None, name="External id")
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

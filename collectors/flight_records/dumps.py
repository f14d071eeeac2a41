"""Reads dumps of torch's Flight Recorder from any program: the pickles that torch writes on a timeout, and its JSON.

A pickle can run code when it is read. torch's dumps consist of dictionaries, lists, tuples, strings and numbers; the
reader creates nothing else.
Source: FlightRecorderDetail.hpp, dump, dump_json and getPgConfigJson (torch 2.11 and 2.13).
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from collectors.rank.flight_entries import Entry

T = TypeVar("T")


class NotADump(ValueError):
    """The content is not a dump of the Flight Recorder, or is damaged."""


class Frame(msgspec.Struct):
    """A frame of a call's stack. name: of the function."""

    name: str
    filename: str
    line: int


class CalledEntry(Entry):
    """An entry with the stack of the call, innermost frame first; JSON dumps have no stacks."""

    frames: tuple[Frame, ...] = ()


class _Group(msgspec.Struct):
    desc: str = ""
    ranks: str = "[]"


class _Content(msgspec.Struct):
    version: str
    entries: list[CalledEntry] = []
    pg_config: dict[str, _Group] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The record of a rank.

    entries: oldest first. groups: the ranks of each process group by name; gloo's record lacks them (torch 2.13).
    """

    rank: int
    entries: tuple[CalledEntry, ...]
    groups: Mapping[str, tuple[int, ...]]

    @property
    def has_forgotten(self) -> bool:
        """Whether the recorder's buffer overflowed, so that the oldest entries are gone."""
        return bool(self.entries) and self.entries[0].record_id > 0


def read_dump(content: bytes, rank: int) -> Dump:
    """Return the record of a rank from a dump.

    Raises:
        NotADump: the content is not a dump, or is damaged; the message says what it is.
    """
    try:
        if content.lstrip()[:1] == b"{":
            read = msgspec.json.decode(content, type=_Content)
        elif content[:1] == pickle.PROTO:
            read = msgspec.convert(_Plain(io.BytesIO(content)).load(), type=_Content)
        else:
            raise NotADump("it is neither a pickle nor JSON")
    except _Foreign as error:
        raise NotADump(f"it is a pickle of {error}, which no Flight Recorder writes; it was not executed") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError.
        raise NotADump(f"it does not hold a record of torch's Flight Recorder ({error})") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as error:
        if isinstance(error, NotADump):
            raise
        raise NotADump(f"the pickle is damaged ({error})") from None
    except (MemoryError, RecursionError):
        raise NotADump("the pickle is damaged") from None
    entries = sorted(read.entries, key=lambda entry: entry.record_id)
    groups = {name: _ranks(group.ranks) for name, group in read.pg_config.items()}
    return Dump(rank=rank, entries=tuple(entries), groups={name: ranks for name, ranks in groups.items() if ranks})


def _ranks(text: str) -> tuple[int, ...]:
    """Parse torch's text of ranks: "[0, 1]"."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", text))


class _Foreign(Exception):
    """A pickle names a type or function that no dump contains."""


def _as_list(items: list[T]) -> list[T]:
    return items


class _Plain(pickle.Unpickler):
    """Creates only builtin values, and the lists of numbers that torch's own pickler marks."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("torch.jit._pickle", f"build_{kind}list") for kind in ("int", "double", "bool")}:
            return _as_list
        raise _Foreign(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Foreign("a reference to another file")


_RANK = re.compile(r"rank[-_]?(\d{1,9})(?![0-9])|(\d{1,9})$", re.IGNORECASE)
_ENDING = re.compile(r"(\.flight)?\.(json|pickle|pkl|bin)$")


def rank_in_name(name: str) -> int | None:
    """Return the rank in a dump's file name: 3 for nccl_trace_rank_3, rank3.flight.json or dump-3; None without one."""
    match = _RANK.search(_ENDING.sub("", name))
    return None if match is None else int(match[1] or match[2])

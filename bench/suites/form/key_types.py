"""Types of what a key of a file may hold, with their checks, their JSON Schema, and messages that offer what is near.

Knows no suite: `bench.suites.form.suite_keys` has the keys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bench.errors import Misuse, near_name
from workloads.spec import LARGEST

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}"
"""Names of suites, cases, levers, blocks and tags: they become parts of files' names and of command lines."""
NAMES = "a name has letters, digits, _ and -, at most 60 of them"
"""What `NAME` allows, in words."""
SOME_NAMES = 8
"""So many allowed names are all in a message; of more, only the nearest."""
ALL_DESCRIBED = "(`observatory suite schema` describes all)"
_VALUE_SHOWN = 60
"""Letters of a wrong value that a message shows."""

# What a value may be.

JsonSchema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value.

    choices: the only texts allowed. pattern: of the whole text, the same to Python and to JSON Schema.
    """

    kind: Literal["boolean", "integer", "number", "string"]
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def allowed(self) -> str:
        """What the value may be, in words."""
        if self.choices:
            return " or ".join(self.choices) if len(self.choices) < 3 else f"one of {', '.join(self.choices)}"
        words = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "a text"}
        if self.pattern == NAME:
            return f"a name: {NAMES}"
        least = "" if self.minimum is None else f" of at least {self.minimum:,}"
        most = "" if self.maximum in (None, LARGEST) else f"{' and' if least else ' of'} at most {self.maximum:,}"
        return f"{words[self.kind]}{least}{most}"

    def holds(self, value: object) -> bool:
        """Whether the value is allowed. True is no number here, though it is one in Python."""
        match self.kind:
            case "boolean":
                return isinstance(value, bool)
            case "string":
                if not isinstance(value, str) or not value.strip() or not value.replace("\n", "").isprintable():
                    return False
                if self.choices:
                    return value in self.choices
                return self.pattern is None or re.fullmatch(self.pattern, value) is not None
            case _:
                if isinstance(value, bool) or not isinstance(value, int if self.kind == "integer" else (int, float)):
                    return False
                assert isinstance(value, (int, float)), "the line above says so"
                is_finite = isinstance(value, int) or math.isfinite(value)
                least = -math.inf if self.minimum is None else self.minimum
                most = LARGEST if self.maximum is None else self.maximum
                return is_finite and least <= value <= most

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the value."""
        limits = {
            "enum": list(self.choices) or None,
            "pattern": None if self.pattern is None else f"^{self.pattern}$",
            "minLength": 1 if self.kind == "string" and not self.choices and self.pattern is None else None,
            "minimum": self.minimum,
            "maximum": None if self.maximum == LARGEST else self.maximum,
        }
        return {"type": self.kind} | {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """A list of at least one. what: in words."""

    item: Value
    what: str
    is_unique: bool = False

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the list."""
        unique = {"uniqueItems": True} if self.is_unique else {}
        return {"type": "array", "items": self.item.schema(), "minItems": 1} | unique


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A table whose keys the reader of the file knows: options of a strategy, labels of a metric, values of sweeps.

    what: in words. is_text: its values are texts; otherwise true, false, numbers or texts.
    offered: the keys that an editor offers and takes; they may sweep. Without them it takes all.
    """

    what: str
    is_text: bool = False
    offered: tuple[Key, ...] = ()

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the table."""
        if self.offered:
            return {"type": "object", "additionalProperties": False, "properties": properties(self.offered)}
        return {
            "type": "object",
            "additionalProperties": {"type": "string" if self.is_text else ["boolean", "number", "string"]},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A table of known keys. has_heading: it stands under a heading of its own, as [defaults]."""

    keys: tuple[Key, ...]
    has_heading: bool = False

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the table."""
        required = [key.name for key in self.keys if key.is_required]
        found = {"type": "object", "additionalProperties": False, "properties": properties(self.keys)}
        return found | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Tables of known keys, each under a name that the file gives it, as [case.ddp]."""

    table: Record

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the tables."""
        names = {"pattern": f"^{NAME}$"}
        return {
            "type": "object",
            "propertyNames": names,
            "minProperties": 1,
            "additionalProperties": self.table.schema(),
        }


Value: TypeAlias = Scalar | Several | Free | Record | Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. sweeps: a list in place of its value has each value of the list measured."""

    name: str
    value: Value
    help: str
    sweeps: bool = False
    is_required: bool = False

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the key's value, with its description."""
        if not self.sweeps:
            return {"description": self.help} | self.value.schema()
        one = self.value.schema()
        each = {"type": "array", "items": one, "minItems": 1}
        return {"description": f"{self.help} A list measures each of its values.", "anyOf": [one, each]}


def properties(keys: Iterable[Key]) -> JsonSchema:
    """Return the JSON Schemas of keys, by their names."""
    return {key.name: key.schema() for key in keys}


# Checks.


def check_table(table: object, keys: Sequence[Key], place: str, within: str = "") -> None:
    """Refuse a table that has other keys than these, or a value that is not allowed.

    place: file and heading, for messages. within: the keys that lead from the heading to the table, as "needs.".

    Raises:
        Misuse: the message names the key, its value and what it may be.
    """
    if not isinstance(table, dict):
        raise Misuse(f"{' '.join([place, within.rstrip('.')]).rstrip()} is {shown(table)}; it may be a table")
    known = {key.name: key for key in keys}
    for name, value in table.items():
        if name not in known:
            allowed = f"; it may have {', '.join(known)}" if len(known) <= SOME_NAMES else ""
            raise Misuse(f"{place} has no key {within}{name}{nearest(name, known) or allowed} {ALL_DESCRIBED}")
        _check_value(value, known[name].value, place, f"{within}{name}", sweeps=known[name].sweeps)
    for key in keys:
        if key.is_required and key.name not in table:
            raise Misuse(f"{place} has no key {within}{key.name}, and needs it: {key.help}".rstrip("."))


def _check_value(value: object, expected: Value, place: str, name: str, *, sweeps: bool = False) -> None:
    """Refuse a value that is not allowed. sweeps: a list of allowed values will do."""
    if sweeps and isinstance(value, list):
        assert isinstance(expected, Scalar), "only single values are swept"
        if not value:
            raise Misuse(f"{place} {name} is an empty list; give it a value, or several to sweep over")
        for item in value:
            _check_value(item, expected, place, name)
        return
    match expected:
        case Scalar():
            if not expected.holds(value):
                if (
                    isinstance(value, str)
                    and len(expected.choices) > SOME_NAMES
                    and (offer := nearest(value, expected.choices))
                ):
                    raise Misuse(f"{place} {name} is {shown(value)}{offer} {ALL_DESCRIBED}")
                also = ", or a list of such values" if sweeps else ""
                raise Misuse(f"{place} {name} is {shown(value)}; it may be {_allowed(value, expected)}{also}")
        case Several():
            if not isinstance(value, list) or not value:
                raise Misuse(f"{place} {name} is {shown(value)}; it may be {expected.what}")
            for number, item in enumerate(value):
                _check_value(item, expected.item, place, f"{name}[{number}]")
        case Free():
            if not isinstance(value, dict):
                raise Misuse(f"{place} {name} is {shown(value)}; it may be {expected.what}")
            for key, item in value.items():
                _check_free(item, expected, place, f"{name}.{key}")
        case Record():
            if expected.has_heading:
                check_table(value, expected.keys, f"{place} [{name}]")
            else:
                check_table(value, expected.keys, place, f"{name}.")
        case Named():
            if not isinstance(value, dict) or not value:
                raise Misuse(f"{place} {name} is {shown(value)}; it may be tables under names, as [{name}.NAME]")
            for key, table in value.items():
                if re.fullmatch(NAME, key) is None:
                    raise Misuse(f"{place} [{name}.{shown(key)}] has a name that it cannot have: {NAMES}")
                check_table(table, expected.table.keys, f"{place} [{name}.{key}]")


def _allowed(value: object, expected: Scalar) -> str:
    """Return what the value may be, with what is wrong with it that goes without saying elsewhere."""
    is_large = isinstance(value, int | float) and value > LARGEST
    if is_large and expected.kind in ("integer", "number") and expected.maximum in (None, LARGEST):
        return f"{expected.allowed}{' of' if expected.minimum is None else ' and'} at most {LARGEST:,}"
    if isinstance(value, str) and expected.kind == "string" and not expected.choices:
        if not value.strip():
            return f"{expected.allowed} that is not empty"
        if not value.replace("\n", "").isprintable():
            return f"{expected.allowed} without letters that cannot be printed"
    return expected.allowed


def _check_free(value: object, table: Free, place: str, name: str) -> None:
    """Refuse what no key of such a table holds. Its own reader checks the rest."""
    allowed = (str,) if table.is_text else (bool, int, float, str)
    if value == []:
        raise Misuse(f"{place} {name} is an empty list; give it a value, or several to sweep over")
    items = value if isinstance(value, list) and table.offered else [value]
    if any(not isinstance(item, allowed) or not _is_plain(item) for item in items):
        most = f" of at most {LARGEST:,}" if any(isinstance(item, int) for item in items) else ""
        others = "" if table.is_text else f"true, false, a number{most} or "
        raise Misuse(f"{place} {name} is {shown(value)}; it may be {others}a text that can be printed")


def _is_plain(value: object) -> bool:
    """Whether a text can be printed, and a whole number be kept in a run's files."""
    if isinstance(value, str):
        return value.isprintable()
    return not isinstance(value, int) or abs(value) <= LARGEST


def is_same(one: object, other: object) -> bool:
    """Whether both are the same TOML value: 1 is 1.0, but not true, which Python takes for 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def shown(value: object) -> str:
    """Return the value for a message: as TOML has it, and not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return an offer of the known name that is nearest; empty where none is near."""
    near = near_name(name, known)
    return "" if near is None else f'; did you mean "{near}"?'

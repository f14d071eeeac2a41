"""Settings files: TOML becomes a checked struct, or one line says what is wrong, what is allowed and what to do.

The form of a file is a msgspec struct, and refusals follow from its JSON Schema: a `title` there says what a text may
be, a `description` what a key is for. Knows no form.

Python's parser works behind limits, since somebody else may have written the file. Within them a file of a megabyte
takes up to 3 s of one core and 100 MB, as measured on a virtual machine. Without them 24,000 dotted keys in deep tables
take 8 s and 400 MB, a dotted key of 120 kB takes gigabytes, lists nested a thousand deep end the parser, and a number
of any length cannot be shown.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from collectors.files import open_regular

MOST_BYTES = 1_000_000
MOST_PARTS = 16
"""Parts of a key, as `a.b.c` has three."""
MOST_DEPTH = 16
"""Lists and inline tables within each other."""
MOST_TABLES = 4_000
"""Lines `[table]` and `[[table]]`, and dotted keys, which stand for tables; the parser takes up to 0.4 ms for each."""
_WHOLE = range(-(2**63), 2**63)
"""Whole numbers that each reader of TOML must know."""
_LAYOUT = str.maketrans("", "", "\n\r\t")
"""Removes what lays out a text of several lines."""

_OPENING = re.compile("\"\"\"|'''|[\"'#]")
_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    "'''": re.compile("(?:[^']|'{1,2}(?!'))*'{3,5}"),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*"'),
    "'": re.compile("[^'\n]*+'"),
    "#": re.compile("[^\n]*+"),
}
"""What is left of each kind of text, and of a comment, behind its beginning.

No possessive quantifier stands behind a group: those of Python before 3.11.5 fail to match (CPython issue 106052).
"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")
# A bracket, with the beginning of its line where it is the first there, or the last part of a dotted key.
_MARK = re.compile(r"(?P<first>^[ \t]*+)?(?P<bracket>[\[\]{}])|\.[ \t]*+[\w-]++[ \t]*+=", re.MULTILINE)
_WHERE = re.compile(r"(.*) \(at (?:(line \d+)(?:, column \d+)?|(end of document))\)", re.DOTALL)
"""How Python's messages about TOML's grammar end."""
_TWICE = re.compile(r"Cannot declare \((.*)\) twice")


class BadToml(ValueError):
    """The text is not TOML; the message says why, and names the line where Python gives it."""


class TomlLimit(BadToml):
    """The text may be TOML, and is beyond a limit."""


def read_toml(data: bytes) -> dict[str, Any]:
    """Return the document.

    Raises:
        TomlLimit: it is beyond a limit, or has a text that cannot be printed.
        BadToml: it is not UTF-8 text (a byte order mark, which some editors add, is skipped), or not TOML.
    """
    if len(data) > MOST_BYTES:
        raise TomlLimit(f"it has more than {MOST_BYTES:,} bytes; shorten it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadToml("it is not UTF-8 text; name a TOML file") from None
    _check(text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadToml(_line_first(str(error))) from None
    except ValueError:  # Python reads no number of more than 4,300 digits.
        raise TomlLimit("it has a whole number beyond 64 bits; give a smaller one") from None
    _check_values(document, ())
    return document


def _line_first(text: str) -> str:
    """Return Python's message with its line first, and in plain words for a table or key that is there twice.

    "Cannot declare ('case', 'ddp') twice (at line 9, column 10)" becomes "line 9: [case.ddp] is there twice; ...".
    """
    where = _WHERE.fullmatch(text)
    what, line = (text, "") if where is None else (where[1], f"{where[2] or where[3]}: ")
    if (twice := _TWICE.fullmatch(what)) is not None:
        table = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return f"{line}[{table}] is there twice; rename one"
    if what == "Cannot overwrite a value":
        return f"{line}a key is given twice; give it once"
    return f"{line}{' '.join(what.split())}; this is not TOML"


def _check(text: str) -> None:
    """Refuse what the parser could not take, judged by the document without its texts and comments."""
    rest = _without_texts(text)
    if (long_key := _LONG_KEY.search(rest)) is not None:
        line = rest.count("\n", 0, long_key.start()) + 1
        raise TomlLimit(f"a key has more than {MOST_PARTS} parts (at line {line}); shorten it")
    depth = tables = 0
    for mark in _MARK.finditer(rest):
        bracket = mark["bracket"]
        # Within a list, a bracket that is the first of its line begins no table.
        tables += bracket is None or (depth == 0 and mark["first"] is not None)
        if bracket is not None:
            depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if tables > MOST_TABLES or depth > MOST_DEPTH:
            line = rest.count("\n", 0, mark.start()) + 1
            if tables > MOST_TABLES:
                raise TomlLimit(f"it has more than {MOST_TABLES:,} tables and dotted keys (at line {line}); shorten it")
            raise TomlLimit(f"lists and tables are nested more than {MOST_DEPTH} deep (at line {line}); flatten them")


def _without_texts(text: str) -> str:
    """Return the document with a letter for each text, which may be a part of a key, and without comments.

    The lines stay, to be counted. At a text without an end it ends, as the parser does.
    """
    parts, place = [], 0
    while (opening := _OPENING.search(text, place)) is not None:
        parts.append(text[place : opening.start()])
        end = _ENDS[opening[0]].match(text, opening.end())
        if end is None:
            return "".join(parts)
        parts.append("" if opening[0] == "#" else "s" + "\n" * end[0].count("\n"))
        place = end.end()
    return "".join((*parts, text[place:]))


def _check_values(value: Any, key: tuple[str, ...]) -> None:
    """Refuse numbers that not every reader of TOML knows, and texts that no terminal and no command can take."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_values(item, (*key, name))
            if not name.isprintable():
                raise TomlLimit(f"the key {json.dumps(name)} cannot be printed; leave it out")
    elif isinstance(value, list):
        for item in value:
            _check_values(item, key)
    elif isinstance(value, int) and value not in _WHOLE:
        raise TomlLimit(f"{'.'.join(key)} is a whole number beyond 64 bits; give a smaller one")
    elif isinstance(value, str) and not value.translate(_LAYOUT).isprintable():
        raise TomlLimit(f"{'.'.join(key)} has a character that cannot be printed; leave it out")


# A document becomes a struct.

Form = TypeVar("Form", bound=msgspec.Struct)
JsonSchema: TypeAlias = dict[str, Any]
_VALUE_SHOWN = 60
"""Letters of a wrong value that a message shows."""
_FEW = 16
"""So many allowed words are all in a message; of more, the nearest where one is near."""
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""A step of msgspec's paths, such as `.ranks`, `[0]`, or `[...]` for any key of a table."""


class BadSettings(ValueError):
    """A settings file is wrong. The message names file, key and value, what is allowed, and the next step."""


def read_document(path: Path) -> dict[str, Any]:
    """Return the TOML document of a file.

    Raises:
        BadSettings: the file cannot be read, is too long, or is not TOML.
    """
    try:
        with open_regular(path) as file:
            return read_toml(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}; name a TOML file") from None
    except BadToml as error:
        raise BadSettings(f"{path}: {error}") from None


def check(document: Mapping[str, Any], form: type[Form], file: str) -> Form:
    """Return the document as a struct. form: it and its tables forbid unknown fields. file: its name, for messages.

    Raises:
        BadSettings: a key is unknown or missing, a value is not allowed, or the file is of a newer program.
    """
    try:
        return msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{file}: {_refusal(document, form, str(error))}") from None


def _refusal(document: Mapping[str, Any], form: type[msgspec.Struct], text: str) -> str:
    """Return msgspec's refusal in our words."""
    whole = msgspec.json.schema(form)
    version = document.get("schema_version")
    newest = next(_schemas_at(whole, whole, ["schema_version"]), {}).get("maximum")
    if newest is not None and isinstance(version, int) and version > newest:
        return (
            f"schema_version is {version}, and this program reads {newest}; use the version of parallel-observatory"
            " that the file was written for"
        )
    what, _, place = text.partition(" - at `")
    is_key = place.startswith("key` in `")
    keys = _keys_to(document, form, text, place.removeprefix("key` in `") + "[...]" * is_key)
    (word,) = re.findall(r"(?:unknown|required) field `(.*)`", what, re.DOTALL) or [None]
    if word is not None:
        # Of an optional table, the schema is also that of nothing.
        (table,) = (schema for schema in _schemas_at(whole, whole, keys) if "properties" in schema)
        known, name = table["properties"], dotted([*keys, word])
        if "unknown" in what:
            near = near_name(word, known)
            return f"unknown key '{name}'; " + (f"did you mean '{near}'?" if near else f"it may be {', '.join(known)}")
        words = known[word].get("description", "").rstrip(".") or allowed(known[word])
        return f"missing key '{name}'; add it ({words})"
    if is_key:
        names = next(schema for schema in _schemas_at(whole, whole, keys[:-1]) if "propertyNames" in schema)
        return f"{dotted(keys[:-1])} has the key {shown(keys[-1])}; it may be {allowed(names['propertyNames'])}"
    value: Any = document
    for key in keys:
        value = value[key]
    schemas = list(_schemas_at(whole, whole, keys))
    choices = [str(choice) for schema in schemas for choice in schema.get("enum", ())]
    offer = nearest(value, choices) if isinstance(value, str) and len(choices) > _FEW else ""
    return f"{dotted(keys)} is {shown(value)}" + (offer or f"; it may be {allowed({'anyOf': schemas})}")


def _keys_to(document: Mapping[str, Any], form: type[msgspec.Struct], text: str, place: str) -> list[Any]:
    """Return the keys that lead to what msgspec refuses.

    Where msgspec writes [...] for a key of a table, it is the one whose value alone is refused in the same words.
    """
    keys: list[Any] = []
    table: Any = document
    for field, index in _STEP.findall(place):
        if index == "...":
            keys.append(
                next(key for key in table if _is_refused(_replaced(document, keys, {key: table[key]}), form, text))
            )
        else:
            keys.append(field or int(index))
        table = table[keys[-1]]
    return keys


def _is_refused(document: object, form: type[msgspec.Struct], text: str) -> bool:
    try:
        msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        return str(error) == text
    return False


def _replaced(document: Any, keys: Sequence[Any], value: object) -> object:
    """Return a copy of the document with another value behind these keys."""
    if not keys:
        return value
    copied = document.copy()
    copied[keys[0]] = _replaced(document[keys[0]], keys[1:], value)
    return copied


def _schemas_at(whole: JsonSchema, schema: JsonSchema, keys: Sequence[Any]) -> Iterator[JsonSchema]:
    """Yield the schemas that what stands behind these keys may fulfil. whole: has the definitions."""
    if "$ref" in schema:
        yield from _schemas_at(whole, whole["$defs"][schema["$ref"].rpartition("/")[2]], keys)
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _schemas_at(whole, each, keys)
    elif not keys:
        yield schema
    else:
        within = schema.get("items") if isinstance(keys[0], int) else schema.get("properties", {}).get(keys[0])
        within = within or (schema.get("additionalProperties") if isinstance(keys[0], str) else None)
        if within:
            yield from _schemas_at(whole, within, keys[1:])


# Words of messages.


def allowed(schema: JsonSchema) -> str:
    """Return what a value of this JSON Schema may be, in words."""
    kind = schema.get("type")
    if "anyOf" in schema:
        each = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        has_lists = len(each) > 1 and each[-1].get("type") == "array"
        return ", or ".join(
            [*map(allowed, each[:-1]), "a list of one or more of them" if has_lists else allowed(each[-1])]
        )
    if "enum" in schema:
        return " or ".join([", ".join(map(str, schema["enum"][:-1])), str(schema["enum"][-1])]).removeprefix(" or ")
    if kind == "object":
        return "a table"
    if "title" in schema:
        return str(schema["title"])
    if kind == "array":
        return f"a list, each value {allowed(schema['items'])}"
    kinds = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "a text"}
    limits = (("of at least", "minimum"), ("above", "exclusiveMinimum"), ("of at most", "maximum"))
    bounds = [f"{word} {_number(schema[key])}" for word, key in limits if key in schema]
    return " ".join([kinds[str(kind)], " and ".join(bounds)]).rstrip().replace("and of", "and")


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def dotted(keys: Iterable[str | int]) -> str:
    """Return the place of a key as TOML writes it: `case.ddp.tags[0]`."""
    words = ""
    for key in keys:
        if isinstance(key, int):
            words += f"[{key}]"
        else:
            words += f".{key if re.fullmatch(r'[A-Za-z0-9_-]+', key) else json.dumps(key)}"
    return words.removeprefix(".")


def shown(value: object) -> str:
    """Return the value for a message: as TOML has it, and not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}..."


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that this one was probably meant to be; None where none is near.

    A near name shares two letters of three with it, such as ddp with dpp, or begins with it, as ring_attention with
    ring.
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    longer = [each for each in names if len(name) > 2 and each.startswith(name)]
    return next(iter(close + longer), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return an offer of the known name that is nearest; empty where none is near."""
    near = near_name(name, known)
    return "" if near is None else f'; did you mean "{near}"?'

"""Settings files: reads TOML into a checked struct, or says in one line what is wrong, what is allowed and what to do.

The form of a file is a msgspec struct, and error messages follow from its JSON Schema: a `title` says what a string
may be, a `description` what a key is for. Knows no particular form.

Limits protect Python's parser, since somebody else may have written the file. Within them a file of a megabyte takes up
to 3 s of one core and 100 MB, as measured on a virtual machine. Without them 24,000 dotted keys in deep tables take 8 s
and 400 MB, a dotted key of 120 kB takes gigabytes, lists nested a thousand deep crash the parser, and numbers may be
too long to print.
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
"""Maximum parts of a key; `a.b.c` has three."""
MOST_DEPTH = 16
"""Maximum nesting of lists and inline tables."""
MOST_TABLES = 4_000
"""Maximum lines `[table]` and `[[table]]`, and dotted keys, which define tables; each takes the parser up to 0.4 ms."""
_WHOLE = range(-(2**63), 2**63)
"""Whole numbers that every TOML parser must accept."""
_LAYOUT = str.maketrans("", "", "\n\r\t")
"""Removes the layout characters of a multi-line string."""

_OPENING = re.compile("\"\"\"|'''|[\"'#]")
_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    "'''": re.compile("(?:[^']|'{1,2}(?!'))*'{3,5}"),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*"'),
    "'": re.compile("[^'\n]*+'"),
    "#": re.compile("[^\n]*+"),
}
"""The rest of a string or comment, by its opening.

No group has a possessive quantifier: before Python 3.11.5 these fail to match (CPython issue 106052).
"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")
# A bracket, with the start of its line if nothing precedes it, or the last part of a dotted key.
_MARK = re.compile(r"(?P<first>^[ \t]*+)?(?P<bracket>[\[\]{}])|\.[ \t]*+[\w-]++[ \t]*+=", re.MULTILINE)
_WHERE = re.compile(r"(.*) \(at (?:(line \d+)(?:, column \d+)?|(end of document))\)", re.DOTALL)
"""Splits Python's messages about TOML's grammar into text and place."""
_TWICE = re.compile(r"Cannot declare \((.*)\) twice")


class BadToml(ValueError):
    """The text is not TOML; the message says why, and names the line where Python gives it."""


class TomlLimit(BadToml):
    """The text may be TOML, but exceeds a limit."""


def read_toml(data: bytes) -> dict[str, Any]:
    """Return the document. A byte order mark, which some editors add, is skipped.

    Raises:
        TomlLimit: it exceeds a limit, or has a string that cannot be printed.
        BadToml: it is not UTF-8 text, or not TOML.
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
    except ValueError:  # Python rejects numbers of more than 4,300 digits.
        raise TomlLimit("it has a whole number beyond 64 bits; give a smaller one") from None
    _check_values(document, ())
    return document


def _line_first(text: str) -> str:
    """Return Python's message with its line first, and in plain words for a duplicate table or key.

    "Cannot declare ('case', 'ddp') twice (at line 9, column 10)" becomes "line 9: [case.ddp] is defined twice; ...".
    """
    where = _WHERE.fullmatch(text)
    message, line = (text, "") if where is None else (where[1], f"{where[2] or where[3]}: ")
    if (twice := _TWICE.fullmatch(message)) is not None:
        table = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return f"{line}[{table}] is defined twice; rename one"
    if message == "Cannot overwrite a value":
        return f"{line}a key is given twice; give it once"
    return f"{line}{' '.join(message.split())}; this is not TOML"


def _check(text: str) -> None:
    """Refuse a document that the parser could not handle, judged without its strings and comments."""
    rest = _without_texts(text)
    if (long_key := _LONG_KEY.search(rest)) is not None:
        line = rest.count("\n", 0, long_key.start()) + 1
        raise TomlLimit(f"a key has more than {MOST_PARTS} parts (at line {line}); shorten it")
    depth = tables = 0
    for mark in _MARK.finditer(rest):
        bracket = mark["bracket"]
        # Within a list, a bracket at the start of a line does not open a table.
        tables += bracket is None or (depth == 0 and mark["first"] is not None)
        if bracket is not None:
            depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if tables > MOST_TABLES or depth > MOST_DEPTH:
            line = rest.count("\n", 0, mark.start()) + 1
            if tables > MOST_TABLES:
                raise TomlLimit(f"it has more than {MOST_TABLES:,} tables and dotted keys (at line {line}); shorten it")
            raise TomlLimit(f"lists and tables are nested more than {MOST_DEPTH} deep (at line {line}); flatten them")


def _without_texts(text: str) -> str:
    """Return the document without comments and with a letter for each string, which may be part of a key.

    Line breaks are kept, so lines can be counted. The result stops at an unterminated string, like the parser.
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
    """Refuse numbers that not every TOML parser accepts, and strings that terminals and commands cannot handle."""
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


# From a document to a struct.

Form = TypeVar("Form", bound=msgspec.Struct)
JsonSchema: TypeAlias = dict[str, Any]
_VALUE_SHOWN = 60
"""Maximum length of a wrong value in a message."""
_FEW = 16
"""A message lists up to this many allowed words; if there are more, it offers a similar one."""
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""A step of msgspec's paths: `.ranks`, `[0]`, or `[...]` for any key of a table."""


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
    """Return the document as a struct. form: must forbid unknown fields, also in tables. file: name for messages.

    Raises:
        BadSettings: a key is unknown or missing, a value is not allowed, or the file is for a newer version.
    """
    try:
        return msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{file}: {_refusal(document, form, str(error))}") from None


def _refusal(document: Mapping[str, Any], form: type[msgspec.Struct], text: str) -> str:
    """Rewrite msgspec's error message."""
    whole = msgspec.json.schema(form)
    version = document.get("schema_version")
    newest = next(_schemas_at(whole, whole, ["schema_version"]), {}).get("maximum")
    if newest is not None and isinstance(version, int) and version > newest:
        return (
            f"schema_version is {version}, and this program reads {newest}; use the version of parallel-observatory"
            " that the file was written for"
        )
    problem, _, place = text.partition(" - at `")
    is_key = place.startswith("key` in `")
    keys = _keys_to(document, form, text, place.removeprefix("key` in `") + "[...]" * is_key)
    (word,) = re.findall(r"(?:unknown|required) field `(.*)`", problem, re.DOTALL) or [None]
    if word is not None:
        # An optional table also has a schema for null.
        (table,) = (schema for schema in _schemas_at(whole, whole, keys) if "properties" in schema)
        known, name = table["properties"], dotted([*keys, word])
        if "unknown" in problem:
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
    """Return the keys that lead to the value that msgspec refuses.

    msgspec writes [...] for any key of a table. The key meant is the one that gives the same error alone.
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
    """Return a copy of the document with another value at these keys."""
    if not keys:
        return value
    copied = document.copy()
    copied[keys[0]] = _replaced(document[keys[0]], keys[1:], value)
    return copied


def _schemas_at(whole: JsonSchema, schema: JsonSchema, keys: Sequence[Any]) -> Iterator[JsonSchema]:
    """Yield the schemas that apply to the value at these keys. whole: the schema with the definitions."""
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


# Wording of messages.


def allowed(schema: JsonSchema) -> str:
    """Describe in words what this JSON Schema allows."""
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
    """Return the value for a message, as TOML writes it, shortened if it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}..."


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if none is similar.

    A similar name shares two thirds of its letters (ddp and dpp), or begins with this one (ring_attention and ring).
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    longer = [each for each in names if len(name) > 2 and each.startswith(name)]
    return next(iter(close + longer), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name; empty if none is similar."""
    near = near_name(name, known)
    return "" if near is None else f'; did you mean "{near}"?'

"""TOML of others is read within limits, and what is within them is read as Python's parser reads it."""

from __future__ import annotations

import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from bench.engines.kubernetes.settings import KubernetesSettings
from bench.engines.ray.engine import RaySettings
from bench.engines.slurm.allocation import SlurmSettings
from bench.serve.stack.settings import StackSettings
from bench.suite.form.tables import SuiteTable
from collectors.settings_file import (
    MOST_DEPTH,
    MOST_PARTS,
    MOST_TABLES,
    BadSettings,
    BadToml,
    JsonSchema,
    TomlLimit,
    check,
    read_toml,
)
from dashboards.thresholds import Thresholds

_MEMORY_BYTES = 1 << 30


def _keys(parts: int) -> str:
    return ".".join(["a"] * parts)


@pytest.mark.parametrize(
    "text",
    [
        f"{_keys(MOST_PARTS)} = 1",
        f"[{_keys(MOST_PARTS)}]",
        f"x = {'[' * MOST_DEPTH}{']' * MOST_DEPTH}",
        f"x = '{_keys(99)}'",
        f'x = "{_keys(99)} \\" {"[" * 99}"',
        f"x = 1 # {_keys(99)} {'[' * 99}",
        f'x = """\n{_keys(99)}\n\\""" {"{" * 99} """""',
        f"x = '''\n{_keys(99)} '' {'[' * 99}'''''",
        f"x = [{', '.join(['1.5'] * 999)}]",
        "x = [[1], [2]]\n" + "[[y]]\n" * 99,
        "".join(f"[t{number}]\n" for number in range(MOST_TABLES)),
        "".join(f"t{number}.a = 1.5\n" for number in range(MOST_TABLES)),
        "[[t]]\nx = [ # [\n" + "[1.5],\n  [2],\n" * MOST_TABLES + "]",
        "x = '''\n" + "[t]\na.b = 1\n" * MOST_TABLES + "'''",
        "x = 0x7fff_ffff_ffff_ffff\ny = -9223372036854775808",
    ],
)
def test_what_is_within_the_limits_is_read_as_python_reads_it(text: str) -> None:
    assert read_toml(text.encode()) == tomllib.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"x = 1\n{_keys(MOST_PARTS + 1)} = 1", "a key has more than 16 parts (at line 2); shorten it"),
        (f"x = '''\n\n'''\n[{_keys(MOST_PARTS + 1)}]", "a key has more than 16 parts (at line 4); shorten it"),
        (" . ".join(['"a"', "'b'"] * 9) + " = 1", "a key has more than 16 parts (at line 1); shorten it"),
        (f"x = {{ {_keys(MOST_PARTS + 1)} = 1 }}", "a key has more than 16 parts (at line 1); shorten it"),
        (f"x = {'[' * (MOST_DEPTH + 1)}", "lists and tables are nested more than 16 deep (at line 1); flatten them"),
        (f"x = {'{a=' * (MOST_DEPTH + 1)}", "lists and tables are nested more than 16 deep (at line 1); flatten them"),
        (
            f"x = ['''\n'''\n,{'[' * MOST_DEPTH}",
            "lists and tables are nested more than 16 deep (at line 3); flatten them",
        ),
        ("[t]\nx = [1, 0x8000000000000000]", "t.x is a whole number beyond 64 bits; give a smaller one"),
        ("\n[[t]]" * (MOST_TABLES + 1), "it has more than 4,000 tables and dotted keys (at line 4002); shorten it"),
        ("[t] # [\n" * (MOST_TABLES + 1), "it has more than 4,000 tables and dotted keys (at line 4001); shorten it"),
        (
            "a . 'b' = 1\n" * (MOST_TABLES + 1),
            "it has more than 4,000 tables and dotted keys (at line 4001); shorten it",
        ),
        (
            "\t[t]\r\na.b=1\r\n" * MOST_TABLES,
            "it has more than 4,000 tables and dotted keys (at line 4001); shorten it",
        ),
        (
            f"x = {{{'a.b=1,' * (MOST_TABLES + 1)}",
            "it has more than 4,000 tables and dotted keys (at line 1); shorten it",
        ),
        (r'x.y = ["a\u0007"]', "x.y has a character that cannot be printed; leave it out"),
        (r'"a\u0007" = 1', r'the key "a\u0007" cannot be printed; leave it out'),
        (f"x = 0o{'7' * 9999}", "x is a whole number beyond 64 bits; give a smaller one"),
        (f"x = {'7' * 60_000}", "it has a whole number beyond 64 bits; give a smaller one"),
        ("#" * 1_000_001, "it has more than 1,000,000 bytes; shorten it"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(TomlLimit) as caught:
        read_toml(text.encode())
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "text", [b"x = ", b"\xff", b"x = 1\nx = 2", b"x = " + b"9" * 5000, b"x = 2024-99-99", b'x = "']
)
def test_what_is_no_toml_is_refused(text: bytes) -> None:
    with pytest.raises(BadToml):
        read_toml(text)


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from("ab_[]{}=.,'\"\n#0x9-\\ \u2028"), max_size=60))
def test_any_text_is_read_as_python_reads_it_or_refused(text: str) -> None:
    try:
        found = read_toml(text.encode())
    except TomlLimit:
        return
    except BadToml:
        with pytest.raises(tomllib.TOMLDecodeError):
            tomllib.loads(text)
        return
    assert found == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "'a.' * 60_000 + 'b = 1'",
        "'[' + 'a.' * 60_000 + 'b]'",
        r"'x = \"' + '\\\\n' * 400_000 + '\"'",
        r"'x = \"\"\"' + 'a\"' * 400_000 + '\"\"\"'",
        "'a.' * 15 + 'b' + '.b = 1\\n' * 60_000",
        r"'\"' * 900_000",
        "'[a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p]\\n' + '0.a.b.c.d.e.f.g.h.i.j.k.l.m.n = 1\\n' * 28_000",
    ],
)
def test_no_text_takes_more_than_a_little_memory(text: str) -> None:
    program = "from collectors.settings_file import *\n"
    program += f"try: read_toml(({text}).encode())\nexcept BadToml as error: print(error)"
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))  # noqa: E731
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


FORMS = (KubernetesSettings, RaySettings, SlurmSettings, StackSettings, SuiteTable, Thresholds)


def _alternatives(schema: Any) -> Iterator[list[JsonSchema]]:
    """Yield the alternatives of each value that has several."""
    if isinstance(schema, dict):
        if "anyOf" in schema:
            yield schema["anyOf"]
        for value in schema.values():
            yield from _alternatives(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _alternatives(value)


@pytest.mark.parametrize("form", FORMS)
def test_no_text_with_a_pattern_may_also_be_a_list_or_a_table(form: type[msgspec.Struct]) -> None:
    """msgspec 0.22 corrupts memory there, and the process dies later."""
    for alternatives in _alternatives(msgspec.json.schema(form)):
        if any("pattern" in one for one in alternatives):
            assert all("$ref" not in one and one.get("type") not in ("array", "object") for one in alternatives)


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1)]
    words: tuple[Literal["left", "right"], ...] = ()


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    part: dict[str, dict[str, _Part]] = {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[part.a.b]\nsize = 0", "part.a.b.size is 0; it may be a whole number of at least 1"),
        ("[part.a.b]\nsize = 1\n[part.a.'c d']\nsize = 0", 'part.a."c d".size is 0; it may be'),
        ("[part.a.b]\nsize = 1\n[part.e.b]", "missing key 'part.e.b.size'; add it (a whole number of at least 1)"),
        ("[part.a.b]\nsize = 1\n[part.e.b]\nsizes = 1", "unknown key 'part.e.b.sizes'; did you mean 'size'?"),
        ("[part.a.b]\nsize = 1\nwords = ['left', 'up']", 'part.a.b.words[1] is "up"; it may be left or right'),
        ("parts = 1", "unknown key 'parts'; did you mean 'part'?"),
    ],
)
def test_a_refusal_names_the_key_behind_any_names(text: str, said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        check(read_toml(text.encode()), _Whole, "mine.toml")
    assert str(refused.value).startswith(f"mine.toml: {said}")

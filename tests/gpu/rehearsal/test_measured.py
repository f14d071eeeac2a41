"""What docs/measured says of how to repeat its tables is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

from tests.gpu.check import Verdict
from tests.gpu.first import BUDGET_S, command_parser
from tests.gpu.report import REHEARSAL
from tests.gpu.session import ROOT

MEASURED = ROOT / "docs" / "measured"
TEXT = (MEASURED / "README.md").read_text()


def test_every_verdict_is_explained() -> None:
    assert sorted(re.findall(r"^\| `([a-z ]+)` \|", TEXT, re.MULTILINE)) == sorted(get_args(Verdict))


def test_every_word_of_make_gpu_is_understood() -> None:
    for words in re.findall(r'MORE="([^"]*)"', TEXT):
        command_parser().parse_args(shlex.split(words))


def test_the_budget_is_that_of_the_command_and_of_make() -> None:
    assert f"at most {BUDGET_S:g} s" in TEXT
    assert f"BUDGET ?= {BUDGET_S:g}\n" in (ROOT / "Makefile").read_text()


def tables() -> list[Path]:
    """The tables of machines, named as README.md says: count, device and commit."""
    return [path for path in MEASURED.glob("*.md") if re.match(r"\d+-", path.name)]


def test_a_table_here_is_of_a_gpu_and_names_its_commit() -> None:
    for path in tables():
        text = path.read_text()
        assert REHEARSAL not in text
        assert re.search(r"^- commit: [0-9a-f]{7,}", text, re.MULTILINE)


def test_each_page_that_is_no_table_of_a_gpu_is_listed_as_such() -> None:
    assert "figure is of a GPU until a file for one is listed here" in TEXT
    others = {path.name for path in MEASURED.glob("*.md")} - {path.name for path in tables()} - {"README.md"}
    for name in others:
        assert f"| [{name}]({name}) |" in TEXT.partition("## GPU machines")[0]


def test_no_gpu_is_claimed_as_long_as_there_is_no_table() -> None:
    assert ("No GPU has been measured yet" in TEXT) == (not tables())

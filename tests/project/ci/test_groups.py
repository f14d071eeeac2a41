"""CI chooses among all groups and halves of slow tests that the Makefile has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_ci_chooses_among_all_heavy_groups_and_each_group_is_a_target() -> None:
    makefile, script = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    (heavy,) = re.findall(r"^HEAVY := (.*)$", makefile, re.MULTILINE)
    (chosen,) = re.findall(r"^groups=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    targets = {command.split()[0] for command in shlex.split(chosen)}
    assert {f"test-{group}" for group in heavy.split()} <= targets
    assert targets <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def test_the_halves_that_ci_chooses_among_are_all_slow_tests() -> None:
    makefile, script = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    (halves,) = re.findall(r"^test-slow: (.*)$", makefile, re.MULTILINE)
    (chosen,) = re.findall(r"^halves=\((.*)\)$", script, re.MULTILINE)
    assert chosen.split() == halves.split()
    (bench,) = re.findall(r"^SLOW_BENCH = (.*)$", makefile, re.MULTILINE)
    (other,) = re.findall(r"^SLOW_OTHER = (.*)$", makefile, re.MULTILINE)
    assert bench == "$(filter tests/bench/%,$(SLOW_FILES))"
    assert other == "$(filter-out $(SLOW_BENCH),$(SLOW_FILES))"

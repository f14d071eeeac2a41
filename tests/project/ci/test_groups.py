"""CI chooses among all groups of slow tests that the Makefile has."""

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

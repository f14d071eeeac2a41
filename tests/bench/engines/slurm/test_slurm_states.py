"""Which of Slurm's nodes get a job, by every state and flag of Slurm 21.08 to 25.11, in each way that it tells them."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.engines.cluster import ImplausibleAnswers
from bench.engines.slurm.node_list import SlurmNode, read_nodes

BASES = ("DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "UNKNOWN")
FLAGS = (
    *(
        "BLOCKED",
        "CLOUD",
        "COMPLETING",
        "DRAIN",
        "DYNAMIC",
        "DYNAMIC_FUTURE",
        "DYNAMIC_NORM",
        "EXTERNAL",
        "INVALID_REG",
    ),
    *("FAIL", "MAINTENANCE", "POWER_DOWN", "POWER_UP", "PERFCTRS", "POWERED_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
    *("RESERVED", "RESUME", "NOT_RESPONDING", "PLANNED", "POWERING_UP", "POWERING_DOWN", "UNDRAIN", "REBOOT_CANCELED"),
    *("POWER_DRAIN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE"),
)
"""Source: node_state_flags of slurm_protocol_defs.c in each release; NODE_STATES of its data_parser plugins."""
LETS_JOBS = {"CLOUD", "COMPLETING", "DYNAMIC", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "RESUME", "UNDRAIN", "REBOOT_CANCELED"}
COMPACT = {
    # As older versions and sinfo write them. Source: node_state_string of slurm_protocol_defs.c; sinfo(1).
    **dict.fromkeys(("IDLE", "ALLOCATED", "ALLOCATED+", "MIXED", "COMPLETING", "IDLE+CLOUD"), True),
    **dict.fromkeys((f"{base}{letter}" for base in ("IDLE", "MIXED", "ALLOCATED") for letter in "*~#!%$@^-"), False),
    **dict.fromkeys(
        ("MAINT", "MAINT*", "REBOOT", "REBOOT*", "REBOOT^", "INVAL", "RESERVED", "PLANNED", "BLOCKED"), False
    ),
    **dict.fromkeys(("DRAINED", "DRAINING", "DRAINED*", "DRAINING@", "FAIL", "FAILING", "FAILING*", "NPC"), False),
    **dict.fromkeys(
        ("DOWN*", "DOWN*+DRAIN", "FUTURE", "UNKNOWN*", "IDLE+MAINT+RESERVED", "POWER_DOWN", "?", ""), False
    ),
}
"""Whether a node in such a state gets a job."""


class Slurm:
    """Commands that answer with texts, in a folder that stands first on the PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def says(self, *, scontrol: str = "", scontrol_json: str | None = None, sinfo_json: str | None = None) -> None:
        """Answer so; a command whose JSON is None refuses the option, as before it had it."""
        for name, answer, described in (("scontrol", scontrol, scontrol_json), ("sinfo", "", sinfo_json)):
            (self._folder / name).with_suffix(".json").write_text(described or "")
            (self._folder / name).with_suffix(".txt").write_text(answer)
            refusal = f"{name}: unrecognized option '--json'"
            in_json = f'echo "{refusal}" >&2; exit 1' if described is None else f"cat {self._folder}/{name}.json"
            path = self._folder / name
            path.write_text(f'#!/bin/sh\ncase "$*" in *--json*) {in_json};; *) cat {self._folder}/{name}.txt;; esac\n')
            path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Slurm(tmp_path)


def _gets_jobs(base: str, flags: tuple[str, ...]) -> bool:
    return base in ("IDLE", "ALLOCATED", "MIXED") and set(flags) <= LETS_JOBS


CASES = [
    (base, flags) for base in BASES for flags in [(), *((flag,) for flag in FLAGS), *itertools.combinations(FLAGS, 2)]
]


def _names(nodes: list[SlurmNode]) -> set[str]:
    return {node.name for node in nodes if node.gets_jobs}


def _text(name: str, state: str, rest: str = "") -> str:
    return f"NodeName={name} CPUTot=8 RealMemory=4000 State={state} Partitions=night{rest}\n"


def _json(name: str, **told: Any) -> dict[str, Any]:
    return {
        "name": name,
        "cpus": 8,
        "real_memory": 4000,
        "partitions": ["night"],
        "gres": "",
        "comment": "State=DOWN",
        **told,
    }


@pytest.mark.parametrize("form", ["text", "22.05", "23.02"])
def test_every_state_with_every_two_flags_is_judged_alike_in_each_form(form: str, slurm: Slurm) -> None:
    right = {f"n{index}" for index, case in enumerate(CASES) if _gets_jobs(*case)}
    if form == "text":
        slurm.says(scontrol="".join(_text(f"n{i}", "+".join((base, *flags))) for i, (base, flags) in enumerate(CASES)))
    elif form == "22.05":  # One word in small letters, and the flags apart.
        nodes = [_json(f"n{i}", state=base.lower(), state_flags=list(flags)) for i, (base, flags) in enumerate(CASES)]
        slurm.says(sinfo_json=json.dumps({"meta": {}, "errors": [], "nodes": nodes}))
    else:
        nodes = [_json(f"n{i}", state=[base, *flags]) for i, (base, flags) in enumerate(CASES)]
        slurm.says(scontrol_json=json.dumps({"nodes": nodes, "last_update": {}, "meta": {}}))
    doubts = ImplausibleAnswers("Slurm")
    found = read_nodes(implausible=doubts)
    assert len(found) == len(CASES)
    assert _names(found) == right
    assert not doubts.counts


def test_states_as_older_versions_shorten_them_are_judged(slurm: Slurm) -> None:
    slurm.says(scontrol="".join(_text(f"n{index}", state) for index, state in enumerate(COMPACT)))
    assert _names(read_nodes()) == {f"n{index}" for index, gets in enumerate(COMPACT.values()) if gets}


def test_a_state_of_a_later_version_counts_as_away_and_is_said(slurm: Slurm) -> None:
    slurm.says(scontrol_json=json.dumps({"nodes": [_json("n0", state=["IDLE", "QUANTUM"])]}))
    doubts = ImplausibleAnswers("Slurm")
    assert _names(read_nodes(implausible=doubts)) == set()
    assert doubts.lines() == ['Slurm: State "QUANTUM" of node n0 (unknown here, so it counts as away) is left out']


@pytest.mark.parametrize(
    "told",
    [
        " Reason=two [root@2026-11-25T21:33:17]        lines State=DOWN",
        " Comment=hello State=DOWN Partitions=gpu Extra=x",
        " Extra=x\nNodeName=n0 State=DOWN\nNodeName=evil State=DOWN",
        " Comment=x\n   State=DOWN NodeName=n0",
    ],
)
def test_what_people_write_is_not_taken_for_the_state(told: str, slurm: Slurm) -> None:
    slurm.says(scontrol=f"Loading slurm/22.05 {'{'}State=DOWN{'}'}\n{_text('n0', 'IDLE', told)}")
    (node,) = read_nodes()
    assert (node.name, node.state, node.partitions) == ("n0", "IDLE", ("night",))


@pytest.mark.parametrize("banner", ["", "** {Welcome} **\n{\n", '{"motd": 1}\n'])
def test_json_is_found_after_a_banner_and_else_text_is_read(banner: str, slurm: Slurm) -> None:
    document = json.dumps({"nodes": [_json("n0", state=["IDLE"], cpus={"set": True, "infinite": False, "number": 8})]})
    slurm.says(scontrol_json=banner + document, scontrol=_text("text", "IDLE"))
    (node,) = read_nodes()
    assert (node.name, node.cores) == ("n0", 8)
    slurm.says(scontrol_json=banner + document[:-9], scontrol=_text("text", "IDLE"))
    assert [node.name for node in read_nodes()] == ["text"]


def test_a_comment_that_is_not_utf_8_is_read(slurm: Slurm, tmp_path: Path) -> None:
    slurm.says(scontrol="x")
    (tmp_path / "scontrol.txt").write_bytes(_text("n0", "IDLE").encode().rstrip() + b" Comment=caf\xe9\n")
    assert _names(read_nodes()) == {"n0"}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("ALLOCATED+DRAIN", None),
        ("MIXED+MAINTENANCE+RESERVED", None),
        ("ALLOCATED+REBOOT_REQUESTED", None),
        ("ALLOCATED+COMPLETING", None),
        ("DOWN+NOT_RESPONDING", "DOWN+NOT_RESPONDING (the power is gone)"),
        ("DOWN*", "DOWN* (the power is gone)"),
        ("ALLOCATED*", "ALLOCATED* (the power is gone)"),
        ("MIXED+FAIL", "MIXED+FAIL (the power is gone)"),
        ("IDLE+POWERED_DOWN", "IDLE+POWERED_DOWN (the power is gone)"),
        ("ALLOCATED+POWERING_DOWN", "ALLOCATED+POWERING_DOWN (the power is gone)"),
        ("DOWN^", "DOWN^ (the power is gone)"),
    ],
)
def test_a_node_of_a_job_is_gone_in_some_of_the_states_in_which_it_gets_no_other(
    state: str, why: str | None, slurm: Slurm
) -> None:
    slurm.says(scontrol=_text("n0", state, " Reason=the power is gone [root@2026-11-25T21:33:17]"))
    (node,) = read_nodes(["n0"])
    assert node.why_gone == why

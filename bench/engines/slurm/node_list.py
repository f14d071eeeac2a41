"""Reads Slurm's descriptions of its nodes, as JSON if available, else as text, and which states can get a job.

Checked against Slurm 21.08 to 25.11: slurm.h, slurm_protocol_defs.c, and the man pages of sinfo and scontrol.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.engines.cluster import ImplausibleAnswers
from bench.errors import InfrastructureFailed

CALL_S = 60.0
"""How long a query command of Slurm may take."""
MEGABYTE = 1 << 20
"""Slurm's unit of memory."""


def call(*words: str) -> str:
    """Run a query command of Slurm; return its output.

    Raises:
        InfrastructureFailed: the command is missing, does not answer, or fails.
    """
    done = _run(words)
    if done.returncode:
        raise InfrastructureFailed(f"{shlex.join(words)}: {last_line(done.stderr) or f'code {done.returncode}'}")
    return done.stdout


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        # Comments and reasons may have any encoding.
        return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=CALL_S, check=False)
    except FileNotFoundError:
        raise InfrastructureFailed(
            f"the engine slurm needs {words[0]}, which is not on the PATH; run this where Slurm's commands are"
            " installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise InfrastructureFailed(f"{words[0]} did not answer within {CALL_S:g} s; check slurmctld") from None


def last_line(text: str) -> str:
    """Return the last line that is not empty; an empty text if there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol`: `CPUTot=8 State=IDLE` has two.

    The first field of a name counts, because users' texts, for example a comment with "State=DOWN", come last.
    """
    values: dict[str, str] = {}
    for word in line.split():
        name, sign, value = word.partition("=")
        if sign:
            values.setdefault(name, value)
    return values


def job_line(text: str) -> str:
    """Return the line that describes a job, without the job's name, which may have any text; empty if there is none."""
    line = next((line for line in text.splitlines() if line.startswith("JobId=")), "")
    return re.sub(r" JobName=.*? (?=UserId=)", " ", line, count=1)


# States

_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""The meaning of the character after a state. Source: sinfo(1), NODE STATE CODES."""
_UP = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
"""States of nodes that get a job, now or when their present job has ended."""
_HARMLESS = frozenset({"CLOUD", "DYNAMIC", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "RESUME", "UNDRAIN", "REBOOT_CANCELED"})
"""Flags that do not keep jobs from a node: its origin, and its return to service."""
_AWAY = frozenset(
    {
        *("DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVALID", "INVAL", "INVALID_REG", "NOT_RESPONDING", "EXTERNAL"),
        *("DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"),
        *("MAINT", "MAINTENANCE", "RESERVED", "PLANNED", "BLOCKED", "PERFCTRS", "NPC"),
        *("REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
        *("POWER_DOWN", "POWER_UP", "POWER_DRAIN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE"),
        *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"),
    }
)
"""States and flags of nodes that get no job now."""
_GONE = frozenset(
    {
        *("DOWN", "FAIL", "FAILING", "ERROR", "FUTURE", "NOT_RESPONDING"),
        *("POWERED_DOWN", "POWERING_DOWN", "REBOOT", "REBOOT_ISSUED"),
    }
)
"""States in which a job's node no longer runs anything; a drained node continues to the job's end."""


def states_of(text: str) -> frozenset[str]:
    """Return the state and the flags: "IDLE*+DRAIN" is IDLE, NOT_RESPONDING and DRAIN."""
    states: set[str] = set()
    for word in filter(None, text.upper().split("+")):
        state = word.rstrip("".join(_SUFFIXES))
        states |= {state, *(_SUFFIXES[letter] for letter in word[len(state) :])}
    return frozenset(states)


# Descriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as Slurm reports it. state: in Slurm's words, for messages. cores, memory_bytes: None if implausible."""

    name: str
    state: str
    states: frozenset[str]
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gres: str
    reason: str
    cores: int | None
    memory_bytes: int | None

    @property
    def gets_jobs(self) -> bool:
        """Whether the node gets a job, now or when its present job has ended; false for unknown states."""
        return bool(self.states & _UP) and self.states <= _UP | _HARMLESS

    @property
    def why_gone(self) -> str | None:
        """Why a job's node no longer runs anything, for example "DOWN* (Not responding)"; None if it may still run."""
        if not self.states & _GONE:
            return None
        return f"{self.state} ({self.reason})" if self.reason else self.state


_CORES = (1, 65533)
"""Plausible numbers of a node's CPUs; in Slurm 65534 and 65535 mean "no value" and "infinite"."""
_MEGABYTES = (64, 1 << 30)
"""Plausible values of RealMemory, which is 1 if it was never set."""


def read_nodes(names: Iterable[str] = (), implausible: ImplausibleAnswers | None = None) -> list[SlurmNode]:
    """Return the nodes of these names, or all nodes, in Slurm's order.

    From JSON by scontrol (since Slurm 23.02) or sinfo (since 21.08); from text if these lack the JSON plugin.

    Raises:
        InfrastructureFailed: Slurm does not answer, or knows no such node.
    """
    doubts = ImplausibleAnswers("Slurm") if implausible is None else implausible
    requested = tuple(names)
    listed = (",".join(requested),) if requested else ()
    for words in (("scontrol", "show", "nodes", *listed, "--json"), ("sinfo", "--json")):
        described = read_document(words, "nodes")
        if described is not None and all(isinstance(node.get("name"), str) for node in described):
            by_name = {node["name"]: node for node in described}
            break
    else:
        by_name = _text_nodes(call("scontrol", "--oneliner", "show", "node", *listed))
    nodes = [_node(by_name[name], doubts) for name in requested or by_name if name in by_name]
    if missing := [name for name in requested if name not in by_name]:
        raise InfrastructureFailed(f"Slurm does not know node {missing[0]}")
    return nodes


def read_document(words: Sequence[str], name: str) -> list[Mapping[str, Any]] | None:
    """Return the list of this name in the JSON that a command prints, even after other lines; None if there is none."""
    done = _run(words)
    for begin in re.finditer(r"^\s*\{", done.stdout if done.returncode == 0 else "", re.MULTILINE):
        try:
            document, _ = json.JSONDecoder(strict=False).raw_decode(done.stdout, begin.end() - 1)
        except ValueError:
            continue
        listed = document.get(name)
        if isinstance(listed, list) and all(isinstance(item, dict) for item in listed):
            return listed
    return None


_WRITTEN_BY_PEOPLE = re.compile(r" (?:Reason|Comment|Extra)=")


def _text_nodes(text: str) -> dict[str, Mapping[str, Any]]:
    """Return the nodes in the output of `scontrol --oneliner show node`, by name, with the keys of JSON.

    Other lines belong to a banner or continue a comment; a comment's line may even begin like a node's.
    """
    nodes: dict[str, Mapping[str, Any]] = {}
    for line in text.splitlines():
        node_fields = fields(_WRITTEN_BY_PEOPLE.split(line, maxsplit=1)[0])
        if line.startswith("NodeName=") and {"CPUTot", "RealMemory", "State"} <= node_fields.keys():
            reason = re.search(r" Reason=(.*?)(?: \[|  | Comment=| Extra=|$)", line)
            keys = {"active_features": "ActiveFeatures", "gres": "Gres", "partitions": "Partitions", "state": "State"}
            keys |= {"cpus": "CPUTot", "real_memory": "RealMemory", "name": "NodeName"}
            node = {key: node_fields[name] for key, name in keys.items() if node_fields.get(name, "(null)") != "(null)"}
            nodes.setdefault(node["name"], {**node, "reason": reason[1].strip() if reason else ""})
    return nodes


def _node(described: Mapping[str, Any], implausible: ImplausibleAnswers) -> SlurmNode:
    """Return a node from its description with the keys of JSON. Some versions write a list of words as one text."""
    name = described["name"]
    state = described.get("state", "")
    flags = described.get("state_flags", [])  # Separate until 22.05.
    words = "+".join(map(str, [*(state if isinstance(state, list) else [str(state).upper()]), *flags]))
    states = states_of(words)
    for unknown in sorted(states - _UP - _HARMLESS - _AWAY):
        implausible.add("State", f'State "{unknown}" of node {name} (unknown here, so it counts as away)')
    memory = implausible.number("RealMemory", unwrapped(described.get("real_memory")), *_MEGABYTES, name)
    return SlurmNode(
        name=name,
        state=words or "in an unknown state",
        states=states,
        partitions=_words(described.get("partitions")),
        features=_words(described.get("active_features")),
        gres=str(described.get("gres") or ""),
        reason=" ".join(str(described.get("reason") or "").split()),
        cores=implausible.number("CPUTot", unwrapped(described.get("cpus")), *_CORES, name),
        memory_bytes=None if memory is None else memory * MEGABYTE,
    )


def _words(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return tuple(str(part) for part in parts if part)


def unwrapped(value: object) -> object:
    """Return a number from JSON, which some versions wrap: {"set": true, "infinite": false, "number": 8}."""
    if isinstance(value, dict):
        return value.get("number") if value.get("set") and not value.get("infinite") else "not set"
    return value

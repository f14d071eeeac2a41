"""What Slurm tells of its nodes before an agent runs on any: which there are, and the least that each of them has."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.engines.cluster import Capacity
from bench.errors import InfrastructureFailed, Misuse

CALL_S = 60.0
"""How long a command of Slurm may take that only asks."""
MEGABYTE = 1 << 20
"""What Slurm counts memory in."""
_AWAY = ("DOWN", "DRAIN", "FAIL", "FUTURE", "UNKNOWN", "NOT_RESPONDING", "POWERED_DOWN")
"""States of nodes that get no job now."""
_GONE = ("DOWN", "FAIL", "FAILING", "ERROR", "NOT_RESPONDING", "POWERED_DOWN")
"""States in which a node of a job runs nothing any more; one that is drained goes on to the job's end."""


def call(*words: str) -> str:
    """Run a command of Slurm that only asks; return what it prints.

    Raises:
        InfrastructureFailed: it is not here, does not answer, or fails.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_S, check=False)
    except FileNotFoundError:
        raise InfrastructureFailed(
            f"the engine slurm needs {words[0]}, which is not on the PATH; run this where Slurm's commands are"
        ) from None
    except subprocess.TimeoutExpired:
        raise InfrastructureFailed(f"{words[0]} has not answered within {CALL_S:g} s; is slurmctld there?") from None
    if done.returncode:
        raise InfrastructureFailed(f"{shlex.join(words)}: {last_line(done.stderr) or f'code {done.returncode}'}")
    return done.stdout


def last_line(text: str) -> str:
    """Return the last line that is not empty; an empty text where there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol`: `CPUTot=8 State=IDLE` has two."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def find_partitions(names: str | None) -> tuple[str, int]:
    """Return the names of partitions, with commas between, by default Slurm's own, and how many nodes one of them has.

    A job gets all of its nodes from one of them, whichever is free first.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: there is no such partition.
    """
    found: dict[str, int] = {}
    for line in call("sinfo", "--noheader", "--format=%P %D").splitlines():
        words = line.split()  # The default partition ends with a star; a line for each state of its nodes.
        found[words[0]] = found.get(words[0], 0) + int(words[1])
    usual = [partition.removesuffix("*") for partition in found if partition.endswith("*")]
    wanted = usual if names is None else names.split(",")
    counts = {partition.removesuffix("*"): nodes for partition, nodes in found.items()}
    unknown = [name for name in wanted if name not in counts]
    if wanted and not unknown:
        return ",".join(wanted), max(counts[name] for name in wanted)
    known = ", ".join(counts)
    what = f'partition "{unknown[0]}" is unknown' if unknown else "Slurm has no default partition"
    raise Misuse(f'{what}; name one in the engine\'s file: partition = "...", which may be {known}')


def node_state(name: str) -> str | None:
    """Return why a node cannot be used, such as "DOWN* (Not responding)"; None where it can."""
    node = call("scontrol", "--oneliner", "show", "node", name)
    state = fields(node).get("State", "")
    if not any(part.rstrip("*") in _GONE for part in state.split("+")) and not state.endswith("*"):
        return None
    reason = re.search(r" Reason=(.*?)(?: \[|$)", node.strip())
    return f"{state} ({reason[1]})" if reason else state


def check_count(wanted: int, partitions: str, there: int) -> None:
    """Refuse more nodes than a partition, or the largest of several, has; Slurm itself would let the job wait for ever.

    Raises:
        Misuse: it has fewer.
    """
    if there < wanted:
        raise Misuse(f"--nodes is {wanted}, and the {_partitions(partitions)} has {there}; take fewer")


def _partitions(names: str) -> str:
    return f"partition {names.replace(',', ' or ')}"


# What a node has. Where nodes differ, the least: which of them Slurm will give is not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Has:
    """What one node has for us. gpus: the type of each; None where Slurm does not tell."""

    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] | None


def capacity_of_partition(
    name: str | None, *, nodes: int, constraint: str | None, gres: str | None, is_exclusive: bool, asks: str
) -> Capacity:
    """Return what the nodes of a partition, or of several, have at least, of those that fit and are up.

    name: as `find_partitions`. constraint: a feature that they must have; one with operators is not looked at.
    gres: what is asked of each. asks: by which words, for people.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: there is no such partition, or it has fewer nodes.
    """
    partitions, there = find_partitions(name)
    check_count(nodes, partitions, there)
    wanted_partitions = set(partitions.split(","))
    counts_gpus = _counts_gpus()
    wanted = None if gres is None else gpus_of(gres)
    every = [fields(line) for line in call("scontrol", "--oneliner", "show", "node").splitlines() if line.strip()]
    every = [one for one in every if wanted_partitions & set(one.get("Partitions", "").split(","))]
    fitting = [one for one in every if _has_feature(one, constraint)] or every
    if wanted:  # Others than those with so many are not given.
        fitting = [one for one in fitting if len(gpus_of(one.get("Gres", ""))) >= len(wanted)] or fitting
    fitting = [one for one in fitting if not any(state in one.get("State", "") for state in _AWAY)] or fitting
    of_nodes = [_node_has(one, counts_gpus) for one in fitting]
    if not is_exclusive:  # Of a shared node, a job has the GPUs that it asked for.
        of_nodes = [
            _Has(cores=one.cores, memory_bytes=one.memory_bytes, gpus=wanted or (() if counts_gpus else None))
            for one in of_nodes
        ]
    return _least(of_nodes, f"a node of the {_partitions(partitions)}", asks)


def capacity_of_job(job: str, *, nodes: int, asks: str) -> Capacity:
    """Return what the nodes of a job have at least for this job.

    Raises:
        InfrastructureFailed: Slurm does not answer, or knows no such job.
        Misuse: it has fewer nodes.
    """
    text = call("scontrol", "--details", "--oneliner", "show", "job", job)
    check_job(nodes, job, int(fields(text).get("NumNodes", "1").partition("-")[0]))
    counts_gpus = _counts_gpus()
    found = []
    # A part for each kind of nodes: "Nodes=node[0-1] CPU_IDs=0-7 Mem=1000 GRES=gpu:a100:2(IDX:0-1)".
    for part in re.findall(r"\bNodes=\S+ CPU_IDs=\S* Mem=\S* GRES=\S*", text):
        one = fields(part)
        first = call("scontrol", "show", "hostnames", one["Nodes"]).split()[0]
        whole = _node_has(fields(call("scontrol", "--oneliner", "show", "node", first)), counts_gpus)
        found.append(
            _Has(
                cores=_count(one["CPU_IDs"]) or whole.cores,
                memory_bytes=int(one["Mem"] or 0) * MEGABYTE or whole.memory_bytes,  # 0 is all of it.
                gpus=gpus_of(one["GRES"]) if counts_gpus else None,
            )
        )
    return _least(found, f"a node of job {job}", asks)


def check_job(wanted: int, job: str, there: int) -> None:
    """Refuse more nodes than a job has.

    Raises:
        Misuse: it has fewer.
    """
    if there < wanted:
        raise Misuse(f"--nodes is {wanted}, and job {job} has {there}; take fewer")


def gpus_of(text: str) -> tuple[str, ...]:
    """Return the type of each GPU in generic resources: "gpu:a100:2(S:0-1),shard:8" has two of a100."""
    found: list[str] = []
    for resource in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = resource.removeprefix("gres/").removeprefix("gres:").replace("=", ":").split(":")
        if name == "gpu":
            count = int(rest.pop()) if rest and rest[-1].isdigit() else 1
            found += [rest[0] if rest else "GPU"] * count
    return tuple(found)


def _counts_gpus() -> bool:
    """Return whether Slurm is set to count GPUs; else it tells of none, though nodes may have some."""
    for line in call("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "GresTypes":
            return "gpu" in value.strip().split(",")
    return False


def _has_feature(node: Mapping[str, str], constraint: str | None) -> bool:
    if constraint is None or not re.fullmatch(r"[\w.-]+", constraint):
        return True
    return constraint in node.get("ActiveFeatures", "").split(",")


def _node_has(node: Mapping[str, str], counts_gpus: bool) -> _Has:
    return _Has(
        cores=int(node["CPUTot"]),
        memory_bytes=int(node["RealMemory"]) * MEGABYTE,
        gpus=gpus_of(node.get("Gres", "")) if counts_gpus else None,
    )


def _count(ranges: str) -> int:
    """Return how many numbers there are: 5 in "0-3,8"."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _least(found: Sequence[_Has], whose: str, asks: str) -> Capacity:
    if not found:
        return Capacity(whose=whose, asks=asks)
    return Capacity(
        whose=whose,
        asks=asks,
        cores=min(one.cores for one in found),
        memory_bytes=min(one.memory_bytes for one in found),
        gpus=_fewest(one.gpus for one in found),
    )


def _fewest(found: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    told = [gpus for gpus in found if gpus is not None]
    return min(told, key=len) if told else None

"""What Slurm reports about its nodes before an agent runs: which nodes exist, and the least that each of them has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.engines.cluster import PLACES_LISTED, Capacity, ImplausibleAnswers
from bench.engines.slurm.node_list import (
    MEGABYTE,
    SlurmNode,
    call,
    fields,
    job_line,
    read_document,
    read_nodes,
    unwrapped,
)
from bench.errors import Misuse, plural

MOST_GPUS = 1024
"""Most GPUs of a node; Slurm counts generic resources with files in bitmaps of this size."""


def find_partitions(names: str | None) -> tuple[str, int]:
    """Return the partitions, separated by commas, and the number of nodes of the largest; by default Slurm's default.

    A job gets all its nodes from one partition, whichever is free first.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: there is no such partition.
    """
    nodes_by_name: dict[str, int] = {}
    # The default partition's name ends with a star. Other lines belong to a banner of the site.
    for name, count in re.findall(
        r"^partition=(\S+) nodes=(\d+) *$", call("sinfo", "--noheader", "--format=partition=%P nodes=%D"), re.MULTILINE
    ):
        nodes_by_name[name] = nodes_by_name.get(name, 0) + int(count)
    usual = [partition.removesuffix("*") for partition in nodes_by_name if partition.endswith("*")]
    requested = usual if names is None else names.split(",")
    counts = {partition.removesuffix("*"): nodes for partition, nodes in nodes_by_name.items()}
    unknown = [name for name in requested if name not in counts]
    if requested and not unknown:
        return ",".join(requested), max(counts[name] for name in requested)
    names_known = ", ".join(counts)
    what = f'partition "{unknown[0]}" is unknown' if unknown else "Slurm has no default partition"
    raise Misuse(f'{what}; set partition = "..." in the engine\'s file to one of {names_known}')


def host_names(listed: str) -> list[str]:
    """Return the names in Slurm's list of nodes: "a[0-1]" means a0 and a1."""
    lines = call("scontrol", "show", "hostnames", listed).splitlines()
    return [line.strip() for line in lines if re.fullmatch(r"\s*[\w.-]+\s*", line)]


def check_count(requested: int, partitions: str, available: int) -> None:
    """Refuse more nodes than a partition, or the largest of several, has; Slurm would let the job wait forever.

    Raises:
        Misuse: there are fewer nodes.
    """
    if available < requested:
        raise Misuse(f"--nodes is {requested}, but the {_partitions(partitions)} has only {available}; use fewer")


def _partitions(names: str) -> str:
    return f"partition {names.replace(',', ' or ')}"


# Capacities: if nodes differ, the least, because it is unknown which of them Slurm will allocate.


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeCapacity:
    """What a job can use on a node; None if Slurm does not report it. gpus: the type of each GPU."""

    cores: int | None
    memory_bytes: int | None
    gpus: tuple[str, ...] | None


def capacity_of_partition(
    name: str | None, *, nodes: int, constraint: str | None, gpus: GpuWords, is_exclusive: bool, asks: str
) -> Capacity:
    """Return what each node of one or several partitions has at least, among the nodes that fit and are up.

    name: see `find_partitions`. constraint: a feature that nodes must have; an expression with operators is ignored.
    gpus: the request for each node. asks: the request in words, for messages.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: there is no such partition, or it has fewer nodes.
    """
    partitions, node_count = find_partitions(name)
    check_count(nodes, partitions, node_count)
    wanted_partitions = set(partitions.split(","))
    counts_gpus = _counts_gpus()
    needed_gpus = None if gpus.of_node is None else gpus_of(gpus.of_node)
    doubts = ImplausibleAnswers("Slurm")
    partition_nodes = [node for node in read_nodes(implausible=doubts) if wanted_partitions & set(node.partitions)]
    fitting = [node for node in partition_nodes if _has_feature(node, constraint)] or partition_nodes
    if needed_gpus:  # Slurm allocates no node with fewer.
        fitting = [node for node in fitting if len(gpus_of(node.gres)) >= len(needed_gpus)] or fitting
    away = [
        f"{node.name} is {node.state}{f' ({node.reason})' if node.reason else ''}"
        for node in fitting
        if not node.gets_jobs
    ]
    fitting = [node for node in fitting if node.gets_jobs] or fitting
    of_nodes = [_node_has(node, counts_gpus, doubts) for node in fitting]
    if not is_exclusive:  # On a shared node, a job has only the GPUs that it requests.
        is_known = counts_gpus and gpus.unclear is None
        of_nodes = [
            _NodeCapacity(
                cores=node.cores, memory_bytes=node.memory_bytes, gpus=needed_gpus or (() if is_known else None)
            )
            for node in of_nodes
        ]
    examples = "; ".join([*away[:PLACES_LISTED], *(["..."] if len(away) > PLACES_LISTED else [])])
    unusable = f"{plural(len(away), 'node')} of the {_partitions(partitions)} cannot run jobs now: {examples}"
    notes = [unusable] if away else []
    if counts_gpus and not is_exclusive and not needed_gpus and gpus.unclear is not None:
        notes.append(unclear_words(gpus.unclear))
    return _least(of_nodes, f"a node of the {_partitions(partitions)}", asks, doubts, notes)


def capacity_of_job(job: str, *, nodes: int, asks: str) -> Capacity:
    """Return what this job can use at least on each of its nodes.

    Raises:
        InfrastructureFailed: Slurm does not answer, or knows no such job.
        Misuse: it has fewer nodes.
    """
    resources = _given_in_json(job) or _given_in_text(job)
    check_job(nodes, job, resources.nodes)
    counts_gpus, doubts = _counts_gpus(), ImplausibleAnswers("Slurm")
    capacities = []
    nodes_of_parts = read_nodes([part.nodes[0] for part in resources.parts], doubts) if resources.parts else []
    for part, node in zip(resources.parts, nodes_of_parts, strict=True):
        whole = _node_has(node, counts_gpus, doubts)
        cores, memory_bytes = part.cores, part.megabytes * MEGABYTE
        if whole.cores is not None and cores > whole.cores:
            doubts.add("CPU_IDs", f"{part.cores} CPUs of job {job} (node {node.name} has {whole.cores})")
            cores = 0
        if whole.memory_bytes is not None and memory_bytes > whole.memory_bytes:
            doubts.add("Mem", f"Mem {part.megabytes} of job {job} (node {node.name} has less)")
            memory_bytes = 0
        capacities.append(
            _NodeCapacity(
                cores=cores or whole.cores,
                memory_bytes=memory_bytes or whole.memory_bytes,
                gpus=gpus_of(part.gres) if counts_gpus else None,
            )
        )
    return _least(capacities, f"a node of job {job}", asks, doubts)


def step_gpus(job: str) -> tuple[int, str | None]:
    """Return how many GPUs a step of a job can request on each node, and a note if some nodes have more.

    An exclusive job has all GPUs of its nodes, even if it requested none, but a step gets only the GPUs that it
    requests. Slurm 22.05 refuses a step that requests more than the job has on the node with the fewest, even if the
    step avoids that node.

    Raises:
        InfrastructureFailed: Slurm does not answer, or knows no such job.
    """
    resources = _given_in_json(job) or _given_in_text(job)
    counts = {node: len(gpus_of(part.gres)) for part in resources.parts for node in part.nodes}
    if not counts:
        return 0, None
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[fewest] == counts[most]:
        return counts[fewest], None
    return counts[fewest], (
        f"job {job} has {counts[most]} GPUs on {most} and {counts[fewest]} on {fewest}: {counts[fewest]} per node"
        " are used; request nodes that are alike"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobPart:
    """What a job was allocated on each of these nodes. 0 cores or megabytes mean all that the node has."""

    nodes: tuple[str, ...]
    cores: int
    megabytes: int
    gres: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobResources:
    """What a job was allocated. nodes: the number of nodes."""

    nodes: int
    parts: tuple[_JobPart, ...]


def _given_in_json(job: str) -> _JobResources | None:
    """Return what Slurm reports as JSON; None without JSON, or if it does not count CPUs (before 24.05)."""
    jobs = read_document(("scontrol", "--details", "--json", "show", "job", job), "jobs")
    description = next(
        (job_description for job_description in jobs or () if str(job_description.get("job_id")) == job), None
    )
    if description is None:
        return None
    gres = description.get("gres_detail") or []  # A text for each node, in order; none without GPUs.
    try:
        parts = [
            _JobPart(
                nodes=(node["name"],),
                cores=int(node["cpus"]["count"]),
                megabytes=int(str(unwrapped(node["memory"]["allocated"]))),
                gres=gres[number] if number < len(gres) else "",
            )
            for number, node in enumerate(description["job_resources"]["nodes"]["allocation"])
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return _JobResources(nodes=len(parts), parts=tuple(parts)) if parts else None


def _given_in_text(job: str) -> _JobResources:
    line = job_line(call("scontrol", "--details", "--oneliner", "show", "job", job))
    parts = []
    # A part for each kind of nodes: "Nodes=node[0-1] CPU_IDs=0-7 Mem=1000 GRES=gpu:a100:2(IDX:0-1)".
    for part in re.findall(r"\bNodes=\S+ CPU_IDs=\S* Mem=\S* GRES=\S*", line.partition(" MinCPUsNode=")[0]):
        part_fields = fields(part)
        names = part_fields["Nodes"]  # Usually one name, which needs no call of Slurm.
        parts.append(
            _JobPart(
                nodes=(names,) if re.fullmatch(r"[\w.-]+", names) else tuple(host_names(names)),
                cores=_count(part_fields["CPU_IDs"]),
                megabytes=int(part_fields["Mem"] or 0),
                gres=part_fields["GRES"],
            )
        )
    return _JobResources(nodes=int(fields(line).get("NumNodes", "1").partition("-")[0]), parts=tuple(parts))


def check_job(requested: int, job: str, available: int) -> None:
    """Refuse more nodes than a job has.

    Raises:
        Misuse: the job has fewer.
    """
    if available < requested:
        raise Misuse(f"--nodes is {requested}, but job {job} has only {available}; use fewer")


def gpus_of(text: str) -> tuple[str, ...]:
    """Return the type of each GPU in generic resources: "gpu:a100:2(S:0-1),shard:8" has two of type a100."""
    types: list[str] = []
    for resource in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *parts = resource.removeprefix("gres/").removeprefix("gres:").replace("=", ":").split(":")
        if name == "gpu":
            count = int(parts.pop()) if parts and parts[-1].isdigit() else 1
            types += [parts[0] if parts else "GPU"] * (count if count <= MOST_GPUS else 0)
    return tuple(types)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWords:
    """The GPUs that arguments of salloc or srun request.

    of_node: generic resources of each node, for example "gpu:a100:2"; None if no argument names them. unclear: an
    argument that does not determine how many GPUs a node gets.
    """

    of_node: str | None = None
    unclear: str | None = None


_NOT_OF_A_NODE = ("--gpus", "-G", "--gpus-per-task", "--gpus-per-socket")


def read_gpu_words(words: Sequence[str]) -> GpuWords:
    """Return the GPUs that arguments request; as in Slurm, the last of several such arguments counts."""
    of_node: str | None = None
    unclear: str | None = None
    remaining = iter(words)
    for word in remaining:
        name, sign, value = ("-G", "=", word[2:]) if re.match(r"-G[^=]", word) else word.partition("=")
        if name not in ("--gres", "--gpus-per-node", *_NOT_OF_A_NODE):
            continue
        value = value if sign else next(remaining, "")
        if name == "--gres":
            of_node = value
        elif name == "--gpus-per-node":
            of_node = ",".join(f"gpu:{gpus}" for gpus in value.split(","))
        else:
            unclear = f"{name}={value}"
    return GpuWords(of_node=of_node, unclear=unclear)


def unclear_words(word: str) -> str:
    """Return the notice about an argument that does not determine how many GPUs a node gets."""
    return (
        f"{word} does not say how many GPUs each node gets, so none are planned; use --gpus-per-node, or set"
        ' device = "cuda" and ranks in each case'
    )


def _counts_gpus() -> bool:
    """Return whether Slurm is configured to count GPUs; otherwise it reports none, although nodes may have some."""
    for line in call("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "GresTypes":
            return "gpu" in value.strip().split(",")
    return False


def _has_feature(node: SlurmNode, constraint: str | None) -> bool:
    return constraint is None or re.fullmatch(r"[\w.-]+", constraint) is None or constraint in node.features


def _node_has(node: SlurmNode, counts_gpus: bool, doubts: ImplausibleAnswers) -> _NodeCapacity:
    gres_counts = re.findall(r"\bgpu(?::[^:,(]+)*:(\d+)", node.gres)
    counts = [doubts.number("Gres", count, 0, MOST_GPUS, node.name) for count in gres_counts]
    return _NodeCapacity(
        cores=node.cores,
        memory_bytes=node.memory_bytes,
        gpus=gpus_of(node.gres) if counts_gpus and None not in counts else None,
    )


def _count(ranges: str) -> int:
    """Return how many numbers are in the ranges: 5 in "0-3,8"."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _least(
    nodes: Sequence[_NodeCapacity], whose: str, asks: str, doubts: ImplausibleAnswers, notes: Sequence[str] = ()
) -> Capacity:
    return Capacity(
        whose=whose,
        asks=asks,
        cores=min((node.cores for node in nodes if node.cores is not None), default=None),
        memory_bytes=min((node.memory_bytes for node in nodes if node.memory_bytes is not None), default=None),
        gpus=min((node.gpus for node in nodes if node.gpus is not None), key=len, default=None),
        implausible=dict(doubts.counts),
        source="slurm",
        notes=(*notes, *doubts.lines()),
    )

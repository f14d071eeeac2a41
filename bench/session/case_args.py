"""The case that a command line or a suite requests; strategy and machine determine what the request leaves out."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.case import (
    SEED,
    USUAL,
    Case,
    check,
    find_spec,
    parse_options,
    settle,
)
from bench.engines.cluster import Capacity, NodeRequest
from bench.engines.registry import CAPACITIES, ENGINES
from bench.engines.trial_parts import spread
from bench.errors import Misuse, plural, say
from bench.machine.device_checks import TorchBuild, refuse_build, refuse_no_gpu, torch_build
from bench.machine.gpus import Gpu, GpuMemory, Gpus, read_gpus
from bench.machine.limits.demand import demand_of
from bench.machine.limits.registry import too_small
from bench.machine.machines.machine_file import PlannedMachine
from bench.machine.preflight import available_bytes, check_memory, check_processes, warn_of_memory
from bench.session.default_model import ON_CPU, PROBE, DefaultModel, default_model
from bench.session.shape_file import named_shape
from workloads.cost_models.shape import Shape
from workloads.spec import LARGEST, Backend, Device, Precision, SaveMode, StrategySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseArgs:
    """The case that a command line requests; strategy and machine determine the fields that are None.

    ranks: numbers of ranks that are measured in turn. dimensions: replace those of the model's shape. shape_name: a
    preset, or the path of a config.json. If it or the precision is None, `default_model` decides. bind: bind each rank
    to the cores of its GPU; without effect on a CPU.
    """

    strategy: str
    ranks: tuple[int, ...] | None = None
    shape_name: str | None = None
    dimensions: Mapping[str, int | None] = field(default_factory=dict)
    device: Device | None = None
    backend: Backend | None = None
    precision: Precision | None = None
    threads: int = 1
    bind: bool = True
    trials: int = USUAL["trials"]
    steps: int = USUAL["steps"]
    warm_up: int = USUAL["warm_up"]
    trace_steps: int = USUAL["trace_steps"]
    seed: int = SEED
    save_every: int | None = None
    save_mode: SaveMode = "sync"
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What ranks on a node can use: cores, host memory, GPUs, and the torch that they would import.

    nodes: the number of such nodes. ranks_per_node: the ranks that fill a node; None spreads the ranks evenly. cluster:
    what a cluster reports about its nodes; None if this machine represents all of them. planned: the machine of --on,
    which is not here; the other fields then describe it and not this host.
    """

    cores: int
    host_bytes: int
    gpus: Gpus
    torch: TorchBuild
    nodes: int = 1
    ranks_per_node: int | None = None
    cluster: Capacity | None = None
    planned: PlannedMachine | None = None

    @property
    def whose(self) -> str:
        """The node's name in a message."""
        if self.planned is not None:
            return self.planned.name
        return "this machine" if self.cluster is None else self.cluster.whose

    @property
    def has_told_gpus(self) -> bool:
        """Whether the node's number of GPUs is known."""
        return self.cluster is None or self.cluster.gpus is not None

    def nodes_for(self, ranks: int) -> int:
        """Return the number of nodes that the ranks are spread over.

        Raises:
            Misuse: the ranks do not fit on the nodes.
        """
        if self.ranks_per_node is None:
            return min(self.nodes, ranks)
        if self.planned is not None and (refusal := self.planned.too_few(ranks)) is not None:
            raise Misuse(refusal)
        needed = math.ceil(ranks / self.ranks_per_node)
        if needed > self.nodes:
            raise Misuse(
                f"ranks is {ranks}, but --nodes {self.nodes} with --ranks-per-node {self.ranks_per_node} allows only"
                f" {self.nodes * self.ranks_per_node}; increase one of them"
            )
        return needed


def read_node(
    nodes: int = 1,
    ranks_per_node: int | None = None,
    *,
    engine: str = "local",
    engine_file: Path | None = None,
    tell: Callable[[str], None] = say,
) -> NodeResources:
    """Return the node for which an engine's cases are planned: this machine, or what a cluster reports about its nodes.

    Without a cluster's report, all nodes are taken to be copies of this machine. What the cluster does not report
    refuses no case; the agents' own reports decide.

    tell: called with notices about a slow driver, nodes that get no job, and implausible answers.

    Raises:
        InfrastructureFailed: the cluster does not answer.
        Misuse: the engine's file is wrong, or the cluster has too few nodes.
    """
    request = NodeRequest(nodes=nodes, file=engine_file)
    ENGINES[engine](request)  # Allocates nothing yet, but refuses an invalid file.
    capacity = CAPACITIES[engine](request) if engine in CAPACITIES else None
    if capacity is None:
        return NodeResources(
            gpus=read_gpus(on_late=tell),
            torch=torch_build(),
            cores=len(os.sched_getaffinity(0)),
            host_bytes=available_bytes(),
            nodes=nodes,
            ranks_per_node=ranks_per_node,
        )
    for note in capacity.notes:
        tell(note)
    return node_of(capacity, nodes, ranks_per_node)


def node_of(capacity: Capacity, nodes: int, ranks_per_node: int | None) -> NodeResources:
    """Return the node for which cases are planned, from the report of a cluster."""
    names = capacity.gpus or ()
    return NodeResources(
        gpus=Gpus(
            gpus=tuple(Gpu(index=index, name=name, uuid="", memory_bytes=None) for index, name in enumerate(names)),
            on_node=len(names),
            absent={} if names else {"gpus": f"the cluster reports no GPU for {capacity.whose}"},
        ),
        torch=TorchBuild(),
        cores=LARGEST if capacity.cores is None else capacity.cores,
        host_bytes=LARGEST if capacity.memory_bytes is None else capacity.memory_bytes,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        cluster=capacity,
    )


def node_on(machine: PlannedMachine) -> NodeResources:
    """Return the node for which cases are planned on a machine that is not here; this host does not matter."""
    table = machine.table
    names = range(table.gpus_per_node)
    return NodeResources(
        gpus=Gpus(
            gpus=tuple(
                Gpu(index=index, name=table.gpu.name, uuid="", memory_bytes=table.gpu.memory_bytes) for index in names
            ),
            on_node=table.gpus_per_node,
        ),
        torch=TorchBuild(),
        cores=LARGEST,
        host_bytes=table.host_memory_bytes,
        nodes=table.nodes,
        ranks_per_node=table.gpus_per_node,
        planned=machine,
    )


def check_room(case: Case, node: NodeResources, memory: Sequence[GpuMemory] = ()) -> list[str]:
    """Refuse a case whose processes or tensors do not fit into memory; return warnings about other limits.

    The warnings are about too few cores or nodes, a step that may need more memory than a GPU has, and limits of this
    node; nodes of a cluster report their own.

    memory: the present free memory of this machine's GPUs.

    Raises:
        Misuse: the memory is too small.
        InfrastructureFailed: other processes use too much of a GPU.
    """
    if node.planned is not None:  # The plan itself reports what does not fit there.
        return list(_crossings(case))
    machines = 1 if node.cluster is None else case.nodes
    host_bytes = machines * node.host_bytes
    crowds = check_processes(case, host_bytes=host_bytes, cores=machines * node.cores)
    gpus = machines * node.gpus.gpus
    check_memory(case, host_bytes=host_bytes, gpus=gpus, memory=memory)
    limits = too_small(demand_of(case)) if node.cluster is None else []
    return [*crowds, *limits, *warn_of_memory(case, gpus), *_crossings(case)]


def _crossings(case: Case) -> Iterator[str]:
    """Yield a warning if a tensor axis, whose ranks communicate in every layer, spans several nodes.

    Example: 8 ranks over 2 nodes are 0-3 and 4-7. Axes of size 2 and 4 stay within a node; an axis of size 8 does not.
    """
    if case.model is None or case.nodes == 1 or (size := case.spec().mesh(case).get("tensor", 1)) == 1:
        return
    shares = spread(case.ranks, case.nodes)
    # The axis is the innermost of all meshes: its groups have neighbouring ranks.
    if any(share.start % size for share in shares):
        ranks_per_node = " or ".join(str(count) for count in sorted({len(share) for share in shares}))
        yield (
            f"{case.title}: the tensor axis has {size} ranks and a node has {ranks_per_node}, so collectives cross"
            " nodes in every layer; use fewer nodes, more ranks per node, or a smaller axis"
        )


def case_of_args(args: CaseArgs, ranks: int | None, node: NodeResources) -> Case:
    """Return the case on this number of ranks; by default one rank per GPU, on the CPU two ranks or one per node.

    Raises:
        Misuse: an option is unknown, not allowed, or cannot be run here.
        InfrastructureFailed: the case needs GPUs, and this machine's cannot be used.
    """
    spec = find_spec(args.strategy)
    if args.threads > node.cores:
        raise Misuse(
            f"threads is {args.threads}, but {node.whose} has only {plural(node.cores, 'usable core')}; use --threads"
            f" {node.cores} or fewer"
        )
    device = _device(args, node)
    default = default_model(device, node.gpus.gpus) if spec.kind == "training" else PROBE
    gpus = len(node.gpus.gpus)
    if ranks is None:
        usual = (node.ranks_per_node or gpus or 1) * node.nodes if device == "cuda" else max(2, node.nodes)
        ranks = max(spec.needs.minimum_ranks, usual)
        ranks = min(ranks, spec.needs.maximum_ranks or ranks)
    case = Case(
        strategy=spec.name,
        version=spec.version_on(device),
        ranks=ranks,
        model=None if spec.kind == "probe" else shape_of(args, default.shape_name),
        device=device,
        backend=args.backend or ("nccl" if device == "cuda" else "gloo"),
        precision=args.precision or default.precision,
        threads=args.threads,
        trials=args.trials,
        steps=args.steps,
        warm_up=args.warm_up,
        trace_steps=0 if spec.kind == "probe" else args.trace_steps,
        seed=args.seed,
        options=parse_options(spec, args.options),
        nodes=node.nodes_for(max(1, ranks)),
        bind=args.bind and device == "cuda",
        save_every=args.save_every,
        save_mode=args.save_mode,
    )
    case = _checked(case, args, default, is_here=node.planned is None)
    if case.backend == "nccl" and node.has_told_gpus and (most := math.ceil(case.ranks / case.nodes)) > gpus:
        why = f": {node.gpus.hidden.text}" if node.gpus.hidden is not None else ""
        if node.nodes > 1:
            raise Misuse(
                f"ranks is {case.ranks} over {plural(case.nodes, 'node')}, up to {most} per node, and NCCL needs a GPU"
                f" for each rank; a node has {plural(gpus, 'usable GPU')}{why}; increase --nodes or reduce --ranks"
            )
        raise Misuse(
            f"ranks is {case.ranks} and NCCL needs a GPU for each rank, but {gpus} can be used{why};"
            f" use --ranks {gpus}, or --backend gloo, on which ranks may share a GPU unless they send messages"
        )
    return case


def _checked(case: Case, args: CaseArgs, default: DefaultModel, *, is_here: bool) -> Case:
    """Return the case if it can run, with the options that the default model adds if it decides the shape.

    A strategy may refuse some of these: a zero-bubble schedule recomputes nothing, and stages may not divide the
    layers. is_here: see `check`.

    Raises:
        Misuse: the case cannot run, with the user's own options or with added ones.
    """
    spec = case.spec()
    if args.shape_name is not None or not default.options:
        return check(settle(case), is_here=is_here)
    layers = [case.shape.layers]
    if default.divisible_layers is not None and args.dimensions.get("layers") is None:
        layers.append(default.divisible_layers)
    for count in layers:
        for texts in _options_to_try(args, spec, default):
            candidate = replace(case, model=replace(case.shape, layers=count), options=parse_options(spec, texts))
            with contextlib.suppress(Misuse):
                return check(settle(candidate), is_here=is_here)
    return check(settle(case), is_here=is_here)


def _options_to_try(args: CaseArgs, spec: StrategySpec, default: DefaultModel) -> Iterator[tuple[str, ...]]:
    """Yield the user's options with all additions of the default model, then with fewer, and with its fallbacks."""
    chosen = {text.partition("=")[0] for text in args.options}
    known = {option.name for option in spec.options} - chosen
    added = tuple(text for text in default.options if text.partition("=")[0] in known)
    more = tuple(text for text in default.fallbacks if text.partition("=")[0] in known)
    for texts in dict.fromkeys((added, (), (*added, *more), more)):
        yield (*args.options, *texts)


def default_lines(args: CaseArgs, case: Case, node: NodeResources) -> list[str]:
    """Return a line about the model that a case has because nobody chose one; nothing on the CPU.

    Example: "no --shape given: 1b with checkpoint=full in bf16, because GPU 0 has 80 GiB".
    """
    if args.shape_name is not None or case.model is None or case.device == "cpu":
        return []
    default = default_model(case.device, node.gpus.gpus)
    chosen = {text.partition("=")[0] for text in args.options}
    pairs = (text.partition("=") for text in (*default.options, *default.fallbacks))
    added = [f"{name}={value}" for name, _, value in pairs if name not in chosen and case.options.get(name) == value]
    if args.dimensions.get("layers") is None and case.shape.layers == default.divisible_layers:
        added.insert(0, f"{case.shape.layers} layers")
    return [replace(default, precision=case.precision, options=tuple(added)).words]


def check_limit(limit_s: float) -> None:
    """Refuse a trial limit that is not a valid time.

    Raises:
        Misuse: the limit is below a second, infinite or NaN.
    """
    if not 1 <= limit_s < float("inf"):
        raise Misuse(f"limit is {limit_s:g}; it must be a number of seconds, 1 or more")


def shape_of(args: CaseArgs, default_name: str = ON_CPU) -> Shape:
    """Return the preset, or the shape of a file, after replacing the given dimensions.

    default_name: preset to use if none is given. All defaults have the same batch.
    """
    name = default_name if args.shape_name is None else args.shape_name
    return named_shape(name, {name: size for name, size in args.dimensions.items() if size is not None})


def _device(args: CaseArgs, node: NodeResources) -> Device:
    """Return the requested device; by default CUDA if there is a GPU, else the CPU.

    Raises:
        Misuse, InfrastructureFailed: the GPUs cannot be used, or not by this torch.
    """
    if node.planned is not None and args.device == "cpu":
        raise Misuse(f"device is cpu, and --on {node.planned.name} plans for its GPUs; leave one of the two out")
    hidden = node.gpus.hidden
    if args.device != "cpu" and hidden is not None and hidden.is_mistake:
        raise Misuse(f"{hidden.text}; correct it, or use --device cpu")
    if args.device == "cuda" and not node.gpus.gpus and node.has_told_gpus:
        if node.cluster is not None:
            raise Misuse(
                f"device is cuda, but {node.whose} has no GPU; request other nodes or GPUs in --engine-file"
                " (docs/clusters/README.md), or use --device cpu"
            )
        raise refuse_no_gpu(node.gpus, node.torch)
    device = args.device or ("cuda" if node.gpus.gpus else "cpu")
    if device == "cuda" and node.torch.version is not None and node.torch.cuda is None:
        raise refuse_build(node.torch.version, node.torch.hip, len(node.gpus.gpus))
    return device

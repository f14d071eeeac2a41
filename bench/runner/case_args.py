"""The case that a command line or a suite asks for; the strategy and the machine determine what was left out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.case import (
    SEED,
    USUAL,
    Case,
    check,
    find_spec,
    parse_options,
)
from bench.errors import Misuse, say
from bench.machine.device_checks import TorchBuild, refuse_build, refuse_no_gpu, torch_build
from bench.machine.gpus import Gpus, read_gpus
from bench.machine.preflight import available_bytes
from workloads.cost_models.shape import PRESETS, Shape
from workloads.spec import Backend, Device, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseArgs:
    """The case that a command line asks for; the strategy and the machine determine what is None.

    ranks: numbers of ranks that are measured in turn. dimensions: of the model's shape, in place of the preset's.
    """

    strategy: str
    ranks: tuple[int, ...] | None = None
    shape_name: str = "tiny"
    dimensions: Mapping[str, int | None] = field(default_factory=dict)
    device: Device | None = None
    backend: Backend | None = None
    precision: Precision = "fp32"
    threads: int = 1
    trials: int = USUAL["trials"]
    steps: int = USUAL["steps"]
    warm_up: int = USUAL["warm_up"]
    trace_steps: int = USUAL["trace_steps"]
    seed: int = SEED
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What ranks on a node can use: cores, memory of the host, GPUs, and the torch that they would import.

    nodes: how many such nodes there are. ranks_per_node: how many ranks fill one; None spreads them evenly.
    """

    cores: int
    host_bytes: int
    gpus: Gpus
    torch: TorchBuild
    nodes: int = 1
    ranks_per_node: int | None = None

    def nodes_for(self, ranks: int) -> int:
        """Return over how many nodes the ranks are spread.

        Raises:
            Misuse: they do not fit.
        """
        if self.ranks_per_node is None:
            return min(self.nodes, ranks)
        found = math.ceil(ranks / self.ranks_per_node)
        if found > self.nodes:
            raise Misuse(
                f"ranks is {ranks}, and {self.nodes} node(s) of {self.ranks_per_node} rank(s) have"
                f" {self.nodes * self.ranks_per_node}; take more --nodes, or a larger --ranks-per-node"
            )
        return found


def read_node(nodes: int = 1, ranks_per_node: int | None = None) -> Node:
    """Read this machine, of which all nodes are copies as far as is known; a slow driver is told on standard error."""
    return Node(
        gpus=read_gpus(on_late=say),
        torch=torch_build(),
        cores=len(os.sched_getaffinity(0)),
        host_bytes=available_bytes(),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
    )


def case_of_args(args: CaseArgs, ranks: int | None, node: Node) -> Case:
    """Return the case on this number of ranks; by default as many as there are GPUs, or 2 on a CPU, or one a node.

    Raises:
        Misuse: an option is unknown, not allowed, or cannot be run here.
        InfrastructureFailed: the case needs GPUs, and this machine's cannot be used.
    """
    spec = find_spec(args.strategy)
    if args.threads > node.cores:
        raise Misuse(
            f"threads is {args.threads}, and this machine has {node.cores} core(s) that can be used; take --threads"
            f" {node.cores} or fewer"
        )
    device = _device(args, node)
    gpus = len(node.gpus.gpus)
    if ranks is None:
        usual = (node.ranks_per_node or gpus) * node.nodes if device == "cuda" else max(2, node.nodes)
        ranks = max(spec.needs.minimum_ranks, usual)
        ranks = min(ranks, spec.needs.maximum_ranks or ranks)
    case = Case(
        strategy=spec.name,
        version=spec.version_on(device),
        ranks=ranks,
        model=None if spec.kind == "probe" else shape_of(args),
        device=device,
        backend=args.backend or ("nccl" if device == "cuda" else "gloo"),
        precision=args.precision,
        threads=args.threads,
        trials=args.trials,
        steps=args.steps,
        warm_up=args.warm_up,
        trace_steps=0 if spec.kind == "probe" else args.trace_steps,
        seed=args.seed,
        options=parse_options(spec, args.options),
        nodes=node.nodes_for(max(1, ranks)),
    )
    case = check(replace(case, options=spec.settled(case)))
    if case.backend == "nccl" and (most := math.ceil(case.ranks / case.nodes)) > gpus:
        why = f": {node.gpus.hidden.text}" if node.gpus.hidden is not None else ""
        if node.nodes > 1:
            raise Misuse(
                f"ranks is {case.ranks} over {case.nodes} node(s), {most} on one, and NCCL wants a GPU for each; a node"
                f" has {gpus} that can be used{why}; take more --nodes, or fewer --ranks"
            )
        raise Misuse(
            f"ranks is {case.ranks} and NCCL wants a GPU for each; {gpus} can be used{why};"
            f" take --ranks {gpus}, or --backend gloo, which shares where no messages are sent"
        )
    return case


def shape_of(args: CaseArgs) -> Shape:
    """Return the preset with the dimensions that take the place of its own.

    Raises:
        Misuse: there is no such preset, or the dimensions do not fit together.
    """
    if args.shape_name not in PRESETS:
        raise Misuse(f'shape "{args.shape_name}" is unknown; it may be {", ".join(PRESETS)}')
    dimensions = {name: size for name, size in args.dimensions.items() if size is not None}
    try:
        return replace(PRESETS[args.shape_name], **dimensions)
    except ValueError as error:
        raise Misuse(f"shape {args.shape_name}: {error}") from None


def _device(args: CaseArgs, node: Node) -> Device:
    """Return the device that was asked for; by default CUDA if there is a GPU, else the CPU.

    Raises:
        Misuse, InfrastructureFailed: the GPUs cannot be used, or not by this torch.
    """
    hidden = node.gpus.hidden
    if args.device != "cpu" and hidden is not None and hidden.is_mistake:
        raise Misuse(f"{hidden.text}; set it right, or take --device cpu")
    if args.device == "cuda" and not node.gpus.gpus:
        raise refuse_no_gpu(node.gpus, node.torch)
    device = args.device or ("cuda" if node.gpus.gpus else "cpu")
    if device == "cuda" and node.torch.version is not None and node.torch.cuda is None:
        raise refuse_build(node.torch.version, node.torch.hip)
    return device

"""Plans `observatory run`: turns its options into checked cases before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.analysis.convergence.check import NOT_IN_CHECKS, check_cases, refuse_measuring_options
from bench.analysis.traces.pipeline_trace import require_stages
from bench.case import (
    Case,
    InstrumentationOptions,
    Purpose,
    baseline_case,
    check_instrumentation,
    check_purpose,
    find_spec,
)
from bench.engines.cluster import Capacity
from bench.engines.registry import nodes_to_ask
from bench.errors import Misuse, plural, say
from bench.machine.device_checks import why_no_gpu
from bench.machine.disk import check_disk
from bench.machine.gpus import read_memory, why_numbered_otherwise
from bench.machine.machines.machine_file import PlannedMachine, read_machine
from bench.rank.fault_injection import Fault, parse_fault
from bench.session.case_args import (
    CaseArgs,
    NodeResources,
    case_of_args,
    check_limit,
    check_room,
    default_lines,
    node_on,
    read_node,
)
from bench.session.measure import TrialSettings
from bench.session.persist import check_baseline
from bench.store.history import check_store, find_run
from bench.store.run_dir import check_place
from bench.store.summary import Summary
from workloads.cost_models.shape import DIMENSIONS
from workloads.options import Mistake
from workloads.spec import StrategySpec

# The options of the command, named like the parameters in `bench.cli.run.command`


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the command measures its case, and where the results go.

    command_line: the option, as spelt by the user, of each parameter of both dataclasses on the command line.
    """

    command_line: Mapping[str, str]
    with_baseline: str | None
    baseline_run: str | None
    is_check: bool
    mistakes: tuple[Mistake, ...]
    fault_text: str | None
    limit_s: float
    engine_name: str
    nodes: int
    ranks_per_node: int | None
    engine_file: Path | None
    keep_traces: bool
    trace_every: int | None
    memory_snapshot: bool
    keep_checkpoint: bool
    with_timeline: bool
    port: int
    runs_folder: Path
    store_url: str | None
    note: str | None
    is_nightly: bool
    format_name: str
    has_details: bool
    is_dry: bool
    on: str | None
    quiet: bool
    verbose: bool

    def tell(self, line: str) -> None:
        """Print a line of progress to standard error, unless --quiet is given."""
        if not self.quiet:
            say(line)


TRAINING_OPTIONS = (
    *("shape_name", *DIMENSIONS, "trace_steps", "keep_traces", "trace_every", "memory_snapshot"),
    *("save_every", "save_mode", "keep_checkpoint"),
    *("with_baseline", "baseline_run", "is_check", "mistakes", "with_timeline"),
)
"""Parameters of the command that a probe does not accept."""
NOT_IN_CURVES = ("with_baseline", "baseline_run", "is_check", "mistakes", "with_timeline")
"""Parameters to refuse with several numbers of ranks: on such a curve the first is the baseline of the others."""


# The plan: all cases, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan of what will be measured.

    cases: measured in turn, each with the fault to inject. is_curve: --ranks names several numbers of ranks.
    explicit_baseline: the run that --baseline names.
    device_reason: why this device was chosen; None if the user named it. crowds: the default model, and warnings about
    more processes than cores and tensor axes that cross nodes.
    cluster: the cluster of the planned nodes; None for this machine.
    machine: the remote machine of --on; None without it.
    """

    cases: tuple[tuple[Case, Fault | None], ...]
    is_curve: bool
    settings: TrialSettings
    explicit_baseline: Summary | None
    device_reason: str | None
    crowds: tuple[str, ...]
    cluster: Capacity | None = None
    machine: PlannedMachine | None = None

    @property
    def case(self) -> Case:
        """The requested case; on a curve, the case on the last number of ranks."""
        return self.cases[-1][0]


def plan(args: CaseArgs, options: RunOptions) -> Plan:
    """Return the cases to measure; start nothing and write nothing.

    Raises:
        Misuse: something is unknown, not allowed, does not fit, or cannot be run here.
        InfrastructureFailed: a case needs GPUs, and this machine's cannot be used.
    """
    spec = find_spec(args.strategy)
    counts = args.ranks or (None,)
    is_curve = len(counts) > 1
    _refuse_combinations(spec, args, options)
    purpose = check_purpose(Purpose(origin="nightly" if options.is_nightly else "run", note=options.note))

    # One case for each number of ranks, checked against this machine.
    machine = _planned_machine(options)
    node = (
        read_node(options.nodes, options.ranks_per_node, engine=options.engine_name, engine_file=options.engine_file)
        if machine is None
        else node_on(machine)
    )
    checked_cases: list[Case] = []
    crowds: list[str] = []
    for count in counts:
        try:
            case = case_of_args(args, count, node)
            is_here = case.device == "cuda" and node.cluster is None and machine is None
            crowds += default_lines(args, case, node)
            crowds += check_room(case, node, read_memory(node.gpus.gpus) if is_here else ())
        except Misuse as error:
            raise Misuse(f"--ranks {count}: {error}" if is_curve else str(error)) from None
        checked_cases.append(case)
    case = checked_cases[-1]

    # In addition to the case: faults, and a baseline in turn with it; or a check's cases, which replace it.
    check_limit(options.limit_s)
    cases = _with_faults(checked_cases, options.fault_text)
    if options.with_timeline:
        require_stages(case)
    if options.with_baseline is not None:
        cases.insert(0, (baseline_case(case, options.with_baseline), None))
    if options.is_check:
        refuse_measuring_options(_options_on_command_line(options, NOT_IN_CHECKS))
        cases = [(checked, None) for checked in check_cases(case, options.mistakes)]
    elif options.mistakes:
        raise Misuse("--inject-cause is for a check; add --check-convergence")

    if node.cluster is None and machine is None:
        check_disk(case, options.runs_folder)
    instrumentation = InstrumentationOptions(
        trace_every=options.trace_every,
        memory_snapshot=options.memory_snapshot,
        keep_checkpoint=options.keep_checkpoint,
    )
    settings = TrialSettings(
        limit_s=options.limit_s,
        keep_traces=options.keep_traces,
        instrumentation=check_instrumentation(instrumentation, case),
        purpose=purpose,
    )
    explicit_baseline = None
    if options.baseline_run is not None:
        explicit_baseline = find_run(options.baseline_run, options.store_url, is_glance=options.is_dry)
        check_baseline(case, explicit_baseline)
    if machine is None:
        check_place(options.runs_folder)
    if options.is_dry and machine is None:  # Otherwise the run opens it before anything starts.
        check_store(options.store_url)
    cluster = node.cluster
    nodes = nodes_to_ask(options.engine_name, options.nodes, (case for case, _ in cases))
    if (
        options.is_dry and machine is None and nodes != options.nodes
    ):  # So that the cluster reports the nodes that would be requested.
        cluster = read_node(
            nodes, engine=options.engine_name, engine_file=options.engine_file, tell=lambda text: None
        ).cluster
    return Plan(
        cases=tuple(cases),
        is_curve=is_curve,
        settings=settings,
        explicit_baseline=explicit_baseline,
        device_reason=None
        if args.device is not None or machine is not None
        else f"device: {case.device} ({_why_device(node)})",
        crowds=tuple(dict.fromkeys(crowds)),
        cluster=cluster,
        machine=machine,
    )


NOT_ON_MACHINES = (
    *("engine_name", "engine_file", "nodes", "ranks_per_node", "baseline_run", "is_nightly", "fault_text", "mistakes"),
    *("is_check", "with_timeline"),
)
"""Parameters without meaning under --on: they affect running ranks, or the machine determines them."""


def _planned_machine(options: RunOptions) -> PlannedMachine | None:
    """Return the machine of --on; None without it.

    Raises:
        Misuse: the machine is unknown, its file is wrong, or --on cannot be combined with another option.
    """
    if options.on is None:
        return None
    if not options.is_dry:
        raise Misuse("--on plans for another machine, on which nothing can run; add --dry-run")
    if names := _options_on_command_line(options, NOT_ON_MACHINES):
        raise Misuse(
            f"--on defines the nodes, and nothing runs on them, so {', '.join(f'--{name}' for name in names)}"
            " cannot be set with it; leave them out"
        )
    return read_machine(options.on)


def _refuse_combinations(spec: StrategySpec, args: CaseArgs, options: RunOptions) -> None:
    """Refuse options that cannot be combined with each other or with this strategy."""
    if spec.kind == "probe" and (names := _options_on_command_line(options, TRAINING_OPTIONS)):
        raise Misuse(
            f"{spec.name} is a probe and trains no model: {', '.join(f'--{name}' for name in names)} cannot be set;"
            f" `observatory list {spec.name}` shows what it takes"
        )
    if options.quiet and options.verbose:
        raise Misuse("--quiet and --verbose exclude each other; use one of them")
    if args.ranks is not None and len(args.ranks) > 1 and (names := _options_on_command_line(options, NOT_IN_CURVES)):
        raise Misuse(
            f"--ranks {','.join(map(str, args.ranks))} measures a curve, whose first number of ranks is the baseline of"
            f" the others: {', '.join(f'--{name}' for name in names)} cannot be set with it; use one number of ranks"
        )


def _options_on_command_line(options: RunOptions, parameters: Sequence[str]) -> list[str]:
    """Return the options of these parameters that are on the command line."""
    return [option for parameter, option in options.command_line.items() if parameter in parameters]


def _with_faults(cases: Sequence[Case], text: str | None) -> list[tuple[Case, Fault | None]]:
    """Pair each case with the fault to inject; on a curve, only cases with the faulty rank get it."""
    if text is None:
        return [(case, None) for case in cases]
    largest = max(cases, key=lambda case: case.ranks)
    fault = parse_fault(text, ranks=largest.ranks, steps=largest.positions())
    return [(case, fault if fault.rank < case.ranks else None) for case in cases]


def _why_device(node: NodeResources) -> str:
    """Return why a run that named no device got its device."""
    if not node.gpus.gpus:
        return why_no_gpu(node.gpus, node.torch)
    reasons = [] if node.gpus.hidden is None else [node.gpus.hidden.text]
    if node.cluster is None and (order := why_numbered_otherwise(node.gpus.gpus)) is not None:
        reasons.append(order)
    return "; ".join([plural(len(node.gpus.gpus), "GPU"), *reasons])

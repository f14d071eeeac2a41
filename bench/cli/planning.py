"""Planning of `observatory run`: turns its parameters into cases, and checks all of them before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.case import Case, InstrumentationOptions, Purpose, check_instrumentation, check_purpose, find_spec
from bench.case_args import CaseArgs, baseline_case, case_of_args, refuse_training_words
from bench.convergence.check import NOT_IN_CHECKS, check_cases, refuse_measuring_words
from bench.errors import Misuse, say
from bench.machine.device_checks import TorchBuild, torch_build, why_no_gpu
from bench.machine.gpus import Gpus, read_gpus, read_memory
from bench.machine.preflight import available_bytes, check_memory, check_processes
from bench.rank.fault_injection import Fault, parse_fault
from bench.runner import TrialSettings, check_baseline
from bench.runs.database import parse_url
from bench.runs.history import find_run
from bench.runs.run_dir import check_place
from bench.runs.summary import Summary
from bench.traces.pipeline_trace import require_stages
from workloads.cost_models.shape import DIMENSIONS
from workloads.options import Mistake
from workloads.spec import Backend, Device, Precision

TRAINING_WORDS = (
    "shape_name",
    *DIMENSIONS,
    "trace_steps",
    "keep_traces",
    "trace_every",
    "memory_snapshot",
    "with_baseline",
    "baseline_run",
    "is_check",
    "mistakes",
    "with_timeline",
)
"""Parameters of the command that a probe does not take."""
NOT_IN_CURVES = ("with_baseline", "baseline_run", "is_check", "mistakes", "with_timeline")
"""Parameters refused with several numbers of ranks: on such a curve the first number is the baseline of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The parameters of `observatory run`; see `bench.cli.run` for each.

    ranks: numbers of ranks; None where left out. dimensions: of the model's shape; None where left out.
    said: parameters given on the command line, each with its option as spelt there, without the dashes.
    """

    strategy: str
    ranks: tuple[int, ...] | None
    shape_name: str
    dimensions: Mapping[str, int | None]
    trials: int
    steps: int
    warm_up: int
    trace_steps: int
    keep_traces: bool
    trace_every: int | None
    memory_snapshot: bool
    precision: Precision
    device: Device | None
    backend: Backend | None
    threads: int
    seed: int
    options: tuple[str, ...]
    with_baseline: str | None
    baseline_run: str | None
    limit_s: float
    engine_name: str
    port: int
    fault_text: str | None
    is_check: bool
    mistakes: tuple[Mistake, ...]
    with_timeline: bool
    is_dry: bool
    quiet: bool
    verbose: bool
    note: str | None
    is_nightly: bool
    runs_folder: Path
    store_url: str | None
    format_name: str
    has_details: bool
    said: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be measured.

    cases: measured in turns, each with the fault to inject. is_curve: they are one command on several numbers of ranks.
    told: the run to read efficiency against, None where none was named. crowds: warnings of more processes than cores.
    device_reason: why this device was chosen, None where the user named it. host_bytes: memory that ranks on the CPU
    can have.
    """

    cases: tuple[tuple[Case, Fault | None], ...]
    is_curve: bool
    conduct: TrialSettings
    explicit_baseline: Summary | None
    crowds: tuple[str, ...]
    device_reason: str | None
    host_bytes: int


def plan(words: Words) -> Plan:
    """Return the cases that the words ask for; start nothing and write nothing.

    Raises:
        Misuse: something is unknown, not allowed, does not fit, or cannot be run here.
        InfrastructureFailed: a case needs GPUs, and this machine's cannot be used.
    """
    spec = find_spec(words.strategy)
    refuse_training_words(spec, _said(words, TRAINING_WORDS))
    if words.quiet and words.verbose:
        raise Misuse("--quiet and --verbose cannot be together; take one of them")
    counts = words.ranks or (None,)
    if len(counts) > 1 and (said := _said(words, NOT_IN_CURVES)):
        raise Misuse(
            f"--ranks {','.join(map(str, counts))} measures a curve, whose first number of ranks is what the others are"
            f" read against: {', '.join(f'--{word}' for word in said)} cannot be set with it; take one number of ranks"
        )
    purpose = check_purpose(Purpose(origin="nightly" if words.is_nightly else "run", note=words.note))
    if words.store_url is not None:
        parse_url(words.store_url)
    gpus, torch = read_gpus(on_late=say), torch_build()
    cores, host_bytes = len(os.sched_getaffinity(0)), available_bytes()
    cases = []
    crowds: list[str] = []
    for count in counts:
        try:
            case, said_of_it = _case(words, count, gpus, torch, host_bytes, cores)
            cases.append(case)
            crowds += said_of_it
        except Misuse as error:
            raise Misuse(f"--ranks {count}: {error}" if len(counts) > 1 else str(error)) from None
    if not 1 <= words.limit_s < float("inf"):
        raise Misuse(f"limit is {words.limit_s:g}; it must be a number of seconds, 1 or more")
    planned = _with_faults(cases, words.fault_text)
    case = cases[-1]
    if words.with_timeline:
        require_stages(case)
    if words.with_baseline is not None:
        planned.insert(0, (baseline_case(case, words.with_baseline), None))
    if words.is_check:
        refuse_measuring_words(_said(words, NOT_IN_CHECKS))
        planned = [(checked, None) for checked in check_cases(case, words.mistakes)]
    elif words.mistakes:
        raise Misuse("--inject-cause is for a check; add --check-convergence")
    looks = check_instrumentation(
        InstrumentationOptions(trace_every=words.trace_every, memory_snapshot=words.memory_snapshot), case
    )
    explicit_baseline = (
        None if words.baseline_run is None else find_run(words.baseline_run, words.store_url, is_glance=words.is_dry)
    )
    if explicit_baseline is not None:
        check_baseline(case, explicit_baseline)
    check_place(words.runs_folder)
    return Plan(
        cases=tuple(planned),
        is_curve=len(counts) > 1,
        conduct=TrialSettings(
            limit_s=words.limit_s, keep_traces=words.keep_traces, looks=looks, store=words.store_url, purpose=purpose
        ),
        explicit_baseline=explicit_baseline,
        crowds=tuple(dict.fromkeys(crowds)),
        device_reason=None if words.device is not None else f"device: {case.device} ({_found(gpus, torch)})",
        host_bytes=host_bytes,
    )


def _case(
    words: Words, ranks: int | None, gpus: Gpus, torch: TorchBuild, host_bytes: int, cores: int
) -> tuple[Case, list[str]]:
    """Return the case on this number of ranks, and the warnings about its processes."""
    case = case_of_args(
        find_spec(words.strategy),
        CaseArgs(
            shape_name=words.shape_name,
            dimensions=words.dimensions,
            ranks=ranks,
            device=words.device,
            backend=words.backend,
            precision=words.precision,
            threads=words.threads,
            trials=words.trials,
            steps=words.steps,
            warm_up=words.warm_up,
            trace_steps=words.trace_steps,
            seed=words.seed,
            options=words.options,
            cores=cores,
            gpus=gpus,
            torch=torch,
        ),
    )
    crowds = check_processes(case, host_bytes=host_bytes, cores=cores)
    memory = read_memory(gpus.gpus) if case.device == "cuda" else ()
    check_memory(case, host_bytes=host_bytes, gpus=gpus.gpus, memory=memory)
    return case, crowds


def _with_faults(cases: Sequence[Case], text: str | None) -> list[tuple[Case, Fault | None]]:
    """Pair each case with the fault to inject; on a curve, only the cases that have the faulty rank get it."""
    if text is None:
        return [(case, None) for case in cases]
    largest = max(cases, key=lambda case: case.ranks)
    fault = parse_fault(text, ranks=largest.ranks, steps=largest.positions())
    return [(case, fault if fault.rank < case.ranks else None) for case in cases]


def _found(gpus: Gpus, torch: TorchBuild) -> str:
    """Return why a run that named no device got its device."""
    if not gpus.gpus:
        return why_no_gpu(gpus, torch)
    hidden = "" if gpus.hidden is None else f"; {gpus.hidden.text}"
    return f"{len(gpus.gpus)} GPU(s) found{hidden}"


def _said(words: Words, names: Sequence[str]) -> list[str]:
    return [text for name, text in words.said.items() if name in names]

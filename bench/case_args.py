"""From a command's options to a checked Case; strategy and devices determine what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.case import Case, check, one_rank_baseline, parse_options
from bench.errors import Misuse
from bench.machine.device_checks import TorchBuild, refuse_build, refuse_no_gpu
from bench.machine.gpus import Gpus
from workloads.cost_models.shape import PRESETS, Shape
from workloads.options import parts, parts_option
from workloads.spec import Backend, Device, Precision, StrategySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseArgs:
    """The options of a command line; None for those left out.

    dimensions: those of the shape that were set. cores, gpus: those of this machine that can be used. torch: the build
    that ranks would run.
    """

    shape_name: str
    dimensions: Mapping[str, int | None]
    ranks: int | None
    device: Device | None
    backend: Backend | None
    precision: Precision
    threads: int
    trials: int
    steps: int
    warm_up: int
    trace_steps: int
    seed: int
    options: Sequence[str]
    cores: int
    gpus: Gpus
    torch: TorchBuild


def case_of_args(spec: StrategySpec, asked: CaseArgs) -> Case:
    """Return the case that the options describe.

    Raises:
        Misuse: an option is unknown, not allowed, or cannot be run here.
        InfrastructureFailed: the case needs GPUs, and this machine's cannot be used.
    """
    if asked.threads > asked.cores:
        raise Misuse(
            f"threads is {asked.threads}, and this machine has {asked.cores} core(s) that can be used; take --threads"
            f" {asked.cores} or fewer"
        )
    device = _device(asked)
    gpus = len(asked.gpus.gpus)
    case = Case(
        strategy=spec.name,
        version=spec.version_on(device),
        ranks=_default_ranks(spec, device, gpus) if asked.ranks is None else asked.ranks,
        model=None if spec.kind == "probe" else _shape(asked.shape_name, asked.dimensions),
        device=device,
        backend=asked.backend or ("nccl" if device == "cuda" else "gloo"),
        precision=asked.precision,
        threads=asked.threads,
        trials=asked.trials,
        steps=asked.steps,
        warm_up=asked.warm_up,
        trace_steps=0 if spec.kind == "probe" else asked.trace_steps,
        seed=asked.seed,
        options=parse_options(spec, asked.options),
    )
    case = check(replace(case, options=spec.settled(case)))
    if case.backend == "nccl" and case.ranks > gpus:
        why = f": {asked.gpus.hidden.text}" if asked.gpus.hidden is not None else ""
        raise Misuse(
            f"ranks is {case.ranks} and NCCL wants a GPU for each; {gpus} can be used{why};"
            f" take --ranks {gpus}, or --backend gloo, which shares where no messages are sent"
        )
    return case


def baseline_case(case: Case, scaling: str) -> Case:
    """Return the case of `single` to measure beside a case.

    Raises:
        Misuse: there is none, or the batch does not divide evenly.
    """
    if case.ranks == 1:
        raise Misuse("--with-baseline compares several ranks with one; ranks is 1")
    baseline = one_rank_baseline(case, scaling)
    if baseline is None:
        raise Misuse(
            f"batch {case.shape.batch} over {case.ranks} ranks leaves no equal {scaling} share for one rank with"
            f" {parts_option(case).name} {parts(case)}; choose a --batch that is a multiple of both"
        )
    return baseline


def refuse_training_words(spec: StrategySpec, words: Sequence[str]) -> None:
    """Refuse options of training if the spec is a probe.

    words: the training options that were given.

    Raises:
        Misuse: the spec is a probe, and there is such an option.
    """
    if spec.kind == "probe" and words:
        said = ", ".join(f"--{word}" for word in words)
        raise Misuse(
            f"{spec.name} is a probe and trains no model: {said} cannot be set; `observatory list {spec.name}` shows"
            " what it takes"
        )


def _shape(name: str, dimensions: Mapping[str, int | None]) -> Shape:
    if name not in PRESETS:
        raise Misuse(f'shape "{name}" is unknown; it may be {", ".join(PRESETS)}')
    try:
        return replace(PRESETS[name], **{key: value for key, value in dimensions.items() if value is not None})
    except ValueError as error:
        raise Misuse(f"shape {name}: {error}") from None


def _device(asked: CaseArgs) -> Device:
    """Return the device that was asked for; by default CUDA if there is a GPU, else the CPU.

    Raises:
        Misuse, InfrastructureFailed: the GPUs cannot be used, or not by this torch.
    """
    hidden = asked.gpus.hidden
    if asked.device != "cpu" and hidden is not None and hidden.is_mistake:
        raise Misuse(f"{hidden.text}; set it right, or take --device cpu")
    if asked.device == "cuda" and not asked.gpus.gpus:
        raise refuse_no_gpu(asked.gpus, asked.torch)
    device = asked.device or ("cuda" if asked.gpus.gpus else "cpu")
    if device == "cuda" and asked.torch.version is not None and asked.torch.cuda is None:
        raise refuse_build(asked.torch.version, asked.torch.hip)
    return device


def _default_ranks(spec: StrategySpec, device: Device, gpus: int) -> int:
    ranks = max(spec.needs.minimum_ranks, gpus if device == "cuda" else 2)
    return ranks if spec.needs.maximum_ranks is None else min(ranks, spec.needs.maximum_ranks)

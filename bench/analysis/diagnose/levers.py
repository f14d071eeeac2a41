"""Offers remedies for each kind of limit: options of the run's own strategy, with the cost model's predictions.

A setting is offered only if the strategy has the option, the option is not already set, and the spec does not refuse
it. If the model predicts the effects, settings without effect are left out, and the best comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile

from bench.analysis.diagnose.costs import slow_links
from bench.analysis.diagnose.laws import NEAR_CEILING, exposed_ratio, memory_in_use, missing_links, stage_cuts
from bench.analysis.diagnose.observed import CostFinding, Observed, Remedy
from bench.case import Case, known_options, options_set, written
from bench.results.estimate import of_metric
from collectors.metrics.results import RUN_STRAGGLER_RATIO
from workloads.core.precision_options import WEIGHTS
from workloads.cost_models.schedules import Pipeline, actions
from workloads.cost_models.shape import nearest_preset, particulars
from workloads.options import CHECKPOINT_EVERY, checkpoint_every
from workloads.pipeline_parallel.simulator import simulate

MOST_LEVERS = 3
"""Limit of levers for a finding: after trying one, the user reads the next diagnosis before trying another."""
_PRECISION = "precision"
_WORTH_RATIO = 0.95
"""A lever is offered if it lowers the predicted share to at most this ratio of the share without it. The ratio compares
two predictions, not a prediction and a measurement: even if a run is slower than predicted, what shortens the
prediction shortens the run."""


def with_levers(finding: CostFinding, observed: Observed) -> CostFinding:
    """Return the finding with its levers, the most promising first."""
    case = observed.case
    offered = [lever for lever in _candidates(finding, observed) if _is_possible(case, lever.settings)]
    expected = [_with_expectation(lever, finding, observed) for lever in offered]
    if finding.expected is not None and any(lever.expected is not None for lever in expected):
        first = list(takewhile(lambda lever: not lever.settings, expected))
        worth = [lever for lever in expected if (lever.expected or 0.0) <= _WORTH_RATIO * finding.expected]
        with_expectation = sorted(
            (lever for lever in worth if lever.expected is not None), key=lambda lever: lever.expected or 0.0
        )
        expected = [
            *first,
            *with_expectation,
            *(lever for lever in worth if lever.expected is None and lever not in first),
        ]
    return replace(finding, levers=tuple(expected[:MOST_LEVERS]))


def changed(case: Case, settings: Mapping[str, str]) -> Case:
    """Return the case with these settings.

    Raises:
        ValueError: an option does not accept the value.
    """
    options = {option.name: option for option in known_options(case.strategy)}
    values = {name: options[name].parse(text) for name, text in settings.items() if name != _PRECISION}
    precision = settings.get(_PRECISION, case.precision)
    if precision != case.precision and WEIGHTS.name in case.options:
        values.setdefault(WEIGHTS.name, WEIGHTS.default)  # Its default depends on the precision.
    setup = replace(case, options={**case.options, **values}, precision=precision)  # type: ignore[arg-type]
    return replace(setup, options=case.spec().settled(setup))


def _is_possible(case: Case, settings: Mapping[str, str]) -> bool:
    """Return whether the strategy accepts the settings, one of them is new, and its spec does not refuse them."""
    if not settings:
        return True
    names = {option.name for option in known_options(case.strategy)} | {_PRECISION}
    if not settings.keys() <= names & (case.options.keys() | {_PRECISION}):
        return False
    try:
        setup = changed(case, settings)
    except ValueError:
        return False
    return setup != case and not setup.spec().all_refusals(setup)


def _with_expectation(lever: Remedy, finding: CostFinding, observed: Observed) -> Remedy:
    if not lever.settings or finding.expected is None:
        return lever
    setup = changed(observed.case, lever.settings)
    if finding.kind == "exposed_communication":
        return replace(lever, expected=exposed_ratio(observed, setup))
    pipeline, new_pipeline = observed.case.spec().pipeline(observed.case), setup.spec().pipeline(setup)
    if finding.kind == "bubble" and pipeline is not None and new_pipeline is not None:
        # At constant computing, the bubble's time grows with ratio / (1 - ratio).
        grows = _bubble_for_computing(new_pipeline) / _bubble_for_computing(pipeline)
        return replace(lever, expected=min(1.0, finding.expected * grows))
    return lever


def _bubble_for_computing(pipeline: Pipeline) -> float:
    """Return the bubble of a pipeline with equal stages, divided by the computing time of its ranks."""
    order = actions(pipeline)
    ratio = simulate(order, {(action.stage, action.kind): 1.0 for rank in order for action in rank}).bubble_ratio
    return ratio / (1 - ratio)


# The candidates of each kind, the common ones first


def _candidates(finding: CostFinding, observed: Observed) -> Iterator[Remedy]:
    case = observed.case
    match finding.kind:
        case "exposed_communication":
            if any(slow_links(observed)):
                yield Remedy(words=f"find the slow link: `observatory run pairs {' '.join(_place_words(case))}`")
            yield from _communication(case, has_link=missing_links(observed) is None)
        case "bubble":
            yield from _bubble(case)
        case "imbalance":
            if finding.subject == "stages":
                yield from _cuts(observed)
            yield _option("give each rank a chunk from both ends", layout="zigzag")
            yield Remedy(
                words=f"see which rank is late at which collective: `observatory analyse stragglers {observed.run}`"
            )
        case "straggler":
            if any(
                straggler.labels["cause"] == "data loading"
                for straggler in of_metric(observed.estimates, RUN_STRAGGLER_RATIO)
            ):
                yield from _loading(case)
            yield Remedy(words="compare its node with the others: `observatory doctor` on each")
            yield Remedy(words="put the rank elsewhere: does the lateness stay with the rank or with the node?")
        case "host":
            yield from _host(observed)
        case "memory":
            yield from _memory(observed)
        case "input":
            yield from _loading(case)
            yield Remedy(words="read from a faster place, or store batches that are ready to use")
        case "compute":
            yield from _compute(case)
        case "unknown":
            return


def _cuts(observed: Observed) -> Iterator[Remedy]:
    """Yield better cuts into stages, if the measured blocks allow one."""
    cuts = stage_cuts(observed)
    if cuts is not None and not cuts.is_worth_it:
        yield Remedy(words="fewer ranks, or a model whose head is a smaller part: no other cut is clearly faster")
        return
    yield _option("cut stages by measured time", balance="measured")
    if observed.case.options.get("balance") == "layers":
        yield _option("cut stages by FLOPs", balance="flops")


def _option(words: str, **settings: str) -> Remedy:
    return Remedy(words=words, settings=settings)


def _communication(case: Case, *, has_link: bool) -> Iterator[Remedy]:
    yield from _buckets(case, has_link=has_link)
    yield _option("communicate on a separate stream", overlap_comm="true")
    yield _option("halve the bytes of gradients", compress="bf16")
    yield _option("halve the bytes of gradients", grad_dtype="bf16")
    if "wrap" in case.options:
        yield _option("gather weights in half as many bytes, and compute in bf16 throughout", weights="bf16_compute")
    yield _option("gather units further ahead", prefetch="2")
    yield _option("overlap collectives with matrix products", async_tp="true", compile="default")
    yield _option("let workers run ahead of each other", mode="asynchronous")
    yield _option("send messages before queued computation", high_priority_stream="true")
    if case.nodes > 1:
        yield _option("shard within a node, and average between nodes", shard_ranks=str(case.ranks // case.nodes))
    yield _option("move half as many bytes", precision="bf16")
    yield Remedy(words="compute more for each byte: a larger --batch, with accumulate where memory is short")


def _buckets(case: Case, *, has_link: bool) -> Iterator[Remedy]:
    """Yield sizes of buckets, and averaging during backward: a single bucket for all gradients would hide nothing.

    has_link: the model predicts which size is better. Otherwise only a split of a single bucket is offered.
    """
    if not case.options.get("bucket_mb"):  # FSDP2 has no buckets: its size is 0.
        return
    gradients_mb = 4 * case.shape.parameters() / 2**20
    now_mb = float(case.options["bucket_mb"])
    smaller = f"{max(0.001, min(now_mb, gradients_mb) / 4):.3g}"
    if case.options.get("overlap") is False:
        yield _option("average gradients during backward, in several buckets", overlap="true", bucket_mb=smaller)
        yield _option("average gradients during backward", overlap="true")
    if has_link or now_mb >= gradients_mb:
        yield _option("smaller buckets, so that the first is sent sooner", bucket_mb=smaller)
    if has_link:
        yield _option("larger buckets, which pay the latency less often", bucket_mb=f"{4 * now_mb:.3g}")


def _bubble(case: Case) -> Iterator[Remedy]:
    if "microbatches" in case.options:
        for factor in (2, 4):
            more = int(case.options["microbatches"]) * factor
            yield _option(f"{factor} times as many microbatches", microbatches=str(more))
    if "stages" in case.options:
        yield _option("more, smaller stages a rank", stages=str(2 * int(case.options["stages"])))
    yield _option("fill the bubble with weights' gradients", variant="zbv")
    yield _option("interleave stages", schedule="interleaved", stages="2")
    if case.strategy in ("pipeline_naive", "gpipe", "one_f_one_b"):
        yield Remedy(words="another schedule: `observatory run interleaved` or `zero_bubble`")
    yield Remedy(words="a larger --batch, which may have more microbatches")


def _loading(case: Case) -> Iterator[Remedy]:
    if case.options.get("loader_delay_ms"):
        yield _option("remove the requested delay", loader_delay_ms="0")
    workers = int(case.options.get("workers", 0))
    yield _option("more data loader processes a rank", workers=str(max(2, 2 * workers)))


def _host(observed: Observed) -> Iterator[Remedy]:
    case, crowding = observed.case, observed.crowding
    if case.device == "cpu" and crowding is not None and crowding > 1 and observed.cores is not None:
        fitting = max(1, observed.cores // case.threads)
        yield Remedy(words=f"no more threads than cores: --ranks {fitting} a node, or more nodes")
    if case.device == "cuda":
        yield _option("record launches as CUDA graphs", compile="reduce-overhead")
        yield _option("fewer, larger kernels", compile="default")
    yield Remedy(words="more work for each launch: a larger --batch, fewer microbatches")
    yield Remedy(words="give the whole node to the run: what else uses its cores? (`observatory doctor`)")


def _memory(observed: Observed) -> Iterator[Remedy]:
    case, in_use = observed.case, memory_in_use(observed)
    if in_use is not None and in_use < NEAR_CEILING:
        every = {CHECKPOINT_EVERY.name: "1"} if checkpoint_every(case) > 1 else {}
        yield _option("keep activations: there is room for them", checkpoint="none", **every)
        yield _option("keep states on the device", offload="false")
    if case.options.get("checkpoint") != "selective":
        yield _option("recompute only what is cheap", checkpoint="selective")
    if case.options.get("checkpoint") != "full":
        yield _option("recompute blocks", checkpoint="full")
    if checkpoint_every(case) > 1:
        yield _option("recompute every block", **{CHECKPOINT_EVERY.name: "1"})
    for name in ("accumulate", "microbatches"):
        if name in case.options:
            yield _option("smaller microbatches", **{name: str(2 * int(case.options[name]))})
    yield _option("keep states on the host", offload="true")
    yield Remedy(words="shard the states over ranks: `observatory run fsdp`")


def _compute(case: Case) -> Iterator[Remedy]:
    if case.device == "cuda":
        yield _option("use the tensor cores", precision="bf16")
        yield _option("fuse what lies between matrix products", compile="default")
        yield _option("attention without its scores in memory", attention="flash")
    yield Remedy(words="larger matrices: a larger --batch or --width, less accumulation")
    yield Remedy(words="more ranks: computing is what they share")


# The next command


ENGINE = "ENGINE"
"""Placeholder for the engine of a run on several nodes, which the record does not name."""

CONFIG = "CONFIG.json"
"""Placeholder for the file of a shape, which a run's record does not name."""


def _place_words(case: Case) -> list[str]:
    """Return the command-line words that place ranks like those of the case."""
    words = [f"--ranks {case.ranks}"]
    words += [f"--nodes {case.nodes} --engine {ENGINE}"] if case.nodes > 1 else []
    words += [f"--device {case.device}"]
    usual = "nccl" if case.device == "cuda" else "gloo"
    return words if case.backend == usual else [*words, f"--backend {case.backend}"]


def case_words(case: Case) -> list[str]:
    """Return the command-line words for this case, without strategy, options and defaults.

    The shape is written as the nearest preset and the dimensions in which it differs. A shape that only a file can
    describe is written as `CONFIG`, with the sequence and the batch, which files do not contain.
    """
    words = _place_words(case)
    shape = case.shape
    preset, dimensions = nearest_preset(shape)
    if particulars(shape):
        preset, dimensions = CONFIG, ("sequence", "batch")
    has_gpu = case.device == "cuda"  # Defaults then depend on the GPU.
    words += [f"--shape {preset}"] if preset != "tiny" or has_gpu else []
    words += [f"--{dimension.replace('_', '-')} {getattr(shape, dimension)}" for dimension in dimensions]
    words += [f"--precision {case.precision}"] if case.precision != "fp32" or has_gpu else []
    words += [f"--threads {case.threads}"] if case.threads != 1 else []
    words += ["--no-bind"] if case.device == "cuda" and not case.bind else []
    return words


def option_words(case: Case) -> list[str]:
    """Return the options of the case that are not at their defaults, as command-line words."""
    return [f"--option {name}={written(value)}" for name, value in options_set(case).items()]


def run_command(case: Case, *more: str, without: tuple[str, ...] = ()) -> str:
    """Return the command that measures the case. more: words to append. without: options to leave out."""
    options = [
        word for word in option_words(case) if not word.startswith(tuple(f"--option {name}=" for name in without))
    ]
    return " ".join(["observatory run", case.strategy, *case_words(case), *options, *more])


def try_command(case: Case, lever: Remedy) -> str:
    """Return the command that measures the case without and with the lever's settings, in turn.

    On several nodes it is a run with the settings, because `observatory compare --ab` uses one machine.
    """
    settings = dict(lever.settings)
    if case.nodes > 1:
        precision = settings.pop(_PRECISION, None)
        case = case if precision is None else replace(case, precision=precision)  # type: ignore[arg-type]
        return run_command(
            case, *(f"--option {name}={value}" for name, value in settings.items()), without=(*settings,)
        )
    common_options = [
        word for word in option_words(case) if word.removeprefix("--option ").partition("=")[0] not in settings
    ]
    sides = [f"--b {name}={value}" for name, value in settings.items()]
    before = [f"--a {name}={written(case.options[name])}" for name in settings if name in case.options]
    words = [word for word in case_words(case) if not (_PRECISION in settings and word.startswith("--precision"))]
    if _PRECISION in settings:
        before.append(f"--a {_PRECISION}={case.precision}")
    return " ".join(["observatory compare --ab", case.strategy, *words, *common_options, *before, *sides])

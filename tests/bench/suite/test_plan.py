"""A plan checks a suite on a machine: what no machine can run is refused, what only this one cannot is said."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import Case
from bench.engines.cluster import Capacity
from bench.errors import Misuse
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import read_gpus
from bench.machine.machine import hardware_here, read
from bench.results.estimate import estimate
from bench.results.noise import deviation_of
from bench.session.case_args import NodeResources
from bench.store.summary import Summary
from bench.suite.file import Suite, read_suite
from bench.suite.plan import PlannedCase, SuitePlan, chosen, left_out, plan_suite, within_budget
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_summary
from tests.bench.made.recorded_nvml import RecordedNvml
from workloads.cost_models.absent import Absent

BUILD = TorchBuild(version="2.13.0+cu130", cuda="13.0")
HERE = NodeResources(
    cores=2,
    host_bytes=8 << 30,
    gpus=read_gpus(RecordedNvml(is_without_library=True), {}),
    torch=TorchBuild(version="2.13.0"),
)
FOUR_GPUS = replace(HERE, gpus=read_gpus(RecordedNvml(names=("A", "B", "C", "D")), {}), torch=BUILD)
SECOND_NS = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _suite(folder: Path, text: str) -> Suite:
    path = folder / "night.toml"
    path.write_text(f"schema_version = 1\n{text}\n")
    return read_suite(path)


class FakeHistory:
    """A history of these runs."""

    def __init__(self, *runs: Summary) -> None:
        self._runs = runs

    def runs(self, limit: int) -> tuple[Summary, ...]:
        return self._runs[:limit]


def _plan(folder: Path, text: str, node: NodeResources = HERE, *runs: Summary) -> SuitePlan:
    return plan_suite(_suite(folder, text), node, FakeHistory(*runs))


def _one(folder: Path, text: str, node: NodeResources = HERE, *runs: Summary) -> PlannedCase:
    (planned,) = _plan(folder, text, node, *runs).cases
    return planned


# On a machine.


def test_a_case_that_can_run_is_resolved_for_the_machine(folder: Path) -> None:
    planned = _one(folder, '[case.ddp]\nranks = 2\ninject = "kill@1:3"\nsteps = 4')
    assert planned.refusal is None
    assert planned.case is not None
    assert planned.case == planned.possible
    assert (planned.case.ranks, planned.case.device, planned.case.backend) == (2, "cpu", "gloo")
    assert planned.fault is not None
    assert (planned.fault.kind, planned.fault.rank, planned.fault.step) == ("kill", 1, 3)
    on_gpus = _one(folder, "[case.ddp]", FOUR_GPUS).case
    assert on_gpus is not None
    assert (on_gpus.ranks, on_gpus.device, on_gpus.backend) == (4, "cuda", "nccl")


@pytest.mark.parametrize(
    ("table", "node", "said"),
    [
        ('device = "cuda"', HERE, "device is cuda, but this machine has no NVIDIA driver; use device cpu"),
        (
            "ranks = 8",
            FOUR_GPUS,
            "ranks is 8 and NCCL needs a GPU for each rank, but 4 can be used; use ranks 4, or backend gloo",
        ),
        (
            "ranks = 4",
            replace(FOUR_GPUS, ranks_per_node=2),
            "ranks is 4, but nodes 1 with ranks_per_node 2 allows only 2",
        ),
        ("needs = { gpus = 8 }", FOUR_GPUS, "it needs 8 GPUs, and 4 can be used here"),
        ("needs = { gpus = 1 }", HERE, "it needs 1 GPU, and 0 can be used here (no NVIDIA GPU found)"),
        ("ranks = 16\nbatch = 16\nneeds = { nodes = 2, gpus = 8 }", FOUR_GPUS, "it needs 2 nodes, and this is one"),
        (
            "ranks = 32\nbatch = 32\nneeds = { nodes = 4, gpus = 4 }",
            replace(FOUR_GPUS, nodes=2),
            "it needs 4 nodes, and these are 2",
        ),
        ("needs = { memory_bytes = 9e9 }", HERE, "it needs 9.0 GB, and this machine has available 8.6 GB"),
        ("needs = { memory_bytes = 9e9 }", FOUR_GPUS, "it needs 9.0 GB, and a GPU has 1.1 GB"),
        ('shape = "8b"\nranks = 2', HERE, "ddp: parameters, gradients and optimizer state of 2 ranks take"),
        ("threads = 3", HERE, "threads is 3, but this machine has only 2 usable cores; use threads 2 or fewer"),
        ('backend = "nccl"', HERE, "backend nccl needs device cuda; use backend gloo on the CPU"),
    ],
)
def test_what_only_this_machine_cannot_run_is_said_and_the_others_go_on(
    folder: Path, table: str, node: NodeResources, said: str
) -> None:
    first, second = _plan(folder, f"[case.ddp]\n{table}\n[case.single]", node).cases
    assert first.refusal is not None
    assert first.refusal.startswith(said)
    assert first.case is None
    assert first.possible is not None
    assert second.refusal is None


def test_a_default_number_of_ranks_that_fits_other_machines_only_is_no_mistake_of_the_file(folder: Path) -> None:
    three = replace(FOUR_GPUS, gpus=read_gpus(RecordedNvml(names=("A", "B", "C")), {}))
    refusal = _one(folder, "[case.ddp]", three).refusal
    assert refusal is not None
    assert "batch 8 cannot be shared equally by 3 data ranks" in refusal


def test_more_ranks_than_cores_are_said_and_run_all_the_same(folder: Path) -> None:
    planned = _one(folder, "[case.ddp]\nranks = 4")
    assert planned.refusal is None
    assert planned.crowds == ("4 ranks share 2 cores (oversubscribed): speeds are not those of 4 cores",)


# What no machine can run.


@pytest.mark.parametrize("node", [HERE, FOUR_GPUS], ids=["cpu", "gpus"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[case.ddp]\nranks = 3", "[case.ddp] batch: ddp: batch 8 cannot be shared equally by 3 data ranks"),
        ("[case.ddp]\nranks = [2, 3]", "[case.ddp] batch of ddp[ranks=3]: ddp: batch 8 cannot"),
        ("[case.hsdp]\nranks = 2", "[case.hsdp] ranks: hsdp: ranks is 2; it needs 4 or more ranks; cpu or cuda"),
        ('[case.ddp]\ndevice = "cpu"\nbackend = "nccl"', "[case.ddp] backend: backend nccl needs device cuda; use"),
        (
            "[case.one_f_one_b]\nranks = 2\noptions = { high_priority_stream = true }\ndevice = 'cpu'",
            "[case.one_f_one_b] high_priority_stream: one_f_one_b: option high_priority_stream is true on gloo",
        ),
        ("[case.ddp]\ntrace_every = 2\ntrace_steps = 0", "[case.ddp] trace_every: trace_every repeats the profiler"),
        (
            '[case.ddp]\nranks = 2\ninject = "kill"',
            '[case.ddp] inject: fault "kill" does not have the form KIND@RANK:STEP, for example',
        ),
        (
            '[case.ddp]\nranks = 2\ninject = "kill@2:1"',
            '[case.ddp] inject: fault "kill@2:1" is for rank 2; ranks are 0',
        ),
        (
            '[case.ddp]\nranks = 2\nexpect = { outcome = "failed", rank = 2 }',
            "[case.ddp] expect: rank is 2; ranks are 0 to 1",
        ),
    ],
)
def test_what_no_machine_can_run_is_refused_with_table_and_key(
    folder: Path, node: NodeResources, text: str, said: str
) -> None:
    if "batch" in said:
        text += "\nbatch = 8"
    with pytest.raises(Misuse) as caught:
        _plan(folder, text, node)
    assert str(caught.value).startswith(f"{folder}/night.toml: {said}")
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[case.ddp]\nranks = 2\n[case.again]\nstrategy = 'ddp'\nranks = 2",
            "[case.again] again is the same case as ddp; leave one out, or give them different values",
        ),
        (
            "[case.ddp]\noptions = { bucket_mb = [1, '1.0'] }",
            "[case.ddp] ddp[bucket_mb=1.0] is the same case as ddp[bucket_mb=1]; leave one out",
        ),
        (
            "[case.ddp]\nranks = 2\nbaseline = 'single'\n[case.single]\nranks = 1\nwidth = 64",
            "[case.ddp] baseline of ddp: baseline (single, ranks 1) is another workload: width is 64, the run's is 128",
        ),
        (
            "[case.ddp]\nranks = 2\nbaseline = 'single'\nscaling = 'strong'\nbatch = 16\n[case.single]\nranks = 1",
            "[case.ddp] scaling of ddp is strong; with batch 16 and 8 of single it is weak: change one",
        ),
    ],
)
def test_a_suite_whose_cases_do_not_go_together_is_refused(folder: Path, text: str, said: str) -> None:
    with pytest.raises(Misuse) as caught:
        _plan(folder, text)
    assert str(caught.value).startswith(f"{folder}/night.toml: {said}")


def test_cases_that_differ_in_trials_steps_or_fault_are_not_the_same(folder: Path) -> None:
    text = "[case.ddp]\nranks = 2\ntrials = [1, 2]\nsteps = [2, 3]\ninject = ['kill@1:1', 'hang@1:1']"
    assert len(_plan(folder, text).cases) == 8


def test_weak_and_strong_curves_fit_their_baselines(folder: Path) -> None:
    text = """
        [case.weak]
        strategy = ["ddp", "fsdp"]
        ranks = [1, 2, 4]
        scaling = "weak"
        [case.strong]
        strategy = "parameter_server"
        ranks = [2, 3, 5]
        scaling = "strong"
        """
    assert [one.refusal for one in _plan(folder, text).cases] == [None] * 9


def test_a_curve_on_gpus_whose_baseline_would_take_the_cpu_here_is_no_mistake_of_the_file(folder: Path) -> None:
    text = "[case.ddp]\nranks = 2\nbackend = 'nccl'\nbaseline = 'single'\n[case.single]\nranks = 1"
    assert [one.refusal is None for one in _plan(folder, text).cases] == [False, True]
    assert [one.refusal for one in _plan(folder, text, FOUR_GPUS).cases] == [None, None]


# Time, by the history.


def _run(case: Case, started_s: float, ended_s: float, **changes: object) -> Summary:
    hardware = hardware_here(case.device, cores=HERE.cores, gpus=HERE.gpus.gpus)
    return replace(
        make_summary(f"run{started_s}"),
        case=case,
        hardware=hardware,
        started_ns=round(started_s * SECOND_NS),
        ended_ns=round(ended_s * SECOND_NS),
        outcome="done",
        trials_done=case.trials,
        **changes,  # type: ignore[arg-type]
    )


ONE = "[case.ddp]\nranks = 2\ntrials = 4\nsteps = 20\nwarm_up = 5\ntrace_steps = 0"


def _case(folder: Path, text: str = ONE) -> Case:
    case = _one(folder, text).case
    assert case is not None
    return case


def test_the_hardware_of_this_machine_is_told_without_torch() -> None:
    machine = read(torch=_NoTorch())
    cores = len(os.sched_getaffinity(0))
    assert hardware_here("cpu", cores=cores, gpus=()) == machine.hardware("cpu")
    gpus = FOUR_GPUS.gpus.gpus
    assert hardware_here("cuda", cores=cores, gpus=gpus) == replace(machine, gpus=gpus).hardware("cuda")


class _NoTorch:
    """What `read` asks of torch."""

    __version__ = "2.13.0"
    _C = object()

    class version:  # noqa: N801
        cuda = None


def test_an_estimate_is_that_of_the_history_scaled_by_trials_and_steps(folder: Path) -> None:
    measured = replace(_case(folder), trials=2, steps=40, warm_up=10)
    planned = _one(folder, ONE, HERE, _run(measured, 100, 140))
    assert planned.estimate_s == pytest.approx(4 * 20 / 2)
    assert planned.why_no_estimate is None


def test_steps_that_are_traced_take_time_too(folder: Path) -> None:
    traced = ONE.replace("trace_steps = 0", "trace_steps = 15")
    measured = replace(_case(folder, traced), trials=2, steps=30, warm_up=10, trace_steps=20)
    planned = _one(folder, traced, HERE, _run(measured, 100, 160))
    assert planned.estimate_s == pytest.approx(4 * 40 * 60 / 2 / 60)


def test_the_nights_of_a_series_tell_its_noise(folder: Path) -> None:
    """Runs of other steps are other noise, and two nights are too few for how nights differ."""
    case = _case(folder)
    day_s = 86_400.0
    nights = [
        _run(case, night * day_s, night * day_s + 9, estimates=(estimate(RUN_STEP_SECONDS, steps_s),), scaling=())
        for night, steps_s in enumerate(([1.0, 1.02], [1.01, 1.03], [1.0, 1.02]))
    ]
    noise = _one(folder, ONE, HERE, *nights).noise
    assert noise is not None
    assert noise.nights == 3
    assert noise.trial == pytest.approx(deviation_of([math.log(1.02), math.log(1.03 / 1.01), math.log(1.02)]))
    few = _one(folder, ONE, HERE, *nights[:2], replace(nights[2], case=replace(case, steps=3))).noise
    assert few is not None
    assert isinstance(few.night, Absent)
    assert _one(folder, ONE, HERE).noise is None


def test_the_newest_five_runs_give_their_median(folder: Path) -> None:
    case = _case(folder)
    lasted_s = [10, 12, 11, 99, 9, 1, 1, 1, 1, 1]
    runs = [_run(case, 10_000 - 100 * place, 10_000 - 100 * place + time_s) for place, time_s in enumerate(lasted_s)]
    assert _one(folder, ONE, HERE, *runs).estimate_s == pytest.approx(11)


def test_cases_that_were_measured_in_turn_share_their_time(folder: Path) -> None:
    text = ONE + "\n[case.single]\nranks = 1\ntrials = 4\nsteps = 20\nwarm_up = 5\ntrace_steps = 0"
    cases = [one.case for one in _plan(folder, text).cases]
    runs = [_run(case, 100, 140) for case in cases if case is not None]
    assert [one.estimate_s for one in _plan(folder, text, HERE, *runs).cases] == [pytest.approx(20), pytest.approx(20)]


@pytest.mark.parametrize(
    ("times_s", "estimates_s"),
    [
        (((100, 140), (140, 160)), (40, 20)),  # One begins in the moment in which the other ends.
        (((100, 140), (120, 160)), (30, 30)),  # For 20 s each alone, and for 20 s both.
        (((100, 140), (100, 120)), (30, 10)),
        (((100, 140), (120, 140)), (30, 10)),
    ],
)
def test_a_moment_counts_for_the_runs_that_were_measured_then(
    folder: Path, times_s: tuple[tuple[float, float], ...], estimates_s: tuple[float, ...]
) -> None:
    text = ONE + "\n[case.single]\nranks = 1\ntrials = 4\nsteps = 20\nwarm_up = 5\ntrace_steps = 0"
    cases = [planned.case for planned in _plan(folder, text).cases]
    runs = [_run(case, *of_case) for case, of_case in zip(cases, times_s, strict=True) if case is not None]
    planned = _plan(folder, text, HERE, *runs).cases
    assert [each.estimate_s for each in planned] == [pytest.approx(time_s) for time_s in estimates_s]


def test_on_a_cluster_an_estimate_is_that_of_the_newest_run_on_whichever_hardware(folder: Path) -> None:
    node = replace(HERE, cluster=Capacity(whose="a node of the partition night", asks=""))
    old = replace(_run(_case(folder), 0, 8), hardware="old")
    new = replace(_run(_case(folder), 100, 104), hardware="new")
    assert _one(folder, ONE, node, new, old).estimate_s == _one(folder, ONE, HERE, _run(_case(folder), 0, 4)).estimate_s


def test_the_memory_of_all_nodes_of_a_cluster_is_the_cases(folder: Path) -> None:
    text = '[case.ddp]\ndevice = "cpu"\nranks = 4\nlayers = 40\nwidth = 1024\nbatch = 4\nsequence = 8'
    node = replace(HERE, nodes=4, host_bytes=4 << 30)
    refusal = _one(folder, text, node).refusal
    assert refusal is not None
    assert "available memory is only" in refusal
    cluster = Capacity(whose="a node of the partition night", asks="")
    assert _one(folder, text, replace(node, cluster=cluster)).refusal is None


def test_an_estimate_is_at_most_what_the_trials_may_take(folder: Path) -> None:
    assert _one(folder, f"{ONE}\nlimit_s = 3", HERE, _run(_case(folder), 0, 1000)).estimate_s == 12


@pytest.mark.parametrize(
    "change", [{"hardware": "another CPU, 64 cores"}, {"outcome": "failed"}], ids=["elsewhere", "failed"]
)
def test_a_run_elsewhere_or_one_that_failed_gives_no_estimate(folder: Path, change: dict[str, object]) -> None:
    run = replace(_run(_case(folder), 0, 10), **change)  # type: ignore[arg-type]
    planned = _one(folder, ONE, HERE, run)
    assert planned.estimate_s is None
    assert planned.why_no_estimate is not None
    assert planned.why_no_estimate.startswith("no recent run on ")


def test_without_a_history_the_reason_stands_in_place_of_estimates(folder: Path) -> None:
    (planned,) = plan_suite(_suite(folder, ONE), HERE, "no run is in the history yet").cases
    assert (planned.estimate_s, planned.why_no_estimate) == (None, "no run is in the history yet")


# Tags and budgets.


TAGGED = """
    [case.ddp]
    ranks = 2
    baseline = "single"
    tags = ["fast"]
    [case.fsdp]
    ranks = 2
    tags = ["extra"]
    [case.single]
    ranks = 1
    [case.compiled]
    strategy = "single"
    ranks = 1
    options = { compile = "default" }
    block = "single"
    tags = ["extra", "fast"]
    """


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ((), {"ddp", "single"}),
        (("all",), {"ddp", "fsdp", "single", "compiled"}),
        (("fast",), {"ddp", "single", "compiled"}),
        (("extra",), {"fsdp", "compiled"}),
        (("extra", "fast"), {"ddp", "fsdp", "single", "compiled"}),
    ],
)
def test_tags_choose_cases_with_their_baselines_and_extras_only_by_name(
    folder: Path, only: Sequence[str], names: set[str]
) -> None:
    assert chosen(_suite(folder, TAGGED), only) == names


def test_a_tag_that_no_case_has_is_refused(folder: Path) -> None:
    with pytest.raises(
        Misuse, match=r'no case has the tag "fats"; did you mean "fast"\?; --only takes extra, fast, all'
    ):
        chosen(_suite(folder, TAGGED), ["fats"])


def _timed(folder: Path, text: str, *times_s: float | None) -> SuitePlan:
    """A plan whose cases take so long."""
    plan = _plan(folder, text)
    timed = [replace(one, estimate_s=time_s) for one, time_s in zip(plan.cases, times_s, strict=True)]
    return replace(plan, cases=tuple(timed))


def _names(cases: Sequence[PlannedCase]) -> list[str]:
    return [one.suite_case.name for one in cases]


THREE = "[case.ddp]\n[case.single]\nimportance = 5\n[case.fsdp]\nimportance = 1"


def test_within_a_budget_what_matters_most_comes_first(folder: Path) -> None:
    kept, left_out = within_budget(_timed(folder, THREE, 10, 10, 10), 25)
    assert (_names(kept), _names(left_out)) == (["single", "fsdp"], ["ddp"])


def test_what_fits_behind_a_case_that_does_not_is_kept(folder: Path) -> None:
    kept, left_out = within_budget(_timed(folder, THREE, 3, 10, 100), 15)
    assert (_names(kept), _names(left_out)) == (["ddp", "single"], ["fsdp"])


def test_a_case_comes_with_what_it_is_compared_with(folder: Path) -> None:
    text = (
        "[case.ddp]\nranks = 2\nbaseline = 'single'\nimportance = 9\n[case.single]\nranks = 1\n[case.fsdp]\nranks = 2"
    )
    assert _names(within_budget(_timed(folder, text, 10, 10, 10), 25)[0]) == ["ddp", "single"]
    assert _names(within_budget(_timed(folder, text, 10, 10, 10), 15)[0]) == ["single"]


def test_a_case_comes_with_all_that_it_is_compared_with_by_way_of_others(folder: Path) -> None:
    ddp = "strategy = 'ddp'\nbaseline"
    text = (
        f"[case.one]\nstrategy = 'single'\nranks = 1\n[case.two]\n{ddp} = 'one'\nranks = 2\n"
        f"[case.four]\n{ddp} = 'two'\nranks = 4\nimportance = 9\n[case.eight]\n{ddp} = 'two'\nranks = 8"
    )
    assert _names(within_budget(_timed(folder, text, 1, 1, 1, 1), 3)[0]) == ["one", "two", "four"]
    assert _names(within_budget(_timed(folder, text, 1, 1, 1, 2), 2)[0]) == ["one", "two"]


def test_a_case_of_unknown_time_takes_nothing_of_the_budget(folder: Path) -> None:
    kept, left_out = within_budget(_timed(folder, THREE, None, 10, 10), 10)
    assert (_names(kept), _names(left_out)) == (["ddp", "single"], ["fsdp"])


def test_a_budget_that_no_case_fits_in_is_refused(folder: Path) -> None:
    plan = _timed(folder, THREE, 10, 12, 14)
    assert within_budget(plan, 9)[0] == ()
    with pytest.raises(Misuse, match="not one case fits into a budget of 9 s; the shortest takes about 10 s: use a"):
        left_out(plan, budget_s=9)


def test_what_is_left_out_has_its_reason(folder: Path) -> None:
    plan = _timed(folder, f"{THREE}\n[case.zero1]\ntags = ['extra']", 10, 10, 10, 10)
    assert left_out(plan, budget_s=25) == {
        "ddp": "beyond the budget of 25 s",
        "zero1": "tagged extra; --only extra or --only all runs it",
    }
    assert left_out(plan, ["extra"]) == dict.fromkeys(("ddp", "single", "fsdp"), "without the tag extra")


def test_a_case_that_cannot_run_here_is_neither_kept_nor_left_out(folder: Path) -> None:
    kept, left_out = within_budget(_plan(folder, "[case.ddp]\nneeds = { gpus = 8 }"), 9)
    assert (kept, left_out) == ((), ())

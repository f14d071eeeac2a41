"""Runs made with one fault each: the diagnosis names it, with its evidence, its law and what to try."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.analysis.diagnose.observed import AllocatorTrouble, Diagnosis, NodeLoad, Observed
from bench.analysis.diagnose.rule import diagnose, likely_limit
from bench.case import Case
from bench.results.estimate import estimate, estimate_share
from collectors.metrics import results
from tests.bench.made.diagnosed import FAST, case_of, held_up, observed_of, pipelined
from tests.bench.made.scaled import SPREAD, Made
from workloads.cost_models.communication import Link
from workloads.cost_models.shape import PRESETS


def _evidence(found: Diagnosis) -> str:
    return "\n".join(found.limit.evidence)


def _tries(found: Diagnosis) -> list[dict[str, str]]:
    return [dict(lever.settings) for lever in found.limit.levers]


GOOD = Made(step_s=0.1, compute_s=0.097, exposed_s=0.003)


def _mfu(ratio: float) -> object:
    return estimate_share(results.RUN_MEASURED_MFU, [ratio * factor for factor in SPREAD])


def test_a_run_that_computes_fast_is_bound_by_computing() -> None:
    found = diagnose(observed_of(case_of(), GOOD, _mfu(0.6), link=FAST))  # type: ignore[arg-type]
    assert (found.limit.kind, found.is_sure) == ("compute", True)
    assert "reaches 62 % of the measured ceiling" in _evidence(found)
    assert likely_limit(found) == "compute 97 % of the step, model predicts 60 %"


def test_computing_is_no_limit_by_default() -> None:
    """Nobody measured how fast this hardware can be."""
    found = diagnose(observed_of(case_of(), GOOD, link=FAST))
    assert (found.limit.kind, found.is_sure) == ("unknown", False)
    assert found.command.startswith("observatory run matmul")


def test_slow_computing_is_not_sure_to_be_the_limit() -> None:
    found = diagnose(observed_of(case_of(), GOOD, _mfu(0.1), link=FAST))  # type: ignore[arg-type]
    assert (found.limit.kind, found.is_sure) == ("compute", False)
    assert found.command == "observatory analyse kernels 20261123-184106-run"


def test_computing_is_held_against_the_ceiling_for_the_time_in_which_it_runs() -> None:
    """Of a step that is half computing, half of the ceiling is all that its computing can reach."""
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.005, idle_s=0.005)
    verdict = diagnose(observed_of(case_of(), made, _mfu(0.3), link=FAST))  # type: ignore[arg-type]
    assert verdict.limit.kind == "compute"
    assert "computing reaches 50 % of the measured ceiling" in verdict.reason
    assert "while computing, it reaches 50 % of the measured ceiling" in _evidence(verdict)


def test_transfers_that_could_be_hidden_are_exposed_communication() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.04)
    found = diagnose(observed_of(case_of(options={"overlap": False}), made, link=FAST))
    assert (found.limit.kind, found.is_sure) == ("exposed_communication", True)
    # One bucket would hold all gradients, and hide nothing.
    assert _tries(found)[0] == {"overlap": "true", "bucket_mb": "0.876"}
    assert found.limit.levers[0].expected is not None
    assert found.limit.expected is not None
    assert found.limit.levers[0].expected < found.limit.expected
    assert "% of the step more than the model predicts" in found.reason


def test_a_slow_link_is_told_from_the_probed_one_with_its_pair() -> None:
    made = Made(step_s=0.1, compute_s=0.04, exposed_s=0.06)
    speed = estimate(results.RUN_TRACED_BUS_BANDWIDTH, [24e6 * one for one in SPREAD], collective="all_reduce")
    found = diagnose(
        observed_of(case_of(), made, speed, link=FAST, pair_bandwidths={"0-1": 9e9, "1-2": 1e7, "2-3": 9e9})
    )
    assert found.limit.kind == "exposed_communication"
    assert "slow link: all_reduce reaches a bus bandwidth of 24 MB/s" in _evidence(found)
    assert "the slowest pair is ranks 1-2 with 10 MB/s; the median pair has 9 GB/s" in _evidence(found)
    assert found.command == "observatory run pairs --ranks 4 --device cpu"


def test_a_link_as_fast_as_the_probed_one_is_not_slow() -> None:
    link = Link(bandwidth_bytes_per_second=24e6)
    made = Made(step_s=0.1, compute_s=0.04, exposed_s=0.06)
    speed = estimate(results.RUN_TRACED_BUS_BANDWIDTH, [24e6 * one for one in SPREAD], collective="all_reduce")
    found = diagnose(observed_of(case_of(), made, speed, link=link))
    assert "slow link" not in _evidence(found)
    assert found.limit.expected is not None
    assert found.limit.expected > 0.3


def test_a_bubble_is_the_schedules_and_more_microbatches_narrow_it() -> None:
    found = diagnose(pipelined(case_of("gpipe", options={"microbatches": 4}), [1.0, 1.0, 1.0, 1.0]))
    assert (found.limit.kind, found.is_sure) == ("bubble", True)
    assert found.limit.share is not None
    assert found.limit.share.value == pytest.approx(3 / 7, rel=0.02)
    assert found.limit.expected == pytest.approx(found.limit.share.value)
    # 16 microbatches on 4 stages: 3 / 16 of the time of computing.
    assert _tries(found)[0] == {"microbatches": "16"}
    assert found.limit.levers[0].expected == pytest.approx(3 / 16 * 4 / 7, rel=0.02)


def _gpipe(layers: int, balance: str = "layers") -> Case:
    model = replace(PRESETS["tiny"], batch=16, layers=layers)
    return case_of("gpipe", options={"microbatches": 16, "balance": balance}, model=model)


def test_an_unequal_stage_is_imbalance_and_is_named() -> None:
    found = diagnose(pipelined(_gpipe(layers=16), [1.0, 1.0, 5.0, 1.0]))
    assert (found.limit.kind, found.is_sure) == ("imbalance", True)
    assert "stage 2 on pipeline rank 2 is the slowest: 5,000 ms per microbatch, 2,000 ms for a mean stage" in _evidence(
        found
    )
    assert _tries(found)[0] == {"balance": "measured"}
    assert "--a balance=layers --b balance=measured" in found.command
    # By hand: blocks of 0.25, but of 1.25 in the slow stage, two of which make 2.5.
    # 16 microbatches of 8 s take 16 x 5 + 3 s, and 16 x 2.5 + 5.5 s.
    assert "1.5 times as fast as one, and 2.8 times with stages of 8, 2, 2 and 4 blocks" in _evidence(found)


def test_a_head_that_cannot_be_cut_is_no_reason_to_cut_otherwise() -> None:
    found = diagnose(pipelined(_gpipe(layers=4), [1.0, 1.0, 1.0, 5.0]))
    assert found.limit.kind == "imbalance"
    assert "no other cut of its blocks (now 1, 1, 1 and 1) is clearly faster" in _evidence(found)
    assert not any(_tries(found))
    assert "balance" not in found.command


def test_after_stages_were_cut_by_measured_time_no_coarser_cut_is_advised() -> None:
    note = "balance=measured gave the stages, in the order of the model, 3, 3, 3 and 1 blocks"
    run = replace(pipelined(_gpipe(layers=10, balance="measured"), [1.5, 1.5, 1.5, 3.5]), notes=(note,))
    found = diagnose(run)
    assert "no other cut of its blocks (now 3, 3, 3 and 1) is clearly faster" in _evidence(found)
    assert not any(_tries(found))
    # A block of 0.5, and a head of 2: by layers it would be cut into longer stages, and a cut by hand is.
    cut = replace(run, notes=(note.replace("3, 3, 3 and 1", "2, 2, 2 and 4"),), case=_gpipe(layers=10, balance="flops"))
    cut = replace(pipelined(cut.case, [1.0, 1.0, 1.0, 4.0]), notes=cut.notes)
    assert "with stages of 3, 3, 3 and 1 blocks" in _evidence(diagnose(cut))
    assert _tries(diagnose(cut))[0] == {"balance": "measured"}


def test_a_rank_that_stands_out_is_a_straggler_with_its_host() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.002, waiting_s=0.038)
    late = held_up({0: 0.001, 1: 0.002, 2: 0.38, 3: 0.001}, straggler=2)
    found = diagnose(observed_of(case_of(), made, *late, link=FAST, rank_hosts=dict(enumerate("aabb"))))
    assert (found.limit.kind, found.is_sure) == ("straggler", True)
    assert "rank 2 on b holds the others up, by compute: 38.0 % of the traced time" in _evidence(found)
    assert likely_limit(found) == "straggler 38 % of the step [37, 39], model predicts 0 %"


def test_what_a_straggler_costs_is_taken_once_first_from_the_waiting() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.0, waiting_s=0.02, idle_s=0.02)
    late = held_up({0: 0.001, 1: 0.002, 2: 0.15, 3: 0.001}, straggler=2)
    shares = _shares(diagnose(observed_of(case_of(), made, *late, link=FAST)))
    assert shares["straggler"] == pytest.approx(0.15, rel=0.02)
    assert shares["compute"] == pytest.approx(0.6, rel=0.02)
    assert shares["host"] == pytest.approx(0.2, rel=0.02)
    assert shares["imbalance"] == pytest.approx(0.05, rel=0.05)


def test_what_a_straggler_costs_beyond_the_waiting_is_taken_from_what_it_does_meanwhile() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.0, waiting_s=0.02, idle_s=0.02)
    late = held_up({0: 0.001, 1: 0.002, 2: 0.3, 3: 0.001}, straggler=2)
    shares = _shares(diagnose(observed_of(case_of(), made, *late, link=FAST)))
    assert shares["straggler"] == pytest.approx(0.3, rel=0.02)
    assert shares["compute"] == pytest.approx(0.5, rel=0.02)
    assert shares["host"] == pytest.approx(0.2, rel=0.02)
    assert "imbalance" not in shares


def _shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {finding.kind: finding.share.value for finding in diagnosis.findings if finding.share is not None}


def test_a_rank_that_may_be_late_by_chance_is_only_likely_a_straggler() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.002, waiting_s=0.038)
    note = "no straggler: rank 1 causes 99 % of the waiting (p <= 0.11; 0.02 is needed); use --trials 7 or more"
    run = observed_of(case_of(ranks=2), made, *held_up({0: 0.001, 1: 0.38}), notes=(note,), link=FAST)
    found = diagnose(run)
    assert (found.limit.kind, found.is_sure) == ("straggler", False)
    assert found.command.endswith("--trials 7")
    assert likely_limit(found).startswith("likely straggler 38 % of the step")


@pytest.mark.parametrize("trials", [1, 2])
def test_below_three_trials_a_late_rank_is_listed_and_not_the_limit(trials: int) -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.002, waiting_s=0.038)
    note = "straggler: likely rank 1, not certain: one trial; use --trials 7 or more"
    run = observed_of(case_of(ranks=2), made, *held_up({0: 0.001, 1: 0.38}), trials=trials, notes=(note,), link=FAST)
    found = diagnose(run)
    assert (found.limit.kind, found.is_sure) == ("unknown", False)
    assert [finding.kind for finding in found.findings][:2] == ["compute", "straggler"]
    assert found.findings[1].doubt == "likely rank 1, not certain: one trial; use --trials 7 or more"
    assert found.command.endswith("--trials 7")
    words = "trial" if trials == 1 else "trials"
    assert likely_limit(found).startswith("limit unknown: a late rank may hold the others up, 38 % of the step, but")
    assert f"{trials} {words} cannot tell that from chance" in found.reason


def test_below_three_trials_a_larger_cost_is_the_limit_and_the_late_rank_its_doubt() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.15 * 0.1, waiting_s=0.02)
    run = observed_of(case_of(ranks=2), made, *held_up({0: 0.001, 1: 0.12}), trials=1, link=FAST)
    found = diagnose(run)
    assert found.limit.kind == "exposed_communication"
    assert not found.is_sure
    assert "it may be straggler, 12 % of the step" in found.reason


def test_ranks_that_are_all_late_in_turn_are_imbalance() -> None:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.002, waiting_s=0.038)
    late = held_up({0: 0.09, 1: 0.1, 2: 0.09, 3: 0.1})
    found = diagnose(observed_of(case_of("ring_attention", options={"layout": "contiguous"}), made, *late, link=FAST))
    assert found.limit.kind == "imbalance"
    assert {"layout": "zigzag"} in _tries(found)


def test_a_gpu_that_idles_waits_for_its_host() -> None:
    made = Made(step_s=0.1, compute_s=0.05, idle_s=0.05)
    case = case_of("single", 1, device="cuda", backend="nccl")
    node = NodeLoad(host="node0", busy_ratio=0.97, load_tasks=70.0, cpu_pressure_ratio=0.4)
    found = diagnose(observed_of(case, made, nodes=(node,)))
    assert (found.limit.kind, found.is_sure) == ("host", True)
    assert "the CPUs of node0 are busy 97 % of the time, with 70.0 tasks running or waiting" in _evidence(found)
    assert {"compile": "reduce-overhead"} in _tries(found)


def test_more_threads_than_cores_are_the_hosts() -> None:
    found = diagnose(observed_of(case_of(), GOOD, link=FAST, cores=2))
    assert (found.limit.kind, found.is_sure) == ("host", True)
    assert (
        "4 ranks with 1 thread each share 2 cores (oversubscribed): at least 50 % of their computing time is"
        in _evidence(found)
    )
    assert found.limit.levers[0].words == "no more threads than cores: --ranks 2 a node, or more nodes"


def test_what_is_computed_again_is_paid_for_memory() -> None:
    case = case_of("fsdp", options={"checkpoint": "full"}, device="cuda", backend="nccl")
    peak = estimate(results.RUN_PEAK_MEMORY_BYTES, [78 * 2**30, 78.5 * 2**30, 78.2 * 2**30], account="allocator")
    trouble = AllocatorTrouble(rank=3, retries=17, out_of_memory=0)
    found = diagnose(observed_of(case, GOOD, peak, link=FAST, device_bytes=80 * 2**30, allocator=trouble))
    assert (found.limit.kind, found.is_sure) == ("memory", True)
    assert found.limit.share is not None
    assert found.limit.share.value == pytest.approx(0.97 / 4, abs=0.01)
    assert "the peak is 78.2 GiB a rank: 98 % of 80 GiB, a GPU's" in _evidence(found)
    assert "the allocator of rank 3 returned its unused memory and retried 17 times" in _evidence(found)
    assert {"checkpoint": "none"} not in _tries(found)


def test_computing_again_with_room_to_spare_is_not_needed() -> None:
    case = case_of("fsdp", options={"checkpoint": "full"}, device="cuda", backend="nccl")
    peak = estimate(results.RUN_PEAK_MEMORY_BYTES, [20 * 2**30], account="allocator")
    found = diagnose(observed_of(case, GOOD, peak, link=FAST, device_bytes=80 * 2**30))
    assert found.limit.kind == "memory"
    assert _tries(found)[0] == {"checkpoint": "none"}


@pytest.mark.parametrize(
    "text",
    [
        "rank 1: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "rank 1: RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory",
        "rank 1 ran out of memory and was killed by the kernel (SIGKILL; its control group may use 2 GiB) in step 0",
    ],
)
def test_a_rank_that_ran_out_of_memory_is_the_root_cause(text: str) -> None:
    run = replace(observed_of(case_of(), GOOD), outcome="failed", cause=(text,), estimates=(), trials_done=0)
    found = diagnose(run)
    assert (found.limit.kind, found.is_sure) == ("memory", True)
    assert {"checkpoint": "full"} in _tries(found)
    assert found.command.startswith("observatory run ddp --ranks 4 ")
    assert likely_limit(found).startswith(f"failed: {text[:16]}")


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (("could not open dataset: MemoryErrorLog missing",), "unknown"),
        (("rank 1 left without a word", "MemoryError"), "memory"),
    ],
)
def test_what_only_sounds_like_memory_is_never_sure(cause: tuple[str, ...], kind: str) -> None:
    run = replace(observed_of(case_of(), GOOD), outcome="failed", cause=cause, estimates=(), trials_done=0)
    found = diagnose(run)
    assert found.limit.kind == kind
    assert not (kind == "memory" and found.is_sure)


def test_a_run_that_failed_otherwise_shows_its_root_cause() -> None:
    run = replace(observed_of(case_of(), GOOD), outcome="failed", cause=("rank 2 was killed by SIGKILL", "last line"))
    found = diagnose(run)
    assert found.limit.kind == "unknown"
    assert found.root_cause == ("rank 2 was killed by SIGKILL", "last line")
    assert found.command == "observatory show 20261123-184106-run --details"


def test_a_slow_loader_is_the_input() -> None:
    made = Made(step_s=0.1, compute_s=0.05, data_s=0.05)
    found = diagnose(observed_of(case_of(options={"loader_delay_ms": 40.0}), made, link=FAST))
    assert (found.limit.kind, found.is_sure) == ("input", True)
    assert _tries(found)[:2] == [{"loader_delay_ms": "0"}, {"workers": "2"}]
    assert "a step waits 50 ms for its batch" in _evidence(found)


ALL_MADE = [
    observed_of(case_of(), GOOD),
    observed_of(case_of(), Made(step_s=0.1, compute_s=0.05, exposed_s=0.05), is_traced=False),
    pipelined(case_of("gpipe", options={"microbatches": 16}), [1.0, 1.0, 5.0, 1.0]),
]


@pytest.mark.parametrize("run", ALL_MADE, ids=["ddp", "untraced", "gpipe"])
def test_one_line_has_a_hundred_letters_at_most_and_the_next_command_is_ours(run: Observed) -> None:
    found = diagnose(run)
    assert len(likely_limit(found)) <= 100
    assert found.command.startswith("observatory ")

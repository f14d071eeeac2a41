"""Ranks that train as one rank does but for a fault that begins late, or that only clipping shows; each is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from bench.analysis.convergence.check import ConvergenceVerdict, check_cases, evaluate, gather_evidence
from bench.case import Case, check, find_spec, parse_options
from bench.rank.convergence import add_batch_norm, check_batches, steps_with_evidence
from bench.rank.evidence import StepEvidence
from tests.bench.made.examples import make_case
from tests.support.ranks import OnRanks
from tests.workloads.training.training_runs import make_ready
from workloads.fsdp import strategy as fsdp
from workloads.options import check_of
from workloads.protocols import Workload

pytestmark = pytest.mark.timeout(300)

STEPS = 8
LATE = 6
OPTIONS = ("workers=0", "learning_rate=0.003", "accumulate=2")

Fault = Callable[[Workload], Iterator[None]]
"""Meets a rank's workload before each of its steps."""


def nothing(workload: Workload) -> Iterator[None]:
    """All steps are as they should be."""
    while True:
        yield


def microbatch_left_out(workload: Workload) -> Iterator[None]:
    """On rank 0 the last microbatch of one step gives no gradient; it is read, and has a loss."""
    forwards: list[int] = []

    def cut(module: nn.Module, arguments: object, logits_bsv: Tensor) -> None:
        if dist.get_rank() == 0 and len(forwards) == 2 * LATE + 1:
            logits_bsv.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]  # torch gives no types.
        forwards.append(len(forwards))

    workload.model.register_forward_hook(cut)
    return nothing(workload)


def sync_left_out(workload: Workload) -> Iterator[None]:
    """In one step no rank averages its gradients with the others'."""
    model: Any = workload.model
    for step in range(STEPS):
        model.require_backward_grad_sync = True
        if step == LATE:
            with model.no_sync():
                yield
        else:
            yield


def shard_left_out(workload: Workload) -> Iterator[None]:
    """In one step rank 1 does not update its shard of the weights."""
    assert isinstance(workload.model, FSDPModule)
    optimizer: Any = workload.optimizer
    update = optimizer.step
    for step in range(STEPS):
        optimizer.step = (lambda *arguments: None) if (step, dist.get_rank()) == (LATE, 1) else update
        yield


def norm_left_apart(workload: Workload) -> Iterator[None]:
    """Each rank clips by the norm of its own shard: what `clip_gradients` adds up over ranks is not."""
    vars(fsdp)["dist"] = SimpleNamespace(all_reduce=lambda *arguments, **options: None)
    return nothing(workload)


@dataclass(frozen=True, slots=True)
class FaultyWorkload:
    """Lets a fault act before each step."""

    workload: Workload
    fault: Iterator[None]

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        next(self.fault)
        return self.workload.step(tokens_bs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workload, name)


def train(case: Case, fault: Fault) -> list[StepEvidence]:
    """What one rank saw of its check."""
    setup: Any = case  # It is a `Setup`, too.
    ready, checked = make_ready(setup), check_of(case)
    assert checked is not None
    add_batch_norm(ready.workload.model, checked)
    workload: Any = FaultyWorkload(ready.workload, fault(ready.workload))
    with closing(check_batches(case, case.spec().data_share(case, dist.get_rank()), checked)) as batches:
        return list(steps_with_evidence(case, workload, batches, torch.device("cpu")))


Check = Callable[[str, Fault], ConvergenceVerdict]


@pytest.fixture(scope="module")
def verdict_on(on_ranks: OnRanks) -> Check:
    """The verdict on a strategy with a fault; the one rank trains once for all of them."""
    alone: dict[str, list[StepEvidence]] = {}

    def run(strategy: str, fault: Fault) -> ConvergenceVerdict:
        spec = find_spec(strategy)
        known = {option.name for option in spec.options}
        options = parse_options(spec, [text for text in OPTIONS if text.partition("=")[0] in known])
        one, backwards, together = check_cases(check(make_case(strategy, 2, steps=STEPS, options=options)), ())
        for case in (one, backwards):
            if case.key() not in alone:
                (alone[case.key()],) = on_ranks(1, train, case, nothing)
        return evaluate(
            gather_evidence(
                together,
                reference=alone[one.key()],
                backwards=alone[backwards.key()],
                ranks=on_ranks(2, train, together, fault),
            )
        )

    return run


def causes(verdict: ConvergenceVerdict) -> list[tuple[str, int]]:
    return [(culprit.cause, culprit.step) for culprit in verdict.causes]


LATE_FAULTS: Mapping[str, tuple[str, Fault, str]] = {
    "microbatch": ("ddp", microbatch_left_out, "gradients"),
    "sync": ("ddp", sync_left_out, "averaging"),
    "shard": ("fsdp", shard_left_out, "update"),
}


@pytest.mark.parametrize(("strategy", "fault", "cause"), LATE_FAULTS.values(), ids=LATE_FAULTS)
def test_a_fault_in_one_late_step_is_named_with_its_step_and_nothing_else_is(
    strategy: str, fault: Fault, cause: str, verdict_on: Check
) -> None:
    verdict = verdict_on(strategy, fault)
    assert (verdict.outcome, verdict.is_explained) == ("disagrees", True)
    assert causes(verdict) == [(cause, LATE)]
    assert verdict.parted_at is not None
    assert verdict.parted_at > LATE


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_ranks_that_clip_by_the_norm_of_their_own_shard_disagree(strategy: str, verdict_on: Check) -> None:
    verdict = verdict_on(strategy, norm_left_apart)
    assert verdict.outcome == "disagrees"
    assert causes(verdict) == [("clipping", 0)]


def test_honest_stages_are_examined_to_the_last_step_and_clip_in_each(verdict_on: Check) -> None:
    verdict = verdict_on("pipeline_naive", nothing)
    assert (verdict.outcome, causes(verdict)) == ("agrees", [])
    assert (verdict.clip, verdict.clipped_steps) == (0.1, STEPS)
    assert any(text.startswith(f"gradients of all {STEPS} steps: equal") for text in verdict.ruled_out)
    assert any(text.startswith("updates: equal to the one rank's") for text in verdict.ruled_out)

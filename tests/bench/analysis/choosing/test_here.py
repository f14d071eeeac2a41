"""The ground of a choice on this machine: strategies without a setup on these ranks have no rates and stop nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.choosing.here import ground_here
from bench.analysis.choosing.question import Question
from bench.case import check, settle
from bench.errors import Misuse
from bench.machine.machine import hardware_here
from bench.store.history import History
from tests.bench.made.calibrations import add_copies, add_matmul, add_sweep
from tests.bench.made.examples import make_case
from workloads.cost_models.shape import PRESETS


def question_of(*strategies: str, ranks: int) -> Question:
    """A batch that 2, 3 and 4 ranks share equally."""
    return Question(
        shape=replace(PRESETS["tiny"], batch=12), ranks=ranks, nodes=1, device="cpu", backend="gloo",
        precision="fp32", strategies=strategies,
    )  # fmt: skip


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """With all rates on 2, 3 and 4 ranks."""
    hardware = hardware_here("cpu", cores=2, gpus=())
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        for ranks in (2, 3, 4):
            for add in (add_matmul, add_copies, add_sweep):
                add(history, make_case(ranks=ranks), hardware, run=f"{add.__name__}-{ranks}")
        yield history


@pytest.mark.parametrize(
    ("ranks", "possible"),
    [
        (2, {"ddp", "gpipe", "interleaved"}),  # three_d needs 4 ranks.
        (3, {"ddp", "gpipe"}),  # 3 stages divide 4 layers only with balance=flops.
        (4, {"ddp", "gpipe", "three_d"}),  # Nor do 4 ranks x 2 stages.
    ],
)
def test_strategies_that_cannot_run_on_these_ranks_do_not_stop_the_others(
    ranks: int, possible: set[str], history: History
) -> None:
    bases, _ = question_of("ddp", "gpipe", "interleaved", "three_d", ranks=ranks).bases()
    assert set(ground_here(bases, {}, history, cores=2, gpus=()).by_strategy) == possible


def test_a_strategy_whose_defaults_cannot_run_has_the_rates_of_a_setup_that_can(history: History) -> None:
    """One kv head refuses two tensor ranks, three_d's default on 4 ranks."""
    question = question_of("three_d", ranks=4)
    question = replace(question, shape=replace(question.shape, kv_heads=1))
    bases, fixed = question.bases()
    with pytest.raises(Misuse):
        check(settle(bases[0]))
    assert set(ground_here(bases, fixed, history, cores=2, gpus=()).by_strategy) == {"three_d"}


def test_a_single_strategy_that_cannot_run_says_what_it_needs(history: History) -> None:
    bases, _ = question_of("three_d", ranks=2).bases()
    with pytest.raises(Misuse, match="three_d cannot run: it needs 4 or more ranks; cpu or cuda; ranks is 2"):
        ground_here(bases, {}, history, cores=2, gpus=())


def test_if_no_strategy_can_run_the_refusal_is_that_of_the_plainest(history: History) -> None:
    bases, fixed = replace(question_of(ranks=4), shape=replace(PRESETS["tiny"], batch=7)).bases()
    bases = [base for base in bases if base.strategy in ("single", "ddp", "fsdp", "hsdp")]
    says = "fsdp cannot run, nor can 3 other strategies: batch 7 cannot be shared equally by 4 data ranks"
    with pytest.raises(Misuse, match=says):
        ground_here(bases, fixed, history, cores=2, gpus=())


@pytest.mark.parametrize("measured", [(), (add_matmul,), (add_matmul, add_copies)])
def test_all_missing_rates_are_named_at_once_with_one_sweep_for_all_strategies(
    measured: Sequence[Callable[..., None]], tmp_path: Path
) -> None:
    """`single` needs no link, but it cannot run on 2 ranks."""
    hardware = hardware_here("cpu", cores=2, gpus=())
    bases, fixed = question_of("single", "ddp", "gpipe", "fsdp", ranks=2).bases()
    with History(f"sqlite:///{tmp_path / 'short.sqlite'}") as short:
        for add in measured:
            add(short, make_case(), hardware)
        with pytest.raises(Misuse) as refused:
            ground_here(bases, fixed, short, cores=2, gpus=())
    line = str(refused.value)
    missing = [probe for probe in ("matmul", "copies") if f"add_{probe}" not in {add.__name__ for add in measured}]
    assert line.count("`observatory run ") == len(missing) + 1
    assert all(f"`observatory run {probe} " in line for probe in missing)
    assert "--option collectives=all_reduce,send,all_gather,reduce_scatter`" in line

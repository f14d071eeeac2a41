"""Which matmul run is a case's ceiling, and what share of it a run reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.case import Case
from bench.results.estimate import Estimate, estimate, ratio
from bench.store.hardware_baselines import Ceiling, ceiling_from, find_ceiling, measured_mfu
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_MATMUL_CLOCK_HERTZ, RUN_MATMUL_FLOPS, RUN_MATMUL_POWER_WATTS
from collectors.metrics.results import RUN_FLOPS, RUN_MEASURED_MFU, RUN_STEP_SECONDS
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.cost_models.absent import Absent
from workloads.probes.spec import MatmulSpec

HARDWARE = "AMD EPYC, 2 cores"


def _product(size: int, *trials: float) -> Estimate:
    return estimate(RUN_MATMUL_FLOPS, trials, m=str(size), n=str(size), k=str(size))


def _matmul(run: str = "matmul-a", *, hour: int = 0, rate: float = 1e11, **changes: Any) -> Summary:
    """A run of two ranks, whose largest product is not its fastest. changes: of its case."""
    options = {option.name: option.default for option in MatmulSpec().options}
    plain = replace(
        make_case(),
        strategy=MatmulSpec().name,
        version=MatmulSpec().version,
        model=None,
        trace_steps=0,
        options=options,
    )
    return make_summary(
        run,
        started_ns=1_700_000_000_000_000_000 + hour * 3_600_000_000_000,
        case=replace(plain, **{"version": MatmulSpec().version_on(changes.get("device", "cpu")), **changes}),
        hardware=HARDWARE,
        scaling=(),
        effective_batch={},
        estimates=(
            _product(256, 0.5 * rate, 0.6 * rate, 0.7 * rate),
            _product(512, 0.9 * rate, rate, 1.1 * rate),
            _product(1024, 0.8 * rate, 0.9 * rate, rate),
        ),
    )


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty one."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


def _add(history: History, *summaries: Summary) -> None:
    for summary in summaries:
        history.add(summary, make_machine())


def _run_of(found: Ceiling | Absent) -> str:
    assert isinstance(found, Ceiling), found
    return found.run


def test_the_ceiling_is_the_fastest_shape_and_not_the_largest() -> None:
    found = ceiling_from(_matmul())
    assert isinstance(found, Ceiling)
    assert (found.run, found.m, found.n, found.k) == ("matmul-a", 512, 512, 512)
    assert found.flops_per_second.median == 1e11
    assert found.flops_per_second.low is not None


def test_the_ceiling_has_the_clock_and_power_of_its_own_shape() -> None:
    matmul = _matmul()
    assert ceiling_from(matmul) == ceiling_from(replace(matmul))
    shapes = [{"m": size, "n": size, "k": size} for size in ("512", "1024")]
    beside = (
        *(
            estimate(RUN_MATMUL_CLOCK_HERTZ, (1e6 * rate,), **shape)
            for rate, shape in zip((1755, 900), shapes, strict=True)
        ),
        *(estimate(RUN_MATMUL_POWER_WATTS, (watts,), **shape) for watts, shape in zip((690, 300), shapes, strict=True)),
    )
    found = ceiling_from(replace(matmul, estimates=(*matmul.estimates, *beside)))
    assert isinstance(found, Ceiling)
    assert found.at == "1,755 MHz, 690 W"
    bare = ceiling_from(matmul)
    assert isinstance(bare, Ceiling)
    assert bare.at == ""


def test_each_side_of_a_product_is_told_from_the_others() -> None:
    product = estimate(RUN_MATMUL_FLOPS, (1e9,), m="2", n="3", k="5")
    found = ceiling_from(make_summary(estimates=(product,)))
    assert isinstance(found, Ceiling)
    assert (found.m, found.n, found.k) == (2, 3, 5)


def test_a_run_without_products_has_no_ceiling() -> None:
    found = ceiling_from(make_summary("run-x", estimates=(estimate(RUN_STEP_SECONDS, (0.1,)),)))
    assert isinstance(found, Absent)
    assert "run run-x measured no matrix product" in found.reason


def test_a_newer_run_of_slower_products_does_not_lower_the_ceiling(history: History) -> None:
    slower = replace(_matmul("newer", hour=2), estimates=(estimate(RUN_MATMUL_FLOPS, (1e3,), m="4", n="4", k="4"),))
    _add(history, _matmul("best", hour=1), slower)
    assert _run_of(find_ceiling(history, make_case(), HARDWARE)) == "best"


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16"}, {"device": "cuda"}, {"threads": 2}, {"ranks": 4}, {"version": MatmulSpec().version + 1}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_newer_run_in_another_setting_is_passed_over(history: History, changes: dict[str, Any]) -> None:
    _add(history, _matmul("alike", hour=1), _matmul("other", hour=2, **changes))
    assert _run_of(find_ceiling(history, make_case(), HARDWARE)) == "alike"


def test_a_newer_run_on_other_hardware_is_passed_over(history: History) -> None:
    _add(history, _matmul("alike", hour=1), replace(_matmul("other", hour=2), hardware="AMD EPYC, 64 cores"))
    assert _run_of(find_ceiling(history, make_case(), HARDWARE)) == "alike"


def test_a_newer_run_that_failed_or_measured_nothing_is_passed_over(history: History) -> None:
    failed = replace(_matmul("failed", hour=2), outcome="failed")
    empty = replace(_matmul("empty", hour=3), estimates=())
    _add(history, _matmul("alike", hour=1), failed, empty)
    assert _run_of(find_ceiling(history, make_case(), HARDWARE)) == "alike"


def _on_gpus(**changes: Any) -> dict[str, Any]:
    return {"device": "cuda", "backend": "nccl", "precision": "bf16", **changes}


def test_on_gpus_neither_ranks_nor_threads_count_since_each_rank_has_its_own(history: History) -> None:
    _add(history, _matmul("alone", **_on_gpus(ranks=1, threads=4)))
    assert _run_of(find_ceiling(history, make_case(**_on_gpus(ranks=8)), HARDWARE)) == "alone"


@pytest.mark.parametrize(
    ("case", "command"),
    [
        (
            make_case(precision="bf16"),
            "`observatory run matmul --device cpu --precision bf16 --ranks 2 --threads 1` makes one",
        ),
        (make_case(**_on_gpus()), "`observatory run matmul --device cuda --precision bf16` makes one"),
    ],
    ids=["cpu", "cuda"],
)
def test_no_ceiling_is_absent_with_the_command_that_makes_one(history: History, case: Case, command: str) -> None:
    found = find_ceiling(history, case, HARDWARE)
    assert isinstance(found, Absent)
    assert f"on {HARDWARE}" in found.reason
    assert command in found.reason


def _ceiling(*trials: float) -> Ceiling:
    return Ceiling(run="matmul-a", m=512, n=512, k=512, flops_per_second=_product(512, *trials))


def test_measured_mfu_is_the_share_of_the_ceiling_with_the_noise_of_both() -> None:
    flops, ceiling = estimate(RUN_FLOPS, (48.0, 50.0, 52.0)), _ceiling(99.0, 100.0, 104.0)
    found = measured_mfu(flops, ceiling)
    assert isinstance(found, Estimate)
    welch = ratio(flops, ceiling.flops_per_second)
    assert (found.metric, found.labels) == (RUN_MEASURED_MFU.name, {})
    assert (found.median, found.low, found.high) == (0.5, welch.low, welch.high)
    assert found.low is not None
    assert found.low < 0.5
    assert found.trials == (0.48, 0.5, 0.52)


def test_a_ceiling_of_one_trial_gives_a_share_without_interval() -> None:
    found = measured_mfu(estimate(RUN_FLOPS, (48.0, 50.0, 52.0)), _ceiling(100.0))
    assert isinstance(found, Estimate)
    assert (found.median, found.low, found.high) == (0.5, None, None)


def test_a_share_of_exactly_one_is_allowed() -> None:
    assert isinstance(measured_mfu(estimate(RUN_FLOPS, (100.0,)), _ceiling(100.0)), Estimate)


def test_a_share_above_one_is_absent_with_its_numbers_and_the_next_move() -> None:
    found = measured_mfu(estimate(RUN_FLOPS, (1.2e11,)), _ceiling(1e11))
    assert isinstance(found, Absent)
    for part in (
        "would be 1.20",
        "0.12 TFLOP/s of a ceiling of 0.1",
        "run matmul-a, 512 x 512 x 512",
        "with its default sizes",
    ):
        assert part in found.reason
    assert "\n" not in found.reason

"""The recorded node, watched minute by minute for a lap: which alerts it sets off, and that it sets off no others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.serve.demo import INTERVAL_RATIO, RUN, made_ports, made_results, made_suites
from bench.serve.demo_results import HELD_BACK
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.gpu_health import GPU_XID_TIME
from collectors.metrics.host import HOST_LOAD
from collectors.metrics.metric import Sample
from collectors.metrics.registry import as_shown
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from collectors.nvml.recorder import EIGHT_GPUS, load
from tests.collectors.nvml.nodes import FakeClock, opened, replayed
from tests.dashboards.alert_links import THRESHOLDS
from tests.dashboards.alerts.drill import Drill, alert
from tests.stack.alerts.nights import alert_of, rehearse
from tests.stack.alerts.rehearsal import SCRAPED, Rehearsal, shown

pytestmark = pytest.mark.stack

MINUTES = 13
RANKS = 6
Series = dict[str, list[str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    ranks = {
        name: values
        for rank in map(str, range(RANKS))
        for name, values in shown(RANK_GPU, f"1x{MINUTES}", rank=rank, slot="0", run="8f2c", gpu=rank).items()
    }
    watched = {name: " ".join(values) for name, values in _watch().items()}
    return Rehearsal(series={**watched, **ranks}, folder=tmp_path_factory.mktemp("node"))


def _watch() -> Series:
    """The samples of each minute, in the tester's notation, whose clock begins at 0."""
    clock = FakeClock()
    series: Series = {}
    with opened(replayed(load(EIGHT_GPUS), clock), clock) as collector:
        for minute in range(MINUTES):
            clock.now_s = 60.0 * minute
            time.sleep(0.05)  # The thread that listens for events goes by its own time.
            now = {_name(sample): sample for sample in map(as_shown, collector.read())}
            for name in series.keys() | now.keys():
                values = series.setdefault(name, ["_"] * minute)
                values.append(_value(now[name], values, minute) if name in now else "stale")
    return series


def _name(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in {**SCRAPED, **sample.labels}.items())
    return f"{sample.metric}{{{labels}}}"


def _value(sample: Sample, before: list[str], minute: int) -> str:
    """Times by the tester's clock: what is new happened now."""
    if sample.metric != GPU_XID_TIME.name:
        return f"{sample.value:.6f}"
    return before[-1] if before and before[-1] != "_" else f"{60 * minute}"


@pytest.mark.slow
def test_errors_and_losses_are_told_at_once(node: Rehearsal) -> None:
    node.fires(
        ("GpuLost", "6"),
        ("GpuXid", "5"),
        ("GpuXidOfNode", "6"),
        ("GpuMemoryError", "5"),
        ("GpuNeedsReset", "5"),
        at_minutes=9,
    )


def test_what_holds_back_is_told_when_it_has_lasted_and_what_was_repaired_no_more(node: Rehearsal) -> None:
    node.fires(
        ("GpuLost", "6"),
        ("GpuXid", "5"),
        ("GpuXidOfNode", "6"),
        ("GpuMemoryError", "5"),
        ("GpuHeldBack", "2"),
        ("GpuHot", "3"),
        at_minutes=12,
    )


def test_a_driver_that_hangs_for_five_minutes_is_told(node: Rehearsal) -> None:
    told = (("GpuLost", "6"), ("GpuNeedsReset", "5"), ("GpuXid", "5"), ("GpuXidOfNode", "6"), ("GpuMemoryError", "5"))
    node.fires(("GpuLate", "4"), *told, at_minutes=8)


def test_while_all_is_well_nobody_is_told(node: Rehearsal) -> None:
    node.fires(at_minutes=4)


def test_the_made_up_run_scales_worse_than_is_accepted(tmp_path: Path) -> None:
    samples = list(made_results(0))
    hours = {
        _name(Sample(sample.metric, sample.value, {**sample.labels, **owner})): f"{sample.value}x5"
        for sample, owner in samples
    }
    accepted = min(entry.ratio for entry in THRESHOLDS.accepted_efficiency)
    (low,) = (
        (sample, owner)
        for sample, owner in samples
        if sample.metric == RUN_SCALING_EFFICIENCY.statistic("median").name and sample.value < accepted
    )
    labels = {**low[0].labels, **low[1]}
    value = low[0].value
    ends = (value * (1 - INTERVAL_RATIO), value * (1 + INTERVAL_RATIO))
    name = f"ddp on {labels['ranks']}, 8b, bf16, cuda"
    rehearse(hours, {3: [alert_of(labels, value, ends=ends, name=name)]}, tmp_path)


def test_of_the_made_up_nightly_a_longer_step_and_a_vanished_case_are_told(tmp_path: Path) -> None:
    series = {_name(sample): f"{sample.value}x{MINUTES}" for sample, _ in made_suites(0, 0)}
    expected = [alert("RegressionConfirmed"), alert("SuiteCaseMissing", kind="vanished")]
    Drill(group="gate", folder=tmp_path).fires(series, {10: expected})


def test_the_made_up_port_that_loses_its_link_is_told(tmp_path: Path) -> None:
    series: Series = {_name(HOST_LOAD.at(1)): ["1"] * MINUTES}
    for minute in range(MINUTES):
        now = {_name(sample): f"{sample.value:.0f}" for sample, _ in made_ports(60.0 * minute)}
        for name in series.keys() | now.keys():
            values = series.setdefault(name, ["_"] * minute)
            values += [now.get(name, "stale")] * (len(values) == minute)
    ports = {name: " ".join(values) for name, values in series.items()}
    down = alert("InfinibandPortDown", instance=SCRAPED["instance"], port="1")
    broken = alert("InfinibandErrors", instance=SCRAPED["instance"], port="1", kind="symbol_error")
    expected = {1: [], 4: [down, broken], 9: [broken]}
    Drill(group="links", folder=tmp_path).fires(ports, expected)


def test_the_made_up_straggler_and_the_run_that_failed_are_told(tmp_path: Path) -> None:
    hours = {
        _name(Sample(sample.metric, sample.value, {**sample.labels, **owner})): f"{sample.value}x60"
        for sample, owner in made_results(0)
    }
    told = [alert("Straggler", rank=str(HELD_BACK)), alert("RunFailed", run=RUN)]
    Drill(group="runs", folder=tmp_path).fires(hours, {30: told})

"""What a rank of a probe logs of a call: the device's time, that with the host beside it, and why there is but one."""

from __future__ import annotations

from collections.abc import Mapping

from bench.rank.probe import begun_ns, samples_of, why_with_host
from collectors.metrics import probes as probes_metrics
from collectors.rank.stopwatch import CallTime
from workloads.protocols import Elapsed, Quantity

Figures = Mapping[Quantity, float | Elapsed]
SHAPE = {"m": "8", "n": "8", "k": "8"}


def test_a_call_on_a_gpu_has_two_times() -> None:
    figures: Figures = {"matmul_s": CallTime(elapsed_s=1e-5, with_host_s=3e-5)}
    assert samples_of(figures, SHAPE) == [
        probes_metrics.MATMUL_SECONDS.at(1e-5, **SHAPE),
        probes_metrics.MATMUL_WITH_HOST_SECONDS.at(3e-5, **SHAPE),
    ]
    assert why_with_host(figures, SHAPE) == []


def test_a_measurement_began_with_its_calls() -> None:
    assert begun_ns({"matmul_s": CallTime(elapsed_s=1e-5, with_host_s=3e-5, begun_ns=7)}) == 7
    assert begun_ns({"matmul_s": CallTime(elapsed_s=1e-5), "rounds": 3}) is None


def test_a_call_on_a_cpu_has_the_one_that_it_always_had() -> None:
    labels = {"collective": "all_reduce", "algorithm": "ring", "size": "36"}
    figures: Figures = {"collective_s": CallTime(elapsed_s=1e-5), "rounds": 6}
    assert samples_of(figures, labels) == [
        probes_metrics.COLLECTIVE_SECONDS.at(1e-5, **labels),
        probes_metrics.COLLECTIVE_ROUNDS.at(6, **labels),
    ]


def test_a_time_that_has_the_host_in_it_is_said_to() -> None:
    figures: Figures = {"copy_s": CallTime(elapsed_s=3e-5, with_host_s=3e-5, why_with_host="it waits")}
    labels = {"kind": "host_to_device_pageable", "size": "1024"}
    assert why_with_host(figures, labels) == ["the time of host_to_device_pageable 1024 includes the host: it waits"]

"""The program that answers tells its build, and its process by the standard names."""

from __future__ import annotations

import os
import platform
import time

from prometheus_client import generate_latest

from bench.serve.own_process import own_process
from collectors.metrics import process
from collectors.metrics.registry import SHOWN
from collectors.prometheus.exposition import Exporter


def _values() -> dict[str, float]:
    return {sample.metric: sample.value for sample, _ in own_process()()}


def test_every_metric_of_the_process_is_shown_and_valid() -> None:
    refused: list[str] = []
    body = generate_latest(Exporter(SHOWN, [own_process()], on_notice=refused.append))
    shown = {line.partition("{")[0].partition(" ")[0] for line in body.decode().splitlines() if line[0] != "#"}
    assert refused == []
    assert shown == {metric.name for metric in process.METRICS}


def test_the_process_is_this_one() -> None:
    values = _values()
    assert values[process.PROCESS_OPEN_FDS.name] >= 3
    assert 0 < values[process.PROCESS_START_TIME.name] < time.time()
    # Asked later, and counted in ticks of 10 ms.
    assert 0 < values[process.PROCESS_CPU_SECONDS.name] <= sum(os.times()[:2]) + 0.02


def test_the_build_names_its_version_and_python() -> None:
    (told,) = (sample.labels for sample, _ in own_process()() if sample.metric == process.BUILD_INFO.name)
    assert told["version"]
    assert told["python"] == platform.python_version()

"""The states in which all pages are drawn, each in a real Prometheus: from nothing at all to fifty nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectors.metrics.agent import AGENT_BEATS, RESULT_INFO
from tests.stack.pages.nights import SCRAPE_S as NIGHT_SCRAPE_S
from tests.stack.pages.nights import made_nights
from tests.stack.pages.past import PART_S, Part, made_past
from tests.support.servers import PrometheusServer, run_prometheus

_STEP_S = 60
"""What bars of states are drawn in at least: pages that end at a multiple of it show the present in all panels."""
_CPU_RUNS = (
    ("single", "--ranks=1"),
    ("ddp", "--ranks=2"),
    ("one_f_one_b", "--ranks=2"),
)
_SMALL = ("--trials=2", "--steps=6", "--layers=2", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What Prometheus knows at a moment; see `Page`."""

    prometheus: PrometheusServer
    end_s: float
    back_s: int
    scrape_s: int


@contextmanager
def nothing(folder: Path) -> Iterator[State]:
    """Serve a Prometheus that knows no node."""
    with run_prometheus() as prometheus:
        yield State(prometheus=prometheus, end_s=time.time() // _STEP_S * _STEP_S, back_s=600, scrape_s=15)


@contextmanager
def three_cpu_runs(folder: Path) -> Iterator[State]:
    """Measure three runs on this machine's CPUs, without a GPU, and let Prometheus read what the exporter shows."""
    home = {"XDG_DATA_HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    command, environment = (sys.executable, "-P", "-m", "bench"), {**os.environ, **home}
    for words in _CPU_RUNS:
        run = (*command, "run", *words, "--device=cpu", "--nightly", *_SMALL)
        subprocess.run(run, env=environment, capture_output=True, timeout=240, check=True)
    serve = (*command, "serve", "--port", "0")
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True, env=environment) as served:
        try:
            assert served.stderr is not None
            target = served.stderr.readline().split()[1].split("/")[2]
            with run_prometheus(target) as prometheus:
                begun_s = time.time()
                # Moments of a line are multiples of the step: the last may lie a second before the end.
                _wait_for(lambda: len(prometheus.query(f"{RESULT_INFO.name} offset 2s")) == len(_CPU_RUNS))
                _wait_for(lambda: prometheus.query(f"{AGENT_BEATS.name} offset 2s"))
                end_s = time.time()
                yield State(prometheus=prometheus, end_s=end_s, back_s=int(end_s - begun_s) + 2, scrape_s=1)
        finally:
            served.send_signal(signal.SIGINT)
            served.wait(60)


def _wait_for(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until, "the exporter shows no result"
        time.sleep(0.2)


@contextmanager
def thirty_nights(folder: Path) -> Iterator[State]:
    """Serve a month of made-up nights."""
    with made_nights(folder) as (prometheus, end_s):
        yield State(prometheus=prometheus, end_s=end_s, back_s=30 * 24 * 3600, scrape_s=NIGHT_SCRAPE_S)


@contextmanager
def _made(folder: Path, parts: tuple[Part, ...], *, nodes: int = 1, scrape_s: int = 15) -> Iterator[State]:
    with made_past(folder, nodes=nodes, scrape_s=scrape_s, parts=parts, standing=_ALERTS) as past:
        end_s = past.end_of(parts[-1]) // _STEP_S * _STEP_S
        back_s = len(parts) * PART_S - 2 * _STEP_S
        yield State(prometheus=past.prometheus, end_s=end_s, back_s=back_s, scrape_s=scrape_s)


def _alert(name: str, severity: str, **labels: str) -> tuple[str, str]:
    """What Prometheus tells of an alert that fires, with the labels that it has and without those of other alerts."""
    told = ",".join(f'{label}="{text}"' for label, text in {"alertname": name, "severity": severity, **labels}.items())
    return f'ALERTS{{alertstate="firing",{told}}}', f"ALERTS_FOR_STATE{{{told}}}"


_ALERTS = (
    *_alert("GpuXid", "warning", instance="node0:9464", gpu="5", xid="63"),
    *_alert("InfinibandPortDown", "critical", instance="node0:9464", device="made_3", port="1"),
    *_alert("RegressionConfirmed", "critical", suite="made_nightly", case="ddp", ranks="6", figure="step"),
    *_alert("RunStalled", "critical", instance="node0:9464", run="demonstration", strategy="ddp", ranks="6"),
)


def first_run(folder: Path) -> AbstractContextManager[State]:
    """Serve the first run of all, while no result is known."""
    return _made(folder, ("first run",))


def demo(folder: Path) -> AbstractContextManager[State]:
    """Serve the demonstration: sick GPUs, two runs, results and suites."""
    return _made(folder, ("between runs", "two runs"))


def fifty_nodes(folder: Path) -> AbstractContextManager[State]:
    """Serve fifty nodes with eight GPUs each."""
    return _made(folder, ("two runs",), nodes=50, scrape_s=60)


STATES = {
    "nothing": nothing,
    "first run": first_run,
    "three CPU runs": three_cpu_runs,
    "30 nights": thirty_nights,
    "demo": demo,
    "50 nodes": fifty_nodes,
}

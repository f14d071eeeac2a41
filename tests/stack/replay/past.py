"""A real Prometheus that has watched the replayed runs: steps, results, and GPUs by recorded NVML.

Each run has a node of its own. The product makes what its exporter shows: followed logs, NVML's collector, and
the page of /metrics. Only the clock is fake, so that minutes are written in seconds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serve.gpu_placement import Placement
from bench.serve.latest_results import NewestResults
from bench.serve.live.runs import RunLogs, Shown
from bench.store.history import History
from collectors.metrics.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.prometheus.exposition import Owned
from tests.collectors.nvml.nodes import FakeClock, a_gpu, a_node, replayed
from tests.stack.drawn.states import State
from tests.stack.pages.past import create_blocks, exposed
from tests.stack.replay.runs import SETS, TRACES, ReplayedRun, TraceSet, begun, stored
from tests.support.servers import PrometheusServer, program, started_server

TRACED_S, LIVE_S, AFTER_S, SCRAPE_S = 100, 120, 60, 10
"""When the first trial of each run is traced and when the run ends, how long Prometheus watches then, and how often."""
_AGO_S = 3 * 3600
"""Old enough that promtool puts all of it into blocks."""


def here(folder: Path = TRACES) -> list[TraceSet]:
    """Return the sets whose traces are all in the folder."""
    return [traces for traces in SETS if all(path.exists() for path in traces.paths(folder))]


@contextmanager
def replayed_past(folder: Path, traces: Path = TRACES) -> Iterator[State]:
    """Serve a Prometheus that watched a replay of each set whose traces are in a folder."""
    begun_s = time.time() // 3600 * 3600 - _AGO_S
    text, blocks = folder / "replay.txt", folder / "data"
    text.write_text("".join(_lines(folder, here(traces), traces, begun_s)))
    create_blocks(text, blocks)
    config = folder / "prometheus.yml"
    config.write_text("{}")
    words = [f"--config.file={config}", f"--storage.tsdb.path={blocks}", f"--query.lookback-delta={SCRAPE_S + 5}s"]
    with started_server(program("prometheus", "prometheus"), *words, output=folder / "output") as port:
        end_s = begun_s + LIVE_S + AFTER_S - SCRAPE_S
        yield State(
            prometheus=PrometheusServer(port=port), end_s=end_s, back_s=LIVE_S + AFTER_S - SCRAPE_S, scrape_s=SCRAPE_S
        )


@dataclass(slots=True, kw_only=True)
class _Node:
    """The node of a replayed run, as its exporter sees it."""

    run: ReplayedRun
    logs: RunLogs
    read_gpus: Callable[[], list[Sample]]
    newest: list[Sample]

    def shown(self) -> list[Owned]:
        """Read the GPUs and the logs."""
        self.newest[:] = self.read_gpus()
        return [*((sample, {}) for sample in self.newest), *self.logs.read()]


def _lines(folder: Path, sets: list[TraceSet], traces: Path, begun_s: float) -> Iterator[str]:
    """Yield all samples as OpenMetrics, those of one metric together, and of one series in the order of time."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    notices: list[str] = []
    clock = FakeClock()
    url = f"sqlite:///{folder / 'history.sqlite'}"
    results = NewestResults(on_notice=notices.append)
    with ExitStack() as opened:
        nodes = [_opened(opened, one, folder / one.name, traces, clock, begun_s, notices) for one in sets]
        for at_s in range(0, LIVE_S + AFTER_S, SCRAPE_S):
            clock.now_s = 60.0 + at_s  # The recorded GPUs train from their first minute on.
            if at_s == LIVE_S:
                ended = [(node.run.finish(), node.run.run.machine) for node in nodes]
                list(stored(ended, url))
                with History(url) as history:
                    results.read(history)
            for node in nodes:
                if at_s < TRACED_S:
                    node.run.write_until(at_s)
                elif at_s == TRACED_S:
                    node.run.trace()
                shown = [*node.shown(), *(results.samples() if node is nodes[0] else ())]
                for series, value in exposed(shown):
                    name, _, labels = series.partition("{")
                    where = f'instance="{node.run.run.machine.hostname}:9464",job="observatory"'
                    scraped = f"{name}{{{where},{labels}" if labels else f"{name}{{{where}}}"
                    values[name][scraped].append(f"{value} {begun_s + at_s:.0f}\n")
    assert notices == []
    for of_metric in values.values():
        for series, lines in of_metric.items():
            yield from (f"{series} {line}" for line in lines)
    yield "# EOF\n"


def _opened(
    opened: ExitStack,
    traces: TraceSet,
    folder: Path,
    files: Path,
    clock: FakeClock,
    begun_s: float,
    notices: list[str],
) -> _Node:
    """Open what an exporter on the node of this run has open."""
    folder.mkdir()
    run = begun(traces, folder / "runs", begun_s=begun_s, folder=files)
    read_gpus: Callable[[], list[Sample]] = list
    if traces.has_nvml:
        node = a_node(*(a_gpu(_answers(traces, rank)) for rank in range(traces.ranks)))
        collector = NvmlCollector(replayed(node, clock), clock_ns=clock.ns, deadline_s=30.0, open_s=30.0)
        read_gpus = opened.enter_context(closing(collector)).read
    newest: list[Sample] = []
    placement = Placement(lambda: newest, dict, host=run.run.machine.hostname)
    logs = RunLogs(
        folder / "runs", on_notice=notices.append, shown=Shown(has_nodes=False), places_of=placement.places_of
    )
    return _Node(run=run, logs=logs, read_gpus=read_gpus, newest=newest)


def _answers(traces: TraceSet, rank: int) -> dict[str, Any]:
    """Return what NVML says of the rank's GPU in another way than the recorded H200, under load all the time."""
    used = traces.memory_bytes * 3 // 4
    memory = {"total": traces.memory_bytes, "reserved": 1 << 29, "free": traces.memory_bytes - used, "used": used}
    return {
        "nvmlDeviceGetName": traces.gpu,
        "nvmlDeviceGetUUID": f"GPU-{traces.name}-{rank}",
        "nvmlDeviceGetMemoryInfo": memory,
    }

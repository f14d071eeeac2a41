"""The server of /metrics, which shows the live runs of a folder, the newest results of a history, and this node."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from bench.engines.cluster import Capacity
from bench.engines.wire.frames import program_version
from bench.errors import InfrastructureFailed
from bench.serve.gpu_placement import Placement, with_ranks
from bench.serve.history_source import of_history
from bench.serve.live.looks import LiveRuns
from bench.serve.live.runs import RunLogs, Shown
from bench.serve.own_process import own_process
from collectors.dcgm import JobMapping, JobMappingWriter
from collectors.metrics.agent import IMPLAUSIBLE
from collectors.metrics.registry import SHOWN, as_shown
from collectors.node.poller import HOLD_S
from collectors.node.registry import NodeCollector, PollingConfig, open_collectors
from collectors.node.watch import NodeWatch
from collectors.prometheus.exposition import Exporter, Owned, Source
from collectors.prometheus.http_server import Server, ServerConfig, landing_page, pages
from collectors.sockets import CannotListen, PortTaken

HOST = "127.0.0.1"
PORT = 9464
FORGOTTEN_S = 3600.0
"""How long a notice must be absent before it is passed on again."""
Results = Literal["all", "only", "none"]
"""What is shown: this node and the history (all), the history only, or no history, if another exporter shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """How this node is watched: how often and by which collectors.

    mapping: where to write for dcgm-exporter which run is on which GPU. of_all_users: also show runs of other users.
    is_own_ranks: show only ranks on this node; False shows all ranks with logs in the folder.
    """

    polling: PollingConfig
    opener: Callable[[PollingConfig], Sequence[NodeCollector]] = open_collectors
    mapping: JobMapping | None = None
    of_all_users: bool = False
    is_own_ranks: bool = False


@contextmanager
def open_server(
    runs_folder: Path,
    store_url: str | None,
    *,
    host: str,
    port: int,
    on_notice: Callable[[str], None],
    config: Callable[[], ServerConfig] = ServerConfig,
    node: NodePlan | None = None,
    results: Results = "all",
) -> Iterator[Server]:
    """Serve while the context is open.

    node: how to watch this node, which is then shown instead of the nodes in the runs' logs; None shows those in the
    logs. results: see `Results`; "only" leaves out the node.
    on_notice: called first with the server's address, then once for each thing that cannot be shown, and again if the
    notice returns after an hour; from any thread.

    Raises:
        InfrastructureFailed: the address cannot be served.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(
                _open(runs_folder, store_url, host, port, once(on_notice), config, node, results)
            )
        except CannotListen as error:
            raise refusal(error) from None
        yield server


@contextmanager
def serving(
    runs_folder: Path,
    store_url: str | None,
    *,
    host: str = HOST,
    port: int = PORT,
    on_notice: Callable[[str], None],
    cluster: Capacity | None = None,
) -> Iterator[Server | None]:
    """Serve as `open_server` does, for a run; if the address cannot be served, give a notice and yield None.

    cluster: the capacity by which the run was planned, whose implausible answers are also shown.
    """
    doubts: list[Owned] = []
    if cluster is not None:
        counts = cluster.implausible.items()
        doubts += [(IMPLAUSIBLE.at(count, source=cluster.source, question=name), {}) for name, count in counts]
    with ExitStack() as stack:
        server = None
        try:
            server = stack.enter_context(
                _open(runs_folder, store_url, host, port, once(on_notice), ServerConfig, None, "all", lambda: doubts)
            )
        except CannotListen as error:
            advice = "choose another --port, because that port may show something else"
            if isinstance(error, PortTaken) and error.is_ours:
                advice = "an `observatory serve` there also shows it"
            on_notice(f"this run serves no /metrics of its own: {error}; {advice}")
        yield server


@contextmanager
def answering(
    sources: Sequence[Source],
    *,
    host: str,
    port: int,
    config: Callable[[], ServerConfig],
    on_notice: Callable[[str], None],
) -> Iterator[Server]:
    """Serve the sources' samples while the context is open.

    Raises:
        CannotListen: the address cannot be served.
    """
    exporter = page_of((own_process(), *sources), on_notice=on_notice)
    app = pages(exporter, landing_page(program_version()))
    server = Server(app, host, port, config=config, on_notice=on_notice)
    try:
        on_notice(f"serving {server.url}")
        yield server
    finally:
        server.close()


def page_of(sources: Sequence[Source], *, on_notice: Callable[[str], None]) -> Exporter:
    """Return the exporter of these sources, under the names that /metrics shows."""
    return Exporter(SHOWN, [named(sources)], on_notice=on_notice)


def named(sources: Sequence[Source]) -> Source:
    """Return a source of all these sources' samples under the names that /metrics shows."""

    def shown() -> Iterator[Owned]:
        for sample, owner in chain.from_iterable(source() for source in sources):
            yield as_shown(sample), owner

    return shown


def refusal(error: CannotListen) -> InfrastructureFailed:
    """Return the error for a user who chose that address."""
    if isinstance(error, PortTaken) and error.is_ours:
        return InfrastructureFailed(
            f"{error}, perhaps by another `observatory serve`; use that, or choose another port with --port"
        )
    if isinstance(error, PortTaken):
        return InfrastructureFailed(f"{error}; choose another port with --port")
    return InfrastructureFailed(f"{error}; choose another --host or --port")


def once(
    on_notice: Callable[[str], None],
    *,
    forgotten_s: float = FORGOTTEN_S,
    clock_s: Callable[[], float] = time.monotonic,
) -> Callable[[str], None]:
    """Return a listener that passes on a text only if it has not come for `forgotten_s`; may be called from any thread.

    forgotten_s: see FORGOTTEN_S. clock_s: monotonic.
    """
    heard_s: dict[str, float] = {}  # When each text came last, the oldest first.
    lock = threading.Lock()

    def tell(text: str) -> None:
        with lock:
            now_s = clock_s()
            while heard_s and now_s - heard_s[oldest := next(iter(heard_s))] >= forgotten_s:
                del heard_s[oldest]
            is_news = heard_s.pop(text, None) is None
            heard_s[text] = now_s
        if is_news:
            on_notice(text)

    return tell


@contextmanager
def _open(
    runs_folder: Path,
    store_url: str | None,
    host: str,
    port: int,
    on_notice: Callable[[str], None],
    config: Callable[[], ServerConfig],
    node: NodePlan | None,
    results: Results,
    further: Source = tuple,
) -> Iterator[Server]:
    history = of_history(store_url, on_notice=on_notice) if results != "none" else None
    with ExitStack() as stack:
        watch: NodeWatch | None = None
        shown: list[Source] = []
        if results == "only":
            pass
        elif node is None:
            # Without a beat, each scrape reads the runs, and their nodes from the logs.
            logs = RunLogs(runs_folder, on_notice=on_notice)
            runs = stack.enter_context(closing(LiveRuns(logs.read, on_notice=on_notice)))
            shown = [runs.fresh]
        else:
            watch, runs, of_node = _watch_with_runs(runs_folder, node, on_notice, stack)
            shown = [of_node, runs.samples]
        shown += [further] if history is None else [further, history.samples]
        server = stack.enter_context(answering(shown, host=host, port=port, config=config, on_notice=on_notice))
        if history is not None:
            stack.enter_context(history)
        if watch is not None:
            stack.enter_context(watch)
        yield server


def _watch_with_runs(
    runs_folder: Path, node: NodePlan, on_notice: Callable[[str], None], stack: ExitStack
) -> tuple[NodeWatch, LiveRuns, Source]:
    """Return this node's watch, not yet entered; the runs, which are read after each of its beats; and the node's
    source.

    The source gives the watch's samples, with run and rank for each process on a GPU that is a rank.
    """
    jobs = None
    if node.mapping is not None:
        jobs = stack.enter_context(closing(JobMappingWriter(node.mapping, on_notice=on_notice)))
    watch = NodeWatch(lambda: node.opener(node.polling), beat_s=node.polling.beat_s, on_notice=on_notice)
    host = socket.gethostname()
    placement = Placement(watch.node_samples, watch.processes, host=host)
    logs = RunLogs(
        runs_folder,
        on_notice=on_notice,
        shown=Shown(has_nodes=False, of_host=host if node.is_own_ranks else None),
        of_all_users=node.of_all_users,
        places_of=placement.places_of,
    )
    runs = LiveRuns(
        logs.read,
        on_notice=on_notice,
        on_look=None if jobs is None else jobs.tell,
        hold_s=node.polling.held_s(HOLD_S),
    )
    watch.on_beat = runs.ask

    def of_node() -> Iterator[Owned]:
        for sample in with_ranks((sample for sample, _ in watch.samples()), logs.ranks, host=host):
            yield sample, {}

    return watch, stack.enter_context(closing(runs)), of_node

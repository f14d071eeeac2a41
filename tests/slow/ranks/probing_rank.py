"""One rank of a network in a box that runs the probe `collectives`, on a node that our exporter watches.

Started as `python -m tests.slow.ranks.probing_rank ORDER`, an `Order` as JSON.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch.distributed as dist
from prometheus_client.parser import text_string_to_metric_families

from collectors.host.collector import HostCollector
from collectors.metrics import host
from collectors.node.poller import Poller
from collectors.node.watch import Sampler
from collectors.prometheus.exposition import Exporter, Owned
from collectors.prometheus.http_server import Server, pages
from collectors.rank.stopwatch import CallTime, HostStopwatch
from collectors.sample_log import Follower, NodeState, open_node_log
from tests.slow.ranks.boxed_ranks import Order, serve_rank
from tests.support.netbox import INTERFACE
from tests.workloads.probes.small_probes import SmallProbe, small_probe
from workloads.core.mesh import make_mesh
from workloads.cost_models.terms import Collective
from workloads.probes.collectives import probe
from workloads.probes.spec import CollectivesSpec
from workloads.protocols import Elapsed, Quantity
from workloads.spec import OptionValue

SWEEPS = 7
WATCHES = 3
SIZES_BYTES = (2**20, 2**21, 2**22)
LARGEST_BYTES = SIZES_BYTES[-1]
BEAT_S = 0.1
SETTLING_S = 0.5  # Some beats: acknowledgements are on their way, and the next poll is to come.

SWEPT: dict[str, OptionValue] = {
    "collectives": "all_reduce,send",
    "min_bytes": SIZES_BYTES[0],
    "max_bytes": LARGEST_BYTES,
    "factor": 2,
}
WATCHED: dict[str, OptionValue] = {**SWEPT, "collectives": "all_reduce", "min_bytes": LARGEST_BYTES}


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of the probe."""

    collective: Collective
    size_bytes: int
    elapsed_s: float


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's exporter counted while the probe made so many calls, which the probe timed."""

    sent_bytes: float
    calls: int
    elapsed_s: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer, time after time."""

    sweeps: list[list[Timed]]
    watched: list[Watched]


@dataclass(slots=True)
class Timings:
    """A `Record` that keeps the probe's times."""

    taken: list[Timed] = field(default_factory=list)

    def __call__(self, figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None:
        elapsed = figures["collective_s"]
        assert not isinstance(elapsed, (int, float))
        collective = msgspec.convert(labels["collective"], Collective)
        self.taken.append(Timed(collective=collective, size_bytes=int(labels["size"]), elapsed_s=elapsed.elapsed_s))


class WatchedStopwatch(HostStopwatch):
    """The product's, which asks the node's exporter before and after."""

    def __init__(self, ready: Callable[[], object], sent_bytes: Callable[[], float]) -> None:
        super().__init__(ready)
        self.sent_bytes: float | None = None
        self._read = sent_bytes

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> CallTime:
        """As it is, without warm-up: that would be counted, too."""
        assert warm_up == 0
        before = self._read()
        elapsed = super().back_to_back(call, warm_up=0, calls=calls)
        self.sent_bytes = self._read() - before
        return elapsed


class NewestPoll:
    """The exporter's source: what the node's sampler wrote last."""

    def __init__(self, log: Path) -> None:
        self._follower = Follower(log)
        self._node = NodeState()

    def __call__(self) -> list[Owned]:
        for record in self._follower.newest():
            self._node.take(record)
        return [(sample, {}) for sample in self._node.samples]


@contextmanager
def watching(log: Path, rank: int) -> Iterator[Callable[[], float]]:
    """Have the node polled and served; gives what asks the exporter for the bytes that have left the node."""
    with (
        closing(Poller([HostCollector()])) as poller,
        Sampler(poller, open_node_log(log, run="box", node=rank), trial=0, beat_s=BEAT_S),
    ):
        server = Server(
            pages(Exporter(host.METRICS, [NewestPoll(log)], on_notice=print)), "127.0.0.1", 0, on_notice=print
        )
        try:
            yield lambda: settled_bytes(server.port)
        finally:
            server.close()


def settled_bytes(port: int) -> float:
    """When all ranks are there and nothing is sent any more."""
    dist.barrier()
    before, now = -1.0, sent_bytes(port)
    while now != before:
        time.sleep(SETTLING_S)
        before, now = now, sent_bytes(port)
    dist.barrier()
    return now


def sent_bytes(port: int) -> float:
    """What a scrape says; 0 before the first poll."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    labels = {"interface": INTERFACE, "direction": "sent"}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(
        sample.value for sample in samples if (sample.name, sample.labels) == (host.HOST_NETWORK_BYTES.name, labels)
    )


def sweep(setup: SmallProbe) -> list[Timed]:
    """The probe's own times."""
    record = Timings()
    probe(setup, make_mesh(CollectivesSpec().mesh(setup), "cpu"), record, HostStopwatch(dist.barrier))
    return record.taken


def watch(setup: SmallProbe, sent_bytes: Callable[[], float]) -> Watched:
    """The probe's time of one size, and what the exporter counted meanwhile."""
    record, stopwatch = Timings(), WatchedStopwatch(dist.barrier, sent_bytes)
    probe(setup, make_mesh(CollectivesSpec().mesh(setup), "cpu"), record, stopwatch)
    (timed,) = record.taken
    assert stopwatch.sent_bytes is not None
    return Watched(sent_bytes=stopwatch.sent_bytes, calls=setup.steps, elapsed_s=timed.elapsed_s)


def measure(order: Order) -> Answer:
    """All that the test asks for; the process group exists."""
    swept = small_probe(CollectivesSpec(), SWEPT, ranks=order.ranks)
    watched = replace(small_probe(CollectivesSpec(), WATCHED, ranks=order.ranks), warm_up=0)
    sweeps = [sweep(swept) for _ in range(SWEEPS)]
    with watching(Path(order.answer).with_suffix(".jsonl"), order.rank) as sent_bytes:
        return Answer(sweeps=sweeps, watched=[watch(watched, sent_bytes) for _ in range(WATCHES)])


def main() -> None:
    """Measure for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    serve_rank(order, lambda: measure(order))


if __name__ == "__main__":
    main()

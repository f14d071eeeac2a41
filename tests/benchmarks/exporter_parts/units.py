"""The series of each unit (a GPU, a rank, a disk), counted in what the demonstration's sources show.

So a new metric is in the count without a change; docs/monitoring/scale.md computes a fleet's needs from such counts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.errors import InfrastructureFailed
from bench.serve.demo import made_ports, made_ranks, made_results, made_suites, open_recorded_collectors
from bench.serve.own_process import own_process
from bench.serve.server import page_of
from collectors.metrics.agent import AGENT_BEATS
from collectors.node.registry import PollingConfig
from collectors.node.watch import NodeWatch
from collectors.prometheus.exposition import Source

OF_FLEET = ("result", "strategy", "suite", "figure")
"""Units that one exporter shows for the whole fleet."""
_LABELS = (
    ("figure", ("suite", "case", "figure")),
    ("rank", ("slot", "rank")),
    ("run", ("slot",)),
    ("result", ("series",)),  # Its info also names suite and GPUs.
    ("suite", ("suite",)),
    ("gpu", ("gpu",)),
    ("strategy", ("strategy",)),
    ("port", ("device", "port")),
    ("disk", ("device",)),
    ("interface", ("interface",)),
    ("filesystem", ("folder",)),
    ("numa", ("numa",)),
    ("node", ()),
)
"""The labels that name a unit; a series belongs to the first of which it has all."""
BEAT_S = 1.0
"""Time between two polls of the node on which series are counted: as long as usual, so that deadlines are."""
_BEATS = 3
_COUNTED_S = 30.0
"""How long a node may take until all of it has answered twice, as rates need."""


def unit_of(labels: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return which unit a series belongs to, and which of them, by its labels."""
    return next(
        (unit, tuple(labels[name] for name in names))
        for unit, names in _LABELS
        if all(name in labels for name in names)
    )


def series_of_units(text: str) -> dict[str, list[int]]:
    """Return how many series each unit has in a body of /metrics, by its kind."""
    counted: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            unit, which = unit_of(sample.labels)
            counted[unit][which] += 1
    return {unit: list(counts.values()) for unit, counts in counted.items()}


def of_one(counted: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return how many series one unit of each kind has: the median of those that were counted."""
    return {unit: float(median(counts)) for unit, counts in counted.items()}


def body(sources: Iterable[Source]) -> str:
    """Return the text that the sources show now.

    Raises:
        ValueError: a sample fits no metric.
    """

    def refuse(notice: str) -> None:
        raise ValueError(notice)

    return generate_latest(page_of(list(sources), on_notice=refuse)).decode()


def fleet_sources(at_s: float = 0.0) -> tuple[Source, ...]:
    """Return what the one exporter of a made-up fleet's results shows."""
    return (lambda: made_results(at_s), lambda: made_suites(at_s, 0.0))


@contextmanager
def made_up_node(at_s: Callable[[], float] = lambda: 0.0) -> Iterator[Callable[[], str]]:
    """Yield what returns the body of a made-up node as it is now, once all of it has answered.

    at_s: seconds since the made-up run's begin.

    Raises:
        InfrastructureFailed: the machine is too busy for that.
    """
    polling = PollingConfig(beat_s=BEAT_S)
    with NodeWatch(lambda: open_recorded_collectors(polling), beat_s=BEAT_S, on_notice=lambda _: None) as watch:
        made: tuple[Source, ...] = (lambda: made_ranks(at_s()), lambda: made_ports(at_s()))
        sources = (own_process(), watch.samples, *made)
        until_s = time.monotonic() + _COUNTED_S
        while not _is_whole(watch):
            if time.monotonic() >= until_s:
                raise InfrastructureFailed(
                    f"this machine is too busy to count series: after {_COUNTED_S:g} s a part of the made-up node is"
                    " still late; try again later"
                )
            time.sleep(BEAT_S / 10)
        yield lambda: body(sources)


def _is_whole(watch: NodeWatch) -> bool:
    """Return whether the node was polled often enough for rates, and nothing of it was late."""
    samples = [sample for sample, _ in watch.samples()]
    beats = sum(sample.value for sample in samples if sample.metric == AGENT_BEATS.name)
    return beats >= _BEATS and not any(sample.labels.get("state") == "late" for sample in samples)


def series_by_unit() -> dict[str, float]:
    """Return how many series one unit of each kind has now; a unit that this machine has none of is absent.

    Raises:
        InfrastructureFailed: the machine is too busy to count them.
    """
    with made_up_node() as shown:
        of_node = series_of_units(shown())
    of_fleet = series_of_units(body(fleet_sources()))
    return of_one({**of_node, **{unit: counts for unit, counts in of_fleet.items() if unit in OF_FLEET}})

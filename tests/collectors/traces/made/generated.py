"""Traces of several ranks that were made up, with all that is true of them.

Every rank runs the same steps: it loads data, copies it to the device, gathers the layers of its forward pass with its
neighbour, and in its backward pass reduces each layer over all ranks while the next is computed on two streams. What
happened is known on one true clock; each rank's Timeline shows it on a clock of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from collectors.traces.timeline import About, Call, SpanKind, Timeline
from tests.collectors.traces.made.simulated import MAIN, MICROSECOND_NS, SimulatedRanks, TrueCollective
from tests.support.timelines import Span, timeline_of

COMPUTE, COMPUTE_TOO, COPY, WORLD, PAIR = 7, 13, 17, 20, 24
"""Streams of the device."""

Cause = Literal["compute", "an earlier collective", "copy", "data loading", "host"]

Told = Literal["sequence", "group", "name"]
"""What a trace tells of its collectives; each less than the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was generated. timelines: on each rank's own clock, by rank.

    ahead_ns: by rank, what its clock shows beyond the true one.
    collectives: of two ranks or more, in the order in which they were called. spans: by rank, on the true clock.
    """

    timelines: tuple[Timeline, ...]
    ahead_ns: Mapping[int, int]
    collectives: tuple[TrueCollective, ...]
    spans: Mapping[int, tuple[Span, ...]]

    def offset_ns(self, rank: int) -> int:
        """What the rank's clock must show more to agree with rank 0's."""
        return self.ahead_ns[0] - self.ahead_ns[rank]

    def on_one_clock(self) -> tuple[Timeline, ...]:
        """The Timelines as the true clock would have shown them."""
        return tuple(timeline.moved(-self.ahead_ns[timeline.rank]) for timeline in self.timelines)

    def together_ns(self, rank: int, *kinds: SpanKind) -> int:
        """How long all of these kinds ran at once on the rank's device."""
        return sum(lasted_ns for running, lasted_ns in self._between_edges(rank) if running.issuperset(kinds))

    def idle_ns(self, rank: int) -> int:
        """How long nothing ran on the rank's device, from its first work to its last."""
        return sum(lasted_ns for running, lasted_ns in self._between_edges(rank) if not running)

    def work_ns(self, rank: int, kind: SpanKind) -> int:
        """How long the spans of the kind ran, each for itself."""
        return sum(span.end_ns - span.start_ns for span in self.spans[rank] if span.kind == kind)

    def _between_edges(self, rank: int) -> list[tuple[set[SpanKind], int]]:
        """The kinds that ran on the device between one moment at which something began or ended and the next."""
        work = [span for span in self.spans[rank] if span.kind in ("compute", "communication", "copy")]
        edges_ns = sorted({moment for span in work for moment in (span.start_ns, span.end_ns)})
        return [
            ({span.kind for span in work if span.start_ns <= start and end <= span.end_ns}, end - start)
            for start, end in pairwise(edges_ns)
        ]


def generate(
    seed: int,
    *,
    ranks: int = 8,
    steps: int = 5,
    layers: int = 4,
    spread_ns: int = 5_000,
    widest_ahead_ns: int = 1_000_000_000,
    jitter_ns: int = 100_000,
    straggler: int | None = None,
    cause: Cause = "compute",
    delay_ns: int = 2_000_000,
    told: Told = "sequence",
    first_step: Mapping[int, int] | None = None,
) -> Truth:
    """Traces of an even number of ranks, and their truth.

    spread_ns: the ends of a collective lie up to so far apart, evenly spread. widest_ahead_ns: clocks are up to so far
    ahead or behind. jitter_ns: computation takes up to so much longer, on any rank.
    straggler: in each step this rank is late by delay_ns on top, for the cause.
    told: where only names are told, there are no collectives of neighbours.
    first_step: by rank, the step with which its trace begins; the first where it is left out.
    """
    chance = random.Random(seed)
    world = SimulatedRanks(chance, ranks, spread_ns)
    delays_ns = {} if straggler is None else {straggler: delay_ns}
    begins_ns: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for number in range(steps):
        for rank, state in world.ranks.items():
            begins_ns[rank].append(state.host_ns)
        step = _Step(chance, world, layers, jitter_ns, cause, delays_ns)
        step.load()
        step.forward(has_pairs=told != "name")
        step.backward()
        step.finish(f"ProfilerStep#{number}", {rank: moments[-1] for rank, moments in begins_ns.items()})
    ahead_ns = {rank: chance.randint(-widest_ahead_ns, widest_ahead_ns) for rank in range(ranks)}
    traced_ns = {rank: begins_ns[rank][(first_step or {}).get(rank, 0)] for rank in range(ranks)}
    spans = {
        rank: tuple(span for span in state.spans if span.start_ns >= traced_ns[rank])
        for rank, state in world.ranks.items()
    }
    return Truth(
        timelines=tuple(
            timeline_of(
                (_as_told(span, told) for span in spans[rank]),
                rank=rank,
                is_device=True,
                about=About(world_size=ranks),
            ).moved(ahead_ns[rank])
            for rank in range(ranks)
        ),
        ahead_ns=ahead_ns,
        collectives=tuple(world.collectives),
        spans=spans,
    )


def _as_told(span: Span, told: Told) -> Span:
    """The span with no more than its trace tells."""
    if span.call is None or told == "sequence":
        return span
    return replace(span, sequence=None, call=span.call if told == "group" else Call(collective=span.call.collective))


class _Step:
    """One step of all ranks. delays_ns: by rank, how late it is for the cause."""

    def __init__(
        self,
        chance: random.Random,
        world: SimulatedRanks,
        layers: int,
        jitter_ns: int,
        cause: Cause,
        delays_ns: Mapping[int, int],
    ) -> None:
        self._chance, self._world, self._layers, self._jitter_ns = chance, world, layers, jitter_ns
        self._cause, self._delays_ns = cause, delays_ns
        self._ready_ns: dict[int, int] = {}

    def load(self) -> None:
        """A batch, into the device's memory."""
        for rank, state in self._world.ranks.items():
            lasts_ns = 40 * MICROSECOND_NS + self._delay_ns(rank, "data loading")
            state.on_host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "host", lasts_ns)
            lasts_ns = 30 * MICROSECOND_NS + self._delay_ns(rank, "copy")
            self._ready_ns[rank] = state.work(COPY, "Memcpy HtoD (Pinned -> Device)", "copy", lasts_ns)

    def forward(self, *, has_pairs: bool) -> None:
        """Layer by layer, each gathered from two ranks before; then the host looks at the loss."""
        for layer in range(self._layers):
            for first in range(0, len(self._world.ranks), 2) if has_pairs else ():
                call = Call(
                    collective="all_gather",
                    group=str(1 + first // 2),
                    ranks=(first, first + 1),
                    dtype="bfloat16",
                    given_elements=4096,
                    filled_elements=8192,
                )
                self._ready_ns |= self._world.meet(PAIR, call, 25 * MICROSECOND_NS, self._ready_ns)
            self._compute(f"forward_kernel_{layer}", 150)
        for rank, state in self._world.ranks.items():
            state.wait_for_device(self._ready_ns[rank])
            if delay_ns := self._delay_ns(rank, "host"):
                state.on_host("aten::nonzero", "host", delay_ns)

    def backward(self) -> None:
        """Layer by layer, each reduced over all ranks while the next is computed; then the update, after all."""
        for rank, state in self._world.ranks.items():
            if delay_ns := self._delay_ns(rank, "compute"):
                self._ready_ns[rank] = state.work(COMPUTE, "slow_kernel", "compute", delay_ns)
            if delay_ns := self._delay_ns(rank, "an earlier collective"):
                alone = Call(collective="all_to_all", group=f"of rank {rank}", ranks=(rank,))
                self._world.meet(WORLD, alone, delay_ns, self._ready_ns)
        reduced_ns: dict[int, int] = {}
        for layer in range(self._layers):
            for rank, state in self._world.ranks.items():
                state.work(COMPUTE_TOO, "weight_kernel", "compute", 80 * MICROSECOND_NS, self._ready_ns[rank])
            self._compute(f"backward_kernel_{layer}", 200)
            call = Call(
                collective="all_reduce",
                group="0",
                ranks=tuple(self._world.ranks),
                dtype="float32",
                given_elements=100_000 + layer,
                filled_elements=100_000 + layer,
            )
            reduced_ns = self._world.meet(WORLD, call, 120 * MICROSECOND_NS, self._ready_ns)
        self._ready_ns = reduced_ns
        self._compute("update_kernel", 60)

    def finish(self, name: str, begins_ns: Mapping[int, int]) -> None:
        """The host waits for the device, and the step is over."""
        for rank, state in self._world.ranks.items():
            state.wait_for_device(self._ready_ns[rank])
            state.spans.append(
                Span(name=name, kind="step", start_ns=begins_ns[rank], end_ns=state.host_ns, stream=MAIN)
            )

    def _compute(self, name: str, least_us: int) -> None:
        for rank, state in self._world.ranks.items():
            lasts_ns = least_us * MICROSECOND_NS + self._chance.randint(0, self._jitter_ns)
            self._ready_ns[rank] = state.work(COMPUTE, name, "compute", lasts_ns, self._ready_ns[rank])

    def _delay_ns(self, rank: int, cause: Cause) -> int:
        return self._delays_ns.get(rank, 0) if cause == self._cause else 0

"""Ranks with a host and a device each, simulated on one true clock, and the collectives between them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.traces.timeline import Call, SpanKind
from tests.support.timelines import Span

MAIN = 4000
"""The thread that launches."""

BEGINS_NS = 1_795_187_272_350_042_681
"""Unix time; its nanoseconds are beyond what a float holds."""

MICROSECOND_NS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueCollective:
    """One collective as it happened. arrival_ns, end_ns: by rank, on the true clock."""

    collective: str
    group: str
    sequence: int
    arrival_ns: Mapping[int, int]
    end_ns: Mapping[int, int]


class SimulatedRank:
    """What one rank has done so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.host_ns = BEGINS_NS
        self._free_ns: dict[int, int] = {}
        self._launched = 0

    def on_host(self, name: str, kind: SpanKind, lasts_ns: int) -> None:
        """What the host does itself, next."""
        end_ns = self.host_ns + lasts_ns
        self.spans.append(Span(name=name, kind=kind, start_ns=self.host_ns, end_ns=end_ns, stream=MAIN))
        self.host_ns = end_ns

    def wait_for_device(self, until_ns: int) -> None:
        """The host waits until then."""
        self.on_host("cudaStreamSynchronize", "launch", max(until_ns - self.host_ns, 0) + MICROSECOND_NS)

    def launch(self, stream: int, after_ns: int = 0) -> int:
        """When the device begins with what the host launches next."""
        self._launched += 1
        end_ns = self.host_ns + 2 * MICROSECOND_NS
        self.spans.append(
            Span(
                name="cudaLaunchKernel",
                kind="launch",
                start_ns=self.host_ns,
                end_ns=end_ns,
                stream=MAIN,
                correlation=self._launched,
            )
        )
        self.host_ns = end_ns + MICROSECOND_NS
        return max(end_ns + 3 * MICROSECOND_NS, self._free_ns.get(stream, 0), after_ns)

    def perform(
        self,
        stream: int,
        name: str,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        call: Call | None = None,
        sequence: int | None = None,
    ) -> None:
        """The device does what was launched last."""
        self._free_ns[stream] = end_ns
        self.spans.append(
            Span(
                name=name,
                kind=kind,
                start_ns=start_ns,
                end_ns=end_ns,
                stream=stream,
                correlation=self._launched,
                call=call,
                sequence=sequence,
            )
        )

    def work(self, stream: int, name: str, kind: SpanKind, lasts_ns: int, after_ns: int = 0) -> int:
        """Launches work that the device then does; gives its end."""
        start_ns = self.launch(stream, after_ns)
        self.perform(stream, name, kind, start_ns, start_ns + lasts_ns)
        return start_ns + lasts_ns


class SimulatedRanks:
    """All ranks; those of a group meet in collectives, and leave each up to spread_ns apart."""

    def __init__(self, chance: random.Random, count: int, spread_ns: int) -> None:
        self.ranks = {rank: SimulatedRank() for rank in range(count)}
        self.collectives: list[TrueCollective] = []
        self._chance, self._spread_ns = chance, spread_ns
        self._entered: Counter[str] = Counter()

    def meet(self, stream: int, call: Call, lasts_ns: int, after_ns: Mapping[int, int]) -> dict[int, int]:
        """One collective of the call's ranks, each of which comes at its moment or later; gives its end on each."""
        assert call.group is not None
        arrival_ns = {rank: self.ranks[rank].launch(stream, after_ns[rank]) for rank in call.ranks}
        last_ns = max(arrival_ns.values())
        end_ns = {rank: last_ns + lasts_ns + self._chance.randint(0, self._spread_ns) for rank in call.ranks}
        sequence = self._entered[call.group]
        self._entered[call.group] += 1
        for rank in call.ranks:
            name = f"ncclDevKernel_{call.collective}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            self.ranks[rank].perform(stream, name, "communication", arrival_ns[rank], end_ns[rank], call, sequence)
        if len(call.ranks) > 1:
            self.collectives.append(
                TrueCollective(
                    collective=call.collective,
                    group=call.group,
                    sequence=sequence,
                    arrival_ns=arrival_ns,
                    end_ns=end_ns,
                )
            )
        return dict(end_ns)

"""Hosts of a night: a placement is a set of them, and a sick one among many is named."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import update

from bench.gate.detector.placements import PlacementOffset
from bench.gate.gated import placement_of
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import Verdict, load_states
from bench.store.history import History
from bench.store.schema import GATE_STATES
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import STEP_S, FakeNights


def _steps(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.key.metric == RUN_STEP_SECONDS.name]


def test_the_same_hosts_in_another_order_are_one_placement(history: History) -> None:
    """A change that comes with another order of the ranks is found as early as without."""
    nights = FakeNights(history)
    for number in range(34):
        nights.hosts = ("node1", "node0") if number >= 30 else ("node0", "node1")
        nights.add(number, {"ddp": STEP_S * (1.05 if number >= 30 else 1.0)})
    verdicts = _steps(judge_nights(history, "nightly"))
    assert verdicts[30].is_suspected
    assert verdicts[-1].outcome == "confirmed"
    (state,) = {tuple(series.state.detector.placements) for series in load_states(history, "nightly").values()}
    assert state == ("node0 node1",)


def test_a_state_that_names_placements_in_the_order_of_the_ranks_is_read(history: History) -> None:
    nights = FakeNights(history, hosts=("node1", "node0"))
    for number in range(12):
        nights.add(number, {"ddp": STEP_S})
    judge_nights(history, "nightly")
    for series in load_states(history, "nightly").values():
        placements = {
            "node1 node0": PlacementOffset(0.0, 0.0, 20_011),
            "node0 node1": PlacementOffset(0.004, 0.0002, 20_010),
            "node2": PlacementOffset(0.01, 0.0001, 20_009),
        }
        detector = msgspec.structs.replace(series.state.detector, placements=placements)
        old = msgspec.structs.replace(series.state, detector=detector, schema_version=1)
        with history.transaction() as connection:
            connection.execute(
                update(GATE_STATES)
                .where(GATE_STATES.c.metric == series.key.metric)
                .values(state_json=msgspec.json.encode(old).decode())
            )
    for series in load_states(history, "nightly").values():
        assert series.state.detector.placements == {
            placement_of(("node0", "node1")): PlacementOffset(0.0, 0.0, 20_011),
            "node2": PlacementOffset(0.01, 0.0001, 20_009),
        }

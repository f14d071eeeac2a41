"""Hosts of a night: a placement is a set of them, and a sick one among many is named."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

import msgspec
import pytest
from sqlalchemy import update

from bench.gate.cause.hosts import HostNight, sick_hosts
from bench.gate.check import check_suite
from bench.gate.detector.placements import PlacementOffset
from bench.gate.gated import placement_of
from bench.gate.nightly import judge_nights
from bench.gate.report import check_document, check_lines
from bench.gate.verdicts import Verdict, load_states
from bench.store.history import History
from bench.store.schema import GATE_STATES
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights


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


# A sick host

FLEET = tuple(f"node{number}" for number in range(16))


def _made(seed: int, effect: float, *, share: int = 8, correlation: float = 0.0, pair: str = "") -> list[HostNight]:
    """Thirty nights on hosts that are drawn at random, slower by `effect` where node3 takes part.

    pair: a host that takes part wherever node3 does.
    """
    generator = random.Random(seed)
    nights, night_effect = [], 0.0
    for _ in range(30):
        fresh = generator.gauss(0, 0.01) * math.sqrt(1 - correlation**2)
        night_effect = correlation * night_effect + fresh
        hosts = set(generator.sample(FLEET, share)) - {pair}
        if pair and "node3" in hosts:
            hosts.add(pair)
        residual = night_effect + (math.log1p(effect) if "node3" in hosts else 0.0)
        nights.append(HostNight(hosts=frozenset(hosts), log_residual=residual))
    return nights


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_where_no_host_is_sick_none_is_named_in_95_of_100_histories(correlation: float) -> None:
    named = [sick_hosts(_made(seed, 0.0, correlation=correlation)) for seed in range(200)]
    assert sum(map(bool, named)) <= 10


def test_the_sick_host_of_sixteen_is_named_with_its_effect() -> None:
    named = [sick_hosts(_made(seed, 0.2)) for seed in range(40)]
    assert sum(any(each.hosts == ("node3",) for each in hosts) for hosts in named) >= 38
    assert sum(any(each.hosts != ("node3",) for each in hosts) for hosts in named) <= 2
    first = named[0][0]
    assert math.exp(first.low) < 1.2 < math.exp(first.high)
    assert first.of_nights == 30


def test_hosts_that_always_run_together_are_named_as_a_pair() -> None:
    (sick,) = sick_hosts(_made(1, 0.2, pair="node9"))
    assert sick.hosts == ("node3", "node9")


def test_hosts_whose_nights_are_in_one_piece_are_not_told_from_time() -> None:
    nights = [
        HostNight(hosts=frozenset({"node0", "node3"} if number >= 15 else {"node0"}), log_residual=0.2 * (number >= 15))
        for number in range(30)
    ]
    assert sick_hosts(nights) == ()


def test_check_names_the_host_that_is_sick_now_and_then(history: History) -> None:
    generator = random.Random(3)
    nights = FakeNights(history)
    for number in range(45):
        nights.hosts = tuple(generator.sample(FLEET, 5))
        nights.add(number, {"ddp": STEP_S * (1.2 if "node3" in nights.hosts and number >= 15 else 1.0)})
    now_ns = FIRST_NS + 44 * DAY_NS + DAY_NS // 4
    check = check_suite(history, "nightly", history.suite_runs(99), since_ns=None, now_ns=now_ns)
    (sick,) = check.sick
    assert sick.hosts.hosts == ("node3",)
    (line,) = [line for line in check_lines(check) if "node3" in line]
    assert re.fullmatch(r"ddp: nights with node3 are \+\d\d % \[\+\d\d, \+\d\d\] slower: \d+ of 30 nights", line)
    document = check_document(check)
    assert document["sick_hosts"][0]["hosts"]["nights"] == sick.hosts.nights

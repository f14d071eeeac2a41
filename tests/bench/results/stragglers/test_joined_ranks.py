"""The windows of a trial's ranks give the run's samples: compared with windows of known waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.results.stragglers import join_ranks
from collectors.metrics import results as results_metrics
from collectors.metrics.metric import Metric
from collectors.traces.timeline import About, Call, Timeline
from tests.bench.made.windows import ELEMENTS, STEP_NS, TRANSFER_NS, made_windows
from tests.support.timelines import Span, timeline_of

LATE_NS = 30_000
JOINED = join_ranks(made_windows([(2, LATE_NS), (2, LATE_NS), (1, LATE_NS), (0, 0)]))


def _values(metric: Metric) -> dict[str, float]:
    """By the value of its label, if it has one."""
    return {"".join(one.labels.values()): one.value for one in JOINED.samples if one.metric == metric.name}


def test_wait_and_transfer_are_means_over_ranks_and_calls() -> None:
    # In three of four calls three of four ranks wait.
    assert _values(results_metrics.RUN_COLLECTIVE_WAIT_SECONDS) == {"all_reduce": pytest.approx(LATE_NS * 9 / 16 / 1e9)}
    assert _values(results_metrics.RUN_COLLECTIVE_TRANSFER_SECONDS) == {"all_reduce": pytest.approx(TRANSFER_NS / 1e9)}


def test_waiting_is_a_share_of_the_time_in_collectives() -> None:
    waits_ns = LATE_NS * 9
    assert _values(results_metrics.RUN_WAITING_RATIO) == {"": pytest.approx(waits_ns / (waits_ns + 16 * TRANSFER_NS))}


def test_bus_bandwidth_is_of_the_transfer_alone() -> None:
    factor = 2 * 3 / 4
    expected = 4 * ELEMENTS * factor / (TRANSFER_NS / 1e9)
    assert _values(results_metrics.RUN_TRACED_BUS_BANDWIDTH) == {"all_reduce": pytest.approx(expected)}


def test_each_rank_has_its_share_of_late_arrivals_and_of_the_time_held_up() -> None:
    assert _values(results_metrics.RUN_LAST_RATIO) == {"0": 0, "1": 1 / 4, "2": 2 / 4, "3": 0}
    held_up = _values(results_metrics.RUN_HELD_UP_RATIO)
    assert held_up == {"0": 0, "1": LATE_NS / (5 * STEP_NS), "2": 2 * LATE_NS / (5 * STEP_NS), "3": 0}


def test_how_well_the_clocks_agree_is_told() -> None:
    assert _values(results_metrics.RUN_CLOCK_RESIDUAL_SECONDS) == {"": 0}


def _on_hosts(hosts: Sequence[str]) -> list[Timeline]:
    windows = made_windows([(2, LATE_NS), (1, LATE_NS)], ranks=len(hosts))
    return [
        replace(window, about=replace(window.about, host=host)) for window, host in zip(windows, hosts, strict=True)
    ]


def test_ranks_of_one_host_have_one_clock_and_nothing_that_agrees() -> None:
    joined = join_ranks(_on_hosts(["a", "a", "a"]))
    assert results_metrics.RUN_CLOCK_RESIDUAL_SECONDS.name not in {one.metric for one in joined.samples}
    assert joined.notes == ("ranks 0 to 2 are on host a: they share a clock",)


def test_clocks_of_several_hosts_are_told_to_agree() -> None:
    joined = join_ranks(_on_hosts(["a", "a", "b"]))
    assert [one.value for one in joined.samples if one.metric == results_metrics.RUN_CLOCK_RESIDUAL_SECONDS.name] == [0]


def test_ranks_that_never_met_have_no_figures_and_the_reason() -> None:
    alone = made_windows([(0, 0)], ranks=2)[:1]
    joined = join_ranks(alone)
    assert joined.samples == ()
    assert joined.notes[:2] == (
        "waits leave out 2 of 2 events of communication: 2 (no other rank's trace holds the same of process group 0)",
        "no collective was found on two ranks or more, apart from each rank's first",
    )


def _calling(*collectives: str) -> list[Timeline]:
    """Windows of three ranks of one host that call these, one after another."""
    spans = [
        Span(
            name=f"gloo:{collective}",
            kind="communication",
            start_ns=place * STEP_NS,
            end_ns=place * STEP_NS + TRANSFER_NS,
            stream=20,
            call=Call(collective=collective, group="0", ranks=(0, 1, 2)),
            sequence=place,
        )
        for place, collective in enumerate(collectives)
    ]
    return [timeline_of(spans, rank=rank, is_device=False, about=About(host="a")) for rank in range(3)]


def test_messages_that_are_left_out_of_waits_are_counted_with_the_reason() -> None:
    joined = join_ranks(_calling("all_reduce", "send", "all_reduce", "send", "all_reduce"))
    assert joined.notes[0] == (
        "waits leave out 6 of 15 events of communication: 6 (a message from one rank to another, and the trace does"
        " not say which)"
    )


def test_of_many_reasons_why_waits_leave_something_out_the_most_frequent_are_told() -> None:
    windows = _calling("all_reduce", "all_reduce", "send", "send")
    others = [
        timeline_of(
            [
                Span(name="any", kind="communication", start_ns=place, end_ns=place + 1, stream=20, call=call)
                for place, call in enumerate(Call(collective="send", peer=peer) for peer in (1, 2, 3, 3))
            ],
            rank=3,
            is_device=False,
        )
    ]
    (note,) = [note for note in join_ranks([*windows, *others]).notes if note.startswith("waits leave out")]
    assert note == (
        "waits leave out 10 of 16 events of communication: 6 (a message from one rank to another, and the trace does"
        " not say which), 2 (a message with rank 3; messages are not matched), 1 (a message with rank 1; messages are"
        " not matched), 1 (for other reasons; `observatory analyse collectives` lists them)"
    )


def test_what_a_wait_of_a_rooted_collective_means_is_noted() -> None:
    joined = join_ranks(_calling("all_reduce", "broadcast", "all_reduce"))
    assert any(note.startswith("ranks of a rooted collective need not wait for all others") for note in joined.notes)


def test_a_bandwidth_that_is_not_known_is_noted() -> None:
    joined = join_ranks(_calling("all_reduce", "broadcast", "all_reduce", "barrier"))
    assert joined.notes[0] == (
        "traced bus bandwidth of all_reduce, broadcast is left out; `observatory analyse collectives` shows why"
    )

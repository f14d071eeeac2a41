"""Who is late in a window, on made traces of data parallel steps, whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.analysis.traces.watched_window import KEPT_TRACES, find_late_rank, join_window
from bench.results.watched.details import Late
from bench.results.watched.windows import window_folder
from collectors.traces.analyzers.collectives import collectives
from collectors.traces.timeline import About, Call, SpanKind, Timeline
from tests.collectors.traces.made.generated import generate
from tests.support.timelines import Span, timeline_of

MEAN_NS = {"data": 3_000_000, "forward": 6_000_000, "backward": 5_000_000, "optimizer": 2_000_000}
NOISE = 0.08
LATE_NS = 6_000_000
TRANSFER_NS = 400_000
STEPS = 12
MAIN, GLOO = 1, 2
Phases = dict[str, list[tuple[int, int]]]


def _window(seed: int, ranks: int, fault: str | None) -> tuple[list[Timeline], dict[int, Phases]]:
    """Steps of which rank 1 is late in one phase; an all-reduce begins within backward, and another at its end."""
    random = np.random.default_rng(seed)
    call = Call(collective="all_reduce", group="0", ranks=tuple(range(ranks)))
    now = random.integers(0, 300_000, ranks)
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    phases: dict[int, Phases] = {rank: {name: [] for name in MEAN_NS} for rank in range(ranks)}

    def run(name: str, part: float = 1.0) -> None:
        for rank in range(ranks):
            lasting = int(part * MEAN_NS[name] * max(0.1, random.normal(1.0, NOISE)))
            lasting += LATE_NS if rank == 1 and fault == name and part in (1.0, 0.4) else 0
            began, now[rank] = int(now[rank]), now[rank] + lasting
            phases[rank][name].append((began, int(now[rank])))
            kind: SpanKind = "host" if name == "data" else "compute"
            title = "enumerate(DataLoader)#__next__" if name == "data" else f"aten::{name}"
            spans[rank].append(Span(name=title, kind=kind, start_ns=began, end_ns=int(now[rank]), stream=MAIN))

    def reduce(sequence: int) -> int:
        end = int(now.max()) + TRANSFER_NS
        for rank in range(ranks):
            spans[rank].append(
                Span(
                    name="gloo:all_reduce",
                    kind="communication",
                    start_ns=int(now[rank]),
                    end_ns=end,
                    stream=GLOO + sequence % 2,
                    call=call,
                    sequence=sequence,
                )
            )
        return end

    for step in range(STEPS):
        first = now.copy()
        run("data")
        run("forward")
        run("backward", 0.4)
        reduce(2 * step)
        run("backward", 0.6)
        end = reduce(2 * step + 1)
        for rank in range(ranks):  # Backward returns when the gradients are there.
            phases[rank]["backward"].append((int(now[rank]), end))
        now[:] = end
        run("optimizer")
        for rank in range(ranks):
            spans[rank].append(
                Span(
                    name=f"ProfilerStep#{step}",
                    kind="step",
                    start_ns=int(first[rank]),
                    end_ns=int(now[rank]),
                    stream=MAIN,
                )
            )
    about = About(world_size=ranks, host="n1")
    return [timeline_of(each, rank=rank, is_device=False, about=about) for rank, each in enumerate(spans)], phases


def _late(seed: int, ranks: int, fault: str | None) -> Late:
    timelines, phases = _window(seed, ranks, fault)
    return find_late_rank(collectives(timelines), phases)[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fault", list(MEAN_NS))
def test_the_late_rank_and_its_phase_are_named_also_inside_backward(fault: str, ranks: int) -> None:
    for seed in range(3):
        late = _late(seed, ranks, fault)
        assert (late.verdict, late.rank, late.phase) == ("late", 1, fault), (seed, late)
        assert late.late_s == pytest.approx(LATE_NS / 1e9, rel=0.25)


@pytest.mark.parametrize("ranks", [2, 4])
def test_nobody_is_named_without_a_fault(ranks: int) -> None:
    named = [seed for seed in range(200) if _late(seed, ranks, None).rank is not None]
    assert named == []


def test_a_rank_that_only_leaves_collectives_later_is_not_named() -> None:
    timelines = generate(0, ranks=2, steps=STEPS, straggler=1, cause="an earlier collective").timelines
    late = find_late_rank(collectives(timelines), {})[0]
    assert (late.verdict, late.rank) == ("unsure", None)
    assert late.reason.startswith("rank 1 arrives last because it leaves the previous collective later")


def test_a_window_is_joined_where_an_old_one_holds_a_file_of_somebody_else_s(tmp_path: Path) -> None:
    for number in range(1, KEPT_TRACES + 2):
        (tmp_path / f"trial{number}").mkdir()
        (tmp_path / f"trial{number}" / "rank0.timeline.npz").touch()
    (tmp_path / "trial1" / "notes.txt").touch()
    number = KEPT_TRACES + 2
    window = tmp_path / "windows" / str(number)
    (window / "rank7").mkdir(parents=True)
    (window / "window.json").write_text(json.dumps({"id": number, "steps": 3, "dropped": "test"}))
    join_window(tmp_path, number)
    assert window_folder(tmp_path, number).result is not None
    assert [path.name for path in (tmp_path / "trial1").iterdir()] == ["notes.txt"]
    assert (tmp_path / "trial2").exists()


def test_a_single_rank_waits_for_nobody() -> None:
    timelines, phases = _window(0, 1, None)
    assert find_late_rank(collectives(timelines), phases)[0].reason == "a single rank waits for nobody"


def test_a_late_rank_without_times_of_phases_is_named_without_a_phase() -> None:
    timelines, _ = _window(0, 2, "forward")
    late = find_late_rank(collectives(timelines), {})[0]
    assert (late.rank, late.phase) == (1, None)

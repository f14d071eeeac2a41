"""The memory of ranks as tables, of events that were made by hand and of a real step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.rank.profiler import recording
from collectors.traces.analyzers.memory import CURVE_ROWS, HeldMemory, held_memory
from collectors.traces.event_names import STEP
from collectors.traces.reading.reader import read_trace
from collectors.traces.table import Cell
from collectors.traces.timeline import Allocations, Timeline
from tests.collectors.traces.made.changes import changes
from tests.support.timelines import Span, timeline_of


def timeline(allocations: Allocations, *, rank: int = 0) -> Timeline:
    operator = Span(name="aten::mm", kind="host", start_ns=0, end_ns=50, stream=1)
    return timeline_of([operator], rank=rank, is_device=True, allocations=allocations)


def rows(found: HeldMemory, name: str) -> tuple[tuple[Cell, ...], ...]:
    (table,) = (table for table in found.tables() if table.name == name)
    assert all(len(row) == len(table.columns) for row in table.rows)
    return table.rows


def test_every_rank_and_device_has_its_peak() -> None:
    found = held_memory(
        [
            timeline(changes((20, 8, 100), (30, 9, 50), (40, 9, -50)), rank=1),
            timeline(changes((20, 8, 100), device=0, totals=[300])),
        ]
    )
    assert rows(found, "peaks") == (
        (0, "GPU 0", 200, 300, 300, 0, None, None, "aten::mm"),
        (1, "host", None, 150, 100, 10, None, None, "aten::mm"),
    )
    assert rows(found, "operators")[1] == (1, "host", None, "aten::mm", 2, 150, 1.0)
    assert rows(found, "blocks")[1] == (1, "host", "0x8", 100, 0, None, "aten::mm")


def test_what_is_not_told_is_said() -> None:
    found = held_memory([timeline(changes(), rank=2), timeline(changes((20, 8, 100)), rank=1)])
    assert found.notes[0] == (
        "rank 1: memory in use on the host before the trace is unknown: its bytes count from the first change"
    )
    assert found.notes[-1].startswith("rank 2: the trace has no memory events; ")
    assert any("categories are left out" in note for note in found.notes)
    assert [memory.rank for memory in found.devices] == [1]


def test_of_a_run_of_ours_what_its_user_can_set_is_named() -> None:
    step = Span(name=STEP, kind="step", start_ns=0, end_ns=50, stream=1)
    (note,) = held_memory([timeline_of([step], rank=3, is_device=False)]).notes
    assert "`observatory run ... --memory-snapshot`" in note
    assert "rank<k>.memory.pickle for pytorch.org/memory_viz" in note
    assert "profile_memory" not in note


def test_the_curve_keeps_the_highest_moment_of_every_part_of_the_time() -> None:
    many = [(number, number, 1 if number < 5_000 else -1) for number in range(10_000)]
    found = held_memory([timeline(changes(*[(time, 8 + time % 5_000, change) for time, _, change in many]))])
    curve = rows(found, "curve")
    assert len(curve) == CURVE_ROWS
    assert curve[0] == (0, "host", 99, 100, None, None, None, None, None, None)
    assert max(int(row[3]) for row in curve if isinstance(row[3], int)) == 5_000


def test_the_curve_tells_categories_where_phases_are_told() -> None:
    spans = [
        Span(name=name, kind="host", start_ns=start_ns, end_ns=start_ns + 10, stream=1)
        for name, start_ns in (("aten::mm", 0), ("autograd::engine::evaluate_function: MmBackward0", 20))
    ]
    allocations = changes((5, 8, 100), (25, 9, 50), (26, 8, -100))
    found = held_memory([timeline_of(spans, rank=0, is_device=True, allocations=allocations)])
    assert [row[3:6] for row in rows(found, "curve")] == [(100, 100, 0), (150, 100, 50), (50, 0, 50)]
    assert rows(found, "categories") == (
        (0, "host", "activations", 100),
        (0, "host", "left_by_backward", 50),
    )


def test_a_real_step_holds_gradients_and_the_optimizers_state_to_the_byte(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(100, 50, bias=False), nn.ReLU())
    optimizer = AdamW(model.parameters(), fused=True)
    x_bd = torch.randn(30, 100)
    profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording(profiled):
        for _ in range(2):
            with record_function(STEP):
                optimizer.zero_grad()
                model(x_bd).sum().backward()
                optimizer.step()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    (memory,) = held_memory([read_trace(tmp_path / "trace.json", rank=0)]).devices
    weight_bytes = 4 * 100 * 50
    assert memory.by_category is not None
    activations, gradients, state, temporary, other, older = memory.by_category[-1].tolist()
    assert (activations, temporary, other, older) == (0, 0, 0, 0)
    assert gradients == weight_bytes
    assert state == 2 * weight_bytes + 4
    assert {"aten::mm", "Optimizer.step#AdamW.step"} <= {taker.operator for taker in memory.takers}

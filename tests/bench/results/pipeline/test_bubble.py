"""What explains a bubble, from steps of two ranks that are known by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.results.estimate import Estimate, estimate, estimate_part, estimate_share
from bench.results.pipeline import PARTS, bubble_parts
from collectors.metrics.results import RUN_BUBBLE_PART_RATIO, RUN_BUBBLE_RATIO, RUN_STAGE_SECONDS
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import ActionKind, Pipeline

PIPELINE = Pipeline(schedule="gpipe", ranks=2, stages_per_rank=1, microbatches=2, boundary_bytes=64)
NO_LINK = Absent(reason="nobody measured one")
EQUAL_S: dict[tuple[int, ActionKind], float] = {
    (0, "forward"): 1e-3,
    (0, "backward"): 2e-3,
    (1, "forward"): 1e-3,
    (1, "backward"): 2e-3,
}
# Stage 1 takes half as long again; of 12 ms the ranks compute 6 and 9: 9/24 is bubble, 1/3 of it the schedule's.
UNEQUAL_S: dict[tuple[int, ActionKind], float] = {**EQUAL_S, (1, "forward"): 1.5e-3, (1, "backward"): 3e-3}


def _explain(
    times_s: dict[tuple[int, ActionKind], float], bubbles: Sequence[float], transfer_s: float | Absent
) -> tuple[dict[str, Estimate], list[str]]:
    """The parts by name, the expected bubble among them, and the notes; each trial is a tenth slower than the last."""
    stages = [
        estimate(
            RUN_STAGE_SECONDS, [time_s * 1.1**trial for trial in range(len(bubbles))], stage=str(stage), action=kind
        )
        for (stage, kind), time_s in times_s.items()
    ]
    measured = estimate_share(RUN_BUBBLE_RATIO, bubbles, account="measured")
    said = list(bubble_parts(PIPELINE, [measured, *stages], transfer_s))
    found = {next(iter(one.labels.values())): one for one in said if isinstance(one, Estimate)}
    return found, [one for one in said if isinstance(one, str)]


def test_equal_stages_on_an_ideal_wire_leave_the_schedules_bubble() -> None:
    found, notes = _explain(EQUAL_S, [1 / 3], transfer_s=0.0)
    assert found["schedule"].median == pytest.approx(1 / 3)
    assert found["expected"].median == pytest.approx(1 / 3)
    assert [found[part].median for part in ("imbalance", "transfer", "unexplained")] == pytest.approx([0, 0, 0])
    assert notes == []


def test_a_slower_stage_is_imbalance_and_is_named() -> None:
    found, notes = _explain(UNEQUAL_S, [0.4], transfer_s=0.0)
    assert found["schedule"].median == pytest.approx(1 / 3)
    assert found["imbalance"].median == pytest.approx(9 / 24 - 1 / 3)
    assert found["unexplained"].median == pytest.approx(0.4 - 9 / 24)
    assert notes == [
        "the bottleneck is stage 1, on pipeline rank 1: it computes 4.5 ms for a microbatch, a mean rank 3.75 ms"
    ]


def test_the_wire_has_a_part_of_its_own() -> None:
    # 1 ms there and 1 ms back make 9 ms 11.
    found, _ = _explain(EQUAL_S, [0.5], transfer_s=1e-3)
    assert found["transfer"].median == pytest.approx((1 - 12 / 22) - 1 / 3)
    assert found["expected"].median == pytest.approx(1 - 12 / 22)


def test_without_a_link_the_transfer_is_unexplained_and_the_reason_is_said() -> None:
    found, notes = _explain(EQUAL_S, [0.5], NO_LINK)
    assert "transfer" not in found
    assert found["unexplained"].median == pytest.approx(0.5 - 1 / 3)
    assert notes == ["the transfer's part of the bubble is absent, and is in unexplained: nobody measured one"]


@pytest.mark.parametrize("transfer_s", [1e-3, NO_LINK])
def test_the_parts_add_up_to_the_measured_bubble(transfer_s: float | Absent) -> None:
    found, _ = _explain(UNEQUAL_S, [0.41, 0.47, 0.45], transfer_s)
    assert sum(found[part].median for part in PARTS if part in found) == pytest.approx(0.45, abs=1e-11)
    assert {found[part].metric for part in PARTS if part in found} == {RUN_BUBBLE_PART_RATIO.name}


def test_trials_give_what_varies_an_interval_and_what_does_not_none() -> None:
    found, _ = _explain(EQUAL_S, [0.36, 0.40, 0.38], transfer_s=0.0)
    assert found["unexplained"].low is not None
    assert found["schedule"].why_no_interval is not None


def test_less_than_expected_is_below_0_and_is_kept() -> None:
    found, _ = _explain(EQUAL_S, [0.3], transfer_s=0.0)
    assert found["unexplained"].median == pytest.approx(0.3 - 1 / 3)


def test_a_stage_without_a_time_leaves_the_expected_bubble_absent_by_name() -> None:
    lacking = {place: time_s for place, time_s in EQUAL_S.items() if place != (1, "backward")}
    found, notes = _explain(lacking, [0.4], transfer_s=0.0)
    assert found == {}
    assert notes == ["the expected bubble is absent: no backward of stage 1 took any time in the timed steps"]


def test_a_run_without_a_measured_bubble_has_no_parts() -> None:
    assert list(bubble_parts(PIPELINE, [], 0.0)) == []


def test_what_delays_explain_is_not_unexplained_and_messages_are_told_beyond_their_transfer() -> None:
    stages = [
        estimate(RUN_STAGE_SECONDS, [time_s, time_s], stage=str(stage), action=kind)
        for (stage, kind), time_s in EQUAL_S.items()
    ]
    measured = estimate_share(RUN_BUBBLE_RATIO, [0.5, 0.6], account="measured")
    delays = {"uneven": [0.01, 0.02], "message": [0.1, 0.1], "waiting_for_a_core": [0.03, 0.04]}
    given = [
        estimate_part(RUN_BUBBLE_PART_RATIO, values, middle=sum(values) / 2, part=part)
        for part, values in delays.items()
    ]
    found = {
        one.labels["part"]: one
        for one in bubble_parts(PIPELINE, [measured, *stages, *given], 0.5e-3)
        if isinstance(one, Estimate) and "part" in one.labels
    }
    transfer = found["transfer"].median
    assert set(found) == {"schedule", "imbalance", "transfer", "message", "unexplained"}
    assert found["message"].trials == pytest.approx([0.1 - transfer] * 2)
    assert found["unexplained"].trials == pytest.approx([0.5 - 1 / 3 - 0.14, 0.6 - 1 / 3 - 0.16])
    assert sum(one.median for one in found.values()) + 0.015 + 0.035 == pytest.approx(0.55)

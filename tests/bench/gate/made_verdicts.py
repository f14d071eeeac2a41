"""Verdicts, a check of a suite and a cause, made by hand for the tests of what the gate shows."""

from __future__ import annotations

from typing import Any

from bench.gate.cause.changes import Change
from bench.gate.cause.standout import Standout
from bench.gate.cause.where import PartChange, StepChange, TraceChange, TracedChange
from bench.gate.causes import Cause
from bench.gate.check import SuiteCheck
from bench.gate.missing import Missing
from bench.gate.verdicts import SeriesKey, Verdict
from bench.store.suite_record import SuiteRecord
from collectors.metrics.gate import Outcome
from collectors.metrics.results import RUN_STEP_SECONDS

DAY_NS = 86_400 * 10**9
NIGHT_NS = 20_030 * DAY_NS
"""2024-11-03 in UTC."""
SINCE: dict[str, Any] = {
    "since_ns": NIGHT_NS - DAY_NS,
    "since_low_ns": NIGHT_NS - 2 * DAY_NS,
    "since_high_ns": NIGHT_NS,
}


def made_verdict(
    case: str, outcome: Outcome, *, metric: str = RUN_STEP_SECONDS.name, labels: str = "{}", **changes: Any
) -> Verdict:
    """Return a verdict on the newest night's step, or on another figure."""
    fields: dict[str, Any] = {
        "run": f"run-{case}",
        "suite_run": "night7",
        "started_ns": NIGHT_NS,
        "number": 20_030,
        "value": 0.11,
        "reason": "",
        "trial_values": (0.1, 0.11, 0.12),
        "expected": 0.1,
        "strategy": "ddp",
        "shape": "2 x 16",
        "ranks": 2,
        "hosts": ("node0", "node1"),
        "commit": "c" * 40,
    }
    key = SeriesKey(suite="nightly", case=case, series="s1", metric=metric, labels=labels)
    return Verdict(key=key, outcome=outcome, **(fields | changes))


WORSE = made_verdict(
    "ddp",
    "confirmed",
    **SINCE,
    change_ratio=1.05,
    low=1.03,
    high=1.07,
    good_run="run-good",
    bad_run="run-bad",
    cause="likely driver 1 -> 2",
)
SAME = made_verdict("fsdp", "same", is_equivalent=True)
UNSEEN = made_verdict("zero1", "same", visible_ratio=0.034)
NEW = made_verdict("tp", "insufficient_data", reason="3 nights of 10", trial_values=(0.1,))


def made_check(*verdicts: Verdict, **changes: Any) -> SuiteCheck:
    """Return the check of a suite whose newest night has these verdicts."""
    night = SuiteRecord(
        id="night7", suite="nightly", started_ns=NIGHT_NS, progress_ns=NIGHT_NS, total=1, folder="/runs/night7"
    )
    fields: dict[str, Any] = {"suite": "nightly", "night": night, "earlier": (), "missing": (), "groups": ()}
    return SuiteCheck(verdicts=verdicts, **(fields | changes))


GONE = Missing(kind="vanished", suite="nightly", what="hsdp", reason="earlier nights have it, night7 does not")
LEFT_OUT = Missing(kind="left_out", suite="nightly", what="hsdp", reason="a budget or --only left it out")


def _part(name: Any, change_ms: float, *, is_sure: bool = True) -> PartChange:
    low, high = (0.9, 1.1) if is_sure else (-1.0, 2.0)
    return PartChange(
        name=name,
        change_s=change_ms / 1e3,
        low_s=min(low * change_ms, high * change_ms) / 1e3,
        high_s=max(low * change_ms, high * change_ms) / 1e3,
    )


STEP = StepChange(
    step=_part("step", 4.0),
    parts=(_part("compute", 1.0), _part("exposed communication", 3.0), _part("idle", 0.5, is_sure=False)),
    absent={},
    notes=("one note",),
    good_trials=9,
    bad_trials=6,
)
DRIVER = Change(kind="driver", topic="driver", field="driver", before="1", now="2", changed_on=1, nights=18)
CHANGES = (
    DRIVER,
    Change(kind="driver", topic="x", field="x", before="1", now="2", changed_on=2, nights=18, carried_by="driver"),
    Change(kind="driver", topic="y", field="y", before="1", now="2", carried_by="driver"),
    Change(kind="driver", topic="z", field="z", before="1", now="2", hosts=("a", "b", "c", "d")),
)
CHANGED = [
    "driver 1 -> 2 (on 1 of 18 nights)",
    "x 1 -> 2 (on 2 of 18 nights, with the driver)",
    "y 1 -> 2, with the driver",
    "z 1 -> 2 on a, b, c, ...",
]
KERNELS = tuple(
    TracedChange(name=f"kernel{number}", part="compute", seen="new" if number else "both", change_s=(4 - number) / 1e3)
    for number in range(4)
)
CAUSE = Cause(
    case="ddp",
    figures=(WORSE,),
    good_run="run-good",
    bad_run="run-bad",
    line="likely driver 1 -> 2",
    is_likely=True,
    changes=CHANGES,
    time=STEP,
    traces=TraceChange(step_s=0.004, kernels=KERNELS, collectives=(), notes=("a note on traces",)),
    standout=Standout(rank="1", cause="compute", cost_ratio=0.1, cost_before_ratio=None, text="rank 1 holds others up"),
    missing=("first thing", "second thing"),
    commands=("observatory compare run-good run-bad", "observatory diagnose run-bad"),
    others=("fsdp", "zero1"),
)

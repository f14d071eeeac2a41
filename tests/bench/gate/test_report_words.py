"""What people read of the gate's verdicts, each held to an answer made by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from bench.gate.cause.hosts import SickCase, SickHosts
from bench.gate.cause.where import StepChange, TraceChange, TracedChange
from bench.gate.check import SuiteCheck
from bench.gate.detector.power import Visible
from bench.gate.gated import figure_words
from bench.gate.groups import Group
from bench.gate.regimes import PastRegime, SeriesRegimes
from bench.gate.report import (
    cause_lines,
    cause_words,
    change_words,
    check_lines,
    exit_words,
    is_named,
    print_check,
    reason_of,
    since_words,
    verdict_words,
)
from bench.gate.verdicts import Verdict
from collectors.metrics.gate import Outcome
from collectors.metrics.results import RUN_MEAN_STEP_SECONDS, RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS
from tests.bench.gate.made_verdicts import (
    CAUSE,
    CHANGED,
    DAY_NS,
    GONE,
    KERNELS,
    LEFT_OUT,
    NEW,
    NIGHT_NS,
    SAME,
    SINCE,
    STEP,
    UNSEEN,
    WORSE,
    made_check,
    made_verdict,
)

# Words of one verdict


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "-"),
        ({"change_ratio": 1.031}, "+3.1 %"),
        ({"change_ratio": 0.9, "low": 0.85}, "-10.0 %"),
        ({"change_ratio": 0.9, "high": 0.95}, "-10.0 %"),
        ({"change_ratio": 1.031, "low": 1.02, "high": 1.042}, "+3.1 % [+2.0, +4.2]"),
    ],
)
def test_a_change_is_shown_in_percent_with_its_interval(changes: dict[str, Any], words: str) -> None:
    assert change_words(made_verdict("ddp", "confirmed", **changes)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "-"),
        ({"since_ns": NIGHT_NS}, "2024-11-03"),
        ({"since_ns": NIGHT_NS, "since_low_ns": NIGHT_NS, "since_high_ns": NIGHT_NS}, "2024-11-03"),
        (SINCE, "2024-11-02 (11-01 to 11-03)"),
    ],
)
def test_the_first_night_is_shown_with_its_range_if_it_has_one(changes: dict[str, Any], words: str) -> None:
    assert since_words(made_verdict("ddp", "confirmed", **changes)) == words


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (WORSE, "confirmed worse"),
        (SAME, "same"),
        (UNSEEN, "no change shown (less than 3.4 % would not be detected in one night)"),
        (made_verdict("ddp", "same"), "no change shown"),
    ],
)
def test_same_is_said_only_where_the_night_shows_it(verdict: Verdict, words: str) -> None:
    assert verdict_words(verdict) == words


_LEGS = {"own_ratio": 0.9, "baseline_ratio": 1.02}


@pytest.mark.parametrize(
    ("outcome", "changes", "words"),
    [
        ("same", {"reason": "as before"}, "as before"),
        ("confirmed", {"reason": "new", "is_new": True, **SINCE}, "new"),
        ("confirmed", {"reason": "old", **SINCE}, "it began 2024-11-02 (11-01 to 11-03)"),
        ("confirmed", {"reason": "old"}, "old"),
        (
            "confirmed",
            {"reason": "not measured since 2024-11-01", "since_ns": NIGHT_NS},
            "it began 2024-11-03; not measured since 2024-11-01",
        ),
        (
            "confirmed",
            {"reason": "old", "since_ns": NIGHT_NS, "first_ns": NIGHT_NS - 9 * DAY_NS},
            "it began 2024-11-03; it combines several changes, the first of which began 2024-10-25",
        ),
        ("redefined", {"reason": "since", "definition": "threads 1 -> 2", "change_ratio": 1.3}, "+30.0 % since"),
        ("improvement", {"reason": "since", "definition": "threads 1 -> 2", "change_ratio": 0.7}, "-30.0 % since"),
        ("insufficient_data", {"reason": "few", "definition": "threads 1 -> 2", "change_ratio": 0.7}, "few"),
        (
            "regression",
            {"reason": "found", **_LEGS},
            "found; tokens per second of the run -10.0 %, of its baseline +2.0 %",
        ),
        ("regression", {"reason": "found", "own_ratio": 0.9}, "found"),
        ("regression", {"reason": "found", "baseline_ratio": 0.9}, "found"),
        ("same", {}, ""),
    ],
)
def test_the_remark_on_a_figure_has_what_a_reader_does_not_know_yet(
    outcome: Outcome, changes: dict[str, Any], words: str
) -> None:
    assert reason_of(made_verdict("ddp", outcome, **changes)) == words


def test_a_cause_is_told_with_the_next_command() -> None:
    assert cause_words(WORSE) == "likely driver 1 -> 2; next: `observatory compare run-good run-bad`"
    alone = made_verdict("ddp", "confirmed", cause="unknown", bad_run="run-bad")
    assert cause_words(alone) == "unknown; next: `observatory diagnose run-bad`"
    assert cause_words(SAME) is None


@pytest.mark.parametrize(
    ("metric", "labels", "words"),
    [
        (RUN_STEP_SECONDS.name, {}, "step"),
        (RUN_SCALING_EFFICIENCY.name, {"scaling": "weak", "baseline": "beside"}, "efficiency weak"),
        (RUN_SCALING_EFFICIENCY.name, {"scaling": "weak", "baseline": "stored"}, "efficiency weak stored"),
        ("observatory_of_a_later_version", {"b": "2", "a": "1"}, "observatory_of_a_later_version 2 1"),
    ],
)
def test_a_figure_has_a_few_words(metric: str, labels: dict[str, str], words: str) -> None:
    assert figure_words(metric, labels) == words


def test_a_figure_is_named_by_its_metric_or_its_words() -> None:
    assert is_named(WORSE.key, RUN_STEP_SECONDS.name)
    assert is_named(WORSE.key, "step")
    assert not is_named(WORSE.key, "mean step")


# Lines below the table


def _sick(hosts: tuple[str, ...], effect: float, figure: str = "step") -> SickCase:
    found = SickHosts(
        hosts=hosts, effect=effect, low=effect / 2, high=2 * effect, nights=9, of_nights=30, p_value=0.001
    )
    return SickCase(case="ddp", series="s1", figure=figure, hosts=found)


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (_sick(("node3",), 0.182322), "nights with node3 are +20 % [+10, +44] slower: 9 of 30 nights"),
        (
            _sick(("a", "b", "c"), 0.01, "peak memory"),
            "nights with a, b and c, which always run together, are +1.0 % [+0.5, +2.0] worse in peak memory: 9 of 30"
            " nights",
        ),
        (_sick(("a",), 0.02), "nights with a are +2 % [+1, +4] slower: 9 of 30 nights"),
    ],
)
def test_sick_hosts_are_told_with_how_much(sick: SickCase, words: str) -> None:
    assert check_lines(made_check(sick=(sick,))) == [f"ddp: {words}"]


def test_figures_with_one_reason_share_a_line_and_quiet_ones_have_none() -> None:
    mean = made_verdict("ddp", "suspicion", metric=RUN_MEAN_STEP_SECONDS.name, reason="p 0.001")
    step = made_verdict("ddp", "suspicion", reason="p 0.001")
    noisy = made_verdict("fsdp", "same", is_equivalent=True, reason="as before", noise="noise has increased")
    late = made_verdict("late", "late", reason="it began before", trial_values=(0.1,))
    assert check_lines(made_check(mean, step, noisy, NEW, late, missing=(GONE, LEFT_OUT))) == [
        "ddp: mean step, step: p 0.001",
        "late: step: it began before",
        "fsdp: step: noise has increased",
        "insufficient data for 1 figure: 3 nights of 10",
        "1 figure with one trial only (tp): a broken trial would not be noticed",
        "vanished: hsdp: earlier nights have it, night7 does not",
        "left out: hsdp: a budget or --only left it out",
    ]


def _visible(history: int, smallest: float, target: float, nights: int | None) -> Visible:
    return Visible(history=history, smallest=smallest, target=target, nights=nights)


def test_what_can_be_shown_is_told_of_shown_figures_and_of_all_others_together() -> None:
    visible = {WORSE.key: _visible(10, 0.05, 0.03, 25), SAME.key: _visible(40, 0.01, 0.03, 12)}
    check = made_check(WORSE, SAME, visible=visible)
    worse = "with 10 nights, lasting changes of 5 % or more are detectable; 3 % after about 25 nights"
    same = "with 40 nights, lasting changes of 1 % or more are detectable"
    began = "ddp: step: it began 2024-11-02 (11-01 to 11-03)"
    assert check_lines(check) == [began, f"ddp: step: {worse}", f"1 unchanged figure: {same}"]
    assert check_lines(check, has_details=True) == [began, f"ddp: step: {worse}", f"fsdp: step: {same}"]


@pytest.mark.parametrize(
    ("powers", "words"),
    [
        ([(40, 0.01, 0.03, 12)] * 2, "with 40 nights, lasting changes of 1 % or more are detectable"),
        (
            [(40, 0.01, 0.03, 12), (20, 0.02, 0.03, 12)],
            "with 20 to 40 nights, lasting changes of 1 to 2 % or more are detectable",
        ),
        (
            [(40, 0.01, 0.03, 12), (40, 0.05, 0.03, 60), (40, 0.04, 0.03, 50)],
            "with 40 nights, lasting changes of 1 to 5 % or more are detectable; 3 % after about 60 nights",
        ),
        (
            [(40, 0.01, 0.03, 12), (40, 0.05, 0.03, None)],
            "with 40 nights, lasting changes of 1 to 5 % or more are detectable; no history is long enough for 3 % in 1"
            " of them",
        ),
        (
            [(40, 0.04, 0.03, None), (40, 0.05, 0.03, None)],
            "with 40 nights, lasting changes of 4 to 5 % or more are detectable; no history is long enough for 3 %",
        ),
    ],
)
def test_what_several_figures_can_show_is_a_range(
    powers: list[tuple[int, float, float, int | None]], words: str
) -> None:
    verdicts = [made_verdict(f"case{number}", "same", is_equivalent=True) for number in range(len(powers))]
    visible = {verdict.key: _visible(*power) for verdict, power in zip(verdicts, powers, strict=True)}
    assert check_lines(made_check(*verdicts, visible=visible)) == [f"{len(powers)} unchanged figures: {words}"]


def test_what_alerts_share_is_told_with_those_that_are_well() -> None:
    by_metric = Group(shared=("metric", RUN_STEP_SECONDS.name), alerts=(WORSE, WORSE), others=1, p_value=0.001)
    by_host = Group(shared=("host", "node1"), alerts=(WORSE,) * 3, others=0, p_value=0.001)
    alone = Group(shared=None, alerts=(WORSE,), others=0, p_value=1.0)
    assert check_lines(made_check(groups=(by_metric, by_host, alone))) == [
        "2 alerts share metric step; 1 other figure with it did not get worse",
        "3 alerts share host node1",
    ]


def test_the_last_line_counts_each_outcome_worst_first() -> None:
    again = made_verdict("a", "suspicion", reruns=3)
    verdicts = (
        SAME,
        UNSEEN,
        made_verdict("b", "same", visible_ratio=0.05),
        again,
        made_verdict("c", "suspicion"),
        WORSE,
        WORSE,
    )
    assert exit_words([made_check(*verdicts, missing=(GONE, LEFT_OUT)), made_check(night=None)]) == [
        "suite nightly, night night7: 2 confirmed worse, 1 suspicion, 1 same, 1 suspicion not measured again, 2 no"
        " change shown (less than 5 % would not be detected in one night), 1 missing or failed",
        "suite nightly, no night has ended yet: nothing to judge",
    ]


# The table


def _printed(check: SuiteCheck, *, has_details: bool = False) -> list[str]:
    out = io.StringIO()
    print_check([check], has_details=has_details, console=Console(file=out, width=200, highlight=False))
    return out.getvalue().splitlines()


def test_the_table_has_the_worst_figure_first_and_quiet_ones_on_request() -> None:
    better = made_verdict("aaa", "improvement", change_ratio=0.9)
    check = made_check(SAME, better, WORSE)
    header, *rows = _printed(check)[:3]
    assert header.split() == ["case", "figure", "change", "since", "verdict"]
    assert [row.split()[0] for row in rows] == ["ddp", "aaa"]
    assert rows[0].split() == ["ddp", "step", "+5.0", "%", "[+3.0,", "+7.0]", "2024-11-02", "confirmed", "worse"]
    assert rows[1].split() == ["aaa", "step", "-10.0", "%", "-", "improvement"]
    assert [row.split()[0] for row in _printed(check, has_details=True)[1:4]] == ["ddp", "aaa", "fsdp"]


def test_earlier_nights_are_rows_of_their_own_newest_first() -> None:
    earlier = made_verdict("ddp", "regression", started_ns=NIGHT_NS - DAY_NS, change_ratio=1.04)
    header, *rows = _printed(made_check(WORSE, earlier=(earlier,)))[:3]
    assert header.split()[0] == "night"
    assert [row.split()[:2] for row in rows] == [["2024-11-03", "ddp"], ["2024-11-02", "ddp"]]


def test_levels_are_told_each_against_the_one_before() -> None:
    before, now = (
        PastRegime(
            nights=nights,
            value=value,
            low=value,
            high=value,
            since_ns=NIGHT_NS + day * DAY_NS,
            since_low_ns=NIGHT_NS + day * DAY_NS,
            since_high_ns=NIGHT_NS + (day + late) * DAY_NS,
        )
        for nights, value, day, late in ((18, 0.1, -20, 0), (2, 0.106, -2, 1))
    )
    lines = _printed(made_check(SAME, regimes=(SeriesRegimes(figure=SAME, regimes=(before, now)),)))
    assert lines[0] == (
        "levels of fsdp, step: from 2024-10-14, 18 nights; +6.0 % from 2024-11-01 (11-01 to 11-02), 2 nights"
    )


# The cause


def test_a_cause_is_explained_in_a_few_lines() -> None:
    assert list(cause_lines(CAUSE, has_details=False)) == [
        "cause of ddp (step), run-bad against run-good:",
        "  likely driver 1 -> 2",
        f"  changed: {', '.join(CHANGED[:3])} and 1 more (--details)",
        "  step +4.0 ms [3.6, 4.4]: exposed communication +3.0 ms [2.7, 3.3]; compute +1.0 ms [0.9, 1.1]",
        "  traced step +4.0 ms: kernels kernel0 +4.0 ms, kernel1 +3.0 ms (new), kernel2 +2.0 ms (new)",
        "  rank 1 holds others up",
        "  missing: first thing (1 more with --details)",
        "  also worse: fsdp, zero1 (--details shows each)",
        "  next: observatory compare run-good run-bad; observatory diagnose run-bad",
    ]


def test_details_explain_it_whole() -> None:
    assert list(cause_lines(CAUSE, has_details=True)) == [
        "cause of ddp (step), run-bad against run-good:",
        "  likely driver 1 -> 2",
        *(f"  changed: {words}" for words in CHANGED),
        "  step +4.0 ms [3.6, 4.4]: exposed communication +3.0 ms [2.7, 3.3]; compute +1.0 ms [0.9, 1.1]; idle +0.5 ms"
        " [-0.5, 1.0]",
        "  parts: of 9 trials before and 6 after",
        "  one note",
        "  traced step +4.0 ms: kernels kernel0 +4.0 ms, kernel1 +3.0 ms (new), kernel2 +2.0 ms (new), kernel3 +1.0 ms"
        " (new)",
        "  a note on traces",
        "  rank 1 holds others up",
        "  missing: first thing",
        "  missing: second thing",
        "  also worse: fsdp, zero1 (--details shows each)",
        "  next: observatory compare run-good run-bad; observatory diagnose run-bad",
    ]


def _traced(traces: TraceChange | None, *, time: StepChange | None = STEP) -> list[str]:
    cause = replace(CAUSE, changes=(), time=time, traces=traces, standout=None, missing=(), others=())
    return list(cause_lines(cause, has_details=False))[2:-1]


STEP_WORDS = "  step +4.0 ms [3.6, 4.4]: exposed communication +3.0 ms [2.7, 3.3]; compute +1.0 ms [0.9, 1.1]"


def test_traced_collectives_are_told_behind_the_kernels() -> None:
    waits = TracedChange(name="all_reduce 4096", part="exposed communication", seen="gone", change_s=-0.002)
    both = TraceChange(step_s=0.004, kernels=KERNELS[:1], collectives=(waits,), notes=())
    assert _traced(both) == [
        STEP_WORDS,
        "  traced step +4.0 ms: kernels kernel0 +4.0 ms; collectives all_reduce 4096 -2.0 ms (gone)",
    ]


@pytest.mark.parametrize("step_s", [0.0, -0.004])
def test_traces_that_do_not_show_the_change_say_so(step_s: float) -> None:
    traces = TraceChange(step_s=step_s, kernels=KERNELS, collectives=(), notes=())
    (_, words) = _traced(traces)
    assert words.endswith(": the change is not in the steps that were traced")
    assert _traced(traces, time=None)[0].startswith("  traced step")
    assert "kernel0" in _traced(traces, time=None)[0]


def test_traces_without_a_large_kernel_and_a_step_without_a_large_part_say_so() -> None:
    none = TraceChange(step_s=0.004, kernels=(), collectives=(), notes=())
    assert _traced(none, time=replace(STEP, parts=STEP.parts[2:])) == [
        "  step +4.0 ms [3.6, 4.4]: no part stands out",
        "  traced step +4.0 ms: no kernel stands out",
    ]


def test_a_cause_that_blames_nothing_lists_all_changes() -> None:
    unsure = replace(CAUSE, good_run=None, is_likely=False, time=None, traces=None, standout=None, missing=("one",))
    assert list(cause_lines(unsure, has_details=False))[:4] == [
        "cause of ddp (step):",
        "  likely driver 1 -> 2",
        f"  changed: {', '.join(CHANGED)}",
        "  missing: one",
    ]


def test_the_page_explains_the_causes_below_its_notes() -> None:
    lines = _printed(made_check(WORSE, causes=(CAUSE,)))
    place = lines.index("cause of ddp (step), run-bad against run-good:")
    assert lines[place - 1].startswith("ddp: step: it began")
    assert lines[-1] == "suite nightly, night night7: 1 confirmed worse"

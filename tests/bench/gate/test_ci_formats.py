"""What CI and programs read of the gate's verdicts: each field of each format, held to an answer made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.gate.cause.hosts import SickCase, SickHosts
from bench.gate.ci_formats import benchmark_records, comment, junit_xml
from bench.gate.detector.power import Visible
from bench.gate.groups import Group
from bench.gate.regimes import PastRegime, SeriesRegimes
from bench.gate.report import check_document
from bench.gate.verdicts import Verdict
from collectors.metrics.results import RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS
from tests.bench.gate.made_verdicts import (
    CAUSE,
    GONE,
    LEFT_OUT,
    NEW,
    NIGHT_NS,
    SAME,
    SINCE,
    UNSEEN,
    WORSE,
    made_check,
    made_verdict,
)

UNBLAMED = replace(CAUSE, is_likely=False, changes=CAUSE.changes[:2])
COMMAND = "next: `observatory compare run-good run-bad`"
LATE = made_verdict("late", "late", reason="it began before")


def _tests(*verdicts: Verdict, **changes: object) -> list[tuple[str | None, str | None, list[tuple[str, str | None]]]]:
    """Class, name, and the kind and message of the problem of each test of the only suite."""
    text = junit_xml([made_check(*verdicts, **changes)])
    assert text.startswith("<testsuites ")  # Without a declaration, whose encoding the writer of the file chooses.
    (suite,) = ElementTree.fromstring(text)
    assert {test.tag for test in suite} == {"testcase"}
    return [
        (test.get("classname"), test.get("name"), [(problem.tag, problem.get("message")) for problem in test])
        for test in suite
    ]


def test_junit_has_a_test_for_each_figure_and_each_missing_thing() -> None:
    assert _tests(WORSE, SAME, NEW, LATE, missing=(GONE, LEFT_OUT)) == [
        (
            "nightly.ddp",
            "step",
            [
                (
                    "failure",
                    "confirmed worse: +5.0 % [+3.0, +7.0]: it began 2024-11-02 (11-01 to 11-03); cause: likely driver 1"
                    f" -> 2; {COMMAND}",
                )
            ],
        ),
        ("nightly.fsdp", "step", []),
        ("nightly.tp", "step", [("skipped", "insufficient data: -: 3 nights of 10")]),
        ("nightly.late", "step", [("skipped", "left out: -: it began before")]),
        ("nightly.hsdp", "vanished", [("error", "earlier nights have it, night7 does not")]),
    ]


def test_junit_counts_its_tests() -> None:
    root = ElementTree.fromstring(
        junit_xml([made_check(WORSE, SAME, NEW, LATE, missing=(GONE, LEFT_OUT)), made_check()])
    )
    assert (root.tag, root.get("name")) == ("testsuites", "observatory check")
    assert [dict(suite.attrib) for suite in root] == [
        {"name": "nightly", "tests": "5", "failures": "1", "errors": "1", "skipped": "2"},
        {"name": "nightly", "tests": "0", "failures": "0", "errors": "0", "skipped": "0"},
    ]


def test_junit_has_no_character_that_xml_cannot_have() -> None:
    (test,) = _tests(made_verdict("a\x00b", "regression", reason="\ud800 <&"))
    assert test == ("nightly.a?b", "step", [("failure", "regression: -: ? <&")])


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        ((), f"likely driver 1 -> 2; {COMMAND}"),
        ((CAUSE,), f"likely driver 1 -> 2; {COMMAND}"),
        (
            (UNBLAMED,),
            f"likely driver 1 -> 2; {COMMAND}; changed: driver 1 -> 2 (on 1 of 18 nights), x 1 -> 2 (on 2 of 18 nights,"
            " with the driver)",
        ),
        ((replace(UNBLAMED, changes=()),), f"likely driver 1 -> 2; {COMMAND}"),
        ((replace(UNBLAMED, figures=(SAME,)),), f"likely driver 1 -> 2; {COMMAND}"),
    ],
)
def test_ci_gets_all_changes_of_a_cause_that_blames_none(causes: tuple[object, ...], words: str) -> None:
    ((_, _, [(_, message)]),) = _tests(WORSE, causes=causes)
    assert message is not None
    assert message.endswith(f"; cause: {words}")


def test_a_figure_that_is_no_worse_has_no_cause_in_ci() -> None:
    recovered = made_verdict("ddp", "late", reason="it began before", cause="an old one", bad_run="run-bad")
    assert _tests(recovered)[0][2] == [("skipped", "left out: -: it began before")]


def test_the_comment_has_a_table_of_what_changed_and_notes_below() -> None:
    mean = made_verdict(
        "fsdp", "confirmed", cause=WORSE.cause, good_run="run-good", bad_run="run-bad", change_ratio=1.1
    )
    assert comment([made_check(WORSE, mean, SAME, missing=(GONE,))]).splitlines() == [
        "## Observatory: regression",
        "",
        "| case | figure | change | since | verdict |",
        "|---|---|--:|---|---|",
        "| ddp | step | +5.0 % \\[+3.0, +7.0\\] | 2024-11-02 (11-01 to 11-03) | confirmed worse |",
        "| fsdp | step | +10.0 % | - | confirmed worse |",
        "",
        "- ddp: step: it began 2024-11-02 (11-01 to 11-03)",
        "- vanished: hsdp: earlier nights have it, night7 does not",
        "- cause of ddp, fsdp: likely driver 1 -\\> 2; next: \\`observatory compare run-good run-bad\\`",
        "",
        "suite nightly, night night7: 2 confirmed worse, 1 same, 1 missing or failed",
    ]


@pytest.mark.parametrize(
    ("verdicts", "missing", "heading"),
    [
        ((WORSE,), (GONE,), "regression"),
        ((SAME,), (GONE,), "something is missing"),
        ((SAME,), (LEFT_OUT,), "no regression"),
        ((UNSEEN,), (), "no regression"),
        ((NEW,), (), "nothing could be judged"),
        ((), (), "nothing could be judged"),
        ((NEW, SAME), (), "no regression"),
    ],
)
def test_the_comment_s_heading_says_the_worst(
    verdicts: tuple[Verdict, ...], missing: tuple[object, ...], heading: str
) -> None:
    lines = comment([made_check(*verdicts, missing=missing)]).splitlines()
    assert lines[0] == f"## Observatory: {heading}"
    assert ("| case | figure | change | since | verdict |" in lines) == (WORSE in verdicts)


def test_a_benchmark_record_has_each_field_of_pytorchs_schema() -> None:
    """Source: github.com/pytorch/pytorch/wiki/How-to-integrate-with-PyTorch-OSS-benchmark-database."""
    probe = made_verdict(
        "probe",
        "same",
        metric=RUN_SCALING_EFFICIENCY.name,
        labels='{"baseline":"beside","scaling":"weak"}',
        shape="",
        commit=None,
        expected=None,
    )
    worse, other = json.loads(benchmark_records([made_check(WORSE, probe)]))
    assert worse == {
        "timestamp": NIGHT_NS // 10**9,
        "schema_version": "v3",
        "name": "nightly",
        "head_sha": "c" * 40,
        "benchmark": {
            "name": "parallel-observatory nightly",
            "mode": "training",
            "extra_info": {"suite_run": "night7", "series": "s1", "hosts": "node0 node1"},
        },
        "model": {"name": "ddp", "type": "2 x 16", "backend": "ddp", "extra_info": {"ranks": "2"}},
        "metric": {
            "name": RUN_STEP_SECONDS.name,
            "benchmark_values": [0.1, 0.11, 0.12],
            "target_value": 0.1,
            "extra_info": {"unit": "seconds", "verdict": "confirmed", "change": "+5.0 % [+3.0, +7.0]"},
        },
    }
    assert "head_sha" not in other
    assert (other["benchmark"]["mode"], other["model"]["type"]) == ("probe", "probe")
    assert other["metric"]["name"] == f"{RUN_SCALING_EFFICIENCY.name} beside weak"
    assert (other["metric"]["target_value"], other["metric"]["extra_info"]["verdict"]) == (None, "no_change_shown")


# JSON


def test_the_document_has_the_whole_check() -> None:
    visible = {WORSE.key: Visible(history=10, smallest=0.05, target=0.03, nights=25)}
    hosts = SickHosts(hosts=("node1",), effect=0.2, low=0.1, high=0.3, nights=9, of_nights=30, p_value=0.001)
    regime = PastRegime(nights=9, value=0.1, low=0.09, high=0.11, since_ns=1, since_low_ns=1, since_high_ns=1)
    groups = (
        Group(shared=("host", "node1"), alerts=(WORSE,), others=2, p_value=0.001),
        Group(shared=None, alerts=(WORSE,), others=0, p_value=1.0),
    )
    document = check_document(
        made_check(
            WORSE,
            SAME,
            earlier=(UNSEEN,),
            missing=(GONE,),
            groups=groups,
            visible=visible,
            sick=(SickCase(case="ddp", series="s1", figure="step", hosts=hosts),),
            causes=(CAUSE,),
            regimes=(SeriesRegimes(figure=WORSE, regimes=(regime,)),),
        )
    )
    verdicts, earlier, causes = (document.pop(name) for name in ("verdicts", "earlier", "causes"))
    alert = {"case": "ddp", "figure": "step"}
    assert document == {
        "schema_version": 1,
        "suite": "nightly",
        "suite_run": "night7",
        "is_regression": True,
        "is_missing": True,
        "counts": {"confirmed": 1, "same": 1},
        "missing": (GONE,),
        "sick_hosts": [
            {
                "case": "ddp",
                "series": "s1",
                "figure": "step",
                "hosts": {
                    "hosts": ("node1",),
                    "effect": 0.2,
                    "low": 0.1,
                    "high": 0.3,
                    "nights": 9,
                    "of_nights": 30,
                    "p_value": 0.001,
                },
                "words": "nights with node1 are +22 % [+11, +35] slower: 9 of 30 nights",
            }
        ],
        "groups": [
            {"shared": {"host": "node1"}, "alerts": [alert], "others": 2, "p_value": 0.001},
            {"shared": None, "alerts": [alert], "others": 0, "p_value": 1.0},
        ],
        "regimes": [{"case": "ddp", "figure": "step", "series": "s1", "regimes": (regime,)}],
    }
    worse, same = verdicts
    key = {"suite": "nightly", "case": "ddp", "series": "s1", "metric": RUN_STEP_SECONDS.name, "labels": {}}
    assert worse.items() >= {**key, **SINCE, "outcome": "confirmed", "is_bad": True, "change_ratio": 1.05}.items()
    assert worse["can_show"] == {
        "history_nights": 10,
        "detectable_ratio": 0.05,
        "target_ratio": 0.03,
        "asked_nights": 25,
    }
    assert (same["case"], same["outcome"], same["is_bad"], same["can_show"]) == ("fsdp", "same", False, None)
    assert [(each["case"], each["outcome"], each["can_show"]) for each in earlier] == [
        ("zero1", "no_change_shown", None)
    ]
    (cause,) = causes
    assert cause["figures"] == [{"metric": RUN_STEP_SECONDS.name, "labels": {}}]
    assert (cause["case"], cause["line"], cause["others"]) == ("ddp", "likely driver 1 -> 2", ("fsdp", "zero1"))


def test_without_a_night_the_document_names_none() -> None:
    document = check_document(made_check(night=None))
    assert (document["suite_run"], document["is_regression"], document["is_missing"]) == (None, False, False)

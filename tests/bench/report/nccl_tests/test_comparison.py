"""The table of nccl-tests' figures and ours."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from bench.report.nccl_tests.comparison import print_comparison
from bench.report.nccl_tests.reader import decode
from bench.results.estimate import estimate
from bench.store.summary import Summary
from collectors.metrics import probes as probe_metrics
from tests.bench.made.examples import make_case, make_summary
from tests.bench.report.nccl_tests.files import body, document, row


def _ours(size: int = 1048576, hardware: str = "8 x NVIDIA H100 80GB HBM3", scale: float = 1.0, **case: Any) -> Summary:
    labels = {"collective": "all_reduce", "algorithm": "library", "size": str(size)}
    settings = {"device": "cuda", "backend": "nccl", "model": None} | case
    return make_summary(
        case=replace(make_case(ranks=8), **settings),
        hardware=hardware,
        estimates=(
            estimate(
                probe_metrics.RUN_COLLECTIVE_SECONDS,
                [scale * time_s for time_s in (42.0e-6, 42.5e-6, 43.0e-6)],
                **labels,
            ),
            estimate(probe_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH, (24.6e9, 24.7e9, 24.9e9), **labels),
            estimate(probe_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, (43.1e9, 43.2e9, 43.6e9), **labels),
        ),
    )


def _printed(data: bytes, summary: Summary | None, width: int = 120) -> str:
    text = io.StringIO()
    print_comparison(decode(data, "x.json"), summary, console=Console(file=text, width=width))
    return text.getvalue()


def test_a_row_has_their_units_and_our_median_with_its_interval_beside_it() -> None:
    lines = _printed(document(), _ours()).splitlines()
    (found,) = [line.split() for line in lines if line.startswith("1048576")]
    assert found[:7] == ["1048576", "20.5", "51.2", "89.5", "21.2", "49.4", "86.4"]
    assert found[7] == "42.5"
    assert found[8].startswith("[41.")
    assert found[10:] == ["24.7", "43.2", "2.00"]


def test_rows_of_several_types_say_theirs() -> None:
    lines = _printed(document(row(), row(dtype="half", redop="max")), None).splitlines()
    assert [line.split()[1:3] for line in lines if line.startswith("1048576")] == [["fp32", "sum"], ["fp16", "max"]]


def test_the_whole_table_fits_a_piped_page() -> None:
    slow = body(234567.5, 480.5)
    text = _printed(document(row(2**33, out_of_place=slow, in_place=slow)), _ours(2**33, scale=5e3), width=80)
    (line,) = [line for line in text.splitlines() if line.startswith(str(2**33))]
    assert "212,500 [" in line
    assert "\u2026" not in text


def test_a_size_that_ours_has_not_is_empty_on_our_side() -> None:
    lines = _printed(document(), _ours(4096)).splitlines()
    (found,) = [line.split() for line in lines if line.startswith("1048576")]
    assert found[7:] == ["-", "-", "-", "-"]
    assert any("was not measured at these sizes" in line for line in lines)


def test_without_a_run_of_ours_the_table_is_theirs_and_says_how_to_make_one() -> None:
    text = _printed(document(), None)
    assert "ours" not in text.partition("nccl-tests:")[0]
    assert (
        "ours: the history has no run of all_reduce on 8 ranks; `observatory run collectives --ranks 8` measures one"
        in text
    )


def test_a_collective_that_is_none_of_ours_is_offered_no_run() -> None:
    text = _printed(document(program="hypercube_perf"), None)
    assert "ours: none of our probes measures hypercube" in text


def test_another_reduction_than_ours_is_said_to_differ() -> None:
    lines = _printed(document(row(redop="max")), _ours()).splitlines()
    assert "different: reduction: max of nccl-tests, sum of ours" in lines


def test_what_the_file_says_against_itself_is_printed() -> None:
    bad = document(row(in_place=body(wrong="3.000000"))).replace(b'"count":0,"okay"', b'"count":1,"okay"')
    assert "nccl-tests: OUT OF BOUNDS: 1 of its checks found wrong elements" in _printed(bad, None).splitlines()


def test_the_same_setting_is_not_said_to_differ() -> None:
    assert "not the same" not in _printed(document(), _ours())


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        (_ours(ranks=2), "different: ranks: 8 of nccl-tests, 2 of ours"),
        (_ours(precision="bf16"), "different: type: fp32 of nccl-tests, bf16 of ours"),
        (_ours(backend="gloo"), "different: backend: nccl of nccl-tests, gloo of ours"),
        (
            _ours(hardware="8 x NVIDIA H200"),
            "different: machine: NVIDIA H100 80GB HBM3 of nccl-tests, 8 x NVIDIA H200 of ours",
        ),
    ],
)
def test_what_differs_is_said_below(summary: Summary, line: str) -> None:
    assert line in _printed(document(), summary).splitlines()


def test_a_placement_that_ours_does_not_run_gives_no_ratio() -> None:
    lines = _printed(document(row(in_place="null")), _ours()).splitlines()
    (found,) = [line.split() for line in lines if line.startswith("1048576")]
    assert found[-1] == "-"


def test_wrong_results_are_said_aloud() -> None:
    assert "WRONG RESULTS at 1048576 bytes" in _printed(document(row(in_place=body(wrong="3.000000"))), None)


def test_a_small_figure_is_not_shown_as_0() -> None:
    lines = _printed(document(row(8, out_of_place=body(19.0, 0.000421))), None).splitlines()
    (found,) = [line.split() for line in lines if line.lstrip().startswith("8 ")]
    assert found[1:4] == ["19.0", "0.00042", "0.00074"]


def test_csv_has_one_row_a_size_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(decode(document(row(), row(2097152)), "x.json"), _ours(), "csv")
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(first["in_place_s"]) == pytest.approx(21.25e-6)
    assert float(first["own_time_ratio"]) == pytest.approx(2.0)
    assert (second["size_bytes"], second["own_run"], second["own_s"]) == ("2097152", "", "")


def test_json_says_who_measured_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(decode(document(), "x.json"), _ours(ranks=2), "json")
    printed = json.loads(capsys.readouterr().out)
    assert (printed["collective"], printed["ranks"], printed["nccl_version"]) == ("all_reduce", 8, "2.27.3")
    assert printed["differences"] == ["ranks: 8 of nccl-tests, 2 of ours"]
    assert printed["rows"][0]["own_run"] == "run-a"

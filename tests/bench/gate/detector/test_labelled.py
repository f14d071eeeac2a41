"""Folders of real series with marked changes are read as their owners wrote them, and scored by where the marks are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.benchmarks.gate.labelled_series import agreed, counts_of_marks, judged_without_reruns, read_folder


def write_small(folder: Path) -> None:
    """Two series of 60 builds with two measurements each; the second one is half slower from build 40 on."""
    (folder / "data").mkdir(parents=True)
    (folder / "metadata").mkdir()
    for name, slower in (("0000", 1.0), ("0001", 1.5)):
        rows = []
        for build in range(60):
            for trial in range(2):
                value = (slower if build >= 40 else 1) * (1 + 0.01 * ((3 * build + trial) % 7))
                rows.append(f"{2 * build + trial + 1},{500_000 + build},{value}")
        (folder / "data" / f"{name}.csv").write_text("\n".join(["Index,GHC,Measurement", *rows]) + "\n")
    details = "Type;Dataset;Change Point\nStable;0000.csv;0\nregression;0001.csv;80\n"
    (folder / "metadata" / "dataset_details.csv").write_text(details)


def write_large(folder: Path) -> None:
    """A series of 900 versions, in both of its parts, that is twice as slow from version 780 on."""
    (folder / "data").mkdir(parents=True)
    rows = []
    for version in range(900):
        value = (2 if version >= 780 else 1) * (1 + 0.01 * (version % 5))
        rows.append(f"{version + 1},2021-09-01 01:09:32,{515_000 + version},{value}")
    text = "\n".join(["index_1based,timestamp,sut_version,value", *rows]) + "\n"
    (folder / "data" / "00007__cpu-time__ms.csv").write_text(text)
    marks = {
        "sap_7_split1": {"1": [780], "2": [781], "3": []},
        "sap_7_split2": {"1": [30], "2": [30, 90], "3": [31]},
        "sap_7_split2_syn100i.1": {"1": [100], "2": [100], "3": [100]},
        "sap_8": {"1": [], "2": [], "3": []},
        "graal_7": {"1": [3], "2": [3], "3": [3]},
        "sap_7": {"1": [780], "2": [780]},
    }
    (folder / "annotations.json").write_text(json.dumps(marks))


def test_the_small_form_has_builds_as_nights_and_the_change_after_the_last_good_index(tmp_path: Path) -> None:
    write_small(tmp_path)
    stable, regression = read_folder(tmp_path)
    assert (stable.name, stable.number, stable.changes) == ("0000", 0, ())
    assert (regression.number, regression.changes) == (1, (40,))
    assert [len(night.trials) for night in regression.nights] == [2] * 60
    assert regression.nights[40].trials[0].log_median == pytest.approx(math.log(1.5 * (1 + 0.01 * (120 % 7))))


def test_the_large_form_has_parts_of_series_with_what_most_people_marked(tmp_path: Path) -> None:
    write_large(tmp_path)
    first, second = read_folder(tmp_path)
    assert (first.name, len(first.nights), first.changes) == ("sap_7_split1", 800, (780,))
    assert (second.name, len(second.nights), second.changes) == ("sap_7_split2", 150, (30,))
    assert second.number == 7
    assert second.nights[30].trials[0].log_median == pytest.approx(math.log(2))


def test_marks_of_half_of_the_people_are_a_change_at_their_median() -> None:
    assert agreed([[10, 50], [11], [], [52]]) == (10, 51)
    assert agreed([[10], [20], [30]]) == ()


def test_a_marked_change_is_found_and_counted_once(tmp_path: Path) -> None:
    write_small(tmp_path)
    stable, regression = (judged_without_reruns(one) for one in read_folder(tmp_path))
    assert stable.alerts["tier 2"] == []
    (page,) = regression.alerts["tier 2"]
    assert (page["index"], page["direction"]) == (40, 1)
    near = [page, page | {"index": 42, "raised_at": 50}, page | {"index": 55, "raised_at": 57}]
    found, false, _, changes, _, nights, delay = counts_of_marks(regression, near)
    assert (found, false, changes, nights, delay) == (1, 1, 1, 30, page["raised_at"] - 40)


def test_a_folder_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither annotations\.json nor metadata/dataset_details\.csv"):
        list(read_folder(tmp_path))

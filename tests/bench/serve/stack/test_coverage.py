"""Which targets of a Prometheus should show our series, and what is said of one that does not."""

from __future__ import annotations

import pytest

from bench.serve.stack.coverage import Target, left_out, of_ours


def _target(
    job: str, address: str, *, health: str = "up", error: str = "", series: int = 0, was_ours: bool = False
) -> Target:
    return Target(job=job, address=address, health=health, error=error, series=series, was_ours=was_ours)


def test_targets_of_other_jobs_need_not_show_our_series() -> None:
    ours, late = _target("gpus", "a:9464", series=9), _target("gpus", "b:9464", health="down", error="refused")
    assert of_ours([_target("node", "a:9100"), ours, late]) == [ours, late]


def test_a_job_of_our_name_is_ours_even_without_series() -> None:
    silent = _target("observatory", "a:9464", health="down", error="refused")
    assert of_ours([_target("node", "a:9100"), silent]) == [silent]


def test_a_job_that_showed_our_series_is_ours_though_all_of_it_is_down() -> None:
    down = _target("gpus", "a:9464", health="down", error="refused", was_ours=True)
    other, shown = _target("node", "a:9100"), _target("results", "b:9464", series=9)
    assert of_ours([down, other, shown]) == [down, shown]
    assert left_out([down, other, shown]) == [
        "left out: job node (1 target, 0 down); nothing of ours answered there within a day"
    ]
    assert left_out([other]) == []


def test_where_no_target_shows_our_series_all_are_named() -> None:
    targets = [_target("node", "a:9100"), _target("web", "b:80", health="down", error="refused")]
    assert of_ours(targets) == targets


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (_target("observatory", "a:9464", series=1), None),
        (_target("node", "a:9100"), "target a:9100 (job node) answers, and shows no series of ours"),
        (_target("node", "a:1", health="down", error="refused"), "target a:1 (job node) is missing: refused"),
        (
            _target("node", "a:1", health="unknown"),
            "target a:1 (job node) is missing: Prometheus has not scraped it yet",
        ),
    ],
    ids=["fine", "another", "down", "new"],
)
def test_what_is_missing_is_said_with_its_reason(target: Target, said: str | None) -> None:
    assert target.missing is None if said is None else str(target.missing).startswith(said)

"""What has another name now is shown by its old one, too, which says so."""

from collectors.metrics.deprecated import DEPRECATED, NEW, RENAMED, by_old_name
from collectors.metrics.metric import Sample
from collectors.metrics.rank import LIVE_TENSOR_BYTES, STEP_SECONDS
from collectors.metrics.registry import METRICS, SHOWN, as_shown
from collectors.metrics.results import RUN_BUBBLE_RATIO


def test_a_figures_statistic_is_shown_by_its_old_name_with_a_bound() -> None:
    low = RUN_BUBBLE_RATIO.alone(account="expected").statistic("low").at(0.25)
    assert low.metric == "observatory_run_bubble_expected_low_ratio"
    assert by_old_name(low) == Sample("observatory_run_bubble_ratio", 0.25, {"account": "expected", "bound": "low"})


def test_what_keeps_its_name_has_no_old_one() -> None:
    assert by_old_name(STEP_SECONDS.at(0.5)) is None
    assert by_old_name(LIVE_TENSOR_BYTES.at(1, category="activations")) is None


def test_what_is_new_has_no_old_name() -> None:
    for metric in NEW:
        assert not any(by_old_name(Sample(shown.name, 1.0, {})) for shown in metric.shown())


def test_what_a_collector_gives_is_shown_by_a_new_name_and_by_its_own() -> None:
    for metric in METRICS:
        for split in metric.splits if metric.scope != "run" and metric not in NEW else ():
            for value in split.values:
                labels = {one.label: one.values[0] for one in metric.splits} | {split.label: value}
                given = metric.at(1.0, **dict.fromkeys(metric.labels, "x") | labels)
                shown = as_shown(given)
                assert shown.metric != given.metric
                assert by_old_name(shown) == given


def test_a_deprecated_metric_names_its_successors() -> None:
    for renamed in RENAMED:
        assert renamed.old.help.startswith("Deprecated, and gone with the next release: now ")
        assert all(one.metric.name in renamed.old.help for one in renamed.successors)


def test_only_what_no_series_is_shown_by_any_more_is_deprecated_whole() -> None:
    names = {metric.name for metric in DEPRECATED}
    assert "observatory_run_step_seconds" in names
    assert "observatory_host_memory_bytes" in names
    assert LIVE_TENSOR_BYTES.name not in names


def test_a_successor_is_shown_and_has_the_old_labels_less_those_that_its_name_tells() -> None:
    for renamed in RENAMED:
        for one in renamed.successors:
            assert one.metric.name in {metric.name for metric in SHOWN}
            assert set(one.metric.labels) | one.old_labels.keys() == set(renamed.old.labels)
            assert not set(one.metric.labels) & one.old_labels.keys()

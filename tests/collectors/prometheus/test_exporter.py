"""/metrics shows what its sources give, and stays valid whatever they give."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample as Parsed

from collectors.metrics.metric import Metric, Sample
from collectors.metrics.registry import SHOWN
from collectors.prometheus.exposition import OWNER_LABELS, Exporter, Owned, histogram_of
from tests.collectors.knocking import Notices

STEP = Metric(name="x_step_seconds", kind="gauge", unit="seconds", scope="rank", help="Time of a step.")
PHASE = Metric(name="x_phase_seconds", kind="gauge", unit="seconds", scope="rank", help="Time.", labels=("phase",))
BYTES = Metric(
    name="x_bytes_total", kind="counter", unit="bytes", scope="node", help="Bytes, all.", labels=("interface",)
)
GPU = Metric(name="x_gpu_info", kind="info", unit="info", scope="node", help="A GPU.", labels=("gpu",))
SPEED = Metric(name="x_run_ratio", kind="gauge", unit="ratio", scope="run", help="A result.")
METRICS = (STEP, PHASE, BYTES, GPU, SPEED)
RANK0, RANK1 = {"rank": "0", "slot": "0"}, {"rank": "1", "slot": "0"}
RUN = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "ab"}
GIVEN: list[Owned] = [
    (STEP.at(0.25), RANK0),
    (PHASE.at(0.125, phase='da"ta\\\n'), RANK0),
    (STEP.at(0.5), RANK1),
    (BYTES.at(3e12, interface="eth0"), {}),
    (GPU.at(1, gpu="0"), {}),
    (SPEED.at(0.75), RUN),
]


def _exporter(*given: Owned, notices: Notices | None = None) -> Exporter:
    return Exporter(METRICS, [lambda: given], on_notice=Notices() if notices is None else notices)


def _shown(exporter: Exporter) -> list[Parsed]:
    return [sample for family in parse_text(generate_latest(exporter).decode()) for sample in family.samples]


def _series(samples: list[Parsed]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def _expected(given: list[Owned]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.metric, frozenset({**sample.labels, **owner}.items())): sample.value for sample, owner in given}


def test_text_holds_each_sample_with_its_own_and_its_owners_labels() -> None:
    assert _series(_shown(_exporter(*GIVEN))) == _expected(GIVEN)


def test_openmetrics_holds_the_same() -> None:
    families = list(parse_openmetrics(openmetrics.generate_latest(_exporter(*GIVEN)).decode()))  # type: ignore[no-untyped-call]
    assert _series([sample for family in families for sample in family.samples]) == _expected(GIVEN)
    assert {family.name: (family.type, family.unit) for family in families} == {
        "x_step_seconds": ("gauge", "seconds"),
        "x_phase_seconds": ("gauge", "seconds"),
        "x_bytes": ("counter", "bytes"),
        "x_gpu": ("info", ""),
        "x_run_ratio": ("gauge", "ratio"),
    }


def test_samples_of_a_metric_stand_together_in_the_catalogues_order() -> None:
    assert [family.name for family in parse_text(generate_latest(_exporter(*reversed(GIVEN))).decode())] == [
        "x_step_seconds",
        "x_phase_seconds",
        "x_bytes",
        "x_gpu_info",
        "x_run_ratio",
    ]


def test_of_a_series_that_is_given_twice_the_first_counts() -> None:
    shown = _shown(_exporter((STEP.at(1.0), RANK0), (STEP.at(2.0), RANK0)))
    assert [sample.value for sample in shown] == [1.0]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((Sample("x_new_seconds", 1.0), RANK0), "metric x_new_seconds is in no catalogue of this version"),
        ((Sample("x_phase_seconds", 1.0), RANK0), "metric x_phase_seconds has labels (), not (phase): left out"),
        ((STEP.at(1.0), {}), "metric x_step_seconds is of a rank and was given as of ()"),
    ],
)
def test_what_is_no_sample_of_the_catalogue_is_left_out_and_said_once(bad: Owned, said: str) -> None:
    notices = Notices()
    exporter = _exporter(bad, *GIVEN[3:], notices=notices)
    for _ in range(2):
        assert _series(_shown(exporter)) == _expected(GIVEN[3:])
    assert len(notices) == 1
    assert notices[0].startswith(said)


def test_each_metric_of_the_catalogue_has_its_own_name_and_its_unit() -> None:
    shown: list[Owned] = []
    for metric in SHOWN:
        labels = dict.fromkeys(metric.labels, "x")
        sample = histogram_of(metric, [], slot="x") if metric.kind == "histogram" else metric.at(1.0, **labels)
        shown.append((sample, dict.fromkeys(OWNER_LABELS[metric.scope], "y")))
    families = Exporter(SHOWN, [lambda: shown], on_notice=pytest.fail).collect()
    by_name = {family.samples[0].name.removesuffix("_bucket"): family for family in families}
    assert by_name.keys() == {metric.name for metric in SHOWN}
    for metric in SHOWN:
        family = by_name[metric.name]
        names = {
            line.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for line in family.samples
        }
        assert names == {metric.name}
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.name.endswith(family.unit)


def test_nothing_to_show_is_an_empty_page_in_both_formats() -> None:
    assert generate_latest(_exporter()) == b""
    assert openmetrics.generate_latest(_exporter()) == b"# EOF\n"  # type: ignore[no-untyped-call]

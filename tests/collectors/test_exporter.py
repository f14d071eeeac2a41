"""/metrics shows what its sources give, stays valid whatever they give, and ends in order."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample as Parsed

from collectors.exporter import CannotListen, Exporter, Owned, PortTaken, Server
from collectors.metric import Metric, Sample

STEP = Metric(name="x_step_seconds", kind="gauge", unit="seconds", scope="rank", help="Time of a step.")
PHASE = Metric(name="x_phase_seconds", kind="gauge", unit="seconds", scope="rank", help="Time.", labels=("phase",))
BYTES = Metric(
    name="x_bytes_total", kind="counter", unit="bytes", scope="node", help="Bytes, all.", labels=("interface",)
)
GPU = Metric(name="x_gpu_info", kind="info", unit="info", scope="node", help="A GPU.", labels=("gpu",))
SPEED = Metric(name="x_run_ratio", kind="gauge", unit="ratio", scope="run", help="A result.")
METRICS = (STEP, PHASE, BYTES, GPU, SPEED)
RANK0, RANK1 = {"rank": "0", "slot": "0"}, {"rank": "1", "slot": "0"}
RUN = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "ab", "bound": "low"}
GIVEN: list[Owned] = [
    (STEP.at(0.25), RANK0),
    (PHASE.at(0.125, phase='da"ta\\\n'), RANK0),
    (STEP.at(0.5), RANK1),
    (BYTES.at(3e12, interface="eth0"), {}),
    (GPU.at(1, gpu="0"), {}),
    (SPEED.at(0.75), RUN),
]


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


def _exporter(*given: Owned, notices: Notices | None = None) -> Exporter:
    return Exporter(METRICS, [lambda: given], on_notice=Notices() if notices is None else notices)


def _shown(exporter: Exporter) -> list[Parsed]:
    body, _ = exporter.render("")
    return [sample for family in parse_text(body.decode()) for sample in family.samples]


def _series(samples: list[Parsed]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def _expected(given: list[Owned]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.metric, frozenset({**sample.labels, **owner}.items())): sample.value for sample, owner in given}


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server(_exporter(*GIVEN), "127.0.0.1", 0, on_notice=Notices())
    try:
        yield served
    finally:
        served.close()


def _get(port: int, path: str, accept: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_text_holds_each_sample_with_its_own_and_its_owners_labels() -> None:
    assert _series(_shown(_exporter(*GIVEN))) == _expected(GIVEN)


def test_openmetrics_holds_the_same() -> None:
    body, content_type = _exporter(*GIVEN).render("application/openmetrics-text; version=1.0.0")
    families = list(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert _series([sample for family in families for sample in family.samples]) == _expected(GIVEN)
    assert {family.name: (family.type, family.unit) for family in families} == {
        "x_step_seconds": ("gauge", "seconds"),
        "x_phase_seconds": ("gauge", "seconds"),
        "x_bytes": ("counter", "bytes"),
        "x_gpu": ("info", ""),
        "x_run_ratio": ("gauge", "ratio"),
    }


def test_samples_of_a_metric_stand_together_in_the_catalogues_order() -> None:
    body, _ = _exporter(*reversed(GIVEN)).render("")
    assert [family.name for family in parse_text(body.decode())] == [
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


def test_nothing_to_show_is_an_empty_page_in_both_formats() -> None:
    assert _exporter().render("")[0] == b""
    assert _exporter().render("application/openmetrics-text; version=1.0.0")[0] == b"# EOF\n"


def test_the_server_answers_metrics_in_the_format_that_is_asked_for(server: Server) -> None:
    status, content_type, body = _get(server.port, "/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert _series([sample for family in parse_text(body) for sample in family.samples]) == _expected(GIVEN)
    assert _get(server.port, "/metrics?x=1", "application/openmetrics-text; version=1.0.0")[2].endswith("# EOF\n")


def test_the_server_says_that_it_lives_and_where_its_doors_are(server: Server) -> None:
    assert _get(server.port, "/healthz")[::2] == (200, "ok\n")
    assert _get(server.port, "/")[::2] == (404, "here are /metrics and /healthz\n")


def test_a_port_is_served_by_one_server_only(server: Server) -> None:
    with pytest.raises(PortTaken, match=rf"port {server.port} of 127.0.0.1 is taken"):
        Server(_exporter(), "127.0.0.1", server.port, on_notice=Notices())


def test_a_port_is_free_again_at_once() -> None:
    first = Server(_exporter(), "127.0.0.1", 0, on_notice=Notices())
    _get(first.port, "/metrics")
    first.close()
    second = Server(_exporter(), "127.0.0.1", first.port, on_notice=Notices())
    second.close()
    assert second.port == first.port


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(CannotListen, match=r"port 0 of 192\.0\.2\.1 cannot be served"):
        Server(_exporter(), "192.0.2.1", 0, on_notice=Notices())


def test_a_shutdown_lets_a_scrape_that_runs_come_to_its_end() -> None:
    is_scraping, may_go_on = threading.Event(), threading.Event()

    def slow() -> list[Owned]:
        is_scraping.set()
        assert may_go_on.wait(60)
        return GIVEN

    server = Server(Exporter(METRICS, [slow], on_notice=Notices()), "127.0.0.1", 0, on_notice=Notices())
    answers: list[tuple[int, str, str]] = []
    scrape = threading.Thread(target=lambda: answers.append(_get(server.port, "/metrics")))
    scrape.start()
    assert is_scraping.wait(60)
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    may_go_on.set()
    closing.join(60)
    scrape.join(60)
    assert not closing.is_alive()
    ((status, _, body),) = answers
    assert status == 200
    assert _series([sample for family in parse_text(body) for sample in family.samples]) == _expected(GIVEN)


def test_a_client_that_goes_away_and_one_that_speaks_no_http_disturb_nobody() -> None:
    notices = Notices()
    server = Server(_exporter(*GIVEN, notices=notices), "127.0.0.1", 0, on_notice=notices)
    try:
        for data in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                client.sendall(data)
        assert _get(server.port, "/metrics")[0] == 200
    finally:
        server.close()
    assert notices == []


def test_a_source_that_breaks_is_said_and_the_next_scrape_is_answered() -> None:
    notices = Notices()
    is_broken = [False, True]

    def source() -> list[Owned]:
        if is_broken.pop():
            raise ZeroDivisionError("no")
        return GIVEN

    server = Server(Exporter(METRICS, [source], on_notice=notices), "127.0.0.1", 0, on_notice=notices)
    try:
        with pytest.raises(http.client.RemoteDisconnected):
            _get(server.port, "/metrics")
        assert _get(server.port, "/metrics")[0] == 200
    finally:
        server.close()
    assert notices == ["a scrape failed: ZeroDivisionError: no"]


def test_a_client_that_trickles_does_not_keep_the_server_from_ending() -> None:
    server = Server(Exporter((), (), on_notice=print), "127.0.0.1", 0, on_notice=print)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        closing = threading.Thread(target=server.close, daemon=True)
        closing.start()
        for _ in range(60):  # A byte every half second: never so long silent that it would be let go for that.
            closing.join(timeout=0.5)
            if not closing.is_alive():
                break
            with contextlib.suppress(ConnectionError):
                client.sendall(b"x")
        assert not closing.is_alive()

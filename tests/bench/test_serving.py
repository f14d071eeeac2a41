"""One server shows live runs and results together, and begins and ends in order."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Shown

from bench.errors import InfrastructureFailed
from bench.run import begin
from bench.serving import open_server, serving
from bench.store.history import History
from collectors.catalogue.results import RUN_STEP_SECONDS
from collectors.catalogue.step import STEP_SECONDS
from collectors.exporter import Server
from collectors.metric import Sample
from collectors.sample_log import Opened, Reading, SampleLog
from tests.bench.examples import make_machine, make_summary, small_case


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one result."""
    address = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(address) as history:
        history.add(make_summary(), make_machine())
    return address


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def _shown(address: str) -> list[Shown]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return [one for family in text_string_to_metric_families(answer.read().decode()) for one in family.samples]


def _names(server: Server) -> set[str]:
    return {sample.name for sample in _shown(server.url)}


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.05)


def _write_step(folder: Path, run: str, *samples: Sample) -> None:
    log = SampleLog(folder / "rank0.jsonl")
    log.write(Opened(run=run, trial=0, rank=0, time_ns=0, pid=1, host="node0"))
    log.write(Reading(trial=0, time_ns=0, mark="measured", step=1, samples=list(samples)))
    log.close()


def test_live_steps_and_results_are_shown_together_and_only_results_stay(tmp_path: Path, url: str) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=notices) as server:
        _wait_until(lambda: RUN_STEP_SECONDS.name in _names(server))
        assert STEP_SECONDS.name in _names(server)
        run.close()
        assert STEP_SECONDS.name not in _names(server)
        assert RUN_STEP_SECONDS.name in _names(server)
    assert notices == [f"serving {server.url}"]


def test_a_store_that_cannot_be_read_is_said_and_live_steps_are_shown(tmp_path: Path) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    (tmp_path / "broken").write_text("no database" * 100)
    store = f"sqlite:///{tmp_path / 'broken'}"
    with open_server(tmp_path / "runs", store, host="127.0.0.1", port=0, on_notice=notices) as server:
        _wait_until(lambda: len(notices) == 2)
        assert STEP_SECONDS.name in _names(server)
    run.close()
    assert notices[1].startswith("no results are shown yet: store sqlite:")


def test_a_sample_without_its_labels_is_said_once_and_the_page_stays_valid(tmp_path: Path, url: str) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    odd = Sample(STEP_SECONDS.name, 1.0, {"mood": "bad"})
    _write_step(run.folder, run.id, odd, STEP_SECONDS.at(0.5))
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=notices) as server:
        for _ in range(2):
            assert [s.value for s in _shown(server.url) if s.name == STEP_SECONDS.name] == [0.5]
    run.close()
    assert notices[1:] == [f"metric {STEP_SECONDS.name} has labels (mood), not (): left out"]


def test_a_taken_port_is_an_error_with_its_number_and_the_next_move(tmp_path: Path, url: str, taken: int) -> None:
    with (
        pytest.raises(InfrastructureFailed, match=rf"port {taken} of 127\.0\.0\.1 is taken .*--port"),
        open_server(tmp_path, url, host="127.0.0.1", port=taken, on_notice=Notices()),
    ):
        pass


def test_who_can_do_without_gets_a_notice_and_goes_on(tmp_path: Path, url: str, taken: int) -> None:
    notices = Notices()
    with serving(tmp_path, url, port=taken, on_notice=notices) as server:
        assert server is None
    assert len(notices) == 1
    assert f"port {taken} of 127.0.0.1 is taken" in notices[0]


def test_an_embedded_server_answers_as_long_as_one_is_inside(tmp_path: Path, url: str) -> None:
    with serving(tmp_path, url, port=0, on_notice=Notices()) as server:
        assert server is not None
        _shown(server.url)
    with pytest.raises(OSError, match="refused"):
        _shown(server.url)


@contextmanager
def _serve(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import sys; from bench.cli import run; code = run(sys.argv[1:]);"
        " print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(home)},
    ) as served:
        try:
            yield served
        finally:
            served.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_it_is_ends_in_order_and_needs_no_torch(number: signal.Signals, tmp_path: Path) -> None:
    with _serve(tmp_path, "--port", "0") as served:
        assert served.stderr is not None
        word, address = served.stderr.readline().split()
        assert word == "serving"
        assert address.startswith("http://127.0.0.1:")
        assert _shown(address) == []
        served.send_signal(number)
        said, errors = served.communicate(timeout=60)
    assert served.returncode == 0
    assert said == ""
    assert errors.splitlines()[-1] == "False"
    assert "Traceback" not in errors


def test_serve_refuses_a_taken_port_in_one_line_with_code_4(tmp_path: Path, taken: int) -> None:
    with _serve(tmp_path, "--port", str(taken)) as served:
        _, errors = served.communicate(timeout=60)
    line, torch = errors.splitlines()
    assert served.returncode == 4
    assert line.startswith(f"observatory: port {taken} of 127.0.0.1 is taken")
    assert torch == "False"

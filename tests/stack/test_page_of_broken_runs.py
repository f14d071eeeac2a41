"""/metrics stays valid by promtool's word, whatever the runs that it shows have become."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.serve.server import open_server
from bench.store.run_dir import Run, begin
from collectors.metrics.rank import STEP_SECONDS
from collectors.sample_log import SCHEMA_VERSION, Opened, Reading, SampleLog
from tests.bench.made.examples import make_machine, small_case
from tests.support.servers import program

pytestmark = pytest.mark.stack


def _cut_in_the_middle_of_a_line(run: Run) -> None:
    log = run.folder / "rank1.jsonl"
    log.write_bytes(log.read_bytes()[:-20])


def _written_by_a_newer_version(run: Run) -> None:
    log = SampleLog(run.folder / "rank1.jsonl")
    opened = Opened(run=run.id, trial=1, rank=1, time_ns=0, pid=1, host="node0")
    log.write(msgspec.structs.replace(opened, schema_version=SCHEMA_VERSION + 1))
    log.close()


def _no_log_at_all(run: Run) -> None:
    (run.folder / "rank1.jsonl").write_bytes(b"\x00\xff\n" * 10)


def _deleted(run: Run) -> None:
    for path in run.folder.iterdir():
        path.unlink()
    run.folder.rmdir()


@pytest.mark.parametrize(
    "breaking", [_cut_in_the_middle_of_a_line, _written_by_a_newer_version, _no_log_at_all, _deleted]
)
def test_a_broken_run_beside_a_good_one_leaves_the_page_valid(breaking: Callable[[Run], None], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    broken, good = _begin(runs), _begin(runs)
    notices: list[str] = []
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with open_server(runs, store, host="127.0.0.1", port=0, on_notice=notices.append) as server:
        before = _page(server.url)
        breaking(broken)
        after = _page(server.url)
    for page in (before, after):
        checked = subprocess.run(
            [program("promtool", "prometheus"), "check", "metrics"], input=page, capture_output=True, timeout=60
        )
        assert (checked.returncode, checked.stderr) == (0, b"")
    assert f'{STEP_SECONDS.name}{{rank="0",slot="{good.slot}"}} 0.5' in after.decode()
    for run in (broken, good):
        run.close()


def _begin(runs: Path) -> Run:
    run = begin(small_case(), make_machine(), runs)
    for rank in range(2):
        log = SampleLog(run.folder / f"rank{rank}.jsonl")
        log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=1, host="node0"))
        log.write(Reading(trial=0, time_ns=1, mark="measured", step=1, samples=[STEP_SECONDS.at(0.5)]))
        log.close()
    return run


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body

"""A sample log is whole up to its last line, whatever happened to its writer."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.metrics.metric import Sample
from collectors.sample_log import (
    Ended,
    LogUnwritable,
    Note,
    Opened,
    Reading,
    Record,
    SampleLog,
    TimedAction,
    TimedActions,
    TimedMessage,
    read,
)
from tests.bench.made.small_disk import on_a_full_disk

OPENED = Opened(run="r", trial=0, rank=1, time_ns=1, pid=2, host="here")
READING = Reading(
    trial=0, time_ns=2, mark="measured", step=5, samples=[Sample("observatory_phase_seconds", 0.25, {"phase": "data"})]
)
ENDED = Ended(trial=0, time_ns=3, step=6, error_type="ValueError", error="no")
PERFORMED = TimedActions(
    trial=0, time_ns=2, step=5, begun_ns=1, clock=None, actions=[TimedAction("weight_backward", 3, 1, 10, 25)]
)
TOLD = msgspec.structs.replace(PERFORMED, messages=[TimedMessage("sent", "backward", 3, 1, 12)], core_waits_ns=[(1, 4)])
RECORDS: list[Record] = [OPENED, READING, PERFORMED, TOLD, Note(trial=0, time_ns=2, text="because"), ENDED]


def _write(path: Path, records: list[Record] = RECORDS) -> None:
    log = SampleLog(path)
    for record in records:
        log.write(record)
    log.close(durable=True)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    _write(tmp_path / "log")
    contents = read(tmp_path / "log")
    assert contents.records == RECORDS
    assert contents.left_out == []


@given(kept=st.integers(min_value=0, max_value=10_000))
def test_a_log_cut_anywhere_loses_at_most_its_last_line(kept: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "log"
    _write(path)
    data = path.read_bytes()[:kept]
    path.write_bytes(data)
    contents = read(path)
    assert contents.records == RECORDS[: data.count(b"\n")]
    assert (contents.left_out == []) == (data.endswith(b"\n") or not data)


def test_a_new_writer_does_not_continue_the_half_line_of_a_dead_one(tmp_path: Path) -> None:
    _write(tmp_path / "log", [OPENED])
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"type":"rea')
    _write(tmp_path / "log", [ENDED])
    assert read(tmp_path / "log").records == [OPENED, ENDED]


def test_a_full_disk_is_an_error_with_the_path(tmp_path: Path) -> None:
    with on_a_full_disk(tmp_path / "log") as path:
        log = SampleLog(path)
        with pytest.raises(LogUnwritable, match=rf"No space left on device.*{path}"):
            log.write(OPENED)
        log.close()


def test_a_reading_of_training_is_written_as_before(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "rank0.jsonl")
    log.write(Reading(trial=0, time_ns=1, mark="measured", step=2, samples=[]))
    log.close()
    line = (tmp_path / "rank0.jsonl").read_text()
    assert line == '{"type":"reading","trial":0,"time_ns":1,"mark":"measured","step":2,"samples":[]}\n'

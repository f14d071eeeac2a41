"""Whoever follows a log gets each whole line once, and learns what could not be read."""

from pathlib import Path

import msgspec
import pytest

from collectors.metrics.metric import Sample
from collectors.metrics.rank import ALLOCATED_BYTES
from collectors.sample_log import (
    SCHEMA_VERSION,
    Changed,
    Ended,
    Follower,
    Mark,
    NewerSchema,
    Note,
    Opened,
    Polled,
    Reading,
    Record,
    SampleLog,
    read,
)

OPENED = Opened(run="r", trial=0, rank=1, time_ns=1, pid=2, host="here")
READING = Reading(
    trial=0, time_ns=2, mark="measured", step=5, samples=[Sample("observatory_phase_seconds", 0.25, {"phase": "data"})]
)
ENDED = Ended(trial=0, time_ns=3, step=6)
RECORDS: list[Record] = [OPENED, READING, Note(trial=0, time_ns=2, text="because"), ENDED]


def _write(path: Path, records: list[Record] = RECORDS) -> None:
    log = SampleLog(path)
    for record in records:
        log.write(record)
    log.close(durable=True)


def test_a_cut_line_is_named_with_its_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "log")
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"type":"rea')
    assert read(tmp_path / "log").left_out == ["log: the last line is cut off; 12 bytes left out"]


def test_a_line_that_is_no_record_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    _write(tmp_path / "log", [OPENED])
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\x00\xff nonsense\n")
    _write(tmp_path / "log", [ENDED])
    contents = read(tmp_path / "log")
    assert contents.records == [OPENED, ENDED]
    assert len(contents.left_out) == 1
    assert "line 2 cannot be read" in contents.left_out[0]


def test_a_follower_gives_each_record_once_and_a_half_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    assert follower.new() == []
    _write(path)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    assert follower.new() == RECORDS[:-1]
    path.write_bytes(data)
    assert follower.new() == RECORDS[-1:]
    assert follower.new() == []


def _reading(mark: Mark, step: int) -> Reading:
    return Reading(trial=0, time_ns=0, mark=mark, step=step, samples=[])


def test_the_newest_are_the_last_of_each_mark_and_all_that_nothing_replaces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    note = Note(trial=0, time_ns=2, text="because")
    polled = [Polled(time_ns=time_ns, samples=[]) for time_ns in range(3)]
    _write(path, [OPENED, _reading("warm_up", 0), _reading("measured", 1), note, *polled[:2], _reading("measured", 2)])
    assert follower.newest() == [OPENED, _reading("warm_up", 0), note, polled[1], _reading("measured", 2)]
    assert follower.newest() == []
    _write(path, [_reading("measured", 3), polled[2], note, ENDED])
    assert follower.newest() == [_reading("measured", 3), polled[2], note, ENDED]


def _changed(time_ns: int) -> Changed:
    return Changed(time_ns=time_ns, since_ns=1, values=[(0, time_ns)])


def test_a_reading_without_an_account_of_memory_makes_none_old_that_has_it(tmp_path: Path) -> None:
    account = [
        Reading(trial=0, time_ns=5, mark="measured", step=step, samples=[ALLOCATED_BYTES.at(step)]) for step in range(3)
    ]
    log, follower = SampleLog(tmp_path / "rank0.jsonl"), Follower(tmp_path / "rank0.jsonl")
    for record in (account[0], _reading("measured", 1), account[2], _reading("measured", 3), _reading("measured", 4)):
        log.write(record)
    log.close()
    assert follower.newest() == [account[2], _reading("measured", 4)]


def test_of_a_nodes_beats_the_newest_are_the_last_whole_one_and_the_changes_since(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    whole = [Polled(time_ns=time_ns, samples=[]) for time_ns in (1, 4)]
    note = Note(trial=0, time_ns=2, text="because")
    _write(path, [whole[0], _changed(2), note, _changed(3), whole[1], _changed(5), _changed(6)])
    assert follower.newest() == [note, whole[1], _changed(5), _changed(6)]
    _write(path, [_changed(7), note])
    assert follower.newest() == [_changed(7), note]
    _write(path, [_changed(8), whole[0]])
    assert follower.newest() == [whole[0]]


@pytest.mark.parametrize("cut", range(2, 80))
def test_the_newest_name_a_line_that_was_cut_off_by_its_number(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    _write(path, [OPENED, READING])
    path.write_bytes(path.read_bytes()[:-cut])
    _write(path, [_reading("measured", 6)])
    follower = Follower(path)
    assert follower.newest() == [OPENED, _reading("measured", 6)]
    assert len(follower.left_out) == 1
    assert follower.left_out[0].startswith("log: line 2 cannot be read")


def test_a_log_that_became_shorter_is_read_anew_and_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    _write(path)
    assert follower.new() == RECORDS
    path.write_bytes(b"")
    _write(path, [OPENED])
    assert follower.new() == [OPENED]
    assert follower.left_out == ["log: it became shorter and is read again from its beginning"]


def test_a_log_of_a_newer_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    newer = OPENED.__class__(run="r", trial=0, rank=0, time_ns=0, pid=1, host="h", schema_version=SCHEMA_VERSION + 1)
    _write(tmp_path / "log", [newer])
    with pytest.raises(NewerSchema, match=rf"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"):
        read(tmp_path / "log")


@pytest.mark.parametrize(("old", "new"), [("probed", "probe"), ("told", "nccl_log")])
def test_readings_of_schema_version_2_are_read_like_those_of_today(old: str, new: Mark, tmp_path: Path) -> None:
    for name, version, mark in (("old", 2, old), ("new", SCHEMA_VERSION, new)):
        (tmp_path / name).write_text(
            '{"type":"opened","run":"r","trial":0,"rank":1,"time_ns":1,"pid":2,"host":"here","gpu_uuid":null,'
            f'"schema_version":{version}}}\n'
            f'{{"type":"reading","trial":0,"time_ns":2,"mark":"{mark}","step":5,"begun_ns":1,'
            '"samples":[["observatory_collective_seconds",0.5,{"collective":"told"}]]}\n'
        )
    opened, reading = read(tmp_path / "old").records
    assert isinstance(reading, Reading)
    assert (reading.mark, reading.samples[0].labels) == (new, {"collective": "told"})
    assert [msgspec.structs.replace(opened, schema_version=SCHEMA_VERSION), reading] == read(tmp_path / "new").records
    for name in ("old", "new"):
        assert Follower(tmp_path / name).newest() == read(tmp_path / name).records

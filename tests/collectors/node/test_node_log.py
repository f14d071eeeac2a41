"""A node's log holds what changed, and gives back all that was polled."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.metrics.host import HOST_LOAD
from collectors.metrics.metric import Sample
from collectors.sample_log import (
    WHOLE_EACH,
    Changed,
    Follower,
    NodeLogWriter,
    NodeOpened,
    NodeState,
    Note,
    Polled,
    Record,
    SampleLog,
    open_node_log,
    read,
)


def _samples(*values: float) -> list[Sample]:
    return [Sample("x_watts", value, {"gpu": str(gpu)}) for gpu, value in enumerate(values)]


def _write(path: Path, *beats: list[Sample], first_ns: int = 1) -> None:
    log = SampleLog(path)
    writer = NodeLogWriter(log)
    for time_ns, samples in enumerate(beats, start=first_ns):
        writer.write(samples, time_ns=time_ns)
    log.close()


def _followed(records: list[Record]) -> list[tuple[int | None, list[Sample]]]:
    state = NodeState()
    return [(state.time_ns, list(state.samples)) for record in records if state.take(record)]


def test_a_log_opens_with_whose_it_is(tmp_path: Path) -> None:
    open_node_log(tmp_path / "log", run="r", node=3, now_ns=lambda: 9).close()
    (opened,) = read(tmp_path / "log").records
    assert isinstance(opened, NodeOpened)
    assert (opened.run, opened.node, opened.time_ns) == ("r", 3, 9)


def test_between_whole_beats_only_what_changed_is_written(tmp_path: Path) -> None:
    _write(tmp_path / "log", _samples(1, 2, 3), _samples(1, 5, 3), _samples(1, 5, 3), _samples(4, 5, 6))
    assert read(tmp_path / "log").records == [
        Polled(time_ns=1, samples=_samples(1, 2, 3)),
        Changed(time_ns=2, since_ns=1, values=[(1, 5)]),
        Changed(time_ns=3, since_ns=1, values=[]),
        Changed(time_ns=4, since_ns=1, values=[(0, 4), (2, 6)]),
    ]


def test_each_sixtieth_beat_is_whole(tmp_path: Path) -> None:
    _write(tmp_path / "log", *[_samples(1)] * (2 * WHOLE_EACH + 1))
    kinds = [type(record) for record in read(tmp_path / "log").records]
    assert kinds == [Polled, *[Changed] * (WHOLE_EACH - 1)] * 2 + [Polled]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(_samples(1), id="gone"),
        pytest.param(_samples(1, 2, 3), id="new"),
        pytest.param(list(reversed(_samples(1, 2))), id="in another order"),
        pytest.param([*_samples(1), Sample("y_watts", 2, {"gpu": "1"})], id="another metric"),
    ],
)
def test_other_series_make_a_beat_whole(others: list[Sample], tmp_path: Path) -> None:
    _write(tmp_path / "log", _samples(1, 2), others, others)
    assert read(tmp_path / "log").records == [
        Polled(time_ns=1, samples=_samples(1, 2)),
        Polled(time_ns=2, samples=others),
        Changed(time_ns=3, since_ns=2, values=[]),
    ]


beats = st.lists(st.lists(st.integers(0, 2).map(float), max_size=3), min_size=1, max_size=150)


@given(values=beats)
def test_a_reader_finds_each_beat_as_it_was(
    values: list[list[float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("node") / "log"
    polled = [_samples(*row) for row in values]
    _write(path, *polled)
    assert _followed(read(path).records) == list(enumerate(polled, start=1))


@given(values=beats, looks=st.sets(st.integers(1, 150)))
def test_who_wants_the_present_only_finds_the_last_beat_at_each_look(
    values: list[list[float]], looks: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("node") / "log"
    polled = [_samples(*row) for row in values]
    follower, state, log = Follower(path), NodeState(), SampleLog(path)
    writer = NodeLogWriter(log)
    for number, samples in enumerate(polled, start=1):
        writer.write(samples, time_ns=number)
        if number in looks:
            for record in follower.newest():
                state.take(record)
            assert (state.time_ns, state.samples) == (number, samples)
    log.close()


def test_changes_to_a_whole_beat_that_was_lost_are_ignored_until_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _write(path, _samples(1, 2), _samples(1, 2, 3), _samples(1, 2, 4), _samples(5, 2))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20] + b"\n" + b"".join(lines[2:]))
    assert _followed(read(path).records) == [(1, _samples(1, 2)), (4, _samples(5, 2))]


def test_a_second_trial_begins_with_a_whole_beat(tmp_path: Path) -> None:
    _write(tmp_path / "log", _samples(1, 2), _samples(1, 3))
    _write(tmp_path / "log", _samples(1, 3), _samples(2, 3), first_ns=10)
    expected = [(1, _samples(1, 2)), (2, _samples(1, 3)), (10, _samples(1, 3)), (11, _samples(2, 3))]
    assert _followed(read(tmp_path / "log").records) == expected


def test_a_log_of_whole_beats_only_is_read_as_before(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "log")
    log.write(NodeOpened(run="r", node=0, time_ns=1, host="here", schema_version=1))
    for time_ns in (2, 3):
        log.write(Polled(time_ns=time_ns, samples=[HOST_LOAD.at(time_ns)]))
    log.write(Note(trial=0, time_ns=4, text="because"))
    log.close()
    contents = read(tmp_path / "log")
    assert _followed(contents.records) == [(2, [HOST_LOAD.at(2)]), (3, [HOST_LOAD.at(3)])]
    assert contents.left_out == []

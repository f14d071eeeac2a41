"""A beat keeps its moments, whatever happens between them; its clock is the test's."""

import threading

from collectors.background import Beat

SECOND = 1_000_000_000


class FakeTime:
    """Only waiting and the test move it. wakes_late_s: how much later than asked each wait ends."""

    def __init__(self, *, wakes_late_s: float = 0.0, is_told_after: int = 1000) -> None:
        self.now = 3 * SECOND + 5
        self.waited_s: list[float] = []
        self._wakes_late_s = wakes_late_s
        self._left = is_told_after

    def clock_ns(self) -> int:
        return self.now

    def wait(self, told: threading.Event, seconds: float) -> bool:
        self.waited_s.append(round(seconds, 9))
        self.now += round((seconds + self._wakes_late_s) * SECOND)
        self._left -= 1
        return self._left < 0


def _beat(time: FakeTime, beat_s: float = 1.0) -> Beat:
    return Beat(beat_s, clock_ns=time.clock_ns, wait=time.wait)


def test_work_between_two_moments_shortens_the_wait_and_moves_no_moment() -> None:
    time = FakeTime()
    beat = _beat(time)
    for worked_s in (0.25, 0.75):
        time.now += round(worked_s * SECOND)
        assert not beat.wait(threading.Event())
    assert time.waited_s == [0.75, 0.25]
    assert (beat.reached, beat.missed, beat.passed, beat.late_s) == (3, 0, 2, 0.0)


def test_moments_that_went_by_are_skipped_and_counted() -> None:
    time = FakeTime()
    beat = _beat(time)
    time.now += round(3.5 * SECOND)
    beat.wait(threading.Event())
    assert time.waited_s == [0.5]
    assert (beat.reached, beat.missed, beat.passed) == (2, 3, 4)


def test_waking_late_is_added_up_and_moves_no_moment() -> None:
    time = FakeTime(wakes_late_s=0.25)
    beat = _beat(time)
    for _ in range(4):
        beat.wait(threading.Event())
    assert time.waited_s == [1.0, 0.75, 0.75, 0.75]
    assert beat.late_s == 1.0


def test_waking_early_is_no_missed_beat_and_no_second_one() -> None:
    time = FakeTime(wakes_late_s=-0.001)
    beat = _beat(time)
    for _ in range(3):
        beat.wait(threading.Event())
    assert time.waited_s == [1.0, 1.001, 1.001]
    assert (beat.reached, beat.missed, beat.late_s) == (4, 0, 0.0)


def test_told_to_stop_it_keeps_no_beat() -> None:
    beat = _beat(FakeTime(is_told_after=0))
    assert beat.wait(threading.Event())
    assert beat.reached == 1


def test_a_tenth_of_a_second_does_not_drift_in_an_hour() -> None:
    time = FakeTime()
    beat = _beat(time, 0.1)
    for _ in range(36_000):
        beat.wait(threading.Event())
    assert time.now - 3 * SECOND - 5 == 3600 * SECOND

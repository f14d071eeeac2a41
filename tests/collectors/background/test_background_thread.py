"""A thread in the background ends when it is told, and one that hangs is left behind."""

import threading

from collectors.background import BackgroundThread
from tests.collectors.fake_collectors import FakeHang, ended


def test_a_thread_runs_until_it_is_told_to_stop() -> None:
    has_begun = threading.Event()

    def run(stop_requested: threading.Event) -> None:
        has_begun.set()
        stop_requested.wait(60)

    thread = BackgroundThread("patient", run)
    thread.start()
    assert has_begun.wait(60)
    assert thread.stop(60)
    assert thread.stop(0)


def test_a_thread_that_hangs_is_left_behind() -> None:
    hang = FakeHang()
    thread = BackgroundThread("hanging", lambda stop_requested: hang())
    thread.start()
    assert not thread.stop(0.01)
    hang.let_go()
    ended("hanging")

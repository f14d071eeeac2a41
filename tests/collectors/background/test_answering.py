"""A question in a thread of its own: asked, waited for, given up."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from collectors.background import BackgroundTask

LONG_S = 30.0
SOON_S = 0.01


def test_the_latest_answer_is_kept() -> None:
    numbers = count()
    answerer = BackgroundTask("test", lambda: next(numbers))
    assert answerer.latest is None
    for expected in (0, 1):
        answerer.ask()
        assert answerer.wait(LONG_S)
        assert answerer.latest == expected
    assert answerer.close(LONG_S)


def test_a_question_that_does_not_return_is_not_waited_for_longer_and_not_asked_twice() -> None:
    turns, begun = threading.Semaphore(0), []

    def hang() -> None:
        begun.append(1)
        turns.acquire()

    answerer = BackgroundTask("test", hang)
    answerer.ask()
    assert not answerer.wait(SOON_S)
    answerer.ask()
    assert not answerer.wait(0)
    turns.release()
    assert answerer.wait(LONG_S)
    assert answerer.close(1.0), "it hangs in a second turn"
    assert begun == [1]


def test_a_thread_that_hangs_is_left_behind() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        let_go.wait()

    answerer = BackgroundTask("test", hang)
    answerer.ask()
    begun.wait()
    assert not answerer.close(SOON_S)
    let_go.set()
    assert answerer.close(LONG_S)


def test_what_the_question_raises_is_raised_where_it_is_waited_for_once() -> None:
    def fail() -> int:
        raise ValueError("no")

    answerer = BackgroundTask("test", fail)
    answerer.ask()
    with pytest.raises(ValueError, match="no"):
        answerer.wait(LONG_S)
    assert answerer.wait(0)
    assert answerer.latest is None
    answerer.close(LONG_S)

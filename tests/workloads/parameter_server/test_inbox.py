"""A server takes what workers pushed in the order of arrival, and never waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

from workloads.parameter_server.messages import Inbox, PeerLost, Push

SOON_S = 0.01
LATE_S = 60.0


def push_of(worker: int) -> Push:
    weights: Future[Tensor] = Future()
    return Push(worker=worker, gradients=torch.zeros(1), is_finite=True, weights=weights)


def test_pushes_are_taken_in_the_order_in_which_they_came() -> None:
    inbox = Inbox(LATE_S)
    for worker in (3, 1, 2):
        inbox.put(push_of(worker))
    assert [inbox.take({1, 2, 3}).worker for _ in range(3)] == [3, 1, 2]


def test_a_push_that_comes_later_is_waited_for() -> None:
    inbox = Inbox(LATE_S)
    threading.Timer(SOON_S, inbox.put, [push_of(1)]).start()
    assert inbox.take({1}).worker == 1


def test_a_worker_that_is_gone_matters_only_where_it_is_awaited() -> None:
    inbox = Inbox(LATE_S)
    inbox.note_loss(1)
    inbox.put(push_of(2))
    assert inbox.take({2}).worker == 2
    with pytest.raises(PeerLost, match=r"^Connection closed: rank 1 is gone"):
        inbox.take({1, 2})


def test_silence_ends_at_the_timeout_and_names_who_is_awaited() -> None:
    with pytest.raises(PeerLost, match=r"^timed out after 0\.01 s of waiting for gradients of ranks 1, 2$"):
        Inbox(SOON_S).take({2, 1})


def test_a_server_is_not_done_before_its_answer_has_arrived() -> None:
    inbox, push = Inbox(SOON_S), push_of(1)
    inbox.answer(push, torch.ones(1))
    assert push.weights.done()
    with pytest.raises(PeerLost, match=r"^timed out after 0\.01 s of waiting for a receipt from ranks 1$"):
        inbox.settle()
    inbox.note_arrival(1)
    inbox.settle()


def test_a_receipt_that_is_late_is_not_taken_for_that_of_the_next_answer() -> None:
    inbox = Inbox(SOON_S)
    for _ in range(2):
        inbox.answer(push_of(1), torch.ones(1))
    inbox.note_arrival(1)
    with pytest.raises(PeerLost, match="receipt"):
        inbox.settle()


def test_nobody_waits_for_the_receipt_of_a_worker_that_is_gone() -> None:
    inbox = Inbox(LATE_S)
    inbox.answer(push_of(1), torch.ones(1))
    inbox.note_loss(1)
    inbox.settle()

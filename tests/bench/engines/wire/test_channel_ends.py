"""What a channel does before both sides have met, how it says why it ended, and what it leaves behind."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.engines.wire.channel import WAITING, Channel, ChannelThreads, Heartbeat, Silence
from bench.engines.wire.frames import (
    PROTOCOL,
    SPOKEN,
    Refused,
    SignedWire,
    SocketStream,
    Stream,
    StreamEnded,
    meet,
    new_key,
)
from bench.rank.messages import AgentFailed, EndTrial, FromAgent, ToAgent

KEY = new_key()
WITHIN_S = 60.0
NEVER_S = 3600.0
"""So rare are heartbeats where a test counts what is sent."""


class Ends:
    """Two connected sockets, a channel on the first one, and what it told its owner."""

    def __init__(self, stack: ExitStack) -> None:
        self.ours, self.theirs = (stack.enter_context(end) for end in socket.socketpair())
        self.messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.threads = ChannelThreads(beat_s=NEVER_S, tick_s=0.01)
        stack.callback(self.threads.close, WITHIN_S)

    def channel(
        self,
        opening: Callable[[Stream], SignedWire] | None = None,
        *,
        stream: SocketStream | None = None,
        on_message: Callable[[object], None] | None = None,
        silent_s: float = NEVER_S,
    ) -> Channel[FromAgent]:
        """A runner's channel that has begun to meet its agent."""
        made: Channel[FromAgent] = Channel(
            self.threads,
            stream or SocketStream(self.ours),
            opening or partial(meet, key=KEY, side="runner"),
            msgspec.json.Decoder(FromAgent | Heartbeat),
            on_message=on_message or self.messages.put,
            on_end=self.reasons.put,
            silence=lambda: Silence(limit_s=silent_s, tick_s=0.01),
        )
        made.start()
        return made

    def agent(self) -> SignedWire:
        """The other end, once it has met the channel's side."""
        return meet(SocketStream(self.theirs), KEY, "agent")

    def reason(self) -> str:
        """Why the channel ended, when it has."""
        return self.reasons.get(timeout=WITHIN_S)

    def end(self, channel: Channel[FromAgent]) -> None:
        """End the channel from both sides."""
        self.ours.shutdown(socket.SHUT_RDWR)
        channel.hang_up(WITHIN_S)
        assert channel.join(WITHIN_S)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


def _order(number: int) -> EndTrial:
    return EndTrial(run="r", trial=number)


def _received(wire: SignedWire) -> ToAgent | Heartbeat:
    message: ToAgent | Heartbeat = msgspec.json.decode(wire.receive(), type=ToAgent | Heartbeat)
    return message


# Before both sides have met


class Gate:
    """Opens a wire once it may. is_asked: a thread waits in it."""

    def __init__(self) -> None:
        self.is_asked, self.may_open = threading.Event(), threading.Event()

    def __call__(self, stream: Stream) -> SignedWire:
        self.is_asked.set()
        self.may_open.wait(WITHIN_S)
        return meet(stream, KEY, "runner")


def _full(ends: Ends, gate: Gate) -> tuple[Channel[FromAgent], threading.Thread, queue.SimpleQueue[bool]]:
    """Return a channel in which no more messages may wait, the thread that sends one more, and what `send` answers."""
    channel = ends.channel(gate)
    for number in range(WAITING):
        assert channel.send(_order(number))
    sent = queue.SimpleQueue[bool]()
    sending = threading.Thread(target=lambda: sent.put(channel.send(_order(WAITING))), daemon=True)
    sending.start()
    return channel, sending, sent


def test_a_bounded_number_of_messages_waits_for_the_other_side_and_all_arrive_in_order(ends: Ends) -> None:
    gate = Gate()
    channel, sending, sent = _full(ends, gate)
    sending.join(0.05)
    assert sending.is_alive()  # It waits for room.
    gate.may_open.set()
    agent = ends.agent()
    assert [_received(agent) for _ in range(WAITING + 1)] == [_order(number) for number in range(WAITING + 1)]
    assert sent.get(timeout=WITHIN_S)
    ends.end(channel)


def test_who_waits_to_send_is_told_when_nothing_can_be_sent_any_more(ends: Ends) -> None:
    gate = Gate()
    channel, _, sent = _full(ends, gate)
    channel.hang_up(0.0)
    assert sent.get(timeout=WITHIN_S) is False
    ends.theirs.close()
    gate.may_open.set()
    assert channel.join(WITHIN_S)


def test_who_waits_for_the_other_side_keeps_no_process_from_ending(ends: Ends) -> None:
    gate = Gate()
    channel = ends.channel(gate)
    assert gate.is_asked.wait(WITHIN_S)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "meeting"] == [True]
    ends.theirs.close()
    gate.may_open.set()
    assert channel.join(WITHIN_S)


def test_a_channel_that_has_met_nobody_can_hang_up(ends: Ends) -> None:
    gate = Gate()
    channel = ends.channel(gate)
    assert gate.is_asked.wait(WITHIN_S)
    assert channel.hang_up(0.01)
    assert ends.theirs.recv(1) == b""
    assert not channel.send(_order(0))
    assert not channel.join(0.01)  # The opening has not ended yet.
    gate.may_open.set()
    ends.theirs.close()
    assert ends.reason() == "the agent hung up"
    assert channel.join(WITHIN_S)


def _raising(error: Exception) -> Callable[[Stream], SignedWire]:
    def opening(stream: Stream) -> SignedWire:
        raise error

    return opening


@pytest.mark.parametrize(
    ("error", "reason", "is_refused"),
    [
        (Refused("another key"), "another key", True),
        (StreamEnded("the agent hung up"), "the agent hung up", False),
        (ConnectionResetError("reset"), "the connection is lost (reset)", False),
        (ValueError("closed file"), "the connection is lost (closed file)", False),
    ],
)
def test_an_opening_that_fails_ends_the_channel_with_its_reason(
    ends: Ends, error: Exception, reason: str, is_refused: bool
) -> None:
    channel = ends.channel(_raising(error))
    assert ends.reason() == reason
    assert (channel.reason, channel.is_refused, channel.is_silent) == (reason, is_refused, False)
    assert not channel.send(_order(0))
    assert channel.join(WITHIN_S)
    assert ends.theirs.recv(1) == b""
    assert ends.reasons.empty()  # It was told once.


def test_the_protocol_is_ours_until_the_other_side_has_named_its_own(ends: Ends) -> None:
    older = min(SPOKEN)
    assert older != PROTOCOL
    channel = ends.channel(partial(meet, key=KEY, side="runner", protocol=older))
    assert channel.protocol == PROTOCOL
    agent = meet(SocketStream(ends.theirs), KEY, "agent", protocol=older)
    agent.send(msgspec.json.encode(AgentFailed(text="met")))
    assert ends.messages.get(timeout=WITHIN_S) == AgentFailed(text="met")
    assert channel.protocol == older
    ends.end(channel)


# While it lasts


class Narrow(SocketStream):
    """A stream that has room for one byte at a time."""

    def write_some(self, data: memoryview) -> int:
        return super().write_some(data[:1])


def test_a_frame_that_fits_only_in_parts_arrives_whole(ends: Ends) -> None:
    channel = ends.channel(stream=Narrow(ends.ours))
    agent = ends.agent()
    for number in range(2):
        assert channel.send(_order(number))
    assert [_received(agent), _received(agent)] == [_order(0), _order(1)]
    ends.end(channel)


def test_what_did_not_fit_is_sent_once_the_other_side_reads(ends: Ends) -> None:
    ends.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    channel = ends.channel()
    agent = ends.agent()
    numbers = range(200)  # More than fit into the stream and the queue.
    sending = threading.Thread(target=lambda: [channel.send(_order(number)) for number in numbers], daemon=True)
    sending.start()
    sending.join(0.05)
    assert sending.is_alive()  # It waits for room.
    assert [_received(agent) for _ in numbers] == [_order(number) for number in numbers]
    sending.join(WITHIN_S)
    ends.end(channel)


def test_an_idle_channel_beats_again_and_again(ends: Ends) -> None:
    ends.threads.close(WITHIN_S)
    ends.threads = ChannelThreads(beat_s=0.02, tick_s=0.01)
    channel = ends.channel()
    agent = ends.agent()
    assert [_received(agent) for _ in range(3)] == [Heartbeat()] * 3
    ends.end(channel)
    ends.threads.close(WITHIN_S)


class ByHand(ChannelThreads):
    """Threads that do nothing: the test sends in their place. is_met: both sides have met."""

    def __init__(self) -> None:
        self.is_met = threading.Event()

    def add(self, channel: Channel[Any]) -> None:
        self.is_met.set()

    def wake(self, channel: Channel[Any]) -> None:
        pass


def test_a_beat_is_one_heartbeat_until_the_side_hangs_up(ends: Ends) -> None:
    ends.threads.close(WITHIN_S)
    ends.threads = by_hand = ByHand()
    channel = ends.channel()
    assert channel.send_some(is_beat=True) == "idle"  # Nobody is there yet.
    agent = ends.agent()
    assert by_hand.is_met.wait(WITHIN_S)
    assert channel.send_some(is_beat=False) == "idle"
    assert channel.send_some(is_beat=True) == "idle"
    assert channel.send(_order(0))
    assert channel.send_some(is_beat=False) == "idle"
    assert [_received(agent), _received(agent)] == [Heartbeat(), _order(0)]
    assert channel.send(_order(1))
    channel.hang_up(0.0)
    assert channel.send_some(is_beat=True) == "done"
    channel.hung_up()
    assert _received(agent) == _order(1)
    with pytest.raises(StreamEnded):
        agent.receive()
    assert channel.send_some(is_beat=True) == "idle"


def test_a_side_that_is_gone_gets_nothing_more(ends: Ends) -> None:
    ends.threads.close(WITHIN_S)
    ends.threads = by_hand = ByHand()
    channel = ends.channel()
    ends.agent()
    assert by_hand.is_met.wait(WITHIN_S)
    ends.theirs.close()
    assert not channel.receive()
    assert ends.reason() == "the agent hung up"
    assert channel.send_some(is_beat=True) == "idle"  # Nobody waits for a heartbeat.
    assert channel.send(_order(0))
    assert channel.send_some(is_beat=False) == "done"


def test_what_arrived_before_the_other_side_hung_up_is_handled_first(ends: Ends) -> None:
    channel = ends.channel()
    agent = ends.agent()
    for number in range(3):
        agent.send(msgspec.json.encode(AgentFailed(text=str(number))))
    agent.stream.hang_up()
    assert ends.reason() == "the agent hung up"
    assert [ends.messages.get_nowait() for _ in range(3)] == [AgentFailed(text=str(number)) for number in range(3)]
    assert (channel.is_refused, channel.is_silent) == (False, False)
    ends.end(channel)


def test_a_message_that_its_handler_refuses_ends_the_channel_as_refused(ends: Ends) -> None:
    def refuse(message: object) -> None:
        raise Refused("not asked for")

    channel = ends.channel(on_message=refuse)
    ends.agent().send(msgspec.json.encode(AgentFailed(text="x")))
    assert ends.reason() == "not asked for"
    assert (channel.is_refused, channel.is_silent) == (True, False)
    ends.end(channel)


def test_silence_is_told_as_such_and_once(ends: Ends) -> None:
    channel = ends.channel(silent_s=0.05)
    agent = ends.agent()
    assert ends.reason() == "no message for 0.05 s"
    assert (channel.is_refused, channel.is_silent) == (False, True)
    agent.send(msgspec.json.encode(AgentFailed(text="too late")))
    ends.end(channel)
    assert ends.reasons.empty()
    assert channel.reason == "no message for 0.05 s"


def test_join_waits_for_the_other_side(ends: Ends) -> None:
    channel = ends.channel()
    agent = ends.agent()
    assert channel.hang_up(WITHIN_S)
    assert not channel.join(0.01)
    agent.stream.hang_up()
    assert channel.join(WITHIN_S)
    assert ends.reason() == "the agent hung up"


@pytest.mark.parametrize(
    ("steps_s", "is_silent"),
    [
        ([0.5, 0.5], [False, True]),
        ([0.5, 0.49], [False, False]),
        ([9.0], [True]),  # A late tick counts as two.
        ([0.9, 0.09], [False, False]),
    ],
)
def test_silence_is_counted_in_ticks_up_to_its_limit(steps_s: list[float], is_silent: list[bool]) -> None:
    now_s = [100.0]
    silence = Silence(limit_s=1.0, tick_s=0.5, clock=lambda: now_s[0])
    found = []
    for step_s in steps_s:
        now_s[0] += step_s
        found.append(silence.tick())
    assert found == is_silent
    silence.heard()
    now_s[0] += 9.0
    assert not silence.tick()


# What is left


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closed_threads_leave_no_thread_and_no_descriptor() -> None:
    descriptors, before = _descriptors(), set(threading.enumerate())
    threads = ChannelThreads()
    mine = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in mine) == ["receiving", "sending", "watching"]
    threads.close(WITHIN_S)
    threads.close(WITHIN_S)
    assert not [thread for thread in mine if thread.is_alive()]
    assert _descriptors() == descriptors


def test_a_closed_engine_s_channel_may_still_be_told_to_send() -> None:
    with ExitStack() as stack:
        ends = Ends(stack)
        channel = ends.channel()
        ends.agent()
        ends.end(channel)
        ends.threads.close(WITHIN_S)
        assert not channel.send(_order(0))
        ends.threads.wake(channel)  # Its descriptors are closed: nothing happens.

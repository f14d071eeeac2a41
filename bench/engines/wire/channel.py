"""Channels: messages to and from the other side of a wire, with heartbeats, so that neither side outlives the other.

Each side sends something every `BEAT_S`, a heartbeat if nothing else, and ends itself when it has heard nothing for
`SILENT_S`. Three threads serve all channels of an engine, however many there are: one sends, one receives and one
watches for silence, so that neither a trial nor a full pipe delays the other channels.

The limits: at a load of 40 on two cores a thread wakes within a second, so a healthy side's heartbeat arrives in time
even when three in a row are late. Silence is detected after 8 s at the latest (`SILENT_S` and two ticks), which leaves
a side 2 s to end its ranks within 10 s of the other's death. The watching thread counts silence in its own ticks, and a
late tick counts as two at most. So a machine that is too busy to count ends no healthy pair, and a process that was
stopped, or slept with its laptop, first reads what has arrived. Bytes that have arrived end the silence, read or not.
"""

from __future__ import annotations

import os
import queue
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar

import msgspec

from bench.engines.wire.frames import PROTOCOL, Refused, SignedWire, Stream, StreamEnded
from collectors.background import BackgroundThread

BEAT_S = 2.0
SILENT_S = 7.0
TICK_S = 0.5
WAITING = 32
"""How many messages may wait to be sent; with more, their senders wait."""
_READ_BYTES = 1 << 16


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="heartbeat"):
    """Shows that its sender is alive."""


_HEARTBEAT = msgspec.json.encode(Heartbeat())
Message = TypeVar("Message")


class Silence:
    """Counts for how long the other side was silent. clock: monotonic, in seconds."""

    def __init__(
        self, *, limit_s: float = SILENT_S, tick_s: float = TICK_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_s = limit_s
        self._tick_s, self._clock = tick_s, clock
        self._silent_s = 0.0
        self._is_heard = False
        self._ticked_s = clock()

    def heard(self) -> None:
        """Record that something arrived; may be called from any thread."""
        self._is_heard = True

    def tick(self) -> bool:
        """Return whether the other side was silent for too long; call it every `tick_s`."""
        now_s = self._clock()
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self._is_heard:
            self._is_heard, self._silent_s = False, 0.0
        else:
            self._silent_s += min(passed_s, 2 * self._tick_s)
        return self._silent_s >= self.limit_s


class Channel(Generic[Message]):
    """Sends and receives messages until either side hangs up, is silent, or is refused; then it has a `reason`.

    opening: returns the stream's wire once both sides have met; called in a thread of its own.
    decoder: decodes the other side's messages and heartbeats.
    on_message: called in the receiving thread; may raise Refused. on_end: called once with the reason, in the receiving
    thread, the watching thread or that of `opening`.
    silence: counts from the moment when both sides have met.
    """

    def __init__(
        self,
        threads: ChannelThreads,
        stream: Stream,
        opening: Callable[[Stream], SignedWire],
        decoder: msgspec.json.Decoder[Message | Heartbeat],
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        silence: Callable[[], Silence] = Silence,
    ) -> None:
        self.reason: str | None = None
        self.is_refused = self.is_silent = False
        self.stream = stream
        self.has_received, self.has_sent = threading.Event(), threading.Event()  # Everything, to the end.
        self._threads, self._opening, self._decoder = threads, opening, decoder
        self._on_message, self._on_end, self._new_silence = on_message, on_end, silence
        self._wire: SignedWire | None = None  # Once both sides have met.
        self._silence: Silence  # From then on.
        self._is_handling = False  # A message is being handled, and nothing else is read meanwhile.
        self._changed = threading.Condition()  # Guards all that follows.
        self._outgoing: deque[bytes] = deque()
        self._unsent = memoryview(b"")  # The rest of a frame that is being sent.
        self.sent_s = time.monotonic()  # When the last frame was begun.
        self._has_ended = self._is_leaving = self._is_cut = False

    @property
    def protocol(self) -> int:
        """The other side's protocol; this program's until both sides have met."""
        return PROTOCOL if self._wire is None or self._wire.peer is None else self._wire.peer.protocol

    def start(self) -> None:
        """Meet the other side in another thread; then begin to receive and to send."""
        threading.Thread(target=self._meet, name="meeting", daemon=True).start()

    def send(self, message: msgspec.Struct) -> bool:
        """Queue a message, waiting while the queue is full. Return False if it can no longer be sent."""
        body = msgspec.json.encode(message)
        with self._changed:
            while len(self._outgoing) >= WAITING and not (self._has_ended or self._is_leaving):
                self._changed.wait()
            if self._is_leaving or len(self._outgoing) >= WAITING:
                return False
            self._outgoing.append(body)
        self._threads.wake(self)
        return True

    def hang_up(self, within_s: float) -> bool:
        """Send the queued messages within this time, then hang up; return whether all were sent. May be called again.

        If they were not sent, the other side does not read: end it, or abort the stream.
        """
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        self._threads.wake(self)
        if not self.has_sent.wait(within_s):
            self._hang_up_unmet()
        return self.has_sent.is_set()

    def join(self, within_s: float) -> bool:
        """Wait until the other side has hung up, then also stop sending; return whether both happened in time."""
        if not self.has_received.wait(within_s):
            return False
        self._hang_up_unmet()
        self._is_cut = True
        self._threads.wake(self)
        return self.has_sent.wait(within_s)

    def _meet(self) -> None:
        try:
            wire = self._opening(self.stream)
        except (Refused, StreamEnded, OSError, ValueError) as error:
            self._end(error)
            self.has_received.set()
            return
        self._silence = self._new_silence()
        with self._changed:
            self._wire = wire
        self._threads.add(self)

    def _hang_up_unmet(self) -> None:
        with self._changed:
            if self._wire is None:
                self.hung_up()

    def _end(self, error: Exception) -> None:
        with self._changed:
            if self._has_ended:
                return
            self.is_refused = isinstance(error, Refused)
            is_lost = isinstance(error, OSError | ValueError)  # A ValueError: this side has closed the file.
            self.reason = f"the connection is lost ({error})" if is_lost else str(error)
            self._has_ended = True
            self._changed.notify_all()
        self._hang_up_unmet()
        self._on_end(self.reason)

    # Called in the threads that channels share.

    def receive(self) -> bool:
        """Handle what has arrived, without waiting for more; return whether more can arrive."""
        assert self._wire is not None, "the sides have met"
        try:
            self._wire.feed(self.stream.read(_READ_BYTES))
            self._is_handling = True
            while (body := self._wire.next_body()) is not None:
                message = self._decoded(body)
                if not isinstance(message, Heartbeat):
                    self._on_message(message)
            self._silence.heard()
        except (Refused, StreamEnded, OSError, ValueError) as error:
            self._end(error)
            return False
        except Exception as error:  # noqa: BLE001 - A bug of ours is printed, and ends this channel only.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            self._end(StreamEnded(f"a message could not be handled: {error!r}"))
            return False
        finally:
            self._is_handling = False
        return True

    def _decoded(self, body: bytes) -> Message | Heartbeat:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"a message is malformed: {error}") from None

    def send_some(self, *, is_beat: bool) -> Literal["idle", "full", "done"]:
        """Send what is queued, without waiting.

        is_beat: send a heartbeat if nothing is queued.

        Returns: "idle" if all is sent, "full" if the stream has no room now, "done" if nothing will be sent any more.
        """
        if self._wire is None or self.has_sent.is_set():
            return "idle"
        try:
            while not self._is_cut:
                if not self._unsent:
                    with self._changed:
                        if self._outgoing:
                            body = self._outgoing.popleft()
                            self._changed.notify_all()
                        elif self._is_leaving:
                            break
                        elif is_beat and not self._has_ended:  # After the end, nobody waits for a heartbeat.
                            body, is_beat = _HEARTBEAT, False
                        else:
                            return "idle"
                    self._unsent, self.sent_s = memoryview(self._wire.frame(body)), time.monotonic()
                if not (count := self.stream.write_some(self._unsent)):
                    return "full"
                self._unsent = self._unsent[count:]
        except (OSError, ValueError):  # The other side is gone, which the receiving thread also notices.
            pass
        return "done"

    def hung_up(self) -> None:
        """Close the sending end, once nothing more is sent."""
        self.stream.hang_up()
        self.has_sent.set()
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()

    def watch(self) -> None:
        """End the channel if the other side was silent for too long; called every tick."""
        if self._has_ended:
            return
        if self._is_handling or self._has_unread():  # A busy machine reads late what arrived in time.
            self._silence.heard()
        if self._silence.tick():
            self.is_silent = True
            self._end(StreamEnded(f"no message for {self._silence.limit_s:g} s"))

    def _has_unread(self) -> bool:
        try:
            return self.stream.has_unread()
        except (OSError, ValueError):  # The stream is closed.
            return False


class ChannelThreads:
    """The threads that serve an engine's channels, until they are closed.

    Sending and receiving never wait for one channel. Handling a message may, and messages that arrive meanwhile wait.
    """

    def __init__(self, *, beat_s: float = BEAT_S, tick_s: float = TICK_S) -> None:
        self._beat_s, self._tick_s = beat_s, tick_s
        self._channels: set[Channel[Any]] = set()  # Both sides have met; more may arrive.
        self._due: queue.SimpleQueue[Channel[Any]] = queue.SimpleQueue()  # To the sending thread.
        self._full: set[Channel[Any]] = set()  # Only the sending thread uses it: they wait for room.
        self._receiving, self._sending = selectors.DefaultSelector(), selectors.DefaultSelector()
        self._awake, self._closed = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._lock = threading.Lock()  # Guards these two, and whether they are open.
        self._is_closed = False
        self._sending.register(self._awake, selectors.EVENT_READ)
        for selector in (self._sending, self._receiving):
            selector.register(self._closed, selectors.EVENT_READ)
        self._threads = [
            BackgroundThread("sending", self._send),
            BackgroundThread("receiving", self._receive),
            BackgroundThread("watching", self._watch),
        ]
        for thread in self._threads:
            thread.start()

    def add(self, channel: Channel[Any]) -> None:
        """Serve a channel whose sides have met."""
        self._channels.add(channel)
        self._receiving.register(channel.stream.reading_fd, selectors.EVENT_READ, channel)
        self.wake(channel)

    def wake(self, channel: Channel[Any]) -> None:
        """Have the channel send what is queued."""
        self._due.put(channel)
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._awake, 1)

    def close(self, within_s: float) -> None:
        """End the threads, once all channels have been joined; a second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.eventfd_write(self._closed, 1)
        has_stopped = [thread.stop(within_s) for thread in self._threads]
        if all(has_stopped):
            for selector in (self._sending, self._receiving):
                selector.close()
            os.close(self._awake)
            os.close(self._closed)

    def _receive(self, stop_requested: threading.Event) -> None:
        while not stop_requested.is_set():
            for key, _ in self._receiving.select():
                channel: Channel[Any] | None = key.data
                if channel is not None and not channel.receive():
                    self._receiving.unregister(key.fileobj)
                    self._channels.discard(channel)
                    channel.has_received.set()

    def _send(self, stop_requested: threading.Event) -> None:
        beats_s = time.monotonic()  # When to look next for channels that need a heartbeat.
        while not stop_requested.is_set():
            ready: set[Channel[Any]] = {key.data for key, _ in self._sending.select(self._tick_s) if key.data}
            with suppress(BlockingIOError):
                os.eventfd_read(self._awake)
            with suppress(queue.Empty):
                while True:
                    ready.add(self._due.get_nowait())
            for channel in ready:
                self._push(channel, is_beat=False)
            if (now_s := time.monotonic()) >= beats_s:
                beats_s = now_s + self._tick_s
                for channel in tuple(self._channels):
                    if now_s >= channel.sent_s + self._beat_s - self._tick_s and channel not in self._full:
                        self._push(channel, is_beat=True)

    def _push(self, channel: Channel[Any], *, is_beat: bool) -> None:
        state = channel.send_some(is_beat=is_beat)
        if state == "full" and channel not in self._full:
            self._full.add(channel)
            self._sending.register(channel.stream.writing_fd, selectors.EVENT_WRITE, channel)
        elif state != "full" and channel in self._full:
            self._full.remove(channel)
            self._sending.unregister(channel.stream.writing_fd)
        if state == "done":
            channel.hung_up()

    def _watch(self, stop_requested: threading.Event) -> None:
        while not stop_requested.wait(self._tick_s):
            for channel in tuple(self._channels):
                channel.watch()

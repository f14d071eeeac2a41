"""A channel: messages to and from the other side of a wire, with heartbeats, so that neither side outlives the other.

Each side sends something every `BEAT_S`, a heartbeat where it has nothing to say, and ends itself when it has heard
nothing for `SILENT_S`. Sending, receiving and watching have a thread each, so that neither a trial nor a full pipe
holds the others up.

The limits: two cores at a load of 40 wake a thread within a second, so a healthy side's beat comes in time even when
three in a row are late. Silence is seen after 8 s at the latest (`SILENT_S` and two ticks), which leaves a side 2 s to
end its ranks within 10 s of the other's death. Silence is counted in the watching thread's own ticks, and one that
comes late counts as two at most: a machine that is too busy to count ends no healthy pair, and a process that was
stopped itself, or slept with its laptop, first reads what has come. Bytes that
wait to be read are no silence.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from bench.engines.wire.frames import Refused, SignedWire, Stream, StreamEnded
from collectors.background import BackgroundThread

BEAT_S = 2.0
SILENT_S = 7.0
TICK_S = 0.5
WAITING = 32
"""How many messages may wait to be sent; further senders wait."""
_FULL_S = 0.2


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
        """Note that something came; from any thread."""
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

    opening: returns the wire of the stream, once both sides have met; it is called in the receiving thread.
    decoder: of the other side's messages and heartbeats.
    on_message: is called in the receiving thread; it may raise Refused. on_end: is called once with the reason, there
    or in the watching thread.
    silence: counts from when both sides have met.
    """

    def __init__(
        self,
        stream: Stream,
        opening: Callable[[Stream], SignedWire],
        decoder: msgspec.json.Decoder[Message | Heartbeat],
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        beat_s: float = BEAT_S,
        tick_s: float = TICK_S,
        silence: Callable[[], Silence] = Silence,
    ) -> None:
        self.reason: str | None = None
        self.is_refused = self.is_silent = False
        self._stream, self._opening, self._decoder = stream, opening, decoder
        self._on_message, self._on_end = on_message, on_end
        self._beat_s, self._tick_s, self._silence = beat_s, tick_s, silence
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._wires: queue.SimpleQueue[SignedWire | None] = (
            queue.SimpleQueue()
        )  # To the sending thread, when there is one.
        self._has_ended = threading.Event()
        self._is_broken = False  # Nothing can be sent any more.
        self._is_handling = False  # What came is being handled, and nothing else is read meanwhile.
        self._lock = threading.Lock()
        self._receiving = threading.Thread(target=self._receive, name="receiving", daemon=True)
        self._sending = threading.Thread(target=self._send, name="sending", daemon=True)
        self._watching: BackgroundThread | None = None

    def start(self) -> None:
        """Begin to receive, and to send as soon as both sides have met."""
        self._sending.start()  # Before what is received may end the channel, which joins it.
        self._receiving.start()

    def send(self, message: msgspec.Struct) -> bool:
        """Queue a message; wait while too many are waiting. Return False where it cannot be sent any more."""
        return self._put(msgspec.json.encode(message), lambda: not self._has_ended.is_set())

    def hang_up(self, within_s: float) -> bool:
        """Send what is queued, at most for this long, then hang up; return whether it was sent. It may be called again.

        Where it was not sent, the other side does not read: end it, or abort the stream.
        """
        deadline_s = time.monotonic() + within_s
        self._put(None, lambda: time.monotonic() < deadline_s)
        self._sending.join(max(0.0, deadline_s - time.monotonic()))
        self._wires.put(None)  # Where the sides have not met by now, nothing is sent.
        self._sending.join(min(within_s, _FULL_S))
        return not self._sending.is_alive()

    def _put(self, body: bytes | None, may_wait: Callable[[], bool]) -> bool:
        while not self._is_broken:
            try:
                self._outgoing.put(body, timeout=_FULL_S if may_wait() else 0.0)
            except queue.Full:
                if not may_wait():
                    return False
            else:
                return True
        return False

    def join(self, within_s: float) -> bool:
        """Wait until nothing more is received; return whether that is so."""
        if self._watching is not None:
            self._watching.stop(within_s)
        self._receiving.join(within_s)
        return not self._receiving.is_alive()

    def _receive(self) -> None:
        try:
            wire = self._opening(self._stream)
            silence = self._silence()
            self._wires.put(wire)
            watching = BackgroundThread("watching", lambda told_to_stop: self._watch(silence, told_to_stop))
            watching.start()
            self._watching = watching  # Now that it can be joined.
            while True:
                body = wire.receive()
                silence.heard()
                message = self._decoded(body)
                if not isinstance(message, Heartbeat):
                    self._is_handling = True
                    self._on_message(message)
                    self._is_handling = False
        except Refused as refusal:
            self.is_refused = True
            self._end(str(refusal))
        except StreamEnded as end:
            self._end(str(end))
        except (OSError, ValueError) as error:  # A ValueError: this side has closed the file.
            self._end(f"the connection is lost ({error})")

    def _decoded(self, body: bytes) -> Message | Heartbeat:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"a message is malformed: {error}") from None

    def _send(self) -> None:
        with suppress(OSError, ValueError):  # The other side is gone: the receiving thread learns of it, too.
            wire = self._wires.get()
            while wire is not None:
                try:
                    body = self._outgoing.get(timeout=self._beat_s)
                except queue.Empty:
                    if self._has_ended.is_set():  # Last words may follow, but nobody is to wait for us any more.
                        continue
                    body = _HEARTBEAT
                if body is None:
                    break
                wire.send(body)
        self._is_broken = True
        self._stream.hang_up()

    def _watch(self, silence: Silence, told_to_stop: threading.Event) -> None:
        while not told_to_stop.wait(self._tick_s):
            if self._has_ended.is_set():
                return
            if self._is_handling or self._has_unread():  # A busy machine reads late what came in time.
                silence.heard()
            if silence.tick():
                self.is_silent = True
                self._end(f"no message for {silence.limit_s:g} s")
                return

    def _has_unread(self) -> bool:
        try:
            return self._stream.has_unread()
        except (OSError, ValueError):  # The stream is closed.
            return False

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._has_ended.is_set():
                return
            self.reason = reason
            self._has_ended.set()
        self._wires.put(None)
        self._on_end(reason)

"""Windows of a watched job: all ranks trace the same steps.

Each rank looks for a request in the run's folder about once a second. It acknowledges the request in the job's own
store with the number of its steps so far, and rank 0 commits to steps that no rank has reached. The store is queried
only while a request is open, and from another thread, since a call never returns if the store's host does not answer;
such a window is dropped. A key is read only once it exists, and no collective is called. A process without
torch.distributed traces alone.

A rank that reaches the agreed steps too late, or cannot trace, writes so into the window's folder, and the watching
parent drops the window. `bench.session.watched.windows` makes requests and joins the traces. Imports only the standard
library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REQUEST = "window.json"
"""The request for a window, next to this file in a folder that only its user can read; rank 0 removes it when the
window is over."""
FOLDER = "windows"
"""Folder in the run's folder with one folder for each window: `window.json`, and each rank's trace and phases."""
TRACER = "observatory_watch_tracer"
POLL_NS = 1_000_000_000
"""Time between two looks for a request."""
ANSWER_NS = 60_000_000_000
"""Time in which all ranks must acknowledge."""
SLOW_NS = 10_000_000_000
"""Time after which a rank looks for the commit only once a second: rank 0 is busy, or no longer watched."""
STORE_S = 5.0
"""Longest wait for one answer of the job's store."""
END_S = 1.0
"""Longest wait for a late answer when the interpreter ends: an answer of torch's store that comes while it ends aborts
the process."""
MARGIN_NS, LEAST_MARGIN, MOST_MARGIN = 250_000_000, 3, 1000
"""Time between the commit and the first traced step, and its bounds in steps."""
MOST_STEPS = 50
MOST_FAILURES = 3
"""Windows that may fail through an error of ours or of the disk before this rank traces no more."""
LARGEST_BYTES = 512 << 20
"""Largest trace that is still analysed; a larger one is dropped."""


class NoAnswer(Exception):
    """The job's store does not answer."""


class BoundedStore:
    """A store whose calls time out; `set`, `check` and `get` of torch.distributed's stores may wait for ever.

    Each call runs in its own thread; torch releases the interpreter's lock meanwhile. While a call still waits, all
    others fail at once, since a store's client makes one call at a time.
    """

    def __init__(self, most_s: float = STORE_S) -> None:
        self._most_s, self._store, self._is_waiting = most_s, None, False

    def around(self, store: Any) -> BoundedStore:
        """Use this store, which may differ from the last one, and return self."""
        self._store = store
        return self

    def set(self, key: str, value: str) -> None:
        self._call("set", key, value)

    def check(self, keys: list[str]) -> bool:
        return bool(self._call("check", keys))

    def get(self, key: str) -> bytes:
        answer: bytes = self._call("get", key)
        return answer

    def _call(self, name: str, *words: Any) -> Any:
        """Call the store's method.

        Raises:
            NoAnswer: the call did not return in time, or an earlier call still waits.
        """
        import atexit
        from _thread import allocate_lock, start_new_thread

        if self._is_waiting:
            raise NoAnswer("the job's store still does not answer")
        function, done = getattr(self._store, name), allocate_lock()
        answers: list[tuple[Any, Exception | None]] = []

        def call() -> None:
            try:
                answers.append((function(*words), None))
            except Exception as error:  # noqa: BLE001  # Raised in the thread that trains.
                answers.append((None, error))
            self._is_waiting = False
            done.release()

        done.acquire()
        self._is_waiting = True
        try:
            start_new_thread(call, ())
        except RuntimeError:
            self._is_waiting = False
            raise
        if not done.acquire(timeout=self._most_s):
            atexit.register(done.acquire, timeout=END_S)
            raise NoAnswer(f"the job's store did not answer within {self._most_s:g} s")
        ((answer, error),) = answers
        if error is not None:
            raise error
        return answer


class Windows:
    """Follows requests for windows at the ends of steps: idle, then open, then committed, then idle again.

    watch: the `Watch` of this process. recorder: the module `observatory_watch`. hook: the folder of requests; None for
    this file's. place: returns rank, world size and the job's store; None takes them from torch.distributed.
    """

    def __init__(
        self,
        watch: Any,
        recorder: Any,
        hook: str | None = None,
        place: Callable[[], tuple[int, int, Any]] | None = None,
    ) -> None:
        self._watch, self._recorder = watch, recorder
        self._hook = hook or os.path.dirname(os.path.abspath(__file__))
        self._place = place or self._place_by_torch
        self._store = BoundedStore()
        self._rank = self._failures = 0
        self._handled: int | None = None  # The newest request that this rank is done with.
        self._end_ns: int | None = None
        self._steps_ns = [POLL_NS] * 5  # Times of the newest steps.
        self._next_ns = watch.clock_ns() + POLL_NS
        self._proposal: dict[str, Any] | None = None
        self._opened_ns = 0
        self._is_mine = False
        self._window: dict[str, Any] | None = None
        self._tracer: Any = None
        self._stopped: str | None = None
        self._finalizer: Any = None
        self._spent_ns = 0
        self._is_over = False
        self._why_over: str | None = None

    def at_step_end(self) -> None:
        """Do what is due at the end of a step; a failure ends the window with one note, and the step still counts."""
        if self._is_over:
            return
        try:
            self._step()
        except Exception as error:  # No mistake of ours may stop somebody's training.
            is_silent = isinstance(error, NoAnswer)
            if is_silent:  # The wait is a cost of the window.
                self._count(self._watch._end_ns)
            why = str(error) if is_silent else f"{type(error).__name__}: {error}"
            self._abort(why)
            if self._recorder._is_of_script(error):  # For example a signal handler that raises while our code runs.
                raise
            self._failures += not is_silent
            if self._failures <= MOST_FAILURES:
                self._watch.note(f"a window ended: {why}")
            if self._failures == MOST_FAILURES:
                self._why_over = f"windows ended after {MOST_FAILURES} failures, the last one {why}"
                self._watch.note(self._why_over)

    def close(self) -> None:
        """Drop an open window, since the interpreter ends."""
        if os.getpid() != self._watch.pid:
            return
        self._is_over = True
        if self._tracer is not None:
            self._abort("the process ended before the window did")

    def in_child(self) -> None:
        """Remove the profiler's callbacks in a forked child, where they would record for ever."""
        tracer, self._tracer = self._tracer, None
        clear = getattr(getattr(sys.modules["torch"]._C, "_autograd", None), "_clear_callbacks", None)
        if tracer is not None and clear is not None:
            clear()

    def _step(self) -> None:
        now = self._watch._end_ns
        if self._end_ns is not None:
            self._steps_ns = [*self._steps_ns[1:], max(1, now - self._end_ns)]
        self._end_ns = now
        if self._window is not None:
            self._trace()
            return
        is_fresh = self._proposal is not None and now - self._opened_ns < SLOW_NS
        if now < self._next_ns and not is_fresh:
            return
        self._next_ns = now + POLL_NS
        if self._proposal is None:
            self._look(now)
        else:
            began_ns, before_ns = self._watch.clock_ns(), self._spent_ns
            self._answer(now)
            if self._spent_ns == before_ns:  # Else `_trace` has already counted its own time.
                self._count(began_ns)

    # Agreeing on the steps.

    def _look(self, now: int) -> None:
        """Take up a request: every rank reads the file, and rank 0 removes it when the window is over."""
        self._spent_ns = 0
        request = self._request()
        if request is None or request["id"] == self._handled:
            return
        rank, world, store = self._place()
        self._rank, self._proposal, self._is_mine, self._opened_ns = rank, request, rank == 0, now
        if self._why_over is not None:
            self._give_up(self._why_over)
        elif store is not None:
            store.set(f"{request['id']} steps {rank}", str(self._watch._steps))
        elif world > 1:
            self._give_up("torch.distributed is not initialised, so ranks cannot agree on steps")
        else:
            self._commit(request, self._watch._steps, None)

    def _answer(self, now: int) -> None:
        """On rank 0, commit once all ranks have acknowledged; on others, follow the commit."""
        _, world, store = self._place()
        proposal = self._proposal
        if store is None or proposal is None:
            self._give_up("the process group was destroyed")
            return
        key = f"{proposal['id']} commit"
        waited_ns = now - self._opened_ns
        if self._is_mine:
            acknowledged = [f"{proposal['id']} steps {each}" for each in range(world)]
            is_complete = store.check(acknowledged)
            if (is_complete or waited_ns > ANSWER_NS) and self._request() != proposal:  # Withdrawn.
                self._forget()
            elif is_complete:
                self._commit(proposal, max(int(store.get(each)) for each in acknowledged), store)
            elif waited_ns > ANSWER_NS:
                silent = [each for each, name in enumerate(acknowledged) if not store.check([name])]
                why = f"{_ranks(silent)} did not answer within {ANSWER_NS // 1_000_000_000} s"
                store.set(key, json.dumps({"dropped": why}))
                self._give_up(why)
        elif store.check([key]):
            self._take(json.loads(store.get(key)))
        elif waited_ns > 2 * ANSWER_NS or self._request() != proposal:  # Rank 0 is not watched, or gave up.
            self._forget()

    def _commit(self, request: dict[str, Any], steps: int, store: Any) -> None:
        """Choose the steps. steps: the largest number of steps that a rank acknowledged with."""
        # A rank that acknowledged long ago looks only once a second.
        is_slow = self._watch._end_ns - self._opened_ns > SLOW_NS // 2
        margin_ns = MARGIN_NS + POLL_NS if is_slow else MARGIN_NS
        margin = min(MOST_MARGIN, max(LEAST_MARGIN, -(-margin_ns // min(self._steps_ns)))) if store is not None else 2
        first = max(steps, self._watch._steps) + margin
        window = {**request, "first": first, "last": first + request["steps"] - 1}
        window.update(world_size=self._place()[1], unix_s=time.time())
        self._write(window, REQUEST, window)
        # Whoever withdraws removes the request and then looks for the steps, so at least one side sees the other's.
        if self._is_mine and self._request() != request:
            why = "withdrawn while the ranks agreed on its steps"
            if store is not None:
                store.set(f"{request['id']} commit", json.dumps({"dropped": why}))
            self._give_up(why)
            return
        if store is not None:
            store.set(f"{request['id']} commit", json.dumps(window))
        self._take(window)

    def _take(self, window: dict[str, Any]) -> None:
        if "dropped" in window:
            self._forget()
            return
        self._window = window
        if self._watch._steps >= window["first"]:
            self._miss(f"rank {self._rank} was at step {self._watch._steps} already")
        else:
            self._trace()

    def _give_up(self, why: str) -> None:
        """Drop a request without agreed steps; rank 0 writes why."""
        if self._is_mine and self._proposal is not None:
            self._write(self._proposal, REQUEST, {**self._proposal, "dropped": why})
        self._forget()

    def _miss(self, why: str) -> None:
        """Tell the ranks that have not begun yet, and the parent, why this rank does not trace the window."""
        why = why if why.startswith("rank ") else f"rank {self._rank}: {why}"  # The reason may come from another rank.
        assert self._window is not None, "it was committed"
        self._write(self._window, f"rank{self._rank}.missed", {"why": why})
        if (store := self._place()[2]) is not None:
            store.set(f"{self._window['id']} missed", why)
        self._forget()

    def _forget(self) -> None:
        """Finish with this window on this rank, traced or not."""
        import atexit

        if self._proposal is not None:
            self._handled = self._proposal["id"]
        if self._is_mine and self._proposal is not None:
            with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # An unreadable file is no request.
                if self._request() == self._proposal:  # Else ours was withdrawn, and this is a newer one.
                    os.unlink(os.path.join(self._hook, REQUEST))
        self._proposal = self._window = self._tracer = None
        atexit.unregister(self.close)
        if self._finalizer is not None:
            self._finalizer.cancel()
            self._finalizer = None

    # Tracing.

    def _trace(self) -> None:
        """Prepare one step before the window, start, and end each traced step up to the last."""
        window, watch = self._window, self._watch
        if window is None or watch._steps < window["first"] - 1:
            return
        steps, first, last = watch._steps, window["first"], window["last"]
        began_ns = watch.clock_ns()
        if self._stopped is not None:
            why, self._stopped = self._stopped, None
            self._miss(why)
        elif self._tracer is None:
            self._prepare(first)
        elif steps == first:
            self._tracer.start()
        elif steps <= last:
            self._tracer.step_ends()
        else:
            self._finish(window, began_ns)
        self._count(began_ns)

    def _count(self, began_ns: int) -> None:
        """Count time as the window's cost, which is reported separately from our share of the steps."""
        spent_ns = self._watch.clock_ns() - began_ns
        self._watch._own -= spent_ns
        self._spent_ns += spent_ns

    def _prepare(self, first: int) -> None:
        import atexit
        from importlib import import_module

        tracer = import_module(f"{__package__}.{TRACER}" if __package__ else TRACER)
        _, _, store = self._place()
        key = f"{self._window['id']} missed" if self._window is not None else ""
        if store is not None and store.check([key]):
            self._miss(store.get(key).decode())
            return
        if self._watch._steps >= first:
            self._miss("a step ended before the profiler was prepared")
            return
        prepared = tracer.Tracer(self._watch, self._yield)
        try:
            prepared.prepare()
        except tracer.CannotTrace as error:
            self._miss(str(error))
            return
        except BaseException:  # Also one raised by a signal handler: the script may catch it and continue.
            with suppress(Exception):
                prepared.abort()
            raise
        self._tracer = prepared
        # Registered after the watch's own function, so called before it; removed with the window.
        atexit.register(self.close)
        forking = self._watch.module_of("multiprocessing.util")
        if forking is not None:
            self._finalizer = forking.Finalize(None, self.close, exitpriority=-99)

    def _finish(self, window: dict[str, Any], began_ns: int) -> None:
        name = f"rank{self._rank}.json"
        path = self._path(window, name)
        tracer, self._tracer = self._tracer, None
        phases = tracer.stop(f"{path}.part")
        if os.path.getsize(f"{path}.part") > LARGEST_BYTES:
            os.unlink(f"{path}.part")
            self._miss(f"its trace is larger than {LARGEST_BYTES >> 20} MiB; trace fewer steps")
            return
        # Phases first: once a trace has its final name, it and its phases are complete.
        cost_ns = self._spent_ns + self._watch.clock_ns() - began_ns
        about = {"steps": tracer.steps_ns, "phases": phases, "cost_ns": cost_ns}
        self._write(window, f"rank{self._rank}.phases.json", about)
        os.replace(f"{path}.part", path)
        line = {"kind": "window", "first": window["first"], "last": window["last"]}
        self._watch._write({**line, "trace": f"{FOLDER}/{window['id']}/{name}"})
        self._forget()

    def _yield(self) -> None:
        """Stop our profiler before the script's own starts."""
        if self._tracer is None or self._stopped is not None:
            return
        self._stopped = "the script's own profiler started"
        try:
            self._tracer.abort()
        except Exception as error:  # noqa: BLE001  # Called inside the script's profiler, which must still start.
            self._watch.note(f"a window did not stop: {type(error).__name__}: {error}")

    def _abort(self, why: str) -> None:
        """Stop a tracer and drop the window; errors on the way are ignored."""
        tracer, self._tracer = self._tracer, None
        try:
            if tracer is not None and self._stopped is None:
                tracer.abort()
            if self._window is not None:
                self._write(self._window, f"rank{self._rank}.missed", {"why": f"rank {self._rank}: {why}"})
                self._forget()
            elif self._proposal is not None:
                self._give_up(f"rank {self._rank}: {why}")
        except Exception:  # noqa: BLE001  # The profiler or the disk fails; the script goes on.
            self._handled = None if self._proposal is None else self._proposal["id"]
            self._proposal = self._window = None

    # The store and the files.

    def _place_by_torch(self) -> tuple[int, int, Any]:
        """Return rank, world size and the store under our prefix, which is None without torch.distributed."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            words = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
            rank, world = (int(word) if word.isdecimal() else None for word in words)
            return rank or 0, world or 1, None
        store = distributed.distributed_c10d._get_default_store()
        prefix = f"observatory_watch/{os.path.basename(self._watch.settings['folder'])}"
        bounded = self._store.around(distributed.PrefixStore(prefix, store))
        return distributed.get_rank(), distributed.get_world_size(), bounded

    def _request(self) -> dict[str, Any] | None:
        path = os.path.join(self._hook, REQUEST)
        try:
            with open(path, encoding="utf-8") as file:
                request = json.load(file)
        except FileNotFoundError:
            return None
        number, steps = int(request["id"]), min(MOST_STEPS, max(1, int(request["steps"])))
        return {"id": number, "steps": steps, "why": str(request["why"])[:200]}

    def _path(self, window: dict[str, Any], name: str) -> str:
        return os.path.join(self._watch.settings["folder"], FOLDER, str(window["id"]), name)

    def _write(self, window: dict[str, Any], name: str, content: dict[str, Any]) -> None:
        path = self._path(window, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{path}.part", flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(f"{path}.part", path)


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {named}"

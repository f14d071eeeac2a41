"""Windows of a watched job: all ranks trace the same steps.

Rank 0 finds a request in the run's folder and proposes a window through the job's own store; each rank acknowledges it
with the number of its steps so far; rank 0 commits to steps that no rank has reached. Nothing here waits: a key is read
only once it is there, and no collective is called. At the end of a step, about once a second, a rank looks for a
proposal, and at the end of each step only while one is open. A process without torch.distributed traces alone.

A rank that comes to the steps too late, or cannot trace, says so in the window's folder, and the watching parent drops
the window. `bench.session.watched.windows` makes requests and joins the traces. The standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REQUEST = "window.json"
"""The request for a window, next to this file in the folder that belongs to its user alone; rank 0 takes it away."""
FOLDER = "windows"
"""Folder within the run's, with a folder for each window: `window.json`, and of each rank a trace and its phases."""
TRACER = "observatory_watch_tracer"
POLL_NS = 1_000_000_000
"""Time between two looks for a proposal."""
LOOK_SHARE, LONGEST_POLL_NS = 400, 10_000_000_000
"""A look takes at most a 400th of the time: where the store answers slowly, looks are rarer, each 10 s at least."""
ANSWER_NS = 60_000_000_000
"""Time that rank 0 gives the others to acknowledge."""
SLOW_NS = 10_000_000_000
"""Time after which a rank looks for the commit only once a second: rank 0 is busy, or has stopped watching."""
MARGIN_NS, LEAST_MARGIN, MOST_MARGIN = 250_000_000, 3, 1000
"""Time between the commit and the first traced step, and its bounds in steps."""
MOST_STEPS = 50
LARGEST_BYTES = 512 << 20
"""Size of a trace that is still read."""


class Windows:
    """Follows requests for windows at the ends of steps: idle, then open, then committed, then idle again.

    watch: the `Watch` of this process. recorder: the module `observatory_watch`. hook: the folder of requests; None for
    this file's. place: returns the rank, the world's size and the job's store; None for torch.distributed's.
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
        self._number = self._rank = 0
        self._end_ns: int | None = None
        self._step_ns = POLL_NS
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

    def at_step_end(self) -> None:
        """Do what is due at the end of a step; a failure ends windows with one line, and no step is lost by it."""
        if self._is_over:
            return
        try:
            self._step()
        except Exception as error:  # No mistake of ours may stop somebody's training.
            self._is_over = True
            self._abort(f"{type(error).__name__}: {error}")
            if self._recorder._is_of_script(error):  # For example a signal handler that raises while our code runs.
                raise
            self._watch.note(f"windows ended: {type(error).__name__}: {error}")

    def close(self) -> None:
        """The interpreter ends: drop an open window."""
        if os.getpid() != self._watch.pid:
            return
        self._is_over = True
        if self._tracer is not None:
            self._abort("the process ended before the window did")

    def _step(self) -> None:
        now = self._watch._end_ns
        if self._end_ns is not None:
            self._step_ns = max(1, now - self._end_ns)
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
            if self._spent_ns == before_ns:  # Else the profiler is prepared at once, and has counted itself.
                self._count(began_ns)

    # Agreeing on the steps.

    def _look(self, now: int) -> None:
        """Take a request, as rank 0, or a proposal from the store."""
        rank, world, store = self._place()
        request = self._request() if rank == 0 else None
        self._spent_ns = 0
        if store is None:
            if request is not None and world > 1:
                self._drop(request, "torch.distributed is not initialised, so ranks cannot agree on steps")
            elif request is not None:
                self._commit(request, self._watch._steps, None)
            return
        key = f"proposal {self._number}"
        if request is not None:
            store.set(key, json.dumps(request))
        elif rank == 0:  # It alone proposes.
            return
        else:
            is_there = store.check([key])
            took_ns = self._watch.clock_ns() - now
            self._next_ns = now + max(POLL_NS, min(LONGEST_POLL_NS, LOOK_SHARE * took_ns))
            if not is_there:
                return
        self._proposal = request or json.loads(store.get(key))
        self._opened_ns, self._is_mine = now, request is not None
        store.set(f"steps {self._number} {rank}", str(self._watch._steps))

    def _answer(self, now: int) -> None:
        """Commit, as rank 0, once all ranks have acknowledged; follow the commit."""
        rank, world, store = self._place()
        proposal = self._proposal
        if store is None or proposal is None:  # The process group is gone.
            self._proposal = None
            return
        key = f"commit {self._number}"
        if self._is_mine:
            acknowledged = [f"steps {self._number} {each}" for each in range(world)]
            if store.check(acknowledged):
                self._commit(proposal, max(int(store.get(each)) for each in acknowledged), store)
            elif now - self._opened_ns > ANSWER_NS:
                silent = [each for each, name in enumerate(acknowledged) if not store.check([name])]
                why = f"{_ranks(silent)} did not answer within {ANSWER_NS // 1_000_000_000} s"
                store.set(key, json.dumps({"dropped": why}))
                self._drop(proposal, why)
                self._forget()
        elif store.check([key]):
            self._take(json.loads(store.get(key)), rank)

    def _commit(self, request: dict[str, Any], steps: int, store: Any) -> None:
        """Choose the steps. steps: the most that any rank had made when it acknowledged."""
        margin = min(MOST_MARGIN, max(LEAST_MARGIN, -(-MARGIN_NS // self._step_ns))) if store is not None else 2
        first = max(steps, self._watch._steps) + margin
        window = {**request, "first": first, "last": first + request["steps"] - 1}
        window.update(world_size=self._place()[1], unix_s=time.time())
        self._write(window, REQUEST, window)
        if store is not None:
            store.set(f"commit {self._number}", json.dumps(window))
        self._take(window, 0)

    def _take(self, window: dict[str, Any], rank: int) -> None:
        if "dropped" in window:
            self._forget()
            return
        self._window, self._rank = window, rank
        if self._watch._steps >= window["first"]:
            self._miss(f"rank {rank} was at step {self._watch._steps} already")
        else:
            self._trace()

    def _drop(self, request: dict[str, Any], why: str) -> None:
        self._write(request, REQUEST, {**request, "dropped": why})

    def _miss(self, why: str) -> None:
        """This rank does not trace the window: say so to the ranks that have not begun yet, and to the parent."""
        why = why if why.startswith("rank ") else f"rank {self._rank}: {why}"  # It may come from another rank.
        if self._window is not None:
            self._write(self._window, f"rank{self._rank}.missed", {"why": why})
        if (store := self._place()[2]) is not None:
            store.set(f"missed {self._number}", why)
        self._forget()

    def _forget(self) -> None:
        """This window is over here, whole or not; the next one has the next number."""
        import atexit

        self._proposal = self._window = self._tracer = None
        self._number += 1
        atexit.unregister(self.close)
        if self._finalizer is not None:
            self._finalizer.cancel()
            self._finalizer = None

    # Tracing.

    def _trace(self) -> None:
        """Prepare at the end of the last step but one before the window, and so on to its last step."""
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
        """Count time as a window's cost, which is reported apart: our share of the steps is without it."""
        spent_ns = self._watch.clock_ns() - began_ns
        self._watch._own -= spent_ns
        self._spent_ns += spent_ns

    def _prepare(self, first: int) -> None:
        import atexit
        from importlib import import_module

        tracer = import_module(f"{__package__}.{TRACER}" if __package__ else TRACER)
        _, _, store = self._place()
        key = f"missed {self._number}"
        if store is not None and store.check([key]):
            self._miss(store.get(key).decode())
            return
        if self._watch._steps >= first:
            self._miss("a step ended before the profiler was prepared")
            return
        self._tracer = tracer.Tracer(self._watch, self._yield)
        try:
            self._tracer.prepare()
        except tracer.CannotTrace as error:
            self._miss(str(error))
            return
        # Later than the watch's own, so that it is called before; and gone with the window.
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
        # The phases first: a trace under its name is whole, and so is what belongs to it.
        cost_ns = self._spent_ns + self._watch.clock_ns() - began_ns
        about = {"steps": tracer.steps_ns, "phases": phases, "cost_ns": cost_ns}
        self._write(window, f"rank{self._rank}.phases.json", about)
        os.replace(f"{path}.part", path)
        line = {"kind": "window", "first": window["first"], "last": window["last"]}
        self._watch._write({**line, "trace": f"{FOLDER}/{window['id']}/{name}"})
        self._forget()

    def _yield(self) -> None:
        """The script starts a profiler of its own: ours stops first."""
        if self._tracer is None or self._stopped is not None:
            return
        self._stopped = "the script's own profiler started"
        try:
            self._tracer.abort()
        except Exception as error:  # noqa: BLE001  # It is called within the script's profiler, which goes on.
            self._watch.note(f"a window did not stop: {type(error).__name__}: {error}")

    def _abort(self, why: str) -> None:
        """Stop a tracer and drop the window; what fails here is left as it is."""
        tracer, self._tracer = self._tracer, None
        try:
            if tracer is not None and self._stopped is None:
                tracer.abort()
            if self._window is not None:
                self._write(self._window, f"rank{self._rank}.missed", {"why": f"rank {self._rank}: {why}"})
        except Exception:  # noqa: BLE001  # The profiler or the disk fails; the script goes on.
            self._window = None

    # The store and the files.

    def _place_by_torch(self) -> tuple[int, int, Any]:
        """This process's rank, the world's size, and the store under our prefix; None without torch.distributed."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            words = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
            rank, world = (int(word) if word.isdecimal() else None for word in words)
            return rank or 0, world or 1, None
        store = distributed.distributed_c10d._get_default_store()
        prefix = f"observatory_watch/{os.path.basename(self._watch.settings['folder'])}"
        return distributed.get_rank(), distributed.get_world_size(), distributed.PrefixStore(prefix, store)

    def _request(self) -> dict[str, Any] | None:
        path = os.path.join(self._hook, REQUEST)
        try:
            with open(path, encoding="utf-8") as file:
                request = json.load(file)
            os.unlink(path)
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

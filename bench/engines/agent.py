"""The agent of a node, the same for every engine: it runs the trials that its runner orders, and reports their ends.

Started as `python -P -m bench.engines.agent`. Orders come on standard input and answers go to standard output, one
JSON message a line. The end of standard input means that the runner is gone: the agent then ends its ranks and itself.
Only the forkserver loads torch, not the agent.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import threading
import traceback
from contextlib import closing, suppress
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from typing import NoReturn

import msgspec

from bench.engines.supervisor import Supervisor
from bench.rank.messages import AgentFailed, FromAgent, Ready, TrialOrder

_MISSING = re.compile(
    r"(lib[\w.+-]+\.so[\w.*\[\]-]*)(?:: cannot open shared object file| not found in the system path)"
)
"""Messages of the dynamic linker about a missing library, and of torch, which looks for some libraries itself."""


def main() -> int:
    """Serve one runner until it hangs up; return the exit code."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Nothing else that is printed may come between the answers.

    def answer(message: FromAgent) -> None:
        with suppress(BrokenPipeError):  # The runner is gone; standard input ends as well.
            answers.write(msgspec.json.encode(message) + b"\n")

    orders: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
    stop, hung_up = os.pipe()
    is_ready = threading.Event()
    threading.Thread(target=_listen, args=(orders, hung_up, is_ready), daemon=True).start()
    forkserver.set_forkserver_preload(["bench.engines.forkserver_preload"])
    forkserver.ensure_running()
    try:
        with closing(Supervisor(host="127.0.0.1")) as supervisor:
            is_ready.set()
            answer(Ready(machine=supervisor.machine))
            while (order := orders.get()) is not None:
                answer(supervisor.run(order, stop=stop, progress=answer))
    except Exception as error:  # noqa: BLE001  # The runner is told, whatever it was.
        traceback.print_exc()
        answer(AgentFailed(text=_in_one_line(error)))
        return 1
    return 0


def _in_one_line(error: Exception) -> str:
    """Return the error in one line; for a missing library, its name and the next move."""
    message = " ".join(str(error).split())
    missing = _MISSING.search(message)
    if missing is None:
        return f"{type(error).__name__}: {message}"
    return (
        f"the library {missing[1]} is not found, which torch or a package beside it needs ({type(error).__name__});"
        " install torch again with all that it depends on, or take one for the CPU"
    )


def _listen(orders: queue.SimpleQueue[TrialOrder | None], hung_up: int, is_ready: threading.Event) -> None:
    decoder = msgspec.json.Decoder(TrialOrder)
    # Unbuffered, since the interpreter's shutdown would fail on a buffer's lock that this thread still holds.
    for line in os.fdopen(0, "rb", buffering=0, closefd=False):
        orders.put(decoder.decode(line))
    orders.put(None)
    os.close(hung_up)
    if not is_ready.is_set():  # torch is still being loaded, and nobody needs it any more.
        leave(0)


def leave(code: int) -> NoReturn:
    """End the forkserver and this process at once, and leave no file behind.

    Both would end by themselves, but only after unloading torch, which takes seconds.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # Nothing public tells it.
    if server is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    shutil.rmtree(get_temp_dir(), ignore_errors=True)  # Has the forkserver's socket; nobody else removes it.
    os._exit(code)


if __name__ == "__main__":
    leave(main())

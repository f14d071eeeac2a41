"""One agent per node, the same for every engine: takes trial orders from its runner, gives back how they ended.

Started as `python -P -m bench.engines.agent`. Orders come on standard input and answers go to standard output, one
JSON message a line. When standard input ends the runner is gone: ranks are ended, then the agent itself. torch is
loaded by the forkserver alone.
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
"""What the dynamic linker says, and torch, which looks for some libraries itself."""


def main() -> int:
    """Serve one runner until it hangs up; the exit code."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Whatever else prints here must not stand between the answers.

    def answer(message: FromAgent) -> None:
        with suppress(BrokenPipeError):  # The runner is gone; the end of standard input says so too.
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
    except Exception as error:  # noqa: BLE001  # The runner shall hear of it, whatever it was.
        traceback.print_exc()
        answer(AgentFailed(text=_in_one_line(error)))
        return 1
    return 0


def _in_one_line(error: Exception) -> str:
    """The error; of a library that is not found its name, and the next move."""
    said = " ".join(str(error).split())
    missing = _MISSING.search(said)
    if missing is None:
        return f"{type(error).__name__}: {said}"
    return (
        f"the library {missing[1]} is not found, which torch or a package beside it needs ({type(error).__name__});"
        " install torch again with all that it depends on, or take one for the CPU"
    )


def _listen(orders: queue.SimpleQueue[TrialOrder | None], hung_up: int, is_ready: threading.Event) -> None:
    decoder = msgspec.json.Decoder(TrialOrder)
    # Unbuffered: at the end the interpreter would stumble over the lock of a buffer that this thread still holds.
    for line in os.fdopen(0, "rb", buffering=0, closefd=False):
        orders.put(decoder.decode(line))
    orders.put(None)
    os.close(hung_up)
    if not is_ready.is_set():  # torch is still being loaded, for nobody.
        leave(0)


def leave(code: int) -> NoReturn:
    """End the forkserver and this process at once, and leave no file behind.

    Both would go by themselves, but unload torch first, which takes seconds.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # Nothing public tells it.
    if server is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    shutil.rmtree(get_temp_dir(), ignore_errors=True)  # Of the forkserver's socket; nobody else would remove it.
    os._exit(code)


if __name__ == "__main__":
    leave(main())

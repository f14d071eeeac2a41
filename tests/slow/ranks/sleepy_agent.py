"""An agent whose ranks sleep in place of computing: in backward of each of a model's blocks.

Started as the agent is, as `python -m tests.slow.ranks.sleepy_agent --connect HOST:PORT ...`; OBSERVATORY_TEST_SLEEP_S
has the seconds of a block. The forkserver, which is started here before the agent would, has loaded this module, so
that its ranks are born with the hook.
"""

from __future__ import annotations

import os
import socket
import sys
from multiprocessing import forkserver
from typing import Any

VARIABLE = "OBSERVATORY_TEST_SLEEP_S"


def put_to_sleep(sleep_s: float) -> None:
    """Have the backward of each block of any model begin with a sleep."""
    from torch import Tensor, nn
    from torch.nn.modules.module import register_module_forward_hook

    from tests.slow.ranks.priority import go_first
    from tests.slow.ranks.sleeping_rank import Sleep
    from workloads.core.transformer import Block

    def then_sleep(part: nn.Module, inputs: object, out: Tensor) -> Any:
        return Sleep.apply(out, sleep_s) if isinstance(part, Block) else None  # type: ignore[no-untyped-call]

    register_module_forward_hook(then_sleep)
    go_first()  # Ranks are born with it.


def main() -> int:
    """Start the forkserver, and be the agent."""
    from bench.engines.environment import environment
    from bench.engines.node.agent import main as agent

    host, _, port = sys.argv[sys.argv.index("--connect") + 1].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        os.environ.update(environment(os.environ, probe.getsockname()[0]))
    forkserver.set_forkserver_preload(["bench.engines.node.forkserver_preload", "tests.slow.ranks.sleepy_agent"])
    forkserver.ensure_running()
    return agent()


if __name__ == "__main__":
    from bench.engines.node.agent import leave

    leave(main())
elif os.environ.get(VARIABLE):
    put_to_sleep(float(os.environ[VARIABLE]))

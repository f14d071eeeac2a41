"""Runs trials of single ranks under the product's own supervisor, where CUDA is the preloaded one of runtime.c.

    python -m tests.torch_versions.fake_cuda.trials FOLDER < orders

Orders are lines of JSON, `TrialOrder`; each gives a line, the `TrialEnded`. Ranks that an order leaves out need not
be there, because no message waits. Rank 0 comes first: it puts into the store what NCCL's communicators begin with.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path

import msgspec

from bench.engines.environment import LOOPBACK, environment
from bench.engines.node.supervisor import Supervisor
from bench.rank.messages import TrialOrder

IN_EACH_RANK = "tests.torch_versions.fake_cuda.in_each_rank"


def main() -> None:
    runs = Path(sys.argv[1])
    os.environ.update(environment(os.environ))
    never, _open = socket.socketpair()
    forkserver.set_forkserver_preload(["bench.engines.node.forkserver_preload", IN_EACH_RANK])
    forkserver.ensure_running()
    with closing(Supervisor(host=LOOPBACK, runs=runs)) as supervisor:
        for line in sys.stdin:
            order = msgspec.json.decode(line, type=TrialOrder)
            (runs / order.run).mkdir(exist_ok=True)
            ended = supervisor.run(order, stop=never.fileno(), progress=lambda _: None)
            print(msgspec.json.encode(ended).decode(), flush=True)


if __name__ == "__main__":
    main()

"""Real ranks on gloo that enter what a scenario says, dump torch's Flight Recorder, and end without waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
small = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
dist.broadcast(torch.ones(8), 0, group=small)

def work():
    """Enter the scenario's calls without waiting for them."""
    SCENARIO

def enter(call, *words, **options):
    return call(*words, async_op=True, **options)

pending = []
work()
time.sleep(0.5)
arguments = {"includeCollectives": True, "onlyActive": False}
(folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace(**arguments, includeStackTraces=True))
(folder / f"rank{rank}.flight.json").write_bytes(c10d._dump_fr_trace_json(**arguments))
while len(list(folder.glob("*.flight.json"))) < 2:
    time.sleep(0.01)
os._exit(0)
'''

LATE = "if rank == 0: pending.append(enter(dist.all_reduce, torch.ones(4)))"
"""Rank 1 does not enter the fourth collective of the default group."""
CROSSED = "pending.append(enter(dist.all_reduce, torch.ones(4), group=small if rank else None))"
"""Each rank enters a collective of the group that the other enters later."""


def dump_of_ranks(folder: Path, scenario: str) -> None:
    """Run two ranks; leave their pickles and their JSON in the folder."""
    program = PROGRAM.replace("SCENARIO", scenario)
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    (folder / "program.py").write_text(program)
    ranks = [subprocess.Popen([sys.executable, folder / "program.py", str(rank), folder], env=env) for rank in range(2)]
    try:
        assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()

"""One rank of a run that torchrun's variables place, woken up before others on a machine that they use too.

Started as `python -m tests.slow.ranks.sweeping_rank CASE.json --folder FOLDER`, with what `bench.session.torchrun`
takes.
"""

from __future__ import annotations

from bench.rank.worker import leave
from bench.session import torchrun
from tests.slow.ranks.priority import go_first

if __name__ == "__main__":
    go_first()
    leave(torchrun.main())

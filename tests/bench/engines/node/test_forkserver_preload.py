"""What ranks inherit from the forkserver."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

FROZEN = """
import gc
from collectors.rank.memory import living_tensors
gc.freeze = lambda: print(len(list(living_tensors())), "tensors")
import pytest

import bench.engines.node.forkserver_preload
"""


def test_what_ranks_inherit_and_never_collect_holds_no_tensor_that_their_account_of_memory_would_miss() -> None:
    """In a process of its own: what the forkserver loads is loaded once."""
    found = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "0 tensors\n"


def test_ranks_collect_garbage() -> None:
    """The forkserver does not while it loads modules."""
    program = "import gc, bench.engines.node.forkserver_preload; print(gc.isenabled())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "True\n"

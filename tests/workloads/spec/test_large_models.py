"""Models that fit on no machine here: a rank that builds its part takes the memory of that part, and little more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BESIDE_BYTES = 300_000_000
"""Code that building loads, chunks of weights that are being made, and what the allocator keeps."""


@pytest.mark.slow
@pytest.mark.timeout(900)  # A minute of one core.
@pytest.mark.parametrize(
    "words",
    [
        "fsdp 512 70b",
        "hsdp 1024 70b shard_ranks=512",
        "three_d 512 70b pipeline_ranks=8 tensor_ranks=8 data_axis=fsdp microbatches=8",
        "one_f_one_b 2 1b microbatches=2",
    ],
)
def test_a_rank_takes_the_memory_of_its_part(words: str) -> None:
    command = [sys.executable, "-m", "tests.workloads.training.rank_of_many", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    share_bytes, grown_bytes = map(int, done.stdout.split())
    assert 400_000_000 < share_bytes <= grown_bytes + BESIDE_BYTES
    assert grown_bytes <= share_bytes + BESIDE_BYTES

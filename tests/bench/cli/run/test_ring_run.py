"""A run of ring attention says how equal its ranks' work is, and what of the ring's own messages is hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import FINE
from collectors.metrics.results import RUN_ATTENTION_PAIRS, RUN_COLLECTIVE_OVERLAP_RATIO
from workloads.context_parallel.cost_model import ring_pairs

pytestmark = pytest.mark.slow

RUN = ["--ranks", "2", "--trials", "1", "--steps", "2", "--warm-up", "1", "--trace-steps", "2", "--port", "0"]
SIZE = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--sequence=8", "--batch=3"]


def test_a_plain_ring_is_seen_to_divide_causal_attention_unequally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    command = ["run", "ring_attention", *RUN, *SIZE, "--option", "layout=plain", "--format", "json"]
    assert main.run([*command, "--quiet"]) == FINE
    said = capsys.readouterr()
    assert said.err == ""  # Whoever wants quiet hears of errors alone.
    (run,) = json.loads(said.out)

    def value(metric: str, **labels: str) -> float:
        (found,) = [one for one in run["estimates"] if one["metric"] == metric and one["labels"] == labels]
        return float(found["median"])

    first, last = (3 * 2 * ring_pairs("plain", is_causal=True, sequence=8, rank=rank, ranks=2) for rank in range(2))
    for account in ("counted", "expected"):
        assert value(RUN_ATTENTION_PAIRS.name, extreme="least", account=account) == first
        assert value(RUN_ATTENTION_PAIRS.name, extreme="most", account=account) == last
    for collective in ("send", "all_reduce"):
        assert 0 <= value(RUN_COLLECTIVE_OVERLAP_RATIO.name, collective=collective) <= 1

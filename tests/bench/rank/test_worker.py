"""What a rank does at its supervisor's word, and when that is gone."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from bench.rank.messages import ABORT, DUMP
from bench.rank.worker import obey_supervisor


def _minded(*messages: bytes, broken: str = "") -> list[str]:
    """What the rank did, in order. broken: what fails."""
    done: list[str] = []

    def do(what: str) -> None:
        done.append(what)
        if what == broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ours, theirs = Pipe()
    for message in messages:
        ours.send_bytes(message)
    ours.close()
    obey_supervisor(theirs, dump=lambda: do("dump"), abort=lambda: do("abort"), end=lambda: do("end"))
    return done


def test_a_rank_whose_supervisor_is_gone_ends_its_group() -> None:
    assert _minded() == ["end"]


def test_communicators_are_aborted_before_the_rank_is_killed_and_nothing_is_heard_after_that() -> None:
    assert _minded(DUMP, ABORT, DUMP) == ["dump", "abort", "end"]


@pytest.mark.parametrize("broken", ["dump", "abort"])
def test_a_rank_goes_on_minding_its_supervisor_though_its_device_cannot_be_asked(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _minded(DUMP, DUMP, ABORT, broken=broken) == ["dump", "dump", "abort", "end"]
    assert "an illegal memory access" in capsys.readouterr().err

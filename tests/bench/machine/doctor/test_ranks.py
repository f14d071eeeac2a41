"""Who reads the machine: the agent, or this process where no agent starts."""

from __future__ import annotations

from dataclasses import replace

from bench.errors import InfrastructureFailed
from bench.machine.doctor.collect import machine_of_ranks
from bench.machine.doctor.page import Entry
from bench.machine.machine import Machine
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_engine import FakeEngine


class FakeBrokenEngine(FakeEngine):
    """An engine whose agent does not start."""

    def machine(self) -> Machine:
        """Nothing: it is refused."""
        raise InfrastructureFailed("the agent of this machine ended with code 1")


def test_the_machine_is_read_by_the_agent_which_is_then_ended() -> None:
    engine = FakeEngine(make_machine(), {})
    read, ranks = machine_of_ranks(lambda: engine, lambda: replace(make_machine(), hostname="here"))
    assert read == make_machine()
    assert ranks == Entry(name="ranks", value="can be started")
    assert engine.is_stopped


def test_without_an_agent_this_process_reads_and_the_reason_is_said() -> None:
    engine = FakeBrokenEngine(make_machine(), {})
    here = replace(make_machine(), hostname="here")
    read, ranks = machine_of_ranks(lambda: engine, lambda: here)
    assert read == here
    assert ranks.reason == "they cannot be started: the agent of this machine ended with code 1"
    assert engine.is_stopped

"""Serves the demonstration: a recorded node, made ranks and made results, without a GPU and without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.demonstration.node import NOTICE, open_recorded_collectors
from bench.demonstration.ports import MadePorts
from bench.demonstration.ranks import MadeRanks
from bench.demonstration.results import MadeResults
from bench.serving import answering, once, refusal
from collectors.http_door import CannotListen, Server, Terms
from collectors.wanted import Wanted
from collectors.watch import NodeWatch


@contextmanager
def open_demonstration(
    *, host: str, port: int, wanted: Wanted, on_notice: Callable[[str], None], terms: Callable[[], Terms] = Terms
) -> Iterator[Server]:
    """A server that shows something on every panel, as long as one is inside.

    on_notice: is told first where it answers, then that it is a demonstration.

    Raises:
        InfrastructureFailed: the address cannot be served.
    """
    tell = once(on_notice)
    watch = NodeWatch(lambda: open_recorded_collectors(wanted), beat_s=wanted.beat_s, on_notice=tell)
    sources = (watch.samples, MadeRanks().samples, MadePorts().samples, MadeResults().samples)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(answering(sources, host=host, port=port, terms=terms, on_notice=tell))
        except CannotListen as error:
            raise refusal(error) from None
        tell(NOTICE)
        stack.enter_context(watch)
        yield server

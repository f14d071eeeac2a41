"""This program at /metrics: its build, and its process's resources under the standard names of Prometheus clients."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client import ProcessCollector

from bench.machine.machine import own_build
from collectors.metrics.metric import Sample
from collectors.metrics.process import BUILD_INFO
from collectors.prometheus.exposition import Owned, Source


def own_process() -> Source:
    """Return the source of the build, which is determined once, and of the process, which is read at each scrape."""
    version, commit = own_build()
    build = BUILD_INFO.at(1, version=version or "", commit=commit or "", python=platform.python_version())
    process = ProcessCollector(registry=None)

    def samples() -> Iterator[Owned]:
        yield build, {}
        for family in process.collect():
            for sample in family.samples:
                yield Sample(sample.name, sample.value), {}

    return samples

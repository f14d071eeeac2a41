"""Whether a run's counted traffic is what its law expects; both stand in the run's figures."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.metrics.results import RUN_PAYLOAD_BYTES
from tests.gpu.check import Finding, holds
from tests.gpu.readings import Ran


def counted_as_expected(what: str, run: Ran) -> Iterator[Finding]:
    """One finding: the bytes by collective and axis, by both accounts.

    A collective that has no law, such as a barrier, is told and not judged.
    """
    accounts: dict[tuple[str, str], dict[str, float]] = {}
    for (collective, axis, account), total in run.values(RUN_PAYLOAD_BYTES).items():
        accounts.setdefault((collective, axis), {})[account] = total
    differing = [
        f"{collective} over {axis}: {_bytes(of.get('counted'))} for {_bytes(of.get('expected'))}"
        for (collective, axis), of in sorted(accounts.items())
        if of.get("counted") != of.get("expected") and "expected" in of
    ]
    beyond = sorted(f"{name} over {axis}" for (name, axis), of in accounts.items() if "expected" not in of)
    unsaid = f"; without a law: {', '.join(beyond)}" if beyond else ""
    yield holds(
        f"{what}: traffic",
        not differing,
        seen=("; ".join(differing) or f"as expected, {len(accounts) - len(beyond)} collectives") + unsaid,
        expected="counted == expected",
        source="the strategy's law, workloads/cost_models",
    )


def _bytes(total: float | None) -> str:
    return "absent" if total is None else f"{total:,.0f} B"

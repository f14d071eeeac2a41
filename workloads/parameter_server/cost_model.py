"""Cost model of a parameter server: the weights of each server, and the bytes over the busiest link in one step.

There are W workers, s servers and P bytes of weights in fp32. In a step each worker sends its gradients, P, and
receives new weights, P. A server that holds the share f receives W f P, and then sends as much. So the link of a single
server carries W times as much as a worker's, and a step waits for 2 W P. In a ring's all_reduce among the workers,
ranks send while they receive, and a step waits for 2 (W - 1) / W P.
Source: Li et al. 2014, Scaling distributed machine learning with the parameter server.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import divide, elements, model_weights

ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """The weights that one server holds, as whole tensors."""

    size_bytes: int
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraffic:
    """Tensor payload that one rank sends and receives in a step, without headers."""

    sent_bytes: int
    received_bytes: int


def shares(shape: Shape, servers: int) -> tuple[ServerLoad, ...]:
    """Return each server's share of the model.

    Raises:
        ValueError: there are more servers than tensors, or none.
    """
    sizes_bytes = [ELEMENT_BYTES * elements([weight]) for weight in model_weights(shape)]
    if not 1 <= servers <= len(sizes_bytes):
        raise ValueError(
            f"servers is {servers}; {len(sizes_bytes)} tensors can be divided over 1 to {len(sizes_bytes)}"
        )
    server_of = divide(sizes_bytes, servers)
    held_by = [
        [size for size, server in zip(sizes_bytes, server_of, strict=True) if server == holder]
        for holder in range(servers)
    ]
    return tuple(ServerLoad(size_bytes=sum(sizes), tensors=len(sizes)) for sizes in held_by)


def server_traffic(share: ServerLoad, workers: int) -> StepTraffic:
    """Return a server's traffic in one step: every worker's gradients in, the new weights out to every worker."""
    return StepTraffic(sent_bytes=workers * share.size_bytes, received_bytes=workers * share.size_bytes)


def worker_traffic(shape: Shape) -> StepTraffic:
    """Return a worker's traffic in one step: its gradients out, the new weights in, for any number of servers."""
    weights_bytes = ELEMENT_BYTES * shape.parameters()
    return StepTraffic(sent_bytes=weights_bytes, received_bytes=weights_bytes)


def busiest_bytes(shape: Shape, *, servers: int, workers: int) -> int:
    """Return a step's bytes through the busiest link in one direction: the fullest server's, or a worker's if more.

    Gradients and weights go opposite ways and are equally large, so both directions carry the same.

    Raises:
        ValueError: there are more servers than tensors, or none.
    """
    fullest = max(shares(shape, servers), key=lambda share: share.size_bytes)
    return max(server_traffic(fullest, workers).received_bytes, worker_traffic(shape).sent_bytes)

"""Spec of `parameter_server`: servers hold the weights, workers push gradients to them and pull weights."""

from __future__ import annotations

from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.learning_rate import RECIPE
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.peak import replicated_peak
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import States, Transfer
from workloads.options import TRAINING_OPTIONS, microbatch_count, training_refusals
from workloads.parameter_server.cost_model import busiest_bytes, shares, worker_traffic
from workloads.spec import DataShare, Needs, Option, Parity, Setup, StrategySpec

STALENESS = Option(
    name="staleness", default=1, minimum=0, help="mode=asynchronous: steps that a worker may be ahead of the slowest"
)


def _servers(setup: Setup) -> int:
    return int(setup.options["servers"])


def _workers(setup: Setup) -> int:
    return setup.ranks - _servers(setup)


def _up_to(servers: int) -> str:
    return "1 server" if servers == 1 else f"1 to {servers} servers"


class ParameterServerSpec(StrategySpec):
    """Spec of `parameter_server`; the servers are the first ranks."""

    name = "parameter_server"
    summary = "the first ranks are servers, which hold the weights; the others push gradients to them and pull weights"
    options = (
        *TRAINING_OPTIONS,
        Option(
            name="servers",
            default=1,
            minimum=0,
            help="server ranks, each of which holds some of the weights; 1 or more",
        ),
        Option(
            name="mode",
            default="synchronous",
            choices=("synchronous", "asynchronous"),
            help="one update with the mean of all workers' gradients, or one with each gradient as it arrives",
        ),
        STALENESS,
    )
    needs = Needs(minimum_ranks=2)
    version = 3  # Weights as everywhere; since 2, messages are flat tensors over gloo, not calls of torch's RPC.
    parity = Parity(variants=({}, {"accumulate": 2}, {"checkpoint": "full"}, RECIPE, {"loss_chunks": 2}))

    def mesh(self, setup: Setup) -> dict[str, int]:
        # Servers and workers do different things, so the mesh has no data axis.
        return {"server": setup.ranks}

    def data_share(self, setup: Setup, rank: int) -> DataShare | None:
        if rank < _servers(setup):
            return None
        return DataShare(rank=rank - _servers(setup), ranks=_workers(setup))

    def training_ranks(self, setup: Setup) -> int:
        return _workers(setup)

    def refusals(self, setup: Setup) -> list[str]:
        servers, workers, tensors = _servers(setup), _workers(setup), setup.shape.parameter_tensors()
        most = min(setup.ranks - 1, tensors)
        if servers == 0:
            return [f"option servers is 0, and workers need one to push gradients to; use {_up_to(most)}"]
        reasons: list[str] = []
        if servers > tensors:
            reasons.append(
                f"option servers is {servers}; the model has {tensors} tensors, which are not split; use 1 to {tensors}"
            )
        if workers < 1:
            reasons.append(
                f"ranks is {setup.ranks} with servers={servers}, which leaves no worker to train;"
                f" use --ranks {servers + 1} or more, or {_up_to(most)}"
            )
        else:
            reasons += training_refusals(setup, data_ranks=workers)
        if setup.options["mode"] == "synchronous" and setup.options["staleness"] != STALENESS.default:
            reasons.append(
                f"option staleness is {setup.options['staleness']} with mode=synchronous, where no worker is ever"
                " ahead; leave it out, or use mode=asynchronous"
            )
        return reasons

    def incomparable(self, setup: Setup) -> str | None:
        if setup.options["mode"] == "asynchronous":
            return (
                "mode=asynchronous updates with each worker's own gradient, computed with older weights;"
                " use mode=synchronous"
            )
        return None

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        """Return the transfers of the rank that all wait for, usually the fullest server: gradients, then weights."""
        one_way_bytes = busiest_bytes(setup.shape, servers=_servers(setup), workers=_workers(setup))
        one_way = Transfer(collective="send", axis="server", payload_bytes=one_way_bytes)
        return (one_way, one_way)

    def states(self, setup: Setup, rank: int) -> States:
        """Return a server's share of all states, or a worker's whole weights and gradients without optimizer."""
        if rank < _servers(setup):
            share = shares(setup.shape, _servers(setup))[rank]
            return States(
                parameters_bytes=share.size_bytes,
                gradients_bytes=share.size_bytes,
                optimizer_bytes=2 * share.size_bytes + 4 * share.tensors,
            )
        weights_bytes = worker_traffic(setup.shape).received_bytes
        return States(parameters_bytes=weights_bytes, gradients_bytes=weights_bytes, optimizer_bytes=0)

    def paper_states(self, setup: Setup) -> States:
        """Return no states: the papers do not count servers."""
        return States(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0)

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return self._cuda_peak(setup)
        return Absent(
            reason="a server holds the gradients of as many workers as have pushed, and copies of the weights"
            " that are still sent: how many at once depends on timing"
        )

    def _cuda_peak(self, setup: Setup) -> Prediction | Absent:
        """Predict the peak of a worker or of the fullest server, whichever is more.

        Messages that wait to be sent or read are on the host. A server reads the gradients of all workers at once, or
        of one worker with mode=asynchronous, while those of the last step still live.
        """
        if (reason := cuda_peak_not_covered(setup)) is not None:
            return reason
        servers, workers = _servers(setup), _workers(setup)
        at_once = 1 if setup.options["mode"] == "asynchronous" else workers
        fullest = max((self.states(setup, rank) for rank in range(servers)), key=lambda states: states.parameters_bytes)
        server = Prediction(
            parameters_bytes=fullest.parameters_bytes,
            buffers_bytes=0,
            gradients_bytes=fullest.gradients_bytes,
            optimizer_bytes=fullest.optimizer_bytes,
            activations_bytes=0,
            temporary_bytes=at_once * fullest.gradients_bytes,
        )
        worker = replicated_peak(
            cuda_model(setup, workers), states=self.states(setup, servers), microbatches=microbatch_count(setup)
        )
        return max(server, worker, key=lambda peak: peak.total_bytes)

"""The Ray driver, a child of the runner: reserves nodes, starts an agent on each through an actor, and ends them all.

Started as `python -P -m bench.engines.ray.driver`, with orders on its standard input and answers on its standard
output. When the input ends, so do the actors, the placement group, a cluster that was started here, and this process.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

import msgspec

from bench.engines.ray.orders import (
    AskAgents,
    Connect,
    Connected,
    Done,
    Failed,
    Listed,
    ListNodes,
    RayAnswer,
    RayNode,
    RayOrder,
    Reserve,
    Reserved,
    StartAgents,
    StopAgents,
    WaitNotice,
    alive_nodes,
    bundle,
    has,
    in_words,
)
from bench.engines.settings_file import SETUP_FAILED
from bench.errors import InfrastructureFailed, Misuse, plural

REACH_S = 10.0
"""How long the cluster's address may take to accept a connection."""
LOOK_S = 0.5
NOTICE_S = 2.0
"""How long a wait for nodes lasts before it is reported."""
STOP_S = 10.0
"""How long an agent may take to end on its own."""
LEAVE_S = 20.0
"""How long Ray may take to shut down; the rest then ends with this process."""
STORE_BYTES = 80 * 1024**2
"""Size of the object store of a cluster that is started here, which is unused: about the minimum that Ray accepts."""


class Abandoned(RuntimeError):
    """The runner has gone."""


class NodeActor:
    """Starts and ends a node's agent. Ray sends the class to workers that lack our package, so it needs none of it."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the actor.
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self, words: list[str], key: bytes, environment: dict[str, str]) -> None:
        """Start the agent in the worker's environment without Ray's own variables."""
        dropped = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONPATH", "SPT_NOENV")
        worker_environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        for name in dropped:
            worker_environment.pop(name, None)
        self._agent = subprocess.Popen(
            words,
            env={**worker_environment, **environment},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        assert self._agent.stdin is not None
        try:
            self._agent.stdin.write(key)
            self._agent.stdin.close()
        except BrokenPipeError:
            pass  # It has already ended, which `ended` reports.

    def ended(self) -> str | None:
        """Return how the agent ended; None while it lives."""
        code = None if self._agent is None else self._agent.poll()
        if code is None:
            return None
        self._output.seek(0)
        output = self._output.read().decode(errors="replace").splitlines()
        lines = [line.strip() for line in output if line.strip()]
        if len(lines) > 1 and lines[-1].startswith(SETUP_FAILED):  # Like `last_words`, which Ray's workers lack.
            lines.append(f"{lines[-1]}: {lines[-2]}")
        return f"it ended with code {code}{f'; its last line: {lines[-1]}' if lines else ''}"

    def stop(self, within_s: float) -> str | None:
        """Wait for the agent to end, and kill it if it does not; return how it ended. This is the actor's last call."""
        if self._agent is not None:
            try:
                self._agent.wait(within_s)
            except subprocess.TimeoutExpired:
                self._agent.kill()
                self._agent.wait()
        ended = self.ended()
        self._output.close()
        return ended


class Driver:
    """Carries out orders. orders: their stream, watched for the runner's end. answers: the stream of answers."""

    def __init__(self, orders: IO[bytes], answers: IO[bytes]) -> None:
        self._orders, self._answers = orders, answers
        self._order: Reserve | None = None
        self._bundle: dict[str, float] = {}
        self._group: Any = None
        self._names: tuple[str, ...] = ()
        self._actors: list[Any] = []
        self._ended: list[Any] = []

    def answer(self, order: RayOrder) -> RayAnswer:
        """Carry out an order; return the answer.

        Raises:
            Abandoned: the runner has gone meanwhile.
        """
        try:
            match order:
                case Connect():
                    return self._connect(order)
                case ListNodes():
                    return Listed(nodes=_nodes())
                case Reserve():
                    return self._reserve(order)
                case StartAgents():
                    return self._start(order)
                case AskAgents():
                    return self._ask()
                case StopAgents():
                    return self.stop()
        except Misuse as error:
            return Failed(text=str(error), is_misuse=True)
        except InfrastructureFailed as error:
            return Failed(text=str(error))

    def send(self, answer: RayAnswer) -> None:
        """Send an answer.

        Raises:
            Abandoned: the runner has gone.
        """
        try:
            self._answers.write(msgspec.json.encode(answer) + b"\n")
        except OSError:
            raise Abandoned from None

    def _connect(self, order: Connect) -> Connected:
        import ray

        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if order.address not in (None, "auto"):
            _reach(order.address)
        try:
            if order.address is None:
                ray.init(
                    address="local",
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    _temp_dir=order.folder,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            else:
                ray.init(address=order.address, **quiet)
        except Exception as error:  # noqa: BLE001  # Ray raises many kinds, and bare ones.
            what = "Ray cannot be started on this machine" if order.address is None else f"Ray at {order.address}"
            raise InfrastructureFailed(f"{what}: {_in_one_line(error)}") from None
        return Connected(address=ray.util.get_node_ip_address())

    def _reserve(self, order: Reserve) -> Reserved:
        from ray.util.placement_group import placement_group, placement_group_table

        is_first = self._group is None
        if is_first:
            self._bundle = bundle(order, _nodes())
            self._group = placement_group([self._bundle] * order.nodes, strategy="STRICT_SPREAD", name="observatory")
        notice_s = time.monotonic() + NOTICE_S
        while True:
            nodes = {node.id: node for node in _nodes()}
            table = placement_group_table(self._group)
            places = [table["bundles_to_node_id"].get(number, "") for number in range(order.nodes)]
            if table["state"] == "CREATED" and all(place in nodes for place in places):
                self._names = tuple(nodes[place].name for place in places)
                return Reserved(names=self._names)
            self._check_there_are_enough(order, tuple(nodes.values()))
            if time.monotonic() > notice_s:
                notice_s = float("inf")
                needed = f"{plural(order.nodes, 'node')} with {in_words(self._bundle)} free on each"
                self.send(WaitNotice(text=f"Ray's cluster is busy or short of nodes; waiting for {needed}"))
            self._pause()

    def _check_there_are_enough(self, order: Reserve, nodes: Sequence[RayNode]) -> None:
        able = sum(has(node, self._bundle) for node in nodes)
        if able < order.nodes:
            dead = [name for name in self._names if name not in {node.name for node in nodes}]
            of = f" ({', '.join(dead)} died)" if dead else ""
            raise InfrastructureFailed(
                f"Ray's cluster has {plural(able, 'node')} with {in_words(self._bundle)} left{of},"
                f" but {order.nodes} are needed"
            )

    def _start(self, order: StartAgents) -> Done:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        environment = order.environment
        if not self._bundle.get("GPU"):  # Only some versions of Ray hide GPUs that were not requested.
            environment = {"CUDA_VISIBLE_DEVICES": "", **environment}
        for number in range(len(self._names)):
            options = {
                "num_cpus": self._bundle.get("CPU", 0),
                "num_gpus": self._bundle.get("GPU", 0),
                "resources": {name: value for name, value in self._bundle.items() if name not in ("CPU", "GPU")},
                "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, number),
            }
            self._actors.append(ray.remote(NodeActor).options(**options).remote())
        # The key is an argument of a method, because the cluster stores the arguments that create an actor.
        started = [
            actor.start.remote([*order.words, "--node", str(number)], order.key, environment)
            for number, actor in enumerate(self._actors)
        ]
        waiting = list(started)
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_S)
            alive = {node.name for node in _nodes()}
            if lost := [name for name in self._names if name not in alive]:
                raise InfrastructureFailed(f"{', '.join(lost)}: the node has left Ray's cluster")
            self._pause(0.0)
        self._results(started)
        return Done()

    def _ask(self) -> Done:
        for name, ended in zip(
            self._names, self._results([actor.ended.remote() for actor in self._actors]), strict=False
        ):
            if ended is not None:
                raise InfrastructureFailed(f"{name}: {ended}")
        return Done()

    def _results(self, calls: Sequence[Any]) -> list[Any]:
        """Return what the actors' methods returned, in order.

        Raises:
            InfrastructureFailed: a method raised or did not answer, or its actor died.
        """
        import ray

        results = []
        for name, call in zip(self._names, calls, strict=False):
            try:
                results.append(ray.get(call, timeout=STOP_S))
            except ray.exceptions.RayTaskError as error:
                raise InfrastructureFailed(f"{name}: {_in_one_line(error.cause)}") from None
            except ray.exceptions.GetTimeoutError:
                raise InfrastructureFailed(f"{name}: its actor did not answer within {STOP_S:g} s") from None
            except ray.exceptions.RayError as error:
                raise InfrastructureFailed(f"{name}: its actor died: {_in_one_line(error)}") from None
        return results

    def stop(self) -> Done:
        import ray

        actors, self._actors = self._actors, []
        if actors:
            ray.wait([actor.stop.remote(STOP_S) for actor in actors], num_returns=len(actors), timeout=2 * STOP_S)
        for actor in actors:
            ray.kill(actor)
        self._ended += actors  # Keep the handles: without one, Ray may take half a minute to end an actor.
        return Done()

    def close(self) -> None:
        import ray

        if ray.is_initialized():
            self.stop()
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
            ray.shutdown()

    def _pause(self, elapsed_s: float = LOOK_S) -> None:
        """Wait, unless the runner is gone.

        Raises:
            Abandoned: the input is readable. No order comes while another is carried out, so the runner is gone.
        """
        if select.select([self._orders], [], [], elapsed_s)[0]:
            raise Abandoned


def _nodes() -> tuple[RayNode, ...]:
    import ray

    return alive_nodes(ray.nodes())


def _reach(address: str) -> None:
    """Check that something answers at the address; Ray itself would keep trying for a long time.

    Raises:
        InfrastructureFailed: nothing answers.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise InfrastructureFailed(
            f"no Ray cluster answers at {address}: {error.strerror or error}; check `ray status` on that machine"
        ) from None


def _in_one_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # The error that Ray raises from it says less.
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


def main() -> NoReturn:
    """Carry out orders until the input ends; then end all that was started."""
    # Reserve the standard streams for messages: Ray's prints go to standard error.
    orders, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    driver = Driver(orders, answers)
    decoder = msgspec.json.Decoder(RayOrder)
    folder: str | None = None
    try:
        for line in orders:
            order = decoder.decode(line)
            if isinstance(order, Connect):
                folder = order.folder
            driver.send(driver.answer(order))
    except Abandoned:
        pass
    finally:
        limit = threading.Timer(LEAVE_S, os._exit, (1,))
        limit.daemon = True
        limit.start()
        with suppress(Exception):
            driver.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

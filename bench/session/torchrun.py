"""One rank of a case under torchrun, or started by hand in a debugger: no agent, no supervisor, one trial.

    torchrun --nproc-per-node 2 -m bench.session.torchrun CASE.json --folder FOLDER

CASE.json is the output of `observatory run ... --dry-run --format json`, or the case.json of a run's folder. torchrun's
variables give the rank its place. Unlike `observatory run`, this has no samples of the node, no trial limit, no root
cause of a failure, and no fault from the case file.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.case import Case, Purpose, check, find_spec
from bench.engines.environment import environment, private_caches
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, MISUSE, InfrastructureFailed, Misuse, plural, say
from bench.machine import machine
from bench.machine.gpus import Gpus, read_gpus
from bench.rank.gpu_of_rank import gpu_of_rank, prepare
from bench.rank.messages import RankOrder, Store
from bench.rank.worker import leave, work
from bench.store import run_dir
from bench.store.files import read_small
from collectors.files import PRIVATE, SHARED, make_folder, schema_version_of
from collectors.rank import profiler
from collectors.sample_log import LogUnwritable, SampleLog
from collectors.sockets import CannotListen, listen

USAGE = "torchrun --nproc-per-node {ranks} -m bench.session.torchrun CASE.json --folder FOLDER"
PURPOSE = Purpose(note="started by torchrun")
"""Marks the run as ad hoc, so that a trial by hand does not count as the newest result of its series."""
STORE = ".store"
"""File in the run's folder through which the ranks of one node meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPlace:
    """A rank's place, from torchrun's variables.

    has_store: torchrun's agent hosts the store at `host` and `port`; otherwise rank 0 does.
    is_one_node: all ranks are on this node.
    """

    rank: int
    local_rank: int
    ranks: int
    host: str
    port: int
    has_store: bool
    is_one_node: bool


def main(words: Sequence[str] | None = None) -> int:
    """Run one rank of the case; return the exit code, 2 for errors that the user can correct."""
    parser = argparse.ArgumentParser(description="One rank of a case, by torchrun's variables.", prog="bench.session")
    parser.add_argument("case", type=Path, metavar="CASE.json", help="from --dry-run --format json, or a run's folder")
    parser.add_argument("--folder", type=Path, required=True, help="new folder for the run, the same for all ranks")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds that ranks wait for each other; default 600"
    )
    parser.add_argument("--shared", action="store_true", help="let the group of the folder of runs read the results")
    arguments = parser.parse_args(words)
    os.umask(SHARED if arguments.shared else PRIVATE)
    try:
        place = read_place(os.environ)
        case = read_case(arguments.case)
        if place.ranks != case.ranks:
            raise Misuse(
                f"WORLD_SIZE is {place.ranks}, but {arguments.case} has {plural(case.ranks, 'rank')};"
                f" {USAGE.format(ranks=case.ranks)}"
            )
        return _run(case, place, arguments.folder.absolute(), arguments.limit)
    except Misuse as error:
        say(str(error))
        return MISUSE
    except (InfrastructureFailed, LogUnwritable) as error:
        say(str(error))
        return INFRASTRUCTURE


def read_place(variables: Mapping[str, str]) -> TorchrunPlace:
    """Return the rank's place from torchrun's variables.

    Raises:
        Misuse: a variable is missing or not a number.
    """

    def text(name: str) -> str:
        if name not in variables:
            raise Misuse(f"the variable {name} is not set; torchrun sets it: {USAGE.format(ranks=2)}")
        return variables[name]

    def number(name: str) -> int:
        if not text(name).isdecimal():
            raise Misuse(f'the variable {name} is "{text(name)}"; torchrun sets it to a number from 0')
        return int(text(name))

    ranks = number("WORLD_SIZE")
    return TorchrunPlace(
        rank=number("RANK"),
        local_rank=number("LOCAL_RANK"),
        ranks=ranks,
        host=text("MASTER_ADDR"),
        port=number("MASTER_PORT"),
        has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_one_node=variables.get("LOCAL_WORLD_SIZE", str(ranks)) == str(ranks),
    )


class _CaseDocument(msgspec.Struct, frozen=True):
    """The part that all kinds of case files share."""

    case: Case


def read_case(path: Path) -> Case:
    """Return the case from a file that `--dry-run --format json` printed, or from a run's case.json.

    Raises:
        Misuse: it is not such a file, has several cases, was written by a newer version, or its case cannot run.
    """
    try:
        data = read_small(path)
        if not data.lstrip().startswith(b"["):
            if (version := schema_version_of(data)) > run_dir.SCHEMA_VERSION:
                raise Misuse(
                    f"{path}: schema version {version} is newer than {run_dir.SCHEMA_VERSION}, the newest known version"
                )
            data = b"[%s]" % data
        documents = msgspec.json.decode(data, type=list[_CaseDocument])
    except OSError as error:
        raise Misuse(f"case file {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(
            f"{path} is not a case file ({error}); `observatory run ddp --dry-run --format json` prints one"
        ) from None
    if len(documents) != 1:
        raise Misuse(
            f"{path} holds {len(documents)} cases, but torchrun runs one; leave out --with-baseline and curves"
        )
    case = documents[0].case
    spec = find_spec(case.strategy)
    if case.version != spec.version_on(case.device):
        raise Misuse(
            f"{path} has version {case.version} of {case.strategy}, this program has version"
            f" {spec.version_on(case.device)}; write the file again with --dry-run"
        )
    if unlike := sorted(case.options.keys() ^ {option.name for option in spec.options}):
        raise Misuse(
            f"{path}: option {unlike[0]} of {case.strategy} is missing or unknown; write the file again with --dry-run"
        )
    return check(case)


def _run(case: Case, place: TorchrunPlace, folder: Path, limit_s: float) -> int:
    """Measure one trial of the case as this rank."""
    path = folder / f"rank{place.rank}.jsonl"
    for file in (path, folder / "case.json") if place.rank == 0 else (path,):
        if file.exists():
            raise Misuse(f"{file} exists already, and a folder holds one run; choose a new --folder")
    caches, notices = private_caches(os.environ)
    for text in notices if place.rank == 0 else ():
        say(text)
    variables = environment(os.environ) | caches
    if not place.is_one_node and "GLOO_SOCKET_IFNAME" not in os.environ:
        del variables["GLOO_SOCKET_IFNAME"]  # The loopback interface does not reach other nodes.
    os.environ.update(variables)  # torch reads them when a process group is made.
    if place.rank == 0:  # The folder stays locked until this process ends, which marks the run as active.
        run_dir.begin(replace(case, trials=1), machine.read(), folder.parent, purpose=PURPOSE, name=folder.name)
    make_folder(folder)
    log = SampleLog(path)
    # Each process has its own view of the GPUs: torchrun's ranks see all of a node, Slurm's tasks may see one each.
    gpus = read_gpus() if case.device == "cuda" else Gpus()
    gpu = gpu_of_rank(case, place.local_rank, gpus.gpus, gpus.absent)
    binding = prepare(case, gpu)
    store = None
    if place.rank == 0 and not place.is_one_node and not place.has_store:
        store = _own_store(place)
    if case.trace_steps and profiler.may_start_before_fork():
        profiler.warm(torch.device("cpu"))  # The forkserver does the same for its ranks.
    order = RankOrder(
        run=folder.name,
        trial=0,
        rank=place.rank,
        local_rank=place.local_rank,
        gpu=gpu,
        case=replace(case, trials=1),
        folder=str(folder),
        store=str(folder / STORE)
        if place.is_one_node
        else Store(host=place.host, port=place.port, prefix="observatory"),
        store_timeout_s=limit_s,
        collective_timeout_s=limit_s,
    )
    code = work(order, log, binding)
    if place.rank == 0:
        (folder / STORE).unlink(missing_ok=True)
    del store  # The ranks need it until here.
    return CASE_FAILED if code else FINE


def _own_store(place: TorchrunPlace) -> TCPStore:
    """Return rank 0's own store, which listens at MASTER_ADDR only; by default it would listen on every network.

    Raises:
        InfrastructureFailed: the store cannot listen there.
    """
    try:
        listener = listen(place.host, place.port)
    except CannotListen as error:
        raise InfrastructureFailed(f"the ranks' store cannot be opened: {error}; choose another MASTER_PORT") from None
    return TCPStore(place.host, place.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    leave(main())

"""Training checkpoints: the states that a workload resumes from, saved and loaded by torch.distributed.checkpoint.

A checkpoint is a folder with a file from each rank that wrote, torch's `.metadata`, which is written last, and
`case.json`, which identifies the case. Weights and their optimizer states have the weight's name in `single`, so that
another number of ranks can load them; states of one rank alone have its number. Of equal copies only one is written.
Not covered: residuals of lossy gradient compression, and the position in the data, which the caller keeps.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture
from torch.optim import Optimizer

from workloads.core.precision import MasterAdamW
from workloads.core.trainer import plain_name
from workloads.protocols import KeepsOwnStates, KeepsProgress, Workload
from workloads.spec import SaveMode, Setup

SCHEMA_VERSION = 1
ABOUT = "case.json"
METADATA = ".metadata"


class CheckpointUnusable(ValueError):
    """A checkpoint that this workload cannot load: it is truncated, incomplete, or from another case."""


# What is saved.


def states_of(workload: Workload) -> dict[str, Tensor]:
    """Return the tensors that training resumes from, by name; the workload uses them, so loading fills them in place.

    Every rank must call it: an optimizer that has not updated yet makes its states, by an update with zero gradients.
    """
    _make_states(workload.optimizer)
    if isinstance(workload, KeepsOwnStates):
        return {name: tensor.detach() for name, tensor in workload.own_states().items()}
    states: dict[str, Tensor] = {}
    own = _own(workload.optimizer)
    masters = dict(zip(own.weights, own.masters, strict=True)) if isinstance(own, MasterAdamW) else {}
    states_by_weight = own.state if masters else workload.optimizer.state
    for name, weight in workload.model.named_parameters():
        states[f"weights.{plain_name(name)}"] = weight.detach()
        if weight in masters:
            states[f"optimizer.{plain_name(name)}.master"] = masters[weight].detach()
        for key, state in states_by_weight.get(masters.get(weight, weight), {}).items():
            if isinstance(state, Tensor):
                states[f"optimizer.{plain_name(name)}.{key}"] = state.detach()
    return states


def _own(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that updates this rank's weights; ZeroRedundancyOptimizer wraps it."""
    own: Optimizer = getattr(optimizer, "optim", optimizer)
    return own


def _make_states(optimizer: Optimizer) -> None:
    """Make the optimizer's states if it has none yet, with learning rate 0, so that the weights do not change."""
    own = _own(optimizer)
    weights: list[Tensor] = [weight for group in own.param_groups for weight in group["params"] if "lr" in group]
    if not weights or own.state:
        return
    if isinstance(own, MasterAdamW):  # It reads the gradients of the weights, and updates their masters.
        weights = list(own.weights)
    before = [weight.grad for weight in weights]
    rates = [group["lr"] for group in own.param_groups]
    for weight in weights:
        weight.grad = torch.zeros_like(weight, dtype=getattr(weight, "grad_dtype", None) or weight.dtype)
    for group in own.param_groups:
        group["lr"] = 0.0
    own.step()
    for group, rate in zip(own.param_groups, rates, strict=True):
        group["lr"] = rate
    for weight, gradient in zip(weights, before, strict=True):
        weight.grad = gradient


def _progress_of(workload: Workload) -> dict[str, Tensor]:
    """Return the workload's progress as tensors of one element, by rank if each rank has its own."""
    if not isinstance(workload, KeepsProgress):
        return {}
    own = f"rank{dist.get_rank()}." if isinstance(workload, KeepsOwnStates) else ""
    return {
        f"{own}progress.{name}": torch.tensor(float(number), dtype=torch.float64)
        for name, number in workload.progress().items()
    }


def checkpoint_bytes(workload: Workload) -> int:
    """Return the bytes of a checkpoint that this rank holds, including tensors that other ranks also hold."""
    return sum(_local(tensor).nbytes for tensor in {**states_of(workload), **_progress_of(workload)}.values())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


# Saving.


def save(
    setup: Setup, workload: Workload, folder: Path, *, mode: SaveMode = "sync", group: dist.ProcessGroup | None = None
) -> Future[None]:
    """Save a checkpoint into a folder that holds none yet; every rank of the world calls it.

    mode: see `SaveMode`. group: of all ranks, on gloo, which nothing else uses meanwhile; async needs one.
    Returns: a future that is done when this rank knows that all ranks' files are on disk; with sync it is done already.
    With async, training may continue, and the future raises the errors that a sync save raises here.

    Raises:
        OSError: a rank cannot write, for example because the disk is full.
        RuntimeError: a rank failed for another reason.
    """
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).write_text(json.dumps(describe(setup), indent=1) + "\n", encoding="utf-8")
    states = {**states_of(workload), **_progress_of(workload)}
    writer = _Writer(folder, sync_files=True)
    ended: Future[None] = Future()
    if mode == "sync":
        with _plain_errors():
            state_dict_saver.save(states, storage_writer=writer, process_group=group)
        ended.set_result(None)
        return ended
    assert group is not None, "a save in the background needs a group of its own"

    def end(saved: Future[Any]) -> None:
        try:
            with _plain_errors():
                saved.result()
        except Exception as error:  # noqa: BLE001  # Whoever waits for the future gets it.
            ended.set_exception(error)
        else:
            ended.set_result(None)

    saved: Any = state_dict_saver.async_save(states, storage_writer=writer, process_group=group)
    saved.add_done_callback(end)
    return ended


class _Writer(FileSystemWriter):
    """Flushes each file to disk before its rank reports it as written, and reports the system's error on a full disk.

    torch's archive raises an error of its own when it is closed after a failed write, which hides the system's.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, OSError) and cause.errno is not None:
                    raise OSError(cause.errno, os.strerror(cause.errno), str(self.path)) from error
                cause = cause.__cause__ or cause.__context__
            raise


def written_bytes(folder: Path, rank: int) -> int:
    """Return the bytes of the files that a rank wrote into a checkpoint."""
    return sum(path.stat().st_size for path in folder.glob(f"__{rank}_*.distcp"))


def remove(folder: Path, rank: int) -> None:
    """Remove the files that a rank wrote into a checkpoint, complete or not; rank 0 also removes the shared files."""
    for path in folder.glob(f"__{rank}_*.distcp"):
        path.unlink(missing_ok=True)
    if rank == 0:
        for name in (METADATA, f"{METADATA}.tmp", ABOUT):
            (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # Another rank's files are still there; the last one to leave removes the folder.
        folder.rmdir()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise one rank's error in place of torch's exception, which lists the stacks of all ranks."""
    try:
        yield
    except CheckpointException as failed:
        errors = {rank: error for rank, (error, _) in sorted(failed.failures.items())}
        # A full disk may show on some ranks as another error.
        cause = next((error for error in errors.values() if isinstance(error, OSError)), next(iter(errors.values())))
        rank = next(rank for rank, error in errors.items() if error is cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            raise OSError(cause.errno, os.strerror(cause.errno), cause.filename) from failed
        first = next(iter(str(cause).splitlines()), "")
        raise RuntimeError(f"rank {rank}: {type(cause).__name__}: {first}") from failed


# Loading.


def load(setup: Setup, workload: Workload, folder: Path, *, group: dist.ProcessGroup | None = None) -> None:
    """Load a checkpoint into a workload; every rank of the world calls it.

    setup: of the workload. The folder must hold all ranks' files. The number of ranks may differ from that of the save,
    unless the workload has states that only the same rank can use (`KeepsOwnStates`).
    group: for torch's plans; by default the world.

    Raises:
        CheckpointUnusable: the checkpoint is truncated, incomplete or from another case; nothing was loaded.
    """
    check(folder, setup, same_ranks=isinstance(workload, KeepsOwnStates))
    states, progress = states_of(workload), _progress_of(workload)
    reader = PlainReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    needed = {**states, **progress}
    if missing := sorted(set(needed) - set(stored)):
        raise CheckpointUnusable(f"{folder}: it holds no {missing[0]}; it was saved by another model or optimizer")
    for name, tensor in needed.items():
        size = getattr(stored[name], "size", None)
        if size != tensor.shape:
            raise CheckpointUnusable(
                f"{folder}: {name} has the shape {tuple(size or ())} there and {tuple(tensor.shape)} here; load it into"
                " the model that saved it"
            )
    with _plain_errors():
        state_dict_loader.load(needed, storage_reader=reader, process_group=group)
    if isinstance(workload, KeepsProgress):
        workload.resume({name.partition("progress.")[2]: float(needed[name]) for name in progress})


def check(folder: Path, setup: Setup, *, same_ranks: bool) -> None:
    """Check that a checkpoint is complete and from this setup. same_ranks: its number of ranks must be equal.

    Raises:
        CheckpointUnusable: it is not; the message says what is wrong.
    """
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        version, saved = about["schema_version"], about["case"]
    except OSError as error:
        raise CheckpointUnusable(
            f"{folder}: {ABOUT} cannot be read ({error.strerror}); name the folder of a checkpoint"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointUnusable(f"{folder}: {ABOUT} is damaged; the checkpoint cannot be used") from error
    if version != SCHEMA_VERSION:
        raise CheckpointUnusable(
            f"{folder}: it has version {version} of checkpoints, and this version of Parallel Observatory reads"
            f" {SCHEMA_VERSION}; load it with the version that saved it"
        )
    own = describe(setup)["case"]
    may_differ = () if same_ranks else ("ranks",)
    for name in sorted({*own, *saved} - {*may_differ}):
        if own.get(name) != saved.get(name):
            why = f"; {setup.strategy} loads only what as many ranks saved" if name == "ranks" else ""
            raise CheckpointUnusable(
                f"{folder}: it is from another case: {name} was {saved.get(name)} and is {own.get(name)}{why}"
            )
    _check_files(folder)


def _check_files(folder: Path) -> None:
    try:
        metadata = PlainReader(folder).read_metadata()
    except FileNotFoundError:
        raise CheckpointUnusable(
            f"{folder}: {METADATA} is missing: the save did not finish, or each node has its own files; copy all to"
            " one folder that every rank sees"
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError, KeyError) as error:
        raise CheckpointUnusable(f"{folder}: {METADATA} is damaged ({error}); the checkpoint cannot be used") from error
    needed: dict[str, int] = defaultdict(int)
    for place in (metadata.storage_data or {}).values():
        needed[place.relative_path] = max(needed[place.relative_path], place.offset + place.length)
    for name, size in sorted(needed.items()):
        rank = name.removeprefix("__").partition("_")[0]
        try:
            file_bytes = (folder / name).stat().st_size
        except FileNotFoundError:
            raise CheckpointUnusable(
                f"{folder}: rank {rank}'s file {name} is missing; copy it from the node of rank {rank}"
            ) from None
        if file_bytes < size:
            raise CheckpointUnusable(
                f"{folder}: rank {rank}'s file {name} is truncated: it has {file_bytes} of at least {size} bytes"
            )


def describe(setup: Setup) -> dict[str, Any]:
    """Return what identifies a checkpoint: the parts of the setup that decide what is computed."""
    case = {
        "strategy": setup.strategy,
        "ranks": setup.ranks,
        "precision": setup.precision,
        "seed": setup.seed,
        **{f"shape.{name}": value for name, value in asdict(setup.shape).items()},
        **{f"option {name}": value for name, value in setup.options.items() if name != "workers"},
    }
    return {"schema_version": SCHEMA_VERSION, "case": case}


# torch passes plans between ranks, and keeps its metadata, as pickles. A pickle can run code; these readers construct
# only the types that plans and metadata consist of.

_OF_CHECKPOINTS = "torch.distributed.checkpoint."
_PARTS = frozenset({
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("traceback", "StackSummary"),
    ("traceback", "FrameSummary"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Since Python 3.13.
    ("collections", "OrderedDict"),
})  # fmt: skip


_MODULES = {module for module, _ in _PARTS} | {"builtins", "torch"}


def _member(kind: Any, name: str) -> Enum:
    """Return the member of an enumeration, the only attribute that a plan may read."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError("only members of enumerations are attributes in a checkpoint's plan")
    return kind[name]


class _Parts(pickle.Unpickler):
    """Makes data classes and enumerations of torch's checkpoints, torch's types, and exceptions; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # Python before 3.11.4 pickles members this way.
            return _member
        if module not in _MODULES and not module.startswith(_OF_CHECKPOINTS):  # Even an import can run code.
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint's plan")
        part = super().find_class(module, name)
        is_part = (module, name) in _PARTS or isinstance(part, torch.dtype)
        if module.startswith(_OF_CHECKPOINTS) and isinstance(part, type):
            is_part = is_dataclass(part) or issubclass(part, Enum | BaseException)
        if module == "builtins" and isinstance(part, type):
            is_part = issubclass(part, Exception)
        if not is_part:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint's plan")
        return part


class PlainReader(FileSystemReader):
    """Reads a checkpoint's files without running code that its metadata names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata.

        Raises:
            FileNotFoundError: there is none.
            Exception: one of pickle's, if it is damaged.
        """
        metadata = _Parts(io.BytesIO((Path(self.path) / METADATA).read_bytes())).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"it holds a {type(metadata).__name__}")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def admit_plans() -> None:
    """Let this process's object collectives receive plans of checkpoints, and nothing that can run code."""
    distributed_c10d._tensor_to_object = _plan_of


def _plan_of(tensor: Tensor, size: Tensor | int, group: object = None) -> Any:
    return _Parts(io.BytesIO(tensor.cpu().numpy().tobytes()[: int(size)])).load()

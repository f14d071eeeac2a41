"""The first minutes on a GPU machine: every check, each within its limit, and one table at the end.

    python -m tests.gpu.first --output FOLDER [--budget 540] [--only NAME ...] [--again NAME ...] [--rehearse] [--list]

A second call with the same folder goes on where the first stopped. `make gpu` prepares the machine and calls this.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, MISUSE
from bench.machine.machine import Machine
from bench.machine.machine import read as read_machine
from tests.gpu.report import table_markdown, table_text
from tests.gpu.roster import CHECKS
from tests.gpu.runner import Result, Setting, current_result, perform, run_all
from tests.gpu.session import ROOT

BUDGET_S = 540.0
"""Nine minutes: what one call on a borrowed machine may take."""
REHEARSED_GPUS = 8
"""In a rehearsal checks of several GPUs run on so many ranks at most."""
NO_GPU = "no GPU is visible: torch counts none (see `nvidia-smi`, CUDA_VISIBLE_DEVICES); --rehearse tries all on a CPU"


def main(words: Sequence[str]) -> int:
    """Run the command; the exit code: 0 where nothing is off, 3 where something is, 4 where no GPU is visible."""
    arguments = command_parser().parse_args(words)
    if arguments.list:
        for check in CHECKS:
            print(f"{check.name:20} {check.gpus} GPU(s), {check.limit_s:3.0f} s: {check.tells}")
        return FINE
    if unknown := sorted({*arguments.only, *arguments.again} - {check.name for check in CHECKS}):
        return _fail(MISUSE, f"no check is called {', '.join(unknown)}; --list shows all")
    gpus = arguments.gpus if arguments.gpus is not None else _visible_gpus(is_rehearsal=arguments.rehearse)
    if not gpus:
        return _fail(INFRASTRUCTURE, NO_GPU)
    setting = Setting(
        output=arguments.output.absolute(),
        device="cpu" if arguments.rehearse else "cuda",
        gpus=gpus,
        commit=arguments.commit or _commit(),
        budget_s=arguments.budget,
    )
    if arguments.one is not None:
        (check,) = (check for check in CHECKS if check.name == arguments.one)
        perform(check, setting, say=_say)
        # A rehearsed group of gloo may abort in the interpreter's farewell.
        sys.stdout.flush()
        os._exit(FINE)
    return _run(setting, frozenset(arguments.only), frozenset(arguments.again))


def _run(setting: Setting, only: frozenset[str], again: frozenset[str]) -> int:
    chosen = [check for check in CHECKS if not only or check.name in only | again]
    left: list[str] = []
    is_interrupted = False
    try:
        try:
            left = run_all(chosen, setting, say=_say, again=again)
        except KeyboardInterrupt:
            is_interrupted = True
        results = _write_tables(setting)
    except OSError as error:
        return _fail(
            INFRASTRUCTURE,
            f"{error.filename or setting.output} cannot be written: {error.strerror}; choose another with --output",
        )
    if is_interrupted:
        return _fail(INTERRUPTED, f"interrupted; the same call goes on with what {setting.output} lacks")
    if left:
        _say(f"left for another call, since they would not fit into {setting.budget_s:g} s: {', '.join(left)}")
    _say(f"results, logs and the table as Markdown are in {setting.output}")
    return FINE if all(_is_fine(results.get(check.name)) for check in chosen if check.name not in left) else CASE_FAILED


def _write_tables(setting: Setting) -> dict[str, Result]:
    """Write and print the table; the results in it, by their checks."""
    results = {check.name: found for check in CHECKS if (found := current_result(check, setting)) is not None}
    about = about_machine(read_machine(), setting)
    text = table_text(CHECKS, results, about)
    (setting.output / "table.txt").write_text(text)
    (setting.output / "table.md").write_text(table_markdown(CHECKS, results, about))
    print(text, flush=True)
    return results


def about_machine(machine: Machine, setting: Setting) -> dict[str, str]:
    """What the table is of: commit, device and versions; what cannot be known, with its reason."""

    def known(field: str) -> str:
        value = getattr(machine, field)
        return str(value) if value is not None else f"unknown: {machine.absent.get(field, 'nothing tells')}"

    commit = setting.commit or known("commit")
    return {
        "device": machine.hardware(setting.device),
        "commit": f"{commit}, with changes" if machine.is_dirty else commit,
        "torch": known("torch_version"),
        "CUDA of torch": known("torch_cuda_version"),
        "NCCL": known("nccl_version"),
        "cuDNN": _cudnn_version(),
        "driver": known("driver_version"),
        "Python": machine.python_version,
        "kernel": f"{machine.system} {machine.kernel}",
        "CPU": f"{known('cpu')}, {machine.usable_cores} cores",
    }


def _cudnn_version() -> str:
    from tests.gpu.scripts.device import cudnn_version  # Only here: a list of the checks needs no torch.

    version = cudnn_version()
    return "unknown: torch is built without it" if version is None else str(version)


def _commit() -> str | None:
    """Of the tree, where it is a git tree and git is here."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _visible_gpus(*, is_rehearsal: bool) -> int:
    if is_rehearsal:
        return REHEARSED_GPUS
    import torch

    return int(torch.cuda.device_count())


def _is_fine(result: Result | None) -> bool:
    return result is not None and result.verdict in ("ok", "seen", "skipped")


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.first", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="folder of results [%(default)s]")
    parser.add_argument("--budget", type=_seconds, default=BUDGET_S, help="seconds of this call [%(default)s]")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="no other checks")
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="run them though they have a result")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, all tiny; figures mean nothing")
    parser.add_argument("--list", action="store_true", help="show the checks, and run none")
    parser.add_argument("--commit", help="of the tree, where it is no git tree")
    parser.add_argument("--gpus", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one", metavar="NAME", choices=[check.name for check in CHECKS], help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    """A budget: more than nothing, and with an end."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no budget; it may be any number of seconds above 0")
    return seconds


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(code: int, text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a watched run stores of its command: the program, known arguments, and the script with its commit.

Other arguments may hold secrets or private names of data, so only those in `KNOWN` are stored.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import Misuse
from bench.store.files import read_small

KNOWN = frozenset(
    {
        # Launchers: torchrun, accelerate, deepspeed, srun.
        *("nproc-per-node", "nnodes", "standalone", "max-restarts", "num-processes", "num-machines", "num-gpus"),
        *("num-nodes", "gpus", "nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gpus-per-task", "cpus-per-task"),
        *("mixed-precision", "multi-gpu", "use-fsdp", "use-deepspeed", "zero-stage", "dynamo-backend"),
        # Scripts: options that determine the work of a step.
        *(
            "batch-size",
            "micro-batch-size",
            "global-batch-size",
            "per-device-train-batch-size",
            "seq-len",
            "seq-length",
        ),
        *("max-seq-length", "max-length", "block-size", "gradient-accumulation-steps", "num-workers", "num-layers"),
        *("hidden-size", "dataloader-num-workers", "max-steps", "num-train-epochs", "epochs", "steps", "seed"),
        *("bf16", "fp16", "tf32", "torch-compile", "compile", "gradient-checkpointing", "tensor-parallel-size"),
        *("tensor-model-parallel-size", "pipeline-model-parallel-size", "tp", "pp", "dp", "cp", "ep"),
    }
)
"""Options whose values are stored; `_` and `-` are equivalent."""
_VALUE = re.compile(r"[A-Za-z0-9_.:,+-]{1,32}")
_OPTION = re.compile(r"(--?)([A-Za-z0-9][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_GIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script of a command. commit: of the git tree that contains it; None if none does."""

    path: Path
    sha256: str
    commit: str | None


def check_waits(command: Sequence[str]) -> None:
    """Check that a command waits for its job, as all but `sbatch` do.

    Raises:
        Misuse: the command returns before the job begins, so there is nothing to watch.
    """
    if Path(command[0]).name == "sbatch" and not {"-W", "--wait"} & set(command):
        raise Misuse(
            "command 'sbatch' cannot be watched: sbatch returns before its job begins; put `observatory watch -- srun"
            " ...` into the batch script, or add --wait"
        )


def known_words(command: Sequence[str]) -> list[str]:
    """Return the names of the program and the script, and known arguments; the last word counts those left out.

    Example: `/usr/bin/torchrun --nproc-per-node 8 train.py --token X` gives
    ["torchrun", "--nproc-per-node", "8", "train.py", "(2 more)"].
    """
    script = script_word(command)
    words = list(_known(command[1:], script))
    left_out = len(command) - 1 - len(words)
    return [Path(command[0]).name, *words, *([f"({left_out} more)"] if left_out else [])]


def _known(words: Sequence[str], script: str | None) -> Iterator[str]:
    is_value = False
    for word in words:
        match = _OPTION.fullmatch(word)
        if match is None:
            if word == script:
                yield Path(word).name
            elif is_value and _VALUE.fullmatch(word):
                yield word
            is_value = False
        else:
            is_known = match[2].replace("_", "-").lower() in KNOWN and len(match[1]) + len(match[2]) > 2
            if is_known and (match[3] is None or _VALUE.fullmatch(match[3])):
                yield word
            is_value = is_known and match[3] is None


def script_word(command: Sequence[str]) -> str | None:
    """Return the first Python file in a command, or the module after `-m`; None if there is neither."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if (
            word.endswith(".py")
            and not word.startswith("-")
            # Not a line of shell: `bash -c "TOKEN=X python train.py"` would show its secrets.
            and (not re.search(r"[\s=;&|<>$`'\"]", word) or Path(word).is_file())
        ):
            return word
        if word == "-m" and re.fullmatch(r"[A-Za-z_][\w.]*", following) and not following.startswith("torch."):
            return following
    return None


def read_script(word: str) -> Script | None:
    """Read the script at this path; None if it cannot be read here."""
    path = Path(word).absolute()
    try:
        digest = hashlib.sha256(read_small(path)).hexdigest()
    except (OSError, Misuse):  # No such file, or too large for a script.
        return None
    return Script(path=path, sha256=digest, commit=_commit_of(path.parent))


def _commit_of(folder: Path) -> str | None:
    arguments = ["git", "--no-optional-locks", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=_GIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def default_name(command: Sequence[str]) -> str:
    """Return the default name of a run: its script's, else its program's."""
    word = script_word(command) or command[0]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(word).name.removesuffix(".py")).strip("-._")
    return stem[:63] or "run"

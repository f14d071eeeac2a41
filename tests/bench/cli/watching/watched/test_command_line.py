"""Of a command only the program, the script and arguments of known names are kept."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.session.watched.command_line import check_waits, default_name, known_words, read_script, script_word


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("/bin/torchrun --nnodes 8 train.py --token X", ["torchrun", "--nnodes", "8", "train.py", "(2 more)"]),
        ("torchrun --nproc_per_node=2 a/train.py --lr=1", ["torchrun", "--nproc_per_node=2", "train.py", "(1 more)"]),
        ("python train.py", ["python", "train.py"]),
        ("python -m package.train --batch-size 16", ["python", "package.train", "--batch-size", "16", "(1 more)"]),
        ("deepspeed --num_gpus 4 train.py --wandb-key abc", ["deepspeed", "--num_gpus", "4", "train.py", "(2 more)"]),
        ("python train.py --bf16 --data /home/me/secret", ["python", "train.py", "--bf16", "(2 more)"]),
        ("python train.py --seed 'a b; c'", ["python", "train.py", "--seed", "(1 more)"]),
        ("python train.py --seed=http://user:pw@host", ["python", "train.py", "(1 more)"]),
        ("srun -n 4 python train.py", ["srun", "train.py", "(3 more)"]),
        ("bash -c 'TOKEN=X python train.py'", ["bash", "(2 more)"]),
        ("env KEY=X.py python train.py", ["env", "train.py", "(2 more)"]),
    ],
)  # fmt: skip
def test_words_of_other_names_are_counted_alone(command: str, kept: list[str]) -> None:
    assert known_words(shlex.split(command)) == kept


@pytest.mark.parametrize(
    ("command", "word", "name"),
    [
        ("torchrun --nproc-per-node 8 train.py", "train.py", "train"),
        ("python -m torch.distributed.run src/run_clm.py", "src/run_clm.py", "run_clm"),
        ("python -m axolotl.cli.train", "axolotl.cli.train", "axolotl.cli.train"),
        ("sleep 1", None, "sleep"),
        ("./my script!", None, "my-script"),
    ],
)
def test_the_script_names_the_run(command: str, word: str | None, name: str) -> None:
    words = [command] if word is None and "script" in command else command.split()
    assert (script_word(words), default_name(words)) == (word, name)


def test_a_line_of_shell_is_no_script_whose_name_would_show_its_secrets() -> None:
    words = ["bash", "-c", "TOKEN=X python train.py"]
    assert (script_word(words), default_name(words)) == (None, "bash")


def test_a_path_with_a_space_is_a_script(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.touch()
    assert default_name(["python", str(script)]) == "my-train"


def test_a_script_has_its_hash_and_the_commit_of_its_tree(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    read = read_script(str(script))
    assert read is not None
    assert (read.path, read.sha256, read.commit) == (script, hashlib.sha256(b"print()\n").hexdigest(), commit)


def test_a_command_without_a_script_has_none(tmp_path: Path) -> None:
    assert script_word(["sleep", "1"]) is None
    assert read_script(str(tmp_path / "gone.py")) is None


def test_sbatch_is_refused_unless_it_waits_for_its_job() -> None:
    with pytest.raises(Misuse, match="sbatch returns before its job begins; put `observatory watch -- srun"):
        check_waits(["/usr/bin/sbatch", "--nodes=2", "job.sh"])
    for command in (["sbatch", "--wait", "job.sh"], ["sbatch", "-W", "job.sh"], ["srun", "python", "train.py"]):
        check_waits(command)

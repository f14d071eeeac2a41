"""Files of another user cost their reader no memory, and secrets of the environment are not printed."""

from __future__ import annotations

import sys

import pytest

from tests.security.users import User

pytestmark = pytest.mark.slow

BOMBS = {
    "dotted": ("a." * 60_000 + "b = 1\n", "a key has more than 16 parts"),
    "deep": ("a = " + "[" * 20_000 + "\n", "nested more than 16 deep"),
    "number": (f"schema_version = 0x{'f' * 5_000}\n", "a whole number beyond 64 bits"),
}


def test_a_suite_of_another_user_is_read_within_limits(victim: User, attacker: User) -> None:
    shared = attacker.owns(victim.home.parent / "bombs", 0o755)
    for name, (text, reason) in BOMBS.items():
        (path := shared / f"{name}.toml").write_text(text)
        # 2 GB of address space: without limits the dotted key alone takes 4.6.
        ended = victim.run(["prlimit", "--as=2000000000", *_command("suite", "plan", str(path))])
        assert (ended.returncode, reason in ended.stderr) == (2, True), ended.stderr


def test_no_secret_of_the_environment_is_printed(victim: User) -> None:
    secrets = {"NCCL_AUTH": "hunter2", "UCX_PASS": "hunter2", "TORCH_HUB_PAT": "hunter2"}
    ended = victim.run(_command("doctor", "--format", "json"), env=secrets)
    assert "NCCL_AUTH" in ended.stdout, ended.stderr
    assert "hunter2" not in ended.stdout + ended.stderr


def _command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "bench", *words]

"""No name that people and their programs use is lost: options, exit codes, strategies, case keys and metrics."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import NoReturn

import click
import pytest

from tests.old_files import forms
from tests.old_files.command import observatory
from workloads.registry import SPECS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No history of the user's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


def test_every_command_has_every_option_and_choice_that_it_had() -> None:
    now = forms.commands()
    for command, options in forms.expected("commands").items():
        for option, choices in options.items():
            assert option in now[command], command
            assert set(choices) <= set(now[command][option]), f"{command} {option}"


_NEW_VERSIONS = {spec.name: spec.version for spec in SPECS if spec.kind == "training"}
"""Strategies that measure something else than in that version, and whose cases thus have other keys, on purpose: their
weights follow from a hash, and parameter_server sends its messages by gloo, no longer by torch's RPC."""

_NEW_DEFAULTS = {"bucket_mb": 0.0}
"""Options whose default has changed on purpose: buckets are as large as the model asks for, not 25 MiB."""


_RENAMED = {"reduce_dtype": "grad_dtype"}
"""Options that have another name now; cases and commands with the old one are still read."""


def test_every_strategy_has_its_versions_and_options_with_their_defaults() -> None:
    now = forms.strategies()
    for name, old in forms.expected("strategies").items():
        options = {_RENAMED.get(option, option): value for option, value in old.pop("options").items()}
        assert (options | _NEW_DEFAULTS).items() <= (now[name].pop("options") | _NEW_DEFAULTS).items(), name
        if name in _NEW_VERSIONS:
            old["version"] = old["cuda_version"] = _NEW_VERSIONS[name]
        assert old == now[name]


def test_a_case_of_each_strategy_has_the_key_that_it_had() -> None:
    """A case with the old default's value has it, whatever the default is now."""
    old = forms.expected("case_keys")
    assert {words.split()[0] for words in old} == set(forms.expected("strategies"))
    for words, key in old.items():
        if (version := _NEW_VERSIONS.get(words.split()[0])) is not None:
            old[words] = json.dumps(json.loads(key) | {"version": version}, separators=(",", ":"))
    assert forms.case_keys() == old


def test_no_metric_is_lost() -> None:
    assert set(forms.expected("metric_names")) <= set(forms.metric_names())


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (click.UsageError("wrong"), 2),
        (OSError(errno.ENAMETOOLONG, "too long", "name"), 2),
        (OSError(errno.ENOSPC, "full", "name"), 4),
        (OSError(errno.EACCES, "denied", "name"), 4),
        (MemoryError(), 4),
        (RuntimeError("our own mistake"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_what_ends_a_command_has_the_exit_code_that_it_had(
    ends: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> NoReturn:
        raise ends

    monkeypatch.setattr("os.dup2", lambda *_: None)  # A full disk has it throw standard output away, which is pytest's.
    monkeypatch.setattr(click.Group, "invoke", end)
    said = observatory("list")
    assert said.code == code
    assert said.err.strip().startswith("observatory: ")
    assert "\n" not in said.err.strip()

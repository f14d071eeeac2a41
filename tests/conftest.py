"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from tests.ranks import OnRanks, Result, run_on_ranks


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> OnRanks:
    """See `OnRanks`."""
    folder = tmp_path_factory.mktemp("ranks")
    numbers = count()

    def run(ranks: int, function: Callable[..., Result], *arguments: object) -> list[Result]:
        return run_on_ranks(ranks, function, *arguments, store=folder / f"store{next(numbers)}")

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))

"""The servers' weights are those of the law, and all of the model."""

from __future__ import annotations

import pytest

from tests.workloads.training.setups import SMALL
from workloads.core.transformer import Transformer
from workloads.parameter_server.cost_model import ServerLoad, shares
from workloads.parameter_server.server import place


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_each_server_holds_the_share_of_the_law(servers: int) -> None:
    model = Transformer(SMALL)
    placement = place(model, servers)
    weights = list(model.parameters())
    held = [[weights[index] for index in placement.held_by(server)] for server in range(servers)]
    assert shares(SMALL, servers) == tuple(
        ServerLoad(size_bytes=sum(weight.nbytes for weight in one), tensors=len(one)) for one in held
    )


def test_a_weight_keeps_its_name_and_its_dimensions() -> None:
    model = Transformer(SMALL)
    placement = place(model, 2)
    assert dict(zip(placement.names, placement.shapes, strict=True)) == {
        name: weight.shape for name, weight in model.named_parameters()
    }

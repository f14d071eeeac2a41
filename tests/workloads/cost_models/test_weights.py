"""The tensors of a shape's model are those that the model is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.workloads.training.setups import SMALL
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import elements, model_weights


@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, head_dim=24, is_tied=True), PRESETS["tiny"], PRESETS["8b"]])
def test_dimensions_are_those_of_the_models_weights_in_their_order(shape: Shape) -> None:
    with torch.device("meta"):
        model = Transformer(shape)
    assert model_weights(shape) == tuple(tuple(weight.shape) for weight in model.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_elements_add_up_to_the_shapes_parameters(name: str) -> None:
    shape = PRESETS[name]
    assert elements(model_weights(shape)) == shape.parameters()
    assert len(model_weights(shape)) == shape.parameter_tensors()

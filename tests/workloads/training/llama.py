"""`transformers`' LlamaForCausalLM with our weights: an implementation of the reference model that is not ours."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from workloads.cost_models.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
"""Of our modules, Llama's names; those of a block are below `model.layers`."""


def llama_name(name: str) -> str:
    """Llama's name of our weight."""
    module, _, kind = name.rpartition(".")
    if module.startswith("blocks."):
        _, number, module = module.split(".", 2)
        return f"model.layers.{number}.{NAMES[module]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def llama_config(shape: Shape) -> PreTrainedConfig:
    """The configuration of a shape."""
    from transformers import LlamaConfig  # Only here: collecting the tests need not load it.

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        scaling = asdict(shape.rope_scaling)
        rope["rope_type"] = scaling.pop("kind")
        rope["original_max_position_embeddings"] = scaling.pop("original_positions")
        rope |= scaling
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.sequence + 1,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={name: value for name, value in rope.items() if value is not None},
        tie_word_embeddings=shape.is_tied,
    )


def llama_of(config: PreTrainedConfig, model: nn.Module) -> PreTrainedModel:
    """Theirs, of Llama or Mistral, with our weights."""
    from transformers import AutoModelForCausalLM

    llama: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    state = {llama_name(name): weight.detach().clone() for name, weight in model.named_parameters()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    llama.load_state_dict(state)
    return llama


def strengthen(model: nn.Module) -> None:
    """Give the model gains that are not all one, and weights so large that every part of it matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)

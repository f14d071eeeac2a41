"""Shapes from the `config.json` of Llama-like models: published, written by transformers, and bad."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import Misuse
from bench.session.shape_file import named_shape
from tests.workloads.training.llama import llama_of, strengthen
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import PRESETS, RopeScaling, Shape

LLAMA_3_1: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALING = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
EIGHT_B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA_3_1,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
"""The published file of Llama 3.1 8B."""
SCALED_8B = replace(PRESETS["8b"], rope_scaling=SCALING)
ONLY = {"hidden_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers", "vocab_size"}
"""Keys without which there is no shape."""


def write(folder: Path, document: object) -> str:
    path = folder / "config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def read(
    folder: Path, changes: dict[str, Any] | None = None, without: tuple[str, ...] = (), **dimensions: int
) -> Shape:
    document = {key: value for key, value in {**EIGHT_B, **(changes or {})}.items() if key not in without}
    return named_shape(write(folder, document), {"sequence": 8192, **dimensions})


def refusal(folder: Path, changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> str:
    with pytest.raises(Misuse) as raised:
        read(folder, changes, without)
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith(f"shape {folder / 'config.json'}")
    return line.removeprefix(f"shape {folder / 'config.json'}").removeprefix(": ").removeprefix(" ")


def test_a_published_file_is_its_preset_with_scaled_frequencies(tmp_path: Path) -> None:
    assert read(tmp_path) == SCALED_8B


def test_dimensions_replace_those_of_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, layers=2, sequence=64, batch=4) == replace(SCALED_8B, layers=2, sequence=64, batch=4)


def test_keys_that_are_absent_or_null_mean_what_they_mean_in_transformers(tmp_path: Path) -> None:
    bare = read(tmp_path, without=tuple(EIGHT_B.keys() - ONLY))
    expected = replace(SCALED_8B, kv_heads=32, norm_epsilon=1e-6, rope_theta=10_000.0, rope_scaling=None)
    assert bare == expected
    assert read(tmp_path, dict.fromkeys(EIGHT_B.keys() - ONLY)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"head_dim": 128}, {}),
        ({"head_dim": 64}, {"head_dim": 64}),
        ({"hidden_size": 5120, "head_dim": 128}, {"width": 5120, "head_dim": 128}),
        ({"tie_word_embeddings": True}, {"is_tied": True}),
        ({"rms_norm_eps": 1e-6}, {"norm_epsilon": 1e-6}),
        ({"rope_theta": 1000000}, {"rope_theta": 1e6}),
        ({"hidden_act": "swish"}, {}),
        ({"rope_scaling": None}, {"rope_scaling": None}),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, {"rope_scaling": RopeScaling(kind="linear", factor=4.0)}),
        ({"rope_scaling": {"type": "linear", "factor": 1.0}}, {"rope_scaling": None}),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope_scaling": None}),
        ({"rope_scaling": None, "rope_parameters": {**LLAMA_3_1, "rope_theta": 1e4}}, {"rope_theta": 1e4}),
        ({"rope_parameters": LLAMA_3_1}, {}),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}, {}),
    ],
)
def test_what_a_file_says_is_in_the_shape(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(tmp_path, changes) == replace(SCALED_8B, **expected)


def test_a_mistral_without_kv_heads_has_those_of_its_default(tmp_path: Path) -> None:
    mistral = {"model_type": "mistral", "architectures": None, "sliding_window": None}
    assert read(tmp_path, mistral, without=("num_key_value_heads",)).kv_heads == 8


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_type": "mixtral"}, 'model_type is "mixtral"; to be trained here it must be llama or mistral'),
        ({"model_type": "qwen2"}, 'model_type is "qwen2"; to be trained here it must be llama or mistral'),
        ({"model_type": ["llama"]}, 'model_type is ["llama"]; to be trained here it must be llama or mistral'),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            'architectures is ["LlamaForSequenceClassification"]; to be trained here it must be'
            ' ["LlamaForCausalLM"] or ["MistralForCausalLM"]',
        ),
        ({"architectures": "LlamaForCausalLM"}, 'architectures is "LlamaForCausalLM"; to be trained here'),
        ({"auto_map": {"AutoModelForCausalLM": "m.M"}}, "auto_map is {"),
        ({"num_local_experts": 8}, "num_local_experts is 8; to be trained here"),
        ({"attention_bias": True}, "attention_bias is true; to be trained here it must be false: products have"),
        ({"mlp_bias": True}, "mlp_bias is true; to be trained here"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"; to be trained here it must be silu'),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1; to be trained here it must be 0"),
        ({"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}; to be trained here'),
        ({"sliding_window": 4096}, "sliding_window is 4096, and attention here has no window; set it to null"),
        (
            {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
            "sliding_window is 4096 by default, and attention here has no window; set it to null",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            'layer_types is "sliding_attention"; to be trained here it must be "full_attention" in all layers',
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            'rope_scaling.rope_type is "yarn"; to be trained here it must be default, linear or llama3',
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            'rope_scaling.rope_type is "dynamic"; to be trained here',
        ),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is {}; to be trained here"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_scaling and rope_parameters differ; leave one of them"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; to be trained here"),
        ({"rope_scaling": [8]}, "rope_scaling is [8]; it must be an object or null"),
        ({"rope_scaling": {"type": "linear"}}, "has no rope_scaling.factor; name the config.json of"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor of rope scaling is 0.5; it must be 1 or more"),
        ({"rope_scaling": {**LLAMA_3_1, "low_freq_factor": 9}}, "low_freq_factor 9 and high_freq_factor 4 of rope"),
        (
            {"rope_scaling": {**LLAMA_3_1, "original_max_position_embeddings": 8192.5}},
            "rope_scaling.original_max_position_embeddings is 8192.5; it must be a whole number from 1 to",
        ),
        ({"hidden_size": "4096"}, 'hidden_size is "4096"; it must be a whole number from 1 to 2,147,483,647'),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0; it must be a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; it must be a whole number"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; it must be a whole number from 1 to 10,000"),
        ({"vocab_size": -1}, "vocab_size is -1; it must be a whole number"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000; it must be a whole number"),
        ({"head_dim": 0}, "head_dim is 0; it must be a whole number"),
        ({"head_dim": 63}, "head_dim is 63, which is odd; rotary embedding turns pairs and needs it even"),
        ({"num_key_value_heads": 7}, "heads 32 is not divisible by kv_heads 7"),
        ({"rms_norm_eps": "1e-5"}, 'rms_norm_eps is "1e-5"; it must be a number above 0'),
        ({"rope_theta": 0}, "rope_theta is 0; it must be a number above 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"attention_bias": "no"}, 'attention_bias is "no"; it must be true or false'),
    ],
)
def test_what_is_not_the_reference_model_or_no_number_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    assert refusal(tmp_path, changes).startswith(line)


@pytest.mark.parametrize("key", sorted(ONLY))
def test_a_key_that_a_shape_needs_is_named_where_it_is_missing(tmp_path: Path, key: str) -> None:
    assert refusal(tmp_path, without=(key,)) == f"has no {key}; name the config.json of a Llama-like model"


def test_the_sequence_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, EIGHT_B)
    with pytest.raises(Misuse) as raised:
        named_shape(path, {})
    assert str(raised.value) == (
        f"shape {path} has no sequence (max_position_embeddings is only its limit); add one, for example"
        " --sequence 4096, or sequence = 4096 in a suite"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is not JSON (Input data was truncated); name the config.json of a Llama-like model"),
        ("{", "is not JSON (Input data was truncated); name"),
        ('{"hidden_size": NaN}', "is not JSON ("),
        ("[1]", "is [1], not a JSON object; name the config.json of a Llama-like model"),
        ("[" * 100_000, "is not JSON ("),
    ],
)
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, text: str, line: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(Misuse) as raised:
        named_shape(path, {"sequence": 8})
    assert str(raised.value).startswith(f"shape {path} {line}")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name, why in (("none.json", "No such file or directory"), (".", "Is a directory"), ("pipe.json", "")):
        with pytest.raises(Misuse) as raised:
            named_shape(f"{tmp_path}/{name}", {"sequence": 8})
        assert why in str(raised.value)
        assert str(raised.value).endswith("; name the config.json of a Llama-like model")


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
LONGER = {**LLAMA_3_1, "rope_theta": 1e4, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": LONGER, "head_dim": 32, "rms_norm_eps": 1e-3, "tie_word_embeddings": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("llama", {"num_key_value_heads": None, "hidden_size": 48, "head_dim": 20}),
        ("mistral", {"sliding_window": None, "head_dim": 24, "rope_parameters": LONGER}),
    ],
)
def test_a_file_that_transformers_wrote_makes_its_model(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """The model of the file as we read it, and theirs as they read it, with equal weights: equal logits."""
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **{**SMALL, **changes}).save_pretrained(tmp_path)
    ours = Transformer(named_shape(str(tmp_path / "config.json"), {"sequence": 128}))
    strengthen(ours)
    theirs = llama_of(AutoConfig.from_pretrained(tmp_path), ours)
    tokens_bs = torch.randint(100, (2, 128), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours_bsv, theirs_bsv = ours(tokens_bs), theirs(input_ids=tokens_bs).logits
    assert (ours_bsv - theirs_bsv).norm() <= 1e-5 * theirs_bsv.norm()

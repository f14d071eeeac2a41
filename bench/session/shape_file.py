"""Shapes by name: a preset, or the `config.json` of a Llama-like model as Hugging Face's transformers writes it.

Properties of a file that the reference model does not support are refused with the file's own key. Keys that do not
affect training, for example numbers of special tokens, are ignored. The file has no sequence length
(`max_position_embeddings` is only its upper limit) and no batch, which is that of the presets.
Source: transformers 5.23, models/llama, models/mistral and modeling_rope_utils.py, for keys and their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import Misuse
from bench.store.files import read_small
from collectors.settings_file import nearest, shown
from workloads.cost_models.shape import PRESETS, RopeScaling, Shape

MOST_BYTES = 1 << 20
MOST = 2**31 - 1
MOST_LAYERS = 10_000
"""The same limit as in suite files, because cost models list each layer's weights."""
BATCH = PRESETS["tiny"].batch

MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
}
"""Model types that are the reference model, with the meaning of absent keys if it differs from Llama's.

Other models with Llama-like names differ: Qwen2 has biases, Qwen3 and OLMo 2 have norms of queries and keys, Gemma has
another activation, Granite has multipliers, and Phi-3 does not rotate part of each head.
"""
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
ACTIVATIONS = ("silu", "swish")
"""Two names of the same function."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
ROPE_KEYS = ("rope_scaling", "rope_parameters")
"""Keys that describe the rotary embedding: up to transformers 4, and from 5 on."""
ROPE_TYPES = ("default", "linear", "llama3")


def is_shape_file(name: str) -> bool:
    """Whether the name of a shape is the path of a file; names of presets contain none of these characters."""
    return name.endswith(".json") or "/" in name


def named_shape(name: str, dimensions: Mapping[str, Any]) -> Shape:
    """Return a preset or the shape of a file, after replacing these dimensions.

    Raises:
        Misuse: there is no such preset or file, the file's model is not the reference model, the sequence is missing,
            or the dimensions do not fit together.
    """
    if name in PRESETS:
        shape = PRESETS[name]
    elif is_shape_file(name):
        shape = read_shape(Path(name), dimensions.get("sequence"))
    else:
        raise Misuse(
            f'shape "{name}" is unknown{nearest(name, PRESETS)}; use one of {", ".join(PRESETS)}, or the path of a'
            " config.json"
        )
    try:
        return replace(shape, **dimensions)
    except ValueError as error:
        raise Misuse(f"shape {name}: {error}") from None


def read_shape(path: Path, sequence: int | None) -> Shape:
    """Return the shape that a `config.json` describes. sequence: sequence length, which no file has.

    Raises:
        Misuse: the file cannot be read, is not such a file, or has a model that is not the reference model; or the
            sequence is missing, or the dimensions do not fit together.
    """
    config = _Config(path, _read(path))
    config.refuse_other_models()
    if sequence is None:
        raise Misuse(
            f"shape {path} has no sequence (max_position_embeddings is only its limit); add one, for example"
            " --sequence 4096, or sequence = 4096 in a suite"
        )
    try:
        return _shape(config, sequence)
    except Misuse:
        raise
    except ValueError as error:
        raise Misuse(f"shape {path}: {error}") from None


def _shape(config: _Config, sequence: int) -> Shape:
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim") if config.has("head_dim") else None
    theta, scaling = config.rope()
    return Shape(
        layers=config.whole("num_hidden_layers", most=MOST_LAYERS),
        width=width,
        heads=heads,
        kv_heads=config.whole("num_key_value_heads") if config.has("num_key_value_heads") else heads,
        mlp_width=config.whole("intermediate_size"),
        vocabulary=config.whole("vocab_size"),
        sequence=sequence,
        batch=BATCH,
        # Many files state the default head_dim; then the model is the same as a preset's, with the same key.
        head_dim=None if head_dim is not None and head_dim * heads == width else head_dim,
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        is_tied=config.flag("tie_word_embeddings"),
    )


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file."""
    advice = "name the config.json of a Llama-like model"
    try:
        document = msgspec.json.decode(read_small(path, MOST_BYTES))
    except OSError as error:
        raise Misuse(f"shape {path}: {error.strerror}; {advice}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"shape {path} is not JSON ({error}); {advice}") from None
    if not isinstance(document, dict):
        raise Misuse(f"shape {path} is {shown(document)}, not a JSON object; {advice}")
    return document


class _Config:
    """The keys of a file; a key whose value is null counts as absent."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path = path
        model = document.get("model_type")
        self._written = document.keys()
        self._values = {**(MODELS.get(model, {}) if isinstance(model, str) else {}), **document}

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def whole(self, key: str, *, most: int = MOST) -> int:
        """Return a whole number of at least 1."""
        value = self._required(self._values, key, key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self._wrong(key, value, f"a whole number from 1 to {most:,}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number above 0."""
        return self._number(self._values, key, key) if self.has(key) else default

    def flag(self, key: str) -> bool:
        """Return true or false; false if the key is absent."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return bool(value)

    def refuse_other_models(self) -> None:
        """Refuse a file whose model differs from the reference model in more than its shape."""
        model = self._required(self._values, "model_type", "model_type")
        if not isinstance(model, str) or model not in MODELS:
            raise self._other("model_type", model, " or ".join(MODELS))
        architectures = self._values.get("architectures")
        if architectures is not None and (
            not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in ARCHITECTURES
        ):
            raise self._other("architectures", architectures, " or ".join(json.dumps([name]) for name in ARCHITECTURES))
        code = self._values.get("auto_map")
        if isinstance(code, dict) and "AutoModelForCausalLM" in code:
            raise self._other("auto_map", code, "absent: code of the model's own is not run")
        for key in EXPERTS:
            if self.has(key):
                raise self._other(key, self._values[key], "absent: mixtures of experts are not trained")
        if self.has("sliding_window"):
            origin = "" if "sliding_window" in self._written else " by default"
            window = f"{shown(self._values['sliding_window'])}{origin}"
            raise Misuse(
                f"shape {self._path}: sliding_window is {window}, and attention here has no window; set it to null,"
                " which is the same for sequences within the window"
            )
        kinds = self._values.get("layer_types")
        if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
            other = next(kind for kind in kinds if kind != "full_attention")
            raise self._other("layer_types", other, '"full_attention" in all layers')
        if (activation := self._values.get("hidden_act")) is not None and activation not in ACTIVATIONS:
            raise self._other("hidden_act", activation, "silu")
        for key in ("attention_bias", "mlp_bias"):
            if self.flag(key):
                raise self._other(key, True, "false: products have no bias")
        if (dropout := self._values.get("attention_dropout")) not in (None, 0):
            raise self._other("attention_dropout", dropout, "0")
        if self.has("quantization_config"):
            raise self._other("quantization_config", self._values["quantization_config"], "absent")

    def rope(self) -> tuple[float, RopeScaling | None]:
        """Return the base of the rotary frequencies, and their scaling.

        A file may have both spellings, those of transformers 4 and 5, if they agree.
        """
        embeddings = {key: self._rope_of(key) for key in ROPE_KEYS if self.has(key)}
        if len(set(embeddings.values())) > 1:
            raise Misuse(f"shape {self._path}: {' and '.join(embeddings)} differ; leave one of them out")
        return next(iter(embeddings.values()), (self.number("rope_theta", 10_000.0), None))

    def _rope_of(self, key: str) -> tuple[float, RopeScaling | None]:
        table = self._values[key]
        if not isinstance(table, dict):
            raise self._wrong(key, table, "an object or null")
        if nested := [name for name, value in table.items() if isinstance(value, dict)]:
            raise self._other(f"{key}.{nested[0]}", table[nested[0]], "one rotary embedding for all layers")
        kind = table.get("rope_type", table.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise self._other(f"{key}.rope_type", kind, " or ".join([", ".join(ROPE_TYPES[:-1]), ROPE_TYPES[-1]]))
        for place, values in ((f"{key}.partial_rotary_factor", table), ("partial_rotary_factor", self._values)):
            if (part := values.get("partial_rotary_factor")) not in (None, 1):
                raise self._other(place, part, "1: whole heads are rotated")
        has_theta = table.get("rope_theta") is not None
        theta = self._number(table, "rope_theta", f"{key}.rope_theta") if has_theta else self.number("rope_theta", 1e4)
        if kind == "default":
            return theta, None
        factor = self._number(table, "factor", f"{key}.factor")
        if factor == 1:  # No scaling.
            return theta, None
        if kind == "linear":
            return theta, RopeScaling(kind="linear", factor=factor)
        low, high = (self._number(table, name, f"{key}.{name}") for name in ("low_freq_factor", "high_freq_factor"))
        name = "original_max_position_embeddings"
        positions = self._required(table, name, f"{key}.{name}")
        if isinstance(positions, bool) or not isinstance(positions, int) or not 1 <= positions <= MOST:
            raise self._wrong(f"{key}.{name}", positions, f"a whole number from 1 to {MOST:,}")
        return theta, RopeScaling(
            kind="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high, original_positions=positions
        )

    def _required(self, table: Mapping[str, Any], key: str, place: str) -> Any:
        if table.get(key) is None:
            raise Misuse(f"shape {self._path} has no {place}; name the config.json of a Llama-like model")
        return table[key]

    def _number(self, table: Mapping[str, Any], key: str, place: str) -> float:
        value = self._required(table, key, place)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(place, value, "a number above 0")
        return float(value)

    def _wrong(self, place: str, value: object, allowed: str) -> Misuse:
        return Misuse(f"shape {self._path}: {place} is {shown(value)}; it must be {allowed}")

    def _other(self, place: str, value: object, allowed: str) -> Misuse:
        """Return the error for a model that differs from the reference model."""
        return Misuse(f"shape {self._path}: {place} is {shown(value)}; to be trained here it must be {allowed}")

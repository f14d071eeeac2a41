"""Prometheus' protobuf messages, made by the package protobuf from the fields of client_model's metrics.proto (0.6)."""

from __future__ import annotations

import io
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto, timestamp_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "double": _Field.TYPE_DOUBLE,
    "int64": _Field.TYPE_INT64,
    "sint32": _Field.TYPE_SINT32,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_PACKAGE = "io.prometheus.client"
_TYPE_NAMES = ("COUNTER", "GAUGE", "SUMMARY", "UNTYPED", "HISTOGRAM", "GAUGE_HISTOGRAM")
_MESSAGES = {
    "LabelPair": "string name = 1; string value = 2",
    "Gauge": "double value = 1",
    "Counter": "double value = 1; Exemplar exemplar = 2",
    "Histogram": (
        "uint64 sample_count = 1; double sample_sum = 2; repeated Bucket bucket = 3; double sample_count_float = 4;"
        "sint32 schema = 5; double zero_threshold = 6; uint64 zero_count = 7; double zero_count_float = 8;"
        "repeated BucketSpan negative_span = 9; repeated sint64 negative_delta = 10;"
        "repeated double negative_count = 11; repeated BucketSpan positive_span = 12;"
        "repeated sint64 positive_delta = 13; repeated double positive_count = 14; repeated Exemplar exemplars = 16"
    ),
    "Bucket": (
        "uint64 cumulative_count = 1; double upper_bound = 2; Exemplar exemplar = 3; double cumulative_count_float = 4"
    ),
    "BucketSpan": "sint32 offset = 1; uint32 length = 2",
    "Exemplar": "repeated LabelPair label = 1; double value = 2; Timestamp timestamp = 3",
    "Metric": (
        "repeated LabelPair label = 1; Gauge gauge = 2; Counter counter = 3; int64 timestamp_ms = 6;"
        "Histogram histogram = 7"
    ),
    "MetricFamily": "string name = 1; string help = 2; MetricType type = 3; repeated Metric metric = 4",
}


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package=_PACKAGE, syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = file.enum_type.add(name="MetricType")
    for number, name in enumerate(_TYPE_NAMES):
        kinds.value.add(name=name, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split(";"):
            *label, kind, field_name, _, number_text = field.split()
            made = message.field.add(name=field_name, number=int(number_text))
            made.label = _Field.LABEL_REPEATED if label else _Field.LABEL_OPTIONAL
            if kind in _TYPES:
                made.type = _TYPES[kind]
            else:
                made.type = _Field.TYPE_ENUM if kind == "MetricType" else _Field.TYPE_MESSAGE
                made.type_name = ".google.protobuf.Timestamp" if kind == "Timestamp" else f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    timestamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    pool.Add(timestamps)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


_FAMILY = _family_class()


def families(body: bytes) -> list[Any]:
    """Read the MetricFamilies of a body, each of which has its length before it."""
    stream, found = io.BytesIO(body), []
    while stream.tell() < len(body):
        found.append(proto.parse_length_prefixed(_FAMILY, stream))
    return found


def written(found: list[Any]) -> bytes:
    """Return a body of these families as the package writes it: fields in their order, unknown ones at the end."""
    stream = io.BytesIO()
    for one in found:
        proto.serialize_length_prefixed(one, stream)
    return stream.getvalue()


def type_name(family: Any) -> str:
    """Return the family's type as metrics.proto calls it."""
    return _TYPE_NAMES[family.type]


def labels_of(message: Any) -> dict[str, str]:
    """Return the labels of a Metric or an Exemplar."""
    return {pair.name: pair.value for pair in message.label}

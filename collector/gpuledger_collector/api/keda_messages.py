"""The messages of KEDA's external scaler, declared from its public externalscaler.proto (package externalscaler)."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Proto.TYPE_STRING,
    "bool": _Proto.TYPE_BOOL,
    "int64": _Proto.TYPE_INT64,
    "double": _Proto.TYPE_DOUBLE,
}
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "ScaledObjectRef": [
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("scalerMetadata", 3, "*ScaledObjectRef.ScalerMetadataEntry"),
    ],
    "IsActiveResponse": [("result", 1, "bool")],
    "GetMetricSpecResponse": [("metricSpecs", 1, "*MetricSpec")],
    "MetricSpec": [("metricName", 1, "string"), ("targetSize", 2, "int64"), ("targetSizeFloat", 3, "double")],
    "GetMetricsRequest": [("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, "string")],
    "GetMetricsResponse": [("metricValues", 1, "*MetricValue")],
    "MetricValue": [("metricName", 1, "string"), ("metricValue", 2, "int64"), ("metricValueFloat", 3, "double")],
}
"""Name, number and type of each field; a type that is no scalar names a message, `*` before it says repeated."""


def _fill(message: descriptor_pb2.DescriptorProto, fields: list[tuple[str, int, str]]) -> None:
    for name, number, kind in fields:
        bare = kind.removeprefix("*")
        field = message.field.add(name=name, number=number)
        field.label = _Proto.LABEL_REPEATED if kind.startswith("*") else _Proto.LABEL_OPTIONAL
        if bare in _SCALARS:
            field.type = _SCALARS[bare]
        else:
            field.type, field.type_name = _Proto.TYPE_MESSAGE, f".{PACKAGE}.{bare}"


def _declare() -> dict[str, Any]:
    """Message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        _fill(message, fields)
        if name == "ScaledObjectRef":  # map<string, string> is, on the wire, a repeated message of key and value
            entry = message.nested_type.add(name="ScalerMetadataEntry")
            _fill(entry, [("key", 1, "string"), ("value", 2, "string")])
            entry.options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


CLASSES = _declare()

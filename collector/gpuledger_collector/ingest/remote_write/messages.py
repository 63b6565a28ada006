"""The messages of remote write 1.0 and 2.0, declared from the field numbers of the public
specification.

Two families of 1.0: as the specification has it, for senders, and one whose labels stay bytes (on
the wire a sub-message and a byte string look the same), for a receiver that knows most series by
their bytes.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = tuple[str, int, str]
"""Name, number and type; a type that is no scalar names a message, `*` before it says repeated."""

_SAMPLE: list[_Field] = [("value", 1, "double"), ("timestamp", 2, "int64")]

_ONE: dict[str, list[_Field]] = {
    "Label": [("name", 1, "string"), ("value", 2, "string")],
    "Sample": _SAMPLE,
    "Histogram": [("timestamp", 15, "int64")],
    "Exemplar": [("labels", 1, "*Label"), ("value", 2, "double"), ("timestamp", 3, "int64")],
    "MetricMetadata": [
        ("type", 1, "int32"),
        ("metric_family_name", 2, "string"),
        ("help", 4, "string"),
        ("unit", 5, "string"),
    ],
    "TimeSeries": [
        ("labels", 1, "*Label"),
        ("samples", 2, "*Sample"),
        ("exemplars", 3, "*Exemplar"),
        ("histograms", 4, "*Histogram"),
    ],
    "WriteRequest": [("timeseries", 1, "*TimeSeries"), ("metadata", 3, "*MetricMetadata")],
}
_RAW: dict[str, list[_Field]] = {
    "Sample": _SAMPLE,
    "TimeSeries": [
        ("labels", 1, "*bytes"),
        ("samples", 2, "*Sample"),
        ("exemplars", 3, "*bytes"),
        ("histograms", 4, "*bytes"),
    ],
    "WriteRequest": [("timeseries", 1, "*TimeSeries")],
}
_TWO: dict[str, list[_Field]] = {
    "Sample": [*_SAMPLE, ("start_timestamp", 3, "int64")],
    "Histogram": [("timestamp", 15, "int64")],
    "Exemplar": [("labels_refs", 1, "*uint32"), ("value", 2, "double"), ("timestamp", 3, "int64")],
    "Metadata": [("type", 1, "int32"), ("help_ref", 3, "uint32"), ("unit_ref", 4, "uint32")],
    "TimeSeries": [
        ("labels_refs", 1, "*uint32"),
        ("samples", 2, "*Sample"),
        ("histograms", 3, "*Histogram"),
        ("exemplars", 4, "*Exemplar"),
        ("metadata", 5, "Metadata"),
        ("created_timestamp", 6, "int64"),
    ],
    "Request": [("symbols", 4, "*string"), ("timeseries", 5, "*TimeSeries")],
}
_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _Proto.TYPE_DOUBLE,
    "int64": _Proto.TYPE_INT64,
    "int32": _Proto.TYPE_INT32,
    "uint32": _Proto.TYPE_UINT32,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
}


def _declare(package: str, messages: dict[str, list[_Field]]) -> dict[str, Any]:
    """Message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            bare = kind.removeprefix("*")
            field = message.field.add(name=field_name, number=number)
            field.label = _Proto.LABEL_REPEATED if kind.startswith("*") else _Proto.LABEL_OPTIONAL
            if bare in _SCALARS:
                field.type = _SCALARS[bare]
            else:
                field.type, field.type_name = _Proto.TYPE_MESSAGE, f".{package}.{bare}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


ONE = _declare("gpuledger.remote.v1", _ONE)
RAW = _declare("gpuledger.remote.raw", _RAW)
TWO = _declare("gpuledger.remote.v2", _TWO)

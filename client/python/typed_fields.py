"""Writes hydrant/fields.pyi: names and types of the clients' keyword arguments, for type checkers and editors.

    python typed_fields.py >hydrant/fields.pyi

Uses the same descriptors as hydrant/request.py. Run by scripts/python-client.
"""
from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from hydrant.request import is_map, is_repeated, keywords, list_of, short_names
from hydrant.v1 import hydrant_pb2 as pb

REQUESTS = {
    "GenerateFields": pb.GenerateRequest,
    "EmbedFields": pb.EmbedRequest,
    "CompressContextFields": pb.CompressContextRequest,
    "TokenizeFields": pb.TokenizeRequest,
}
HEAD = '''from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from hydrant.v1 import hydrant_pb2 as pb
'''


def scalar(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        names = ", ".join(f'"{name}"' for name in short_names(field))
        return f"Literal[{names}] | pb.{field.enum_type.name}.ValueType"
    if field.message_type is not None:
        return f"Mapping[str, Any] | pb.{field.message_type.full_name.removeprefix('hydrant.v1.')}"
    return {
        FieldDescriptor.CPPTYPE_BOOL: "bool",
        FieldDescriptor.CPPTYPE_FLOAT: "float",
        FieldDescriptor.CPPTYPE_DOUBLE: "float",
        FieldDescriptor.CPPTYPE_STRING: "str",
    }.get(field.cpp_type, "int")


def type_of(field: FieldDescriptor) -> str:
    inner = list_of(field)
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        values = "str | int | float | bool" if value.type == FieldDescriptor.TYPE_STRING else scalar(value)
        return f"Mapping[{scalar(key)}, {values}]"
    if inner is not None:
        return type_of(inner)
    if is_repeated(field):
        return f"{scalar(field)} | Sequence[{scalar(field)}]"
    if field.type == FieldDescriptor.TYPE_STRING and "json" in field.name:
        return "str | Mapping[str, Any] | Sequence[Any]"
    return scalar(field)


def main() -> None:
    print(HEAD)
    for name, request in REQUESTS.items():
        print(f"class {name}(TypedDict, total=False):")
        for keyword, way in sorted(keywords(request.DESCRIPTOR).items()):
            print(f"    {keyword}: {type_of(way[-1])} | None")
        print()


if __name__ == "__main__":
    main()

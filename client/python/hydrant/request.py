"""Converts keyword arguments to request messages by the messages' descriptors: new fields of the contract become keywords.

Fields of the messages in a request (`sampling`, `cache`, ...) are keywords of the request itself: `temperature=0` is
`sampling.temperature`. Values may also be, in addition to the types of protobuf:

  a message                                        a dict of its fields
  a text                                           a dict, which is written as JSON, or a list where its name has "json";
                                                   `tools` means `tools_json`
  an enum                                          its name, in full or short: "evict" is ON_PRESSURE_EVICT
  a repeated field                                 one value instead of a list of one
  a message with a single repeated field           that list
  a map to text                                    numbers and booleans
"""
from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, Union, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from hydrant.v1 import hydrant_pb2 as pb

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]], Sequence[pb.ChatMessage]]
"""A text, token ids, or the messages of a chat: as {"role": ..., "content": ...}, or as ChatMessage."""

M = TypeVar("M", bound=Message)

# The fields of a prompt, which is a positional argument; a chat's other fields are keywords.
_PROMPT_FIELDS = ("text", "token_ids", "chat")
_MESSAGES = pb.Chat.DESCRIPTOR.fields_by_name["messages"].full_name
_JSON = "_json"


@lru_cache(maxsize=None)
def keywords(request: Descriptor) -> dict[str, tuple[FieldDescriptor, ...]]:
    """The keywords of a request, each with the path to its field. A name in two messages refers to the outer one."""
    ways: dict[str, tuple[FieldDescriptor, ...]] = {}
    level: list[tuple[Descriptor, tuple[FieldDescriptor, ...]]] = [(request, ())]
    while level:
        below = []
        for message, way in level:
            for field in message.fields:
                if is_nested(field) and field not in way:
                    below.append((type_of_message(field), (*way, field)))
                if not (not way and field.name in _PROMPT_FIELDS) and field.full_name != _MESSAGES:
                    ways.setdefault(field.name.removesuffix(_JSON), (*way, field))
                    ways.setdefault(field.name, (*way, field))
        level = below
    return ways


def is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def type_of_message(field: FieldDescriptor) -> Descriptor:
    """REQUIRES: the field is a message."""
    return cast(Descriptor, field.message_type)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def list_of(field: FieldDescriptor) -> FieldDescriptor | None:
    """The only field of a message, if it is a list; else None."""
    inner = type_of_message(field).fields if field.message_type is not None and not is_repeated(field) else []
    return inner[0] if len(inner) == 1 and is_repeated(inner[0]) else None


def is_nested(field: FieldDescriptor) -> bool:
    """Whether the fields of its message are keywords."""
    return field.message_type is not None and not is_repeated(field) and list_of(field) is None


def build(message: type[M], prompt: Prompt | None, fields: Mapping[str, Any]) -> M:
    """The request for a prompt, which may be None, and these keywords. Raises TypeError or ValueError with a message for users."""
    request = message()
    if prompt is not None:
        _set_prompt(request, prompt)
    known = keywords(message.DESCRIPTOR)
    for name, value in fields.items():
        if value is None:
            continue
        if name not in known:
            raise TypeError(f"{message.DESCRIPTOR.name} has no '{name}'{_nearest(name, known)}")
        way = known[name]
        if way[0].name == "chat" and len(way) > 1 and not request.HasField("chat"):
            raise TypeError(f"'{name}' goes with the messages of a chat")
        target: Any = request
        for step in way[:-1]:
            _check_oneof(target, step)
            target = getattr(target, step.name)
        _assign(target, way[-1], value)
    return request


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def _set_prompt(request: Any, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    items: list[Any] = list(prompt)
    own = request.DESCRIPTOR.fields_by_name
    if items and all(isinstance(item, (Mapping, pb.ChatMessage)) for item in items):
        if "chat" not in own:
            raise TypeError(f"{request.DESCRIPTOR.name} takes no chat")
        request.chat.messages.extend(_chat_message(item) for item in items)
    elif all(isinstance(item, int) for item in items):
        if "token_ids" not in own:
            raise TypeError(f"{request.DESCRIPTOR.name} takes no token ids")
        _assign(request, own["token_ids"], items)
    else:
        raise TypeError("a prompt is a text, a list of token ids, or a list of messages")


def _chat_message(item: Mapping[str, Any] | pb.ChatMessage) -> pb.ChatMessage:
    if isinstance(item, pb.ChatMessage):
        return item
    message = dict(item)
    if "reasoning_content" in message:
        message.setdefault("reasoning", message.pop("reasoning_content"))
    message["tool_calls"] = [_tool_call(call) for call in message.get("tool_calls") or []]
    return from_mapping(pb.ChatMessage, message)


def _tool_call(call: Any) -> Any:
    """Converts OpenAI's {"id", "type", "function": {"name", "arguments"}}."""
    if not isinstance(call, Mapping) or "function" not in call:
        return call
    return {"id": call.get("id"), **call["function"]}


def from_mapping(message: type[M], values: Mapping[str, Any]) -> M:
    """A message from the names and values of its fields."""
    result = message()
    own = message.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        field = own.get(name) or own.get(name + _JSON)
        if field is None:
            raise TypeError(f"{message.DESCRIPTOR.name} has no '{name}'{_nearest(name, own)}")
        if value is not None:
            _assign(result, cast(FieldDescriptor, field), value)
    return result


def _check_oneof(target: Any, field: FieldDescriptor) -> None:
    oneof = field.containing_oneof
    taken = target.WhichOneof(oneof.name) if oneof is not None else None
    if taken not in (None, field.name):
        raise TypeError(f"'{field.name}' and '{taken}' exclude each other")


def _assign(target: Any, field: FieldDescriptor, value: Any) -> None:
    _check_oneof(target, field)
    try:
        _put(target, field, value)
    except (TypeError, AttributeError) as error:
        raise TypeError(f"{field.name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}") from None


def _put(target: Any, field: FieldDescriptor, value: Any) -> None:
    own = getattr(target, field.name)
    inner = list_of(field)
    if is_map(field):
        entry = type_of_message(field).fields_by_name["value"]
        own.update({key: _map_value(entry, item) for key, item in value.items()})
    elif inner is not None:
        own.SetInParent()
        _put(own, inner, value)
    elif is_repeated(field):
        own.extend(_single(field, item) for item in _as_list(value))
    elif field.message_type is not None:
        own.MergeFrom(_single(field, value))
    else:
        setattr(target, field.name, _single(field, value))


def _as_list(value: Any) -> Iterator[Any]:
    if isinstance(value, (str, bytes, Mapping, Message)) or not isinstance(value, Iterable):
        return iter([value])
    return iter(value)


def _map_value(entry: FieldDescriptor, value: Any) -> Any:
    if entry.type == FieldDescriptor.TYPE_STRING and isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return _single(entry, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and isinstance(value, Mapping):
        return from_mapping(GetMessageClass(type_of_message(field)), value)
    if field.enum_type is not None and isinstance(value, str):
        return _enum_number(field, value)
    if field.type == FieldDescriptor.TYPE_STRING and (
            isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and "json" in field.name)):
        return json.dumps(value, ensure_ascii=False)
    return value


def _enum_number(field: FieldDescriptor, name: str) -> int:
    names = short_names(field)
    numbers = {**names, **{value.name: value.number for value in cast(EnumDescriptor, field.enum_type).values}}
    if name not in numbers:
        raise ValueError(f"'{name}' is none of {', '.join(names)}")
    return numbers[name]


def short_names(field: FieldDescriptor) -> dict[str, int]:
    """ON_PRESSURE_EVICT as `evict`; the value for unset is left out."""
    values = cast(EnumDescriptor, field.enum_type).values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in values if value.number != 0}

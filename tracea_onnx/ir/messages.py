"""Compile requests, read without onnx: its import takes longer than most models take to compile.

A message has the fields that its class has in onnx, under the same names, and is decoded where it
is looked at. What requests seldom have, such as tensors in lists of numbers, is left to onnx
(`in_onnx`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from tracea_onnx.errors import ModelError
from tracea_onnx.support.wire_format import BYTES, FIXED32, FIXED64, VARINT, varint

if TYPE_CHECKING:
    from onnx import ModelProto

T = TypeVar("T")
#: Equal messages of at most so many bytes are one; of each class the last so many.
_SHORT, _KEPT = 128, 1024


class AttributeKind(IntEnum):
    """Kinds of attributes, with ONNX's numbers."""

    UNDEFINED = 0
    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    TENSORS = 9
    GRAPHS = 10
    SPARSE_TENSOR = 11
    SPARSE_TENSORS = 12
    TYPE_PROTO = 13
    TYPE_PROTOS = 14


class Field(NamedTuple):
    """A field of a message: its number, the wire type of one value, what makes a value of that,
    what an absent one is (None: a message without fields), whether there may be several.
    """

    name: str
    number: int
    wire: int
    read: Callable[[Any], Any]
    absent: object
    repeated: bool


class Message:
    """A message. As onnx has it, a name that is no text is bytes, and an absent field its default
    value (of several values: no list, but an empty tuple). It is not to be changed.
    """

    fields: dict[str, Field] = {}  # noqa: RUF012 -- of each class its own
    #: Of each tag that a field has: its name, what reads a value, whether there may be several (or
    #: the wire type of each in a packed list); values of absent fields.
    tags: Mapping[int, tuple[str, Callable[[Any], Any], bool, int | None]] = {}
    absent: Mapping[str, Any] = {}

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there: before the first field is looked at, or none's name."""
        if name not in self.fields or "given" in self.__dict__:
            raise AttributeError(name)
        self.decode()
        return self.__dict__[name]

    def decode(self) -> None:
        """Make values of all fields; messages in them wait until they are looked at. Raises
        ValueError for what is no message.
        """
        data, tags, given = self.data, self.tags, dict[str, Any]()
        at, end = 0, len(data)
        value: Any
        try:
            while at < end:
                tag, at = data[at], at + 1
                if tag > 127:
                    tag, at = varint(data, at - 1)
                wire = tag & 7
                if wire == BYTES:
                    size, at = data[at], at + 1
                    if size > 127:
                        size, at = varint(data, at - 1)
                    value, at = data[at : at + size], at + size
                elif wire == VARINT:
                    value, at = data[at], at + 1
                    if value > 127:
                        value, at = varint(data, at - 1)
                elif wire in (FIXED32, FIXED64):
                    size = 4 if wire == FIXED32 else 8
                    value, at = data[at : at + size], at + size
                else:
                    raise ValueError(f"wire type {wire}")
                if at > end:
                    break
                if (field := tags.get(tag)) is None:
                    continue
                name, read, repeated, packed = field
                if packed is not None:
                    given.setdefault(name, []).extend(map(read, _unpack(value, packed)))
                elif not repeated:
                    if name in given and isinstance(before := given[name], Message):
                        value = before.data + value  # later ones add to those before
                    given[name] = read(value)
                elif name in given:
                    given[name].append(read(value))
                else:
                    given[name] = [read(value)]
        except IndexError:
            at = end + 1
        if at > end:
            raise ValueError("the message is truncated")
        self.__dict__.update(self.absent)
        self.__dict__.update(given)
        self.__dict__["given"] = given

    def HasField(self, name: str) -> bool:
        """Whether the field was given."""
        return name in self._given()

    def ListFields(self) -> list[tuple[Field, Any]]:
        """The fields that were given, with their values."""
        given = self._given()
        return [(f, given[f.name]) for f in self.fields.values() if f.name in given]

    def _given(self) -> dict[str, Any]:
        if "given" not in self.__dict__:
            self.decode()
        found: dict[str, Any] = self.__dict__["given"]
        return found


def request(data: bytes) -> ModelProto:
    """The model in the bytes of a compile request. Raises ModelError for what is no message."""
    try:
        model = _Model(data)
        model.decode()
        return cast("ModelProto", model)
    except ValueError as e:
        raise ModelError(
            f"a compile request is damaged ({e})",
            "the provider and the Python package are of different versions: install them again",
        ) from None


def in_onnx(message: T) -> T:
    """The same as onnx's own object, which it may be already."""
    if not isinstance(message, Message):
        return message
    import onnx

    return cast(
        "T", getattr(onnx, type(message).__name__.strip("_") + "Proto").FromString(message.data)
    )


def _unpack(packed: bytes, wire: int) -> list[Any]:
    """The values of a packed list."""
    if wire == VARINT:
        out, at = [], 0
        while at < len(packed):
            value, at = varint(packed, at)
            out.append(value)
        return out
    size = 4 if wire == FIXED32 else 8
    return [packed[k : k + size] for k in range(0, len(packed), size)]


def _int64(v: int) -> int:
    return v - (1 << 64) if v >> 63 else v


def _int32(v: int) -> int:
    return ((v & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _kind(v: int) -> int:
    """A number that is none of an enumeration's is no value."""
    return v if v in AttributeKind._value2member_map_ else 0


def _float(v: bytes) -> float:
    found: float = struct.unpack("<f", v)[0]
    return found


def _text(v: bytes) -> str | bytes:
    try:
        return v.decode()
    except UnicodeDecodeError:
        return v


#: Wire type, reader and default of each kind of field.
_INT64, _INT32, _KIND = (VARINT, _int64, 0), (VARINT, _int32, 0), (VARINT, _kind, 0)
_FLOAT, _TEXT, _RAW = (FIXED32, _float, 0.0), (BYTES, _text, ""), (BYTES, bytes, b"")


def _one(message: type[Message]) -> tuple[int, Callable[[bytes], Message], None]:
    return BYTES, message, None


def _shared(message: type[Message]) -> tuple[int, Callable[[bytes], Message], None]:
    """A message of which a model has many that are equal, such as the type of a value."""
    kept = lru_cache(_KEPT)(message)
    return BYTES, lambda data: kept(data) if len(data) <= _SHORT else message(data), None


def _fields(cls: type[Message], **given: tuple[Any, ...]) -> None:
    """Name each field of a class: its number, its kind, and True where there may be several."""
    cls.fields = {
        name: Field(name, number, wire, read, absent, bool(several))
        for name, (number, (wire, read, absent), *several) in given.items()
    }
    own = cls.fields.values()
    cls.tags = {f.number << 3 | f.wire: (f.name, f.read, f.repeated, None) for f in own} | {
        f.number << 3 | BYTES: (f.name, f.read, True, f.wire)
        for f in own
        if f.repeated and f.wire != BYTES
    }
    cls.absent = {
        f.name: () if f.repeated else f.read(b"") if f.absent is None else f.absent for f in own
    }


class _StringStringEntry(Message): ...


class _OperatorSetId(Message): ...


class _Dimension(Message): ...


class _TensorShape(Message): ...


class _TensorType(Message): ...


class _Type(Message): ...


class _ValueInfo(Message): ...


class _Tensor(Message): ...


class _SparseTensor(Message): ...


class _Attribute(Message): ...


class _Node(Message): ...


class _Graph(Message): ...


class _Function(Message): ...


class _Model(Message): ...


_ENTRY, _TENSOR, _NODE = _shared(_StringStringEntry), _one(_Tensor), _one(_Node)
_GRAPH, _VALUE, _OPSET = _one(_Graph), _one(_ValueInfo), _one(_OperatorSetId)
_TYPE = _shared(_Type)
_fields(_StringStringEntry, key=(1, _TEXT), value=(2, _TEXT))
_fields(_OperatorSetId, domain=(1, _TEXT), version=(2, _INT64))
_fields(_Dimension, dim_value=(1, _INT64), dim_param=(2, _TEXT))
_fields(_TensorShape, dim=(1, _shared(_Dimension), True))
_fields(_TensorType, elem_type=(1, _INT32), shape=(2, _shared(_TensorShape)))
_fields(_Type, tensor_type=(1, _shared(_TensorType)))
_fields(_ValueInfo, name=(1, _TEXT), type=(2, _TYPE))
_fields(
    _Tensor,
    dims=(1, _INT64, True), data_type=(2, _INT32), name=(8, _TEXT), raw_data=(9, _RAW),
    external_data=(13, _ENTRY, True), data_location=(14, _KIND),
)  # fmt: skip
_fields(_SparseTensor, values=(1, _TENSOR), indices=(2, _TENSOR), dims=(3, _INT64, True))
_fields(
    _Attribute,
    name=(1, _TEXT), f=(2, _FLOAT), i=(3, _INT64), s=(4, _RAW), t=(5, _TENSOR), g=(6, _GRAPH),
    floats=(7, _FLOAT, True), ints=(8, _INT64, True), strings=(9, _RAW, True),
    tensors=(10, _TENSOR, True), graphs=(11, _GRAPH, True), tp=(14, _TYPE),
    type_protos=(15, _TYPE, True), type=(20, _KIND), ref_attr_name=(21, _TEXT),
    sparse_tensor=(22, _one(_SparseTensor)), sparse_tensors=(23, _one(_SparseTensor), True),
)  # fmt: skip
_fields(
    _Node,
    input=(1, _TEXT, True), output=(2, _TEXT, True), name=(3, _TEXT), op_type=(4, _TEXT),
    attribute=(5, _shared(_Attribute), True), doc_string=(6, _TEXT), domain=(7, _TEXT),
    metadata_props=(9, _ENTRY, True),
)  # fmt: skip
_fields(
    _Graph,
    node=(1, _NODE, True), name=(2, _TEXT), initializer=(5, _TENSOR, True),
    input=(11, _VALUE, True), output=(12, _VALUE, True), value_info=(13, _VALUE, True),
)  # fmt: skip
_fields(
    _Function,
    name=(1, _TEXT), input=(4, _TEXT, True), output=(5, _TEXT, True), node=(7, _NODE, True),
    opset_import=(9, _OPSET, True), domain=(10, _TEXT),
)  # fmt: skip
_fields(
    _Model,
    ir_version=(1, _INT64), graph=(7, _GRAPH), opset_import=(8, _OPSET, True),
    metadata_props=(14, _ENTRY, True), functions=(25, _one(_Function), True),
)  # fmt: skip

"""A read-only view of an ONNX graph for matching and lowering: producers, consumers, constants,
shapes.

The protobuf stays the one source of truth; nothing an exporter wrote is lost by looking at it.
Constants are read lazily (external data through a memory map), so a model larger than memory can
still be searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.element_types import STRING, numpy_type, tensor_values
from tracea_onnx.ir.messages import AttributeKind, in_onnx
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.operator_versions import unread, value_of
from tracea_onnx.support import process_memory
from tracea_onnx.support.data_files import open_data

if TYPE_CHECKING:  # a session imports no onnx: its requests are `messages`
    from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

Array = npt.NDArray[Any]
T = TypeVar("T")
Shape = tuple[int | str | None, ...]
#: Axes of a value that are followed: an array of numpy has no more.
MOST_RANK = 64


def domain_of(domain: str) -> str:
    """ONNX's own domain has two names, of which this is the short one; others stay."""
    return "" if domain == "ai.onnx" else domain


def written(node: NodeProto) -> str:
    """Full name of a node's operator: `Conv`, or with its domain `com.microsoft.Gelu`."""
    return f"{node.domain}.{node.op_type}" if domain_of(node.domain) else node.op_type


def type_name(number: int) -> str:
    """Name of an element type; a file may have any number there."""
    from onnx import TensorProto

    return (
        TensorProto.DataType.Name(number).lower()
        if number in TensorProto.DataType.values()
        else f"type {number}"
    )


class Node:
    """One node with its attributes decoded on demand.

    Identity is the object; `index` is its place in topological order.
    """

    __slots__ = ("_attrs", "index", "inputs", "op", "outputs", "proto", "unread", "written")

    def __init__(self, proto: NodeProto, index: int, opset: int = 0) -> None:
        self.proto, self.index = proto, index
        #: What the model says: `Conv`, or `com.microsoft.Gelu` for other domains than the default.
        self.written: str = written(proto)
        #: Why the node may mean what nothing here knows of (`operators.unread`), or "".
        self.unread = unread(self.written, proto, opset)
        #: `written`, or what no rule or lowering knows where it is `unread`.
        self.op: str = f"unread {self.written}" if self.unread else self.written
        self.inputs: tuple[str, ...] = tuple(proto.input)
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self._attrs: dict[str, Any] | None = None

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes by name, as Python values."""
        if self._attrs is None:
            self._attrs = {a.name: value_of(a) for a in self.proto.attribute}
        return self._attrs

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute of that name, or `default`."""
        return self.attrs.get(name, default)

    def input(self, k: int) -> str:
        """Name of input k, "" when absent."""
        return self.inputs[k] if k < len(self.inputs) else ""

    @property
    def name(self) -> str:
        """The node's name, or its first output where the exporter gave none."""
        return self.proto.name or (self.outputs[0] if self.outputs else f"#{self.index}")

    def __repr__(self) -> str:
        return f"{self.op}({self.name})"


def external_info(t: TensorProto) -> dict[str, str]:
    """The keys of the external data of a tensor: location, offset, length."""
    return {e.key: e.value for e in t.external_data}


def tensor_bytes(t: TensorProto) -> int:
    """Bytes of the tensor's elements by its dims and type (sub-byte types are packed); 0 for
    strings.
    """
    bits = _BITS.get(t.data_type)
    if bits is None:
        bits = 0 if t.data_type == STRING else 8 * numpy_type(t.data_type).itemsize
    return int(math.prod(t.dims) * bits + 7) // 8


#: Of element types that share bytes: UINT4, INT4, FLOAT4E2M1, UINT2, INT2.
_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
#: `TensorProto.data_location`.
_EXTERNAL = 1


def tensor_array(t: TensorProto, folder: Path | None) -> Array:
    """The tensor's values; external data is memory-mapped from `folder`.

    Raises FileNotFoundError for external data where there is no folder.
    """
    if t.data_location != _EXTERNAL:
        try:
            return tensor_values(t)
        except (ValueError, TypeError):
            raise ModelError(
                f"tensor '{t.name}' is damaged: its data does not fit its type and shape",
                "download or export the model again",
            ) from None
    if folder is None:
        raise FileNotFoundError(external_info(t)["location"])
    return _typed(t, map_data(t, folder) if tensor_bytes(t) else np.empty(0, np.uint8))


def map_data(t: TensorProto, folder: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor's external data, in place.

    Raises ModelError where the file is not what it was when the model was loaded.
    """
    info = external_info(t)
    with open_data(folder, info["location"]) as f:
        try:
            return np.memmap(f, np.uint8, "r", int(info.get("offset", "0")), (tensor_bytes(t),))
        except ValueError:
            raise truncated(t) from None


def truncated(t: TensorProto) -> ModelError:
    """The error for a data file that is shorter than the model says."""
    return ModelError(
        f"the external data of tensor '{t.name}' became shorter since the model was loaded",
        "leave the model's files alone meanwhile",
    )


def request_array(t: TensorProto) -> Array:
    """The values of a constant of a compile request, in place: where the request says so, at an
    address.

    Only what answers the provider's requests may call this: a model from outside could name any
    address. Raises ModelError for a constant that lies neither in the request nor in memory, or
    whose length is not that of its type and dims.
    """
    if t.data_location != _EXTERNAL:
        return tensor_values(t)
    info, size = external_info(t), tensor_bytes(t)
    if info.get("location") != process_memory.LOCATION or info.get("length") != str(size):
        what = (
            f"constant '{t.name}' of a compile request has {size} bytes, not "
            f"{info.get('length')} at '{info.get('location')}'"
        )
        raise ModelError(
            what,
            "the provider and the Python package are of different versions: install them again",
        )
    stored = process_memory.read(int(info["offset"]), size) if size else b""
    return _typed(t, np.frombuffer(stored, np.uint8))


def _typed(t: TensorProto, stored: npt.NDArray[np.uint8]) -> Array:
    """A tensor's bytes as an array of its type and shape, in place unless elements share bytes."""
    if t.data_type in _BITS:
        from onnx import TensorProto

        return tensor_values(
            TensorProto(dims=t.dims, data_type=t.data_type, raw_data=stored.tobytes())
        )
    return stored.view(numpy_type(t.data_type)).reshape(tuple(t.dims))


def opset_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Versions of the operator sets that a model or a function imports, by domain."""
    return {domain_of(o.domain): o.version for o in imports}


#: Attention, and operators whose bodies may hold one.
_UNSURE = operators(Trait.CONTROL) | {"Attention"}


class Graph:
    """View of one graph of a model. `outer` is the enclosing graph when this is a body of If, Loop
    or Scan.

    `in_process`: the model is a compile request of the provider, whose constants are read where
    they lie in memory. Never for a model from outside.
    """

    def __init__(
        self,
        model: ModelProto,
        graph: GraphProto | None = None,
        *,
        folder: Path | None = None,
        outer: Graph | None = None,
        in_process: bool = False,
    ) -> None:
        self._in_process = in_process
        self.model, self.proto, self.folder, self.outer = (
            model,
            graph if graph is not None else model.graph,
            folder,
            outer,
        )
        self._opsets = opset_versions(model.opset_import)
        self.nodes: list[Node] = [
            Node(n, k, self._opsets.get("", 0)) for k, n in enumerate(self.proto.node)
        ]
        self._producer = {o: n for n in self.nodes for o in n.outputs if o}
        self._consumers: dict[str, list[Node]] = {}
        for n in self.nodes:
            for name in [*n.inputs, *_captured(n.proto)]:
                if name:
                    uses = self._consumers.setdefault(name, [])
                    if not uses or uses[-1] is not n:
                        uses.append(n)
        self.inputs: tuple[str, ...] = tuple(i.name for i in self.proto.input)
        self.outputs: tuple[str, ...] = tuple(o.name for o in self.proto.output)
        self._input_set, self._output_set = frozenset(self.inputs), frozenset(self.outputs)
        self._initializers = {t.name: t for t in self.proto.initializer}
        self._arrays: dict[str, Array] = {}
        self._shapes: dict[str, Shape | None] = {}
        self._symbols: frozenset[str] | None = None
        self._types = {
            v.name: v.type.tensor_type
            for v in [*self.proto.input, *self.proto.output, *self.proto.value_info]
            if v.type.HasField("tensor_type")
        }
        self._body = in_process and any(
            p.key == "body" and p.value == "1" for p in model.metadata_props
        )
        self._mistaken = (
            self._after_unknown_heads()
            if self._body or any(n.written in _UNSURE for n in self.nodes)
            else frozenset()
        )

        self._derived: dict[object, Any] = {}
        #: Whether rules fuse operators of quantised operands: sessions compute them in integers.
        self.fuses_quantised = False

    def derived(self, key: Callable[[Graph], T]) -> T:
        """Result of `key` for this graph, computed once.

        It lives and dies with the graph, so it may refer to it.
        """
        if key not in self._derived:
            self._derived[key] = key(self)
        found: T = self._derived[key]
        return found

    # --- structure --------------------------------------------------------------------------------
    def opset(self, domain: str = "") -> int:
        """Version of the operator set the model imports (0 when it does not)."""
        return int(self._opsets.get(domain, 0))

    def producer(self, name: str) -> Node | None:
        """The node that computes the value; None for inputs and constants."""
        return self._producer.get(name)

    def consumers(self, name: str) -> Sequence[Node]:
        """Nodes that read the value, once each; a control-flow node whose body captures it
        counts.
        """
        return self._consumers.get(name, ())

    def is_output(self, name: str) -> bool:
        """Whether the value is an output of the graph."""
        return name in self._output_set

    def is_input(self, name: str) -> bool:
        """Whether the value is an input of the graph."""
        return name in self._input_set

    def sole_consumer(self, name: str) -> Node | None:
        """The only reader of an inner value; None when it has several, none, or is a graph
        output.
        """
        uses = self.consumers(name)
        return uses[0] if len(uses) == 1 and not self.is_output(name) else None

    # --- constants --------------------------------------------------------------------------------
    def is_const(self, name: str) -> bool:
        """True for an initializer that no caller can override, and for the output of a Constant
        node.
        """
        if name in self._initializers:
            return name not in self._input_set
        p = self._producer.get(name)
        if p is not None:
            return p.op == "Constant"
        return self.outer is not None and name not in self._input_set and self.outer.is_const(name)

    def const(self, name: str) -> Array | None:
        """The constant's values, or None when `name` is not constant."""
        if not name or not self.is_const(name):
            return None
        if name not in self._arrays:
            if name in self._initializers:
                t = self._initializers[name]
                self._arrays[name] = (
                    request_array(t) if self._in_process else tensor_array(t, self.folder)
                )
            elif name in self._producer:
                value = constant_node_value(self._producer[name].proto)
                if value is None:
                    return None
                self._arrays[name] = value
            elif self.outer is not None:
                return self.outer.const(name)
        return self._arrays[name]

    def was_read(self, name: str) -> bool:
        """Whether anything asked for this initializer's values."""
        return name in self._arrays

    def scalar(self, name: str) -> float | None:
        """The value of a constant with exactly one element (any rank), as a float."""
        shape = self.shape(name) if name else None
        if shape is not None and any(d != 1 for d in shape):
            return None
        value = self.const(name)
        # "V": numpy's kind of bfloat16
        return (
            float(value.reshape(-1)[0])
            if value is not None and value.size == 1 and value.dtype.kind in "fiubV"
            else None
        )

    def ints(self, name: str) -> list[int] | None:
        """A constant integer vector or scalar as a list."""
        value = self.const(name)
        return (
            [int(v) for v in value.reshape(-1)]
            if value is not None and value.dtype.kind in "iu"
            else None
        )

    # --- types ------------------------------------------------------------------------------------
    def dtype(self, name: str) -> int | None:
        """Element type (TensorProto number), or None when unknown."""
        if name in self._initializers:
            return int(self._initializers[name].data_type)
        t = self._types.get(name)
        if t is not None and t.elem_type:
            return int(t.elem_type)
        value = self.const(name) if name in self._producer else None
        if value is not None:
            from onnx import helper

            return int(helper.np_dtype_to_tensor_dtype(value.dtype))
        return self.outer.dtype(name) if self.outer is not None else None

    def symbols(self) -> frozenset[str]:
        """Names that whole dims of the graph's inputs have."""
        if self._symbols is None:
            self._symbols = frozenset(
                d
                for i in self.inputs
                for d in self.shape(i) or ()
                if isinstance(d, str) and d.isidentifier()
            )
        return self._symbols

    def shape(self, name: str) -> Shape | None:
        """Dims as ints, symbol names, or None each; None when even the rank is unknown, or higher
        than any array's.
        """
        if name not in self._shapes:
            self._shapes[name] = self._find_shape(name)
        return self._shapes[name]

    def _find_shape(self, name: str) -> Shape | None:
        if name in self._initializers:
            stored = self._initializers[name].dims
            return tuple(stored) if len(stored) <= MOST_RANK else None
        t = self._types.get(name)
        if t is not None:
            if not t.HasField("shape") or len(t.shape.dim) > MOST_RANK:
                return None
            dims = tuple(
                d.dim_value if d.HasField("dim_value") else (d.dim_param or None)
                for d in t.shape.dim
            )
            if name in self._mistaken:
                maker = self._producer.get(name)
                return (
                    tuple(d or None for d in dims)
                    if maker is None or maker.written in _UNSURE
                    else (None,) * len(dims)
                )
            return dims
        value = self.const(name) if name in self._producer else None
        if value is not None:
            return tuple(value.shape)
        return self.outer.shape(name) if self.outer is not None else None

    def _after_unknown_heads(self) -> frozenset[str]:
        """Values whose inferred dims cannot be believed: ONNX infers 0 for the last axis of an
        Attention whose head size it does not know, and goes on from it, also into bodies, which the
        provider sees alone, and out of them.
        """
        unsure = [o for n in self.nodes if n.written in _UNSURE for o in n.outputs]
        if self._body:
            unsure += [
                v for v in self._types if v not in self._producer and v not in self._initializers
            ]
        types = ((v, self._types.get(v)) for v in unsure)
        stack = [
            v
            for v, t in types
            if t is not None
            and any(d.HasField("dim_value") and not d.dim_value for d in t.shape.dim)
        ]
        # The type of an output is its declaration: the 0 shows only in what follows.
        hidden = [
            n for n in self.nodes if n.written == "Attention" and not self._has_size(n.input(2))
        ]
        stack += [o for n in hidden for o in n.outputs if o in self._output_set]
        found: set[str] = set()
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += [o for n in self._consumers.get(name, ()) for o in n.outputs if o]
        return frozenset(found)

    def _has_size(self, name: str) -> bool:
        """Whether the last dim of a value is known."""
        t = self._types.get(name)
        return name in self._initializers or (
            t is not None and len(t.shape.dim) > 0 and t.shape.dim[-1].HasField("dim_value")
        )

    def rank(self, name: str) -> int | None:
        """How many axes the value has; None when not known."""
        s = self.shape(name)
        return None if s is None else len(s)

    # --- regions ----------------------------------------------------------------------------------
    def escapes(self, nodes: Sequence[Node]) -> list[str]:
        """Values made inside `nodes` and needed outside, in topological order."""
        inside = {id(n) for n in nodes}
        return [
            o
            for n in sorted(nodes, key=lambda n: n.index)
            for o in n.outputs
            if o and (self.is_output(o) or any(id(c) not in inside for c in self.consumers(o)))
        ]

    def is_convex(self, nodes: Sequence[Node]) -> bool:
        """Whether no path leaves the set and comes back (fusing such a set would make a cycle)."""
        inside = {id(n) for n in nodes}
        last = max(n.index for n in nodes)
        seen: set[int] = set()
        stack = [
            c for n in nodes for o in n.outputs for c in self.consumers(o) if id(c) not in inside
        ]
        while stack:
            n = stack.pop()
            if id(n) in seen or n.index > last:
                continue
            seen.add(id(n))
            for o in n.outputs:
                for c in self.consumers(o):
                    if id(c) in inside:
                        return False
                    stack.append(c)
        return True


#: Each form of a Constant node's value, and what its attribute holds. ONNX Runtime goes by the
#: kind, which a file may have otherwise.
_FORMS = {
    "value": AttributeKind.TENSOR, "value_float": AttributeKind.FLOAT,
    "value_floats": AttributeKind.FLOATS, "value_int": AttributeKind.INT,
    "value_ints": AttributeKind.INTS, "value_string": AttributeKind.STRING,
    "value_strings": AttributeKind.STRINGS,
}  # fmt: skip


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node in any of its forms but a sparse one."""
    from onnx import TensorProto

    for a in in_onnx(node).attribute:
        if a.name not in _FORMS or a.type != _FORMS[a.name]:
            continue
        t = TensorProto()
        if a.name == "value":
            t.CopyFrom(a.t)
            return t
        single = not a.name.endswith("s")
        if "float" in a.name:
            t.data_type = TensorProto.FLOAT
            t.float_data.extend([a.f] if single else a.floats)
        elif "int" in a.name:
            t.data_type = TensorProto.INT64
            t.int64_data.extend([a.i] if single else a.ints)
        else:
            t.data_type = TensorProto.STRING
            t.string_data.extend([a.s] if single else a.strings)
        if not single:
            t.dims.append(len(t.float_data) + len(t.int64_data) + len(t.string_data))
        return t
    return None


def constant_node_value(proto: NodeProto) -> Array | None:
    """The same as an array; None for string values, and for data outside the file."""
    t = constant_tensor(proto)
    return (
        None
        if t is None or t.data_type == STRING or t.data_location == _EXTERNAL
        else tensor_array(t, None)
    )


def subgraphs(proto: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a control-flow node."""
    for a in proto.attribute:
        if a.type == AttributeKind.GRAPH:
            yield a.g
        elif a.type == AttributeKind.GRAPHS:
            yield from a.graphs


def _captured(proto: NodeProto) -> list[str]:
    """Outer values the bodies of a control-flow node read."""
    out: list[str] = []
    for g in subgraphs(proto):
        local = {i.name for i in g.input} | {t.name for t in g.initializer}
        for n in g.node:
            out += [name for name in [*n.input, *_captured(n)] if name and name not in local]
            local |= set(n.output)
        out += [o.name for o in g.output if o.name not in local]
    return out

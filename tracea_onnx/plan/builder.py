"""Builds a Plan: the one artifact the native side knows (format: docs/plan-format.md, "Plan and
pack").
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import add
from typing import Any

import numpy as np

from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import EXPR_OPS, Dim, DimLike
from tracea_onnx.ir.graph import Array
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.support.data_classes import dataclass

PACK_MAGIC = b"TRACEAPK"
#: Raised when a number of a Plan gets another meaning; `kVersion` of ep/plan/pack.cc is the same.
PACK_VERSION = 2
_HEADER = struct.Struct("<8sIIQQ32s")
#: Kinds of buffer whose contents are fixed for the life of a session.
_CONSTANT_KINDS = frozenset({"const", "initializer", "blob"})
#: Bytes that a session computes from nothing and holds: beyond these a run does.
_HELD = 64 << 20


@dataclass(frozen=True)
class Ref:
    """A place in a buffer: index and byte offset."""

    buffer: int
    offset: DimLike = 0

    def at(self, extra_bytes: DimLike) -> Ref:
        """The reference with an offset of so many more bytes."""
        return Ref(self.buffer, self.offset + extra_bytes)


class PlanBuilder:
    """Collects buffers, expressions and launches of one partition; `to_json` is deterministic."""

    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend = name, backend
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self.blobs: list[bytes] = []
        self._symbols: dict[str, int] = {}
        self._symbol_sources: list[list[int]] = []
        self._exprs: list[list[Any]] = []
        self._expr_index: dict[tuple[Any, ...], int] = {}
        self._expr_of: dict[DimLike, int] = {}
        self._checks: list[list[int]] = []
        self._requires: dict[tuple[str, int, int, str], None] = {}
        self._extents: dict[tuple[int, int, int, str], None] = {}
        self._init: list[dict[str, Any]] = []
        self._run: list[dict[str, Any]] = []
        self._initializers: dict[str, int] = {}
        self._blob_index: dict[bytes, int] = {}
        self._written: set[int] = set()

    # --- expressions ------------------------------------------------------------------------------
    def define_symbol(self, name: str, input_index: int, axis: int) -> None:
        """The symbol's value is read from this axis of this input; later definitions of the same
        name become checks.
        """
        if name in self._symbols:
            self._checks.append([input_index, axis, self._entry(["sym", self._symbols[name]])])
            return
        self._symbols[name] = len(self._symbol_sources)
        self._symbol_sources.append([input_index, axis])

    def knows(self, name: str) -> bool:
        """Whether the symbol is defined."""
        return name in self._symbols

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The symbols' values for inputs of these shapes."""
        return {
            name: shapes[index][axis]
            for name, (index, axis) in zip(self._symbols, self._symbol_sources, strict=True)
        }

    def check(self, input_index: int, axis: int, value: DimLike) -> None:
        """Let a run fail where that axis of the input has another size."""
        self._checks.append([input_index, axis, self.expr(value)])

    def require(self, a: DimLike, b: DimLike, what: str = "sizes that must be equal") -> bool:
        """Compute fails with `what` and both values unless the two are equal. False when that
        cannot be compared in this Plan: two numbers that differ, or a symbol of another
        partition.
        """
        if a is b or a == b:
            return True
        return self._require("eq", a, b, what)

    def require_at_least(self, a: DimLike, least: DimLike, what: str) -> bool:
        """Compute fails with `what` and both values where `a` is less than `least`.

        False as of `require`.
        """
        if isinstance(a, int) and isinstance(least, int) and a >= least:
            return True
        return self._require("ge", a, least, what)

    def _require(self, how: str, a: DimLike, b: DimLike, what: str) -> bool:
        names = (*dims.symbols(a), *dims.symbols(b))
        if not names or any(n not in self._symbols for n in names):
            return False
        self._requires[how, self.expr(a), self.expr(b), what] = None
        return True

    def expr(self, e: DimLike) -> int:
        """Index of the expression in the Plan's table."""
        if (known := self._expr_of.get(e)) is not None:  # of parts that many share, once
            return known
        if not isinstance(e, Dim):
            row = ["const", int(e)]
        elif e.op == "sym":
            row = ["sym", self._symbols[e.name]]
        else:
            assert e.op in EXPR_OPS
            row = [e.op, *(self.expr(a) for a in e.args)]
        return self._expr_of.setdefault(e, self._entry(row))

    def _entry(self, row: list[Any]) -> int:
        key = tuple(row)
        if key not in self._expr_index:
            self._expr_index[key] = len(self._exprs)
            self._exprs.append(row)
        return self._expr_index[key]

    # --- buffers ----------------------------------------------------------------------------------
    def _buffer(self, **kw: Any) -> int:
        self.buffers.append(kw)
        return len(self.buffers) - 1

    def add_input(self, name: str, dtype: int, rank: int) -> Ref:
        """Add an input; returns its buffer."""
        self.inputs.append({"name": name, "dtype": int(dtype), "rank": rank})
        return Ref(self._buffer(kind="input", index=len(self.inputs) - 1))

    def add_output(self, name: str) -> Ref:
        """Reserve an output; `finish_output` gives its type."""
        self.outputs.append({"name": name})
        return Ref(self._buffer(kind="output", index=len(self.outputs) - 1))

    def finish_output(
        self,
        name: str,
        dtype: int,
        dims: Sequence[DimLike],
        counted: tuple[int, int, int] | None = None,
    ) -> None:
        """Give an output its dims, once they are known. counted: these are the largest it may have,
        in a buffer of the arena: the axis whose size a run counts, that buffer, and the one that
        gets the size.
        """
        entry = next(o for o in self.outputs if o["name"] == name)
        entry.update(dtype=int(dtype), dims=[self.expr(d) for d in dims])
        if counted is not None:
            entry["counted"] = list(counted)

    def arena(self, size: DimLike) -> Ref:
        """A new buffer of that many bytes in the arena."""
        return Ref(self._buffer(kind="arena", bytes=size))

    def initializer(self, name: str) -> Ref:
        """The buffer of an initializer that ONNX Runtime owns."""
        if name not in self._initializers:
            self._initializers[name] = self._buffer(kind="initializer", name=name)
        return Ref(self._initializers[name])

    def blob(self, array: Array) -> Ref:
        """The buffer of constant bytes in the pack; equal arrays share one."""
        data = np.ascontiguousarray(array).tobytes()
        if data not in self._blob_index:
            self.blobs.append(data)
            self._blob_index[data] = self._buffer(kind="blob", index=len(self.blobs) - 1)
        return Ref(self._blob_index[data])

    def is_constant(self, ref: Ref) -> bool:
        """Whether no launch of a run writes the buffer."""
        return self.buffers[ref.buffer]["kind"] in _CONSTANT_KINDS

    # --- launches ---------------------------------------------------------------------------------
    def launch(
        self,
        family: str,
        inputs: Mapping[str, Ref | None],
        outputs: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float] | None = None,
        program: Mapping[str, Any] | None = None,
        *,
        whole: bool = True,
        more: bool = False,
        dtype: DType = DType.F32,
        instead_of: str = "",
    ) -> None:
        """Append one launch. When every input is constant and the outputs are fresh buffers that it
        fills (`whole`), it runs once per session instead of on every run; what has no input does so
        only if it is not too large to hold. With `more` it may also fill in a part of a constant.
        `dtype` is the element type of the main operands (a family with its own type parameters
        ignores it). instead_of: the family that this one is a `substitute` for.
        """
        spec = FAMILIES[family]
        operands = {**inputs, **outputs}
        names = spec.names
        unknown = {*operands, *ints, *(floats or {})} - spec.known
        missing = {o for o in spec.required if operands.get(o) is None}
        if unknown or missing or (program is not None and not spec.program):
            raise TraceaError(
                f"internal: bad launch of {family}: unknown {sorted(unknown)}, missing "
                f"{sorted(missing)}"
            )
        refs = [operands.get(n) for n in names]
        written = [r.buffer for r in outputs.values() if r is not None]
        static = all(isinstance(d, int) for d in ints.values()) and all(
            r is None or isinstance(r.offset, int) for r in refs
        )
        fresh = all(self._open_to_init(b, more) for b in written)
        constant = (
            whole
            and static
            and fresh
            and all(r is None or self.is_constant(r) for r in inputs.values())
            and (
                more
                or any(inputs.values())
                or sum(self.buffers[b]["bytes"] for b in written) <= _HELD
            )
        )
        self._written.update(written)
        if constant:
            for b in written:
                self.buffers[b]["kind"] = "const"
        self._append(
            family,
            dict(zip(names, refs, strict=True)),
            ints,
            floats or {},
            program,
            dtype,
            self._init if constant else self._run,
            **({"instead_of": instead_of} if instead_of else {}),
        )

    def substitute(
        self,
        family: str,
        operands: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float] | None,
        program: Mapping[str, Any] | None,
        dtype: DType,
    ) -> str:
        """The family that computes a launch of this one, as `launch` describes it."""
        return family

    def _open_to_init(self, buffer: int, more: bool) -> bool:
        """Whether an init launch may write it: nothing has yet, or, with `more`, only init launches
        have.
        """
        b = self.buffers[buffer]
        if buffer in self._written:
            return more and b["kind"] == "const"
        return b["kind"] in ("arena", "const") and isinstance(b["bytes"], int)

    def _append(
        self,
        family: str,
        refs: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float],
        program: Mapping[str, Any] | None,
        dtype: DType,
        to: list[dict[str, Any]],
        instead_of: str = "",
    ) -> None:
        """Write one launch; a backend that turns families into artifacts of its own does so
        here.
        """
        spec = FAMILIES[family]
        if dtype != DType.F32:
            raise TraceaError(f"internal: {family} of type {dtype.name} on backend {self.backend}")
        record = {
            "k": family,
            "b": [None if r is None else [r.buffer, self.expr(r.offset)] for r in refs.values()],
            "i": [self.expr(ints.get(n, 0)) for n in spec.ints],
            "f": [float(floats.get(n, 0.0)) for n in spec.floats],
            "p": dict(program) if program is not None else None,
        }
        to.append(record)

    @property
    def launches(self) -> int:
        """How many launches a run has."""
        return len(self._run)

    def to_json(self) -> dict[str, Any]:
        """The Plan (docs/plan-format.md)."""
        buffers = [
            {**b, "bytes": self.expr(b["bytes"]) if b["kind"] == "arena" else b["bytes"]}
            if "bytes" in b
            else b
            for b in self.buffers
        ]
        return {
            "version": 1, "backend": self.backend, "name": self.name, "inputs": self.inputs,
            "outputs": self.outputs,
            "symbols": self._symbol_sources, "exprs": self._exprs, "checks": self._checks,
            "requires": [list(r) for r in self._requires],
            "extents": [list(e) for e in self._extents], "buffers": buffers,
            "init": self._init, "run": self._run,
        }  # fmt: skip


def write_pack(
    entries: Sequence[tuple[Sequence[str], dict[str, Any], Sequence[bytes]]],
    producer: str,
    left: Sequence[str] = (),
) -> bytes:
    """Pack bytes of `(node keys, plan, the plan's blobs)` entries; blob indices are made global.
    `left` are sentences about nodes without an entry.
    """
    blobs: list[bytes] = []
    rows = []
    for keys, plan, own in entries:
        base = len(blobs)
        blobs += own
        rows.append({"nodes": list(keys), "plan": _renumber(plan, partial(add, base))})
    table, payload = [], bytearray()
    for b in blobs:
        payload += b"\0" * (-len(payload) % 64)
        table.append([len(payload), len(b)])
        payload += b
    header = json.dumps(
        {"entries": rows, "blobs": table, "producer": producer, "left": list(left)},
        separators=(",", ":"),
        sort_keys=True,
    ).encode()
    body = header + bytes(payload)
    return (
        _HEADER.pack(
            PACK_MAGIC, PACK_VERSION, 0, len(header), len(payload), hashlib.sha256(body).digest()
        )
        + body
    )


def _blobs_of(plan: dict[str, Any]) -> set[int]:
    """Blobs a plan refers to: the contents of buffers, and the cubins of its launches."""
    cubins = {r["cubin"] for part in ("init", "run") for r in plan[part] if "cubin" in r}
    return {b["index"] for b in plan["buffers"] if b["kind"] == "blob"} | cubins


def _renumber(plan: dict[str, Any], new: Callable[[int], int]) -> dict[str, Any]:
    """The plan with other blob indices."""
    buffers = [
        {**b, "index": new(b["index"])} if b["kind"] == "blob" else b for b in plan["buffers"]
    ]
    launches = {
        part: [{**r, "cubin": new(r["cubin"])} if "cubin" in r else r for r in plan[part]]
        for part in ("init", "run")
    }
    return {**plan, "buffers": buffers, **launches}


def read_pack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Header and blobs of a pack; raises TraceaError when the bytes are not one."""
    if len(data) < _HEADER.size or data[:8] != PACK_MAGIC:
        raise TraceaError(
            "this is not a tracea-onnx pack file",
            "make one with `tracea-onnx optimize MODEL --pack FILE`",
        )
    _, version, _, n_header, n_blob, digest = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if version != PACK_VERSION:
        raise TraceaError(
            f"pack version {version} is not version {PACK_VERSION}",
            "make the pack again with this version of tracea-onnx",
        )
    if len(body) != n_header + n_blob or hashlib.sha256(body).digest() != digest:
        raise TraceaError(
            "the pack file is truncated or damaged",
            "make it again with `tracea-onnx optimize MODEL --pack FILE`",
        )
    header = json.loads(body[:n_header])
    payload = body[n_header:]
    return header, [payload[o : o + n] for o, n in header["blobs"]]


def evaluate(plan: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> list[int]:
    """Values of the Plan's expressions for inputs of these shapes."""
    out: list[int] = []
    for op, *a in plan["exprs"]:
        if op == "const":
            out.append(int(a[0]))
        elif op == "sym":
            index, axis = plan["symbols"][a[0]]
            out.append(shapes[index][axis])
        else:
            out.append(dims.VALUES[op](*(out[k] for k in a)))
    return out


def merge_packs(packs: Sequence[bytes], producer: str) -> bytes:
    """One pack with the distinct entries of several; the same nodes may have a plan for each
    backend and GPU architecture.
    """
    rows: dict[tuple[Any, ...], tuple[Sequence[str], dict[str, Any], Sequence[bytes]]] = {}
    for data in packs:
        header, blobs = read_pack(data)
        for e in header["entries"]:
            plan = e["plan"]
            used = sorted(_blobs_of(plan))
            local = {g: k for k, g in enumerate(used)}
            key = (plan["backend"], plan.get("arch"), plan.get("sms"), *e["nodes"])
            rows.setdefault(
                key, (e["nodes"], _renumber(plan, local.__getitem__), [blobs[g] for g in used])
            )
    return write_pack(list(rows.values()), producer)

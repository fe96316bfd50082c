"""State of one partition while it is lowered: values, layouts and the Plan under construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracea_onnx.codegen.target import Target
from tracea_onnx.compiler.lower.axes import merge_dims, pad_rows
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import (
    Blocks,
    Counted,
    Deferred,
    DeferredNorm,
    Dims,
    Late,
    Nhwc,
    RowNorm,
    Unsupported,
    Value,
    View,
    contiguous,
    same_strides,
)
from tracea_onnx.compiler.lower.views import image_in
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.expr_program import compile_program
from tracea_onnx.ir.graph import Array, Graph
from tracea_onnx.plan.builder import PlanBuilder, Ref
from tracea_onnx.plan.kernel_families import COPIES, packed_elements, packed_rows, widened_elements
from tracea_onnx.shapes.shape_values import objects

#: A Plan may depend on a constant's contents only up to this size (larger ones are prepared by init
#: launches).
CONTENT_LIMIT = 4096
Border = tuple[int, int, int, int]


class Lowering:
    """Lowers ops one by one into `plan`.

    Ops are lowered in topological order; `values` holds what is known so far.
    """

    def __init__(self, graph: Graph, plan: PlanBuilder, target: Target) -> None:
        self.graph, self.plan, self.target = graph, plan, target
        self.values: dict[str, Value] = {}
        self.borders: dict[str, Border] = {}  # zero border the readers of a value need
        self.alias: dict[str, str] = {}  # value -> group output that is a reshape of it
        # value -> (concatenation it is a channel slice of, first channel)
        self.slots: dict[str, tuple[str, int]] = {}
        self.concats: dict[str, Nhwc] = {}
        # concatenations that one convolution reads, which could read what they slice instead
        self.block_concats: set[str] = set()
        self.blocks: dict[str, Blocks] = {}  # those that are never stored, because it will
        # GEMMs computed together with others of the same input
        self.merges: dict[str, list[Op]] = {}
        self.deferrable: set[str] = set()  # values whose reader may compute them on the way
        # values of a held type that products alone read, which round what they read
        self.rounded_later: set[str] = set()
        self.halved: set[str] = set()  # results that are stored in bfloat16
        # values that so many pointwise expressions read, and nothing else
        self.staged: dict[str, int] = {}
        # results of convolutions that only a max pooling reads -> that pooling
        self.pooled: dict[str, Op] = {}
        # values that one op alone reads -> that op
        self.sole: dict[str, Op] = {}
        # values that one QuantizeLinear reads, among others -> that op
        self.quantisers: dict[str, Op] = {}
        # results of pointwise ops that a GEMM of integers before them may compute
        self.late: dict[str, Late] = {}
        self.postponed: set[str] = set()  # results of ops that are lowered with a key of `late`
        self.unread: set[str] = set()  # values of which only the shape is asked for
        self.last: set[str] = set()  # outputs that nothing reads
        self.needs_row_stats: set[str] = set()  # results of GEMMs whose rows will be normalised
        self.statistics: dict[str, Ref] = {}  # those of their rows
        self.deferred_norms: dict[str, DeferredNorm] = {}  # norms left to the GEMMs that read them
        self.prenormed: set[str] = set()  # norms that one GEMM with few-bit weights reads
        self.row_norms: dict[str, RowNorm] = {}  # those of them that are left to it
        self.gates: dict[str, Op] = {}  # results of GEMMs -> the GEMM that they are gated by
        self._outputs: dict[str, Ref] = {}
        self._narrow: dict[str, Ref] = {}  # those of held types
        self._packed: dict[tuple[Any, ...], Ref] = {}

    # --- values -----------------------------------------------------------------------------------
    def value(self, name: str) -> Value:
        """The tensor `name`: lowered already, a partition input, or a constant of the graph."""
        v = self.values.get(name)
        if v is None:
            v = self._constant(name)
            self.values[name] = v
        return v

    def optional(self, name: str | None) -> Value | None:
        """The value, or None for an absent optional input."""
        return self.value(name) if name else None

    def _constant(self, name: str) -> Value:
        if not self.graph.is_const(name):
            raise Unsupported(f"the type of '{name}' is not known")
        dtype, shape = self.graph.dtype(name), self.graph.shape(name)
        dt = self.held(element_type(name, dtype))
        if shape is None or any(not isinstance(d, int) for d in shape):
            raise Unsupported(f"constant '{name}' has no static shape")
        dims: Dims = tuple(int(d) for d in shape if isinstance(d, int))
        v = Value(name, dt, dims, initializer=name)
        if int(math.prod(int(d) for d in shape if isinstance(d, int))) * dt.size <= CONTENT_LIMIT:
            v.data = self.graph.const(name)
            if v.data is not None and self.is_held(v):
                v.data = v.data.astype(np.float32)
            if v.data is not None and dt in (DType.I64, DType.I32) and v.data.size <= 64:
                v.ints = tuple(int(x) for x in v.data.reshape(-1))
            if v.data is not None and dt in (DType.I64, DType.I32) and v.data.size > 1:
                v.affine = _affine(v.data)
        return v

    def held(self, dtype: DType) -> DType:
        """The type in which values of this type lie."""
        return DType.F32 if dtype in self.target.held else dtype

    def given_type(self, v: Value) -> DType:
        """The type that the value has in the model, or else lies in."""
        dtype = self.graph.dtype(v.initializer or v.name)
        return next((t for t in self.target.held if int(t) == dtype), v.dtype)

    def is_held(self, v: Value) -> bool:
        """Whether the value has another type in the model."""
        return self.given_type(v) != v.dtype

    def as_given(self, v: Value) -> tuple[Ref, DType]:
        """Contiguous storage of a constant, and its type: that of the model where it can be."""
        if v.view is None and v.initializer:
            return self.plan.initializer(v.initializer), self.given_type(v)
        return self.plain(v), v.dtype

    def converted(self, x: View, v: Value, to: DType) -> Ref:
        """The elements of `v`, which lie so in the type that it has in the model or in `v`, made
        contiguous in another type.
        """
        y = self.plan.arena(D.mul(v.elements, to.size))
        self._convert(x, v.shape, self.given_type(v), y, to)
        return y

    def _convert(self, x: View, shape: Dims, given: DType, y: Ref, to: DType) -> None:
        ints: dict[str, DimLike] = {"x0_dtype": int(given), "y_dtype": int(to)}
        rows = pad_rows(merge_dims(shape, [x.strides, contiguous(shape)]), 6, 2)
        for k, (n, steps) in enumerate(rows):
            ints |= {f"n{k}": n, f"x0_{k}": steps[0]}
        same = compile_program(Expr(1, (), 0), type="f32", joins=True)
        self.plan.launch("pointwise", {"x0": x.ref}, {"y": y}, ints, None, same)

    def define(self, name: str, dtype: DType, shape: Sequence[DimLike]) -> Value:
        """Declare the output of an op. A run fails in which one of its dims is negative."""
        if D.too_deep(shape):
            raise Unsupported(
                f"the sizes of '{name.partition(chr(0))[0]}' follow from too many others"
            )
        for axis, d in enumerate(shape):
            if not D.never_negative(d):
                self.at_least(d, 0, f"axis {axis} of '{name.partition(chr(0))[0]}'")
        v = Value(name, dtype, tuple(shape))
        self.values[name] = v
        return v

    def forward(self, x: Value, name: str) -> None:
        """Define `name` as the same value: its storage, constant and integers."""
        self.materialize(x)
        out = self.define(name, x.dtype, x.shape)
        out.view, out.nhwc, out.ints, out.data = x.view, x.nhwc, x.ints, x.data
        out.initializer, out.affine = x.initializer, x.affine

    def define_counted(
        self, name: str, dtype: DType, shape: Sequence[DimLike], axis: int, count: Ref
    ) -> Ref:
        """Declare an output with as many slices along an axis as `count` gets, at most as `shape`
        says; returns where it lies.
        """
        v = self.define(name, dtype, shape)
        ref = self.plan.arena(D.mul(v.elements, dtype.size))
        v.view, v.counted = View(ref, contiguous(v.shape)), Counted(axis, count)
        return ref

    def defer(
        self,
        v: Value,
        kind: str,
        parts: Sequence[Value],
        make: Callable[[], None],
        stage: object = None,
    ) -> None:
        """Leave it to the readers of `v` whether it is made."""
        v.deferred = Deferred(kind, tuple(parts), make, stage)

    def contents(self, name: str, what: str) -> Array:
        """Values of a small constant the Plan may depend on."""
        v = self.value(name)
        if v.data is None:
            raise Unsupported(
                f"{what} '{name}' must be a constant of at most {CONTENT_LIMIT} bytes"
            )
        return v.data

    # what shape functions ask (`shapes.environment.ShapeEnv`)
    def dims(self, name: str) -> Dims:
        """The dims of a value. Raises Unsupported where they are not known."""
        return self.value(name).shape

    def content(self, name: str) -> Array | None:
        """The elements of a short constant or computed shape tensor; None when not known."""
        v = self.value(name)
        if v.sizes is not None:
            return v.sizes
        if v.ints is not None:
            return objects(v.ints).reshape([int(d) for d in v.shape if isinstance(d, int)])
        return (
            None if v.data is None else objects(v.data.reshape(-1).tolist()).reshape(v.data.shape)
        )

    def count(self, name: str) -> DimLike:
        """How many elements the value has."""
        return self.value(name).elements

    def meet(self, d: DimLike, e: DimLike) -> DimLike:
        """The other where one symbol is 1, which only a run knows."""
        return D.select(D.equal(d, 1), e, d)

    def available(self, family: str, kind: str) -> None:
        """Refuse an operator whose family of kernels the backend lacks."""
        if family not in self.target.families:
            raise Unsupported(
                f"no {self.plan.backend} kernel computes {kind}; ONNX Runtime's own runs it"
            )

    def require(self, v: Value, what: str) -> None:
        """Refuse a tensor whose element type the backend's compute kernels do not take."""
        if v.dtype not in self.target.types:
            raise Unsupported(
                f"{what} '{v.name}' has type {v.dtype.name}; the {self.plan.backend} kernels take"
                f" {', '.join(sorted(t.name for t in self.target.types))}"
            )

    def same(self, a: DimLike, b: DimLike, what: str) -> None:
        """Sizes that ONNX wants to be equal: where only a run knows them, it compares them and
        fails with `what` and both.
        """
        if not self.plan.require(a, b, what):
            raise Unsupported(f"{what} differ: {a} and {b}")

    def multiple(self, a: DimLike, of: int, what: str) -> None:
        """A size that ONNX wants to be a multiple of a positive number."""
        if of < 1 or (isinstance(a, int) and a % of):
            raise Unsupported(f"{what} is {a}, not a multiple of {of}")
        if factor(a) % of:
            self.same(
                D.mul(D.floordiv(a, of), of),
                a,
                f"{what}, rounded down to a multiple of {of}, and its size",
            )

    def at_least(self, a: DimLike, least: DimLike, what: str) -> None:
        """A size that ONNX wants to be no less."""
        if not self.plan.require_at_least(a, least, what):
            raise Unsupported(f"{what} is {a}, less than {least}")

    # --- storage ----------------------------------------------------------------------------------
    def add_outputs(self, names: Sequence[str]) -> None:
        """Declare the outputs of the partition."""
        for n in names:
            to = self._narrow if self.graph.dtype(n) in self.target.held else self._outputs
            to[n] = self.plan.add_output(n)

    def add_input(self, name: str, dtype: DType, rank: int) -> Ref:
        """Declare an input of the partition, which has its type in the model."""
        return self.plan.add_input(name, self.given_type(Value(name, dtype, ())), rank)

    def lies_at(self, v: Value, ref: Ref) -> None:
        """An input of the partition lies there, contiguous."""
        v.view = View(ref, contiguous(v.shape))
        if self.is_held(v):
            v.view = View(self.converted(v.view, v, v.dtype), v.view.strides)

    def new_plain(self, v: Value) -> Ref:
        """Give `v` contiguous row-major storage that the next launch fills."""
        target = v.name if v.name in self._outputs else self.alias.get(v.name, "")
        ref = self._outputs[target] if target else self.plan.arena(D.mul(v.elements, v.dtype.size))
        v.view = View(ref, contiguous(v.shape))
        return ref

    def is_given_storage(self, name: str) -> bool:
        """Whether it is said where the value will lie, in what order."""
        return name in self._outputs or name in self.alias

    def relabelled(self, part: str, name: str) -> None:
        """`part` will have the elements of `name` in their order: it is written where that lies."""
        if target := name if name in self._outputs else self.alias.get(name, ""):
            self.alias[part] = target

    def new_nhwc(self, v: Value) -> Nhwc:
        """Give the image `v` channels-last storage with the zero border its readers need."""
        n, _, h, w = v.image()
        c = v.channels
        if v.name in self.slots:
            whole, first = self.slots[v.name]
            base = self._concat_storage(whole, v)
            v.nhwc = Nhwc(base.ref.at(v.dtype.size * first), base.cs, base.rs, base.ns, base.border)
            return v.nhwc
        v.nhwc = self.images(v.dtype, n, c, h, w, self.borders.get(v.name, (0, 0, 0, 0)))
        return v.nhwc

    def images(
        self,
        dtype: DType,
        n: DimLike,
        c: int,
        h: DimLike,
        w: DimLike,
        border: Border = (0, 0, 0, 0),
        pitch: int = 0,
    ) -> Nhwc:
        """New channels-last storage. pitch: elements from a pixel to the next, 0 for the usual."""
        t, left, b, r = border
        cs = pitch or self.target.channel_pitch(c)
        rs = D.mul(w + (left + r), cs)
        ns = D.mul(h + (t + b), rs)
        ref = self.plan.arena(D.mul(D.mul(n, ns), dtype.size))
        inner = ref.at(D.mul(D.mul(rs, t) + left * cs, dtype.size))
        out = Nhwc(inner, cs, rs, ns, border)
        if any(border):
            ints = {"N": n, "H": h, "W": w, "PT": t, "PL": left, "PB": b, "PR": r}
            if dtype not in self.target.types:  # of bfloat16 two at a time, as zeros of f32
                ints |= {k: D.floordiv(d, 2) for k, d in out.pitches("y").items()}
                dtype = DType.F32
            else:
                ints |= out.pitches("y")
            self.plan.launch("zero_border", {}, {"y": inner}, ints, whole=False, dtype=dtype)
        return out

    def _concat_storage(self, whole: str, part: Value) -> Nhwc:
        if whole not in self.concats:
            n, _, h, w = part.image()
            channels = self.concat_channels[whole]
            self.concats[whole] = self.images(
                part.dtype, n, channels, h, w, self.borders.get(whole, (0, 0, 0, 0))
            )
        return self.concats[whole]

    #: Total channels of each concatenation in `slots`.
    concat_channels: dict[str, int]

    def plain(self, v: Value) -> Ref:
        """Contiguous row-major storage of `v`, converting if it lies elsewhere."""
        return self.strided(v, exact=contiguous(v.shape)).ref

    def run(
        self,
        family: str,
        inputs: Mapping[str, Value | Ref | None],
        out: Value,
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float] | None = None,
        *,
        dtype: DType = DType.F32,
        whole: bool = True,
    ) -> None:
        """One launch that reads contiguous values, and makes `out` one. Kernels are compiled for
        the types that they compute in; a parameter says what other type they read.
        """
        refs = {k: self.plain(v) if isinstance(v, Value) else v for k, v in inputs.items()}
        y, dtype = self.new_plain(out), dtype if dtype in self.target.types else DType.F32
        self.plan.launch(family, refs, {"y": y}, ints, floats, whole=whole, dtype=dtype)

    def run_image(
        self,
        family: str,
        src: Nhwc,
        dst: Nhwc,
        dtype: DType,
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float] | None = None,
        **operands: Ref | None,
    ) -> None:
        """One launch from images to images."""
        ints = {**ints, **src.pitches("x"), **dst.pitches("y")}
        operands = {"x": src.ref, **operands}
        self.plan.launch(family, operands, {"y": dst.ref}, ints, floats, whole=False, dtype=dtype)

    def materialize(self, v: Value) -> None:
        """Make a deferred tensor now."""
        if v.deferred is None or v.view is not None:
            return
        make, v.deferred = v.deferred.make, None
        make()
        made = self.values[v.name]  # `make` may have defined it anew, and left it to its reader
        if made is not v:
            self.materialize(made)
        v.view, v.nhwc = made.view, made.nhwc
        self.values[v.name] = v

    def strided(self, v: Value, exact: Dims | None = None) -> View:
        """`v` as a strided view; `exact` demands these strides."""
        self.materialize(v)
        if v.view is not None and (exact is None or same_strides(v.view.strides, exact, v.shape)):
            return v.view
        if v.view is not None:
            old = v.view
            self.copy(old, self.fresh(v), v.shape, v.dtype)
        elif v.nhwc is not None:
            src, to = v.nhwc, self.fresh(v).ref
            ints = v.nchw() | src.pitches("x")
            self.plan.launch("nhwc_to_nchw", {"x": src.ref}, {"y": to}, ints, dtype=v.dtype)
        elif v.ints is not None and v.data is None:
            self._store_ints(v)
        elif v.initializer:
            v.view = View(self.plan.initializer(v.initializer), contiguous(v.shape))
            if self.is_held(v):
                v.view = View(self.converted(v.view, v, v.dtype), v.view.strides)
        elif v.data is not None:
            v.view = View(self.plan.blob(v.data), contiguous(v.shape))
        else:
            raise AssertionError(f"value {v.name} is not stored")
        return self.strided(v, exact)

    def as_view(self, v: Value, *, channels_last: bool = False) -> View:
        """`v` as a strided view for a reader to whom the order of its axes in memory does not
        matter; channels_last: that reads channels one after another.
        """
        anywhere = self.target.launch_bound or channels_last
        if v.view is None and v.nhwc is not None and anywhere:
            return View(
                v.nhwc.ref, (v.nhwc.ns, 1, *((v.nhwc.rs,) if v.rank == 4 else ()), v.nhwc.cs)
            )
        return self.strided(v)

    def fresh(self, v: Value) -> View:
        """New contiguous storage for a tensor of that shape and type."""
        self.new_plain(v)
        assert v.view is not None
        return v.view

    def _store_ints(self, v: Value) -> None:
        assert v.ints is not None
        if len(v.ints) > 8 and D.is_static(v.ints):
            data = np.array(v.ints, numpy_type(int(v.dtype)))
            v.view = View(self.plan.blob(data), contiguous(v.shape))
            return
        if v.dtype not in (DType.I64, DType.I32, DType.BOOL) or len(v.ints) > 8:
            raise Unsupported(
                f"'{v.name}' holds {len(v.ints)} computed dims of type {v.dtype.name};"
                " a Plan stores at most 8 integers"
            )
        ref = self.new_plain(v)
        self.plan.launch(
            "store_ints",
            {},
            {"y": ref},
            {
                "count": len(v.ints),
                "dtype": int(v.dtype),
                **{f"v{k}": d for k, d in enumerate(v.ints)},
            },
        )

    def copy(self, src: View, dst: View, shape: Dims, dtype: DType, *, whole: bool = True) -> None:
        """Strided copy; adjacent dims that are contiguous on both sides are merged, at most 6
        remain.
        """
        rows = merge_dims(shape, [src.strides, dst.strides])
        if len(rows) > 6:
            raise Unsupported(f"the copy needs {len(rows)} separate dims; the kernel takes 6")
        rows = pad_rows(rows, 6, 2)
        ints: dict[str, DimLike] = {"elem": dtype.size}
        for k, (n, s) in enumerate(rows):
            ints |= {f"n{k}": n, f"x{k}": s[0], f"y{k}": s[1]}
        self.plan.launch("copy", {"x": src.ref}, {"y": dst.ref}, ints, whole=whole)

    def copy_all(self, to: View, dtype: DType, parts: Sequence[tuple[View, DimLike, Dims]]) -> None:
        """Strided copies (from, first element of `to`, shape) that do not overlap: in one launch
        those of few dims, where the target can.
        """
        few: list[tuple[Ref, dict[str, DimLike]]] = []
        for k, (src, at, shape) in enumerate(parts):
            rows = merge_dims(shape, [src.strides, to.strides]) or [(1, [1, 1])]
            if (
                "copies" not in self.target.families
                or len(rows) > 3
                or rows[-1][1][1] != 1
                or _is_transposed(rows)
                or (k == len(parts) - 1 and not few)
            ):
                self.copy(
                    src,
                    View(to.ref.at(D.mul(at, dtype.size)), to.strides),
                    shape,
                    dtype,
                    whole=False,
                )
                continue
            dims: dict[str, DimLike] = {"at": at}
            for j, (n, (x, y)) in enumerate(pad_rows(rows, 3, 2)):
                dims |= {f"n{j}": n, f"x{j}": x, **({f"y{j}": y} if j < 2 else {})}
            few.append((src.ref, dims))
        for first in range(0, len(few), COPIES):
            group = few[first : first + COPIES]
            ints: dict[str, DimLike] = {"elem": dtype.size}
            for k, (_, dims) in enumerate(group):
                ints |= {f"p{k}_{name}": d for name, d in dims.items()}
            sources = {f"x{k}": source for k, (source, _) in enumerate(group)}
            self.plan.launch("copies", sources, {"y": to.ref}, ints, whole=False)

    def nhwc(self, v: Value, border: Border = (0, 0, 0, 0), *, stem: bool = False) -> Nhwc:
        """`v` channels-last with at least this zero border.

        `stem` allows a smaller pitch of up to 4 channels.
        """
        if v.nhwc is not None and all(
            have >= want for have, want in zip(v.nhwc.border, border, strict=True)
        ):
            return v.nhwc
        n, _, h, w = v.image()
        self.require(v, "an image")
        c = v.channels
        if v.nhwc is None and h == 1 and w == 1 and not any(border) and (c % 16 == 0):
            ref = self.plain(v)  # a 1x1 image is the same bytes in both layouts
            v.nhwc = Nhwc(ref, c, c, c, (0, 0, 0, 0))
            return v.nhwc
        lying = image_in(v) if v.nhwc is None else None
        if (
            lying is not None
            and not any(border)
            and isinstance(lying.cs, int)
            and lying.cs >= self.target.channel_pitch(c)
            and all(factor(s) % self.target.vector == 0 for s in (c, lying.cs, lying.rs, lying.ns))
        ):
            v.nhwc = lying
            return lying
        both = wider(border, self.borders.get(v.name))
        if c <= 4 and self.target.border:
            pitch: DimLike = c if stem else D.round_up(c, 16)
        else:
            # 4 of f32 are 16 bytes
            pitch = 4 if stem and c <= 4 and v.dtype.size == 4 else self.target.channel_pitch(c)
        old = v.nhwc or lying
        new = self.images(v.dtype, n, c, h, w, both, int(pitch) if isinstance(pitch, int) else 0)
        ints = v.nchw() | new.pitches("y")
        if old is not None:
            family, source = "copy_nhwc", old.ref
            ints |= old.pitches("x")
        else:
            family, source = "nchw_to_nhwc", self.plain(v)
        self.plan.launch(family, {"x": source}, {"y": new.ref}, ints, whole=False, dtype=v.dtype)
        v.nhwc = new
        return new

    def finish(self) -> None:
        """Bring every output of the partition to its buffer."""
        for name, ref in self._outputs.items():
            v = self.value(name)
            if v.counted is not None and v.view is not None:
                where = v.view.ref.buffer, v.counted.count.buffer
                self.plan.finish_output(name, v.dtype, v.shape, (v.counted.axis, *where))
                continue
            goal = contiguous(v.shape)
            if v.view is None and v.nhwc is not None:
                self.strided(v)
            if v.view is None and v.ints is not None and v.data is None:
                self._store_ints(v)
            view = self.strided(v)
            if view.ref != ref or not same_strides(view.strides, goal, v.shape):
                self.copy(view, View(ref, goal), v.shape, v.dtype)
            self.plan.finish_output(name, v.dtype, v.shape)
        for name, ref in self._narrow.items():
            v = self.value(name)
            to = self.given_type(v)
            self._convert(View(self.plain(v), contiguous(v.shape)), v.shape, v.dtype, ref, to)
            self.plan.finish_output(name, to, v.shape)

    # --- weights in the order that kernels read ---------------------------------------------------
    def packed(
        self,
        family: str,
        inputs: Mapping[str, Ref | None],
        params: Mapping[str, int],
        floats: Mapping[str, float] | None = None,
        *,
        dtype: DType = DType.F32,
    ) -> Ref:
        """Result of a packing family in elements of `dtype` (a bias is always f32), shared by equal
        requests: prepared once where the operands are constants, else in every run.
        """
        if dtype not in (DType.F32, DType.F16, DType.BF16):
            raise Unsupported(f"weights of type {dtype.name}")
        given = sorted((k, v) for k, v in inputs.items() if v is not None)
        key = (
            family,
            dtype,
            repr(given),
            repr(sorted(params.items())),
            repr(sorted((floats or {}).items())),
        )
        if key not in self._packed:
            size = (
                1
                if "int8" in family
                else DType.BF16.size
                if "bf16" in family
                else DType.F32.size
                if family == "pack_bias"
                else dtype.size
            )
            widened = family == "pack_conv2d" and self.target.group_packing and dtype.size == 2
            by_rows = "int8" in family and not self.target.border
            count = (packed_rows if by_rows else packed_elements)(family, **params)
            count += widened_elements(**params) if widened else 0
            ref = self.plan.arena(size * count)
            if not all(self.plan.is_constant(r) for _, r in given):
                zeros: dict[str, DimLike] = {"elem": size, "count": count, "value": 0}
                self.plan.launch("fill", {}, {"y": ref}, zeros, whole=False)
            self.plan.launch(family, inputs, {"packed": ref}, params, floats, dtype=dtype)
            self._packed[key] = ref
        return self._packed[key]


def wider(a: Border, b: Border | None) -> Border:
    """A border as wide as both."""
    if b is None:
        return a
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def _is_transposed(rows: list[tuple[DimLike, list[DimLike]]]) -> bool:
    """Whether a copy should go through tiles: its source jumps along the last dim, but not along
    another.
    """
    return rows[-1][1][0] not in (0, 1) and any(x == 1 for _, (x, _) in rows[:-1])


def _affine(data: Array) -> View | None:
    """Integers that are a start and a step along each axis."""
    origin = data.reshape(-1)[0]
    steps = [
        int(np.take(data, 1, axis).reshape(-1)[0] - origin) if n > 1 else 0
        for axis, n in enumerate(data.shape)
    ]
    grid = np.indices(data.shape)
    if not np.array_equal(origin + sum(g * s for g, s in zip(grid, steps, strict=True)), data):
        return None
    return View(Ref(-1, int(origin)), tuple(steps))


def element_type(name: str, dtype: int | None) -> DType:
    """The DType of an ONNX element type. Raises Unsupported for types without kernels."""
    try:
        return DType(dtype or 0)
    except ValueError:
        raise Unsupported(f"'{name}' has element type {dtype}, which no kernel reads") from None


def matrix_rows(ctx: Lowering, v: Value) -> tuple[Ref, DimLike]:
    """`v` as a matrix [rows, last]: pointer and row pitch.

    A view whose leading dims chain is read in place.
    """
    view = ctx.strided(v)
    last, lead = v.shape[-1], v.shape[:-1]
    if view.strides[-1] == 1 or last == 1:
        merged = merge_dims(lead, [view.strides[:-1]])
        if not merged:
            return view.ref, last
        if len(merged) == 1:
            return view.ref, merged[0][1][0]
    return ctx.plain(v), last

"""Reductions over one axis, and argmax; `common/axis_layout.py` defines the layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common import axis_layout
from ..common.epilogue import Parameter
from ..common.instantiate import entry, instance, ints, invoke, pointer
from ..common.launch import known, parameters, size_hint, static
from ..common.prelude import C_TYPES
from . import columns

_KINDS = (
    "kSum",
    "kMean",
    "kMax",
    "kMin",
    "kProd",
    "kL1",
    "kL2",
    "kSumSquare",
    "kLogSum",
    "kLogSumExp",
)
_FLOATS = (DType.F32, DType.F16, DType.BF16)
#: Longest row (bytes) that a warp reduces.
_WARP_ROW = 4096
#: Rows of a CTA: (most bytes, threads), and threads for a symbolic length; CTAs per SM; least bytes
#: for each CTA that shares a row, with fewer rows than SMs and otherwise; most CTAs per row.
_BLOCKS, _BLOCK, _RESIDENT, _PART, _LARGE_PART, _MOST = (
    ((8192, 128), (65535, 256), (1 << 31, 512)),
    256,
    4,
    24576,
    98304,
    512,
)
_LONG = 1 << 32
#: Column layout: threads of a CTA, CTAs per SM, least elements per thread, most CTAs per column.
_COLUMN_BLOCK, _COLUMN_RESIDENT, _COLUMN_PART, _COLUMN_MOST = 512, 4, 4, 256
#: Flat layout: longest column; threads of a CTA, and from _MANY threads per SM on (short CTAs end
#: before the next ones can start).
_FLAT, _FLAT_BLOCK, _FLAT_LARGE, _MANY = 64, 128, 256, 2048
#: Unaligned columns (reduce/columns.py): shortest column in elements; up to _FLAT_COLUMN bytes the
#: flat layout is preferred where it applies.
_UNALIGNED_COLUMN, _FLAT_COLUMN = 17, 48
#: Unaligned columns with symbolic outer: matrices per SM to assume, enough that no CTAs share a
#: column; threads per SM from which on this layout is used.
_UNKNOWN, _ENOUGH = 8, 512
#: Column layout with clusters: cluster size, CTAs per SM, most elements per thread.
_CLUSTER, _CLUSTER_RESIDENT, _CLUSTER_MOST = 8, 2, 32


@dataclass(frozen=True)
class _Reduction:
    """policy: the class of reduce.cuh; held: bytes of its state; live: 0 where nothing is
    launched, else 1.
    """

    request: Request
    symbol: str
    policy: str
    element: DType
    result: str
    held: int
    live: DimLike

    @property
    def sizes(self) -> tuple[DimLike, DimLike, DimLike]:
        return (
            parameters(self.request)["outer"],
            parameters(self.request)["n"],
            parameters(self.request)["inner"],
        )

    @property
    def aligned(self) -> bool:
        return "x" not in self.request.unaligned

    def kernels(self) -> list[Kernel]:
        outer, n, inner = self.sizes
        small = axis_layout.staged(self.element, n, inner, self.aligned)
        found, unaligned = self._unaligned_columns() if small == 0 else ([], 0)
        if unaligned == 1:
            return found
        if unaligned == 0:
            small = D.maximum(
                small, axis_layout.staged_wide(self.request, self.element, outer, n, inner)
            )
        found.append(self._staged(small))
        if known(inner) == 1:
            short = axis_layout.up_to(n, _WARP_ROW // self.element.size)
            found += [
                self._warps(D.mul(short, axis_layout.negated(small))),
                *self._blocks(D.mul(axis_layout.negated(short), axis_layout.negated(small))),
            ]
        else:
            found += self._columns(axis_layout.negated(D.maximum(small, unaligned)))
        return [k for k in found if k.grid[0] != 0]

    def _kernel(
        self,
        block: int,
        body: str,
        grid: DimLike,
        parts: DimLike,
        scratch: DimLike | None = None,
        cluster: int = 1,
    ) -> list[Kernel]:
        """The kernel and, with `scratch` (bytes), a second one that combines the states that its
        CTAs stored.
        """
        outer, _, inner = self.sizes
        given = operands(
            C_TYPES[self.element], self.result, scratch is not None, *self.sizes, parts
        )
        rows = known(inner) == 1
        join = f"combine_{'parts' if rows else 'columns'}<Policy, 256>"
        call = f"pdl_launch_dependents();\n  {join}(x, y, held, outer, n, inner, parts);"
        symbol = f"{self.symbol}_parts"
        first = instance(
            self.request,
            self.symbol,
            "reduce/columns",
            given,
            D.mul(grid, self.live),
            block,
            f"pdl_launch_dependents();\n  {body}",
            dtype=self.element if self.element in _FLOATS else DType.F32,
            text=f"typedef {self.policy} Policy;\n",
            after="" if scratch is None else entry(symbol, given, 256, call),
            cluster=cluster,
            scratch=() if scratch is None else (scratch,),
        )
        if scratch is None:
            return [first]
        results = D.ceildiv(D.mul(outer, inner), 8 if rows else 32)
        results = D.product([results, D.less(1, parts), D.less(0, first.grid[0])])
        return [first, replace(first, symbol=symbol, grid=(results, 1, 1), block=256, cluster=1)]

    def _staged(self, use: DimLike) -> Kernel:
        outer, n, inner = self.sizes
        each, grid, lanes = axis_layout.staged_columns(self.request, self.element, outer, n, inner)
        threads = axis_layout.STAGED_THREADS
        forms = ("Policy", axis_layout.STAGE_BYTES, lanes, threads)
        body = invoke("reduce_staged", forms, f"x, y, outer, {literals(n, inner)}, parts")
        return self._kernel(threads, body, D.mul(grid, use), each)[0]

    def _rows(self, v: int, lanes: int, block: int, parts: DimLike, use: DimLike) -> list[Kernel]:
        outer = self.sizes[0]
        places = "nullptr, outer, n, 1" if parts == 1 else "held, outer, n, parts"
        body = f"reduce_rows<Policy, {v}, {lanes}, {block}>(x, y, {places});"
        grid = D.mul(D.ceildiv(D.mul(outer, parts), block // lanes), use)
        return self._kernel(
            block,
            body,
            grid,
            parts,
            None if parts == 1 else D.product([outer, parts, self.held, use]),
        )

    def _warps(self, use: DimLike) -> Kernel:
        n, widest = self.sizes[1], 16 // self.element.size
        v = axis_layout.direct(self.element, n, self.aligned)
        lanes = 32
        if known(n) is not None:
            lanes = axis_layout.power_of_two(-(-int(n) // (2 * (v or widest))), 1 if v else 16, 32)
        return self._rows(v or widest, lanes, 128, 1, use)[0]

    def _blocks(self, use: DimLike) -> list[Kernel]:
        outer, n, _ = self.sizes
        bytes = D.mul(n, self.element.size)
        block = next((b for most, b in _BLOCKS if (known(bytes) or _LONG) <= most), _BLOCK)
        part = _PART if known(D.less(outer, self.request.sms)) != 0 else _LARGE_PART
        share = D.minimum(
            D.floordiv(self.request.sms * _RESIDENT, D.maximum(outer, 1)),
            D.floordiv(n, part // self.element.size),
        )
        return self._rows(
            16 // self.element.size, block, block, D.maximum(D.minimum(share, _MOST), 1), use
        )

    def _columns(self, use: DimLike) -> list[Kernel]:
        outer, n, inner = self.sizes
        if w := axis_layout.flat(self.request, self.element, outer, n, inner, self.aligned, _FLAT):
            units = D.mul(outer, D.floordiv(inner, w))
            many = known(D.less(units, self.request.sms * _MANY)) == 0
            several = (
                4
                if int(n) <= 2
                else 2
                if int(n) <= 4 or (many and int(n) <= 8 and w * self.element.size <= 4)
                else 1
            )
            block = _FLAT_LARGE if many else _FLAT_BLOCK
            forms = ("Policy", w, several, block)
            body = invoke("reduce_flat", forms, f"x, y, outer, {literals(n, inner)}")
            return self._kernel(block, body, D.mul(D.ceildiv(units, several * block), use), 1)
        w, across = axis_layout.columns(self.element, inner, self.aligned)
        length = known(n)
        down = (
            _COLUMN_BLOCK // across
            if length is None
            else axis_layout.power_of_two(
                -(-length // _COLUMN_PART), max(64 // across, 1), _COLUMN_BLOCK // across
            )
        )
        tiles = axis_layout.column_tiles(outer, inner, w, across)
        blocks, few = self._column_clusters(tiles, down)
        rest = D.mul(axis_layout.negated(few), use)
        share = D.minimum(
            D.floordiv(self.request.sms * _COLUMN_RESIDENT, D.maximum(tiles, 1)),
            D.floordiv(n, down * _COLUMN_PART),
        )
        parts = D.maximum(D.minimum(share, _COLUMN_MOST), 1)
        places = "nullptr, outer, n, inner, 1" if parts == 1 else "held, outer, n, inner, parts"
        head = f"reduce_columns<Policy, {w}, {across}, {across * down}"
        found = []
        if few != 0:
            body = f"{head}, {blocks}>(x, y, nullptr, outer, n, inner, {blocks});"
            found += self._kernel(
                across * down, body, D.product([tiles, blocks, few, use]), blocks, cluster=blocks
            )
        scratch = None if parts == 1 else D.product([outer, parts, inner, self.held, rest])
        return found + self._kernel(
            across * down,
            f"{head}, 1>(x, y, {places});",
            D.product([tiles, parts, rest]),
            parts,
            scratch,
        )

    def _unaligned_columns(self) -> tuple[list[Kernel], DimLike]:
        """(kernels, use) of the layout of reduce/columns.py. use: 0 where it does not apply or
        another one is better; with symbolic outer, whether there are enough threads for all SMs.
        """
        size = self.element.size
        n, inner = (known(d) or 0 for d in self.sizes[1:])
        outer, sms = self.sizes[0], self.request.sms
        given = size_hint(outer, -1)
        count = sms * _UNKNOWN if given < 0 else given
        if (
            not self.aligned
            or count == 0
            or n < _UNALIGNED_COLUMN
            or inner <= 1
            or (inner + 1) * size < 16
            or self.policy == "Fold<kLogSumExp>"
        ):
            return [], 0
        if n * size <= _FLAT_COLUMN and axis_layout.flat(
            self.request, self.element, count, n, inner, True, _FLAT
        ):
            return [], 0
        s = columns.tiling(count, n, inner, size, self.held, sms, self.request.caps.cluster)
        use = (
            D.less(sms * _ENOUGH - 1, D.mul(D.ceildiv(D.mul(outer, s.tiles), s.teams), s.threads))
            if given < 0
            else 1
        )
        return self._tiled(s, use), use

    def _tiled(self, s: Any, use: DimLike) -> list[Kernel]:
        outer, _, inner = self.sizes
        v, cluster = 16 // self.element.size, s.parts if s.cluster else 1
        scratch = D.product([outer, s.parts, inner, self.held]) if s.parts > cluster else None
        even = int(inner) % v == 0
        forms = ("Policy", v, s.lanes, s.down, s.teams, s.depth, cluster, even)
        places = (
            f"{'nullptr' if scratch is None else 'held'}, outer, n, {inner}, {s.wide}, {s.parts}"
        )
        grid = D.mul(D.ceildiv(D.mul(outer, s.tiles * s.parts), s.teams), use)
        return self._kernel(
            s.threads,
            invoke("reduce_unaligned_columns", forms, f"x, y, {places}"),
            grid,
            s.parts,
            scratch,
            cluster,
        )

    def _column_clusters(self, tiles: DimLike, down: int) -> tuple[int, DimLike]:
        """(CTAs of a cluster that shares a tile of columns, use). use (0 or 1): whether columns are
        few, and neither too short nor too long for one launch.
        """
        n, sms = self.sizes[1], self.request.sms * _CLUSTER_RESIDENT
        if self.request.arch < 90:
            return 1, 0
        share, length = (
            min(
                1 << max(sms // max(size_hint(tiles, sms // _CLUSTER), 1), 1).bit_length() - 1,
                _CLUSTER,
            ),
            known(n),
        )
        share = self.request.caps.largest_cluster(share)
        while share > 1 and length is not None and length < share * down * _COLUMN_PART:
            share //= 2
        if share == 1:
            return 1, 0
        fits = D.mul(
            D.less(share * down * _COLUMN_PART - 1, n),
            axis_layout.up_to(n, share * down * _CLUSTER_MOST),
        )
        return share, D.mul(fits, axis_layout.up_to(tiles, sms // share))


def operands(
    element: str,
    result: str,
    held: bool,
    outer: DimLike,
    n: DimLike,
    inner: DimLike,
    parts: DimLike,
) -> list[Parameter]:
    """Parameters of a kernel over an axis. held: with the states that CTAs store in scratch."""
    return [
        pointer(f"const {element}", "x"),
        pointer(result, "y"),
        *([pointer("Policy::State", "scratch0", "held")] if held else []),
        *ints({"outer": outer, "n": n, "inner": inner, "parts": parts}),
    ]


def literals(n: DimLike, inner: DimLike) -> str:
    """C++ text of both sizes (`axis_layout.literal`)."""
    return f"{axis_layout.literal(n, 'n')}, {axis_layout.literal(inner, 'inner')}"


def _element(request: Request) -> DType:
    return DType(static(parameters(request)["dtype"], "element type"))


def reduce(request: Request) -> list[Kernel]:
    dtype, kind = _element(request), _KINDS[static(parameters(request)["kind"], "reduction")]
    if dtype in _FLOATS:
        return _Reduction(
            request, "reduce", f"Fold<{kind}>", dtype, "T", 8 if kind == "kLogSumExp" else 4, 1
        ).kernels()
    if dtype not in (DType.I64, DType.I32) or kind not in ("kSum", "kMax", "kMin", "kProd"):
        raise NoKernel(f"a reduction of kind {kind[1:]} over {dtype.name}")
    e = C_TYPES[dtype]
    return _Reduction(request, "reduce", f"FoldInt<{kind}, {e}>", dtype, e, dtype.size, 1).kernels()


def argmax(request: Request) -> list[Kernel]:
    dtype = _element(request)
    if dtype not in (*_FLOATS, DType.I64, DType.I32):
        raise NoKernel(f"an argmax over {dtype.name}")
    flags = ", ".join("true" if parameters(request)[k] else "false" for k in ("min", "last"))
    # an empty axis has no extremum
    some = axis_layout.negated(D.equal(parameters(request)["n"], 0))
    policy = f"Extremum<{C_TYPES[dtype]}, {flags}>"
    return _Reduction(
        request, "argmax", policy, dtype, "i64", 16 if dtype == DType.I64 else 8, some
    ).kernels()


FAMILIES = {"reduce": reduce, "argmax": argmax}

"""Kernels for ranges of a symbolic size.

The best kernel depends on sizes, and models are exported with a batch that only a run knows.
`ranged` emits a request for a range of its symbol. Within the range `known` answers what holds for
all of it, and `size_hint` gives a representative value for the cost model. Where an answer changes
within the range, the range is divided there and each part is emitted by itself. Neighbouring parts
with equal kernels are joined; the grid of a kernel is empty outside its range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.scoped_value import override

#: Ranges are not divided above that size.
_MOST = 1 << 18
#: A number to choose by stands for a range up to so many times as long as short.
_WIDE = 2
#: What a size or a product of sizes may be.
_UNKNOWN = (-(1 << 62), 1 << 62)

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Range:
    """Values of one symbol, both ends included."""

    symbol: str
    low: int
    high: int


class _Divided(Exception):
    """The range is to be emitted in two parts, of which the second begins at `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


_now: ContextVar[Range | None] = ContextVar("range", default=None)
#: Where sizes depend on several symbols: those that count images or matrices alone, and values of
#: symbols to choose by.
_counts: ContextVar[frozenset[str]] = ContextVar("counts", default=frozenset())
_likely: ContextVar[Mapping[str, int] | None] = ContextVar("likely", default=None)
#: Parameters that count images or matrices.
_COUNTING = ("N", "B", "B0", "B1")


def within(r: Range) -> AbstractContextManager[None]:
    """Sizes that depend on the symbol alone lie in this range."""
    return override(_now, r)


def known(d: DimLike) -> int | None:
    """`d` when it is a number, in the present range at least."""
    if not isinstance(d, Dim):
        return int(d)
    r = _now.get()
    if r is None or d.symbols != (r.symbol,):
        return None
    low, high = _bounds(d, r, {})
    if low == high:
        return low
    if (low, high) == (0, 1) and 0 < (at := _change(d, r)) <= _MOST:
        raise _Divided(at)
    return None


def resolve(d: DimLike) -> DimLike:
    """`d`, as a number where it is known."""
    number = known(d)
    return d if number is None else number


def size_hint(d: DimLike, usual: int) -> int:
    """Representative value of `d` for the choice of kernels: the lower bound of the present range;
    `usual` without a range. It affects speed only: kernels must be right for every value.
    """
    if not isinstance(d, Dim):
        return int(d)
    r = _now.get()
    if r is None or d.symbols != (r.symbol,):
        likely = _likely.get() or {}
        return max(D.evaluate(d, dict(likely)), 1) if likely.keys() >= set(d.symbols) else usual
    if r.high >= _WIDE * r.low and r.low < _MOST:
        at = 2
        while at <= r.low:
            at *= _WIDE
        raise _Divided(at)
    return max(D.evaluate(d, {r.symbol: r.low}), 1)  # a window may be larger than so small an image


def between(d: DimLike) -> Bounds:
    """Between what numbers `d` lies in the present range."""
    r = _now.get()
    return (
        _bounds(d, r, {})
        if r is not None and isinstance(d, Dim) and d.symbols == (r.symbol,)
        else _UNKNOWN
    )


def at(d: DimLike, value: int) -> AbstractContextManager[None]:
    """Context in which `d`, a multiple of a symbol or of several, has that value."""
    once = _multiple(d)
    if isinstance(d, Dim) and once:
        size = max(value // once, 1)
        return within(Range(d.symbols[0], size, size))
    return _as_if(d, value) if isinstance(d, Dim) and len(d.symbols) > 1 else nullcontext()


def _as_if(d: Dim, value: int) -> AbstractContextManager[None]:
    """Context in which the symbols are alike and `d`, which grows with them, has at least that
    value; those that count images are 1 where there are others.
    """
    counts = _counts.get()
    alike = [s for s in d.symbols if s not in counts] or d.symbols

    def sizes(n: int) -> dict[str, int]:
        return {s: n if s in alike else 1 for s in d.symbols}

    low, high = 1, 2
    while high < _MOST and D.evaluate(d, sizes(high)) < value:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if D.evaluate(d, sizes(middle)) >= value else (middle + 1, high)
    return override(_likely, sizes(low))


def above(d: DimLike, low: int, high: int | None) -> AbstractContextManager[None]:
    """The part of the present range where `d`, if it is a multiple of the symbol, is larger than
    `low` and at most `high`.
    """
    r, once = _now.get(), _multiple(d)
    if isinstance(d, Dim) and once and r is not None and d.symbols == (r.symbol,):
        least, most = (
            max(r.low, low // once + 1),
            r.high if high is None else min(r.high, high // once),
        )
        return within(Range(r.symbol, least, max(least, most)))
    return at(d, high or 2 * low) if isinstance(d, Dim) and len(d.symbols) > 1 else nullcontext()


def _multiple(d: DimLike) -> int:
    """How many times the symbol `d` is; 0 where it is no multiple of one."""
    if not isinstance(d, Dim) or len(d.symbols) != 1:
        return 0
    once = D.evaluate(d, {d.symbols[0]: 1})
    return once if once > 0 and D.evaluate(d, {d.symbols[0]: 1 << 20}) == once << 20 else 0


def _bounds(e: DimLike, r: Range, found: dict[int, Bounds]) -> Bounds:
    """Between what numbers `e` lies (not always the narrowest).

    Dims share parts, so those found are kept.
    """
    if not isinstance(e, Dim):
        return e, e
    if e.op == "sym":
        return r.low, r.high
    if id(e) not in found:
        found[id(e)] = _combined(e.op, [_bounds(a, r, found) for a in e.args])
    return found[id(e)]


def _combined(op: str, args: list[Bounds]) -> Bounds:
    a, b = args[-2:]
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    if op in ("max", "min"):
        pick = max if op == "max" else min
        return pick(a[0], b[0]), pick(a[1], b[1])
    if op == "lt":
        return int(a[1] < b[0]), int(a[0] < b[1])
    if op == "eq":
        return int(a == b and a[0] == a[1]), int(a[0] <= b[1] and b[0] <= a[1])
    if op == "select":
        cond = args[0]
        return (
            b
            if cond == (0, 0)
            else a
            if cond[0] > 0 or cond[1] < 0
            else (min(a[0], b[0]), max(a[1], b[1]))
        )
    if op == "mul":
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if b[0] < 1:
        return _UNKNOWN
    if op == "floordiv":
        ends = [x // y for x in a for y in b]
        return min(ends), max(ends)
    return (a[0] % b[0], a[0] % b[0]) if a[0] == a[1] and b[0] == b[1] else (0, b[1] - 1)


def _change(e: Dim, r: Range) -> int:
    """Value in the range at which a condition changes; 0 where both ends agree."""
    low, high = r.low, r.high
    first = D.evaluate(e, {r.symbol: low})
    if D.evaluate(e, {r.symbol: high}) == first:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if D.evaluate(e, {r.symbol: middle}) == first else (low, middle)
    return high


#: What lies along the rows of operands: extents that may be no multiples of 16 bytes when they are
#: symbolic.
_ALONG = {"matmul": ("M", "N", "K"), "softmax": ("n",), "conv2d": ("IW",), "conv_pool": ("IW",)}


def aligned(request: Request, emit: Callable[[Request], list[Kernel]]) -> list[Kernel]:
    """Kernels that `emit` makes of the request, and those it makes where symbolic rows are
    multiples of 16 bytes, if they differ.
    """
    plain, unit, i = emit(request), 16 // request.dtype.size, request.ints
    planes = request.family in ("matmul", "softmax") or i.get("x_c", 0) not in (0, 1)
    names = sorted(
        {
            s
            for name in _ALONG.get(request.family, ())
            if planes
            for s in D.symbols(i[name])
            if _multiple(i[name])
        }
    )
    if not names:
        return plain
    parts = {s: f"{s} / {unit}" for s in names}
    scaled = {s: D.mul(D.symbol(part), unit) for s, part in parts.items()}
    whole = {part: D.floordiv(D.symbol(s), unit) for s, part in parts.items()}
    even = [
        _replaced(k, whole)
        for k in emit(replace(request, ints={name: D.replaced(d, scaled) for name, d in i.items()}))
    ]
    if [k.source for k in even] == [k.source for k in plain]:
        return plain
    use = D.product([D.equal(D.mod(D.symbol(s), unit), 0) for s in names])
    return dispatch([(use, even), (D.sub(1, use), plain)])


def _replaced(kernel: Kernel, values: Mapping[str, DimLike]) -> Kernel:
    """With these in place of symbols, in all that is evaluated in a run."""

    def of(d: DimLike) -> DimLike:
        return D.replaced(d, values)

    def argument(a: Argument) -> Argument:
        if isinstance(a, TensorMap):
            return replace(
                a,
                pointer=replace(a.pointer, offset=of(a.pointer.offset)),
                dims=tuple(map(of, a.dims)),
                strides=tuple(map(of, a.strides)),
            )
        if isinstance(a, Pointer):
            return replace(a, offset=of(a.offset))
        return replace(a, value=of(a.value)) if isinstance(a, (Int32, Int64)) else a

    grid = (of(kernel.grid[0]), of(kernel.grid[1]), of(kernel.grid[2]))
    return replace(
        kernel,
        grid=grid,
        args=tuple(map(argument, kernel.args)),
        scratch=tuple(map(of, kernel.scratch)),
    )


def ranged(request: Request, emit: Callable[[Request], list[Kernel]]) -> list[Kernel]:
    """Kernels that `emit` makes of the request; for each range of its symbol where there is one
    alone.

    Sizes of 0 have what is emitted without a range.
    """
    symbols = request.symbols
    if len(symbols) != 1:
        with override(
            _counts, frozenset(_names(request, counting=True) - _names(request, counting=False))
        ):
            return emit(request)
    (symbol,) = symbols
    parts: list[tuple[int, list[Kernel]]] = []  # from which size on

    def part(low: int, high: int) -> None:
        try:
            with within(Range(symbol, low, high)):
                kernels = emit(request if low < high else _numbered(request))
        except _Divided as e:
            part(low, e.at - 1)
            part(e.at, high)
            return
        if not parts or parts[-1][1] != kernels:
            parts.append((low, kernels))

    part(1, _UNKNOWN[1])
    none = emit(request)
    if not _empty(none, symbol) and none != parts[0][1]:
        parts.insert(0, (0, none))
    if len(parts) == 1:
        return parts[0][1]
    size, choices = D.symbol(symbol), list[tuple[DimLike, list[Kernel]]]()
    for k, (low, kernels) in enumerate(parts):
        above = 1 if k == 0 and (low == 0 or _empty(kernels, symbol)) else D.less(low - 1, size)
        choices.append(
            (above if k == len(parts) - 1 else D.mul(D.less(size, parts[k + 1][0]), above), kernels)
        )
    return dispatch(choices)


def _names(request: Request, *, counting: bool) -> set[str]:
    """The symbols of parameters that count images or matrices, or of the others."""
    return {
        s
        for name, d in request.ints.items()
        if (name in _COUNTING) == counting
        for s in D.symbols(d)
    }


def _numbered(request: Request) -> Request:
    """With numbers for what a range of one size says; sizes as small may be none, then as it is."""
    ints = {name: resolve(d) for name, d in request.ints.items()}
    changed = [ints[name] for name, d in request.ints.items() if isinstance(d, Dim)]
    return (
        replace(request, ints=ints)
        if all(isinstance(n, int) and n > 0 for n in changed)
        else request
    )


def dispatch(choices: Iterable[tuple[DimLike, list[Kernel]]]) -> list[Kernel]:
    """The kernels of the one of them whose condition is 1 in a run; the others have empty grids."""
    out, room = list[Kernel](), list[DimLike]()
    for use, kernels in choices:
        for j, bytes_ in enumerate(
            next((kernel.scratch for kernel in kernels if kernel.scratch), ())
        ):
            room[j:] = [
                D.maximum(room[j] if j < len(room) else 0, D.mul(use, bytes_)),
                *room[j + 1 :],
            ]
        out += [
            replace(kernel, grid=(D.mul(use, kernel.grid[0]), *kernel.grid[1:]), scratch=())
            for kernel in kernels
        ]
    return [replace(out[0], scratch=tuple(room)), *out[1:]] if room else out


def _empty(kernels: list[Kernel], symbol: str) -> bool:
    """Whether none of them has blocks where the symbol is 0."""
    try:
        return all(any(D.evaluate(g, {symbol: 0}) <= 0 for g in k.grid) for k in kernels)
    except ZeroDivisionError:
        return False

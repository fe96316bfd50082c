"""Odd sizes of norms, softmax, reductions and pointwise chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.cuda import runner as R
from tests.support.cuda.trials.trial import Places, Tensors, Trial, random, result
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
View = Callable[[Any], Any]


def softmax(dtype: DType, outer: int, n: int, inner: int = 1, *, log: bool = False) -> Trial:
    shape = (outer, n) if inner == 1 else (outer, n, inner)
    r = R.request(
        "softmax",
        dtype,
        {"outer": outer, "n": n, "inner": inner, "log": int(log)},
        operands=("x", "y"),
    )

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(shape, dtype)
        return [{**x, "y": y}], y

    def eager(x: Tensors) -> Any:
        f = R.torch().nn.functional
        return (f.log_softmax if log else f.softmax)(x["x"], 1)

    name = f"{'log' * log}softmax {dtype.name} {'x'.join(map(str, shape))} axis 1"
    return Trial(name, dtype, [r], lambda: {"x": random(*shape, dtype=dtype)}, eager, ours)


def layernorm(
    dtype: DType, rows: int, n: int, *, residual: bool = False, rms: bool = False
) -> Trial:
    """residual: of x + res, and that sum is a result too (which is not compared here)."""
    operands = [
        "x",
        "gamma",
        *(["beta"] if not rms else []),
        *(["res", "skip"] if residual else []),
        "y",
    ]
    r = R.request(
        "layernorm",
        dtype,
        {"rows": rows, "N": n, "rms": int(rms)},
        {"eps": 1e-5},
        operands=operands,
        constant=("gamma", "beta"),
    )

    def inputs() -> Tensors:
        shapes = {"x": (rows, n), "res": (rows, n), "gamma": (n,), "beta": (n,)}
        return {o: random(*s, dtype=dtype) for o, s in shapes.items() if o in operands}

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((rows, n), dtype)
        return [{**x, "y": y, **({"skip": result((rows, n), dtype)} if residual else {})}], y

    def eager(x: Tensors) -> Any:
        f = R.torch().nn.functional
        s = x["x"] + x["res"] if residual else x["x"]
        return (
            f.rms_norm(s, (n,), x["gamma"], 1e-5)
            if rms
            else f.layer_norm(s, (n,), x["gamma"], x["beta"], 1e-5)
        )

    def size(x: Tensors) -> Any:  # before beta takes off
        s = x["x"] + x["res"] if residual else x["x"]
        return (s / s.square().mean(-1, keepdim=True).sqrt() * x["gamma"]).abs()

    name = f"{'rms' if rms else 'layer'}norm {dtype.name} {rows}x{n}{' of a sum' * residual}"
    return Trial(name, dtype, [r], inputs, eager, ours, 2.0 if residual else 0.0, size=size)


_KINDS = {"sum": 0, "mean": 1, "max": 2, "min": 3, "prod": 4, "l2": 6, "logsumexp": 9}


def _reduced(kind: str, x: Any) -> Any:
    t = R.torch()
    table = {
        "sum": t.sum,
        "mean": t.mean,
        "max": t.amax,
        "min": t.amin,
        "prod": t.prod,
        "l2": lambda v, axis: t.linalg.vector_norm(v, 2, axis),
    }
    return table.get(kind, t.logsumexp)(x, 1)


def reduction(dtype: DType, kind: str, outer: int, n: int, inner: int = 1) -> Trial:
    shape = (outer, n) if inner == 1 else (outer, n, inner)
    ints = {"kind": _KINDS[kind], "outer": outer, "n": n, "inner": inner, "dtype": int(dtype)}
    r = R.request("reduce", dtype if dtype != DType.I64 else F32, ints, operands=("x", "y"))

    def inputs() -> Tensors:  # products stay near 1
        return {
            "x": random(*shape, dtype=dtype, scale=0.5 / n**0.5) + 1
            if kind == "prod"
            else random(*shape, dtype=dtype)
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((outer, *shape[2:]), dtype)
        return [{**x, "y": y}], y

    def size(x: Tensors) -> Any:  # every factor may be rounded once, in f32
        return n / 8 * _reduced(kind, x["x"]).abs()

    name = f"reduce {kind} {dtype.name} {'x'.join(map(str, shape))} axis 1"
    linear, factors = kind in ("sum", "mean", "l2"), kind == "prod"
    return Trial(
        name,
        dtype,
        [r],
        inputs,
        lambda x: _reduced(kind, x["x"]),
        ours,
        linear=linear,
        size=size if factors else None,
    )


def argmax(dtype: DType, outer: int, n: int, inner: int = 1, *, least: bool = False) -> Trial:
    r = R.request(
        "argmax",
        dtype,
        {"outer": outer, "n": n, "inner": inner, "min": int(least), "dtype": int(dtype)},
        operands=("x", "y"),
    )
    shape = (outer, n) if inner == 1 else (outer, n, inner)

    def inputs() -> Tensors:  # every row has one extremum
        t = R.torch()
        x = random(*shape, dtype=dtype).clamp(-3.0, 3.0)
        return {
            "x": x.scatter(
                1, t.randint(0, n, (outer, 1, *shape[2:]), device="cuda"), -5.0 if least else 5.0
            )
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((outer, *shape[2:]), DType.I64)
        return [{**x, "y": y}], y

    def eager(x: Tensors) -> Any:
        return (R.torch().argmin if least else R.torch().argmax)(x["x"], 1)

    name = f"arg{'min' if least else 'max'} {dtype.name} {'x'.join(map(str, shape))}"
    return Trial(f"{name}{' axis 1' * (inner > 1)}", dtype, [r], inputs, eager, ours)


def topk(dtype: DType, rows: int, n: int, k: int, *, largest: bool = True) -> Trial:
    """Compares the values; which of several equal ones comes first is left open by PyTorch."""
    ints = {"outer": rows, "n": n, "inner": 1, "k": k, "largest": int(largest), "dtype": int(dtype)}

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((rows, k), dtype)
        return [{**x, "y": y, "at": result((rows, k), DType.I64)}], y

    def eager(x: Tensors) -> Any:
        return R.torch().topk(x["x"], k, 1, largest)[0]

    name = f"topk {dtype.name} {k} of {rows}x{n}{' least' * (not largest)}"
    return Trial(
        name,
        dtype,
        [R.request("topk", dtype, ints, operands=("x", "y", "at"))],
        lambda: {"x": random(rows, n, dtype=dtype)},
        eager,
        ours,
    )


def cumsum(dtype: DType, outer: int, n: int, inner: int = 1) -> Trial:
    shape = (outer, n) if inner == 1 else (outer, n, inner)
    r = R.request(
        "cumsum",
        dtype if dtype != DType.I64 else F32,
        {"outer": outer, "n": n, "inner": inner, "dtype": int(dtype)},
        operands=("x", "y"),
    )

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(shape, dtype)
        return [{**x, "y": y}], y

    name = f"cumsum {dtype.name} {'x'.join(map(str, shape))} axis 1"
    return Trial(
        name,
        dtype,
        [r],
        lambda: {"x": random(*shape, dtype=dtype)},
        lambda x: R.torch().cumsum(x["x"], 1),
        ours,
        linear=True,
    )


def groupnorm(dtype: DType, b: int, c: int, g: int, h: int, w: int) -> Trial:
    r = R.request(
        "groupnorm",
        dtype,
        {"B": b, "C": c, "G": g, "inner": h * w},
        {"eps": 1e-5},
        operands=("x", "gamma", "beta", "y"),
    )

    def inputs() -> Tensors:
        return {
            "x": random(b, c, h, w, dtype=dtype),
            "gamma": random(c, dtype=dtype),
            "beta": random(c, dtype=dtype),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((b, c, h, w), dtype)
        return [{**x, "y": y}], y

    def eager(x: Tensors) -> Any:
        return R.torch().nn.functional.group_norm(x["x"], g, x["gamma"], x["beta"], 1e-5)

    def size(x: Tensors) -> Any:  # of the two summands, whose sum may be small
        return (
            eager({**x, "beta": R.torch().zeros_like(x["beta"])}).abs()
            + x["beta"].abs()[None, :, None, None]
        )

    return Trial(
        f"groupnorm {dtype.name} {b}x{c}/{g}x{h}x{w}", dtype, [r], inputs, eager, ours, size=size
    )


# --- pointwise

_ADD = Expr(2, (Instr("add", (0, 1)),), 2)
#: gelu(a + b) / 2 + a
_GELU = Expr(
    2,
    (
        Instr("add", (0, 1)),
        Instr("gelu_erf", (2,)),
        Instr("const", (), 0.5),
        Instr("fma", (3, 4, 0)),
    ),
    5,
)
#: tanh(sigmoid((a + b) c) a - b)
_LONG = Expr(
    3,
    (
        Instr("add", (0, 1)),
        Instr("mul", (3, 2)),
        Instr("sigmoid", (4,)),
        Instr("mul", (5, 0)),
        Instr("sub", (6, 1)),
        Instr("tanh", (7,)),
    ),
    8,
)


def _gelu(a: Any, b: Any) -> Any:
    return R.torch().nn.functional.gelu(a + b) * 0.5 + a


def _long(a: Any, b: Any, c: Any) -> Any:
    return R.torch().tanh(R.torch().sigmoid((a + b) * c) * a - b)


def _plus(a: Any, b: Any) -> Any:
    return a + b


def _as_it_is(x: Any) -> Any:
    return x


def pointwise(
    dtype: DType, expr: Expr, eager: Callable[..., Any], operands: Sequence[tuple[int, ...]],
    views: Sequence[View] = (), what: str = "", smooth: bool = True,
) -> Trial:  # fmt: skip
    """operands: shapes in memory; views: how the first of them are looked at."""
    whole = [*views, *[_as_it_is] * (len(operands) - len(views))]
    seen = [v(np.empty(s, np.int8)) for v, s in zip(whole, operands, strict=True)]
    shape = np.broadcast_shapes(*(s.shape for s in seen))
    lead = [1] * (6 - len(shape))
    ints = {f"n{k}": d for k, d in enumerate([*lead, *shape])} | {"y_dtype": int(dtype)}
    for j, s in enumerate(seen):
        ints |= {
            f"x{j}_{k}": d
            for k, d in enumerate([*[0] * len(lead), *np.broadcast_to(s, shape).strides])
        } | {f"x{j}_dtype": int(dtype)}
    names = [f"x{j}" for j in range(len(operands))]
    r = R.request(
        "pointwise",
        F32,
        ints,
        None,
        compile_program(expr, type="f32"),
        (*names, "y"),
        unaligned=names[: len(views)],
    )

    def inputs() -> Tensors:
        return {
            n: v(random(*s, dtype=dtype)) for n, v, s in zip(names, whole, operands, strict=True)
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(shape, dtype)
        return [{**x, "y": y}], y

    text = " ".join("x".join(map(str, s)) for s in operands)
    return Trial(
        f"pointwise {what} {dtype.name} {text}",
        dtype,
        [r],
        inputs,
        lambda x: eager(*x.values()),
        ours,
        4.0 if smooth else 0.0,
    )


def trials() -> Iterator[Trial]:
    yield softmax(F16, 8191, 127)
    yield softmax(F16, 13, 50021)
    yield softmax(BF16, 100003, 5)
    yield softmax(F32, 3, 200003)
    yield softmax(F16, 1021, 1031, log=True)
    yield softmax(F16, 17, 1009, 31)
    yield softmax(F32, 1, 1021, 1031)
    yield softmax(F16, 20011, 5, 3)
    yield softmax(F16, 50021, 33)
    yield softmax(F32, 30011, 20)
    yield softmax(BF16, 1, 500009, log=True)
    yield softmax(F32, 2, 50021, 6, log=True)
    yield layernorm(F16, 1021, 1031)
    yield layernorm(BF16, 127, 8191)
    yield layernorm(F16, 100003, 7)
    yield layernorm(F16, 1, 4099)
    yield layernorm(F32, 1021, 1031)
    yield layernorm(F16, 509, 769, residual=True)
    yield layernorm(BF16, 1021, 2053, rms=True)
    yield layernorm(F16, 2, 300007)
    yield layernorm(F32, 5, 40009, rms=True)
    yield groupnorm(F16, 3, 35, 5, 31, 29)
    yield groupnorm(F16, 1, 14, 7, 127, 113)
    yield groupnorm(F32, 2, 66, 22, 17, 13)
    yield groupnorm(BF16, 1, 6, 2, 307, 293)
    yield reduction(F16, "mean", 1021, 1031)
    yield reduction(F16, "sum", 1, 1021, 1031)
    yield reduction(F32, "max", 7, 100003)
    yield reduction(F16, "mean", 1, 1000003)
    yield reduction(F32, "sum", 31, 127, 37)
    yield reduction(BF16, "mean", 1, 100003, 17)
    yield reduction(F32, "sum", 1, 10000019)
    yield reduction(F16, "min", 20011, 13, 3)
    yield reduction(F16, "sum", 100003, 7)
    yield reduction(F32, "prod", 57, 1031, 19)
    yield reduction(F32, "l2", 3, 50021, 5)
    yield reduction(BF16, "logsumexp", 131, 50021)
    yield reduction(F16, "max", 8191, 127)
    yield argmax(F16, 131, 50021)
    yield argmax(F16, 17, 1009, 31)
    yield argmax(F32, 1, 1000003, least=True)
    yield argmax(BF16, 30011, 11)
    yield cumsum(DType.I64, 7, 509)
    yield cumsum(F32, 1, 100003)
    yield cumsum(F16, 1021, 1031)
    yield cumsum(F32, 100003, 7)
    yield cumsum(F32, 17, 1009, 31)
    yield cumsum(BF16, 3, 50021)
    yield cumsum(F32, 2, 50021, 6)
    for size in (1, 7, 1000003):
        yield pointwise(F16, _GELU, _gelu, [(size,), (size,)], what="gelu")
    yield pointwise(BF16, _GELU, _gelu, [(1000003,), (1000003,)], what="gelu")
    yield pointwise(F32, _LONG, _long, [(1000003,), (1000003,), (1000003,)], what="chain")
    yield pointwise(F16, _LONG, _long, [(1009, 1013), (1013,), (1009, 1)], what="chain")
    yield pointwise(F16, _LONG, _long, [(31, 37, 41, 43), (37, 1, 43), (31, 1, 1, 1)], what="chain")
    yield pointwise(F16, _ADD, _plus, [(1000003,), (1000003,)], what="add", smooth=False)
    yield pointwise(
        F16,
        _ADD,
        _plus,
        [(1013, 1009), (1009, 1013)],
        [lambda x: x.T],
        "add to a transposed",
        False,
    )
    yield pointwise(
        F32,
        _ADD,
        _plus,
        [(2039, 3011), (1020, 1004)],
        [lambda x: x[::2, ::3]],
        "add to a slice with steps",
        False,
    )
    yield pointwise(
        F32,
        _ADD,
        _plus,
        [(7, 13, 131, 127), (7, 127, 131, 13)],
        [_as_it_is, lambda x: x.swapaxes(1, 3)],
        "add to a permuted",
        False,
    )
    yield pointwise(
        BF16,
        _ADD,
        _plus,
        [(517, 1033), (517, 1009)],
        [lambda x: x[:, 5:1014]],
        "add to columns",
        False,
    )

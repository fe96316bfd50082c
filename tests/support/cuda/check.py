"""References in float64 and comparison for the CUDA kernel checks (PyTorch on the GPU)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.cuda import late
from tests.support.cuda import runner as R
from tracea_onnx.ir.abi import ACTIVATIONS, OPCODES, DType

#: Unit roundoff of each type.
ROUNDOFF = {DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}


def activation(name: str, x: Any, p0: float, p1: float) -> Any:
    t = R.torch()
    f = t.nn.functional
    table: dict[str, Callable[[], Any]] = {
        "none": lambda: x, "relu": lambda: x.relu(),
        "leaky_relu": lambda: t.where(x >= 0, x, p0 * x), "clip": lambda: x.clamp(p0, p1),
        "sigmoid": x.sigmoid,
        "silu": lambda: f.silu(x), "hard_sigmoid": lambda: (p0 * x + p1).clamp(0, 1),
        "hard_swish": lambda: x * (x / 6 + 0.5).clamp(0, 1), "tanh": x.tanh,
        "elu": lambda: t.where(x >= 0, x, p0 * x.expm1()), "gelu_erf": lambda: f.gelu(x),
        "gelu_tanh": lambda: f.gelu(x, approximate="tanh"),
        "quick_gelu": lambda: x * (p0 * x).sigmoid(), "mish": lambda: f.mish(x),
        "softplus": lambda: f.softplus(x, threshold=1000), "exp": x.exp,
    }  # fmt: skip
    return table[name]()


PARAMETERS = {
    "leaky_relu": (0.1, 0.0),
    "clip": (-0.5, 0.75),
    "hard_sigmoid": (0.2, 0.5),
    "elu": (0.7, 0.0),
    "quick_gelu": (1.702, 0.0),
}


def program(
    *code: tuple[str, int, tuple[int, ...]], n_in: int, regs: int, out: int
) -> dict[str, Any]:
    """A program from (opcode, destination, operands) triples."""
    rows = [[OPCODES.index(op), dst, *args, *[0] * (3 - len(args)), 0.0] for op, dst, args in code]
    return {"type": 0, "n_in": n_in, "regs": regs, "out": out, "code": rows}


#: (v * o0 + o1) through silu, plus o2: a program that uses every way of reading an operand when
#: kinds vary.
GATED = program(("fma", 0, (0, 1, 2)), ("silu", 0, (0,)), ("add", 0, (0, 3)), n_in=4, regs=4, out=0)

#: silu(a) * b
GATE = program(("silu", 0, (0,)), ("mul", 0, (0, 1)), n_in=2, regs=2, out=0)


def gated(v: Any, o0: Any, o1: Any, o2: Any) -> Any:
    return R.torch().nn.functional.silu(v * o0 + o1) + o2


def compare(
    got: Any, want: Any, magnitude: Any, dtype: DType, *, fast: bool, rounded: bool = False
) -> tuple[float, float]:
    """got (dtype) against want (float64). magnitude: sum of |products|, which accumulation in f32
    errs relative to. fast: an approximate function was applied. rounded: elements were rounded to
    TF32.

    Bound: one rounding to `dtype`, 4 * 2^-23 of the magnitude (2^-9 of rounded elements), and 2^-10
    of the value before rounding for approximate functions.
    """
    t = R.torch()
    got = got.double()
    if not bool(t.isfinite(got).all()):
        bad = int((~t.isfinite(got)).sum())
        raise AssertionError(
            f"{bad} of {got.numel()} elements are not finite (unwritten, or poison was read)"
        )
    u = ROUNDOFF[dtype]
    bound = (
        1.01 * u * want.abs()
        + 4 * 2.0**-23 * magnitude
        + (2.0**-10 * (1 + want.abs()) if fast else 4 * 2.0**-23 * want.abs())
        + 1e-30
    )
    if dtype == DType.F16:
        bound = bound + 2.0**-25
    if rounded:
        bound = bound + 2.0**-9 * magnitude
    error = (got - want).abs()
    worst = float((error / bound).max()) if error.numel() else 0.0
    rmse = float(error.norm() / want.norm().clamp_min(1e-30)) if error.numel() else 0.0
    return worst, rmse


def poisoned(shape: tuple[int, ...], dtype: DType) -> Any:
    """A buffer of NaN."""
    return R.torch().full(shape, float("nan"), dtype=R.torch_dtype(dtype), device="cuda")


def launch(r: Any, operands: Mapping[str, Any]) -> None:
    """Bind and run one request on tensors (or addresses), which come late where they are not
    constant (`late`).
    """
    bound = R.bind(r, {k: v if isinstance(v, int) else v.data_ptr() for k, v in operands.items()})
    late.behind(
        lambda: bound(R.current_stream()),
        [v for k, v in operands.items() if not isinstance(v, int) and k not in r.constant],
    )


def act_index(name: str) -> int:
    return ACTIVATIONS.index(name)

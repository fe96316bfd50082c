"""An operator of ONNX as the provider launches it, beside what PyTorch needs for the same.

PyTorch's operators in float64 are the reference. fp32 is fp32 on both sides (no TF32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.cuda import driver as driver
from tests.support.cuda import late
from tests.support.cuda import runner as R
from tests.support.cuda.check import ROUNDOFF, poisoned
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType

Tensors = dict[str, Any]
#: Operands of one launch after the other: tensors, or addresses within them.
Places = Sequence[Tensors]


@dataclass(frozen=True)
class Trial:
    """inputs: what PyTorch gets. eager: what it computes with them. ours: operands of the requests
    for such inputs, and the result as PyTorch has it. roundings: how often values of that magnitude
    are rounded to the narrow type on the way; linear: results err relative to the sum of
    |products|; size: what else they err relative to, in float64. terms: products of a sum.
    """

    name: str
    dtype: DType
    requests: Sequence[Request]
    inputs: Callable[[], Tensors]
    eager: Callable[[Tensors], Any]
    ours: Callable[[Tensors], tuple[Places, Any]]
    roundings: float = 0.0
    linear: bool = False
    extra: Sequence[Request] = ()  # that `ours` runs
    size: Callable[[Tensors], Any] | None = None
    terms: int = 1


def random(*shape: int, dtype: DType, scale: float = 1.0) -> Any:
    t = R.torch()
    return (t.randn(shape, device="cuda", dtype=t.float32) * scale).to(R.torch_dtype(dtype))


def result(shape: Sequence[int], dtype: DType) -> Any:
    """Poisoned memory for a result."""
    t = R.torch()
    return (
        poisoned(tuple(shape), dtype)
        if dtype in ROUNDOFF
        else t.full(tuple(shape), 0x5A, device="cuda", dtype=R.torch_dtype(dtype))
    )


def _wide(x: Any, change: Callable[[Any], Any] = lambda x: x) -> Any:
    return change(x.double()) if x.is_floating_point() else x


def check(
    trial: Trial, inputs: Tensors, call: Callable[[], None], got: Any, places: Places = ()
) -> float:
    """Worst error over its bound. places: operands that come late (`late`)."""
    t = R.torch()
    constant = {
        id(p[name])
        for r, p in zip(trial.requests, places, strict=False)
        for name in r.constant & p.keys()
    }
    late.behind(
        call,
        [x for p in places for x in p.values() if not isinstance(x, int) and id(x) not in constant],
    )
    with t.backends.cudnn.flags(enabled=False):  # it would look for its best float64 convolutions
        want = trial.eager({k: _wide(v) for k, v in inputs.items()})
        sizes = (
            trial.eager({k: _wide(v, lambda x: x.abs()) for k, v in inputs.items()}).abs()
            if trial.linear
            else None
        )
    t.cuda.synchronize()
    if not want.is_floating_point():
        return 0.0 if bool((got == want).all()) else math.inf
    if got.shape != want.shape or not bool(t.isfinite(got).all()):
        return math.inf
    u = ROUNDOFF[trial.dtype]
    magnitude = 1 + want.abs() if sizes is None else sizes
    if trial.size is not None:
        magnitude = magnitude + trial.size({k: _wide(v) for k, v in inputs.items()})
    # Tensor cores cut what each 16 terms leave, up to 2^-23 of a sum that is seldom above 4
    # magnitude / sqrt(terms) on its way: after terms / 16 of them
    summed = max(2.0**-21, 2.0**-25 * math.sqrt(trial.terms))
    bound = (
        1.01 * u * want.abs()
        + trial.roundings * u * magnitude
        + summed * (magnitude + want.abs())
        + (2.0**-24 if trial.dtype == DType.F16 else 1e-30)
    )
    return float(((got.double() - want).abs() / bound).max()) if want.numel() else 0.0

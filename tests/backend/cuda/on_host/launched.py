"""Launches of products and convolutions on the host, compared with float64."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.backend.cuda import cuda_host
from tests.support.cuda import launch_case, runner
from tests.support.cuda.case import Array, Case, poisoned, rounding, stored, value
from tests.support.cuda.driver import assumed
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import evaluate


def matmul_ints(m: int, n: int, k: int, trans: tuple[int, int], b0: int = 1) -> dict[str, int]:
    """Of `b0` packed products; trans: whether a, b are contiguous along rows, not along k."""
    sizes = {"B0": b0, "B1": 1, "M": m, "N": n, "K": k, "ldy": n, "ldr": n}
    steps = {
        "a_m": 1 if trans[0] else k, "a_k": m if trans[0] else 1,
        "b_n": 1 if trans[1] else k, "b_k": n if trans[1] else 1,
    }  # fmt: skip
    apart = {"a": m * k, "b": n * k, "y": m * n, "r": m * n}
    return sizes | steps | {f"{o}_{axis}": p for o, p in apart.items() for axis in (0, 1)}


def check_matmul(
    r: Request, kernels: Iterable[Kernel], trans: tuple[int, int], folder: Path, terms: int = 0
) -> None:
    """y = 0.5 a b of a request of `matmul_ints`."""
    b0, m, n, k = (_number(r, name) for name in ("B0", "M", "N", "K"))
    rng = np.random.default_rng(m)
    a, b = (
        _operand(rng.standard_normal((b0, k, rows) if t else (b0, rows, k)), r.dtype)
        for rows, t in ((m, trans[0]), (n, trans[1]))
    )
    y = cuda_host.aligned(poisoned(b0 * m * n, r.dtype).reshape(b0, m, n))
    launch(kernels, {"a": a, "b": b, "y": y}, folder)
    left, right = (
        np.swapaxes(v, 1, 2) if swapped else v
        for v, swapped in ((value(a, r.dtype), trans[0]), (value(b, r.dtype), not trans[1]))
    )
    _check(y, 0.5 * (left @ right), 0.5 * (abs(left) @ abs(right)), r.dtype, terms)


def check_gemm(r: Request, kernels: Iterable[Kernel], folder: Path) -> None:
    """y = relu(x w^T + bias), of 16-bit types."""
    m, n, k, ldx, ldy = (_number(r, name) for name in ("M", "N", "K", "ldx", "ldy"))
    rng = np.random.default_rng(m)
    x, w = np.full((m, ldx), np.nan), np.zeros((n, -(-k // 8) * 8))
    x[:, :k], w[:, :k] = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    x, w = _operand(x, r.dtype), _operand(w, r.dtype)
    bias = cuda_host.aligned(rng.standard_normal(n).astype(np.float32))
    y = cuda_host.aligned(poisoned(m * ldy, r.dtype).reshape(m, ldy))
    launch(kernels, {"x": x, "w": w, "bias": bias, "y": y}, folder)
    left, right = value(x, r.dtype)[:, :k], value(w, r.dtype)[:, :k].T
    want = np.maximum(left @ right + bias, 0)
    _check(y[:, :n], want, abs(left) @ abs(right) + abs(bias), r.dtype)


def check_convolution(r: Request, kernels: Iterable[Kernel], folder: Path, terms: int = 0) -> None:
    """y = relu(conv(x, w) + bias), also transposed, without dilation, padded alike on all sides."""
    i = {name: v for name, v in r.ints.items() if isinstance(v, int)}
    n, c, oc, groups, stride, pad = (i[s] for s in ("N", "IC", "OC", "G", "SH", "PT"))
    h, w, oh, ow, kh, kw = (i[s] for s in ("IH", "IW", "OH", "OW", "KH", "KW"))
    transposed, per = r.family == "deconv2d", c // groups
    rng = np.random.default_rng(c)
    x = np.full((n, h, w, i["x_cs"]), np.nan)
    x[..., :c] = rng.standard_normal((n, h, w, c))
    whole = 4 if r.dtype == DType.F32 else 8
    filters = np.zeros((oc, kh, kw, -(-per // whole) * whole))
    filters[..., :per] = rng.standard_normal((oc, kh, kw, per))
    x, filters = _operand(x, r.dtype), _operand(filters, r.dtype)
    bias = cuda_host.aligned(rng.standard_normal(oc).astype(np.float32))
    y = poisoned(n * oh * ow * i["y_cs"], r.dtype).reshape(n, oh, ow, i["y_cs"])
    y = cuda_host.aligned(y)
    launch(kernels, {"x": x, "w": filters, "bias": bias, "y": y}, folder)
    # Each tap adds the products of the pixels that it brings together.
    want, magnitude = np.zeros((2, n, oh, ow, groups, oc // groups))
    inputs = value(x, r.dtype)[..., :c].reshape(n, h, w, groups, per)
    taps = value(filters, r.dtype)[..., :per].reshape(groups, oc // groups, kh, kw, per)
    for ih, iw, a, b in np.ndindex(h, w, kh, kw):
        to = [q * stride - pad + t if transposed else q + pad - t for q, t in ((ih, a), (iw, b))]
        if not transposed:
            if to[0] % stride or to[1] % stride:
                continue
            to = [t // stride for t in to]
        if 0 <= to[0] < oh and 0 <= to[1] < ow:
            left, right = inputs[:, ih, iw], taps[:, :, a, b]
            want[:, to[0], to[1]] += np.einsum("ngc,goc->ngo", left, right)
            magnitude[:, to[0], to[1]] += np.einsum("ngc,goc->ngo", abs(left), abs(right))
    want, magnitude = (v.reshape(n, oh, ow, oc) for v in (want, magnitude))
    _check(y[..., :oc], np.maximum(want + bias, 0), magnitude + abs(bias), r.dtype, terms)


def worst_error(c: Case, folder: Path) -> float:
    """Worst error over its bound of a case of `tests/gpu/cases`, by the kernels for a usual device
    of sm_90.
    """
    with assumed(90, 132):
        kernels = runner.kernels(launch_case.request_of(c))

    def upload(a: Array) -> tuple[int, Array]:
        """With NaN before and behind it."""
        raw = np.full(a.nbytes + 512, 0xFF, np.uint8)
        raw[256:-256] = np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8)
        raw = cuda_host.aligned(raw)
        return int(raw.ctypes.data) + 256, raw

    inputs, kept = launch_case.place(c, upload)
    outputs = {name: upload(poisoned(o.count, o.dtype)) for name, o in c.outputs.items()}
    places: dict[str, Array | int] = {**inputs, **{n: at for n, (at, _) in outputs.items()}}
    for kernel in kernels:
        for j, size in enumerate(kernel.scratch):
            scratch = np.full(int(evaluate(size, c.env)), 0xFF, np.uint8)
            places.setdefault(f"scratch{j}", cuda_host.aligned(scratch))
    for kernel in kernels:
        cuda_host.run(kernel, places, folder, c.env)
    del kept
    worst = 0.0
    for name, o in c.outputs.items():
        raw = outputs[name][1]
        assert (raw[:256] == 0xFF).all() and (raw[-256:] == 0xFF).all(), name
        worst = max(worst, o.error(raw[256:-256].view(poisoned(1, o.dtype).dtype)))
    return worst


def launch(kernels: Iterable[Kernel], places: dict[str, Array | int], folder: Path) -> None:
    """Scratch buffers begin as NaN."""
    for kernel in kernels:
        for j, size in enumerate(kernel.scratch):
            assert isinstance(size, int)
            places.setdefault(f"scratch{j}", cuda_host.aligned(np.full(size, 0xFF, np.uint8)))
        assert not cuda_host.run(kernel, places, folder)


def _number(r: Request, name: str) -> int:
    size = r.ints[name]
    assert isinstance(size, int)
    return size


def _operand(x: Array, dtype: DType) -> Array:
    return cuda_host.aligned(stored(x, dtype))


def _check(got: Array, want: Array, magnitude: Array, dtype: DType, terms: int = 0) -> None:
    """terms: 1: each of two factors was rounded to the 11 bits of TF32."""
    bound = rounding(want, dtype, magnitude) + (terms == 1) * 2.0**-10 * magnitude
    assert (np.abs(value(got, dtype) - want) <= bound).all()

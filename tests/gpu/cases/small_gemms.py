"""Small products with references in numpy: every kernel of them and each of its forms once, for
tools under which PyTorch is too slow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.case import Array, Case, Output, plain, poisoned, rounding, stored, value
from tests.support.cuda.driver import device
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import weight_pitch
from tracea_onnx.support import discovery

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
_costs, _wgmma, _split, _gemv, _simt = (
    discovery.module("kernels", f"cuda.gemm.{name}")
    for name in (
        "multistage_sm80.tiles", "persistent_sm90", "cluster_splitk_sm90", "gemv", "simt",
    )
)  # fmt: skip
Rng = np.random.Generator


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


ACTIVATIONS = {"none": lambda x: x, "relu": lambda x: np.maximum(x, 0.0), "silu": silu}


def filled(shape: Sequence[int], columns: int, values: Array, dtype: DType) -> Array:
    """`values` in the first `columns` of the last axis of a poisoned array."""
    out = poisoned(int(np.prod(shape)), dtype).reshape(shape)
    out[..., :columns] = values
    return out


def drawn(rng: Rng, shape: Sequence[int], dtype: DType, scale: float = 1.0) -> tuple[Array, Array]:
    s = stored(rng.standard_normal(tuple(shape)) * scale, dtype)
    return s, value(s, dtype)


def bounded(want: Array, size: Array, dtype: DType, smooth: bool) -> Array:
    """That of `cuda_check.compare`."""
    fast = 2.0**-10 * (1 + np.abs(want)) if smooth and dtype != F32 else 0.0
    return rounding(want, dtype, 8.0 * (1.2 * size + np.abs(want))) + fast


def case_of(
    name: str, r: Request, operands: Mapping[str, Array], outputs: Mapping[str, Output]
) -> Case:
    return Case(
        name,
        r.family,
        r.dtype,
        r.ints,
        operands,
        outputs,
        r.floats,
        r.program,
        {},
        r.unaligned,
        r.constant,
    )


def gemm(
    rng: Rng, dtype: DType, m: int, n: int, k: int, act: str = "none", *, res_mode: int = 0,
    kinds: Sequence[int] | None = None, pad: int = 0, early: bool = False,
    special: Sequence[float] = (),
) -> Case:  # fmt: skip
    """y[m, n] = epilogue(x[m, k] w[n, k]^T + bias); pad: NaN columns behind the rows of x, y and
    the residual; special: elements that x has, one a row.
    """
    ints = {
        "M": m,
        "N": n,
        "K": k,
        "ldx": k + pad,
        "ldr": n + pad,
        "ldy": n + pad,
        "act": K.act_index(act),
        "res_mode": res_mode,
    }
    x, vx = drawn(rng, (m, k), dtype)
    for j, element in enumerate(special):
        x[j * 5, j * 7 % k] = vx[j * 5, j * 7 % k] = element
    w, vw = drawn(rng, (n, k), dtype, k**-0.5)
    b = rng.standard_normal(-(-n // 32) * 32).astype(np.float32)
    packed = stored(np.zeros((n, weight_pitch(k, dtype.size))), dtype)
    packed[:, :k] = w
    operands = {"x": filled((m, k + pad), k, x, dtype), "w": packed, "bias": b}
    pre, size = vx @ vw.T + b[:n], np.abs(vx) @ np.abs(vw).T + np.abs(b[:n])
    if kinds is not None:
        views = []
        for j, kind in enumerate(kinds):
            full, v = drawn(rng, (m, n), dtype)
            part = (slice(None), slice(0, 1))
            rows, columns = part[kind in (1, 3)], part[kind in (2, 3)]
            operands[f"o{j}"] = (
                filled((m, n + pad), n, full, dtype)
                if kind == 0
                else np.ascontiguousarray(full[rows, columns])
            )
            views.append(v[rows, columns])
            ints |= {f"o{j}_kind": kind, f"o{j}_ld": n + pad}
        want, size = silu(pre * views[0] + views[1]) + views[2], size * (1 + np.abs(views[0]))
    else:
        want = ACTIVATIONS[act](pre)
        if res_mode:
            res, v = drawn(rng, (m, n), dtype)
            operands["res"] = filled((m, n + pad), n, res, dtype)
            want = ACTIVATIONS[act](pre + v) if res_mode == 1 else want + v
    out = Output(
        dtype,
        m * (n + pad),
        (m, n),
        [n + pad, 1],
        want,
        bounded(want, size, dtype, act == "silu" or kinds is not None),
    )
    r = R.request(
        "gemm",
        dtype,
        ints,
        {"p0": 0.0, "p1": 0.0},
        K.GATED if kinds is not None else None,
        [*operands, "y"],
        constant=("w", "bias") if early else (),
    )
    extra = (
        f" res{res_mode}" if res_mode else f" program {tuple(kinds)}" if kinds is not None else ""
    )
    return case_of(
        f"gemm {m}x{n}x{k} {act}{extra}{f' pad{pad}' if pad else ''}", r, operands, {"y": out}
    )


def _moments(v: Array) -> tuple[Array, Array, Array]:
    """Mean and reciprocal deviation of rows, and the statistics that a product leaves of them."""
    panels = v.reshape(len(v), -1, 64)
    parts = np.stack(
        [panels.mean(-1), np.square(panels - panels.mean(-1, keepdims=True)).sum(-1)], -1
    )
    return (
        v.mean(-1, keepdims=True),
        1 / np.sqrt(v.var(-1, keepdims=True) + 1e-5),
        parts.astype(np.float32),
    )


def norm(rng: Rng, dtype: DType, m: int, n: int, k: int, sides: str, act: str = "none") -> Case:
    """gemm_norm; sides: which of x, the residual and y have statistics of their rows."""
    x, vx = drawn(rng, (m, k), dtype)
    w, vw = drawn(rng, (n, k), dtype, k**-0.5)
    b = rng.standard_normal(n + 32).astype(np.float32)
    operands = {"x": x, "w": w, "bias": b}
    want, size = vx @ vw.T, np.abs(vx) @ np.abs(vw).T
    if "x" in sides:
        mean, scale, operands["x_stats"] = _moments(vx)
        sums = np.concatenate([vw.sum(-1), np.zeros(32)]).astype(np.float32)
        operands["x_sums"] = sums
        want, size = scale * (want - mean * sums[:n]), scale * (size + np.abs(mean * sums[:n]))
    want, size = want + b[:n], size + np.abs(b[:n])
    if "r" in sides:
        operands["res"], v = drawn(rng, (m, n), dtype)
        mean, scale, operands["r_stats"] = _moments(v)
        gamma, beta = (rng.standard_normal(n + 32).astype(np.float32) for _ in range(2))
        operands |= {"r_gamma": gamma, "r_beta": beta}
        want, size = (
            want + (v - mean) * scale * gamma[:n] + beta[:n],
            size + (np.abs(v) + np.abs(mean)) * scale * np.abs(gamma[:n]) + np.abs(beta[:n]),
        )
    want = ACTIVATIONS[act](want)
    outputs = {"y": plain(dtype, want, bounded(want, 1.3 * size, dtype, act == "silu"))}
    if "y" in sides:
        parts = _moments(want)[2].astype(np.float64)
        outputs["y_stats"] = plain(F32, parts, 3e-3 * (np.abs(parts) + np.abs(want).max()))
    ints = {
        "M": m,
        "N": n,
        "K": k,
        "ldx": k,
        "ldr": n,
        "ldy": n,
        "act": K.act_index(act),
        "res_mode": int("r" in sides),
    }
    r = R.request(
        "gemm_norm",
        dtype,
        ints,
        {"x_eps": 1e-5, "r_eps": 1e-5, "unscale": 1.0},
        None,
        [*operands, *outputs],
        constant=("w", "bias"),
    )
    return case_of(f"gemm_norm {m}x{n}x{k} {sides} {act}", r, operands, outputs)


def matmul(
    rng: Rng,
    dtype: DType,
    b0: int,
    b1: int,
    m: int,
    n: int,
    k: int,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Case:
    """Batches of a[m, k] b[k, n], either operand with its other axis contiguous."""
    a, va = drawn(rng, (b0, b1, k, m) if trans_a else (b0, b1, m, k), dtype)
    b, vb = drawn(rng, (b0, b1, n, k) if trans_b else (b0, b1, k, n), dtype, k**-0.5)
    va, vb = va.swapaxes(2, 3) if trans_a else va, vb.swapaxes(2, 3) if trans_b else vb
    ints = {
        "B0": b0, "B1": b1, "M": m, "N": n, "K": k, "a_0": b1 * m * k, "a_1": m * k,
        "a_m": 1 if trans_a else k, "a_k": m if trans_a else 1,
        "b_0": b1 * n * k, "b_1": n * k, "b_k": 1 if trans_b else n, "b_n": k if trans_b else 1,
        "y_0": b1 * m * n, "y_1": m * n, "ldy": n,
    }  # fmt: skip
    want = 0.3 * (va @ vb)
    out = plain(dtype, want, bounded(want, 0.3 * (np.abs(va) @ np.abs(vb)), dtype, False))
    r = R.request(
        "matmul", dtype, ints, {"alpha": 0.3, "p0": 0.0, "p1": 0.0}, None, ("a", "b", "y")
    )
    return case_of(
        f"matmul {b0}x{b1}x{m}x{n}x{k}{' a transposed' * trans_a}{' b transposed' * trans_b}",
        r,
        {"a": a, "b": b},
        {"y": out},
    )


def with_tile(case: Case, tile: Any) -> Case:
    outputs = case.outputs
    if T.rounds(tile):  # to 11 bits rather than 24
        outputs = {
            name: replace(o, bound=None if o.bound is None else o.bound * 2.0**13)
            for name, o in outputs.items()
        }
    return replace(case, name=f"{case.name} [{T.tile_name(tile)}]", tile=tile, outputs=outputs)


def products(rng: Rng) -> Iterator[Case]:
    """Every form of the kernels for matrices. k of several steps of 64 with a part of one, rows and
    columns beyond whole tiles.
    """
    hopper, split = _wgmma.HopperTile, _split.SplitTile
    for bm, bn, ping in (
        (128, 128, True),
        (64, 256, True),
        (64, 192, True),
        (64, 128, True),
        (128, 64, True),
        (128, 192, False),
    ):
        for cluster in (1, 2):
            yield with_tile(
                gemm(rng, F16, 300, 264, 200, "relu", early=cluster == 1),
                hopper(bm, bn, ping, cluster),
            )
        yield with_tile(gemm(rng, F16, 270, 328, 136, "silu", res_mode=1), hopper(bm, bn, ping, 1))
        if ping:
            yield with_tile(gemm(rng, BF16, 520, 136, 200), hopper(bm, bn, True, 1, 4))
    yield with_tile(gemm(rng, F16, 300, 200, 200, "relu", res_mode=2), hopper(128, 64, True, 1, 4))
    yield with_tile(gemm(rng, F16, 257, 328, 200, kinds=(0, 1, 2)), hopper(128, 128, True, 2))
    # rows of y begin anywhere
    yield with_tile(gemm(rng, F16, 131, 389, 264, "relu"), hopper(128, 128, True, 2))
    yield with_tile(gemm(rng, F16, 131, 389, 264), hopper(128, 192, False, 1))
    for bm, bn, ping, cluster, kept in (
        (128, 128, True, 2, 0),
        (64, 256, True, 1, 0),
        (128, 192, False, 1, 0),
        (128, 64, True, 1, 3),
    ):
        yield with_tile(
            gemm(rng, F16, 520, 328, 136, "relu"), hopper(bm, bn, ping, cluster, kept, True)
        )
        yield with_tile(norm(rng, F16, 300, 320, 192, "xry"), hopper(bm, bn, ping, cluster, kept))
        yield with_tile(
            norm(rng, BF16, 300, 328, 192, "x", "silu"), hopper(bm, bn, ping, cluster, kept, True)
        )
    for kind in ((64, 64, False, 3, 1, 1), (64, 56, True, 1, 1, 2), (128, 64, True, 2, 2, 1)):
        yield with_tile(norm(rng, F16, 90, 192, 384, "xry"), split(*kind))
    kinds = (
        (64, 8, True, 4, 1, 3), (64, 16, True, 1, 2, 2), (64, 24, True, 3, 1, 1),
        (64, 56, True, 8, 1, 2), (128, 64, True, 2, 2, 1), (128, 104, True, 1, 1, 1),
        (192, 80, True, 2, 1, 1), (192, 192, True, 1, 1, 1), (128, 256, True, 1, 2, 1),
        (64, 64, False, 4, 1, 2), (192, 144, False, 1, 2, 1),
        (64, 128, False, 1, 2, 1), (128, 96, False, 6, 1, 1), (128, 256, False, 1, 1, 1),
        (64, 32, False, 1, 1, 3), (128, 192, False, 4, 2, 1),
    )  # fmt: skip
    for j, kind in enumerate(kinds):
        m, k = (kind[1] - 3 if kind[2] and kind[1] < 64 else 210), 64 * max(2 * kind[3], 3) + 8
        extra: dict[str, Any] = (
            {},
            {"res_mode": 1},
            {"kinds": (0, 1, 2)},
            {"res_mode": 2, "pad": 8},
        )[j % 4]
        yield with_tile(
            gemm(
                rng,
                BF16 if j % 5 == 4 else F16,
                m,
                203 if j % 2 else 264,
                k,
                "relu" if j % 3 else "silu",
                early=j % 2 == 0,
                **extra,
            ),
            split(*kind),
        )
    for dtype, m, n, k in (
        (F16, 127, 131, 137),
        (BF16, 17, 1, 13),
        (F32, 65, 67, 71),
        (F16, 1, 257, 1),
        (F16, 3, 72, 2048),
        (F32, 5, 40, 1024),
    ):
        yield gemm(rng, dtype, m, n, k, "relu")
    yield gemm(rng, F16, 77, 131, 67, "silu", res_mode=1)
    yield gemm(rng, F32, 66, 101, 48, kinds=(0, 1, 2))
    for dtype in (F16, F32):
        yield matmul(rng, dtype, 2, 3, 72, 40, 56)
        yield matmul(rng, dtype, 1, 2, 37, 41, 43, trans_a=True)
        yield matmul(rng, dtype, 2, 1, 64, 72, 136, trans_a=True, trans_b=True)
        yield matmul(rng, dtype, 2, 2, 1, 64, 300, trans_b=True)


def odd_products(rng: Rng) -> Iterator[Case]:
    """GEMV, SGEMM, and every tile of the general kernel over rows that begin anywhere."""
    thin, tile = _gemv.GemvTile, _costs.Tile
    for dtype in (F16, F32):
        for deep, split, share in (
            (1, 1, 1),
            (2, 2, 1),
            (4, 1, 1),
            (1, 1, 8),
            (1, 4, 8),
            (1, 16, 8),
        ):
            yield with_tile(
                gemm(rng, dtype, 67, 1, 1031, "relu"), thin(True, 1, deep, split, share)
            )
            yield with_tile(
                gemm(rng, dtype, 5, 35, 1031, "silu", res_mode=1),
                thin(False, 5, deep, split, share),
            )
        # every way to read operands, also between several products
        for t in _costs.tiles(dtype, tf32=True, arch=device()[0]):
            yield with_tile(gemm(rng, dtype, 67, 131, 519, "relu"), t)
            if t.bm >= 64 or dtype == F32:
                yield with_tile(matmul(rng, dtype, 1, 2, 67, 131, 133, trans_a=True), t)
        yield with_tile(
            matmul(rng, dtype, 1, 2, 67, 45, 131, trans_b=True),
            tile(64, 64, 2, 2, 4) if dtype == F16 else tile(64, 64, 2, 1, 3, warps_k=4),
        )
    for t in _costs.tiles(F32, tf32=True, arch=device()[0]):
        # whole tiles and parts
        yield with_tile(matmul(rng, F32, 1, 2, 132, 132, 96, trans_a=t.bm % 64 > 0), t)
        if t.wgmma:
            yield with_tile(
                matmul(rng, F32, 1, 2, 131, 133, 201, trans_a=True, trans_b=True),
                replace(t, split=2),
            )
            yield with_tile(matmul(rng, F32, 2, 1, 65, 67, 35, trans_b=True), t)
            yield with_tile(gemm(rng, F32, 67, 131, 45, kinds=(0, 1, 2)), t)
        if t.terms == 3:
            yield with_tile(
                gemm(
                    rng,
                    F32,
                    67,
                    131,
                    72,
                    special=(np.inf, -np.inf, np.nan, float(np.finfo(np.float32).max)),
                ),
                t,
            )
    yield with_tile(gemm(rng, F32, 131, 132, 264), replace(_costs.tiles(F32)[0], split=2))
    yield with_tile(gemm(rng, F32, 131, 132, 264), replace(_costs.tiles(F32)[-1], split=4))

    def dots(wide_a: bool, few: int, lanes: int, reads: int, deep: int, *whole: bool) -> Any:
        return _gemv.GemvTile(wide_a, few, deep, 1, 1, lanes, reads, *whole)

    for dtype in (F16, BF16, F32):
        # also with k beyond what lanes read at once
        for lanes, reads, deep in ((4, 4, 1), (8, 2, 2), (16, 1, 2), (32, 1, 1)):
            yield with_tile(
                matmul(rng, dtype, 2, 2, 67, 3, 131 if lanes < 16 else 101, trans_b=True),
                dots(True, 3, lanes, reads, deep if lanes > 4 else 1),
            )
            yield with_tile(
                gemm(rng, dtype, 2, 67, 101, "relu"), dots(False, 2, lanes, reads, deep)
            )
            for near in (False, True):  # rows of whole chunks
                yield with_tile(
                    matmul(rng, dtype, 2, 2, 67, 3, 136, trans_b=True),
                    dots(True, 3, lanes, reads, deep if lanes > 4 else 1, True, near),
                )
                yield with_tile(
                    gemm(rng, dtype, 2, 67, 104, "relu"),
                    dots(False, 2, lanes, reads, deep, True, near),
                )
        yield with_tile(matmul(rng, dtype, 1, 3, 3, 2, 5, trans_b=True), dots(False, 3, 4, 1, 1))
    yield with_tile(gemm(rng, F16, 5, 35, 1031, "silu", res_mode=1), dots(False, 5, 32, 4, 1))
    lane = _simt.SimtTile
    for trans_a, trans_b in itertools.product((False, True), (False, True)):
        for t in (
            lane(8, 8, 2, 1, 2), lane(8, 12, 2, 1, 2), lane(8, 4, 1, 1, 4, 3),
            lane(4, 12, 1, 1, 2, 3), lane(8, 8, 2, 2), lane(8, 4, 1, 1, 8),
            lane(8, 4, 1, 1, 4, 3, 2), lane(8, 8, 1, 1, 4, split=4),
            lane(4, 4, 1, 1, 8, 3), lane(8, 4, 4),
        ):  # fmt: skip
            yield with_tile(matmul(rng, F32, 2, 2, 67, 71, 77, trans_a=trans_a, trans_b=trans_b), t)
            # fours of rows
            yield with_tile(
                matmul(rng, F32, 1, 2, 36, 100, 72, trans_a=trans_a, trans_b=trans_b), t
            )
            yield with_tile(matmul(rng, F32, 1, 3, 3, 2, 5, trans_a=trans_a, trans_b=trans_b), t)
    yield with_tile(gemm(rng, F32, 67, 131, 45, "silu", res_mode=1), lane(8, 8, 1, 1, 4))
    yield with_tile(gemm(rng, F32, 35, 131, 45, kinds=(0, 1, 2)), lane(4, 8, 1, 1, 4, 3))
    # what lanes sum goes straight to y
    yield with_tile(gemm(rng, F32, 67, 132, 44, "silu", res_mode=1), lane(8, 12, 2, 2))
    yield with_tile(gemm(rng, F32, 67, 131, 45, "silu", res_mode=1), lane(4, 4, 1, 1, 4, 3, 4))


def batches(rng: Rng) -> Iterator[Case]:
    """Products of two run-time operands that tensor maps reach."""
    split = _split.SplitTile
    for trans_a, trans_b in itertools.product((False, True), (False, True)):
        for dtype, t in (
            (F16, split(64, 64, False)),
            (F16, split(64, 64, True)),
            (BF16, split(128, 128, True, 2)),
            (F16, split(64, 128, False, 1, 1, 2)),
        ):
            yield with_tile(
                matmul(rng, dtype, 2, 2, 136, 72, 264, trans_a=trans_a, trans_b=trans_b), t
            )
    # rows of y begin anywhere
    yield with_tile(matmul(rng, F16, 1, 3, 72, 43, 136, trans_b=True), split(128, 40, True))
    # chosen for more steps than there turn out to be: parts without any
    for t in (split(64, 64, False, 4), split(64, 64, True, 3), split(128, 64, True, 4)):
        yield with_tile(matmul(rng, F16, 1, 2, 72, 136, 72), t)
    yield from _shared_batches(rng)
    yield from _persistent_batches(rng)
    yield matmul(rng, F16, 1, 65_537, 3, 5, 7, trans_b=True)  # more than a grid has places for
    yield matmul(rng, F16, 1, 98_307, 19, 21, 17)


def _shared_batches(rng: Rng) -> Iterator[Case]:
    """The same by blocks that share copies of either operand in every way, some of a cluster beyond
    the matrix.
    """
    forms = (
        (64, 64, 1, 1, 2), (64, 96, 1, 4, 1), (128, 64, 1, 1, 4), (64, 64, 2, 2, 2),
        (64, 128, 1, 2, 4), (192, 64, 1, 4, 2), (64, 64, 3, 1, 2),
        (128, 128, 1, 2, 2),
    )  # fmt: skip
    for j, (rows, columns, split, share, beside) in enumerate(forms):
        for swap in (False, True):
            trans_a, trans_b = ((False, False), (False, True), (True, True), (True, False))[
                (j + 2 * swap) % 4
            ]
            width = -(-columns // 64) * 64 if (trans_a if swap else not trans_b) else columns
            case = matmul(
                rng,
                BF16 if j % 3 == 2 else F16,
                2,
                1 + j % 2,
                312,
                328,
                (200, 24, 456)[j % 3],
                trans_a=trans_a,
                trans_b=trans_b,
            )
            yield with_tile(case, _split.SplitTile(rows, width, swap, split, share, 1, beside))


def _persistent_batches(rng: Rng) -> Iterator[Case]:
    """The same by tiles of several widths, shared and swapped in every way."""
    forms = (
        (64, 200, True, 1, 1), (64, 144, True, 2, 1), (64, 104, True, 1, 2), (128, 152, True, 1, 2),
        (128, 48, True, 2, 2), (128, 232, False, 2, 1),
        (128, 88, False, 1, 1), (256, 104, False, 1, 2), (256, 80, False, 2, 2),
        (64, 160, True, 4, 1), (128, 72, True, 1, 4), (128, 64, False, 2, 4),
        (64, 96, True, 4, 2),
    )  # fmt: skip
    for j, (bm, bn, ping, cluster, beside) in enumerate(forms):
        for swap in (False, True):
            trans_a, trans_b = ((False, False), (False, True), (True, True), (True, False))[
                (j + 2 * swap) % 4
            ]
            panels = trans_a if swap else not trans_b
            width = -(-bn // (8 * cluster)) * 8 * cluster if not panels else bn
            case = matmul(
                rng,
                BF16 if j % 3 == 2 else F16,
                2,
                2,
                312,
                328,
                (200, 24, 144)[j % 3],
                trans_a=trans_a,
                trans_b=trans_b,
            )
            yield with_tile(
                case,
                _wgmma.HopperTile(
                    bm,
                    width,
                    ping,
                    cluster,
                    staging=1,
                    swap=swap,
                    multicast_a=beside,
                    panels=panels,
                ),
            )
    yield with_tile(
        matmul(rng, F16, 1, 3, 131, 88, 72), _wgmma.HopperTile(64, 88, True, staging=1, panels=True)
    )
    yield with_tile(
        matmul(rng, F16, 3, 1, 131, 264, 264, trans_b=True),
        _wgmma.HopperTile(128, 136, False, staging=1, swap=True),
    )


FAMILIES = {"products": products, "odd products": odd_products, "batches": batches}

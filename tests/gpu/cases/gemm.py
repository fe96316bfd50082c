"""GEMM and batched GEMM against float64 (PyTorch on the GPU)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.operands import pack_gemm_request, packed_weight, padded, random
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import ACTIVATIONS, DType

TYPES = (DType.F16, DType.BF16, DType.F32)
Case = tuple[str, Request, Callable[[], tuple[float, float]]]


def gemm_case(
    dtype: DType,
    m: int,
    n: int,
    k: int,
    act: str = "none",
    *,
    bias: bool = True,
    res_mode: int = 0,
    pad: int = 0,
    shift: int = 0,
    kinds: Sequence[int] | None = None,
    tile: Any = None,
) -> Case:
    """pad: extra columns in every pitch; shift: elements by which x, y and the residual start off a
    16-byte boundary; kinds: operands of the program GATED.
    """
    p0, p1 = K.PARAMETERS.get(act, (0.0, 0.0))
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
    operands = ["x", "w", "y", *(["bias"] if bias else []), *(["res"] if res_mode else [])]
    if kinds is not None:
        operands += [f"o{j}" for j in range(len(kinds))]
        for j, kind in enumerate(kinds):
            ints |= {f"o{j}_kind": kind, f"o{j}_ld": n + pad}
    r = R.request(
        "gemm",
        dtype,
        ints,
        {"p0": p0, "p1": p1},
        K.GATED if kinds is not None else None,
        operands,
        unaligned=("x", "y", "res") if shift else (),
    )
    if tile is not None:
        r = R.force(r, tile)

    def run() -> tuple[float, float]:
        t = R.torch()
        x, w, b = (
            random((m, k), dtype),
            random((n, k), dtype, 1 / math.sqrt(k)),
            t.randn(-(-n // 32) * 32, device="cuda"),
        )
        res = random((m, n), dtype)

        def place(v: Any) -> Any:
            flat = K.poisoned((m * (v.shape[1] + pad) + shift + 8,), dtype)
            flat[shift : shift + m * (v.shape[1] + pad)] = padded(
                v, v.shape[1] + pad, dtype
            ).reshape(-1)
            return flat

        xs, rs = place(x), place(res)
        y = K.poisoned((m * (n + pad) + shift + 64,), dtype)
        step = shift * dtype.size
        tensors: dict[str, Any] = {
            "x": xs.data_ptr() + step,
            "w": packed_weight(w, dtype, trans=True),
            "y": y.data_ptr() + step,
        }
        if bias:
            tensors["bias"] = b
        if res_mode:
            tensors["res"] = rs.data_ptr() + step
        pre = x.double() @ w.double().T
        size = x.double().abs() @ w.double().abs().T
        if bias:
            pre = pre + b[:n].double()
            size = size + b[:n].double().abs()
        if kinds is not None:
            views, keep = [], []
            for j, kind in enumerate(kinds):
                full = random((m, n), dtype)
                v = (full, full[:1], full[:, :1], full[:1, :1])[kind]
                stored = padded(full, n + pad, dtype) if kind == 0 else v.contiguous()
                keep.append(stored)
                tensors[f"o{j}"] = stored
                views.append(v.double())
            want = K.gated(pre, *views)
            size = size * (1 + views[0].abs())
        elif res_mode == 1:
            want = K.activation(act, pre + res.double(), p0, p1)
        else:
            want = K.activation(act, pre, p0, p1) + (res.double() if res_mode else 0)
        K.launch(r, tensors)
        out = y[shift : shift + m * (n + pad)].reshape(m, n + pad)
        if pad and not bool(out[:, n:].isnan().all()):
            raise AssertionError("wrote beyond the last column")
        if not bool(y[shift + m * (n + pad) :].isnan().all()):
            raise AssertionError("wrote beyond the last row")
        slope = want.abs().clamp_min(1) if act == "exp" else 1.2
        return K.compare(
            out[:, :n], want, size * slope, dtype,
            fast=dtype != DType.F32 and (act not in ("none", "relu", "leaky_relu",
                "clip") or kinds is not None),
            rounded=T.rounds(tile),
        )  # fmt: skip

    extra = f" res{res_mode}" if res_mode else f" program {kinds}" if kinds else ""
    return (
        (
            f"gemm {dtype.name} {m}x{n}x{k} {act}{extra}{' nobias' if not bias else ''}"
            f"{f' pad{pad}' if pad else ''}{f' shift{shift}' if shift else ''}"
        ),
        r,
        run,
    )


def matmul_case(
    dtype: DType, b0: int, b1: int, m: int, n: int, k: int, layout: str, act: str = "none", *,
    broadcast: bool = False, res_mode: int = 0, tile: Any = None
) -> Case:  # fmt: skip
    """layout: two letters, which axis of a ([M,K]: m or k) and of b ([K,N]: k or n) is contiguous;
    `s` is neither. tile: by which, whatever would be chosen.
    """
    steps = {"k": (k, 1), "m": (1, m), "s": (2 * k, 2), "n": (1, n)}
    a_m, a_k = steps[layout[0]]
    b_n, b_k = {"k": (k, 1), "n": (1, n), "s": (2 * k, 2)}[layout[1]]
    size_a, size_b = m * k * (2 if layout[0] == "s" else 1), n * k * (2 if layout[1] == "s" else 1)
    ints = {
        "B0": b0, "B1": b1, "M": m, "N": n, "K": k, "a_0": b1 * size_a, "a_1": size_a, "a_m": a_m,
        "a_k": a_k, "b_0": 0 if broadcast else b1 * size_b,
        "b_1": size_b,
        "b_k": b_k, "b_n": b_n, "y_0": b1 * m * n, "y_1": m * n, "ldy": n, "act": K.act_index(act),
        "res_mode": res_mode,
    }  # fmt: skip
    p0, p1 = K.PARAMETERS.get(act, (0.0, 0.0))
    r = R.request(
        "matmul",
        dtype,
        ints,
        {"alpha": 0.3, "p0": p0, "p1": p1},
        operands=["a", "b", "y", *(["res"] if res_mode else [])],
    )
    r = R.force(r, tile) if tile else r

    def run() -> tuple[float, float]:
        t = R.torch()
        batch_b = b1 if broadcast else b0 * b1
        a_flat, b_flat = (
            random((b0 * b1 * size_a,), dtype),
            random((batch_b * size_b,), dtype, 1 / math.sqrt(k)),
        )
        res = random((b0 * b1, m, n), dtype)
        y = K.poisoned((b0 * b1 * m * n + 64,), dtype)
        a = t.as_strided(a_flat, (b0, b1, m, k), (b1 * size_a, size_a, a_m, a_k)).double()
        b = t.as_strided(
            b_flat, (b0, b1, k, n), (0 if broadcast else b1 * size_b, size_b, b_k, b_n)
        ).double()
        pre = 0.3 * (a @ b)
        size = 0.3 * (a.abs() @ b.abs())
        extra = res.double().reshape(b0, b1, m, n)
        want = (
            K.activation(act, pre + extra, p0, p1)
            if res_mode == 1
            else K.activation(act, pre, p0, p1) + (extra if res_mode else 0)
        )
        K.launch(r, {"a": a_flat, "b": b_flat, "y": y, **({"res": res} if res_mode else {})})
        if not bool(y[b0 * b1 * m * n :].isnan().all()):
            raise AssertionError("wrote beyond the last row")
        return K.compare(
            y[: b0 * b1 * m * n].reshape(b0, b1, m, n),
            want,
            size * 1.2,
            dtype,
            fast=dtype != DType.F32 and act not in ("none", "relu"),
        )

    return (
        (
            f"matmul {dtype.name} {b0}x{b1}x{m}x{n}x{k} {layout} "
            f"{act}{' broadcast' if broadcast else ''}{f' res{res_mode}' if res_mode else ''}"
        ),
        r,
        run,
    )


def check_cases() -> list[Case]:
    cases: list[Case] = []
    for d in TYPES:
        for m, n, k in (
                        (1, 1, 1), (1, 7, 3), (2, 3, 1), (17, 31, 13), (1, 768, 768),
                        (16, 1000, 2048), (63, 65, 127), (64, 64, 64), (65, 63, 65),
                        (127, 129, 191),
                        (128, 128, 128), (129, 257, 72), (5, 8, 4096), (33, 40, 24),
                        (200, 96, 1024), (512, 768, 776), (1031, 523, 251),
                        (2048, 512, 512)):  # fmt: skip
            cases.append(gemm_case(d, m, n, k))
        for act in ACTIVATIONS:
            cases.append(gemm_case(d, 130, 72, 96, act))
        for res_mode in (1, 2):
            cases += [
                gemm_case(d, 77, 136, 80, "relu", res_mode=res_mode),
                gemm_case(d, 77, 131, 67, "silu", res_mode=res_mode),
                gemm_case(d, 3, 264, 1024, "gelu_erf", res_mode=res_mode),
            ]
        cases += [
            gemm_case(d, 100, 72, 64, "relu", res_mode=1, pad=8),
            gemm_case(d, 100, 72, 64, "relu", res_mode=1, pad=3),
            gemm_case(d, 100, 72, 64, res_mode=1, pad=8, shift=1),
        ]
        cases += [
            gemm_case(d, 50, 40, 24, bias=False, pad=2),
            gemm_case(d, 50, 40, 24, pad=4, shift=2),
            gemm_case(d, 1, 4096, 11008, bias=False),
        ]
        cases += [
            gemm_case(d, 66, 104, 48, kinds=kinds) for kinds in ((0, 1, 2), (3, 0, 1), (2, 3, 0))
        ] + [
            gemm_case(d, 66, 101, 48, kinds=(0, 1, 2)),
            gemm_case(d, 4, 104, 2048, kinds=(0, 1, 0)),
        ]
        for layout in ("kk", "kn", "mk", "mn", "sk", "ks", "sn"):
            cases += [
                matmul_case(d, 2, 3, 72, 40, 56, layout),
                matmul_case(d, 1, 2, 33, 17, 5, layout),
                matmul_case(d, 1, 1, 128, 136, 264, layout),
            ]
        cases += [
            matmul_case(d, 2, 3, 64, 64, 64, "kn", "gelu_tanh", broadcast=True),
            matmul_case(d, 2, 2, 1, 64, 300, "kn"),
            matmul_case(d, 2, 2, 40, 64, 64, "kk", "relu", res_mode=1),
        ]
        cases += [
            matmul_case(d, 1, 1, 2, 24, 4096, "kn", res_mode=2),
            matmul_case(d, 3, 1, 1, 1, 1, "kk"),
        ]
        cases += large_cases(d)
    return cases + tile_cases()


def tile_cases() -> list[Case]:
    """Every tile of both kernels, whatever would be chosen."""
    cases = []
    for d in TYPES:
        shapes: list[dict[str, Any]] = [{"m": 300, "n": 520, "k": 1096, "act": "relu"}]
        if d != DType.BF16:
            shapes += [
                {"m": 1500, "n": 264, "k": 200, "act": "silu", "res_mode": 1},
                {"m": 257, "n": 328, "k": 640, "kinds": (0, 1, 2)},
            ]
            shapes.append({"m": 331, "n": 389, "k": 264, "act": "relu"})  # rows of y begin anywhere
        for shape in shapes:
            for tile in T.tiles(d, shape["n"], -(-shape["k"] // 64)):
                name, r, run = gemm_case(d, **shape, tile=tile)
                cases.append((f"{name} [{T.tile_name(tile)}]", r, run))
    return cases


def large_cases(d: DType) -> list[Case]:
    """Sizes at which the widest tiles are chosen."""
    if d == DType.F32:
        return [gemm_case(d, 1024, 1024, 512, "gelu_erf")]
    return [
        gemm_case(d, 4096, 4096, 1024, "gelu_erf"),
        gemm_case(d, 4096, 3072, 768, "relu", res_mode=1),
        gemm_case(d, 4100, 3080, 776, "silu", res_mode=2),
        gemm_case(d, 8192, 1024, 136), gemm_case(d, 1000, 2048, 4096, "none", res_mode=1),
        gemm_case(d, 4096, 2304, 768, kinds=(0, 1, 3)),
        gemm_case(d, 12544, 256, 64, "relu"), gemm_case(d, 12544, 64, 256, "relu"),
        gemm_case(d, 3000, 1000, 72), gemm_case(d, 2048, 2048, 64, pad=8),
        gemm_case(d, 4099, 1288, 320, bias=False),
        gemm_case(d, 6272, 512, 2048, "relu", res_mode=1),
        gemm_case(d, 640, 3072, 768, "gelu_tanh"),
    ]  # fmt: skip


def also(r: Request) -> list[Request]:
    """The requests that a case needs beside its own: packing of weights."""
    if r.family != "gemm":
        return []
    return [pack_gemm_request(int(r.ints["N"]), int(r.ints["K"]), r.dtype, True)]

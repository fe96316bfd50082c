"""GEMM between norms of rows (family `gemm_norm`) against float64 (PyTorch on the GPU)."""

from __future__ import annotations

import math
from typing import Any

from tests.gpu.cases.gemm import Case
from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.operands import random
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import weight_pitch

_EPS = 1e-5


def pack(n: int, k: int, d: DType) -> tuple[Request, Request]:
    sizes = {"K": k, "N": n, "trans": 1, "ldw": k}
    weight = R.request(
        "pack_gemm", d, {**sizes, "N_total": n}, {"alpha": 0.25}, operands=("w", "packed", "gamma")
    )
    return weight, R.request(
        "fold_norm",
        d,
        sizes,
        {"alpha": 1.0, "unscale": 4.0},
        operands=("w", "packed", "beta", "b", "sums", "bias"),
    )


def rows(m: int, k: int, d: DType) -> tuple[Any, Any]:
    """Rows of different means and spreads, and the statistics that a product leaves of them."""
    t = R.torch()
    x = (
        random((m, k), DType.F32) * (0.3 + 3 * t.rand(m, 1, device="cuda"))
        + 2 * random((m, 1), DType.F32)
    ).to(R.torch_dtype(d))
    panels = x.double().reshape(m, k // 64, 64)
    mean = panels.mean(-1)
    return x, t.stack([mean, (panels - mean[..., None]).square().sum(-1)], -1).float().contiguous()


def moments(x: Any, rms: bool) -> tuple[Any, Any]:
    """Mean that is taken off and reciprocal deviation of every row."""
    v = x.double()
    mean = v.mean(-1, keepdim=True) * (0 if rms else 1)
    return mean, ((v - mean).square().mean(-1, keepdim=True) + _EPS).rsqrt()


def norm_request(d: DType, m: int, n: int, k: int, sides: str, act: str, rms: bool) -> Request:
    """sides: which of x, the residual and y have statistics: some of `xry`; a residual without
    them: `p`.
    """
    operands = ["x", "w", "bias", "y"]
    operands += ["x_stats", "x_sums"] if "x" in sides else []
    operands += (
        ["res", "r_stats", "r_gamma", "r_beta"] if "r" in sides else ["res"] if "p" in sides else []
    )
    operands += ["y_stats"] if "y" in sides else []
    mode = int("r" in sides or "p" in sides)
    ints = {
        "M": m,
        "N": n,
        "K": k,
        "ldx": k,
        "ldr": n,
        "ldy": n,
        "act": K.act_index(act),
        "res_mode": mode,
        "x_rms": int(rms),
        "r_rms": int(rms),
    }
    floats = {"x_eps": _EPS, "r_eps": _EPS, "unscale": 4.0}
    return R.request(
        "gemm_norm",
        d,
        ints,
        floats,
        operands=operands,
        constant=("w", "bias", "x_sums", "r_gamma", "r_beta"),
    )


def case(
    d: DType,
    m: int,
    n: int,
    k: int,
    sides: str,
    act: str = "none",
    *,
    rms: bool = False,
    tile: Any = None,
) -> Case:
    r = norm_request(d, m, n, k, sides, act, rms)
    if tile is not None:
        r = R.force(r, tile)

    def run() -> tuple[float, float]:
        t = R.torch()
        x, x_stats = rows(m, k, d) if "x" in sides else (random((m, k), d), None)
        w, b, gamma, beta = (
            random((n, k), d, 1 / math.sqrt(k)),
            random((n,), d),
            random((k,), d),
            random((k,), d),
        )
        pitch = weight_pitch(k, d.size)
        packed, sums, bias = (
            K.poisoned((n, pitch), d),
            t.zeros(n + 32, device="cuda"),
            t.zeros(n + 32, device="cuda"),
        )
        tensors: dict[str, Any] = {
            "x": x,
            "w": packed,
            "bias": bias,
            "y": K.poisoned((m * n + 64,), d),
        }
        if "x" in sides:
            weight, fold = pack(n, k, d)
            K.launch(weight, {"w": w, "packed": packed, "gamma": gamma})
            K.launch(
                fold, {"w": w, "packed": packed, "beta": beta, "b": b, "sums": sums, "bias": bias}
            )
            mean, scale = moments(x, rms)
            folded = packed[:, :k].double() * 4
            want = (
                scale * (x.double() @ folded.T - mean * folded.sum(-1))
                + b.double()
                + beta.double() @ w.double().T
            )
            size = (
                scale * (x.double().abs() @ folded.abs().T + (mean * folded.sum(-1)).abs())
                + b.double().abs()
                + beta.double().abs() @ w.double().abs().T
            )
            exact = (
                (x.double() - mean) * scale * gamma.double() + beta.double()
            ) @ w.double().T + b.double()
            drift = float((want - exact).norm() / exact.norm().clamp_min(1e-30)) if m else 0.0
            if drift > 2 * K.ROUNDOFF[d]:
                raise AssertionError(f"the folded weight differs by {drift:.1e}")
            tensors |= {"x_stats": x_stats, "x_sums": sums}
        else:
            packed[:, :k] = w
            bias[:n] = b.float()
            want, size = (
                x.double() @ w.double().T + b.double(),
                x.double().abs() @ w.double().abs().T + b.double().abs(),
            )
        if "r" in sides or "p" in sides:
            res, r_stats = rows(m, n, d) if "r" in sides else (random((m, n), d), None)
            added = res.double()
            tensors["res"] = res
            if "r" in sides:
                r_gamma, r_beta = t.randn(n + 32, device="cuda"), t.randn(n + 32, device="cuda")
                mean, scale = moments(res, rms)
                added = (added - mean) * scale * r_gamma[:n].double() + r_beta[:n].double()
                size = (
                    size
                    + (res.double().abs() + mean.abs()) * scale * r_gamma[:n].abs()
                    + r_beta[:n].abs()
                )
                tensors |= {"r_stats": r_stats, "r_gamma": r_gamma, "r_beta": r_beta}
            want = want + added
        want = K.activation(act, want, 0.0, 0.0)
        stats = K.poisoned((m * (n // 64) * 2 + 16,), DType.F32) if "y" in sides else None
        if stats is not None:
            tensors["y_stats"] = stats
        K.launch(r, tensors)
        y = tensors["y"]
        if not bool(y[m * n :].isnan().all()) or (
            stats is not None and not bool(stats[m * (n // 64) * 2 :].isnan().all())
        ):
            raise AssertionError("wrote beyond the last row")
        if stats is not None and m:
            got = stats[: m * (n // 64) * 2].reshape(m, n // 64, 2).double()
            panels = want.reshape(m, n // 64, 64)
            centre = panels.mean(-1)
            squares = (panels - centre[..., None]).square().sum(-1)
            error = max(
                float(((got[..., 0] - centre).abs() / panels.abs().amax(-1)).max()),
                float(((got[..., 1] - squares).abs() / squares).max()),
            )
            if not error < 3e-3:
                raise AssertionError(f"statistics differ by {error:.1e}")
        return K.compare(y[: m * n].reshape(m, n), want, size * 1.5, d, fast=act != "none")

    name = (
        f"gemm_norm {d.name} {m}x{n}x{k} {sides} {act}{' rms' if rms else ''}"
        f"{f' [{T.tile_name(tile)}]' if tile is not None else ''}"
    )
    return name, r, run


def check_cases() -> list[Case]:
    out: list[Case] = []
    for d in (DType.F16, DType.BF16):
        for sides in ("x", "y", "py", "r", "ry", "xy", "xry"):
            out += [case(d, m, 768, 768, sides) for m in (1, 128, 197)]
        out += [
            case(d, 512, 3072, 768, "x", "gelu_erf"),
            case(d, 4096, 768, 3072, "ry"),
            case(d, 4096, 2304, 768, "x"),
            case(d, 131, 50257, 128, "x"),
        ]
        out += [case(d, m, 320, 1280, "xry", "silu", rms=True) for m in (7, 64, 129, 1000)]
        out += [case(d, m, 61, 64, "x") for m in (3, 65)] + [
            case(d, m, 64, 72, "y") for m in (5, 130)
        ]
    for d, m, n, k, sides, act in (
        (DType.F16, 300, 576, 1088, "xry", "none"), (DType.BF16, 1500, 320, 192, "x", "gelu_tanh"),
        (DType.F16, 331, 389, 256, "x", "relu"),
        (DType.F16, 70, 192, 4096, "py", "none"),
    ):  # fmt: skip
        for tile in T.tiles(d, n, -(-k // 64)):
            if not hasattr(tile, "warps_m") and ("y" not in sides or tile.bn % 64 == 0):
                out.append(case(d, m, n, k, sides, act, tile=tile))
    return out

"""Odd sizes of products, convolutions and attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from tests.support.cuda import check as K
from tests.support.cuda import operands as O
from tests.support.cuda import runner as R
from tests.support.cuda.conv_shape import Conv, pitch
from tests.support.cuda.trials.trial import Places, Tensors, Trial, random, result
from tracea_onnx.ir.abi import DType

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
#: Scores that the float64 reference of attention holds at once.
_SCORES = 1 << 28


def _act(name: str, y: Any) -> Any:
    f = R.torch().nn.functional
    return {
        "none": lambda: y,
        "relu": lambda: f.relu(y),
        "silu": lambda: f.silu(y),
        "gelu_erf": lambda: f.gelu(y),
        "hard_swish": lambda: f.hardswish(y),
    }[name]()


def linear(
    dtype: DType, m: int, n: int, k: int, act: str = "none", *, pad: int = 0, res: bool = False
) -> Trial:
    """act(x w^T + b + res); pad: x is the first k columns of wider rows."""
    ints = {"M": m, "N": n, "K": k, "ldx": k + pad, "ldr": n, "ldy": n, "act": K.act_index(act)}
    operands = ("x", "w", "bias", "y", *(["res"] if res else []))
    r = R.request(
        "gemm", dtype, ints | {"res_mode": int(res)}, operands=operands, constant=("w", "bias")
    )

    def inputs() -> Tensors:
        return {
            "x": random(m, k + pad, dtype=dtype)[:, :k],
            "w": random(n, k, dtype=dtype, scale=k**-0.5),
            "b": random(n, dtype=dtype),
            **({"res": random(m, n, dtype=dtype)} if res else {}),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        bias = R.torch().zeros(-(-n // 32) * 32, device="cuda")
        bias[:n] = x["b"]
        y = result((m, n), dtype)
        packed = O.packed_weight(x["w"], dtype, trans=True)
        given = {k: v for k, v in x.items() if k in ("x", "res")}
        return [{**given, "w": packed, "bias": bias, "y": y}], y

    def eager(x: Tensors) -> Any:
        y = R.torch().nn.functional.linear(x["x"], x["w"], x["b"])
        return _act(act, y + x["res"] if res else y)

    name = (
        f"linear {dtype.name} {m}x{n}x{k} {act}{f' rows of {k + pad}' if pad else ''}"
        f"{' +res' * res}"
    )
    return Trial(
        name,
        dtype,
        [r],
        inputs,
        eager,
        ours,
        0.0 if act in ("none", "relu") else 2.0,
        True,
        [O.pack_gemm_request(n, k, dtype, True)],
        terms=k,
    )


def bmm(
    dtype: DType, b: int, m: int, n: int, k: int, *, trans_a: bool = False, trans_b: bool = False
) -> Trial:
    """Products of two run-time operands, either a transposed view."""
    ints = {
        "B0": 1, "B1": b, "M": m, "N": n, "K": k, "a_0": b * m * k, "a_1": m * k,
        "a_m": 1 if trans_a else k, "a_k": m if trans_a else 1,
        "b_0": b * n * k, "b_1": n * k, "b_k": 1 if trans_b else n, "b_n": k if trans_b else 1,
        "y_0": b * m * n, "y_1": m * n, "ldy": n,
    }  # fmt: skip
    r = R.request("matmul", dtype, ints, {"alpha": 1.0}, operands=("a", "b", "y"))

    def inputs() -> Tensors:
        left = (
            random(b, k, m, dtype=dtype).transpose(1, 2)
            if trans_a
            else random(b, m, k, dtype=dtype)
        )
        return {
            "a": left,
            "b": random(b, n, k, dtype=dtype).transpose(1, 2)
            if trans_b
            else random(b, k, n, dtype=dtype),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((b, m, n), dtype)
        return [{**x, "y": y}], y

    name = f"bmm {dtype.name} {b}x{m}x{n}x{k}{' a transposed' * trans_a}{' b transposed' * trans_b}"
    return Trial(
        name,
        dtype,
        [r],
        inputs,
        lambda x: R.torch().bmm(x["a"], x["b"]),
        ours,
        linear=True,
        terms=k,
    )


def convolution(dtype: DType, v: Conv) -> Trial:
    """Channels last on both sides, unless the image comes in planes; ours pads channels to 8, as
    the provider stores them.
    """
    (oh, ow), wide = v.out, pitch(v.oc)

    def inputs() -> Tensors:
        last = R.torch().channels_last
        terms = v.c // v.groups * v.kernel[0] * v.kernel[1]
        x = random(v.n, v.c, v.h, v.w, dtype=dtype)
        w = random(*v.weight_shape, dtype=dtype, scale=terms**-0.5)
        if not v.planes:
            x, w = x.contiguous(memory_format=last), w.contiguous(memory_format=last)
        made = {"x": x, "w": w, "b": random(v.oc, dtype=dtype)}
        if v.res_mode:
            made["res"] = random(v.n, v.oc, oh, ow, dtype=dtype).contiguous(memory_format=last)
        return made

    def ours(x: Tensors) -> tuple[Places, Any]:
        t = R.torch()
        bias = t.zeros(-(-v.oc // 32) * 32, device="cuda")
        bias[: v.oc] = x["b"]
        packed = O.packed_filter(v, x["w"].contiguous(), t.ones(v.oc, device="cuda"), dtype)
        y = result((v.n, oh, ow, wide), dtype)
        image = x["x"] if v.planes else O.channels_last(x["x"], pitch(v.c), dtype)
        places = {"x": image, "w": packed, "bias": bias, "y": y}
        if v.res_mode:
            places["res"] = O.channels_last(x["res"], wide, dtype)
        return [places], y[..., : v.oc].permute(0, 3, 1, 2)

    def eager(x: Tensors) -> Any:
        f, p, image, pads = R.torch().nn.functional, v.pads, x["x"], v.pads[:2]
        if v.transposed:
            y = f.conv_transpose2d(
                image, x["w"], x["b"], v.stride, pads, v.extra, v.groups, v.dilation
            )
        else:
            if p[:2] != p[2:]:
                image, pads = f.pad(image, (p[1], p[3], p[0], p[2])), (0, 0)
            y = f.conv2d(image, x["w"], x["b"], v.stride, pads, v.dilation, v.groups)
        if v.res_mode == 2:
            return _act(v.act, y) + x["res"]
        return _act(v.act, y + x["res"] if v.res_mode else y)

    rounded = 0.0 if v.act in ("none", "relu") else 2.0
    terms = v.c // v.groups * v.kernel[0] * v.kernel[1]
    return Trial(
        v.name(dtype),
        dtype,
        [O.conv_request(v, dtype)],
        inputs,
        eager,
        ours,
        rounded,
        True,
        [O.pack_conv_request(v, dtype)],
        terms=terms,
    )


def attention(
    dtype: DType, b: int, h: int, s: int, t: int, d: int, *, kv: int = 0, causal: bool = False,
    masked: bool = False, packed: bool = False,
) -> Trial:  # fmt: skip
    """[B, S, H, D] operands, as projections leave them. kv: heads of keys and values, where they
    are fewer; packed: q, k and v in one [B, S, 3, H, D]; masked: True where a key is seen.
    """
    kv = kv or h
    rows = {o: 3 * h * d if packed else n * d for o, n in (("q", h), ("k", kv), ("v", kv))}
    ints = {
        f"{o}_{a}": v
        for o, n in (("q", s), ("k", t), ("v", t))
        for a, v in (("b", n * rows[o]), ("s", rows[o]), ("h", d))
    }
    ints |= {
        "y_b": s * h * d,
        "y_s": h * d,
        "y_h": d,
        "B": b,
        "H": h,
        "KVH": kv,
        "S": s,
        "T": t,
        "D": d,
        "DV": d,
        "causal": int(causal),
    }
    ints |= {"m_k": 1, "m_q": t, "mask_kind": 2} if masked else {}
    operands = ("q", "k", "v", "y", *(["mask"] if masked else []))
    r = R.request(
        "attention", dtype, ints, {"scale": d**-0.5, "fill": float("-inf")}, None, operands
    )

    def inputs() -> Tensors:
        if packed:
            whole = random(b, s, 3, h, d, dtype=dtype)
            return {n: whole[:, :, j].transpose(1, 2) for j, n in enumerate("qkv")}
        out = {
            n: random(b, rows, heads, d, dtype=dtype).transpose(1, 2)
            for n, rows, heads in (("q", s, h), ("k", t, kv), ("v", t, kv))
        }
        if masked:
            out["mask"] = R.torch().rand(s, t, device="cuda") < 0.7
            out["mask"][:, 0] = True
        return out

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((b, s, h, d), dtype)
        return [{**x, "y": y}], y.transpose(1, 2)

    def eager(x: Tensors) -> Any:
        sdpa = R.torch().nn.functional.scaled_dot_product_attention
        if x["q"].dtype == R.torch().float64 and b * h * s * t > _SCORES:  # head by head
            y = R.torch().empty_like(x["q"])
            for i, j in itertools.product(range(b), range(h)):
                head = (x[o][i, j if o == "q" else j // (h // kv)] for o in "qkv")
                y[i, j] = sdpa(*(v[None] for v in head), x.get("mask"), is_causal=causal)[0]
            return y
        return sdpa(x["q"], x["k"], x["v"], x.get("mask"), is_causal=causal, enable_gqa=kv != h)

    # weights err as much relative to themselves as scores do absolutely, and these as their
    # products' sizes
    def size(x: Tensors) -> Any:
        q, k, v = (x[o].repeat_interleave(h // kv if o != "q" else 1, 1) for o in "qkv")
        scores = d**-0.5 * q @ k.transpose(2, 3)
        if causal:
            scores = scores.masked_fill(
                R.torch().ones(s, t, dtype=bool, device=scores.device).triu(1), -math.inf
            )
        if masked:
            scores = scores.masked_fill(~x["mask"], -math.inf)
        errors = scores.softmax(3) * (d**-0.5 * q.abs() @ k.abs().transpose(2, 3))
        return errors @ v.abs()

    name = (
        f"attention {dtype.name} {b}x{h}{f'/{kv}' if kv != h else ''}x{s}x{t}x{d}"
        f"{' causal' * causal}{' mask' * masked}{' packed' * packed}"
    )
    return Trial(
        name,
        dtype,
        [r],
        inputs,
        eager,
        ours,
        0.0 if dtype == F32 else 2.0,
        size=size if dtype == F32 else None,
    )


def trials() -> Iterator[Trial]:
    for dtype, m, n, k, act in (
        (F16, 127, 131, 137, "relu"), (F16, 1021, 1019, 1031, "none"),
        (BF16, 1021, 1019, 1031, "gelu_erf"), (F32, 509, 521, 523, "relu"),
        (F16, 1, 4099, 4093, "none"),
        (BF16, 3, 1009, 10007, "none"), (F16, 7, 50021, 67, "none"), (F16, 4093, 1, 1021, "none"),
        (F32, 1021, 1, 4093, "none"), (F16, 1021, 1031, 1, "none"),
        (F16, 8191, 61, 67, "silu"), (F16, 257, 509, 3, "relu"), (F16, 2, 3, 5, "none"),
        (F32, 1, 1, 1, "none"), (F16, 33, 4099, 4096, "none"),
        (BF16, 17, 4093, 4096, "none"), (F32, 7, 1021, 4099, "none"), (F16, 100003, 7, 11, "relu"),
    ):  # fmt: skip
        yield linear(dtype, m, n, k, act)
    yield linear(F16, 517, 768, 768, pad=3)
    yield bmm(F16, 91, 61, 67, 71)
    yield bmm(F16, 1, 1009, 1013, 1019)
    yield bmm(BF16, 7, 127, 131, 61, trans_a=True)
    yield bmm(F16, 13, 1, 127, 131, trans_b=True)
    yield bmm(F32, 15, 37, 41, 43, trans_b=True)
    one, none = (1, 1), (0, 0, 0, 0)
    for dtype, v in (
        (F16, Conv(1, 3, 227, 229, 61, (7, 7), (3, 2), one, (1, 2, 3, 4))),
        (F16, Conv(2, 17, 53, 47, 31)), (F16, Conv(3, 127, 29, 31, 131, (1, 1), pads=none)),
        (F16, Conv(1, 251, 13, 11, 257)), (F16, Conv(2, 35, 31, 29, 55, groups=5)),
        (F16, Conv(2, 61, 37, 41, 67, dilation=(2, 3), pads=(2, 3, 2, 3))),
        (F16, Conv(1, 97, 17, 19, 101, (5, 2), (3, 2), one, (2, 0, 1, 1))),
        (F16, Conv(1, 1, 97, 89, 7, (11, 5), pads=(5, 2, 5, 2))),
        (BF16, Conv(5, 67, 23, 19, 71, act="silu")), (F32, Conv(2, 31, 29, 23, 37)),
        (F16, Conv(13, 509, 7, 7, 127, (1, 1), pads=none)),
        (F16, Conv(1, 7, 3, 5, 11, (1, 1), pads=none)),
        (F32, Conv(1, 61, 17, 13, 59, (1, 1), pads=none)),
        (F16, Conv(1, 13, 1, 1009, 17, (1, 7), pads=(0, 3, 0, 3))),
        (F16, Conv(1, 61, 13, 11, 37, (3, 3), (2, 2), extra=(1, 1), transposed=True, act="none")),
        (F16, Conv(1, 61, 57, 53, 61, groups=61)),
        (F16, Conv(7, 131, 29, 31, 131, (5, 5), (2, 2), one, (2, 2, 2, 2), 131, act="silu")),
        (BF16, Conv(1, 17, 127, 113, 17, (7, 7), pads=(3, 3, 3, 3), groups=17)),
        (F16, Conv(2, 253, 19, 17, 253, dilation=(2, 2), pads=(2, 2, 2, 2), groups=253)),
        (F32, Conv(1, 61, 57, 53, 61, groups=61)),
    ):  # fmt: skip
        yield convolution(dtype, v)
    yield attention(F16, 2, 7, 1, 1031, 64)
    yield attention(F16, 1, 13, 17, 17, 64)
    yield attention(F16, 3, 5, 131, 131, 64)
    yield attention(F16, 2, 3, 257, 257, 80, causal=True)
    yield attention(F16, 1, 7, 131, 131, 61)
    yield attention(F16, 2, 5, 131, 131, 64, packed=True)
    yield attention(F16, 2, 5, 127, 257, 64, masked=True)
    yield attention(BF16, 1, 3, 521, 523, 128)
    yield attention(F32, 1, 5, 131, 131, 64)
    yield attention(BF16, 5, 3, 1, 17, 128)
    yield attention(BF16, 2, 15, 3, 2039, 128, kv=5)
    yield attention(F16, 2, 71, 1, 2039, 64, kv=1)
    yield attention(BF16, 7, 40, 1, 1531, 128, kv=8)
    yield attention(F16, 3, 11, 127, 509, 47, causal=True)
    yield attention(F16, 1, 3, 521, 1021, 191)
    yield attention(F16, 1, 5, 61, 4093, 128)
    yield attention(F32, 1, 3, 1, 4093, 72)
    yield attention(F32, 2, 5, 509, 521, 61)

"""The meaning of the attention, normalisation, softmax and rotary specs in float64, and a check
against ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from tests.host.rules import rules_oracle
from tests.host.rules.rules_oracle import feeds_of, run_all
from tracea_onnx.ir.activations import evaluate
from tracea_onnx.ir.contracts import Match, Spec
from tracea_onnx.ir.expr import Expr
from tracea_onnx.match.strided_view import strides

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def check_spec(
    m: ModelProto,
    match: Match,
    *,
    sizes: Mapping[str, int] | None = None,
    tolerance: float = 2e-5,
    seed: int = 0,
    feeds: Mapping[str, Array] | None = None,
) -> None:
    """The spec, evaluated in float64 on the values entering the chain, gives every value that
    leaves it.
    """
    given = dict(feeds) if feeds is not None else feeds_of(m, np.random.default_rng(seed), sizes)
    values = run_all(m, given)
    entering = {
        role: np.asarray(values[name], np.float64)
        for role, name in zip(match.spec.roles, match.inputs, strict=True)
    }
    results = compute(match.spec, entering)
    assert len(results) >= len(match.outputs)
    for got, name in zip(results, match.outputs, strict=False):
        want = np.asarray(values[name], np.float64)
        assert got.shape == want.shape
        assert np.array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(
            got,
            want,
            rtol=tolerance,
            atol=tolerance * (np.abs(np.nan_to_num(want)).max(initial=0.0) + 1e-6),
        )


def compute(spec: Spec, v: Mapping[str, F64]) -> list[F64]:
    with np.errstate(all="ignore"):
        return {
            "attention": _attention,
            "layernorm": _layernorm,
            "groupnorm": _groupnorm,
            "softmax": _softmax,
            "rope": _rope,
        }[spec.op](spec.attrs, v)


def _heads(x: F64, operand: Mapping[str, Any], heads: int) -> F64:
    """The operand as [batch, heads, sequence, elements], through the strides its layout stands
    for.
    """
    size, stride, offset = strides(operand["layout"], x.shape, heads, operand.get("index", 0))
    flat = np.ascontiguousarray(x).reshape(-1)
    at = np.full([int(size[c]) for c in "bhsd"], int(offset), np.int64)
    for axis, c in enumerate("bhsd"):
        at += (np.arange(at.shape[axis]) * int(stride[c])).reshape(
            [-1 if k == axis else 1 for k in range(4)]
        )
    return np.asarray(flat[at])


def _attention(a: Mapping[str, Any], v: Mapping[str, F64]) -> list[F64]:
    q = _heads(v["q"], a["q"], a["num_heads"])
    k, val = (_heads(v[c], a[c], a["kv_heads"]) for c in "kv")
    repeat = q.shape[1] // k.shape[1]
    k, val = np.repeat(k, repeat, axis=1), np.repeat(val, repeat, axis=1)
    s = a["scale"] * q @ np.swapaxes(k, -1, -2)
    if "head_scale" in v:
        s = s * v["head_scale"].reshape(-1, 1, 1)
    if cap := a.get("softcap", 0.0):
        s = cap * np.tanh(s / cap)
    rows, columns = s.shape[-2:]
    for tail in ("", "1", "2"):
        if f"mask{tail}" in v:
            kind, mask = a[f"mask{tail}_kind"], v[f"mask{tail}"]
            if f"mask{tail}_period" in a:  # [1, windows, heads, queries, keys]
                mask = mask.reshape(mask.shape[-4:])[np.arange(len(q)) % a[f"mask{tail}_period"]]
            if a.get(f"mask{tail}_merged"):
                mask = mask.reshape(-1, a["num_heads"], *mask.shape[1:])
            s = (
                s + a.get(f"mask{tail}_scale", 1.0) * mask
                if kind == "add"
                else np.where((mask != 0) == (kind == "bool"), s, float(a[f"fill{tail}"]))
            )
    if a["causal"]:  # whatever else is written: such a column is not seen
        past = columns - rows if a["past"] == "kv" else a["past"]
        s = np.where(np.tri(rows, columns, past, dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    if a["nan_to_zero"]:
        p = np.where(
            np.isnan(p)
            if a["nan_to_zero"] != "masked"
            else np.all(np.isneginf(s), axis=-1, keepdims=True),
            0.0,
            p,
        )
    y = p @ val
    b, h, n, d = y.shape
    layout = a["out"]["layout"]
    order = {
        "bhsd": "bhsd",
        "bshd": "bshd",
        "bsx": "bshd",
        "sbhd": "sbhd",
        "sbx": "sbhd",
        "hsd": "bhsd",
        "bxs": "bhds",
        "bhds": "bhds",
        "hds": "bhds",
    }[layout]
    y = np.transpose(y, ["bhsd".index(c) for c in order])
    size = dict(zip("bhsd", (b, h, n, d), strict=True)) | {"x": h * d}
    return [
        y.reshape([size[c] * (size["b"] if layout[0] == "h" and c == "h" else 1) for c in layout])
    ]


def _layernorm(a: Mapping[str, Any], v: Mapping[str, F64]) -> list[F64]:
    channels = a["axis"] == 1
    if channels:  # the norm of an image over its channels, each weight one value per channel
        column = (-1, *[1] * (v["x"].ndim - 2))
        v = {**v, **{k: v[k].reshape(column) for k in ("xbias", "gamma", "beta") if k in v}}
    s = v["x"] + v.get("res", 0.0) + v.get("xbias", 0.0)
    assert s.shape == v["x"].shape, "what is added enlarges the input"
    axes = (1,) if channels else tuple(range(a["axis"], 0))
    centred = s if a["rms"] else s - s.mean(axis=axes, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + a["eps"])
    y = y * ((1.0 if a["gamma_add"] else 0.0) + v["gamma"]) if "gamma" in v else y
    return [np.asarray(y + v.get("beta", 0.0)), np.asarray(s)]


def _groupnorm(a: Mapping[str, Any], v: Mapping[str, F64]) -> list[F64]:
    x = v["x"]
    groups = x.shape[1] if a["groups"] == -1 else a["groups"]
    g = x.reshape(x.shape[0], groups, -1)
    g = (g - g.mean(axis=2, keepdims=True)) / np.sqrt(g.var(axis=2, keepdims=True) + a["eps"])
    y, column = g.reshape(x.shape), (-1, *[1] * (x.ndim - 2))
    y = y * v.get("gamma", np.ones(1)).reshape(column) + v.get("beta", np.zeros(1)).reshape(column)
    return [evaluate(Expr.from_json(a["expr"]), [y]) if "expr" in a else y]


def _softmax(a: Mapping[str, Any], v: Mapping[str, F64]) -> list[F64]:
    s = v["x"] - v["x"].max(axis=a["axis"], keepdims=True)
    total = np.exp(s).sum(axis=a["axis"], keepdims=True)
    return [np.asarray(s - np.log(total) if a["log"] else np.exp(s) / total)]


def _rope(a: Mapping[str, Any], v: Mapping[str, F64]) -> list[F64]:
    x, cos, sin = v["x"], v["cos"], v["sin"]
    if "pos" in v:
        cos, sin = (t[v["pos"].astype(np.int64)] for t in (cos, sin))
    if a["layout"] == "bsx":
        b, s, width = x.shape
        x = x.reshape(b, s, a["num_heads"], width // a["num_heads"])
    if cos.ndim == 3:  # [batch, sequence, table]: the same for every head
        cos, sin = (np.expand_dims(t, 1 if a["layout"] == "bhsd" else 2) for t in (cos, sin))
    rot = a["rot"]
    half = rot // 2
    one, two = (
        (slice(0, rot, 2), slice(1, rot, 2))
        if a["interleaved"]
        else (slice(0, half), slice(half, rot))
    )
    full = cos.shape[-1] == rot  # a value for every element, else for every pair
    (c1, c2), (s1, s2) = ((t[..., one], t[..., two]) if full else (t, t) for t in (cos, sin))
    y = x.copy()
    y[..., one] = x[..., one] * c1 - x[..., two] * s1
    y[..., two] = x[..., two] * c2 + x[..., one] * s2
    return [y.reshape(v["x"].shape)]


def results(spec: Spec, v: Mapping[str, F64]) -> list[F64]:
    """Every output of a spec of any kind. Infinities and NaN are results like others."""
    with np.errstate(all="ignore"):
        return (
            compute(spec, v)
            if spec.op in ("attention", "layernorm", "groupnorm", "softmax", "rope")
            else [rules_oracle.compute(spec, v)]
        )

"""Operators of com.microsoft that ONNX Runtime's transformer optimizer makes: the provider takes
each, on both backends, and gives what ONNX Runtime gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.session.provider.test_sizes_of_a_run import cuda
from tracea_onnx import provider

B, S, H, N = 3, 11, 24, 4
F, I32 = TensorProto.FLOAT, TensorProto.INT32
Arrays = dict[str, np.ndarray[Any, Any]]


def _model(
    op: str, inputs: str, outputs: str, feeds: Arrays, weights: Arrays, **attrs: Any
) -> ModelProto:
    """inputs: by place, `-` where one is left out."""
    named = [n.replace("-", "") for n in inputs.split()]
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(
        op, named, [n.replace("-", "") for n in outputs.split()], op, domain=domain, **attrs
    )
    infos = [
        helper.make_tensor_value_info(
            k,
            helper.np_dtype_to_tensor_dtype(v.dtype),
            [f"{k}{d}" if d else "batch" for d in range(v.ndim)],
        )
        for k, v in feeds.items()
    ]
    for info, v in zip(infos, feeds.values(), strict=True):
        for d in range(v.ndim):  # sizes of the model are known, of batches and sequences not
            if v.dtype.kind == "f" and (d == v.ndim - 1 or (v.shape[d] in (N, 2, 3) and d)):
                info.type.tensor_type.shape.dim[d].dim_value = v.shape[d]
    results = [
        helper.make_tensor_value_info(n, I32 if n == "count" else F, None)
        for n in outputs.split()
        if n != "-"
    ]
    graph = helper.make_graph(
        [node], "g", infos, results, [numpy_helper.from_array(v, k) for k, v in weights.items()]
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )


def _agrees(m: ModelProto, feeds: Arrays, oracle: tuple[ModelProto, Arrays] | None = None) -> None:
    data = m.SerializeToString()
    session = provider.create_session(data, {"claim": "all"})
    assert {e.ep_name for e in session.get_provider_graph_assignment_info()} == {
        provider.PROVIDER_NAME
    }
    reference, given = oracle or (m, feeds)
    want = ort.InferenceSession(
        reference.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, given)
    for a, b in zip(want, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5)
    launches, refused = cuda(m)
    assert launches and not refused


def _normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _mask(*shape: int) -> np.ndarray[Any, Any]:
    m = (np.random.default_rng(5).random(shape) < 0.7).astype(np.int32)
    m[..., 0] = 1
    return m


VECTORS: Arrays = {"gamma": _normal(1, H), "beta": _normal(2, H), "bias": _normal(3, H)}


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attrs"),
    [
        ("SkipLayerNormalization", "x s gamma", "y", {}),
        ("SkipLayerNormalization", "x s gamma beta bias", "y - - sum", {"epsilon": 1e-3}),
        ("SkipLayerNormalization", "x s gamma - bias", "y", {"epsilon": 1e-5}),
        ("SkipSimplifiedLayerNormalization", "x s gamma", "y", {}),
        ("SkipSimplifiedLayerNormalization", "x s gamma bias", "y - - sum", {"epsilon": 1e-2}),
        ("SimplifiedLayerNormalization", "x gamma", "y", {"epsilon": 0.1}),
    ],
)  # fmt: skip
def test_norms(op: str, inputs: str, outputs: str, attrs: dict[str, Any]) -> None:
    feeds = {
        k: v
        for k, v in {"x": _normal(0, B, S, H) * 1e-5, "s": _normal(7, B, S, H) * 1e-5}.items()
        if k in inputs.split()
    }
    weights = {
        k: v * (1e-5 if k == "bias" else 1) for k, v in VECTORS.items() if k in inputs.split()
    }
    _agrees(_model(op, inputs, outputs, feeds, weights, **attrs), feeds)


@pytest.mark.parametrize("mask", ["none", "keys", "queries", "lengths", "scores"])
@pytest.mark.parametrize(
    "attrs",
    [{}, {"unidirectional": 1}, {"scale": 0.3, "mask_filter_value": -3.4028234663852886e38}],
    ids=["plain", "causal", "scaled"],
)
def test_attention_with_its_projections(mask: str, attrs: dict[str, Any]) -> None:
    feeds: Arrays = {"x": _normal(0, B, S, H)}
    weights: Arrays = {"w": _normal(1, H, 3 * H) * 0.2, "b": _normal(2, 3 * H)}
    masks = {
        "keys": _mask(B, S),
        "queries": _mask(B, S, S),
        "lengths": np.array([S, 1, 5], np.int32),
    }
    inputs = "x w b"
    if mask in masks:
        feeds["m"], inputs = masks[mask], "x w b m"
    elif mask == "scores":
        weights["a"], inputs = _normal(4, B, N, S, S), "x w b - - a"
    _agrees(_model("Attention", inputs, "y", feeds, weights, num_heads=N, **attrs), feeds)


@pytest.mark.parametrize("mask", ["none", "keys", "lengths", "scores"])
@pytest.mark.parametrize("form", ["biases", "cross", "apart", "packed", "pairs"])
def test_attention_of_many_heads(form: str, mask: str) -> None:
    t, d = S if form == "packed" else 7, H // N
    feeds: Arrays = {"q": _normal(0, B, S, H), "k": _normal(1, B, t, H), "v": _normal(2, B, t, H)}
    if form == "apart":
        feeds |= {"k": _normal(1, B, N, t, d), "v": _normal(2, B, N, t, d)}
    elif form == "packed":
        feeds = {"q": _normal(0, B, S, N, 3, d)}
    elif form == "pairs":
        feeds = {"q": _normal(0, B, S, H), "k": _normal(1, B, t, N, 2, d)}
    weights: Arrays = {"b": _normal(3, 3 * H)} if form == "biases" else {}
    inputs = [
        *(
            ["q", "k", "v"]
            if len(feeds) == 3
            else ["q", "k", "-"]
            if len(feeds) == 2
            else ["q", "-", "-"]
        ),
        "b" if weights else "-",
    ]
    if mask in ("keys", "lengths"):
        feeds["m"] = _mask(B, t) if mask == "keys" else np.array([t, 1, 5], np.int32)
        inputs.append("m")
    elif mask == "scores":
        weights["a"] = _normal(4, B, N, S, t)
        inputs += ["-", "a"]
    oracle = None
    if form in ("packed", "pairs"):  # which ONNX Runtime does not compute on a CPU
        whole = feeds["q" if form == "packed" else "k"]
        flat = dict(
            zip(
                "qkv"[3 - whole.shape[3] :],
                (whole[:, :, :, j].reshape(B, t, H) for j in range(whole.shape[3])),
                strict=True,
            )
        )
        given = {**feeds, **flat}
        oracle = (
            _model(
                "MultiHeadAttention",
                " ".join(["q", "k", "v", *inputs[3:]]),
                "y",
                given,
                weights,
                num_heads=N,
            ),
            given,
        )
    _agrees(
        _model("MultiHeadAttention", " ".join(inputs), "y", feeds, weights, num_heads=N),
        feeds,
        oracle,
    )


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("past", [None, 0, 1, 6])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_cache(causal: int, past: int | None, mask: bool) -> None:
    feeds: Arrays = {"x": _normal(0, B, S, H)}
    weights: Arrays = {"w": _normal(1, H, 3 * H) * 0.2, "b": _normal(2, 3 * H)}
    inputs = ["x", "w", "b", "-", "-"]
    if past is not None:
        feeds["p"], inputs[4] = _normal(3, 2, B, N, past, H // N), "p"
    if mask:
        feeds["m"], inputs[3] = _mask(B, S + (past or 0)), "m"
    m = _model(
        "Attention", " ".join(inputs), "y present", feeds, weights, num_heads=N,
        unidirectional=causal,
    )  # fmt: skip
    if past is not None:
        for axis, d in enumerate((2, "batch", N, "past", H // N)):
            dim = next(i for i in m.graph.input if i.name == "p").type.tensor_type.shape.dim[axis]
            dim.Clear()
            if isinstance(d, int):
                dim.dim_value = d
            else:
                dim.dim_param = d
    _agrees(m, feeds)


@pytest.mark.parametrize(("inputs", "outputs"), [
    ("ids - words places - gamma beta", "y -"),
    ("ids - words places - gamma beta", "y count"),
    ("ids kinds words places sorts gamma beta mask", "y count"),
    ("ids kinds words places sorts gamma beta - at", "y - sum"),
])  # fmt: skip
def test_embeddings(inputs: str, outputs: str) -> None:
    rng = np.random.default_rng(0)
    feeds: Arrays = {
        "ids": rng.integers(0, 50, (B, S)).astype(np.int32),
        "kinds": rng.integers(0, 2, (B, S)).astype(np.int32),
        "mask": _mask(B, S),
    }
    feeds["at"] = rng.integers(0, 20, (B, S)).astype(np.int32)
    weights = {
        "words": _normal(1, 50, H),
        "places": _normal(2, 20, H),
        "sorts": _normal(3, 2, H),
        **VECTORS,
    }
    used = {k: v for k, v in feeds.items() if k in inputs.split()}
    _agrees(
        _model(
            "EmbedLayerNormalization",
            inputs,
            outputs,
            used,
            {k: v for k, v in weights.items() if k in inputs.split()},
            epsilon=1e-12,
        ),
        used,
    )


def test_a_norm_over_axis_1_is_one_of_all_axes_behind_it() -> None:
    """An axis 1 in a spec means channels. No rule takes a norm that computes in float64."""
    feeds, weights = {"x": _normal(0, B, 3, H)}, {"gamma": _normal(1, 3, H)}
    attrs = {"axis": 1, "stash_type": TensorProto.DOUBLE}
    _agrees(_model("SimplifiedLayerNormalization", "x gamma", "y", feeds, weights, **attrs), feeds)


def test_a_norm_of_another_type_is_left() -> None:
    feeds: Arrays = {k: _normal(0, B, S, H).astype(np.float16) for k in "xs"}
    m = _model(
        "SkipLayerNormalization",
        "x s gamma",
        "y",
        feeds,
        {"gamma": VECTORS["gamma"].astype(np.float16)},
    )
    m.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    session = provider.create_session(m.SerializeToString(), {"claim": "all"})
    assert provider.PROVIDER_NAME not in {
        e.ep_name for e in session.get_provider_graph_assignment_info()
    }
    launches, refused = cuda(m)
    assert [family[:9] for family, _ in launches] == ["layernorm"] and not refused


def test_what_is_not_understood_is_left() -> None:
    feeds: Arrays = {"x": _normal(0, B, S, H)}
    m = _model(
        "Attention",
        "x w b",
        "y",
        feeds,
        {"w": _normal(1, H, 3 * H), "b": _normal(2, 3 * H)},
        num_heads=N,
        do_rotary=1,
    )
    _, (reason,) = cuda(m)
    assert "do_rotary" in reason

"""Einsum of two tensors on the provider: every group of axes, wherever it lies."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx import provider
from tracea_onnx.shapes.operands import terms

CASES = [
    ("bhwc,hkc->bhwk", (2, 5, 6, 16), (5, 7, 16)), ("bhwc,wkc->bhwk", (2, 5, 6, 16), (6, 7, 16)),
    ("bghid,bghjd->bghij", (2, 3, 2, 5, 8), (2, 3, 2, 7, 8)),
    ("b g h i j, b g h j d -> b g h i d", (2, 3, 2, 5, 7), (2, 3, 2, 7, 8)),
    ("bsd,ndf->bsnf", (2, 5, 8), (3, 8, 9)), ("bsnf,nfd->bsnd", (2, 5, 3, 9), (3, 9, 8)),
    ("...ij,jk->...ik", (2, 3, 4, 5), (5, 6)), ("ij,kj", (4, 5), (6, 5)),
    ("bhd,hd->bhd", (2, 3, 4), (3, 4)), ("i,j->ij", (4,), (5,)),
    ("bqc,bchw->bqhw", (2, 5, 8), (2, 8, 3, 4)), ("bcs,bct->bts", (2, 8, 5), (2, 8, 6)),
    ("nchw,nc->nhw", (2, 8, 3, 4), (2, 8)),
    ("bhij,bjhd->bihd", (2, 3, 4, 5), (2, 5, 3, 8)), ("bxhyd,md->bxhym", (2, 3, 2, 4, 8), (6, 8)),
    ("abc,cd->dab", (2, 3, 4), (4, 5)), ("i,i->", (5,), (5,)),
]  # fmt: skip


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("equation", "a", "b"), CASES, ids=[c[0] for c in CASES])
def test_as_onnx_runtime(
    equation: str, a: tuple[int, ...], b: tuple[int, ...], constant: bool
) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *a[1:]])]
    given += [] if constant else [helper.make_tensor_value_info("w", TensorProto.FLOAT, b)]
    nodes = [
        helper.make_node("Einsum", ["x", "w"], ["t"], equation=equation),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(
        nodes, "g", given, result, [numpy_helper.from_array(w, "w")] if constant else []
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    data = {"x": x} if constant else {"x": x, "w": w}
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert all(
        p.ep_name == provider.PROVIDER_NAME for p in session.get_provider_graph_assignment_info()
    )
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)
    np.testing.assert_allclose(session.run(None, data)[0], want[0], atol=1e-4)


def test_an_ellipsis_is_axes() -> None:
    assert terms("...ij,...jk->...ik", [4, 3]) == (["abij", "bjk"], "abik") and terms(
        "ij,kj", [2, 2]
    ) == (["ij", "kj"], "ik")

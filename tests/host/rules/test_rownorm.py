"""Norms of rows folded into the products around them: where lowering does so on Hopper, and where
it makes the norm instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.lower.value import DeferredNorm, Value
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io.builder import Net
from tracea_onnx.model_io.builder import Value as Tensor
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support import discovery


def launches(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, *, arch: int = 90, half: bool = True
) -> list[str]:
    """Families of a run, with the statistics that products read (x, r) and leave (y)."""
    found: list[str] = []
    append = BackendPlan._append

    def record(self: BackendPlan, family: str, refs: Any, *rest: Any) -> None:
        append(self, family, refs, *rest)
        if self.name != "probe" and rest[-1] is self._run:
            found.append(
                family + "".join(side for side in "xry" if refs.get(f"{side}_stats") is not None)
            )

    monkeypatch.setattr(BackendPlan, "_append", record)
    monkeypatch.setattr(BackendPlan, "_compile", lambda self: None)
    converted = convert_float_to_float16(model, keep_io_types=False) if half else model
    # as ONNX Runtime hands graphs over
    for node in [n for n in converted.graph.node if n.op_type == "Constant"]:
        converted.graph.initializer.add().CopyFrom(node.attribute[0].t)
        converted.graph.initializer[-1].name = node.output[0]
        converted.graph.node.remove(node)
    result = partition_compiler.compile_graph(
        Graph(converted),
        plan_writer.writer_of({"backend": "cuda", "arch": str(arch), "sms": "132"}),
    )
    assert len(result.entries) == 1 and not result.refused
    return found


def chain(after: Callable[[Net, Tensor, Tensor], Tensor], width: int = 128) -> onnx.ModelProto:
    """after(net, h, norm(h)) of h = x @ w + b + x."""
    net = Net("chain")
    x = net.input("x", ["n", 7, width], width=width)
    h = net.add(net.linear(x, width, name="first"), x)
    y = after(net, h, net.layer_norm(h))
    return net.model([("y", y, np.float32, ["n", 7, y.width])])


def pre_norm(net: Net, h: Tensor, y: Tensor) -> Tensor:
    return net.add(
        net.linear(net.act(net.linear(y, 192, name="up"), "gelu"), h.width, name="down"), h
    )


def post_norm(net: Net, h: Tensor, y: Tensor) -> Tensor:
    return net.linear(
        net.layer_norm(
            net.add(
                net.linear(net.act(net.linear(y, 192, name="up"), "gelu"), h.width, name="down"), y
            ),
            name="second",
        ),
        8,
        name="head",
    )


def test_before_products(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launches(chain(pre_norm), monkeypatch) == ["gemm_normy", "gemm_normx", "gemm"]


def test_and_as_a_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launches(chain(post_norm), monkeypatch) == [
        "gemm_normy",
        "gemm_normx",
        "gemm_normry",
        "gemm_normx",
    ]


def test_before_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(net: Net, h: Tensor, y: Tensor) -> Tensor:
        return net.linear(
            net.op(
                "Mul",
                net.act(net.linear(y, 192, name="gate"), "silu"),
                net.linear(y, 192, name="up"),
                width=192,
                power=1.0,
            ),
            8,
            name="down",
        )

    assert launches(chain(gated), monkeypatch) == ["gemm_normy", "gemm_normx", "pointwise", "gemm"]


def test_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two layers' norms the first adds up embeddings, and the last is read by a Gather."""
    model = discovery.module("models", "vit_b16").build(
        image=32, patch=16, layers=2, hidden=128, heads=2, inner=256, classes=8
    )
    found = [
        f for f in launches(model, monkeypatch) if f.startswith(("gemm", "layernorm", "attention"))
    ]
    layer = ["attention", "gemm_normy", "gemm_normx", "gemm_normy", "gemm_normx"]
    assert found == [
        "layernorm_sum",
        "gemm",
        *layer,
        "attention",
        "gemm_normy",
        "gemm_normx",
        "gemm",
        "layernorm",
        "gemm",
    ]


def test_post_norm_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query, key and value projections are one product, of rows that are normalised as it reads
    them.
    """
    model = discovery.module("models", "bert_base").build(
        seq=16, dynamic=False, layers=2, hidden=128, heads=2, inner=256, vocab=50, positions=16
    )
    found = [
        f for f in launches(model, monkeypatch) if f.startswith(("gemm", "layernorm", "attention"))
    ]
    layer = ["attention", "gemm_normy", "gemm_normx", "gemm_normry"]
    assert found == [
        "layernorm_sum",
        "gemm",
        *layer,
        "gemm_normx",
        "attention",
        "gemm_normry",
        "gemm_normx",
        "gemm_normr",
        "layernorm",
        "gemm",
    ]


def test_not_before_a_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launches(chain(lambda net, h, y: net.linear(y, 9 * h.width)), monkeypatch) == [
        "gemm",
        "layernorm",
        "gemm",
    ]


def test_no_kernel_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for arch, half in ((80, True), (90, False)):
        with monkeypatch.context() as patched:
            assert launches(chain(pre_norm), patched, arch=arch, half=half) == [
                "gemm",
                "layernorm",
                "gemm",
                "gemm",
            ]


def test_rows_that_are_no_whole_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launches(chain(pre_norm, 96), monkeypatch) == ["gemm", "layernorm", "gemm", "gemm"]


@pytest.mark.parametrize(
    "other",
    [
        # somebody else reads the norm
        lambda net, h, y: net.add(
            net.linear(y, h.width), net.op("Softmax", y, axis=-1, width=h.width, power=1.0)
        ),
        lambda net, h, y: net.op("Softmax", y, axis=-1, width=h.width),
        # nobody multiplies it
        lambda net, h, y: net.add(net.op("Softmax", net.linear(h, h.width), axis=-1), y),
        lambda net, h, y: net.op("MatMul", net.transpose(y, 0, 2, 1), y, width=h.width),
    ],
)
def test_other_readers_have_it_made(
    other: Callable[[Net, Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = launches(chain(other), monkeypatch)
    assert "layernorm" in found and not any("norm" in f for f in found if f != "layernorm")


def test_small_weights_keep_their_bits() -> None:
    x, here = Value("x", DType.F16, (4, 64)), Ref(0)

    def folded(gamma: float, add: int = 0) -> float:
        data = np.full(64, gamma, np.float16)
        data[3] = -data[3]
        return DeferredNorm(
            x, here, Value("g", DType.F16, (64,), data=data), None, 1e-5, False, add
        ).unscale

    assert (
        folded(1.0) == 1.0
        and folded(0.75) == 1.0
        and folded(3.0) == 4.0
        and folded(2.0**-9) == 2.0**-9
        and folded(0.0) == 1.0
        and folded(0.5, 1) == 2.0
    )
    assert DeferredNorm(x, here, None, None, 1e-5, True, 0).unscale == 1.0

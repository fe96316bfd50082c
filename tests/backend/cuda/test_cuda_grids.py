"""No launch asks for more blocks along a grid's second or third axis than a GPU has, whatever the
batch: every family with 70,000 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.backend.cuda.cuda_requests import request
from tracea_onnx.codegen.backend import Launch
from tracea_onnx.codegen.kernel_request import Int64, Kernel, NoKernel, Pointer, Request
from tracea_onnx.codegen.size_ranges import ranged
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import discovery

MANY, MOST = 70_000, 65_535
F16, F32, I64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=outputs.split()[0], **attrs)


@dataclass(frozen=True)
class Case:
    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Shape]
    weights: Mapping[str, Any]


def _weight(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


def _products(b: int | str) -> Iterator[tuple[str, Case]]:
    pairs: dict[str, tuple[Shape, Shape]] = {
        "whole": ((b, 7, 64), (b, 64, 9)), "two axes": ((b, 3, 7, 64), (b, 3, 64, 9)),
        "second axis": ((2, b, 7, 64), (2, b, 64, 9)), "rows": ((b, 1, 64), (b, 64, 96)),
        "few shared": ((b, 3, 7, 64), (3, 64, 9)), "many shared": ((3, b, 7, 64), (b, 64, 9)),
        "large": ((b, 64, 64), (b, 64, 64)), "odd": ((3, b, 7, 63), (b, 63, 9)),
    }  # fmt: skip
    for name, (left, right) in pairs.items():
        yield f"matmul {name}", Case([node("MatMul", "a b", "y")], {"a": left, "b": right}, {})
    yield (
        "matmul weight",
        Case([node("MatMul", "a b", "y")], {"a": (b, 7, 64)}, {"b": _weight(64, 9)}),
    )
    yield "gemm", Case([node("Gemm", "a b", "y")], {"a": (b, 64)}, {"b": _weight(64, 9)})
    yield (
        "einsum",
        Case(
            [node("Einsum", "a b", "y", equation="bij,bjk->bik")],
            {"a": (b, 7, 64), "b": (b, 64, 9)},
            {},
        ),
    )
    chain = [
        node("MatMul", "q k", "s"),
        node("Mul", "s c", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    for queries, keys, size in ((16, 16, 64), (1, 128, 64), (49, 49, 32)):
        for name, lead in (("batch", (b, 3)), ("heads", (2, b))):
            given = {
                "q": (*lead, queries, size),
                "k": (*lead, size, keys),
                "v": (*lead, keys, size),
            }
            yield f"attention {queries} {keys} {name}", Case(chain, given, {"c": np.array(0.125)})


def _images(b: int | str) -> Iterator[tuple[str, Case]]:
    x = {"x": (b, 16, 6, 6)}
    for c, out, group, k in (
        (16, 16, 1, 3),
        (64, 64, 1, 1),
        (3, 32, 1, 3),
        (32, 32, 32, 3),
        (64, 64, 4, 3),
        (64, 64, 32, 3),
        (3, 3, 3, 5),
    ):
        conv = node("Conv", "x w", "y", group=group, pads=[k // 2] * 4)
        yield (
            f"conv {c} {out} {group} {k}",
            Case([conv], {"x": (b, c, 6, 6)}, {"w": _weight(out, c // group, k, k)}),
        )
    for k in (2, 3):
        yield (
            f"conv_transpose {k}",
            Case(
                [node("ConvTranspose", "x w", "y", strides=[2, 2])], x, {"w": _weight(16, 8, k, k)}
            ),
        )
    for op, kernel in (("MaxPool", 2), ("AveragePool", 3)):
        yield op, Case([node(op, "x", "y", kernel_shape=[kernel, kernel])], x, {})
    yield "global pool", Case([node("GlobalAveragePool", "x", "y")], x, {})
    yield (
        "resize",
        Case(
            [node("Resize", "x roi s", "y", mode="linear")],
            x,
            {"roi": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)},
        ),
    )
    yield "grid sample", Case([node("GridSample", "x g", "y")], {**x, "g": (b, 3, 3, 2)}, {})
    yield "depth to space", Case([node("DepthToSpace", "x", "y", blocksize=2)], x, {})
    gate = [
        node("GlobalAveragePool", "x", "p"),
        node("Conv", "p w1", "a"),
        node("Relu", "a", "r"),
        node("Conv", "r w2", "g"),
    ]
    gate += [node("Sigmoid", "g", "s"), node("Mul", "x s", "y")]
    yield "squeeze excite", Case(gate, x, {"w1": _weight(8, 16, 1, 1), "w2": _weight(16, 8, 1, 1)})
    yield (
        "instance norm",
        Case(
            [node("InstanceNormalization", "x s t", "y")], x, {"s": _weight(16), "t": _weight(16)}
        ),
    )


def _rows(b: int | str) -> Iterator[tuple[str, Case]]:
    x = {"x": (b, 5, 33)}
    for axis in (-1, 1, 0):
        yield f"softmax {axis}", Case([node("Softmax", "x", "y", axis=axis)], x, {})
    yield (
        "layer norm",
        Case(
            [node("LayerNormalization", "x s t", "y")],
            {"x": (b, 5, 64)},
            {"s": _weight(64), "t": _weight(64)},
        ),
    )
    for axes in ((0,), (1,), (2,), (0, 2), (1, 2)):
        yield (
            f"reduce {axes}",
            Case([node("ReduceSum", "x axes", "y")], x, {"axes": np.array(axes)}),
        )
    yield (
        "reduce max",
        Case([node("ReduceMax", "x axes", "y")], {"x": (b, 500, 33)}, {"axes": np.array([1])}),
    )
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = {"w": _weight(2, 40 * gates, 33), "r": _weight(2, 40 * gates, 40)}
        layer = node(op, "x w r", "y h", direction="bidirectional", hidden_size=40)
        yield op, Case([layer], x, weights)
    yield "cumsum", Case([node("CumSum", "x axis", "y")], x, {"axis": np.array(1)})
    yield "topk", Case([node("TopK", "x k", "y i")], {"x": (b, 50)}, {"k": np.array([3])})


def _moves(b: int | str) -> Iterator[tuple[str, Case]]:
    x = {"x": (b, 37, 33)}
    for perm in ((1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 0)):
        yield f"transpose {perm}", Case([node("Transpose", "x", "y", perm=list(perm))], x, {})
    yield "pointwise", Case([node("Relu", "x", "y")], x, {})
    yield "broadcast", Case([node("Add", "x z", "y")], {**x, "z": (b, 1, 33)}, {})
    yield "gather", Case([node("Gather", "x i", "y", axis=1)], x, {"i": np.array([3, 1])})
    yield "gather rows", Case([node("Gather", "w i", "y")], {"i": (b,)}, {"w": _weight(50, 33)})
    yield (
        "gather elements",
        Case([node("GatherElements", "x i", "y", axis=1)], {"x": (b, 50), "i": (b, 4)}, {}),
    )
    yield (
        "gather nd",
        Case([node("GatherND", "x i", "y", batch_dims=1)], {"x": (b, 50), "i": (b, 1)}, {}),
    )
    yield (
        "scatter",
        Case(
            [node("ScatterElements", "x i u", "y", axis=1)],
            {"x": (b, 50), "i": (b, 4), "u": (b, 4)},
            {},
        ),
    )
    for mode in ("reflect", "constant"):
        yield (
            f"pad {mode}",
            Case([node("Pad", "x p", "y", mode=mode)], x, {"p": np.array([0, 0, 2, 0, 0, 2])}),
        )
    yield "concat", Case([node("Concat", "x z", "y", axis=1)], {**x, "z": (b, 4, 33)}, {})
    yield (
        "slice",
        Case(
            [node("Slice", "x s e a", "y")],
            x,
            {"s": np.array([1]), "e": np.array([30]), "a": np.array([2])},
        ),
    )


def cases(b: int | str) -> dict[str, Case]:
    return {name: case for group in (_products, _images, _rows, _moves) for name, case in group(b)}


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize(("arch", "dtype"), [("90", F16), ("80", F32)], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("batch", [MANY, "n"])
def test_grids_of_large_batches(
    name: str, arch: str, dtype: int, batch: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Kernel] = []
    record = BackendPlan._record

    def kept(self: BackendPlan, launch: Launch, places: Any) -> dict[str, Any]:
        if self.name != "probe":
            found.append(launch.kernel)  # type: ignore[attr-defined]
        return record(self, launch, places)

    monkeypatch.setattr(BackendPlan, "_record", kept)
    monkeypatch.setattr(BackendPlan, "_compile", lambda self: None)
    case = cases(batch)[name]
    given = [
        helper.make_tensor_value_info(n, I64 if n == "i" else dtype, s)
        for n, s in case.inputs.items()
    ]
    element = np.float16 if dtype == F16 else np.float32
    weights = {
        n: np.asarray(w).astype(element) if np.asarray(w).dtype == np.float64 else np.asarray(w)
        for n, w in case.weights.items()
    }
    stored = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    model = helper.make_model(
        helper.make_graph(
            case.nodes, "g", given, [helper.make_tensor_value_info("y", dtype, None)], stored
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx_inference.infer(model, {})
    result = partition_compiler.compile_graph(
        Graph(model),
        plan_writer.writer_of({"backend": "cuda", "arch": arch, "sms": "132"}),
        everything=True,
    )
    assert not result.refused and found
    for kernel in found:
        grid = [dims.evaluate(g, dict.fromkeys(dims.symbols(g), MANY)) for g in kernel.grid]
        assert min(grid) <= 0 or max(grid[1:]) <= MOST, (kernel.symbol, grid)


# --- which matrices the parts take


def _products_of(kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The places of a, b and y in bytes of each matrix that the kernels take."""
    out = []
    for k in kernels:
        x, many, outer = (dims.evaluate(g, sizes) for g in k.grid)
        starts = [dims.evaluate(a.offset, sizes) for a in k.args if isinstance(a, Pointer)]
        steps = [dims.evaluate(a.value, sizes) for a in k.args if isinstance(a, Int64)]
        if x > 0:
            assert many <= 4 and outer <= 4
            out += [
                tuple(
                    s + 4 * (i * steps[2 * j] + m * steps[2 * j + 1]) for j, s in enumerate(starts)
                )
                for i in range(outer)
                for m in range(many)
            ]
    return out


def _product(r: Request) -> list[Kernel]:
    steps = [Int64(r.ints[f"{s}_{axis}"]) for s in "aby" for axis in (0, 1)]
    return [
        Kernel(
            "",
            "product",
            (1, r.ints["B1"], r.ints["B0"]),
            32,
            (Pointer("a"), Pointer("b"), Pointer("y"), *steps),
        )
    ]


@pytest.mark.parametrize(("b0", "b1"), [(1, "n"), (3, "n"), ("n", 3), ("n", 1), ("m", "n")])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 8, 9, 13, 16])
def test_parts_take_every_matrix_once(
    b0: int | str, b1: int | str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: Any = discovery.module("kernels", "cuda.gemm.batches")
    monkeypatch.setattr(batches, "_GRID_LIMIT", 4)
    monkeypatch.setattr(batches, "_PER_LAUNCH", 4)
    divided: Callable[[Request], list[Kernel]] = batches.of(_product)
    sizes = {"n": n, "m": 4}
    count = [sizes[b] if isinstance(b, str) else b for b in (b0, b1)]
    strides = {"a_0": 1000, "a_1": 7, "b_0": 0, "b_1": 64, "y_0": 5, "y_1": 100}
    wanted = sorted(
        (4 * (i * 1000 + j * 7), 4 * j * 64, 4 * (i * 5 + j * 100))
        for i in range(count[0])
        for j in range(count[1])
    )
    for shown in ([b0, b1], count):
        ints = {f"B{k}": dims.symbol(b) if isinstance(b, str) else b for k, b in enumerate(shown)}
        r = request(
            "matmul",
            DType.F32,
            {**ints, **strides, "M": 1, "N": 1, "K": 1},
            operands=("a", "b", "y"),
        )
        if shown == ["m", "n"]:  # what a run of more would say in a line
            if n <= 4:
                assert sorted(_products_of(divided(r), sizes)) == wanted
            continue
        if isinstance(b0, str) and isinstance(b1, str) and n > 4:
            assert sorted(_products_of(divided(r), sizes)) == wanted
            continue
        for kernels in (divided(r), ranged(r, divided)):
            assert sorted(_products_of(kernels, sizes)) == wanted
            # A run looks at the places of launches that have nothing to do as well.
            for j, operand in enumerate("aby"):
                starts = {
                    dims.evaluate(a.offset, sizes)
                    for k in kernels
                    for a in k.args
                    if isinstance(a, Pointer) and a.operand == operand
                }
                assert starts <= {0} | {matrix[j] for matrix in wanted}


def test_too_many_matrices_along_both_axes_are_refused() -> None:
    divided = discovery.module("kernels", "cuda.gemm.batches").of(_product)
    r = request(
        "matmul",
        DType.F32,
        {
            "B0": 17,
            "B1": MANY,
            **dict.fromkeys(("a_0", "a_1", "b_0", "b_1", "y_0", "y_1", "M", "N", "K"), 1),
        },
        operands=("a", "b", "y"),
    )
    with pytest.raises(
        NoKernel, match="MatMul of 17 x 70000 matrices: a launch takes 65535 along each axis"
    ):
        divided(r)

"""What CUDA Plans launch for graphs of a few nodes: movement, masks and products that other
launches take in, and nodes that stay on the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir.dims import symbol
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import discovery

F16, F32, I64, I32 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
Type = tuple[int, Sequence[int | str]]


def node(op: str, inputs: str, output: str, **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attrs)


def launches(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Type],
    outputs: Mapping[str, int],
    weights: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """Families that a run launches, when the provider takes the whole graph as one partition;
    `pointwise` with the number of its stages, if there are any.
    """
    found: list[str] = []
    append = BackendPlan._append

    def record(
        self: BackendPlan, family: str, refs: Any, ints: Any, floats: Any, program: Any, *rest: Any
    ) -> None:
        append(self, family, refs, ints, floats, program, *rest)
        if self.name != "probe" and rest[-1] is self._run:
            found.append(
                f"{family} {len(program['stages'])}" if program and "stages" in program else family
            )

    monkeypatch.setattr(BackendPlan, "_append", record)
    monkeypatch.setattr(BackendPlan, "_compile", lambda self: None)
    given = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", given, results, stored),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx_inference.infer(model, {})
    result = partition_compiler.compile_graph(
        Graph(model),
        plan_writer.writer_of({"backend": "cuda", "arch": "90", "sms": "132"}),
        everything=True,
    )
    assert len(result.entries) == 1 and not result.refused, result.refused
    return found


def weight(*shape: int, dtype: type = np.float16) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def test_a_reflection_keeps_an_image_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4), node("Pad", "a pads", "b", mode="reflect"),
        node("Conv", "b w", "c"),
        node("Pad", "c pads", "d", mode="edge"), node("Conv", "d w", "y"),
    ]  # fmt: skip
    weights = {"w": weight(16, 16, 3, 3), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    assert launches(nodes, {"x": (F16, ("n", 16, 9, "w"))}, {"y": F16}, weights, monkeypatch) == [
        "nchw_to_nhwc", "conv2d", "pad", "conv2d", "pad", "conv2d", "nhwc_to_nchw",
    ]  # fmt: skip


def test_pads_computed_from_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TorchScript writes F.pad(x, [0, b.shape[3] - x.shape[3]]): a vector turned around in two
    dims.
    """
    nodes = [
        node("Shape", "b", "sb"), node("Shape", "x", "sx"), node("Sub", "sb sx", "d"),
        node("Slice", "d three four", "right"),
        node("Concat", "zero right zero zero zero zero zero zero", "flat", axis=0),
        node("Reshape", "flat pairs", "two"),
        node("Slice", "two last first axis back", "turned"),
        node("Transpose", "turned", "sides", perm=[1, 0]), node("Reshape", "sides all", "pads"),
        node("Pad", "x pads", "p"), node("Concat", "b p", "j", axis=1), node("Conv", "j w", "y"),
    ]  # fmt: skip
    weights = {
        "w": weight(8, 32, 1, 1), "three": np.array([3]), "four": np.array([4]),
        "zero": np.array([0]), "pairs": np.array([-1, 2]), "last": np.array([-1]),
        "first": np.array([-(2**62)]), "axis": np.array([0]), "back": np.array([-1]),
        "all": np.array([-1]),
    }  # fmt: skip
    found = launches(
        nodes,
        {"x": (F16, ("n", 16, 8, "v")), "b": (F16, ("n", 16, 8, "w"))},
        {"y": F16},
        weights,
        monkeypatch,
    )
    assert found.count("pad") == 1 and "conv2d" in found


def test_sizes_that_only_run_time_can_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halved and doubled again is as large as before where the size is even."""
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4),
        node("MaxPool", "a", "h", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "h none scales", "u", mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Concat", "a u", "j", axis=1), node("Conv", "j v", "y"),
    ]  # fmt: skip
    weights = {
        "w": weight(16, 3, 3, 3),
        "v": weight(8, 32, 1, 1),
        "none": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    found = launches(nodes, {"x": (F16, ("n", 3, "h", "w"))}, {"y": F16}, weights, monkeypatch)
    assert found.count("conv2d") == 2 and "resize2d" in found


def test_a_mask_of_positions_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("Cast", "mask", "seen", to=TensorProto.BOOL),
        node("Unsqueeze", "seen one_two", "keys"), node("Unsqueeze", "at zero", "columns"),
        node("Unsqueeze", "at one", "rows"), node("LessOrEqual", "columns rows", "causal"),
        node("And", "causal keys", "both"),
        node("Where", "both nothing lowest", "y"),
    ]  # fmt: skip
    weights = {
        "one_two": np.array([1, 2]), "zero": np.array([0]), "one": np.array([1]),
        "nothing": np.float32(0), "lowest": np.float32(-1e9),
    }  # fmt: skip
    found = launches(
        nodes, {"mask": (I64, ("b", "s")), "at": (I64, ("s",))}, {"y": F32}, weights, monkeypatch
    )
    assert found == ["pointwise 3"]


def test_a_stage_that_others_read_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("Neg", "x", "a"),
        node("Abs", "a", "b"),
        node("Gather", "table a", "c", axis=0),
        node("Cast", "b", "d", to=F32),
        node("Add", "c d", "y"),
    ]
    found = launches(nodes, {"x": (I64, ("n",)), "table": (F32, (9,))}, {"y": F32}, {}, monkeypatch)
    assert found == ["pointwise", "gather", "pointwise 3"]


def test_projections_with_rotary_embeddings_are_one_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def heads(x: str) -> list[NodeProto]:
        return [
            node("Reshape", f"{x} split", f"{x}4"),
            node("Transpose", f"{x}4", f"{x}t", perm=[0, 2, 1, 3]),
        ]

    def rotated(x: str) -> list[NodeProto]:
        return [
            node("Slice", f"{x}t zero half axis", f"{x}l"),
            node("Slice", f"{x}t half all axis", f"{x}r"), node("Neg", f"{x}r", f"{x}n"),
            node("Concat", f"{x}n {x}l", f"{x}c", axis=-1), node("Mul", f"{x}t cos", f"{x}a"),
            node("Mul", f"{x}c sin", f"{x}b"),
            node("Add", f"{x}a {x}b", f"{x}y"),
        ]  # fmt: skip

    nodes = [n for x in "qk" for n in (node("MatMul", f"x w{x}", x), *heads(x), *rotated(x))]
    nodes += [
        node("MatMul", "x wv", "v"),
        *heads("v"),
        node("Concat", "past vt", "present", axis=2),
    ]
    weights = {
        "wq": weight(32, 64), "wk": weight(32, 32), "wv": weight(32, 32),
        "split": np.array([0, 0, -1, 16]), "zero": np.array([0]), "half": np.array([8]),
        "all": np.array([16]), "axis": np.array([3]),
    }  # fmt: skip
    tables = dict.fromkeys(("cos", "sin"), (F16, ("n", 1, "s", 16)))
    inputs: dict[str, Type] = {
        "x": (F16, ("n", "s", 32)),
        "past": (F16, ("n", 2, "p", 16)),
        **tables,
    }
    found = launches(nodes, inputs, {"qy": F16, "ky": F16, "present": F16}, weights, monkeypatch)
    assert found.count("gemm") == 1 and found.count("rope") == 2


def test_nodes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped integers, the largest of int32, a mask resized, an Einsum."""
    nodes = [
        node("Clip", "x lo hi", "c"),
        node("Cast", "c", "i", to=I32),
        node("ArgMax", "i", "y", axis=1),
    ]
    launches(
        nodes,
        {"x": (I64, ("n", 9))},
        {"y": I64},
        {"lo": np.int64(1), "hi": np.int64(5)},
        monkeypatch,
    )
    nodes = [
        node("Unsqueeze", "x zero", "u"),
        helper.make_node("Resize", ["u", "", "scales"], ["r"], mode="nearest",
            nearest_mode="floor"), node("Relu", "r", "y"),
    ]  # fmt: skip
    weights = {"zero": np.array([0]), "scales": np.array([1, 1, 0.5, 0.5], np.float32)}
    assert "resize2d" in launches(
        nodes, {"x": (F32, ("b", 8, 8))}, {"y": F32}, weights, monkeypatch
    )
    found = launches(
        [node("Einsum", "x w", "y", equation="bhwc,wkc->bhwk")],
        {"x": (F16, ("b", 4, 6, 16))},
        {"y": F16},
        {"w": weight(6, 7, 16)},
        monkeypatch,
    )
    assert found == ["matmul"]


@pytest.mark.parametrize("stages", [1, 3])
def test_staged_kernels_compile(stages: int) -> None:
    from tests.backend.cuda.cuda_requests import compile_kernels, request
    from tracea_onnx.ir.abi import DType
    from tracea_onnx.ir.expr import Expr, Instr
    from tracea_onnx.ir.expr_program import compile_program

    less = compile_program(Expr(2, (Instr("lt", (0, 1)),), 2), type="i64")
    log = compile_program(Expr(1, (Instr("log", (0,)),), 1), type="f32")
    where = compile_program(Expr(2, (Instr("where", (0, 1, 1)),), 2), type="f32")
    rows = [
        {"program": less, "dtype": int(DType.BOOL), "from": [0, 1]},
        {"program": log, "dtype": int(DType.I64), "from": [1]},
        {"program": where, "dtype": int(DType.F16), "from": [2, 3]},
    ][:stages]  # fmt: skip
    ints: dict[str, Any] = {
        "y_dtype": rows[-1]["dtype"],
        "x0_dtype": int(DType.I64),
        "x1_dtype": int(DType.I32),
    }
    for d in range(6):
        ints |= {f"n{d}": symbol("n") if d == 5 else 1, f"x0_{d}": int(d == 5), f"x1_{d}": 0}
    kernels = discovery.module("kernels", "cuda").emit(
        request(
            "pointwise",
            DType.F32,
            ints,
            operands=("x0", "x1", "y"),
            program={"n_in": 2, "stages": rows},
        )
    )
    compile_kernels(kernels, 90)


def test_equal_layers_are_emitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    backend = discovery.module("kernels", "cuda")
    real = backend.emit

    def emit(request: Request) -> list[Kernel]:
        asked.append(request.family)
        kernels: list[Kernel] = real(request)
        return kernels

    monkeypatch.setattr(backend, "emit", emit)
    layers = [
        node("MatMul", f"{a} w{k}", b)
        for k, (a, b) in enumerate((("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")))
    ]
    weights = {f"w{k}": weight(64, 64) for k in range(4)}
    assert (
        launches(layers, {"x": (F16, ("n", 64))}, {"y": F16}, weights, monkeypatch) == ["gemm"] * 4
    )
    assert asked.count("gemm") == 1 and len(asked) == 2  # and the weights are packed alike


@pytest.mark.parametrize(
    ("kind", "batch", "found"), [(F32, "b", "fft"), (F16, 1, "gemm"), (F16, "b", "matmul")]
)
def test_frames_are_read_in_place(
    kind: int, batch: int | str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = np.float16 if kind == F16 else np.float32
    weights = {"step": np.array(160), "window": np.hanning(400).astype(dtype)}
    nodes = [node("STFT", "x step window", "y")]
    given = {"x": (kind, (batch, "n", 1))}
    assert launches(nodes, given, {"y": kind}, weights, monkeypatch) == [found]


@pytest.mark.parametrize("kind", [F32, F16])
def test_operators_made_of_others(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("LpNormalization", "x", "a"), node("MeanVarianceNormalization", "a", "b"),
        node("Hardmax", "b", "c"),
        node("ReverseSequence", "c lengths", "d"), node("DFT", "d", "y", axis=1),
    ]  # fmt: skip
    given = {"x": (kind, ("t", 5, 3, 2)), "lengths": (I64, (5,))}
    found = launches(nodes, given, {"y": kind}, {}, monkeypatch)
    assert "gather" in found and found.count("reduce") == 3 and {"argmax", "gemm"} < set(found)

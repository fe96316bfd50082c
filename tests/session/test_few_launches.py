"""Lowering where a launch costs more than some memory traffic (the GPU's way), run by the CPU's
kernels: same results, fewer launches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.session.test_models import feeds, small
from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.model_io.builder import Net
from tracea_onnx.pipeline import optimizer
from tracea_onnx.plan.builder import PlanBuilder, read_pack

FEW = plan_writer.Writer(
    replace(plan_writer.writer_of({}).target, launch_bound=True),
    lambda name, probe: PlanBuilder(name, "cpu"),
)


def run(
    model: Any,
    x: dict[str, Any],
    backend: plan_writer.Writer,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> tuple[list[Any], list[str]]:
    """Outputs on the provider with this backend, and the families its partitions launch."""
    monkeypatch.setattr(partition_compiler, "writer_of", lambda props: backend)
    with compile_requests.recording() as packs:
        session = provider.create_session(
            model.SerializeToString(),
            {"claim": "all", "cache_dir": str(cache / str(backend.target.launch_bound))},
        )
    launches = [
        launch["k"]
        for entry in read_pack(packs[-1])[0]["entries"]
        for launch in entry["plan"]["run"]
    ]
    return session.run(None, x), launches


@pytest.mark.parametrize(
    "name", ["bert_base", "gpt2", "minilm", "resnet50", "unet", "vit_b16", "yolo_nano"]
)
def test_zoo(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = small(name)
    x = feeds(model, 2, 7, 1)
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, x
    )
    usual, launches = run(model, x, plan_writer.writer_of({}), monkeypatch, tmp_path)
    got, fewer = run(model, x, FEW, monkeypatch, tmp_path)
    for a, b, w in zip(got, usual, want, strict=True):
        scale = np.abs(w).max()
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)
        np.testing.assert_allclose(a, w, atol=1e-4 * scale)
    assert len(fewer) <= len(launches)
    if name in ("unet", "yolo_nano"):  # parts of images are read and written in place
        assert fewer.count("copy_nhwc") < launches.count("copy_nhwc") and (
            name == "unet" or "nhwc_to_nchw" not in fewer
        )
    if name in ("bert_base", "minilm"):  # two layers, each with three products less
        assert fewer.count("gemm") == launches.count("gemm") - 4
    # embeddings are looked up, added and normalised at once
    if name in ("bert_base", "minilm", "gpt2"):
        assert (
            fewer.count("layernorm_sum") == 1
            and "gather" in launches
            and not {"gather", "range"} & {*fewer}
        )
    if name == "vit_b16":
        assert fewer.count("layernorm_sum") == 1
        assert (
            fewer.count("nhwc_to_nchw") == launches.count("nhwc_to_nchw") - 1
            and "nchw_to_nhwc" not in fewer
        )


@pytest.mark.parametrize("bias", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("width", [24, 20])
def test_a_gate_is_one_product_where_its_halves_are_whole_vectors(
    bias: tuple[bool, bool], width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net = Net("gate", seed=1)
    x = net.input("x", ["n", 16], width=16)
    gate, up = (net.linear(x, width, bias=b, name=f"fc{k}") for k, b in enumerate(bias))
    model = net.model([("y", net.op("Mul", net.act(gate, "silu"), up), np.float32, ["n", width])])
    data = {"x": np.random.default_rng(0).standard_normal((5, 16), dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, data)
    (got,), launches = run(model, data, FEW, monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert launches.count("gemm") == (1 if width % 8 == 0 else 2)


def embeddings(positions: int, late: bool = False) -> Any:
    """norm(words[ids] + types[kinds] + table[range(tokens)]), and with `late` the sum itself times
    that.
    """
    net = Net("embeddings", seed=3)
    ids, kinds = (net.input(n, ["batch", "tokens"], np.int64) for n in ("ids", "kinds"))
    counted = net.op("Range", np.asarray(0, np.int64), net.dim(ids, 1), np.asarray(1, np.int64))
    total = net.add(
        net.embedding(ids, 11, 24, name="words"), net.embedding(kinds, 3, 24, name="types")
    )
    total = net.add(
        total,
        net.embedding(
            net.op("Unsqueeze", counted, np.asarray([0], np.int64)), positions, 24, name="positions"
        ),
    )
    y = net.layer_norm(total)
    outputs: list[Any] = [("y", y, np.float32, ["batch", "tokens", 24])]
    if late:
        outputs.append(("z", net.op("Mul", total, y), np.float32, ["batch", "tokens", 24]))
    return net.model(outputs)


@pytest.mark.parametrize("late", [False, True])
def test_embeddings_are_one_launch(
    late: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, rng = embeddings(9, late), np.random.default_rng(1)
    data = {"ids": rng.integers(-11, 11, (3, 7)), "kinds": rng.integers(0, 3, (3, 7))}
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, data
    )
    got, launches = run(model, data, FEW, monkeypatch, tmp_path)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert launches == (["layernorm_sum", "pointwise"] if late else ["layernorm_sum"])


@pytest.mark.parametrize(("tokens", "word"), [(10, 0), (4, 11)])
def test_a_row_that_no_table_has_is_an_error(
    tokens: int, word: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = {"ids": np.full((1, tokens), word), "kinds": np.zeros((1, tokens), np.int64)}
    for backend in (FEW, plan_writer.writer_of({})):
        with pytest.raises(Exception, match=r"out of range|is 9, less than"):
            run(embeddings(9), data, backend, monkeypatch, tmp_path)


@pytest.mark.parametrize("sizes", [(16, 32), (24, 24), (16, 20)])
@pytest.mark.parametrize("reader", ["conv", "slice", "concat"])
def test_parts_of_an_image_stay_where_they_are(
    sizes: tuple[int, int], reader: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A split image read by a convolution, cut along height and width with a step, and joined again
    with what was made of a part.
    """
    net = Net("parts", seed=5)
    x = net.conv(net.input("x", ["n", 8, 9, 11], width=8), sum(sizes), 3, pad=1)
    a, b = (
        replace(p, width=s)
        for p, s in zip(
            net.split("Split", [x, np.asarray(sizes, np.int64)], 2, axis=1), sizes, strict=True
        )
    )
    if reader == "slice":
        i64 = np.int64
        b = net.op(
            "Slice",
            b,
            np.asarray([1, 2], i64),
            np.asarray([9, 11], i64),
            np.asarray([2, 3], i64),
            np.asarray([2, 3], i64),
            width=sizes[1],
        )
    y = net.act(net.conv(b, 16, 3, pad=1), "relu")
    if reader == "concat":
        y = net.conv(net.concat([a, b, y]), 8, 1)
    shape = ["n", "c", "h", "w"]
    model = net.model([("y", y, np.float32, shape), ("z", net.act(a, "relu"), np.float32, shape)])
    data = {"x": np.random.default_rng(0).standard_normal((2, 8, 9, 11), dtype=np.float32)}
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, data
    )
    got, _ = run(model, data, FEW, monkeypatch, tmp_path)
    for p, q in zip(got, want, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [7, 12])
def test_a_mask_looked_up_by_positions_is_a_view(
    tokens: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """mask[arange(batch)[:, None], 2 + arange(tokens - 2)], as exporters spell a lookup over all
    positions; one beyond the mask's end is an error.
    """
    net, i64 = Net("lookup", seed=1), np.int64
    like, mask = net.input("like", ["batch", "tokens"]), net.input("mask", ["b", "keys"])
    one = np.asarray(1, i64)
    rows = net.op(
        "Unsqueeze",
        net.op("Range", np.asarray(0, i64), net.dim(like, 0), one),
        np.asarray([1], i64),
    )
    columns = net.op(
        "Unsqueeze",
        net.op("Range", np.asarray(2, i64), net.dim(like, 1), one),
        np.asarray([0], i64),
    )
    shape = net.op("Shape", net.op("Max", rows, columns))  # the maximum itself is not needed
    pairs = [
        net.op("Unsqueeze", net.op("Expand", x, shape), np.asarray([-1], i64))
        for x in (rows, columns)
    ]
    looked_up = net.op("GatherND", mask, net.concat(pairs, axis=-1))
    model = net.model([("y", net.act(looked_up, "relu"), np.float32, ["batch", "rest"])])
    rng = np.random.default_rng(0)
    data = {
        "like": rng.standard_normal((3, tokens), dtype=np.float32),
        "mask": rng.standard_normal((3, 9), dtype=np.float32),
    }
    for backend in (FEW, plan_writer.writer_of({})):
        if tokens > 9:
            with pytest.raises(Exception, match="is 9, less than"):
                run(model, data, backend, monkeypatch, tmp_path)
            continue
        (got,), launches = run(model, data, backend, monkeypatch, tmp_path)
        np.testing.assert_array_equal(got, np.maximum(data["mask"][:, 2:tokens], 0))
        assert launches == ["pointwise"]


@pytest.mark.parametrize("counted", [False, True])
def test_rows_looked_up_by_tuples_of_one(
    counted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net, i64 = Net("rows", seed=1), np.int64
    table, ids = net.input("table", ["rows", 4]), net.input("ids", ["n"], i64)
    places = (
        net.op("Range", np.asarray(0, i64), net.dim(ids, 0), np.asarray(1, i64)) if counted else ids
    )
    rows = net.op("GatherND", table, net.op("Unsqueeze", places, np.asarray([-1], i64)))
    model = net.model([("y", net.act(rows, "relu"), np.float32, ["n", 4])])
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {
        "table": rng.standard_normal((9, 4), dtype=np.float32),
        "ids": rng.integers(-9, 9, 5),
    }
    (got,), launches = run(model, data, plan_writer.writer_of({}), monkeypatch, tmp_path)
    np.testing.assert_array_equal(
        got, np.maximum(data["table"][np.arange(5) if counted else data["ids"]], 0)
    )
    assert launches == (["pointwise"] if counted else ["gather", "pointwise"])


def test_elements_looked_up_by_positions_are_a_view(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net, i64 = Net("elements", seed=1), np.int64
    x = net.input("x", ["batch", 8])
    columns = net.op(
        "Unsqueeze",
        net.op("Range", np.asarray(0, i64), np.asarray(8, i64), np.asarray(2, i64)),
        np.asarray([0], i64),
    )
    columns = net.op(
        "Expand",
        columns,
        net.concat(
            [net.op("Unsqueeze", net.dim(x, 0), np.asarray([0], i64)), net.constant([4])], axis=0
        ),
    )
    model = net.model(
        [
            (
                "y",
                net.act(net.op("GatherElements", x, columns, axis=1), "relu"),
                np.float32,
                ["batch", 4],
            )
        ]
    )
    data = {"x": np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)}
    (got,), launches = run(model, data, plan_writer.writer_of({}), monkeypatch, tmp_path)
    np.testing.assert_array_equal(got, np.maximum(data["x"][:, ::2], 0))
    assert launches == ["pointwise"]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("looked_up", [False, True])
def test_rotary_embedding_as_one_operator(
    flat: bool,
    interleaved: int,
    rotated: int,
    looked_up: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    b, heads, s, d = 2, 3, 5, 8
    shape, table = (
        [b, s, heads * d] if flat else [b, heads, s, d],
        [9 if looked_up else b, *([] if looked_up else [s]), (rotated or d) // 2],
    )
    inputs = {"x": (shape, np.float32), "cos": (table, np.float32), "sin": (table, np.float32)} | (
        {"pos": ([b, s], np.int64)} if looked_up else {}
    )
    net = Net("rotary", opset=23)
    values = [net.input(name, dims, kind) for name, (dims, kind) in inputs.items()]
    y = net.op(
        "RotaryEmbedding",
        *values,
        interleaved=interleaved,
        num_heads=heads,
        rotary_embedding_dim=rotated,
    )
    model = net.model([("y", y, np.float32, shape)])
    rng = np.random.default_rng(0)
    data = {
        n: rng.integers(0, 9, dims) if kind == np.int64 else rng.standard_normal(dims).astype(kind)
        for n, (dims, kind) in inputs.items()
    }
    try:
        (want,) = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, data)
    except Exception as e:
        pytest.skip(f"this ONNX Runtime does not run it: {str(e)[:80]}")
    (got,), launches = run(model, data, plan_writer.writer_of({}), monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert launches.count("rope") == 1


@pytest.mark.parametrize("channels", [32, 20])
def test_tokens_and_lines_of_channels_are_the_same(
    channels: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Convolutions over one dim between transpositions, as speech models have them, move
    nothing.
    """
    rng = np.random.default_rng(0)
    weights = {
        "v": (channels, channels, 3),
        "w": (channels, channels),
        "u": (channels, 1, 5),
        "g": (channels,),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "g"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["t", "v"], ["a"], pads=[1, 1]),
        helper.make_node("Conv", ["a", "u"], ["b"], pads=[2, 2], group=channels),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["c", "w"], ["d"]), helper.make_node("Add", ["d", "x"], ["y"]),
    ]  # fmt: skip
    given, result = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "t", channels]) for n in "xy"
    )
    stored = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) * 0.2, n)
        for n, s in weights.items()
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [given], [result], stored),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    data = {"x": rng.standard_normal((2, 11, channels)).astype(np.float32)}
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, data
    )
    got, launches = run(model, data, FEW, monkeypatch, tmp_path)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)
    assert "nhwc_to_nchw" not in launches


@pytest.mark.parametrize("backend", [plan_writer.writer_of({}), FEW])
def test_batch_norm_of_columns_goes_into_the_weights(
    backend: plan_writer.Writer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two such layers of one input, each with its own norm; the model as it came and optimized."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {"flat": np.array([-1, 16]), "back": np.array([-1, 5, 16])}
    for k in "ab":
        constants |= {
            f"{n}{k}": rng.standard_normal(s).astype(np.float32)
            for n, s in (("w", (24, 16)), ("s", 16), ("t", 16), ("m", 16))
        }
        constants[f"v{k}"] = rng.uniform(0.5, 2, 16).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", ["x", f"w{k}"], [f"c{k}"]),
            helper.make_node("Reshape", [f"c{k}", "flat"], [f"f{k}"]),
        ]
        nodes += [
            helper.make_node("BatchNormalization", [f"f{k}", *(n + k for n in "stmv")], [f"n{k}"]),
            helper.make_node("Reshape", [f"n{k}", "back"], [f"r{k}"]),
        ]
    nodes += [helper.make_node("Concat", ["ra", "rb"], ["y"], axis=1)]
    infos = [
        helper.make_tensor_value_info("x", 1, ["b", 5, 24]),
        helper.make_tensor_value_info("y", 1, ["b", 10, 16]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        infos[:1],
        infos[1:],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = {"x": rng.standard_normal((3, 5, 24), dtype=np.float32)}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run(None, x)
    for m in (model, optimizer.optimize(model, backend="cpu").model):
        (got,), launches = run(m, x, backend, monkeypatch, tmp_path)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert launches.count("gemm") == 2 and "pointwise" not in launches

"""CUDA products by weights of a few bits: kernels compile without a GPU, and their text computes on
the host what float64 does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, kernels_of, request, running
from tests.golden.record import gpu, sources_for_cubins
from tests.support.cuda.case import stored, value
from tests.support.cuda.nbits import packed as by_numpy
from tests.support.cuda.nbits import packing
from tests.support.nbits import Weights, weights
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import symbol
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.kernel_families import packed_elements, weight_pitch
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32


def gemm(
    dtype: DType, m: D.DimLike, n: int, k: int, bits: int, block: int, zeros: int = 0,
    *, scale: DType = F32, arch: int = 90, pad: int = 0,
) -> Request:  # fmt: skip
    ints: dict[str, D.DimLike] = {
        "M": m, "N": n, "K": k, "ldx": k + pad, "ldy": n, "bits": bits, "block": block,
        "zeros": zeros, "scale_dtype": int(scale),
    }  # fmt: skip
    floats = {"zero": float(1 << (bits - 1))}
    return request("gemm_nbits", dtype, ints, floats, operands=("x", "w", "y"), arch=arch)


def pack(w: Weights, scale: DType) -> Request:
    ints, operands = packing(w, scale)
    return request("pack_gemm_nbits", F32, ints, operands=(*operands, "packed"))


def cases() -> Iterator[tuple[str, Request]]:
    for d, arch, m, bits, block in (
        (F16, 90, 1, 4, 32), (F16, 90, 12, 8, 128), (F16, 90, 20, 2, 16), (F16, 90, 100, 4, 4096),
        (BF16, 90, 1, 8, 16), (BF16, 89, 20, 4, 32), (F32, 90, 1, 2, 16), (F32, 80, 20, 4, 128),
        (F32, 80, 100, 8, 32), (F16, 80, 9, 4, 64),
    ):  # fmt: skip
        name = f"{m} rows {bits} bits in {block} sm_{arch}"
        yield name, gemm(d, m, 4096, 1536, bits, block, 1, arch=arch, scale=d)
    yield "few columns", gemm(F16, 1, 40, 8192, 4, 32, scale=F16)
    yield "unaligned", gemm(F16, 3, 131, 67, 4, 32, pad=1)
    yield "zeros that are floats", gemm(F16, 3, 131, 67, 4, 32, 2)
    for bits, zeros in ((2, "none"), (4, "packed"), (8, "float")):
        yield f"pack {bits} {zeros}", pack(weights(1, 100, 33, bits, 32, zeros), F16)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=n) for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(kernels_of(r), r.arch)


def _packed(w: Weights, scale: DType, folder: Path) -> Any:
    r = pack(w, scale)
    ints = {k: int(v) for k, v in r.ints.items()}
    packed = cuda_host.aligned(np.zeros(packed_elements("pack_gemm_nbits", **ints), np.float32))
    places = {k: cuda_host.aligned(v) for k, v in packing(w, scale)[1].items()}
    for k in cuda.emit(r):
        cuda_host.run(k, {**places, "packed": packed}, folder / k.symbol)
    want = by_numpy(w, scale)
    assert bytes(packed)[: len(want)] == want.tobytes()
    return packed


@pytest.mark.parametrize(("bits", "zeros"), [(4, "packed"), (8, "float"), (2, "none")])
def test_parts_are_packed_into_one(bits: int, zeros: str, tmp_path: Path) -> None:
    whole, first = weights(5, 70, 49, bits, 32, zeros), 32
    ints, operands = packing(whole, F16)
    packed = cuda_host.aligned(np.zeros(packed_elements("pack_gemm_nbits", **ints), np.float32))
    for begin, end in ((0, first), (first, whole.n)):
        part = {**ints, "N": end - begin, "n0": begin, "N_total": whole.n}
        names = (*operands, "packed")
        places = {n: cuda_host.aligned(v[begin:end]) for n, v in operands.items()}
        for k in cuda.emit(request("pack_gemm_nbits_part", F32, part, operands=names)):
            cuda_host.run(k, {**places, "packed": packed}, tmp_path / k.symbol)
    want = by_numpy(whole, F16)
    assert bytes(packed)[: len(want)] == want.tobytes()
    with pytest.raises(NoKernel, match="40 columns from column 0 of 49 on"):
        cuda.emit(
            request("pack_gemm_nbits_part", F32, {**ints, "N": 40, "N_total": 49}, operands=names)
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "bits", "block", "zeros", "pad"),
    [
        (F16, 1, 33, 130, 4, 32, "packed", 0),
        (BF16, 3, 16, 67, 4, 16, "none", 1),
        (F32, 9, 17, 96, 4, 96, "packed", 0),
        (F16, 2, 20, 70, 8, 32, "packed", 0),
        (BF16, 1, 7, 64, 8, 16, "packed", 0),
        (F16, 1, 15, 258, 2, 64, "packed", 0),
        (F32, 1, 16, 40, 2, 16, "none", 0),
        (BF16, 17, 40, 33, 2, 32, "packed", 0),
    ],
)
def test_few_rows(
    dtype: DType, m: int, n: int, k: int, bits: int, block: int, zeros: str, pad: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    w, rng = weights(3, k, n, bits, block, zeros), np.random.default_rng(m)
    scale = dtype if dtype != BF16 else F32
    w.scales[:] = value(stored(w.scales, scale), scale)
    x = np.full((m, k + pad), np.nan, np.float32)
    x[:, :k] = rng.standard_normal((m, k))
    given = stored(x, dtype)
    y = cuda_host.aligned(np.full((m, n), 0x7FFF, given.dtype))
    (kernel,) = kernels_of(
        gemm(dtype, m, n, k, bits, block, int(zeros != "none"), scale=scale, pad=pad)
    )
    assert kernel.symbol == ("few_rows" if m > 8 else "stream_rows")
    packed = _packed(w, scale, tmp_path)
    cuda_host.run(kernel, {"x": cuda_host.aligned(given), "w": packed, "y": y}, tmp_path)
    exact = value(given, dtype)[:, :k]
    want, size = exact @ w.matrix, np.abs(exact) @ w.largest
    u = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24}[dtype]
    assert (np.abs(value(y, dtype) - want) <= 1.01 * u * np.abs(want) + 2.0**-21 * size).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "bits", "block", "zeros"),
    [(F32, 4, 32, "float"), (F16, 8, 16, "packed"), (BF16, 2, 64, "none")],
)
def test_dequantised(dtype: DType, bits: int, block: int, zeros: str, tmp_path: Path) -> None:
    n, k = 35, 70
    w = weights(3, k, n, bits, block, zeros)
    r = gemm(dtype, 100, n, k, bits, block, {"none": 0, "packed": 1, "float": 2}[zeros])
    first = cuda.emit(r)[0]
    assert first.symbol == "dequantise"
    pitch = weight_pitch(k, dtype.size)
    made = cuda_host.aligned(stored(np.full((n, pitch), np.nan), dtype))
    buffer = next(a.operand for a in first.args if getattr(a, "operand", "").startswith("scratch"))
    cuda_host.run(first, {"w": _packed(w, F32, tmp_path), buffer: made}, tmp_path)
    values = w.values.reshape(n, w.blocks, block) - w.zero_values[..., None].astype(np.float32)
    exact = (values * w.scales[..., None]).reshape(n, -1)[:, :k]
    np.testing.assert_array_equal(made[:, :k], stored(exact, dtype))
    assert not made[:, k:].any()


def test_rows_known_in_a_run_choose_the_kernel() -> None:
    """No other reads weights; what dequantises them comes before those that read them so."""
    kernels = kernels_of(gemm(F16, symbol("m"), 4096, 4096, 4, 32, scale=F16))
    for m, few in ((0, None), (1, 1), (8, 1), (9, 2), (33, 0), (5000, 0)):
        symbols = [k.symbol for k in running(kernels, m=m)]
        assert (symbols in (["few_rows"], ["stream_rows"])) == bool(few), symbols
        assert few != 0 or (symbols[0] == "dequantise" and len(symbols) > 1), symbols
        assert few is not None or not symbols
    rows = D.mul(symbol("b"), symbol("s"))  # whose range no kernel is emitted for
    kernels = kernels_of(gemm(F16, rows, 4096, 4096, 4, 32, scale=F16))
    for b, s, tiles in ((2, 4, 1), (3, 3, 2), (16, 1, 2), (1, 17, 4), (4, 8, 4)):
        (found,) = running(kernels, b=b, s=s)
        assert f"ROW_TILES = {tiles};" in found.source
    assert running(kernels, b=1, s=1)[0].symbol == "stream_rows"
    assert running(kernels, b=3, s=11)[0].symbol == "dequantise"


def test_plans() -> None:
    """Products in each type are claimed with what follows them."""
    w = weights(1, 256, 128, 4, 32, "packed")
    for number in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        kind = helper.tensor_dtype_to_np_dtype(number)
        stored = {"w": w.blobs, "s": w.scales.astype(kind), "z": w.zeros, "b": np.zeros(128, kind)}
        nodes = [
            helper.make_node(
                "MatMulNBits", ["x", "w", "s", "z"], ["p"], domain="com.microsoft", K=256, N=128,
                bits=4, block_size=32,
            ),
            helper.make_node("Add", ["p", "b"], ["q"]), helper.make_node("Relu", ["q"], ["y"]),
        ]  # fmt: skip
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", number, ["m", 256])],
            [helper.make_tensor_value_info("y", number, None)],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
        )  # fmt: skip
        with sources_for_cubins():
            found = compile_graph(Graph(model_of(graph)), gpu(90, 132))
        ((claimed, plan, _),) = found.entries
        assert len(claimed) == 3 and not found.refused
        symbols = {launch["symbol"] for launch in plan["run"]}
        assert {"few_rows", "dequantise"} <= symbols, symbols


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def asked(graph: onnx.GraphProto) -> list[Request]:
    """The requests of the Plan of a graph that is one partition, each once."""
    with sources_for_cubins():
        found = compile_graph(Graph(model_of(graph)), gpu(90, 132), everything=True)
    (plan,) = found.builders
    assert isinstance(plan, BackendPlan)
    return list({id(r): r for r in plan.asked}.values())


def test_products_of_one_input_are_one() -> None:
    """Where what reads them takes columns of a wider result, and blocks are alike."""
    sizes, nodes = ((64, 32), (32, 32), (48, 64), (17, 32)), list[onnx.NodeProto]()
    stored: dict[str, Any] = {}
    for j, (n, block) in enumerate(sizes):
        w = weights(j, 256, n, 4, block, "packed")
        given = {f"w{j}": w.blobs, f"s{j}": w.scales.astype(np.float16), f"z{j}": w.zeros}
        attrs: dict[str, Any] = {"K": 256, "N": n, "bits": 4, "block_size": block}
        stored |= given
        nodes.append(
            helper.make_node(
                "MatMulNBits", ["x", *given], [f"p{j}"], domain="com.microsoft", **attrs
            )
        )
    names = [f"p{j}" for j in range(len(sizes))]
    nodes.append(helper.make_node("Concat", names, ["y"], axis=1))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["m", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )  # fmt: skip
    assert [r.ints["N"] for r in asked(graph) if r.family == "gemm_nbits"] == [96, 48, 17]


@pytest.mark.parametrize("read_again", [False, True])
def test_norms_and_gates_are_computed_with_products(read_again: bool) -> None:
    """h = x + f w_o; norm(h), which the halves of a gate alone read, or another op, too."""
    stored: dict[str, Any] = {"gamma": np.ones(256, np.float16)}
    nodes: list[onnx.NodeProto] = []

    def product(name: str, x: str, k: int, n: int) -> str:
        w = weights(len(nodes), k, n, 4, 32, "none")
        stored.update({f"{name}.w": w.blobs, f"{name}.s": w.scales.astype(np.float16)})
        attrs: dict[str, Any] = {"K": k, "N": n, "bits": 4, "block_size": 32}
        given = [x, f"{name}.w", f"{name}.s"]
        nodes.append(
            helper.make_node("MatMulNBits", given, [name], domain="com.microsoft", **attrs)
        )
        return name

    def op(kind: str, *given: str, outputs: tuple[str, ...] = (), **attrs: Any) -> str:
        made = outputs or (f"{kind}{len(nodes)}",)
        domain = "com.microsoft" if kind.startswith("Skip") else ""
        nodes.append(helper.make_node(kind, given, made, domain=domain, **attrs))
        return made[0]

    both = ("normed", "", "", "h")
    out = product("o", "f", 128, 256)
    op("SkipSimplifiedLayerNormalization", "x", out, "gamma", outputs=both, epsilon=1e-5)
    gate, up = product("gate", "normed", 256, 96), product("up", "normed", 256, 96)
    inner = op("Mul", op("Mul", gate, op("Sigmoid", gate)), up)
    op("Add", product("down", inner, 96, 256), "h", outputs=("y",))
    if read_again:
        op("Relu", "normed", outputs=("z",))
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, half, ["m", k]) for n, k in (("x", 256), ("f", 128))],
        [helper.make_tensor_value_info(n, half, None) for n in ("y", "z")[: 1 + read_again]],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )  # fmt: skip
    made = [(r.family, r.ints.get("gated", 0)) for r in asked(graph)]
    few = ("gemm_nbits", 0)
    if read_again:
        assert ("gemm_nbits_norm", 1) in made and ("layernorm", 0) in made, made
    else:
        assert made[:3] == [few, ("gemm_nbits_norm", 1), few], made


def test_what_has_no_kernel() -> None:
    with pytest.raises(NoKernel, match="4 bits in blocks of 48"):
        cuda.emit(gemm(F16, 1, 64, 480, 4, 48))

"""The smallest model that needs each kernel family, on the provider, against float64.

    python -m tracea_onnx.doctor.smallest BACKEND

prints a line of JSON for each. The doctor runs it as a process of its own: a kernel that the
machine cannot run ends the process that tries it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx import provider
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes.onnx_inference import first_line
from tracea_onnx.support import child

Arrays = dict[str, Any]
#: Of a result in fp32, relative to its largest value.
_LARGEST = 1e-4

#: For each family: its operands, and nodes in ONNX's text form that give `y`. `name:dims` is an
#: input of random numbers, `name=dims` are weights, `name:dims<n` and `name=dims<n` are integers
#: from 0 to n - 1, `name={...}` are these integers, and
#: `name=@n` is a scalar.
CASES: dict[str, tuple[str, str]] = {
    "conv2d": ("x:1,3,5,5 w=4,3,3,3 b=4", "y = Conv<pads = [1, 1, 1, 1]>(x, w, b)"),
    "conv2d_wino": ("x:1,16,6,6 w=16,16,3,3", "y = Conv<pads = [1, 1, 1, 1]>(x, w)"),
    "conv2d_dw": ("x:1,4,5,5 w=4,1,3,3", "y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w)"),
    "deconv2d": ("x:1,3,4,4 w=3,2,2,2", "y = ConvTranspose<strides = [2, 2]>(x, w)"),
    "fold_bn": (
        "x:1,3,4,4 w=4,3,1,1 g=4 b=4 m=4 v=4",
        "s = Mul(v, v) c = Conv(x, w) y = BatchNormalization(c, g, b, m, s)",
    ),
    "pool2d": ("x:1,3,6,6", "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"),
    "global_pool": ("x:1,3,5,5 w=4,3,1,1", "c = Conv(x, w) y = GlobalAveragePool(c)"),
    "resize2d": ("x:1,3,4,4 n={1,3,8,8}", 'y = Resize<mode = "linear">(x, , , n)'),
    "resize_cubic": ("x:1,3,4,4 n={1,3,8,8}", 'y = Resize<mode = "cubic">(x, , , n)'),
    "lrn": ("x:4,4,3,3", "y = LRN<size = 3, alpha = 0.5, bias = 2.0>(x)"),
    "grid_sample": ("x:1,2,4,4 at:1,3,3,2", "y = GridSample(x, at)"),
    "copy_nhwc": (
        "x:1,3,4,4 w=4,3,1,1",
        "c = Conv(x, w) p = MaxPool<kernel_shape = [1, 1]>(x) y = Concat<axis = 1>(c, p)",
    ),
    "pointwise_nhwc": (
        "x:1,3,5,5 w=4,3,1,1",
        "c = Conv(x, w) p = GlobalAveragePool(c) s = Sigmoid(p) y = Mul(c, s)",
    ),
    "gemm": ("x:3,5 w=5,7 b=7", "m = MatMul(x, w) y = Add(m, b)"),
    "matmul": ("x:2,3,5 z:2,5,4", "y = MatMul(x, z)"),
    "attention": (
        "q:1,2,4,8 t:1,2,8,4 v:1,2,4,8",
        "s = MatMul(q, t) p = Softmax<axis = -1>(s) y = MatMul(p, v)",
    ),
    "deform_columns": ("x:1,3,5,5 w=4,3,3,3 o:1,18,3,3", "y = DeformConv(x, w, o)"),
    "roi_align": (
        "x:1,2,6,6 r:2,4 i:2<1",
        "y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, i)",
    ),
    "determinant": ("x:2,3,3", "y = Det(x)"),
    "recurrent_layer": ("x:3,2,4 w=1,20,4 r=1,20,5", "y, h, c = LSTM<hidden_size = 5>(x, w, r)"),
    "layernorm": ("x:3,8 g=8 b=8", "y = LayerNormalization<axis = -1>(x, g, b)"),
    "groupnorm": ("x:2,4,3,3 g=4 b=4", "y = InstanceNormalization(x, g, b)"),
    "groupnorm_nhwc": (
        "x:1,3,4,4 w=4,3,1,1 g=4 b=4",
        "c = Conv(x, w) y = InstanceNormalization(c, g, b)",
    ),
    "softmax": ("x:3,7", "y = Softmax<axis = -1>(x)"),
    "reduce": ("x:3,7 a={1}", "y = ReduceSum(x, a)"),
    "argmax": ("x:3,7", "y = ArgMax<axis = 1>(x)"),
    "topk": ("x:3,7 k={2}", "y, at = TopK(x, k)"),
    "nonzero": ("i:3,5<2", "y = NonZero(i)"),
    "compress": ("x:5,3 i:5<2", "c = Cast<to = 9>(i) y = Compress<axis = 0>(x, c)"),
    "unique": ("i:9<4", "y = Unique(i)"),
    "cumsum": ("x:3,7 a=@1", "y = CumSum(x, a)"),
    "fft": ("x:2,256,1", "y = DFT(x)"),
    "copy": ("x:2,3,4", "y = Transpose<perm = [2, 0, 1]>(x)"),
    "gather": ("x:5,3 i:4<5", "y = Gather(x, i)"),
    "gather_elements": ("x:3,5 i:3,4<5", "y = GatherElements<axis = 1>(x, i)"),
    "scatter_along": ("x:3,5 i:3,1<5 u:3,1", "y = ScatterElements<axis = 1>(x, i, u)"),
    "scatter_tuples": ("x:4,5 i:1,1<4 u:1,5", "y = ScatterND(x, i, u)"),
    "gather_tuples": ("x:4,5,2 i:3,2<4", "y = GatherND(x, i)"),
    "one_hot": ("i:4<6 n=@6 v=2", "y = OneHot(i, n, v)"),
    "triangle": ("x:4,5", "y = Trilu(x)"),
    "pointwise": ("x:3,5 z:3,5", "a = Add(x, z) t = Tanh(a) y = Mul(t, x)"),
    "pad": ("x:3,5 p={1,2,1,2}", 'y = Pad<mode = "reflect">(x, p)'),
    "rope": ("x:1,2,3,8 c=1,3,4 s=1,3,4", "y = RotaryEmbedding(x, c, s)"),
}


@dataclass(frozen=True)
class Tried:
    """Result of a family's model: how far its result was from float64, relative to its largest
    value; or why there is none. left: the backend has no kernel for it, and says so.
    """

    family: str
    difference: float = 0.0
    fault: str = ""
    left: str = ""

    @property
    def ok(self) -> bool:
        """Whether the provider computed it right, or said that it would not."""
        return not self.fault


def model(family: str, real: int = TensorProto.FLOAT) -> tuple[onnx.ModelProto, Arrays]:
    """The family's model in this type, and its inputs."""
    declared, nodes = CASES[family]
    opset = 23 if "RotaryEmbedding" in nodes else 20
    graph = onnx.parser.parse_graph(f"smallest () => () {{ {nodes} }}")
    rng, feeds = np.random.default_rng(0), Arrays()
    for text in declared.split():
        stored = "=" in text
        name, _, rest = text.partition("=" if stored else ":")
        dims, _, below = rest.partition("<")
        if dims.startswith("{"):
            value = np.array([int(d) for d in dims.strip("{}").split(",")], np.int64)
        elif dims.startswith("@"):
            value = np.array(int(dims[1:]), np.int64)
        else:
            shape = [int(d) for d in dims.split(",")]
            value = (
                rng.integers(0, int(below), shape)
                if below
                else rng.standard_normal(shape).astype(np.float32)
            )
        if value.dtype == np.float32:
            value = value.astype(helper.tensor_dtype_to_np_dtype(real))
        if stored:
            graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            feeds[name] = value
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    graph.output.append(onnx.ValueInfoProto(name="y"))
    for k, n in enumerate(graph.node):
        n.name = f"{family}_{k}"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True), feeds


def exact(family: str) -> Any:
    """The result in float64, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    wide, feeds = model(family, TensorProto.DOUBLE)
    results: Any = ReferenceEvaluator(wide).run(None, feeds)
    return results[0]


def attempt(family: str, backend: str, cache: str) -> Tried:
    """Runs the family's model on the provider, all nodes of it."""
    import onnxruntime as ort

    made, feeds = model(family)
    writer = plan_writer.writer(backends.get(backend))
    refused = partition_compiler.compile_graph(Graph(made), writer, everything=True).refused
    if refused:
        return Tried(family, left=refused[0][1])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = provider.create_session(
            made.SerializeToString(), {"backend": backend, "claim": "all", "cache_dir": cache},
            options,
        )  # fmt: skip
        total = sum(len(p.get_nodes()) for p in session.get_provider_graph_assignment_info())
        ours = len(provider.assigned_nodes(session))
        if not ours or ours < total:
            return Tried(family, fault=f"the provider runs {ours} of {total} nodes")
        got, want = session.run(None, feeds)[0], exact(family)
    except Exception as e:
        return Tried(family, fault=first_line(e))
    if got.shape != want.shape:
        return Tried(family, fault=f"its result has shape {got.shape}, not {want.shape}")
    apart = np.abs(got.astype(np.float64) - want)
    off = float(np.max(apart) / max(float(np.abs(want).max()), 1e-30))
    return Tried(family, off, "" if off <= _LARGEST else f"its result is off by {off:.1e}")


def run(backend: str) -> Iterator[Tried]:
    """Every family, in a process that begins again behind a kernel that ended it."""
    left = list(CASES)
    command = [sys.executable, "-m", "tracea_onnx.doctor.smallest", backend]
    while left:
        with subprocess.Popen(
            [*command, *left], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=child.environment(),
        ) as process:  # fmt: skip
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                found = Tried(**json.loads(line))
                left.remove(found.family)
                yield found
            said = process.stderr.read().strip().splitlines()
        if process.returncode < 0:
            yield Tried(left.pop(0), fault=f"it ended its process by signal {-process.returncode}")
        elif left:
            yield Tried(left[0], fault=said[-1] if said else f"exit code {process.returncode}")
            return


def main() -> None:
    """Tries the families that are named behind the backend, or all."""
    backend, *families = sys.argv[1:]
    backends.get(backend)
    with tempfile.TemporaryDirectory() as cache:
        for family in families or CASES:
            print(json.dumps(asdict(attempt(family, backend, cache))), flush=True)


if __name__ == "__main__":
    main()

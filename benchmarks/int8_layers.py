"""How fast single 8-bit layers are on the CPU, beside ONNX Runtime's own kernels.

    python -m benchmarks.int8_layers [resnet50 mobilenet_v2 bert_base] [--threads 1] [--json FILE]

Ours is one launch of a kernel on packed weights. ONNX Runtime's is a session of one QLinearConv
(channels-last, as its optimizer makes them, with a QLinearAdd behind it where the network adds a
residual) or QLinearMatMul, with inputs and outputs bound. U8 values, I8 weights with a scale for
each column. With one thread the calling thread's time counts, else the wall clock. A ratio is ONNX
Runtime's time over ours.

Results are compared first, with ONNX Runtime's of the same weights as U8: they may be one off,
since it multiplies by the reciprocal of the scale. Where a machine has no VNNI its kernels of I8
weights let sums of two products saturate at 16 bits: `off` says how far its results are from those,
and `exact` is how long these take.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks import harness, layers
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.plan.kernel_families import FAMILIES, packed_elements
from tracea_onnx.runtime.native_library import aligned, run_kernel

Array = npt.NDArray[Any]
X_SCALE, Y_SCALE, R_SCALE, SUM_SCALE = (
    np.array([s], np.float32) for s in (0.0213, 0.0617, 0.0473, 0.0931)
)
X_ZERO, Y_ZERO = np.array([120], np.uint8), np.array([3], np.uint8)


@dataclass(frozen=True)
class Layer:
    """A convolution of an H x H image, or with kernel 0 a product of H rows; count: how often the
    network has it.
    """

    channels: int
    size: int
    columns: int
    kernel: int = 0
    stride: int = 1
    groups: int = 1
    residual: bool = False
    count: int = 1

    @property
    def out(self) -> int:
        return -(-self.size // self.stride) if self.kernel else self.size

    @property
    def family(self) -> str:
        depthwise = self.groups == self.channels > 1
        return "conv2d_int8_dw" if depthwise else "conv2d_int8" if self.kernel else "gemm_int8"

    def __str__(self) -> str:
        if not self.kernel:
            return f"M {self.size}, N {self.columns}, K {self.channels}"
        kind = "depthwise" if self.groups > 1 else "conv"
        sizes = f"{self.channels}x{self.size}x{self.size} to {self.columns}"
        after = " + residual" if self.residual else ""
        return f"{kind} {self.kernel}x{self.kernel}/{self.stride} {sizes}{after}"


def _resnet50() -> Iterator[Layer]:
    for channels, size, _, columns, kernel, stride, residual, count in layers.RESNET50:
        yield Layer(channels, size, columns, kernel, stride, 1, bool(residual), count)


def _mobilenet_v2() -> Iterator[Layer]:
    found: dict[Layer, int] = {Layer(3, 224, 32, 3, 2): 1}
    channels, size = 32, 112
    for wide, columns, repeats, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for k in range(repeats):
            stride, inner = first if k == 0 else 1, channels * wide
            block = [Layer(channels, size, inner, 1)] * (wide > 1)
            block.append(Layer(inner, size, inner, 3, stride, inner))
            size = -(-size // stride)
            block.append(Layer(inner, size, columns, 1, residual=k > 0))
            channels = columns
            for layer in block:
                found[layer] = found.get(layer, 0) + 1
    found[Layer(320, 7, 1280, 1)] = 1
    for layer, count in found.items():
        yield Layer(**{**vars(layer), "count": count})


def _bert_base() -> Iterator[Layer]:
    for columns, terms, count in ((768, 768, 48), (3072, 768, 12), (768, 3072, 12)):
        yield Layer(terms, 128, columns, count=count)


NETWORKS = {"resnet50": _resnet50, "mobilenet_v2": _mobilenet_v2, "bert_base": _bert_base}


def _data(layer: Layer) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    k = max(layer.kernel, 1)
    terms = layer.channels // layer.groups
    shape = (1, layer.size, layer.size if layer.kernel else 1, layer.channels)
    x = aligned(shape, np.uint8, slack=256)
    x[:] = rng.integers(0, 256, shape)
    out = (1, layer.out, layer.out if layer.kernel else 1, layer.columns)
    r = aligned(out, np.uint8, slack=256)
    r[:] = rng.integers(0, 256, out)
    spread = rng.uniform(0.5, 1.5, layer.columns) / np.sqrt(terms * k * k)
    return {
        "x": x, "r": r, "w": rng.integers(-127, 128, (layer.columns, terms, k, k)).astype(np.int8),
        "w_scale": (0.01 * spread).astype(np.float32),
        "bias": rng.integers(-500, 500, layer.columns).astype(np.int32) * (layer.kernel > 0),
    }  # fmt: skip


def ours(layer: Layer, data: dict[str, Array], threads: int) -> tuple[harness.Sampler, Array]:
    """Samples of the kernel, and where its result lies."""
    family, pad = layer.family, layer.kernel // 2
    c, n, h, o, k = layer.channels, layer.columns, layer.size, layer.out, max(layer.kernel, 1)
    if layer.kernel:
        sizes = (1, c, h, h, n, o, o, k, k, layer.stride, layer.stride, 1, 1, pad, pad,
                 layer.groups, c, h * c, h * h * c, *(n, o * n, o * o * n) * 2)  # fmt: skip
        ints = dict(zip(FAMILIES[family].ints, sizes, strict=False))
        packing = {p: ints[p] for p in FAMILIES[f"pack_{family}"].ints if p in ints}
    else:
        ints = {"M": h, "N": n, "K": c, "ldx": c, "ldr": n, "ldy": n}
        packing = {"K": c, "N": n, "trans": 1, "ldw": c, "n0": 0, "N_total": n}
    types = {"x_dtype": DType.U8, "w_dtype": DType.I8, "y_dtype": DType.U8, "w_scales": n}
    packed = aligned(packed_elements(f"pack_{family}", **packing), np.int8)
    pack = {"w": data["w"], "packed": packed}
    run_kernel(f"pack_{family}", pack, {**packing, "w_dtype": DType.I8})
    y = aligned(data["r"].shape, np.uint8)
    bias = data["bias"] * (X_SCALE * data["w_scale"]).astype(np.float64)
    operands = {
        "x": data["x"], "w": packed, "x_scale": X_SCALE, "x_zero": X_ZERO, "y": y,
        "w_scale": data["w_scale"], "bias": bias.astype(np.float32), "y_scale": Y_SCALE,
        "y_zero": Y_ZERO,
    }  # fmt: skip
    if layer.residual:
        operands |= {"m_scale": Y_SCALE, "m_zero": Y_ZERO, "y_scale": SUM_SCALE}
        operands |= {"res": data["r"], "r_scale": R_SCALE, "r_zero": X_ZERO}
        types |= {"res_mode": 1, "m_dtype": DType.U8, "r_dtype": DType.U8}
    types["act"] = ACTIVATIONS.index("none")

    def run(repeat: int) -> float:
        return 1e6 * run_kernel(
            family, operands, {**ints, **types, "w_zeros": 1}, threads=threads, repeat=repeat
        )

    repeat = max(1, int(4000 / run(3)))
    return lambda: run(repeat), y


def theirs(
    layer: Layer, data: dict[str, Array], threads: int, *, exact: bool
) -> tuple[harness.Sampler, Array]:
    """The same of ONNX Runtime's. exact: of weights of U8, for which its sums never saturate."""
    kind, start = (np.uint8, 128) if exact else (np.int8, 0)
    constants = {
        "xs": X_SCALE[0], "xz": X_ZERO[0], "ws": data["w_scale"], "b": data["bias"],
        "wz": np.full(layer.columns, start, kind), "ys": Y_SCALE[0], "yz": Y_ZERO[0],
        "rs": R_SCALE[0], "ss": SUM_SCALE[0],
    }  # fmt: skip
    inputs = {"x": data["x"], "r": data["r"]} if layer.residual else {"x": data["x"]}
    first = "v" if layer.residual else "y"
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if layer.kernel:
        constants["w"] = data["w"]
        k, pad, s = layer.kernel, layer.kernel // 2, layer.stride
        after = max(0, (layer.out - 1) * s + k - pad - layer.size)
        nodes = [helper.make_node(
            "QLinearConv", [*names, "b"], [first], domain="com.microsoft", channels_last=1,
            kernel_shape=[k, k], strides=[s, s], pads=[pad, pad, after, after], group=layer.groups,
        )]  # fmt: skip
    else:
        constants["w"] = np.ascontiguousarray(data["w"][:, :, 0, 0].T)
        nodes = [helper.make_node("QLinearMatMul", names, [first])]
    if exact:
        constants["w"] = constants["w"].view(np.uint8) ^ np.uint8(128)
    if layer.residual:
        add = [first, "ys", "yz", "r", "rs", "xz", "ss", "yz"]
        nodes.append(helper.make_node("QLinearAdd", add, ["y"], domain="com.microsoft"))
    y = np.zeros(data["r"].shape, np.uint8)
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info(n, TensorProto.UINT8, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, y.shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = ort.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString(), options,
        providers=["CPUExecutionProvider"],
    )  # fmt: skip
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y", "cpu", 0, np.uint8, y.shape, y.ctypes.data)
    run = harness.run_sampler(
        lambda: session.run_with_iobinding(binding), least=0.004, alone=threads == 1
    )
    return run, y


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if unknown := [n for n in args.networks if n not in NETWORKS]:
        parser.error(f"no network {unknown[0]}; there are: {', '.join(NETWORKS)}")
    report = harness.Report("int8_layers", args, device=False)
    for network in args.networks:
        sums, ratios = {"ours": 0.0, "onnxruntime": 0.0, "exact": 0.0}, []
        for layer in NETWORKS[network]():
            data = _data(layer)
            mine, y = ours(layer, data, args.threads)
            (other, quick), (exact, want) = (
                theirs(layer, data, args.threads, exact=k) for k in (False, True)
            )
            _ = mine(), other(), exact()  # once, for their results
            name = f"{network} {layer}"
            wrong, off = (int(np.abs(v.astype(int) - want).max()) for v in (y, quick))
            # 1 more where the sum and what it is of were rounded otherwise
            if wrong > 1 + layer.residual or np.ptp(want) < 30:
                report.fail(name, f"{wrong} off")
                continue
            samplers = {"ours": mine, "onnxruntime": other, "exact": exact}
            times = harness.interleaved(samplers, rounds=args.rounds)
            ratios.append(times.ratios["onnxruntime"][0])
            for side in sums:
                sums[side] += times.us[side] * layer.count
            report.row(name, f"{times}, off {off}", times=times, count=layer.count, off=off)
        if not ratios:
            continue
        whole = ", ".join(f"{sums[k] / sums['ours']:.3f}" for k in ("onnxruntime", "exact"))
        text = f"{harness.geometric_mean(ratios)}; the time of all layers {whole}"
        report.row(network, text, sums=sums)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

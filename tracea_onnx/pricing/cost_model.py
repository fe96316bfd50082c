"""What a fusion saves, in microseconds, by a roofline model of the backend.

    time(node) = launch + max(bytes / bandwidth, flops / rate)
    saving     = sum of time(node) over the chain
                 - (launch + max(bytes at the chain's border / bandwidth, flops / rate))

A node alone saves nothing: the provider runs plain ONNX nodes as they are. Symbolic dims count as
`NOMINAL`."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from onnx import helper

from tracea_onnx.errors import UsageError
from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Why, reason
from tracea_onnx.ir.saving import Saving
from tracea_onnx.pricing.device_caps import DeviceCaps, usual

#: What an unknown dimension counts as: the first axis (batch) and any other.
NOMINAL_BATCH, NOMINAL = 1, 64
#: Elements that count, of a value whose dims a file has made up.
_MOST = 1 << 100


@dataclass(frozen=True)
class Device:
    """Rates of one backend. gflops and gbytes are sustained, for one session; launch is the cost of
    a node in microseconds.
    """

    gflops: float
    gbytes: float
    launch: float
    source: str


DEVICES = {
    # One AVX-512 core: 118 GFLOP/s fp32 peak and 22 GB/s of DRAM measured; between nodes values
    # mostly live in L2, hence the higher rate.
    "cpu": Device(
        90.0, 30.0, 0.7, "measured on one Zen 4 core; 0.7 us a node in ONNX Runtime 1.31"
    ),
    # H200: 989 TFLOP/s fp16 and 4.8 TB/s by its data sheet, of which kernels sustain about 2/3 and
    # 3/4; 3 us a launch without a graph. For files, which any GPU may run; a session's compiler
    # asks `gpu`.
    "cuda": Device(600_000.0, 3_600.0, 3.0, "NVIDIA H200 data sheet; launches measured"),
}
#: Flops of fp16 products with sums in fp32, per clock of a multiprocessor, by the newest compute
#: capability x 10 that is no newer than the GPU's. What NVIDIA documents as peak TFLOPS of dense
#: fp16 over multiprocessors x boost clock: data sheets of T4 (65), A100 (312), A40 (149.7), L4
#: (121) and H100 SXM (989), the white paper of GA102 (512 FMAs), 170 sparse int8 TOPS of the
#: technical brief of Jetson AGX Orin (a quarter of them), and 503.8 of RTX PRO 6000 Blackwell. The
#: 2,250 of B200 need tcgen05, which no kernel uses; for mma.sync there nothing is documented, and
#: A100's rate stands for it.
_PER_CLOCK = {75: 1024, 80: 2048, 86: 1024, 87: 2048, 89: 1024, 90: 4096, 100: 2048, 120: 1024}
#: Names of GPUs that sum in fp32 at half of that: white papers of GA102, AD102 (RTX 4090: 165.2 of
#: 330.3) and GB202 (RTX 5090: 209.5 of 419), data sheet of A10G.
_HALVED = ("GeForce", "A10G")


def gpu(caps: DeviceCaps) -> Device:
    """Rates of a GPU: the share of its own peaks that kernels sustain on an H200."""
    known, usual_one = DEVICES["cuda"], usual(90)
    return Device(
        known.gflops * _peak(caps) / _peak(usual_one),
        known.gbytes * caps.bandwidth / usual_one.bandwidth,
        known.launch,
        f"peaks of {caps.name}",
    )


def _peak(caps: DeviceCaps) -> float:
    arch = max((a for a in _PER_CLOCK if a <= caps.arch), default=min(_PER_CLOCK))
    return (
        caps.sms
        * caps.clock
        * _PER_CLOCK[arch]
        / (2 if any(name in caps.name for name in _HALVED) else 1)
    )


#: Nodes that move no data: a new shape for the same bytes.
_VIEWS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size", "Constant"}
)
#: Flops per element of the output, for pointwise operators that cost more than one.
_PER_ELEMENT = {
    "Erf": 20.0, "Exp": 15.0, "Tanh": 20.0, "Sigmoid": 20.0, "Pow": 20.0, "Softmax": 20.0,
    "Gelu": 25.0, "Mish": 40.0, "Softplus": 30.0, "Log": 15.0,
    "HardSwish": 4.0,
}  # fmt: skip


def device(backend: str | Device) -> Device:
    """The rates of a backend by its name. Raises UsageError where it has none."""
    if isinstance(backend, Device):
        return backend
    if backend not in DEVICES:
        raise UsageError(
            f"there is no cost model for backend '{backend}'", f"choose from {', '.join(DEVICES)}"
        )
    return DEVICES[backend]


def price(graph: Graph, match: Match, backend: str | Device) -> Saving:
    """Estimated microseconds `match` saves on `backend` (`cpu`, `cuda`, or rates); zero or less
    when fusing it gains nothing.
    """
    dev = device(backend)
    working = [
        n
        for n in match.nodes
        if n.op not in _VIEWS and not all(graph.is_const(o) for o in n.outputs if o)
    ]
    if len(working) < 2:
        return Saving(0.0, reason=reason(Why.SINGLE_NODE, op=match.anchor.op))
    parts = [_traffic(graph, {*n.inputs}, {*n.outputs}) for n in working]
    flops = [_flops(graph, n) for n in working]
    before = sum(dev.launch + _time(dev, b, f) for b, f in zip(parts, flops, strict=True))
    inside = {o for n in match.nodes for o in n.outputs}
    # What enters is what the nodes read, also where views give its unknown dims other places and so
    # other nominal sizes.
    border = min(
        sum(parts),
        _traffic(graph, {i for n in match.nodes for i in n.inputs} - inside, set(match.outputs)),
    )
    after = dev.launch + _time(dev, border, sum(flops))
    why = None if before > after else reason(Why.NO_SAVING)
    return Saving(
        round(before - after, 3), max(0.0, sum(parts) - border), float(len(working) - 1), why
    )


def node_time(graph: Graph, nodes: Collection[Node], backend: str | Device) -> float:
    """Microseconds the nodes take as one kernel, by the roofline and without its launch."""
    inside = {o for n in nodes for o in n.outputs}
    border = _traffic(
        graph, {i for n in nodes for i in n.inputs} - inside, graph.escapes(list(nodes))
    )
    return _time(
        device(backend), border, sum(_flops(graph, n) for n in nodes if n.op not in _VIEWS)
    )


def _time(dev: Device, count: float, flops: float) -> float:
    """Microseconds by the roofline: bytes and flops overlap."""
    return max(count / (dev.gbytes * 1e3), flops / (dev.gflops * 1e3))


def elements(graph: Graph, name: str) -> float:
    """Elements of a value; unknown dims count as nominal, an unknown rank as one nominal matrix."""
    shape = graph.shape(name)
    if shape is None:
        return float(NOMINAL * NOMINAL)
    sizes = (
        d if isinstance(d, int) else (NOMINAL_BATCH if k == 0 else NOMINAL)
        for k, d in enumerate(shape)
    )
    return float(min(math.prod(sizes), _MOST))


def _traffic(graph: Graph, reads: Collection[str], writes: Collection[str]) -> float:
    return sum(elements(graph, name) * _itemsize(graph, name) for name in {*reads, *writes} if name)


def _itemsize(graph: Graph, name: str) -> float:
    kind = graph.dtype(name)
    try:
        return float(np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize) if kind else 4.0
    except (KeyError, TypeError):
        return 4.0


def _flops(graph: Graph, n: Node) -> float:
    out = elements(graph, n.outputs[0])
    if n.op in ("Conv", "ConvTranspose"):
        w = elements(graph, n.input(1))
        channels = graph.shape(n.input(1))
        over = channels[0 if n.op == "Conv" else 1] if channels else NOMINAL
        per = w / over if isinstance(over, int) and over else float(NOMINAL)
        return 2.0 * (out if n.op == "Conv" else elements(graph, n.input(0))) * per
    if n.op in ("MatMul", "Gemm"):
        shape = graph.shape(n.input(0))
        k = shape[0 if n.attr("transA", 0) and len(shape) == 2 else -1] if shape else NOMINAL
        return 2.0 * out * (k if isinstance(k, int) else NOMINAL)
    return out * _PER_ELEMENT.get(n.op, 1.0)

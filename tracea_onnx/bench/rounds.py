"""Five rounds beside PyTorch (`tracea-onnx bench rounds`): a convolution, a fusion of odd sizes, a
GEMM, attention, and a chain as transformers have it.

Every result is compared with float64, before and after it is timed. A time by which a program would
do more operations in a second than the device can is an error, no figure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.bench import comparison, rates
from tracea_onnx.bench.comparison import Comparison, Row, Settings, Task
from tracea_onnx.codegen import backend as backends

Shapes = Mapping[str, tuple[int, ...]]
#: A result may be off by so many roundings of fp32 times the square root of its longest sum.
_ROUNDINGS = 16
#: What was measured of the device is short of its peak by less than this.
_ABOVE = 1.3
#: Of the operations of a 3x3 convolution those that Winograd's algorithm needs, with tiles of 6x6.
_WINOGRAD = 64 / 324
_NORM = ("gamma", "beta", "mean", "var")


@dataclass(frozen=True)
class Round:
    """inputs, weights: their shapes. nodes: in ONNX's text form, which give `y`. terms: of the
    longest sum. operations: floating-point ones of a run, without those of pointwise functions, by
    the algorithm that needs the fewest.
    """

    name: str
    title: str
    inputs: Shapes
    weights: Shapes
    nodes: str
    terms: int
    operations: float


def rounds(large: bool) -> tuple[Round, ...]:
    """All five; large: as a GPU needs them to be busy."""
    images, channels, side = (32 if large else 1), 64, 56
    rows, odd, width = (4093 if large else 509), 61, 83
    n = 4096 if large else 1024
    batch, heads, length, depth = (8 if large else 1), 12, (1024 if large else 256), 64
    tokens, hidden = (8192 if large else 256), 768
    return (
        Round(
            "conv", f"Conv + BatchNorm + ReLU, {images}x{channels}x{side}x{side}",
            {"x": (images, channels, side, side)},
            {"w": (channels, channels, 3, 3), **dict.fromkeys(_NORM, (channels,))},
            "c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(c, gamma, beta, mean, var) "
            "y = Relu(n)",
            9 * channels, _WINOGRAD * 2 * images * side * side * 9 * channels**2,
        ),
        Round(
            "odd", f"product, bias, residual, SiLU, scale, clip, {rows}x{odd}x{width}",
            {"x": (rows, odd), "r": (rows, width)},
            {"w": (odd, width), "b": (width,), "scale": (width,)},
            "m = MatMul(x, w) a = Add(m, b) r1 = Add(a, r) s = Sigmoid(r1) u = Mul(r1, s) "
            "v = Mul(u, scale) y = Clip(v, low, high)",
            odd, 2 * rows * odd * width,
        ),
        Round(
            "product", f"product, {n}^3", {"x": (n, n)}, {"w": (n, n)}, "y = MatMul(x, w)", n,
            2 * n**3,
        ),
        Round(
            "attention", f"attention, {batch}x{heads}x{length}x{depth}",
            dict.fromkeys("qkv", (batch, heads, length, depth)), {},
            "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) d = Mul(s, eighth) "
            "p = Softmax<axis = -1>(d) y = MatMul(p, v)",
            length, 4 * batch * heads * length**2 * depth,
        ),
        Round(
            "chain", f"LayerNorm, MLP with GELU, residual, Softmax, {tokens}x{hidden}",
            {"x": (tokens, hidden)},
            {
                "g": (hidden,), "b": (hidden,), "w1": (hidden, 4 * hidden), "b1": (4 * hidden,),
                "w2": (4 * hidden, hidden), "b2": (hidden,), "scale": (hidden,),
            },
            "n = LayerNormalization<axis = -1>(x, g, b) h = MatMul(n, w1) a = Add(h, b1) "
            "u = Gelu(a) z = MatMul(u, w2) e = Add(z, b2) s = Add(x, e) v = Mul(s, scale) "
            "y = Softmax<axis = -1>(v)",
            4 * hidden, 16 * tokens * hidden**2,
        ),
    )  # fmt: skip


#: Scalars that the nodes name.
_SCALARS = {"low": -1.5, "high": 1.5, "eighth": 0.125}


def model(r: Round, seed: int, real: int = TensorProto.FLOAT) -> tuple[onnx.ModelProto, Any, Any]:
    """The round in ONNX, its inputs and its weights, drawn in fp32 and given in this type."""
    rng, kind = np.random.default_rng(seed), helper.tensor_dtype_to_np_dtype(real)

    def drawn(name: str, shape: tuple[int, ...]) -> Any:
        value = rng.standard_normal(shape).astype(np.float32)
        if len(shape) > 1 and name.startswith("w"):  # so that results are as large as inputs
            fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
            value *= np.float32(fan_in**-0.5)
        return (np.abs(value) + np.float32(0.5) if name == "var" else value).astype(kind)

    feeds = {name: drawn(name, shape) for name, shape in r.inputs.items()}
    weights = {name: drawn(name, shape) for name, shape in r.weights.items()}
    graph = onnx.parser.parse_graph(f"{r.name} () => () {{ {r.nodes} }}")
    read = {i for n in graph.node for i in n.input}
    scalars = {k: np.array(v, kind) for k, v in _SCALARS.items() if k in read}
    graph.initializer.extend(
        numpy_helper.from_array(v, k) for k, v in {**weights, **scalars}.items()
    )
    graph.input.extend(
        helper.make_tensor_value_info(k, real, shape) for k, shape in r.inputs.items()
    )
    graph.output.append(onnx.ValueInfoProto(name="y"))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True), feeds, weights


def exact(r: Round, seed: int) -> Any:
    """The result in float64, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    wide, feeds, _ = model(r, seed, TensorProto.DOUBLE)
    results: Any = ReferenceEvaluator(wide).run(None, feeds)
    return results[0]


def fault(r: Round, want: Any, results: Sequence[Any]) -> str:
    """Description of results that are out of bounds, or ""."""
    if len(results) != 1 or results[0].shape != want.shape:
        return f"it gives {[v.shape for v in results]}, not {[want.shape]}"
    apart = np.abs(results[0].astype(np.float64) - want).max() / np.abs(want).max()
    bound = _ROUNDINGS * float(np.finfo(np.float32).eps) * r.terms**0.5
    return "" if apart <= bound else f"it is off by {apart:.1e}, at most {bound:.1e} are rounding"


@dataclass
class Verdicts(Comparison):
    """A row for each round. titles: of the rounds, in order."""

    titles: list[str] = field(default_factory=list)
    most: float = 0.0

    def verdict(self, row: Row) -> str:
        """Beside the fastest peer, by the interval of the ratio."""
        ratios = {n: m.ratio for n, m in row.programs.items() if m.ratio is not None}
        if not ratios:
            return "not measured"
        name, (middle, low, high) = min(ratios.items(), key=lambda item: item[1][0])
        won = "won" if low > 1 else "lost" if high < 1 else "drawn"
        return f"{won} against {name}, {middle:.3f} times as fast [{low:.3f}, {high:.3f}]"

    def verdicts(self) -> Iterator[str]:
        """A line for each round, and what no program can do."""
        for k, (title, row) in enumerate(zip(self.titles, self.rows, strict=True), 1):
            yield f"round {k}: {title}: {self.verdict(row)}"
        yield f"no program can do more than {self.most:.0f} GFLOP/s here"

    def to_json(self) -> dict[str, Any]:
        """JSON of `bench rounds --json`."""
        return {**super().to_json(), "verdicts": list(self.verdicts())}


def play(
    peers: Sequence[str],
    settings: Settings,
    on_progress: Callable[[str], None] = lambda _: None,
    chosen: Sequence[Round] | None = None,
) -> Verdicts:
    """All rounds. Raises UsageError for an unknown peer."""
    comparison.check_peers(peers, settings)
    host = backends.get(settings.backend).host
    found = Verdicts("rounds", settings)
    on_progress("what the device reaches")
    found.most = _ABOVE * rates.gemm(settings.backend, settings.threads, 384 if host else 4096)
    if not host:
        asked = backends.get(settings.backend)
        found.most = max(found.most, _ABOVE * asked.target(asked.caps(None)).rates.gflops)
    for r in rounds(not host) if chosen is None else chosen:
        on_progress(f"{r.title}: float64")
        want = exact(r, settings.seed)
        made, feeds, weights = model(r, settings.seed)
        with tempfile.TemporaryDirectory(prefix="tracea-rounds-") as folder:
            path, stored = Path(folder) / f"{r.name}.onnx", Path(folder) / "weights.npz"
            onnx.save(made, str(path))
            np.savez(stored, **weights)
            task = Task(
                path, feeds, [want], partial(fault, r, want),
                name=r.title, more={"function": r.name, "weights": str(stored)},
                operations=r.operations, most=found.most,
            )  # fmt: skip
            found.rows.append(
                comparison.measure(task, peers, settings, found.unavailable, on_progress)
            )
            found.titles.append(r.title)
    return found

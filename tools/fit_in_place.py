"""Linear layers in their places in networks: what `network_cost` of
`cluster_splitk_sm90` is fitted to, and what it gains.

    python -m tools.fit_in_place [MODEL ...] [--batch 1] [--sequence 128]
    python -m tools.fit_in_place [MODEL ...] --tiles 12

Whole runs are timed in turn: tiles chosen by what they take by themselves, and tiles as they are
chosen. With --tiles, so many likely tiles of each kind of launch are timed, each in its place.

MODEL: of the zoo, in fp16, or stack_M_D_L: a linear layer of M rows of D numbers, then L blocks of
layers to 3 D and 4 D and back, to D, residuals, and norms between them; or plain_M_D_L: L blocks of
layers to 2 D, 4 D and back, without these.
"""

from __future__ import annotations

import argparse
import random
import statistics

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.cuda.models import half, input_shapes
from tracea_onnx.codegen import backend
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.codegen.tuning_records import Verdict
from tracea_onnx.ir.graph import Array, Graph
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure

_CUDA = backend.get("cuda")
_TURNS = 15
#: Tiles that cost at most so many times the cheapest are tried.
_LIKELY = 1.4


class Stack:
    """A model under construction."""

    def __init__(self, width: int) -> None:
        self.width, self.nodes, self.weights, self.random = (
            width,
            list[onnx.NodeProto](),
            list[onnx.TensorProto](),
            np.random.default_rng(1),
        )

    def const(self, a: Array) -> str:
        self.weights.append(numpy_helper.from_array(a.astype(np.float16), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def op(self, kind: str, *inputs: str) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"t{len(self.nodes)}"]))
        return str(self.nodes[-1].output[0])

    def linear(self, x: str, k: int, n: int) -> str:
        weight = self.random.standard_normal((k, n), np.float32) / k**0.5
        return self.op(
            "Add",
            self.op("MatMul", x, self.const(weight)),
            self.const(self.random.standard_normal(n, np.float32)),
        )

    def norm(self, x: str) -> str:
        return self.op(
            "LayerNormalization",
            x,
            self.const(np.ones(self.width)),
            self.const(np.zeros(self.width)),
        )

    def block(self, x: str) -> str:
        d = self.width
        x = self.op(
            "Add", self.linear(self.op("Relu", self.linear(self.norm(x), d, 3 * d)), 3 * d, d), x
        )
        x = self.op(
            "Add", self.linear(self.op("Gelu", self.linear(self.norm(x), d, 4 * d)), 4 * d, d), x
        )
        return self.op("Add", self.linear(self.norm(x), d, d), x)

    def plain(self, x: str) -> str:
        d = self.width
        return self.linear(
            self.op("Relu", self.linear(self.op("Relu", self.linear(x, d, 2 * d)), 2 * d, 4 * d)),
            4 * d,
            d,
        )


def stack(name: str) -> onnx.ModelProto:
    kind, rows, width, blocks = name.split("_")[0], *map(int, name.split("_")[1:])
    made = Stack(width)
    y = made.op("Add", made.linear("x", width, width), "x")
    for _ in range(blocks):
        y = made.block(y) if kind == "stack" else made.plain(y)
    if kind == "stack":
        y = made.norm(y)
    begin, end = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, [rows, width]) for name in ("x", y)
    )
    return helper.make_model(
        helper.make_graph(made.nodes, "stack", [begin], [end], made.weights),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )


def drawn(count: int, seed: int) -> list[str]:
    """Names of stacks, of weights that L2 does not keep where they have so many."""
    draw = random.Random(seed)
    sizes = [(round(2 ** draw.uniform(4, 11)), 64 * draw.randint(3, 24)) for _ in range(count)]
    return [
        f"stack_{rows}_{width}_{min(10, -(-60_000_000 // (30 * width**2)))}"
        for rows, width in sizes
    ]


def by_itself(on: bool) -> None:
    """Whether tiles are chosen by what they take by themselves from now on."""
    select = discovery.module("kernels", "cuda.gemm.select")
    vars(select)["_NETWORK_SLACK"] = 1.0 if on else _NETWORK_SLACK
    select._likely.cache_clear()


_NETWORK_SLACK: float = discovery.module("kernels", "cuda.gemm.select")._NETWORK_SLACK


class Place:
    """One graph of a model with sizes of its symbols."""

    def __init__(self, request: onnx.ModelProto, sizes: dict[str, int]) -> None:
        self.request, self.sizes = request, sizes
        self.usual = list(measure.parts(_CUDA, request, sizes))

    def gain(self) -> str:
        by_itself(True)
        before = list(measure.parts(_CUDA, self.request, self.sizes))
        by_itself(False)
        found = measure._compare(_CUDA.harness.LoadedPlan, before, self.usual, 0, _TURNS)
        return (
            f"{statistics.median(a for a, _ in found.totals):.1f} us by themselves, "
            f"{found.ratio:.4f} of that in place"
        )

    def tiles(self, most: int) -> list[str]:
        """A line for each tile of each kind of launch: its price and its time relative to the
        chosen one's.
        """
        asked: dict[str, Request] = {
            key: r for part in self.usual for key, r in part.requests.items()
        }
        subject, lines = measure._Subject(_CUDA, self.request, self.sizes, self.usual, 0), []
        offers = {key: subject.kernels(r) for key, r in asked.items()}
        offers = {
            key: {name: p for name, p in prices.items() if p <= _LIKELY * min(prices.values())}
            for key, prices in offers.items()
            if len(prices) > 1
        }
        order = {key: sorted(prices, key=prices.__getitem__)[1:] for key, prices in offers.items()}
        for turn in range(min(most, max(map(len, order.values()), default=0))):
            trial = {key: names[turn] for key, names in order.items() if turn < len(names)}
            found = subject.compared(trial, 3)
            if isinstance(found, Verdict):
                continue
            for key, name in trial.items():
                price = offers[key][name] / min(offers[key].values())
                lines.append(
                    f"  {measure.text(asked[key], self.sizes)}: {name} price {price:.3f} time "
                    f"{found.other[key] / found.usual[key]:.3f}"
                )
        return sorted(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", help="20 random stacks where none is named")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tiles", type=int, default=0)
    args = parser.parse_args()
    for name in args.model or drawn(20, args.seed):
        model = (
            stack(name)
            if name.startswith(("stack_", "plain_"))
            else half(discovery.module("models", name).build())
        )
        shapes = input_shapes(model, args.batch, args.sequence)
        for request in measure.requests_of(model.SerializeToString(), {"backend": "cuda"}):
            place = Place(request, measure.sizes_of(Graph(request), shapes))
            print(f"{name}: {place.gain()}", *place.tiles(args.tiles), sep="\n", flush=True)


if __name__ == "__main__":
    main()

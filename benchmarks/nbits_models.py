"""Models with weights of a few bits, as MatMulNBits has them: random and seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: Of Llama 3.2 1B: width, width of keys and values, of the gated unit, and heads of each.
_WIDTH, _KEYS, _GATED, _HEADS, _KEY_HEADS = 2048, 512, 8192, 32, 8


class _Net:
    """Nodes and stored tensors of a model in the making."""

    def __init__(self, bits: int, block: int, level: int) -> None:
        self.bits, self.block, self.level = bits, block, level
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        if op.startswith("Skip"):
            names[1:3] = ["", ""]  # statistics
        domain = "com.microsoft" if op == "MatMulNBits" or op.startswith("Skip") else ""
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names

    def store(self, value: Any) -> str:
        name = f"w{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(value, name))
        return name

    def gemm(self, x: str, k: int, n: int) -> str:
        blocks, size = -(-k // self.block), self.block * self.bits // 8
        w = self.rng.integers(0, 256, (n, blocks, size), dtype=np.uint8)
        # so that results are about as large as what they are made of
        spread = 2.0 ** (self.bits - 1) / 3**0.5 * k**0.5
        scales = self.rng.uniform(0.5, 1.5, (n, blocks)).astype(np.float32) / np.float32(spread)
        return self.add(
            "MatMulNBits", x, self.store(w), self.store(scales), K=k, N=n, bits=self.bits,
            block_size=self.block, **({"accuracy_level": self.level} if self.level else {}),
        )[0]  # fmt: skip

    def model(self, x: tuple[int | str, ...], y: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "few_bits", [helper.make_tensor_value_info("x", 1, x)],
            [helper.make_tensor_value_info(y, 1, [None] * len(x))], self.stored,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def gemm(k: int, n: int, bits: int, block: int, rows: int = 1, level: int = 0) -> onnx.ModelProto:
    """One MatMulNBits. level: its accuracy_level."""
    net = _Net(bits, block, level)
    return net.model((rows, k), net.gemm("x", k, n))


def decoder(layers: int, bits: int, block: int, rows: int = 1, level: int = 0) -> onnx.ModelProto:
    """So many layers of a decoder with the shapes of Llama 3.2 1B, without a cache: a token sees
    itself and those before it.
    """
    net = _Net(bits, block, level)
    gamma = net.store(np.ones(_WIDTH, np.float32))
    x, normed = "x", net.add("SimplifiedLayerNormalization", "x", gamma, axis=-1)[0]
    for _ in range(layers):
        q, k, v = (net.gemm(normed, _WIDTH, n) for n in (_WIDTH, _KEYS, _KEYS))
        heads = {"q_num_heads": _HEADS, "kv_num_heads": _KEY_HEADS, "is_causal": 1}
        seen = net.gemm(net.add("Attention", q, k, v, **heads)[0], _WIDTH, _WIDTH)
        normed, _, _, x = net.add("SkipSimplifiedLayerNormalization", x, seen, gamma, outputs=4)
        gate, up = (net.gemm(normed, _WIDTH, _GATED) for _ in range(2))
        silu = net.add("Mul", gate, net.add("Sigmoid", gate)[0])[0]
        down = net.gemm(net.add("Mul", silu, up)[0], _GATED, _WIDTH)
        normed, _, _, x = net.add("SkipSimplifiedLayerNormalization", x, down, gamma, outputs=4)
    return net.model((1, rows, _WIDTH), normed)

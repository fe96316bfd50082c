"""Decoders of the shapes of Llama, as onnxruntime-genai's model builder writes them, and the same
in PyTorch. Their weights are parts of one file of random numbers, each from a place of its own on,
so that a model of any size is made in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
#: Terms of a weight of 4 bits that share a scale; what its numbers less 8 are as large as.
BLOCK, _SPREAD = 32, 4.6
#: How many numbers of a kind are drawn (a prime) and then repeated; tensors begin at multiples.
_DRAWN, _PLACE = 33554393, 4096
_EPSILON, _BASE = 1e-5, 500000.0


@dataclass(frozen=True)
class Shape:
    """hidden: width of a token; size: of a head; inner: width of the gated unit."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    size: int
    inner: int
    vocab: int

    @property
    def gemms(self) -> dict[str, tuple[int, int]]:
        """Terms and columns of the GEMMs of a layer."""
        q, kv, inner = self.heads * self.size, self.kv_heads * self.size, self.inner
        return {
            "q": (self.hidden, q), "k": (self.hidden, kv), "v": (self.hidden, kv),
            "o": (q, self.hidden), "gate": (self.hidden, inner), "up": (self.hidden, inner),
            "down": (inner, self.hidden),
        }  # fmt: skip

    def weight_bytes(self, item: int, *, few: bool) -> int:
        """Of the weights, with their scales, that a run reads; item: bytes of a number."""
        every = [*self.gemms.values()] * self.layers + [(self.hidden, self.vocab)]
        return sum(n * (k // 2 + item * (k // BLOCK) if few else item * k) for k, n in every)

    def cache_bytes(self, batch: int, keys: int, item: int) -> int:
        """Of the keys and values that a run reads."""
        return 2 * self.layers * batch * self.kv_heads * keys * self.size * item


#: Llama 3.2 1B and Llama 3.1 8B; a small one to try the program with.
SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 64, 8192, 128256),
    "8b": Shape(4096, 32, 32, 8, 128, 14336, 128256),
    "tiny": Shape(64, 2, 4, 2, 16, 96, 259),
}


class Numbers:
    """The file of random numbers: normal ones, bytes, and scales.

    single: they are fp32, else fp16.
    """

    def __init__(self, shape: Shape, folder: Path, *, single: bool = False) -> None:
        self.shape, self.path = shape, folder / "numbers.bin"
        kind, rng = np.float32 if single else np.float16, np.random.default_rng(0)
        largest = max(k * n for k, n in [*shape.gemms.values(), (shape.hidden, shape.vocab)])
        names = [f"{k}.{name}" for k in range(shape.layers) for name in shape.gemms]
        self._place = {name: _PLACE * k for k, name in enumerate(("embed", "head", *names))}
        drawn, usual = min(_DRAWN, largest), np.float32(shape.hidden**-0.5)
        normal = rng.standard_normal(drawn, np.float32) * usual
        scales = rng.uniform(0.5, 1.5, drawn // 8) * usual / _SPREAD
        made: dict[str, tuple[Array, int]] = {
            "normal": (normal.astype(kind), largest),
            "bytes": (rng.integers(0, 256, drawn, np.uint8), largest // 2),
            "scales": (scales.astype(kind), largest // BLOCK),
        }
        self.dtype, self._begin = np.dtype(kind), dict[str, int]()
        room = _PLACE * len(self._place)
        with self.path.open("wb") as f:
            for name, (numbers, most) in made.items():
                self._begin[name], left = f.tell(), most + room
                while left > 0:
                    f.write(numbers[:left].tobytes())
                    left -= len(numbers)
                f.write(bytes(-f.tell() % _PLACE))
        #: All numbers of each kind.
        self.kinds: dict[str, Array] = {
            name: np.memmap(self.path, numbers.dtype, "r", self._begin[name], (most + room,))
            for name, (numbers, most) in made.items()
        }

    def part(self, name: str, count: int) -> slice:
        """Which numbers of a kind are those of the weight of that name."""
        return slice(self._place[name], self._place[name] + count)

    def tensor(self, name: str, kind: str, dims: Sequence[int], stored: str = "") -> Any:
        """The numbers of a weight as an initializer, which is in the file."""
        numbers, count = self.kinds[kind], int(np.prod(dims))
        made = TensorProto(
            name=stored or name, dims=dims, data_type=helper.np_dtype_to_tensor_dtype(numbers.dtype)
        )
        where = {
            "location": self.path.name,
            "offset": self._begin[kind] + self._place[name] * numbers.itemsize,
            "length": count * numbers.itemsize,
        }
        made.data_location = TensorProto.EXTERNAL
        for key, value in where.items():
            made.external_data.add(key=key, value=str(value))
        return made


def tables(shape: Shape, positions: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding [positions, size / 2]."""
    half = shape.size // 2
    angles = np.outer(np.arange(positions), _BASE ** (-np.arange(half) / half))
    return np.cos(angles), np.sin(angles)


def build(numbers: Numbers, few: bool, positions: int, layers: int) -> onnx.ModelProto:
    """input_ids [batch, sequence], attention_mask [batch, total], past_key_values.K.key and .value
    [batch, kv_heads, past, size] -> logits, present.K.key and .value. few: weights of 4 bits. It
    lies in the folder of the numbers.
    """
    shape, kind = numbers.shape, numbers.dtype
    floats = helper.np_dtype_to_tensor_dtype(kind)
    nodes: list[onnx.NodeProto] = []
    stored: list[onnx.TensorProto] = []

    def store(name: str, value: Array) -> str:
        stored.append(numpy_helper.from_array(value, name))
        return name

    def op(operator: str, *inputs: str, outputs: Sequence[str] = (), **attrs: Any) -> str:
        domain, _, operator = operator.rpartition(".")
        outputs = outputs or [f"{operator}_{len(nodes)}"]
        nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attrs))
        return outputs[0]

    def gemm(name: str, x: str, k: int, n: int, outputs: Sequence[str] = ()) -> str:
        if not few:
            stored.append(numbers.tensor(name, "normal", (k, n)))
            return op("MatMul", x, name, outputs=outputs)
        blocks, scale = k // BLOCK, f"{name}.scale"
        stored.append(numbers.tensor(name, "bytes", (n, blocks, BLOCK // 2)))
        stored.append(numbers.tensor(name, "scales", (n, blocks), scale))
        attrs = {"K": k, "N": n, "bits": 4, "block_size": BLOCK}
        return op("com.microsoft.MatMulNBits", x, name, scale, outputs=outputs, **attrs)

    gamma = store("gamma", np.ones(shape.hidden, kind))

    def norm(x: str, skip: str) -> tuple[str, str]:
        if not skip:
            kind = "SimplifiedLayerNormalization"
            return op(kind, x, gamma, axis=-1, epsilon=_EPSILON, stash_type=1), x
        both = [f"normed_{len(nodes)}", "", "", f"sum_{len(nodes)}"]
        kind = "com.microsoft.SkipSimplifiedLayerNormalization"
        return op(kind, x, skip, gamma, outputs=both, epsilon=_EPSILON), both[3]

    one, axis = store("one", np.array([1])), store("axis", np.array(1))
    counted = op("ReduceSum", "attention_mask", one, keepdims=0)
    lengths = op("Cast", op("Sub", counted, one), to=TensorProto.INT32)
    total = op("Gather", op("Shape", "attention_mask"), axis, axis=0)
    total = op("Cast", total, to=TensorProto.INT32)
    rotary = tables(shape, positions)
    angles = [store(n, t.astype(kind)) for n, t in zip(("cos", "sin"), rotary, strict=True)]
    stored.append(numbers.tensor("embed", "normal", (shape.vocab, shape.hidden)))
    x, update = op("Gather", "embed", "input_ids"), ""
    caches: list[tuple[str, str]] = []
    for layer in range(layers):
        sizes = shape.gemms
        y, x = norm(x, update)
        qkv = [gemm(f"{layer}.{p}", y, *sizes[p]) for p in "qkv"]
        pairs = [(f"past_key_values.{layer}.{w}", f"present.{layer}.{w}") for w in ("key", "value")]
        caches += pairs
        given = [*qkv, *(p for p, _ in pairs), lengths, total, *angles]
        y = op(
            "com.microsoft.GroupQueryAttention", *given,
            outputs=[f"attention_{layer}", *(p for _, p in pairs)], num_heads=shape.heads,
            kv_num_heads=shape.kv_heads, scale=shape.size**-0.5, do_rotary=1,
        )  # fmt: skip
        y, x = norm(x, gemm(f"{layer}.o", y, *sizes["o"]))
        gate, up = (gemm(f"{layer}.{p}", y, *sizes[p]) for p in ("gate", "up"))
        y = op("Mul", op("Mul", gate, op("Sigmoid", gate)), up)
        update = gemm(f"{layer}.down", y, *sizes["down"])
    y, _ = norm(x, update)
    gemm("head", y, shape.hidden, shape.vocab, ["logits"])

    def info(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    ids = ("batch_size", "sequence_length")
    old, new = (
        [info(c[w], floats, "batch_size", shape.kv_heads, length, shape.size) for c in caches]
        for w, length in ((0, "past_sequence_length"), (1, "present_sequence_length"))
    )
    given_infos = [
        info("input_ids", TensorProto.INT64, *ids),
        info("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
    ]
    made = [info("logits", floats, *ids, shape.vocab), *new]
    graph = helper.make_graph(nodes, "decoder", [*given_infos, *old], made, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class Peer:
    """The decoder in PyTorch. A run is the parts before attention, scaled_dot_product_attention
    over the keys that there are, and the parts behind it. What makes queries, keys and values is
    one GEMM, as are both halves of the gated unit.

    weight: a weight [columns, terms] by its name. wrap: what compiles the parts.
    """

    def __init__(
        self, shape: Shape, weight: Callable[[str, int, int], Any],
        wrap: Callable[[Any], Any], device: str, dtype: Any, positions: int,
    ) -> None:  # fmt: skip
        import torch

        self.t, self.shape = torch, shape
        self.embed = weight("embed", shape.hidden, shape.vocab)
        self.head = weight("head", shape.hidden, shape.vocab)
        self.gamma = torch.ones(shape.hidden, device=device, dtype=dtype)
        self.tables = [torch.tensor(t, device=device).to(dtype) for t in tables(shape, positions)]

        def joined(layer: int, *names: str) -> Any:
            return torch.cat([weight(f"{layer}.{n}", *shape.gemms[n]) for n in names])

        self.layers = [
            [joined(k, *names) for names in (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))]
            for k in range(shape.layers)
        ]
        self.before, self.behind, self.last = map(wrap, (self._before, self._behind, self._last))

    def _norm(self, x: Any) -> Any:
        return self.t.nn.functional.rms_norm(x, x.shape[-1:], self.gamma, _EPSILON)

    def _before(
        self, x: Any, weight: Any, cos: Any, sin: Any, keys: Any, values: Any, at: Any
    ) -> Any:
        """Queries; keys and values go into the cache."""
        s, batch = self.shape, len(x)
        qkv = self.t.nn.functional.linear(self._norm(x), weight)
        q, k, v = qkv.view(batch, -1, s.size).split((s.heads, s.kv_heads, s.kv_heads), 1)

        def rotated(y: Any) -> Any:
            a, b = y.float().chunk(2, -1)
            return self.t.cat((a * cos - b * sin, b * cos + a * sin), -1).to(y.dtype)

        keys.index_copy_(2, at, rotated(k)[:, :, None])
        values.index_copy_(2, at, v[:, :, None])
        # the rows of the heads that share keys
        return rotated(q).view(batch, s.kv_heads, -1, s.size)

    def _behind(self, x: Any, seen: Any, out: Any, gated: Any, down: Any) -> Any:
        f = self.t.nn.functional
        x = x + f.linear(seen.reshape(len(x), -1), out)
        gate, up = f.linear(self._norm(x), gated).chunk(2, -1)
        return x + f.linear(f.silu(gate) * up, down)

    def _last(self, x: Any) -> Any:
        return self.t.nn.functional.linear(self._norm(x), self.head)

    def __call__(self, ids: Any, at: Any, caches: Sequence[tuple[Any, Any]]) -> Any:
        """Logits of one token of each row; ids [batch], at: its position [1]."""
        x = self.embed[ids]
        cos, sin = (t[at].float() for t in self.tables)
        for (qkv, out, gated, down), (keys, values) in zip(self.layers, caches, strict=True):
            q = self.before(x, qkv, cos, sin, keys, values, at)
            seen = self.t.nn.functional.scaled_dot_product_attention(q, keys, values)
            x = self.behind(x, seen, out, gated, down)
        return self.last(x)

"""Builds ONNX models the way exporters spell them, with seeded weights that keep activations in
range through any depth.

Every value carries an estimate of its mean square (`power`), so a weight of fan-in n that reads it
gets the standard deviation 1 / sqrt(n * power): a random network then behaves like a trained one
(no layer saturates, the output depends on the input).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

Array = npt.NDArray[Any]
DimSpec = int | str

#: E[f(x)^2] for x ~ N(0, 1), by activation.
POWER = {
    "relu": 0.5,
    "relu6": 0.5,
    "silu": 0.355,
    "hardswish": 0.36,
    "gelu": 0.425,
    "gelu_new": 0.425,
    "tanh": 0.394,
    "sigmoid": 0.293,
    "": 1.0,
}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: `width` is its channel count (axis 1 of NCHW, last axis of token
    tensors), `power` its estimated mean square.
    """

    tensor: gs.Tensor
    width: int = 0
    power: float = 1.0


Operand = Value | Array | None


class Net:
    """A graph under construction.

    name:   the graph's name.
    seed:   of the weights; the same arguments give the same bytes.
    folded: batch normalisation is folded into the convolution before it, as inference exporters do,
    instead of kept as a node.
    """

    def __init__(self, name: str, *, seed: int = 0, opset: int = 17, folded: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.folded = folded
        self._graph = gs.Graph(
            name=name,
            opset=opset,
            ir_version=8,
            producer_name="tracea-onnx",
            producer_version="models",
        )
        self._scopes: list[str] = []
        self._uses: Counter[str] = Counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes and weights made inside are named `/outer/name/...`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def _unique(self, name: str) -> str:
        self._uses[name] += 1
        return name if self._uses[name] == 1 else f"{name}_{self._uses[name] - 1}"

    # --- values -----------------------------------------------------------------------------------
    def input(
        self,
        name: str,
        shape: Sequence[DimSpec],
        dtype: npt.DTypeLike = np.float32,
        *,
        width: int = 0,
    ) -> Value:
        """A graph input."""
        tensor = gs.Variable(name, dtype=np.dtype(dtype), shape=list(shape))
        self._graph.inputs.append(tensor)
        return Value(tensor, width)

    def parameter(self, name: str, values: Array, *, width: int = 0, power: float = 1.0) -> Value:
        """An initializer called `<scope>.<name>`."""
        return Value(
            gs.Constant(self._unique(".".join([*self._scopes, name])), values), width, power
        )

    def normal(
        self, name: str, shape: Sequence[int], std: float, *, centered: tuple[int, ...] = ()
    ) -> Value:
        """An initializer drawn from N(0, std^2); its mean over the axes `centered` is exactly
        removed.
        """
        values = self.rng.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        if centered:
            values -= values.mean(axis=centered, keepdims=True)
        return self.parameter(name, values, power=std * std)

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> Value:
        """A Constant node, as exporters write literals."""
        name = self._unique("/".join(["", *self._scopes, "Constant"]))
        out = gs.Variable(f"{name}_output_0")
        self._graph.nodes.append(
            gs.Node(
                "Constant",
                name,
                {"value": gs.Constant(f"{name}_value", np.asarray(values, dtype))},
                [],
                [out],
            )
        )
        return Value(out)

    # --- nodes ------------------------------------------------------------------------------------
    def split(
        self,
        kind: str,
        inputs: Sequence[Operand],
        outputs: int,
        *,
        width: int = 0,
        power: float | None = None,
        **attrs: Any,
    ) -> list[Value]:
        """One node with several outputs.

        A numpy operand becomes a Constant node; None is an absent optional input.
        """
        values = [self.constant(v, v.dtype) if isinstance(v, np.ndarray) else v for v in inputs]
        first = next(v for v in values if v is not None)
        name = self._unique("/".join(["", *self._scopes, kind]))
        tensors = [gs.Variable(f"{name}_output_{k}") for k in range(outputs)]
        operands = [gs.Variable.empty() if v is None else v.tensor for v in values]
        self._graph.nodes.append(gs.Node(kind, name, attrs, operands, list(tensors)))
        return [
            Value(t, width or first.width, first.power if power is None else power) for t in tensors
        ]

    def op(
        self, kind: str, *inputs: Operand, width: int = 0, power: float | None = None, **attrs: Any
    ) -> Value:
        """One node with one output; `width` and `power` are the first input's unless given."""
        return self.split(kind, inputs, 1, width=width, power=power, **attrs)[0]

    def model(
        self, outputs: Sequence[tuple[str, Value, npt.DTypeLike, Sequence[DimSpec]]]
    ) -> onnx.ModelProto:
        """The finished model; each output is (name, value, dtype, shape)."""
        for name, value, dtype, shape in outputs:
            value.tensor.name, value.tensor.dtype, value.tensor.shape = (
                name,
                np.dtype(dtype),
                list(shape),
            )
            self._graph.outputs.append(value.tensor)
        model: onnx.ModelProto = gs.export_onnx(self._graph)
        return model

    # --- arithmetic -------------------------------------------------------------------------------
    def add(self, a: Operand, b: Operand) -> Value:
        """A + b."""
        total = sum(v.power for v in (a, b) if isinstance(v, Value))
        width = max(v.width for v in (a, b) if isinstance(v, Value))
        return self.op("Add", a, b, width=width, power=total)

    def concat(self, values: Sequence[Value], axis: int = 1) -> Value:
        """Concat along `axis`."""
        width = sum(v.width for v in values)
        power = sum(v.power * v.width for v in values) / width if width else 1.0
        return self.op("Concat", *values, axis=axis, width=width, power=power)

    def dim(self, x: Value, axis: int) -> Value:
        """The size of one axis as a scalar: Shape, Gather."""
        return self.op("Gather", self.op("Shape", x), np.asarray(axis, np.int64), axis=0)

    def reshape(self, x: Value, dims: Sequence[int | Value], *, width: int = 0) -> Value:
        """Reshape; scalar values among `dims` are joined the way tracing writes `x.view(b, s, -1)`:
        Unsqueeze, Concat.
        """
        if not any(isinstance(d, Value) for d in dims):
            return self.op("Reshape", x, np.asarray(dims, np.int64), width=width)
        zero = np.asarray([0], np.int64)
        parts = [
            self.op("Unsqueeze", d, zero) if isinstance(d, Value) else self.constant([d])
            for d in dims
        ]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0), width=width)

    def transpose(self, x: Value, *perm: int) -> Value:
        """Transpose by `perm`."""
        return self.op("Transpose", x, perm=list(perm))

    # --- activations ------------------------------------------------------------------------------
    def act(self, x: Value, kind: str) -> Value:
        """An activation as torch exporters spell it; `kind` is a key of `POWER`."""
        power = POWER[kind] * x.power
        f32 = np.float32
        if kind == "":
            return x
        if kind == "relu6":
            return self.op("Clip", x, np.asarray(0, f32), np.asarray(6, f32), power=power)
        if kind == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x), power=power)
        if kind == "gelu":
            erf = self.op("Erf", self.op("Div", x, np.asarray(np.sqrt(2.0), f32)))
            return self.op(
                "Mul",
                self.op("Mul", x, self.op("Add", erf, np.asarray(1, f32))),
                np.asarray(0.5, f32),
                power=power,
            )
        if kind == "gelu_new":
            cube = self.op("Mul", self.op("Pow", x, np.asarray(3, f32)), np.asarray(0.044715, f32))
            tanh = self.op(
                "Tanh",
                self.op("Mul", self.op("Add", x, cube), np.asarray(np.sqrt(2.0 / np.pi), f32)),
            )
            return self.op(
                "Mul",
                self.op("Mul", x, np.asarray(0.5, f32)),
                self.op("Add", tanh, np.asarray(1, f32)),
                power=power,
            )
        return self.op(
            {"relu": "Relu", "hardswish": "HardSwish", "tanh": "Tanh", "sigmoid": "Sigmoid"}[kind],
            x,
            power=power,
        )

    # --- convolutional layers ---------------------------------------------------------------------
    def conv(
        self, x: Value, channels: int, kernel: int = 1, stride: int = 1, *, groups: int = 1,
        pad: int | None = None, bias: bool = True, gain: float = 1.0,
        name: str = "conv",
    ) -> Value:  # fmt: skip
        """Conv of `channels` outputs, square kernel, "same" padding unless `pad` is given; `gain`
        scales the weights.
        """
        p = kernel // 2 if pad is None else pad
        fan_in = x.width // groups * kernel * kernel
        with self.scope(name):
            # Filters without a mean ignore what all channels share, as training makes them; else
            # that constant drowns the input's share.
            centered = (1, 2, 3) if x.width // groups > 8 else ()
            weight = self.normal(
                "weight",
                (channels, x.width // groups, kernel, kernel),
                gain / np.sqrt(fan_in * x.power),
                centered=centered,
            )
            inputs = [x, weight] + ([self.normal("bias", (channels,), 0.1)] if bias else [])
            return self.op(
                "Conv",
                *inputs,
                dilations=[1, 1],
                group=groups,
                kernel_shape=[kernel] * 2,
                pads=[p] * 4,
                strides=[stride] * 2,
                width=channels,
                power=gain**2,
            )

    def conv_bn(
        self,
        x: Value,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        act: str = "",
        *,
        groups: int = 1,
        eps: float = 1e-5,
        gain: float = 1.0,
        name: str = "0",
    ) -> Value:
        """Conv, BatchNormalization (unless the network is `folded`), activation.

        A `gain` below 1 on the last layer of a residual branch tames its growth.
        """
        with self.scope(name):
            y = self.conv(
                x,
                channels,
                kernel,
                stride,
                groups=groups,
                bias=self.folded,
                gain=gain if self.folded else 1.0,
            )
            if not self.folded:
                y = self.batch_norm(y, eps=eps, gain=gain)
            return self.act(y, act)

    def batch_norm(
        self, x: Value, *, eps: float = 1e-5, gain: float = 1.0, name: str = "bn"
    ) -> Value:
        """BatchNormalization with random statistics."""
        uniform, c = self.rng.uniform, x.width
        with self.scope(name):
            gamma = self.parameter("weight", (gain * uniform(0.8, 1.2, c)).astype(np.float32))
            beta = self.normal("bias", (c,), 0.1)
            mean = self.normal("running_mean", (c,), 0.1 * float(np.sqrt(x.power)))
            var = self.parameter("running_var", (x.power * uniform(0.8, 1.2, c)).astype(np.float32))
            return self.op(
                "BatchNormalization",
                x,
                gamma,
                beta,
                mean,
                var,
                epsilon=eps,
                momentum=0.9,
                training_mode=0,
                power=gain**2,
            )

    def group_norm(self, x: Value, groups: int, *, name: str = "norm") -> Value:
        """nn.GroupNorm as exporters before opset 18 write it: InstanceNormalization over groups,
        then the affine part.
        """
        f32, c = np.float32, x.width
        with self.scope(name):
            y = self.op("Reshape", x, np.asarray([0, groups, -1], np.int64))
            y = self.op(
                "InstanceNormalization",
                y,
                np.ones(groups, f32),
                np.zeros(groups, f32),
                epsilon=1e-5,
            )
            y = self.op("Reshape", y, self.op("Shape", x))
            gamma = self.parameter("weight", self.rng.uniform(0.8, 1.2, (c, 1, 1)).astype(f32))
            return self.op(
                "Add",
                self.op("Mul", y, gamma),
                self.normal("bias", (c, 1, 1), 0.1),
                width=c,
                power=1.0,
            )

    def conv_transpose(
        self, x: Value, channels: int, kernel: int = 2, stride: int = 2, *, name: str = "up"
    ) -> Value:
        """ConvTranspose with random weights."""
        with self.scope(name):
            weight = self.normal(
                "weight",
                (x.width, channels, kernel, kernel),
                1.0 / np.sqrt(x.width * x.power * (kernel / stride) ** 2),
            )
            bias = self.normal("bias", (channels,), 0.1)
            return self.op(
                "ConvTranspose", x, weight, bias,
                dilations=[1, 1], group=1, kernel_shape=[kernel] * 2, pads=[0] * 4,
                strides=[stride] * 2, width=channels, power=1.0,
            )  # fmt: skip

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        """MaxPool of a square window."""
        return self.op(
            "MaxPool",
            x,
            ceil_mode=0,
            dilations=[1, 1],
            kernel_shape=[kernel] * 2,
            pads=[pad] * 4,
            strides=[stride] * 2,
            power=1.2 * x.power,
        )

    def global_pool(self, x: Value) -> Value:
        """GlobalAveragePool: [N, C, H, W] to [N, C, 1, 1]."""
        # What survives an average over positions is mostly the squared mean: a third of a rectified
        # value's power.
        return self.op("GlobalAveragePool", x, power=x.power / 3)

    def squeeze_excite(
        self, x: Value, squeezed: int, act: str, gate: str, *, name: str = "se"
    ) -> Value:
        """x * gate(conv(act(conv(global average of x)))); gate is Sigmoid or HardSigmoid."""
        with self.scope(name):
            y = self.act(self.conv(self.global_pool(x), squeezed, name="fc1"), act)
            y = self.conv(y, x.width, name="fc2")
            y = (
                self.op("HardSigmoid", y, alpha=1 / 6)
                if gate == "hardsigmoid"
                else self.op("Sigmoid", y)
            )
            return self.op("Mul", y, x, width=x.width, power=0.29 * x.power)

    def classifier(self, x: Value, classes: int, *, name: str = "fc") -> Value:
        """Gemm on [batch, features], the weight stored transposed as nn.Linear does."""
        with self.scope(name):
            weight = self.normal(
                "weight", (classes, x.width), 1.0 / np.sqrt(x.width * x.power), centered=(1,)
            )
            return self.op(
                "Gemm",
                x,
                weight,
                self.normal("bias", (classes,), 0.1),
                alpha=1.0,
                beta=1.0,
                transB=1,
                width=classes,
                power=1.0,
            )

    # --- transformer layers -----------------------------------------------------------------------
    def linear(self, x: Value, width: int, *, bias: bool = True, name: str = "dense") -> Value:
        """nn.Linear on [batch, tokens, features]: MatMul by a [in, out] initializer, then Add(bias,
        ...).
        """
        with self.scope(name):
            y = self.op(
                "MatMul",
                x,
                self.normal("weight", (x.width, width), 1.0 / np.sqrt(x.width * x.power)),
                width=width,
                power=1.0,
            )
            return (
                self.op("Add", self.normal("bias", (width,), 0.1), y, width=width, power=1.0)
                if bias
                else y
            )

    def layer_norm(self, x: Value, *, eps: float = 1e-5, name: str = "LayerNorm") -> Value:
        """LayerNormalization over the last axis, with random weights."""
        with self.scope(name):
            gamma = self.parameter("weight", self.rng.uniform(0.8, 1.2, x.width).astype(np.float32))
            return self.op(
                "LayerNormalization",
                x,
                gamma,
                self.normal("bias", (x.width,), 0.1),
                axis=-1,
                epsilon=eps,
                power=1.0,
            )

    def embedding(self, ids: Operand, rows: int, width: int, *, name: str) -> Value:
        """Gather of rows of a random table [rows, width]."""
        with self.scope(name):
            return self.op(
                "Gather", self.normal("weight", (rows, width), 0.5), ids, width=width, power=0.25
            )

"""GPT-2 prefill, as the eager Hugging Face model is exported: Conv1D as Reshape and Gemm, a sliced
causal mask, tanh GELU, tied logits.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def conv1d(net: Net, x: Value, width: int, *, name: str) -> Value:
    """Hugging Face's Conv1D: x @ W + b with W stored [in, out], on the flattened tokens."""
    with net.scope(name):
        shape: list[int | Value] = [net.dim(x, 0), net.dim(x, 1), width]
        weight = net.normal("weight", (x.width, width), 1.0 / np.sqrt(x.width * x.power))
        flat = net.reshape(x, [-1, x.width])
        y = net.op(
            "Gemm",
            flat,
            weight,
            net.normal("bias", (width,), 0.1),
            alpha=1.0,
            beta=1.0,
            width=width,
            power=1.0,
        )
        return net.reshape(y, shape)


def attention(net: Net, x: Value, causal: Value, heads: int) -> Value:
    """Masked self-attention; `causal` is the [1, 1, positions, positions] lower triangle, cut to
    the sequence.
    """
    width, size, i64 = x.width, x.width // heads, np.int64
    parts = net.split(
        "Split",
        [conv1d(net, x, 3 * width, name="c_attn"), np.asarray([width] * 3, i64)],
        3,
        width=width,
        axis=2,
    )
    q, k, v = (
        net.transpose(net.reshape(p, [net.dim(p, 0), net.dim(p, 1), heads, size]), 0, 2, 1, 3)
        for p in parts
    )
    scores = net.op(
        "Div",
        net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)),
        np.asarray(np.sqrt(size), np.float32),
    )
    tokens = net.op("Unsqueeze", net.dim(k, -2), np.asarray([0], i64))
    zero, one = np.asarray([0], i64), np.asarray([1], i64)
    cut = net.op(
        "Slice",
        net.op("Slice", causal, zero, tokens, np.asarray([2], i64), one),
        zero,
        tokens,
        np.asarray([3], i64),
        one,
    )
    scores = net.op("Where", cut, scores, np.asarray(np.finfo(np.float32).min, np.float32))
    y = net.transpose(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    y = net.reshape(y, [net.dim(y, 0), net.dim(y, 1), width], width=width)
    return conv1d(net, Value(y.tensor, width, 0.3), width, name="c_proj")


def build(
    batch: int = 1, seq: int = 128, *, dynamic: bool = True, layers: int = 12, hidden: int = 768,
    heads: int = 12, vocab: int = 50257, positions: int = 1024,
    seed: int = 22,
) -> onnx.ModelProto:  # fmt: skip
    """input_ids [batch, seq] int64 -> logits [batch, seq, vocab]; the output projection is the
    transposed embedding.
    """
    b, s = ("batch", "sequence") if dynamic else (batch, seq)
    i64 = np.int64
    net = Net("gpt2", seed=seed)
    ids = net.input("input_ids", [b, s], i64)
    with net.scope("transformer"):
        table = net.normal("wte.weight", (vocab, hidden), 0.5)
        tokens = net.dim(ids, 1)
        steps = net.op("Range", np.asarray(0, i64), tokens, np.asarray(1, i64))
        places = net.embedding(
            net.op("Unsqueeze", steps, np.asarray([0], i64)), positions, hidden, name="wpe"
        )
        x = net.add(net.op("Gather", table, ids, width=hidden, power=0.25), places)
        causal = net.parameter(
            "bias", np.tril(np.ones((positions, positions), np.bool_))[None, None]
        )
        for k in range(layers):
            with net.scope(f"h.{k}"):
                x = net.add(attention(net, net.layer_norm(x, name="ln_1"), causal, heads), x)
                y = net.act(
                    conv1d(net, net.layer_norm(x, name="ln_2"), 4 * hidden, name="mlp.c_fc"),
                    "gelu_new",
                )
                x = net.add(x, conv1d(net, y, hidden, name="mlp.c_proj"))
        x = net.layer_norm(x, name="ln_f")
    logits = net.op("MatMul", x, net.transpose(table, 1, 0))
    return net.model([("logits", logits, np.float32, [b, s, vocab])])

"""BERT-base, as the TorchScript exporter writes the eager Hugging Face model: traced shapes,
separate Q, K and V, erf GELU.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def heads(net: Net, x: Value, count: int, perm: tuple[int, int, int, int]) -> Value:
    """[batch, tokens, hidden] -> [batch, tokens, heads, size], transposed by `perm`."""
    return net.transpose(
        net.reshape(x, [net.dim(x, 0), net.dim(x, 1), count, x.width // count]), *perm
    )


def self_attention(net: Net, x: Value, mask: Value, count: int) -> Value:
    """softmax(q k^T / sqrt(size) + mask) v over `count` heads; `mask` is [batch, 1, 1, tokens], 0
    or very negative.
    """
    width, size = x.width, x.width // count
    q = net.linear(x, width, name="query")
    k = heads(net, net.linear(x, width, name="key"), count, (0, 2, 3, 1))
    v = heads(net, net.linear(x, width, name="value"), count, (0, 2, 1, 3))
    scores = net.op("MatMul", heads(net, q, count, (0, 2, 1, 3)), k)
    scores = net.op("Add", net.op("Div", scores, np.asarray(np.sqrt(size), np.float32)), mask)
    y = net.transpose(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    y = net.reshape(y, [net.dim(y, 0), net.dim(y, 1), width], width=width)
    return Value(y.tensor, width, 0.3)


def encoder(
    net: Net,
    ids: Value,
    mask: Value,
    types: Value,
    *,
    vocab: int,
    hidden: int,
    layers: int,
    count: int,
    inner: int,
    positions: int,
) -> Value:
    """BERT's embeddings and encoder: [batch, tokens] ids, mask and types (int64) -> [batch, tokens,
    hidden].
    """
    i64 = np.int64
    with net.scope("embeddings"):
        words = net.embedding(ids, vocab, hidden, name="word_embeddings")
        all_positions = net.parameter("position_ids", np.arange(positions, dtype=i64)[None])
        end = net.op("Unsqueeze", net.dim(ids, 1), np.asarray([0], i64))
        used = net.op(
            "Slice",
            all_positions,
            np.asarray([0], i64),
            end,
            np.asarray([1], i64),
            np.asarray([1], i64),
        )
        x = net.add(words, net.embedding(types, 2, hidden, name="token_type_embeddings"))
        x = net.add(x, net.embedding(used, positions, hidden, name="position_embeddings"))
        x = net.layer_norm(x, eps=1e-12)
    wide = net.op(
        "Unsqueeze", net.op("Unsqueeze", mask, np.asarray([1], i64)), np.asarray([2], i64)
    )
    kept = net.op("Cast", wide, to=int(onnx.TensorProto.FLOAT))
    bias = net.op(
        "Mul",
        net.op("Sub", np.asarray(1, np.float32), kept),
        np.asarray(np.finfo(np.float32).min, np.float32),
    )
    for k in range(layers):
        with net.scope(f"encoder.layer.{k}"):
            with net.scope("attention"):
                y = net.linear(self_attention(net, x, bias, count), hidden, name="output")
                x = net.layer_norm(net.add(y, x), eps=1e-12)
            y = net.act(net.linear(x, inner, name="intermediate"), "gelu")
            x = net.layer_norm(net.add(net.linear(y, hidden, name="output"), x), eps=1e-12)
    return x


def build(
    batch: int = 1, seq: int = 128, *, dynamic: bool = True, layers: int = 12, hidden: int = 768,
    heads: int = 12, inner: int = 3072, vocab: int = 30522,
    positions: int = 512, seed: int = 12,
) -> onnx.ModelProto:  # fmt: skip
    """input_ids, attention_mask, token_type_ids [batch, seq] int64 -> last_hidden_state [batch,
    seq, hidden], pooler_output [batch, hidden].
    """
    b, s = ("batch", "sequence") if dynamic else (batch, seq)
    net = Net("bert_base", seed=seed)
    ids, mask, types = (
        net.input(name, [b, s], np.int64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = encoder(
        net,
        ids,
        mask,
        types,
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        count=heads,
        inner=inner,
        positions=positions,
    )
    with net.scope("pooler"):
        pooled = net.act(
            net.classifier(
                net.op("Gather", x, np.asarray(0, np.int64), axis=1), hidden, name="dense"
            ),
            "tanh",
        )
    return net.model(
        [
            ("last_hidden_state", x, np.float32, [b, s, hidden]),
            ("pooler_output", pooled, np.float32, [b, hidden]),
        ]
    )

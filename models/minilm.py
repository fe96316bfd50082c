"""MiniLM-L6 sentence encoder: a small BERT, mean pooling over the unmasked tokens, unit length."""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net
from tracea_onnx.support import discovery


def build(
    batch: int = 1, seq: int = 128, *, dynamic: bool = True, layers: int = 6, hidden: int = 384,
    heads: int = 12, inner: int = 1536, vocab: int = 30522,
    positions: int = 512, seed: int = 6,
) -> onnx.ModelProto:  # fmt: skip
    """input_ids, attention_mask, token_type_ids [batch, seq] int64 -> token_embeddings [batch, seq,
    hidden], sentence_embedding [batch, hidden].
    """
    b, s = ("batch", "sequence") if dynamic else (batch, seq)
    f32, i64 = np.float32, np.int64
    net = Net("minilm", seed=seed)
    ids, mask, types = (
        net.input(name, [b, s], i64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    encoder = discovery.module("models", "bert_base").encoder
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
    with net.scope("pooling"):
        wide = net.op(
            "Expand", net.op("Unsqueeze", mask, np.asarray([-1], i64)), net.op("Shape", x)
        )
        kept = net.op("Cast", wide, to=int(onnx.TensorProto.FLOAT))
        total = net.op("ReduceSum", net.op("Mul", x, kept), np.asarray([1], i64), keepdims=0)
        count = net.op(
            "Clip",
            net.op("ReduceSum", kept, np.asarray([1], i64), keepdims=0),
            np.asarray(1e-9, f32),
        )
        mean = net.op("Div", total, count)
    with net.scope("normalize"):
        norm = net.op(
            "Clip", net.op("ReduceL2", mean, axes=[1], keepdims=1), np.asarray(1e-12, f32)
        )
        unit = net.op("Div", mean, net.op("Expand", norm, net.op("Shape", mean)))
    return net.model(
        [
            ("token_embeddings", x, f32, [b, s, hidden]),
            ("sentence_embedding", unit, f32, [b, hidden]),
        ]
    )

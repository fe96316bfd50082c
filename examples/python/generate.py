"""Text from a decoder, token by token: one session for the prompt and for what follows it.

    python examples/python/generate.py [--backend cpu] [--tokens 64] [--prompt TEXT] [--room 256]

The model is made here, of seeded weights, with the operators and names that onnxruntime-genai's
model builder writes for a Llama; its tokens are bytes. With `--room N` the cache of keys and values
is memory for N tokens that a run reads and writes in place; with `--room 0` every run makes a new
one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx import provider


def build(
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    inner: int = 96,
    vocab: int = 256,
    positions: int = 4096,
    packed: bool = False,
    seed: int = 24,
    **attention: Any,
) -> onnx.ModelProto:
    """input_ids [batch, sequence], attention_mask [batch, total], past_key_values.K.key and .value
    [batch, kv_heads, past, size] -> logits [batch, sequence, vocab], present.K.key and .value. A
    token's row of attention_mask has ones for the tokens that there are, from the first on.
    """
    rng, width = np.random.default_rng(seed), heads * size
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, values: np.ndarray[Any, Any]) -> str:
        weights.append(numpy_helper.from_array(values, name))
        return name

    def normal(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[0]))
        return weight(name, values)

    def op(kind: str, name: str, *inputs: str, outputs: tuple[str, ...] = (), **attrs: Any) -> str:
        domain, _, kind = kind.rpartition(".")
        outputs = outputs or (f"{name}/output_0",)
        nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attrs))
        return outputs[0]

    def linear(name: str, x: str, rows: int, columns: int) -> str:
        return op("MatMul", f"{name}/MatMul", x, normal(f"{name}.weight", rows, columns))

    def norm(name: str, x: str, skip: str = "") -> tuple[str, str]:
        gamma = weight(f"{name}.weight", rng.uniform(0.8, 1.2, width).astype(np.float32))
        attrs: dict[str, Any] = {"epsilon": 1e-5}
        if not skip:
            kind = "SimplifiedLayerNormalization"
            return op(kind, f"{name}/LayerNorm", x, gamma, axis=-1, stash_type=1, **attrs), x
        name = f"{name}/SkipLayerNorm"
        both = (f"{name}/output_0", "", "", f"{name}/output_3")
        kind = "com.microsoft.SkipSimplifiedLayerNormalization"
        return op(kind, name, x, skip, gamma, outputs=both, **attrs), both[3]

    mask = "/model/attn_mask_reformat/attn_mask_subgraph"
    one = weight("one", np.array([1], np.int64))
    counted = op("ReduceSum", f"{mask}/ReduceSum", "attention_mask", one, keepdims=0)
    lengths = op("Cast", f"{mask}/Sub/Cast", op("Sub", f"{mask}/Sub", counted, one), to=6)
    axis = weight("axis", np.array(1, np.int64))
    shape = op("Shape", f"{mask}/Shape", "attention_mask")
    total = op(
        "Cast", f"{mask}/Gather/Cast", op("Gather", f"{mask}/Gather", shape, axis, axis=0), to=6
    )
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(size // 2) * 2 / size))
    cos, sin = (
        weight(name, f(angles).astype(np.float32))
        for name, f in (("cos_cache", np.cos), ("sin_cache", np.sin))
    )
    table = weight("embed", rng.standard_normal((vocab, width), dtype=np.float32))
    x = op("Gather", "/model/embed_tokens/Gather", table, "input_ids")
    caches: list[tuple[str, str]] = []
    update = ""
    for k in range(layers):
        layer = f"/model/layers.{k}"
        y, x = norm(f"{layer}/input_layernorm", x, update)
        widths = {"q": width, "k": kv_heads * size, "v": kv_heads * size}
        if packed:
            columns = sum(widths.values())
            qkv = [linear(f"{layer}/attn/qkv_proj", y, width, columns), "", ""]
        else:
            qkv = [linear(f"{layer}/attn/{p}_proj", y, width, n) for p, n in widths.items()]
        caches += [(f"past_key_values.{k}.{w}", f"present.{k}.{w}") for w in ("key", "value")]
        name = f"{layer}/attn/GroupQueryAttention"
        pasts, presents = zip(*caches[-2:], strict=True)
        y = op(
            "com.microsoft.GroupQueryAttention",
            name,
            *(*qkv, *pasts, lengths, total, cos, sin),
            outputs=(f"{name}/output_0", *presents),
            num_heads=heads,
            kv_num_heads=kv_heads,
            scale=float(size**-0.5),
            **{"do_rotary": 1, "rotary_interleaved": 0, **attention},
        )
        y = linear(f"{layer}/attn/o_proj", y, width, width)
        y, x = norm(f"{layer}/post_attention_layernorm", x, y)
        gate, up = (linear(f"{layer}/mlp/{p}_proj", y, width, inner) for p in ("gate", "up"))
        act = f"{layer}/mlp/act_fn"
        gate = op("Mul", f"{act}/Mul", gate, op("Sigmoid", f"{act}/Sigmoid", gate))
        y = op("Mul", f"{layer}/mlp/Mul", gate, up)
        update = linear(f"{layer}/mlp/down_proj", y, inner, width)
    y, _ = norm(f"/model/layers.{layers}/final_norm_layernorm", x, update)
    op("MatMul", "/lm_head/MatMul", y, normal("lm_head", width, vocab), outputs=("logits",))

    def info(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    old, new = (
        [info(c[w], f32, "batch_size", kv_heads, length, size) for c in caches]
        for w, length in ((0, "past_sequence_length"), (1, "total_sequence_length"))
    )
    tokens = ("batch_size", "sequence_length")
    given = [
        info("input_ids", i64, *tokens),
        info("attention_mask", i64, "batch_size", "total_sequence_length"),
    ]
    made = [info("logits", f32, *tokens, vocab), *new]
    graph = helper.make_graph(nodes, "main_graph", [*given, *old], made, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def greedy(
    session: ort.InferenceSession, prompts: np.ndarray[Any, Any], *, room: int = 0
) -> Iterator[np.ndarray[Any, Any]]:
    """The most likely next token of each row [batch], without end. prompts: [batch, tokens]. room:
    tokens that the cache has memory for, which runs read and write in place; 0: every run makes a
    new one.
    """
    ids, done = prompts, 0
    names = [i.name for i in session.get_inputs()[2:]]
    made = [o.name for o in session.get_outputs()]
    shape = [d if isinstance(d, int) else room for d in session.get_inputs()[2].shape]
    shape[0] = len(prompts)
    cache = {n: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for n in names}
    while True:
        done += ids.shape[1]
        bound = session.io_binding()
        mask = np.ones((len(ids), done), np.int64)
        bound.bind_cpu_input("input_ids", ids)  # whose memory is read in the run
        bound.bind_cpu_input("attention_mask", mask)
        bound.bind_output(made[0])
        for name, output in zip(names, made[1:], strict=True):
            bound.bind_ortvalue_input(name, cache[name])
            if room:
                bound.bind_ortvalue_output(output, cache[name])
            else:
                bound.bind_output(output)
        session.run_with_iobinding(bound)
        logits, *new = bound.get_outputs()
        if not room:
            cache = dict(zip(names, new, strict=True))
        ids = logits.numpy()[:, -1].argmax(-1)[:, None]
        yield ids[:, 0]


def main() -> None:
    """Print the prompt and what follows it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--room", type=int, default=256)
    args = parser.parse_args()
    options = {"backend": args.backend, "claim": "all"}
    session = provider.create_session(build().SerializeToString(), options)
    prompt = np.frombuffer(args.prompt.encode(), np.uint8).astype(np.int64)[None]
    found = greedy(session, prompt, room=args.room)
    text = bytes(int(next(found)[0]) for _ in range(args.tokens))
    print(args.prompt + text.decode("latin-1"))


if __name__ == "__main__":
    main()

"""A model whose decoder is the body of ONNX Runtime's GreedySearch."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 11, 4


def greedy_search() -> ModelProto:
    """Tokens from (input_ids int32 [batch, sequence], max_length int32 [1]); one layer that keeps
    its tokens' embeddings as keys and values.
    """
    node = helper.make_node(
        "GreedySearch",
        ["input_ids", "max_length"],
        ["sequences"],
        domain="com.microsoft",
        eos_token_id=10,
        pad_token_id=10,
        model_type=0,
        decoder=_decoder(),
    )
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["batch", "sequence"]),
        helper.make_tensor_value_info("max_length", TensorProto.INT32, [1]),
    ]
    outputs = [helper.make_tensor_value_info("sequences", TensorProto.INT32, ["batch", "length"])]
    graph = helper.make_graph([node], "search", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _decoder() -> GraphProto:
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "table": rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32),
        "out": rng.standard_normal((WIDTH, VOCABULARY)).astype(np.float32),
        "ones": np.array([0, 2], np.int64), "twice": np.array([2, 1, 1, 1, 1], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"]),
        helper.make_node("Unsqueeze", ["e", "ones"], ["state"]),  # [1, batch, 1, sequence, width]
        helper.make_node("Tile", ["state", "twice"], ["states"]),
        helper.make_node("Concat", ["past_0", "states"], ["present_0"], axis=3),
        helper.make_node("Tanh", ["e"], ["t"]),
        helper.make_node("MatMul", ["t", "out"], ["logits"]),
    ]
    lengths = {"input_ids": "sequence", "position_ids": "sequence", "attention_mask": "whole"}
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT32, ["batch", length])
        for n, length in lengths.items()
    ]
    past = helper.make_tensor_value_info(
        "past_0", TensorProto.FLOAT, [2, "batch", 1, "past", WIDTH]
    )
    made = [
        helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]
        ),
        helper.make_tensor_value_info(
            "present_0", TensorProto.FLOAT, [2, "batch", 1, "whole", WIDTH]
        ),
    ]
    return helper.make_graph(
        nodes,
        "decoder",
        [*ids, past],
        made,
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )

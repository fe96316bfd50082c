"""One operator in a session on the provider, and on stock ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.sessions import assigned, session


def run(
    op: str,
    inputs: dict[str, Any],
    stored: dict[str, Any],
    opset: int = 22,
    known: bool = False,
    **attrs: Any,
) -> tuple[Any, Any]:
    """The provider's result, of inputs of unknown sizes but where they are said to be `known`, and
    ONNX Runtime's.
    """
    given = [
        helper.make_tensor_value_info(
            k,
            helper.np_dtype_to_tensor_dtype(v.dtype),
            v.shape if known else [f"{k}{a}" for a in range(v.ndim)],
        )
        for k, v in inputs.items()
    ]
    kept = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()]
    graph = helper.make_graph(
        [helper.make_node(op, [*inputs, *stored], ["y"], **attrs)],
        "g",
        given,
        [onnx.ValueInfoProto(name="y")],
        kept,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    made = session(model, provider=True, everything=True)
    assert assigned(made) == (1, 1)
    return made.run(None, inputs)[0], session(model).run(None, inputs)[0]

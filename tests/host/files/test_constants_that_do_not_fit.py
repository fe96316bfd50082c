"""Constants in a file whose data is not of their type and shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tracea_onnx.errors import ModelError
from tracea_onnx.model_io import model_file


def _model(constant: TensorProto, *, inside: bool) -> ModelProto:
    """x + constant, which is a node's or of the graph."""
    node = helper.make_node("Constant", [], ["c"], value=constant)
    graph = helper.make_graph(
        [*([node] if inside else []), helper.make_node("Add", ["x", "c"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
        [] if inside else [constant],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("bytes_", [0, 3, 8])
def test_a_scalar_of_other_bytes_is_a_damaged_file(
    bytes_: int, inside: bool, tmp_path: Path
) -> None:
    constant = TensorProto(name="c", data_type=TensorProto.FLOAT, raw_data=bytes(bytes_))
    path = tmp_path / "model.onnx"
    path.write_bytes(_model(constant, inside=inside).SerializeToString())
    with pytest.raises(ModelError, match="tensor 'c' is damaged: its data does not fit"):
        model_file.load(path)


@pytest.mark.parametrize("inside", [True, False])
def test_a_scalar_that_fits_loads(inside: bool, tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.array(2, np.float32), "c")
    path = tmp_path / "model.onnx"
    path.write_bytes(_model(constant, inside=inside).SerializeToString())
    assert model_file.load(path).model.graph.node

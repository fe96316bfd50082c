"""`tracea-onnx tune` from the command line to the kernels of the next session, on the stand-in of
the driver: its clock says what is fastest. Run by test_tune.py.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fake.driver import Log
from tracea_onnx import provider
from tracea_onnx.cli import main
from tracea_onnx.codegen import tuning_records
from tracea_onnx.runtime import cuda_harness
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure
from tracea_onnx.tuning.search import Search

log = Log()
# NVRTC wants more of a driver than there is
vars(discovery.module("kernels", "cuda"))["compile"] = lambda source, arch: source.encode()


def _model(batch: int | str) -> Path:
    """Two linear layers in fp16 with a GELU between them; what was compiled or measured before is
    forgotten.
    """
    os.environ["XDG_CACHE_HOME"], os.environ["XDG_DATA_HOME"] = mkdtemp(), mkdtemp()
    rng = np.random.default_rng(0)
    weights = {
        n: rng.standard_normal(s).astype(np.float16)
        for n, s in (("w", (192, 328)), ("b", (328,)), ("v", (328, 192)))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Gelu", ["a"], ["g"]),
        helper.make_node("MatMul", ["g", "v"], ["y"]),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [batch, 192]) for n in "xy"]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(a, n) for n, a in weights.items()]
    )
    path = Path(mkdtemp()) / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    return path


def _launches(path: Path, rows: int) -> list[str]:
    session = provider.create_session(path, {"backend": "cuda", "enable_cuda_graph": "0"})
    log.take()
    session.run(None, {"x": np.zeros((rows, 192), np.float16)})
    return [line for line in log.take() if line.startswith("launch")]


def _tune(path: Path, *more: str) -> dict[str, object]:
    out = StringIO()
    with redirect_stdout(out):
        assert main.main(["tune", str(path), "--backend", "cuda", "--json", *more]) == 0
    found: dict[str, object] = json.loads(out.getvalue())
    return found


def case_a_session_launches_what_was_measured_to_be_the_fastest() -> None:
    path = _model(640)
    before = _launches(path, 640)
    found = _tune(path)
    record = tuning_records.load(cuda_harness.device())
    assert found["kept"] == len(record) > 0
    assert float(str(found["after"])) < 0.997 * float(str(found["before"]))
    after = _launches(path, 640)
    assert len(before) == len(after) == 2 and before != after
    assert sum(a != b for a, b in zip(before, after, strict=True)) == len(record)
    kept = {x["kernel"] for x in found["launches"] if x["kernel"]}  # type: ignore[attr-defined]
    assert kept == {m.kernel for m in record.values()}
    assert all(m.us < 0.98 * m.usual_us and m.sizes == [{}] for m in record.values())


def case_a_symbolic_batch_is_tuned_for_the_given_size() -> None:
    path = _model("batch")
    before = {rows: _launches(path, rows) for rows in (7, 640, 1500)}
    assert _tune(path, "--input-shape", "x:640,192")["kept"]
    after = {rows: _launches(path, rows) for rows in (7, 640, 1500)}
    assert after[640] != before[640] and after[7] == before[7] and after[1500] == before[1500]
    assert {
        tuple(one.items())
        for m in tuning_records.load(cuda_harness.device()).values()
        for one in m.sizes
    } >= {(("batch", 640),)}


def case_requests_have_their_constants_when_the_session_is_gone() -> None:
    path = _model(7)
    (request,) = measure.requests_of(path, {"backend": "cuda"})
    gc.collect()
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    asked = {t.name: t for t in request.graph.initializer}
    assert asked.keys() >= {"w", "v"} and not any(t.external_data for t in asked.values())
    for name in ("w", "v"):
        np.testing.assert_array_equal(numpy_helper.to_array(asked[name]), stored[name])


def case_a_size_that_is_not_known_is_one_line() -> None:
    assert main.main(["tune", str(_model("batch")), "--backend", "cuda"]) == 2


def case_ctrl_c_keeps_what_was_found() -> None:
    path = _model(640)
    real = Search.take

    def interrupted(search: Search) -> dict[str, str]:
        if search.chosen:
            raise KeyboardInterrupt
        return real(search)

    with mock.patch.object(Search, "take", interrupted):
        assert main.main(["tune", str(path), "--backend", "cuda"]) == 130
    assert tuning_records.load(cuda_harness.device())


def case_a_second_model_leaves_the_first_tuned() -> None:
    first, home = _model("batch"), os.environ["XDG_DATA_HOME"]
    assert _tune(first, "--input-shape", "x:640,192")["kept"]
    tuned = _launches(first, 640)
    second = _model("rows")  # the same launches, under another symbol
    os.environ["XDG_DATA_HOME"] = home
    _tune(second, "--input-shape", "x:640,192")
    os.environ["XDG_CACHE_HOME"] = mkdtemp()
    assert _launches(first, 640) == tuned
    assert _launches(second, 640) == tuned

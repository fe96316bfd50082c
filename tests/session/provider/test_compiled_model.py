"""Compiled models (EPContext): written through ONNX Runtime's own compiler, and run without
ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto
from onnx import helper as h

from tests.host.pipeline_models import parse
from tests.session.provider.test_provider_cpp import example, mlp, ort_library, pattern
from tests.session.test_models import SMALL
from tests.support.model_inputs import feeds_at
from tests.support.sessions import assigned
from tracea_onnx import provider
from tracea_onnx.cli.main import main
from tracea_onnx.errors import TraceaError
from tracea_onnx.pipeline.compiled_model import compile_model
from tracea_onnx.plan import builder
from tracea_onnx.support import discovery

__all__ = ["example"]
Edit = Callable[[onnx.ModelProto, NodeProto], object]


def attribute(node: NodeProto, name: str) -> onnx.AttributeProto:
    found: onnx.AttributeProto = next(a for a in node.attribute if a.name == name)
    return found


def loaded(path: Path) -> ort.InferenceSession:
    """A session that compiles nothing."""
    before = provider.stats()["compile_requests"]
    made = provider.create_session(path)
    assert provider.stats()["compile_requests"] == before
    return made


@pytest.mark.parametrize("name", ["mobilenet_v2", "minilm", "unet"])
@pytest.mark.parametrize("embed", [True, False])
def test_a_compiled_model_gives_the_same_results(name: str, embed: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "out" / "model_ctx.onnx"
    target.parent.mkdir()
    model = discovery.module("models", name).build(**SMALL[name])
    h.set_model_props(model, {"names": "{0: 'cat'}"})
    onnx.save(model, source)
    made = compile_model(source, target, embed=embed)
    assert sorted(made.files) == sorted(target.parent.iterdir())
    assert len(made.files) == 1 + (not embed)
    assert {p.key: p.value for p in onnx.load(target).metadata_props}["names"] == "{0: 'cat'}"
    session = loaded(target)
    ours, total = assigned(session)
    assert ours == made.partitions >= 1 and total == made.partitions + made.left
    inputs = feeds_at(model, tmp_path, {"batch": 2, "sequence": 7}, 0)
    want = provider.create_session(source).run(None, inputs)
    for a, b in zip(session.run(None, inputs), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_outputs_have_types_that_the_model_does_not_declare(tmp_path: Path) -> None:
    """ONNX Runtime infers none of what a compiled node makes."""
    w = np.ones((5, 3), np.float32)
    onnx.save(parse("g (float[N, 5] x) => (y) { y = MatMul (x, w) }", w=w), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx", options={"claim": "all"})
    (y,) = loaded(tmp_path / "ctx.onnx").run(None, {"x": np.ones((2, 5), np.float32)})
    np.testing.assert_array_equal(y, np.full((2, 3), 5))


def test_weights_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    model = discovery.module("models", "minilm").build(**SMALL["minilm"])
    onnx.save(model, tmp_path / "model.onnx")
    target = tmp_path / "ctx.onnx"
    made = compile_model(tmp_path / "model.onnx", target, embed=True, external_data="always")
    assert made.files == [target, tmp_path / "ctx.onnx.data"]
    assert loaded(target)


def test_onnx_runtimes_compiler_writes_the_same(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    options = provider.select()
    for embed in (True, False):
        target = tmp_path / f"{embed}.onnx"
        ort.ModelCompiler(
            options, str(tmp_path / "model.onnx"), embed_compiled_data_into_model=embed
        ).compile_to_file(str(target))
        node = onnx.load(target).graph.node[0]
        assert node.op_type == "EPContext"
        assert attribute(node, "source").s.decode() == provider.PROVIDER_NAME
        assert (tmp_path / attribute(node,
                "ep_cache_context").s[:99].decode(errors="replace")).is_file() != embed  # fmt: skip
        assert loaded(target)


def test_the_session_entry_writes_one_too(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    options = provider.select()
    options.add_session_config_entry("ep.context_enable", "1")
    ort.InferenceSession(tmp_path / "model.onnx", options)
    assert loaded(tmp_path / "model_ctx.onnx")


def test_it_runs_without_python(example: Path, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx")
    library = str(shutil.copy(provider.library_path(), tmp_path / "libprovider.so"))
    command = [str(example), ort_library(), library, str(tmp_path / "ctx.onnx"), "", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 0 and not done.stderr, done.stderr
    output, statistics = done.stdout.splitlines()
    found = json.loads(statistics)
    assert found["claimed_nodes"] == 1 and found["runs"] == 1 and not found["compile_requests"]
    want = ort.InferenceSession(tmp_path / "model.onnx").run(
        None, {"x": pattern(48).reshape(3, 16)}
    )
    np.testing.assert_allclose(
        [float(v) for v in output.split()[3:]], want[0].reshape(-1)[:8], rtol=1e-5, atol=1e-6
    )


def _missing(model: onnx.ModelProto, node: NodeProto) -> None:
    attribute(node, "ep_cache_context").s = b"elsewhere.bin"


def _outside(model: onnx.ModelProto, node: NodeProto) -> None:
    attribute(node, "ep_cache_context").s = b"../ctx.bin"


def _damaged(model: onnx.ModelProto, node: NodeProto) -> None:
    attribute(node, "embed_mode").i = 1
    attribute(node, "ep_cache_context").s = b"TRACEAPK" + bytes(100)


def _no_part(model: onnx.ModelProto, node: NodeProto) -> None:
    name = attribute(node, "partition_name")
    name.s = name.s[:65] + b"7"


def _nameless(model: onnx.ModelProto, node: NodeProto) -> None:
    attribute(node, "partition_name").s = b"first"


def _without_pack(model: onnx.ModelProto, node: NodeProto) -> None:
    attribute(node, "main_context").i = 0


def _other_rank(model: onnx.ModelProto, node: NodeProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 2


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (_missing, "cannot read '.*elsewhere.bin', which the compiled model names"),
        (_outside, "the compiled model names a file that does not lie beside it"),
        (_damaged, "pack version 0 is not version 2"),
        (_no_part, "has no such part"),
        (_nameless, "names no part of a pack"),
        (_without_pack, "the pack of node '.*' is not in the model"),
        (_other_rank, "a plan of the compiled model does not fit: its input 'x' has 2 dims"),
    ],
)
def test_a_compiled_model_that_was_changed_is_one_line(
    edit: Edit, line: str, tmp_path: Path
) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx")
    model = onnx.load(tmp_path / "ctx.onnx")
    edit(model, model.graph.node[0])
    onnx.save(model, tmp_path / "ctx.onnx")
    with pytest.raises(Exception, match=line) as raised:
        provider.create_session(tmp_path / "ctx.onnx")
    assert len(str(raised.value).strip().splitlines()) == 1


@pytest.mark.parametrize(("trust", "left"), [("check", 0.0), ("trust", 7.0)])
def test_what_a_changed_plan_does_not_write_is_zero(
    trust: str, left: float, tmp_path: Path
) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx", embed=True)
    model = onnx.load(tmp_path / "ctx.onnx")
    content, part = (
        attribute(model.graph.node[0], n) for n in ("ep_cache_context", "partition_name")
    )
    header, blobs = builder.read_pack(content.s)
    rows = [(e["nodes"], {**e["plan"], "run": e["plan"]["run"][:-1]}) for e in header["entries"]]
    changed = builder.write_pack([(*row, blobs) for row in rows], "test")
    part.s = part.s.replace(content.s[32:64].hex().encode(), changed[32:64].hex().encode())
    content.s = changed
    onnx.save(model, tmp_path / "ctx.onnx")
    session = provider.create_session(tmp_path / "ctx.onnx", options={"ep_context": trust})
    given, made = session.get_inputs()[0].name, session.get_outputs()[0].name
    y = ort.OrtValue.ortvalue_from_numpy(np.full((3, 24), 7, np.float32))
    binding = session.io_binding()
    binding.bind_cpu_input(given, np.ones((3, 16), np.float32))
    binding.bind_ortvalue_output(made, y)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), left)


def test_a_pipe_in_place_of_the_pack_is_not_waited_for(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    _, pack = compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx").files
    pack.unlink()
    os.mkfifo(pack)
    program = "from tracea_onnx import provider; provider.create_session('ctx.onnx')"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert done.returncode and "which the compiled model names" in done.stderr


def test_onnx_runtime_is_told_where_a_compiled_model_runs(tmp_path: Path) -> None:
    binding = ort.capi.onnxruntime_pybind11_state
    if not hasattr(binding, "get_compatibility_info_from_model"):
        pytest.skip("this onnxruntime does not ask")
    onnx.save(mlp(), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "ctx.onnx")
    found = binding.get_compatibility_info_from_model(
        str(tmp_path / "ctx.onnx"), provider.PROVIDER_NAME
    )
    assert found == "tracea pack=2 backend=cpu arch=0"
    device = [d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME][:1]
    answers = {
        line: binding.get_model_compatibility_for_ep_devices(device, line).name
        for line in (found, found.replace("2", "1"), found.replace("cpu", "metal"), "another's")
    }
    assert list(answers.values()) == [
        "EP_SUPPORTED_OPTIMAL", "EP_UNSUPPORTED", "EP_UNSUPPORTED", "EP_NOT_APPLICABLE",
    ]  # fmt: skip


def test_what_cannot_be_compiled_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "ctx.onnx"
    onnx.save(mlp(), source)
    assert main(["compile", str(source), "-o", str(target), "--json"]) == 0
    report: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert report["partitions"] == 1 and report["files"][0] == str(target)
    before = target.read_bytes()
    assert main(["compile", str(target), "-o", str(target)]) == 2
    assert "compiled model already" in capfd.readouterr().err
    assert main(["compile", str(source), "-o", str(target), "--provider-option", "isa"]) == 2
    assert target.read_bytes() == before
    with pytest.raises(TraceaError, match="isa='none' is not available"):
        compile_model(source, target, options={"isa": "none"})


def test_weights_of_four_bits_are_one_line(tmp_path: Path) -> None:
    values = h.make_tensor("q", onnx.TensorProto.INT4, [32, 8], np.arange(256) % 16 - 8)
    scale = h.make_tensor("s", onnx.TensorProto.FLOAT, [], [0.5])
    nodes = [
        h.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        h.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    given = [
        h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3, k])
        for n, k in (("x", 32), ("y", 8))
    ]
    graph = h.make_graph(nodes, "g", given[:1], given[1:], [values, scale])
    onnx.save(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10),
        tmp_path / "m.onnx",
    )
    with pytest.raises(TraceaError, match="no weights of 4 bits"):
        compile_model(tmp_path / "m.onnx", tmp_path / "ctx.onnx", options={"claim": "all"})
    assert not (tmp_path / "ctx.onnx").exists()

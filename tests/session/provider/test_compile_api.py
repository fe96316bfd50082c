"""ONNX Runtime's compile API and its session entries of compiled models, as its own tests use them
with other providers: from files and buffers to files, buffers and streams, where weights go, and
what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.session.provider.test_compiled_model import attribute, loaded
from tests.session.provider.test_provider_cpp import mlp, pattern
from tests.support.full_disk import files_of_at_most
from tests.support.sessions import assigned
from tracea_onnx import provider

if not hasattr(ort, "ModelCompiler"):
    pytest.skip("this onnxruntime has no compile API", allow_module_level=True)
X = pattern(48).reshape(3, 16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(mlp(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def options(**entries: str) -> Any:
    made = provider.select()
    for name, value in entries.items():
        made.add_session_config_entry(name.replace("__", "."), value)
    return made


def contexts(model: onnx.ModelProto) -> list[NodeProto]:
    return [n for n in model.graph.node if n.op_type == "EPContext"]


def same_results(compiled: Path | bytes, *, everything: bool = True) -> None:
    """A session over the compiled model compiles nothing, and computes what the model does."""
    session = loaded(compiled) if isinstance(compiled, Path) else provider.create_session(compiled)
    ours, total = assigned(session)
    assert ours == total if everything else 0 < ours < total
    [want] = ort.InferenceSession(mlp().SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-5, atol=1e-6)


def to_bytes(compiler: Any, folder: Path) -> bytes:
    made: bytes = compiler.compile_to_bytes()
    return made


def to_stream(compiler: Any, folder: Path) -> bytes:
    parts: list[bytes] = []
    compiler.compile_to_stream(lambda part: parts.append(bytes(part)))
    return b"".join(parts)


def to_file(compiler: Any, folder: Path) -> bytes:
    compiler.compile_to_file(str(folder / "out.onnx"))
    return (folder / "out.onnx").read_bytes()


@pytest.mark.parametrize("given", ["path", "bytes"])
@pytest.mark.parametrize("write", [to_bytes, to_stream, to_file])
def test_from_each_kind_of_source_to_each_kind_of_target(
    source: Path, write: Callable[[Any, Path], bytes], given: str
) -> None:
    """Each writes the same model, with what was compiled in it."""
    of = source.read_bytes() if given == "bytes" else str(source)
    compiler = ort.ModelCompiler(options(), of, embed_compiled_data_into_model=True)
    made = write(compiler, source.parent)
    [node] = contexts(onnx.load_from_string(made))
    assert attribute(node, "embed_mode").i == 1
    assert attribute(node, "ep_cache_context").s.startswith(b"TRACEAPK")
    same_results(made)


def test_a_stream_that_fails_ends_the_compilation(source: Path) -> None:
    def full(part: bytes) -> None:
        raise OSError("the disk is full")

    compiler = ort.ModelCompiler(options(), str(source), embed_compiled_data_into_model=True)
    with pytest.raises(Exception, match="the disk is full"):
        compiler.compile_to_stream(full)


def test_a_full_disk_leaves_no_pack(source: Path) -> None:
    compiler = ort.ModelCompiler(options(), str(source))
    with (
        files_of_at_most(100),
        pytest.raises(Exception, match=r"cannot write '.*\.bin': File too large"),
    ):
        compiler.compile_to_file(str(source.with_name("out.onnx")))
    assert [p.name for p in source.parent.iterdir()] == [source.name]


def test_a_session_on_a_full_disk_runs_without_a_cache(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with files_of_at_most(100):
        made = provider.create_session(source.read_bytes(), {"cache_dir": str(folder)})
    ours, total = assigned(made)
    assert ours == total and not list(folder.iterdir())


def test_a_model_in_memory_needs_a_place_for_its_pack(source: Path) -> None:
    ort.ModelCompiler(options(), source.read_bytes()).compile_to_file(
        str(source.with_name("placed.onnx"))
    )
    same_results(source.with_name("placed.onnx"))
    with pytest.raises(Exception, match="a model in memory has no folder for its pack"):
        ort.ModelCompiler(options(), source.read_bytes()).compile_to_bytes()


@pytest.mark.parametrize("embed", ["0", "1"])
def test_session_entries(source: Path, embed: str) -> None:
    target = source.parent / "elsewhere" / "named.onnx"
    target.parent.mkdir()
    made = options(
        ep__context_enable="1", ep__context_file_path=str(target), ep__context_embed_mode=embed
    )
    ort.InferenceSession(source, made)
    [node] = contexts(onnx.load(target))
    assert attribute(node, "embed_mode").i == int(embed)
    assert len(list(target.parent.iterdir())) == (2 if embed == "0" else 1)
    same_results(target)


def test_a_compiled_model_with_other_names_is_one_line(source: Path) -> None:
    """Its Plans name their tensors."""
    compiler = ort.ModelCompiler(options(), str(source), embed_compiled_data_into_model=True)
    made = onnx.load_from_string(compiler.compile_to_bytes())
    renamed = onnx.compose.add_prefix(made, "a_")
    with pytest.raises(Exception, match="does not fit: its input 'x' is not an input") as raised:
        provider.create_session(renamed.SerializeToString())
    assert len(str(raised.value).strip().splitlines()) == 1


@pytest.mark.parametrize("weightless", ["", "0", "1", "2", "3"])
def test_weights_stay_with_onnx_runtime(source: Path, weightless: str) -> None:
    entries = {"ep__enable_weightless_ep_context_nodes": weightless} if weightless else {}
    compiler = ort.ModelCompiler(
        options(**entries), str(source), embed_compiled_data_into_model=True
    )
    made = compiler.compile_to_bytes()
    model = onnx.load_from_string(made)
    [node] = contexts(model)
    assert {i.name for i in model.graph.initializer} == {"w", "b"} == set(node.input) - {"x"}
    same_results(made)


def test_weights_can_lie_in_a_file_of_their_own(source: Path) -> None:
    target = source.with_name("out.onnx")
    ort.ModelCompiler(
        options(), str(source), external_initializers_file_path="weights.bin",
        external_initializers_size_threshold=16,
    ).compile_to_file(str(target))  # fmt: skip
    assert source.with_name("weights.bin").stat().st_size >= 16 * 24 * 4
    same_results(target)


@pytest.mark.skipif(
    ort.__version__.startswith("1.24."), reason="ONNX Runtime 1.24 writes models that do not load"
)
def test_a_program_can_say_where_weights_go(source: Path) -> None:
    target, asked = source.with_name("out.onnx"), []
    with source.with_name("mine.bin").open("wb") as file:

        def place(name: str, value: Any, info: Any) -> Any:
            asked.append(name)
            at, size = file.tell(), value.tensor_size_in_bytes()
            if size < 128:
                return None
            file.write(value.numpy().tobytes())
            return ort.OrtExternalInitializerInfo("mine.bin", at, size)

        ort.ModelCompiler(
            options(), str(source), get_initializer_location_func=place
        ).compile_to_file(str(target))
    assert sorted(asked) == ["b", "w"]
    assert source.with_name("mine.bin").stat().st_size == 16 * 24 * 4
    same_results(target)


def test_several_models_share_a_session_of_compilation(source: Path) -> None:
    """`ep.share_ep_contexts`: each model stands for itself here, so that any of them loads."""
    made = options(ep__share_ep_contexts="1")
    targets = [source.with_name(f"{k}.onnx") for k in range(2)]
    for k, target in enumerate(targets):
        if k == 1:
            made.add_session_config_entry("ep.stop_share_ep_contexts", "1")
        ort.ModelCompiler(made, str(source)).compile_to_file(str(target))
    for target in targets:
        same_results(target)


def test_a_session_that_may_not_compile(source: Path) -> None:
    with pytest.raises(Exception, match="needs to compile"):
        ort.InferenceSession(
            source, options(session__disable_model_compile="1"), enable_fallback=False
        )
    target = source.with_name("out.onnx")
    ort.ModelCompiler(options(), str(source)).compile_to_file(str(target))
    session = ort.InferenceSession(target, options(session__disable_model_compile="1"))
    assert session.run(None, {"x": X})[0].shape == (3, 24)


def test_flags(source: Path) -> None:
    text = h.make_tensor_value_info("t", T.STRING, ["n"])
    result = h.make_tensor_value_info("u", T.STRING, ["n"])
    graph = h.make_graph([h.make_node("StringConcat", ["t", "t"], ["u"])], "g", [text], [result])
    nothing = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    flags = ort.OrtCompileApiFlags
    with pytest.raises(Exception, match="Unable to compile any nodes"):
        ort.ModelCompiler(
            options(), nothing.SerializeToString(), True, flags=flags.ERROR_IF_NO_NODES_COMPILED
        ).compile_to_bytes()
    target = str(source.with_name("out.onnx"))
    for _ in range(2):  # without the flag it is written anew
        ort.ModelCompiler(options(), str(source)).compile_to_file(target)
    with pytest.raises(Exception, match="exists already"):
        ort.ModelCompiler(
            options(), str(source), flags=flags.ERROR_IF_OUTPUT_FILE_EXISTS
        ).compile_to_file(target)


def test_a_compiled_model_is_not_compiled_again(source: Path) -> None:
    once, twice = source.with_name("once.onnx"), source.with_name("twice.onnx")
    ort.ModelCompiler(options(), str(source)).compile_to_file(str(once))
    with pytest.raises(Exception, match=r".") as raised:
        ort.ModelCompiler(options(), str(once)).compile_to_file(str(twice))
    assert len(str(raised.value).strip().splitlines()) == 1 and not twice.exists()


def test_what_is_left_stays_in_the_compiled_model(source: Path) -> None:
    """An operator of strings between two parts that are compiled, and weights that both read."""
    model = mlp()
    w = nh.from_array(np.eye(24, dtype=np.float32), "square")
    model.graph.initializer.append(w)
    model.graph.node[-1].output[0] = "r"
    model.graph.node.extend(
        [
            h.make_node("Cast", ["r"], ["s"], to=T.STRING),
            h.make_node("StringConcat", ["flat", "empty"], ["n"]),
            h.make_node("Cast", ["n"], ["f"], to=T.FLOAT),
            h.make_node("Reshape", ["f", "back"], ["g2"]),
            h.make_node("MatMul", ["g2", "square"], ["m"]),
            h.make_node("Relu", ["m"], ["y"]),
        ]
    )
    model.graph.node.insert(3, h.make_node("Reshape", ["s", "one"], ["flat"]))
    model.graph.initializer.extend(
        [
            nh.from_array(np.array([-1]), "one"),
            nh.from_array(np.array([-1, 24]), "back"),
            nh.from_array(np.array([""], dtype=object), "empty"),
        ]
    )
    onnx.save(model, source)
    target = source.with_name("out.onnx")
    ort.ModelCompiler(options(), str(source)).compile_to_file(str(target))
    made = onnx.load(target)
    assert len(contexts(made)) >= 2 and any(n.op_type == "StringConcat" for n in made.graph.node)
    session = loaded(target)
    [want] = ort.InferenceSession(source).run(None, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-5, atol=1e-6)


def test_a_callback_for_the_pack_is_refused_before_anything_is_compiled(source: Path) -> None:
    compiler = ort.ModelCompiler(options(), str(source))
    if not hasattr(compiler, "set_ep_context_data_write_func"):
        pytest.skip("this onnxruntime has no such callback")
    before = provider.stats()["compile_requests"]
    compiler.set_ep_context_data_write_func(lambda name, data: None)
    with pytest.raises(Exception, match="does not support the registered EPContext data write"):
        compiler.compile_to_file(str(source.with_name("out.onnx")))
    assert provider.stats()["compile_requests"] <= before + 1
    compiler.clear_ep_context_data_write_func()
    compiler.compile_to_file(str(source.with_name("out.onnx")))
    same_results(source.with_name("out.onnx"))

"""Sessions over a model that was compiled before: nothing is compiled again, unless something that
the plans follow from has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import code_identity, partition_compiler, plan_cache
from tracea_onnx.provider import assigned_nodes, create_session
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery
from tracea_onnx.support.artifact_cache import Cache

S, D = 40, 48  # the mask and each weight are larger than what a node's key covers


def attention(mask: np.ndarray, weight: float, heads: int = 2) -> bytes:
    """softmax(q kᵀ + mask) v over constant projections of x [1, S, D]."""
    weights = {
        n: np.full((D, D), weight, np.float32) * np.arange(1, D + 1, dtype=np.float32) / D
        for n in ("wq", "wk", "wv")
    }
    constants: dict[str, Any] = {
        **weights,
        "mask": mask.astype(np.float32),
        "shape": np.array([1, S, heads, D // heads]),
        "back": np.array([1, S, D]),
    }
    nodes = []
    for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("MatMul", ["x", f"w{n}"], [f"{n}0"]))
        nodes.append(helper.make_node("Reshape", [f"{n}0", "shape"], [f"{n}1"]))
        nodes.append(helper.make_node("Transpose", [f"{n}1"], [n], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "back"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [1, S, D])],
        [value("y", TensorProto.FLOAT, [1, S, D])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ).SerializeToString()
    )


CAUSAL = np.triu(np.full((S, S), -np.inf), 1)
X = np.random.default_rng(0).standard_normal((1, S, D)).astype(np.float32)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a graph is really compiled."""
    calls: list[int] = []
    original = partition_compiler.compile_graph

    def counted(*args: Any, **kwargs: Any) -> partition_compiler.Compiled:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(partition_compiler, "compile_graph", counted)
    return calls


def check(source: bytes, folder: Path) -> None:
    """A session with this cache gives what plain ONNX Runtime gives, and every node is the
    provider's.
    """
    from onnxruntime import InferenceSession

    session = create_session(source, {"cache_dir": str(folder), "claim": "all"})
    assert (
        len(assigned_nodes(session))
        == len(session.get_provider_graph_assignment_info()[0].get_nodes())
        > 0
    )
    want = InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-4, atol=1e-5)


def test_the_second_session_compiles_nothing(tmp_path: Path, compiled: list[int]) -> None:
    source = attention(CAUSAL, 0.1)
    check(source, tmp_path / "cache")
    first = len(compiled)
    assert first > 0
    check(source, tmp_path / "cache")
    assert len(compiled) == first
    check(source, tmp_path / "another")
    assert len(compiled) == 2 * first


def test_other_weights_use_the_same_plans_and_another_mask_does_not(
    tmp_path: Path, compiled: list[int]
) -> None:
    check(attention(CAUSAL, 0.1), tmp_path / "cache")
    first = len(compiled)
    check(attention(CAUSAL, 0.2), tmp_path / "cache")
    assert len(compiled) == first
    bidirectional = np.zeros((S, S))
    bidirectional[0, -1] = -2.0
    check(attention(bidirectional, 0.1), tmp_path / "cache")
    assert len(compiled) > first


def test_another_request_is_another_entry(tmp_path: Path, compiled: list[int]) -> None:
    check(attention(CAUSAL, 0.1), tmp_path / "cache")
    first = len(compiled)
    check(attention(CAUSAL, 0.1, heads=4), tmp_path / "cache")
    assert len(compiled) == 2 * first
    # claim is part of the request
    create_session(attention(CAUSAL, 0.1), {"cache_dir": str(tmp_path / "cache")})
    assert len(compiled) == 3 * first


def test_a_damaged_entry_is_compiled_again(tmp_path: Path, compiled: list[int]) -> None:
    source = attention(CAUSAL, 0.1)
    check(source, tmp_path / "cache")
    first = len(compiled)
    for entry in (tmp_path / "cache").glob("*.entry"):
        entry.write_bytes(entry.read_bytes()[:-20] + b"\0" * 20)
    check(source, tmp_path / "cache")
    assert len(compiled) == 2 * first


def test_the_model_of_these_tests_is_valid() -> None:
    onnx.checker.check_model(onnx.ModelProto.FromString(attention(CAUSAL, 0.1)), full_check=True)


@pytest.mark.parametrize("name", ["rule.py", "family/part/kernel.cuh"])
def test_the_key_covers_what_the_code_says_not_when_it_was_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels that are built reproducibly give files of two versions the same time, and often the
    same size.
    """
    real, package = discovery.folder, tmp_path / "package"
    rules = package / "fusion_rules"
    file = rules / name
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(
        code_identity, "folder", lambda kind: rules if kind == "fusion_rules" else real(kind)
    )
    library = tmp_path / "library"
    library.mkdir()
    (library / "__init__.py").touch()
    (library / "version.py").write_text("version = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(code_identity, "_LIBRARIES", ("library",))

    def key(text: str, time: int) -> str:
        file.write_text(text)
        os.utime(file, (time, time))
        return code(tmp_path)

    assert key("a = 1", 1) != key("a = 2", 1)
    assert key("a = 1", 1) == key("a = 1", 2)
    before = key("a = 1", 1)
    (library / "version.py").write_text("version = 2")
    assert key("a = 1", 1) != before
    # what changed just now may change again without another stamp
    assert not list((tmp_path / "cache").glob("*.entry"))


def code(folder: Path) -> str:
    """The hash of the code as another process would find it."""
    code_identity.code.cache_clear()
    try:
        return code_identity.code("cpu", Cache(folder / "cache")).contents
    finally:
        code_identity.code.cache_clear()


def test_files_with_known_stamps_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rules = discovery.folder, tmp_path / "fusion_rules"
    file = rules / "rule.py"
    rules.mkdir()
    file.write_text("a = 1")
    monkeypatch.setattr(
        code_identity, "folder", lambda kind: rules if kind == "fusion_rules" else real(kind)
    )
    monkeypatch.setattr(code_identity, "_STAMP_NS", 0)
    reads = []
    contents = code_identity._contents

    def counted(paths: Iterable[str]) -> str:
        reads.append(1)
        return contents(paths)

    monkeypatch.setattr(code_identity, "_contents", counted)
    time.sleep(0.02)
    first = code(tmp_path)
    assert code(tmp_path) == first and len(reads) == 1
    # another version of the same size, made to look as old as the first one
    before = file.stat()
    file.write_text("a = 2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    time.sleep(0.02)
    assert code(tmp_path) != first and len(reads) == 2
    file.write_text("a = 1")
    time.sleep(0.02)
    assert code(tmp_path) == first and len(reads) == 3
    (rules / "another.py").touch()
    time.sleep(0.02)
    assert code(tmp_path) != first


_LIGHT = """
import sys
from tracea_onnx.provider import assigned_nodes, create_session
session = create_session(sys.argv[1], {"claim": "all", "cache_dir": sys.argv[2]})
heavy = {"onnx", "google.protobuf", "tracea_onnx.compiler.partition_compiler", "tracea_onnx.ir.abi"}
print(len(assigned_nodes(session)), *sorted(heavy & set(sys.modules)))
"""


def test_a_session_imports_no_onnx_and_with_cached_plans_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(attention(CAUSAL, 0.1))

    def found() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", _LIGHT, str(tmp_path / "m.onnx"), str(tmp_path / "cache")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.split()

    nodes, *heavy = found()
    assert heavy == ["tracea_onnx.compiler.partition_compiler", "tracea_onnx.ir.abi"]
    assert found() == [nodes]


def test_another_cuda_compiler_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    monkeypatch.setattr(nvrtc, "installed", lambda: [nvrtc.Compiler(str(library), 12)])
    found = []
    for content in (b"12.8", b"12.9 is longer"):
        library.write_bytes(content)
        nvrtc.chosen.cache_clear()
        found.append(backends.get("cuda").fingerprint({"arch": "90"}))
    nvrtc.chosen.cache_clear()
    assert found[0] != found[1] and str(library) in found[0]


def test_a_plan_is_kept_under_all_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = {"backend": "cpu", "digest": "a"}
    cuda = {"backend": "cuda", "arch": "90", "sms": "132", "digest": "a"}
    made = code_identity.Code("contents", fingerprint=False), code_identity.Code("contents", True)
    before = [plan_cache._key(*both) for both in zip((cpu, cuda), made, strict=True)]
    monkeypatch.setattr(nvrtc, "chosen", lambda: nvrtc.Compiler(__file__, 13))
    after = [plan_cache._key(*both) for both in zip((cpu, cuda), made, strict=True)]
    assert after[0] == before[0] and after[1] != before[1]
    assert [code_identity.code(name, Cache(None)).fingerprint for name in ("cpu", "cuda")] == [
        False,
        True,
    ]
    assert plan_cache._key(cpu, code_identity.Code("another version", False)) != before[0]
    assert plan_cache._key({**cpu, "digest": "b"}, made[0]) != before[0]
    assert plan_cache._key({**cpu, "cache_dir": "b"}, made[0]) == before[0]


_HOMELESS = """
import pwd, sys
def none(uid): raise KeyError(uid)
pwd.getpwuid = none
from tests.session.provider.test_plan_cache import CAUSAL, attention
from tracea_onnx.provider import assigned_nodes, create_session
print(len(assigned_nodes(create_session(attention(CAUSAL, 0.1), {"claim": "all"}))))
"""


@pytest.mark.skipif(os.name != "posix", reason="users without an entry")
def test_without_a_home_models_are_compiled_all_the_same() -> None:
    env = {k: v for k, v in os.environ.items() if k != "HOME" and not k.startswith("XDG_")}
    done = subprocess.run(
        [sys.executable, "-c", _HOMELESS],
        env=env,
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr

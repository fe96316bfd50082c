"""Models in and out of files: one clear error each, external data kept inside its folder, whole
files or none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from tests.host.pipeline_models import normal, parse, run, same_bits, small_cnn
from tracea_onnx.errors import ModelError, UsageError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import external, model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import data_files


def big() -> ModelProto:
    return parse(
        "g (float[2, 64] x) => (float[2, 32] y) { z = MatMul (x, w) y = Add (z, b) }",
        w=normal(64, 32),
        b=normal(32),
    )


def saved(folder: Path, external: str = "always", name: str = "m.onnx") -> Path:
    model_file.save(model_file.Source(big()), folder / name, external_data=external)
    return folder / name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"just some words\n" * 9, "text file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "tf2onnx"),
        (bytes(range(256)), "truncated or is not an ONNX model"),
        (bytes(4) + b"ORTM" + bytes(40), ".ort format"),
    ],
)
def test_what_is_not_a_model_is_told_apart(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says) as e:
        model_file.load(path)
    assert "\n" not in str(e.value) and str(path) in str(e.value)


def test_missing_files_folders_and_cut_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        model_file.load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        model_file.load(tmp_path)
    data = model_file.serialize(big())
    for cut in range(1, len(data), 97):  # every prefix is refused, some with another reason
        (tmp_path / "cut.onnx").write_bytes(data[:cut])
        with pytest.raises(ModelError):
            model_file.load(tmp_path / "cut.onnx")


def test_models_from_the_future_and_without_operators_are_refused() -> None:
    m = big()
    m.opset_import[0].version = 999
    with pytest.raises(ModelError, match="uses opset 999"):
        model_file.load(m)
    m.ir_version = 999
    with pytest.raises(ModelError, match="IR version 999"):
        model_file.load(m)
    with pytest.raises(ModelError, match="imports no operator set"):
        model_file.load(_without_opset())
    with pytest.raises(ModelError, match="not an ONNX model"):
        model_file.load(ModelProto())


def _without_opset() -> ModelProto:
    m = big()
    del m.opset_import[:]
    return m


def test_unknown_operators_and_cycles_are_named() -> None:
    m = parse("g (float[3] x) => (float[3] y) { y = Frobnicate (x) }")
    with pytest.raises(ModelError, match="unknown operator Frobnicate"):
        optimizer.optimize(m, backend="cpu")
    m = parse("g (float[3] x) => (float[3] y) { y = acme.Op (x) }", extra=', "acme" : 1')
    with pytest.raises(ModelError, match=r"unknown operator acme.Op"):
        optimizer.optimize(m, backend="cpu")
    m = parse("g (float[3] x) => (float[3] y) { a = Add (x, b) b = Relu (a) y = Neg (b) }")
    with pytest.raises(ModelError, match="cycle"):
        optimizer.optimize(m, backend="cpu")
    m = parse("g (float[3] x) => (float[3] y) { y = Add (x, nowhere) }")
    with pytest.raises(ModelError, match="nowhere"):
        optimizer.optimize(m, backend="cpu")


def test_what_only_the_runtime_knows_is_taken_with_a_note() -> None:
    m = parse(
        "g (float[3] x) => (float[3] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }",
        extra=', "com.microsoft" : 1',
    )
    onnx_inference.check(m, "m")
    assert optimizer.optimize(m, backend="cpu").report.notes == []


# --- external data --------------------------------------------------------------------------------
def test_external_data_round_trip(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    source = model_file.load(path)
    # small ones stay inside
    assert {
        t.name for t in source.model.graph.initializer if t.data_location == TensorProto.EXTERNAL
    } == {"w"}
    onnx.checker.check_model(str(path))
    loaded = onnx.load(str(path))
    assert same_bits(run(big(), {"x": normal(2, 64)}), run(loaded, {"x": normal(2, 64)}))
    whole = tmp_path / "whole.onnx"
    model_file.save(source, whole, external_data="never")
    assert same_bits(
        [numpy_helper.to_array(t) for t in onnx.load(str(whole)).graph.initializer],
        [numpy_helper.to_array(t) for t in big().graph.initializer],
    )


def test_auto_keeps_the_way_of_the_source(tmp_path: Path) -> None:
    external = model_file.load(saved(tmp_path))
    inside = model_file.load(saved(tmp_path, "never", "n.onnx"))
    assert (
        len(model_file.save(external, tmp_path / "a.onnx")) == 2
        and len(model_file.save(inside, tmp_path / "b.onnx")) == 1
    )


def test_saving_is_deterministic(tmp_path: Path) -> None:
    files = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        path = saved(tmp_path / str(k))
        files.append((path.read_bytes(), path.with_name("m.onnx.data").read_bytes()))
    assert files[0] == files[1]


def test_a_model_in_memory_cannot_have_external_data(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give the model's path"):
        model_file.load(model_file.load(saved(tmp_path)).model)


def _edit(path: Path, key: str, value: str) -> None:
    m = onnx.load(str(path), load_external_data=False)
    for t in m.graph.initializer:
        for e in t.external_data:
            if e.key == key:
                e.value = value
    path.write_bytes(m.SerializeToString())


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("location", "/etc/passwd", "outside the model's folder"),
        ("location", "../m.onnx.data", "outside the model's folder"),
        ("location", "sub/../../m.onnx.data", "outside the model's folder"),
        ("location", "C:\\secret", "outside the model's folder"),
        ("location", "", "outside the model's folder"),
        ("location", "gone.bin", "missing or unreadable"),
        ("location", ".", "not a regular file"),
        ("offset", "-4", "ends at byte"),
        ("offset", "1", "ends at byte"),
        ("offset", "99999999999999999999", "ends at byte"),
        ("offset", "x", "malformed"),
        ("length", "12", "claims 12"),
    ],
)
def test_external_data_that_leads_astray_is_refused(
    tmp_path: Path, key: str, value: str, says: str
) -> None:
    (tmp_path / "in").mkdir()
    path = saved(tmp_path / "in")
    (tmp_path / "m.onnx.data").write_bytes(bytes(64 * 32 * 4))
    _edit(path, key, value)
    with pytest.raises(ModelError, match=says):
        model_file.load(path)


@pytest.mark.skipif(os.name != "posix", reason="hard links")
def test_a_hard_link_in_the_place_of_the_data_is_refused(tmp_path: Path) -> None:
    """It leads out of the folder where no path says so; onnx refuses it, too.

    The model itself may have any number of names.
    """
    path = saved(tmp_path)
    os.link(path, tmp_path / "another.onnx")
    model_file.load(path)
    os.link(tmp_path / "m.onnx.data", tmp_path / "another.data")
    with pytest.raises(ModelError, match=r"has 2 names.*copy it"):
        model_file.load(path)
    (tmp_path / "another.data").unlink()
    model_file.load(path)


def test_a_truncated_data_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    data = path.with_name("m.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ModelError, match="truncated"):
        model_file.load(path)


def _read_all(source: model_file.Source, target: Path) -> list[str]:
    """What each way to the weights of a loaded model says; "" where it gives them."""
    t = next(t for t in source.model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
    said = []
    for way in (
        lambda: Graph(source.model, folder=source.folder).const(t.name),
        lambda: external.raw_bytes(t, source.folder), lambda: external.stored(t, source.folder),
        lambda: model_file.save(source, target, external_data="never"),
        lambda: model_file.save(source, target.with_name("apart.onnx"), external_data="always"),
    ):  # fmt: skip
        try:
            way()
            said.append("")
        except ModelError as e:
            said.append(str(e))
    return said


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_files_exchanged_after_the_check_are_not_read(tmp_path: Path) -> None:
    """By a link out of the folder, a hard link to what lies there, a pipe, a shorter file."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 64 * 32 * 4)
    (tmp_path / "in").mkdir()
    data, target = tmp_path / "in" / "m.onnx.data", tmp_path / "copy.onnx"
    exchanged: dict[str, Callable[[], object]] = {
        "outside the model's folder": lambda: data.symlink_to(secret),
        "2 names": lambda: os.link(secret, data), "not a regular file": lambda: os.mkfifo(data),
        "became shorter": lambda: data.write_bytes(b"short"),
    }  # fmt: skip
    for says, exchange in exchanged.items():
        source = model_file.load(saved(tmp_path / "in"))
        assert _read_all(source, target) == [""] * 5
        data.unlink()
        exchange()
        assert all(says in line for line in _read_all(source, target)), says
        data.unlink()


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_appears_while_a_file_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    path = saved(tmp_path / "in")
    weights = tmp_path / "in" / "sub" / "w"
    (tmp_path / "in" / "m.onnx.data").rename(weights)
    (tmp_path / "out" / "w").write_bytes(b"s" * 64 * 32 * 4)
    _edit(path, "location", "sub/w")
    source = model_file.load(path)
    honest = data_files._descend

    def exchanged(root: Path, real: Path) -> int:
        if what == "file":
            weights.unlink()
            weights.symlink_to(tmp_path / "out" / "w")
        else:
            weights.parent.rename(tmp_path / "away")
            weights.parent.symlink_to(tmp_path / "out")
        return honest(root, real)

    monkeypatch.setattr(data_files, "_descend", exchanged)
    with pytest.raises(ModelError, match="unreadable"):
        external.raw_bytes(source.model.graph.initializer[0], source.folder)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_links_inside_a_cache_load_and_links_out_of_it_do_not(tmp_path: Path) -> None:
    """A Hugging Face cache: snapshots/<rev>/model.onnx -> ../../blobs/<hash>, its data beside
    it.
    """
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    path = saved(tmp_path)
    path.rename(blobs / "aaa")
    (tmp_path / "m.onnx.data").rename(blobs / "bbb")
    (snapshot / "m.onnx").symlink_to("../../blobs/aaa")
    (snapshot / "m.onnx.data").symlink_to("../../blobs/bbb")
    result = optimizer.optimize(snapshot / "m.onnx", output=tmp_path / "out.onnx", backend="cpu")
    assert result.report.verify is not None and result.report.verify.ok
    assert same_bits(
        run(big(), {"x": normal(2, 64)}),
        run(onnx.load(str(tmp_path / "out.onnx")), {"x": normal(2, 64)}),
    )
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64 * 32 * 4))
    (snapshot / "m.onnx.data").unlink()
    (snapshot / "m.onnx.data").symlink_to(secret)
    with pytest.raises(ModelError, match="leads outside"):
        model_file.load(snapshot / "m.onnx")


# --- writing --------------------------------------------------------------------------------------
def test_a_model_may_replace_itself_and_its_data(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = run(onnx.load(str(path)), {"x": normal(2, 64)})
    optimizer.optimize(path, output=path, backend="cpu")
    assert same_bits(before, run(onnx.load(str(path)), {"x": normal(2, 64)}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_the_weights_of_another_model_are_not_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path, name="b.onnx")
    _ = path.rename(tmp_path / "a.onnx")
    with pytest.raises(UsageError, match="holds the weights of"):
        model_file.save(model_file.load(tmp_path / "a.onnx"), tmp_path / "b.onnx")


def test_unwritable_targets_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        model_file.check_output(tmp_path / "no" / "m.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        model_file.check_output(tmp_path)


def test_a_failing_write_leaves_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        model_file.save(model_file.Source(small_cnn()), target)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"] and target.read_bytes() == b"old"


_WRITER = """
import sys, time
from pathlib import Path
import tracea_onnx.model_io.model_file as io
from tests.host.files.test_io import big
target = Path(sys.argv[1])
print("ready", flush=True)
while True:
    io.save(io.Source(big()), target, external_data=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill")
@pytest.mark.parametrize("external", ["never", "always"])
def test_a_killed_writer_never_leaves_a_partial_model(tmp_path: Path, external: str) -> None:
    root = Path(__file__).resolve().parents[3]
    expected = run(big(), {"x": normal(2, 64)})
    for k in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "m.onnx"), external],
            cwd=root,
            stdout=subprocess.PIPE,
        ) as p:
            assert p.stdout is not None and p.stdout.readline() == b"ready\n"
            time.sleep(0.05 + 0.013 * k)
            p.send_signal(signal.SIGKILL)
        if (tmp_path / "m.onnx").exists():
            assert same_bits(
                expected, run(onnx.load(str(tmp_path / "m.onnx")), {"x": normal(2, 64)})
            )


_STUCK = """
import sys, time
from pathlib import Path
import tracea_onnx.model_io.model_file as io
from tracea_onnx.support import files
from tests.host.files.test_io import big
honest = files.NewFile.write
def half(self, data):
    honest(self, data[: len(data) // 2])
    print("half", flush=True)
    time.sleep(60)
files.NewFile.write = half
io.save(io.Source(big()), Path(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name")
def test_a_writer_killed_half_way_leaves_nothing(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        pytest.skip("this file system has no files without a name")
    (tmp_path / "m.onnx").write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", _STUCK, str(tmp_path / "m.onnx")],
        cwd=Path(__file__).resolve().parents[3],
        stdout=subprocess.PIPE,
    ) as p:
        assert p.stdout is not None and p.stdout.readline() == b"half\n"
        p.send_signal(signal.SIGKILL)
    assert [f.name for f in tmp_path.iterdir()] == ["m.onnx"] and (
        tmp_path / "m.onnx"
    ).read_bytes() == b"old"


def test_a_file_system_without_nameless_files_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    model_file.save(model_file.Source(big()), tmp_path / "m.onnx")
    assert [f.name for f in tmp_path.iterdir()] == ["m.onnx"] and model_file.load(
        tmp_path / "m.onnx"
    ).model == big()


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model_file.save(model_file.Source(big()), path)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o640)
    model_file.save(model_file.Source(big()), path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_sub_byte_tensors_are_measured_packed() -> None:
    t = TensorProto(data_type=TensorProto.INT4, dims=[3, 3])
    assert model_file.tensor_bytes(t) == 5
    assert model_file.tensor_bytes(numpy_helper.from_array(np.zeros((3, 5), np.float16))) == 30


def test_every_tensor_is_found() -> None:
    m = parse(
        """
        g (float[3] x, bool c) => (float[3] y)
        {
          k = Constant <value = float[3] {1, 2, 3}> ()
          y = If (c) <then_branch = t () => (float[3] a) { u = Constant <value = float {2}> ()
              a = Mul (k, u) },
                      else_branch = e () => (float[3] b) { b = Add (k, w) }>
        }
        """,
        w=normal(3),
    )
    assert sum(1 for _ in model_file.tensors(m)) == 3


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    m = big()
    m.graph.node[0].name = "quite_a_long_name"
    (tmp_path / "m.onnx").write_bytes(
        model_file.serialize(m).replace(b"quite_a_long", b"quite\xff\xfe_long")
    )
    with pytest.raises(ModelError, match="not valid text"):
        model_file.load(tmp_path / "m.onnx")

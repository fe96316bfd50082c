"""Large model files are read without their weights, and nothing about the result tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.host.pipeline_models import RULES, normal, parse, small_cnn
from tracea_onnx.errors import ModelError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import external, model_file, weight_streaming
from tracea_onnx.pipeline import optimizer
from tracea_onnx.verify import verification


@pytest.fixture
def lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large, and every tensor of 64 bytes."""
    monkeypatch.setattr(weight_streaming, "FILE", 1)
    monkeypatch.setattr(weight_streaming, "TENSOR", 64)


def test_a_large_file_is_read_without_its_weights(tmp_path: Path, lazily: None) -> None:
    m = small_cnn()
    for t in m.graph.initializer:
        # as onnx.load leaves it when weights came from other files
        t.data_location = TensorProto.DEFAULT
    onnx.save(m, str(tmp_path / "m.onnx"))
    source = model_file.load(tmp_path / "m.onnx")
    places = {t.name: t.data_location for t in source.model.graph.initializer}
    assert [n for n, p in places.items() if p == TensorProto.EXTERNAL] == ["w1", "w2", "w3"]
    read = Graph(source.model, folder=source.folder).const("w2")
    assert read is not None
    assert np.array_equal(read, numpy_helper.to_array(m.graph.initializer[2]))
    assert verification.verify(model_file.Source(m), source).ok
    external.load_into_memory(source, lambda _: True)
    assert [numpy_helper.to_array(t).tobytes() for t in source.model.graph.initializer] == [
        numpy_helper.to_array(t).tobytes() for t in m.graph.initializer
    ]


def test_optimizing_a_large_file_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(small_cnn(), str(tmp_path / "m.onnx"))
    whole = optimizer.optimize(
        tmp_path / "m.onnx", output=tmp_path / "a.onnx", rules=RULES, backend="cpu"
    )
    monkeypatch.setattr(weight_streaming, "FILE", 1)
    monkeypatch.setattr(weight_streaming, "TENSOR", 64)
    parts = optimizer.optimize(
        tmp_path / "m.onnx", output=tmp_path / "b.onnx", rules=RULES, backend="cpu"
    )
    assert (tmp_path / "a.onnx").read_bytes() == (
        tmp_path / "b.onnx"
    ).read_bytes() and model_file.serialize(whole.model) == model_file.serialize(parts.model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "m.onnx"]
    # in place
    optimizer.optimize(tmp_path / "m.onnx", output=tmp_path / "m.onnx", rules=RULES, backend="cpu")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    optimizer.optimize(
        tmp_path / "b.onnx",
        output=tmp_path / "c.onnx",
        rules=RULES,
        backend="cpu",
        external_data="always",
    )
    assert (
        verification.verify(
            model_file.load(tmp_path / "a.onnx"), model_file.load(tmp_path / "c.onnx")
        ).ok
        and (tmp_path / "c.onnx.data").is_file()
    )


def test_a_large_file_behind_a_link_loads(tmp_path: Path, lazily: None) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "models").mkdir()
    onnx.save(small_cnn(), str(tmp_path / "blobs" / "abc123"))
    (tmp_path / "models" / "m.onnx").symlink_to(tmp_path / "blobs" / "abc123")
    assert verification.verify(
        model_file.Source(small_cnn()), model_file.load(tmp_path / "models" / "m.onnx")
    ).ok


def test_a_damaged_large_file_is_still_one_line(tmp_path: Path, lazily: None) -> None:
    data = small_cnn().SerializeToString()
    rng = np.random.default_rng(0)
    for k in range(60):
        cut = bytearray(data[: rng.integers(1, len(data))] if k % 2 else data)
        if k % 2 == 0:
            cut[int(rng.integers(len(cut)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.onnx").write_bytes(bytes(cut))
        try:
            model_file.load(tmp_path / "m.onnx")
        except ModelError as e:
            assert "\n" not in e.what


def test_equal_weights_are_merged_wherever_they_lie(tmp_path: Path, lazily: None) -> None:
    m = parse(
        "g (float[1, 64] x) => (float[1, 64] y) { a = Mul (x, u)  b = Add (a, v)  y = Sub (b, w) }",
        u=normal(64),
        v=normal(64),
        w=normal(64, seed=2),
    )
    onnx.save(m, str(tmp_path / "m.onnx"))
    result = optimizer.optimize(tmp_path / "m.onnx", rules=RULES, backend="cpu").model
    assert [t.name for t in result.graph.initializer] == ["u", "w"] and all(
        t.HasField("raw_data") for t in result.graph.initializer
    )


def test_one_file_from_many(tmp_path: Path, lazily: None) -> None:
    """Weights in files, in the model, and in an attribute all end up inside."""
    m = parse(
        "g (float[1, 64] x) => (float[1, 64] y) { c = Constant <value = float[64] {0}> ()  a = "
        "Add (x, c)  y = Mul (a, w) }",
        w=normal(64),
    )
    m.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(normal(64, seed=3)))
    for t, name in ((m.graph.initializer[0], "w.bin"), (m.graph.node[0].attribute[0].t, "c.bin")):
        (tmp_path / name).write_bytes(b"head" + t.raw_data)
        external.set_external(t, name, 4, 256)
    onnx.save(m, str(tmp_path / "m.onnx"))
    source = model_file.load(tmp_path / "m.onnx")
    assert model_file.save(source, tmp_path / "n.onnx", external_data="never") == [
        tmp_path / "n.onnx"
    ]
    assert verification.verify(
        source, model_file.Source(onnx.load(str(tmp_path / "n.onnx"), load_external_data=False))
    ).ok
    assert m.graph.initializer[0].external_data  # the source stays as it was

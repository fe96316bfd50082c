"""Verification finds every difference that matters and excuses none; generated inputs are ones the
model accepts.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import ModelProto

from tests.host.pipeline_models import Array, normal, parse, small_cnn
from tracea_onnx.cli import main
from tracea_onnx.errors import ModelError, UsageError, VerificationError
from tracea_onnx.model_io import model_file
from tracea_onnx.verify import input_values, verification


def compare(a: ModelProto, b: ModelProto, **kwargs: object) -> verification.Verification:
    return verification.verify(model_file.Source(a), model_file.Source(b), **kwargs)  # type: ignore[arg-type]


def scaled(factor: float) -> ModelProto:
    return parse(
        "g (float[N, 8] x) => (float[N, 4] y) { z = MatMul (x, w) y = Mul (z, s) }",
        w=normal(8, 4),
        s=np.float32(factor),
    )


def test_equal_models_pass_with_zero_differences() -> None:
    v = compare(small_cnn(), small_cnn())
    assert v.ok and v.outputs[0].max_abs == v.outputs[0].max_rel == v.outputs[0].rmse == 0


def test_rounding_passes_and_more_fails_with_the_measured_error() -> None:
    assert compare(scaled(1.0), scaled(1.0 + 1e-7)).ok
    v = compare(scaled(1.0), scaled(1.001))
    (o,) = v.outputs
    assert not v.ok and not o.ok
    assert o.max_rel == pytest.approx(1e-3, rel=0.02) and 0 < o.rmse <= o.max_abs


def test_given_bounds_are_used() -> None:
    assert compare(scaled(1.0), scaled(1.001), rtol=1e-2).ok
    assert compare(scaled(1.0), scaled(1.001), rtol=0.0, atol=1.0).ok
    assert not compare(scaled(1.0), scaled(1.0 + 1e-6), rtol=0.0).ok


def test_integers_booleans_and_strings_must_be_equal() -> None:
    text = (
        "g (float[4] x) => (int64[4] n, bool[4] b, string[1] s) {{ "
        "n = Cast <to = 7> (k) b = Greater (x, t) s = Identity (u) }}"
    )
    base: dict[str, Any] = {
        "k": np.array([1.0, 2, 3, 4], np.float32),
        "t": np.float32(0),
        "u": np.array(["a"], object),
    }
    a = parse(text.format(), **base)
    for name, value in (
        ("k", np.array([1.0, 2, 3, 5], np.float32)),
        ("t", np.float32(0.3)),
        ("u", np.array(["b"], object)),
    ):
        v = compare(a, parse(text.format(), **{**base, name: value}))
        assert [o.ok for o in v.outputs].count(False) == 1, name
    assert compare(a, parse(text.format(), **base)).ok


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.nan, 1.0, False),
        (np.inf, -np.inf, False),
        (1.0, np.nan, False),
    ],
)
def test_nan_and_infinities_must_be_in_the_same_places(a: float, b: float, same: bool) -> None:
    def m(v: float) -> ModelProto:
        return parse(
            "g (float[3] x) => (float[3] y) { y = Mul (x, k) }", k=np.array([1, v, 2], np.float32)
        )

    assert compare(m(a), m(b), values={"x": np.ones(3, np.float32)}, rtol=1e9).ok is same


def test_a_small_output_beside_large_ones_is_judged_by_the_whole_and_alone_by_itself() -> None:
    def m(v: list[float]) -> ModelProto:
        return parse(
            f"g (float[{len(v)}] x) => (float[{len(v)}] y) {{ y = Add (x, k) }}",
            k=np.array(v, np.float32),
        )

    zero = {"x": np.zeros(2, np.float32)}
    assert compare(m([1e6, 1e-3]), m([1e6, 2e-3]), values=zero).ok
    assert not compare(m([1e-3]), m([2e-3]), values={"x": np.zeros(1, np.float32)}).ok


def test_another_shape_or_type_or_interface_fails() -> None:
    a = parse("g (float[2, 3] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }")
    b = parse("g (float[2, 3] x) => (float[1, 1] y) { y = ReduceMax <keepdims = 1> (x) }")
    v = compare(a, b)
    assert not v.ok and "became" in v.outputs[0].note
    with pytest.raises(VerificationError, match="different outputs"):
        compare(a, parse("g (float[2, 3] x) => (float z) { z = ReduceMax <keepdims = 0> (x) }"))


@pytest.mark.parametrize(("loops", "empty"), [(True, True), (True, False), (False, True)])
def test_only_without_an_iteration_have_results_any_dims(loops: bool, empty: bool) -> None:
    rows = 0 if empty else 1
    x, y = (np.zeros(s, np.float32) for s in ((rows,), (rows, 1, 1)))
    found = verification._compare("y", x, y, verification.Bounds(1e-3, 0.0, 1, 0.0, loops=loops))
    assert found.ok == (loops and empty)
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert not verification.measure(model_file.load(model)).bounds.loops


def test_random_models_are_compared_by_shape() -> None:
    m = parse("g (float[3] x) => (float[3] y) { r = RandomNormalLike (x) y = Add (x, r) }")
    v = compare(m, m)
    assert v.ok and "random" in v.note


def test_an_ill_conditioned_model_is_measured_rather_than_failed() -> None:
    """A sum that cancels: rounding the product differently changes every digit of what is left."""
    text = (
        "g (float[N, 64] x) => (float[N, 1] y) {{ a = MatMul (x, w) b = MatMul (x, v) y = Sub "
        "(a, b) }}"
    )
    w = normal(64, 1)
    near = (w.astype(np.float64) * (1 + 1e-7)).astype(np.float32)
    order = np.random.default_rng(1).permutation(64)
    a = parse(text.format(), w=w, v=near)
    b = parse(
        "g (float[N, 64] x) => (float[N, 1] y) { p = Gather <axis = 1> (x, order) a = MatMul (p, "
        "w) b = MatMul (x, v) y = Sub (a, b) }",
        w=w[order],
        v=near,
        order=order,
    )
    v = compare(a, b)
    assert v.ok and "ill-conditioned" in v.outputs[0].note
    line, why = v.text()
    # not a word too few about a difference that large
    assert "passed" in line and "the original itself moves by" in why
    wrong = parse(text.format(), w=w * np.float32(1.01), v=near)
    assert not compare(a, wrong).ok


def test_what_cannot_run_says_so() -> None:
    m = parse("g (float[N] x) => (float[2, 3] y) { y = Reshape (x, s) }", s=np.array([2, 3]))
    with pytest.raises(VerificationError, match="--input-shape"):
        compare(m, m, shapes={"x": (5,)})
    assert compare(m, m, shapes={"x": (6,)}).ok
    with pytest.raises(VerificationError, match="lack 'x'"):
        compare(m, m, values={"z": normal(6)})


def test_dims_that_hide_an_error_in_the_original_are_not_laid_on_the_result() -> None:
    """ONNX infers parts of 2 elements, ONNX Runtime makes two of 4, and loads what claims that as
    long as nothing changes the graph. From 1.32 on it runs no such Split.
    """
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> '
        "g (float[2, 8] x, float[2, 4] s) => (float[2, 4] y) <float[2, 4] a, float[2, 4] b> "
        "{ a, b = Split <axis = 1, num_outputs = 7> (x) c = Mul (a, s) y = Sub (c, b) }"
    )
    model = onnx.parser.parse_model(text)
    values = {"x": normal(2, 8), "s": normal(2, 4)}
    try:
        ort.InferenceSession(model.SerializeToString()).run(None, values)
    except Exception as e:
        pytest.skip(f"ONNX Runtime {ort.__version__}: {e}")
    assert compare(model, model).ok
    changed = onnx.parser.parse_model(text.replace("<float[2, 4] a, float[2, 4] b>", ""))
    with pytest.raises(ModelError, match=r"without the dims that it claims: .*Incompatible"):
        compare(model, changed)


# --- generated inputs -----------------------------------------------------------------------------
def first(model: ModelProto, **kwargs: object) -> dict[str, Array]:
    return next(iter(input_values.generate(model, **kwargs)))  # type: ignore[arg-type]


def test_symbols_are_consistent_and_ids_stay_in_their_table() -> None:
    m = parse(
        """
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask, int64[batch,
            seq] token_type_ids, bool[seq] flags, float[batch, 3] dense)
          => (float[batch, seq, 4] y)
        {
          e = Gather (words, input_ids)
          t = Gather (types, token_type_ids)
          y = Add (e, t)
        }
        """,
        words=normal(11, 4),
        types=normal(2, 4),
    )
    f = first(m)
    assert f["input_ids"].shape == f["attention_mask"].shape == f["token_type_ids"].shape == (
        2,
        7,
    ) and f["dense"].shape == (2, 3)
    assert f["input_ids"].min() >= 0 and f["input_ids"].max() < 11 and f["token_type_ids"].max() < 2
    assert (
        (f["attention_mask"] == 1).all() and f["flags"].all() and f["input_ids"].dtype == np.int64
    )
    assert (first(m, seed=3)["input_ids"] != f["input_ids"]).any()


def test_channels_come_from_the_weights() -> None:
    m = parse(
        "g (float[N, C, H, W] x) => (float[N, 4, H, W] y) { y = Conv (x, w) }", w=normal(4, 3, 1, 1)
    )
    assert first(m)["x"].shape == (2, 3, 64, 64)


def test_given_shapes_bind_symbols() -> None:
    m = parse(
        "g (float[batch, seq] x, float[batch, 4] z) => (float[batch, seq] y) { y = Relu (x) }"
    )
    f = first(m, shapes={"x": (3, 5)})
    assert f["x"].shape == (3, 5) and f["z"].shape == (3, 4)
    for bad, says in (
        ({"q": (1,)}, "no input called 'q'"),
        ({"x": (1,)}, "rank 2, not 1"),
        ({"z": (1, 5)}, "fixed dimension 4"),
        ({"x": (3, 5), "z": (2, 4)}, "both 3 and 2"),
    ):
        with pytest.raises(UsageError, match=says):
            first(m, shapes=bad)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x:1,3", ("x", (1, 3))),
        ("a:b:2", ("a:b", (2,))),
        ("x:", ("x", ())),
        ("x:0,2", ("x", (0, 2))),
    ],
)
def test_shapes_are_parsed(text: str, value: tuple[str, tuple[int, ...]]) -> None:
    assert input_values.parse_shape(text) == value


@pytest.mark.parametrize("text", ["x", ":1,2", "x:1,b", "x:-1", "x 1,2"])
def test_malformed_shapes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an input shape"):
        input_values.parse_shape(text)


def test_inputs_are_loaded_without_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "ok.npz", x=normal(2))
    np.savez(tmp_path / "bad.npz", x=np.array([object()], object))
    (tmp_path / "text.npz").write_text("hello")
    whole = (tmp_path / "ok.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[:-9])
    (tmp_path / "odd.npz").write_bytes(whole.replace(normal(2).tobytes()[:4], b"\1\2\3\4"))
    np.savez_compressed(tmp_path / "packed.npz", x=np.arange(99))
    packed = bytearray((tmp_path / "packed.npz").read_bytes())
    packed[60:90] = bytes(30)
    (tmp_path / "packed.npz").write_bytes(packed)
    assert input_values.load_inputs(tmp_path / "ok.npz")["x"].shape == (2,)
    for name in ("bad", "text", "none", "short", "odd", "packed"):
        with pytest.raises(UsageError):
            input_values.load_inputs(tmp_path / f"{name}.npz")


def test_comparing_large_outputs_takes_little_memory() -> None:
    x = np.zeros((3, 1 << 20), np.float32)
    x[0, 0], x[2, -1] = 3.0, np.inf
    y = x.copy()
    y[1, 7] = 0.5
    tracemalloc.start()
    found = verification._compare("y", x, y, verification.Bounds(1e-3, 0.0, 1, 0.0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * 8 * verification._CHUNK < 2 * 8 * x.size
    assert not found.ok and found.max_abs == 0.5
    count = x.size - 1
    assert found.rmse == pytest.approx(0.5 / np.sqrt(count)) and found.max_rel == pytest.approx(
        0.5 / (3.0 / np.sqrt(count))
    )
    y[2, -1] = -np.inf
    assert (
        "infinities"
        in verification._compare("y", x, y, verification.Bounds(1e-3, 0.0, 1, 0.0)).note
    )


def test_an_input_of_more_axes_than_an_array_has() -> None:
    shape = ", ".join(["1"] * 65)
    m = parse(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Relu (x) }}")
    with pytest.raises(ModelError, match="'x' has 65 dims"):
        compare(m, m)


def test_too_little_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    m = scaled(1.0)
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    monkeypatch.setattr(input_values, "generate", fails)
    assert (
        main.main(["optimize", str(path), "-o", str(tmp_path / "o.onnx")]) == ModelError.exit_code
    )
    assert "not enough memory" in capsys.readouterr().err

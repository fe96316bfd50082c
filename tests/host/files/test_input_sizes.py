"""Sizes of generated inputs follow from what the operators ask of them; what is too large, or
cannot be told, is said in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, TypeProto, helper

from tests.host.pipeline_models import normal, parse
from tracea_onnx.errors import ModelError, TraceaError, UsageError, VerificationError
from tracea_onnx.model_io import model_file
from tracea_onnx.model_io.builder import Net
from tracea_onnx.verify import input_values, verification


def shapes(model: ModelProto, **kwargs: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs the model is verified with: it must run with the first that are made."""
    fed = next(iter(input_values.generate(model, **kwargs)))
    names = [o.name for o in model.graph.output]
    verification.session(model_file.Source(model)).run(names, fed)
    return {k: v.shape for k, v in fed.items()}


def refused(model: ModelProto, **kwargs: Any) -> TraceaError:
    with pytest.raises(TraceaError) as caught:
        verification.measure(model_file.Source(model), **kwargs)
    assert "\n" not in str(caught.value)
    return caught.value


def clip(height: int = 16, width: int = 16, patch: int = 4, hidden: int = 8) -> ModelProto:
    """Image and text towers that meet in a product; every dim is a symbol of its own."""
    net = Net("clip")
    x = net.input("pixels", ["b", "c", "h", "w"], width=3)
    batch = net.op("Gather", net.op("Shape", x), np.asarray([0], np.int64), axis=0)
    y = net.conv(x, hidden, patch, patch, pad=0)
    y = net.transpose(net.reshape(y, [0, hidden, -1]), 0, 2, 1)
    token = net.op(
        "Expand",
        net.normal("cls", (1, 1, hidden), 1.0),
        net.op("Concat", batch, np.asarray([1, hidden], np.int64), axis=0),
    )
    y = net.op("Concat", token, y, axis=1, width=hidden)
    y = net.add(
        y, net.normal("positions", (1, (height // patch) * (width // patch) + 1, hidden), 0.3)
    )
    image = net.linear(
        net.op("ReduceMean", net.layer_norm(y), axes=[1], keepdims=0), 5, name="image"
    )
    ids = net.input("ids", ["n", "s"], np.int64)
    mask = net.input("mask", ["m", "t"], np.int64)
    words = net.embedding(ids, 11, hidden, name="words")
    words = net.op(
        "Mul",
        words,
        net.op("Unsqueeze", net.op("Cast", mask, to=TensorProto.FLOAT), np.asarray([2], np.int64)),
    )
    text = net.linear(net.op("ReduceMean", words, axes=[1], keepdims=0), 5, name="text")
    scores = net.op("MatMul", image, net.transpose(text, 1, 0))
    return net.model([("scores", scores, np.float32, ["b", "n"])])


def test_images_are_as_large_as_the_table_of_positions_says() -> None:
    found = shapes(clip())
    assert found["pixels"] == (2, 3, 16, 16) and found["ids"] == found["mask"] == (2, 7)
    assert shapes(clip(12, 16, 2))["pixels"] == (2, 3, 12, 16)  # 48 patches are no square


STATES = """
    s ({inputs}) => (float[T, D, B, H] y)
    {{
      {before}
      y = If (flag) <
        then_branch = a () => (float[T, D, B, H] p) {{ p, ph, pc = LSTM <hidden_size = 4,
            direction = "bidirectional"> ({x}, w, r, , , h0, c0) }},
        else_branch = b () => (float[T, D, B, H] q) {{ k, kh, kc = LSTM <hidden_size = 4,
            direction = "bidirectional"> ({x}, w, r, , , h0, c0) q = Neg (k) }}
      >
    }}
"""


def test_states_of_recurrent_networks_are_what_their_operators_ask_for_also_in_branches() -> None:
    weights: dict[str, Any] = {"w": normal(2, 16, 3), "r": normal(2, 16, 4)}
    text = STATES.format(
        inputs="bool flag, float[a, b, c] x, float[d, e, f] h0, float[g, h, i] c0", before="", x="x"
    )
    found = shapes(parse(text, **weights))
    assert found["h0"] == found["c0"] == (2, found["x"][1], 4) and found["x"][2] == 3
    # Batch first, turned outside; the state is one input with both parts.
    before = (
        "t = Transpose <perm = [1, 0, 2]> (x) h0 = Gather <axis = 0> (state, zero) c0 = "
        "Gather <axis = 0> (state, one)"
    )
    text = STATES.format(
        inputs="bool flag, float[a, b, c] x, float[d, e, f, g] state", before=before, x="t"
    )
    found = shapes(parse(text, zero=np.int64(0), one=np.int64(1), **weights))
    assert (
        found["state"][1:] == (2, found["x"][0], 4)
        and found["state"][0] >= 2
        and found["x"][2] == 3
    )


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("RNN", 1)])
def test_other_recurrent_operators(op: str, gates: int) -> None:
    m = parse(
        f"g (float[a, b, c] x, int32[n] lengths, float[d, e, f] h0) => (float[d, e, f] z) {{ "
        f"y, z = {op} <hidden_size = 4> (x, w, r, , lengths, h0) }}",
        w=normal(1, 4 * gates, 3),
        r=normal(1, 4 * gates, 4),
    )
    found = shapes(m)
    assert found["h0"] == (1, found["x"][1], 4) and found["lengths"] == (found["x"][1],)


def test_branches_that_ask_for_different_sizes_give_one_or_the_other() -> None:
    """The condition is an input: the sizes of the branch that runs are tried, too."""
    branch = "{n} = g{n} () => (float[a, k] p{n}) {{ p{n} = MatMul (x, {n}w) }}"
    for flag in (True, False):
        text = "g (float[a, b] x) => (float[a, k] y) { flag = Greater (on, zero) y = If (flag) <"
        text += (
            ", ".join(
                branch.format(n=n).replace(f"{n} = g", f"{n}_branch = g") for n in ("then", "else")
            )
            + "> }"
        )
        m = parse(
            text,
            thenw=normal(24, 3),
            elsew=normal(80, 3),
            on=np.float32(1 if flag else -1),
            zero=np.float32(0),
        )
        assert shapes(m)["x"][1] == (24 if flag else 80)
        m = parse(
            text.replace("(float[a, b] x)", "(float[a, b] x, float on)"),
            thenw=normal(24, 3),
            elsew=normal(80, 3),
            zero=np.float32(0),
        )
        # the two seeds draw `on` of either sign
        runs = verification.measure(model_file.Source(m), seed=0 if flag else 1)
        assert runs.fed["x"].shape[1] == (24 if runs.fed["on"] > 0 else 80)


def test_bodies_of_scan_and_loop_ask_too() -> None:
    scan = parse(
        """
        g (float[h] state, float[s, i] x) => (float[h] last, float[s, h] all)
        {
          last, all = Scan <num_scan_inputs = 1, body = step (float[4] before, float[3] at) =>
              (float[4] after, float[4] out)
            { p = MatMul (at, w) q = MatMul (before, r) after = Add (p, q) out = Identity (after)
                }> (state, x)
        }
        """,
        w=normal(3, 4),
        r=normal(4, 4),
    )
    (body,) = (a.g for a in scan.graph.node[0].attribute if a.name == "body")
    for value in body.input:
        value.type.tensor_type.ClearField("shape")
    found = shapes(scan)
    assert found["state"] == (4,) and found["x"][1] == 3


def test_a_number_in_a_sum_is_that_number() -> None:
    m = parse(
        """
        g (float[batch, 2, "past_sequence_length", 4] past, float[batch, 2, 1, 4] now, int64[batch,
            "past_sequence_length + 1"] mask)
          => (float[batch, 2, n, 4] y)
        {
          all = Concat <axis = 2> (past, now)
          m = Cast <to = 1> (mask)
          u = Unsqueeze (m, axes)
          y = Mul (all, u)
        }
        """.replace('"past_sequence_length + 1"', "P1").replace(
            '"past_sequence_length"', "past_sequence_length"
        ),
        axes=np.array([1, 3]),
    )
    m.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past_sequence_length + 1"
    found = shapes(m)
    assert found["past"][2] == 7 and found["mask"] == (2, 8)
    assert shapes(m, shapes={"mask": (3, 6)})["past"] == (3, 2, 5, 4)
    # Where nothing else says so, the text alone does: also a dim that is just a number.
    m = parse(
        "g (float[a] x, float[b] y, float[c] z) => (float[a] p, float[b] q, float[c] r) { "
        "p = Neg (x) q = Neg (y) r = Neg (z) }"
    )
    for i, text in zip(m.graph.input, ("n", "2 * n + 1", "1"), strict=True):
        i.type.tensor_type.shape.dim[0].dim_param = text
    found = shapes(m)
    assert found["y"] == (2 * found["x"][0] + 1,) and found["z"] == (1,)


@pytest.mark.parametrize(
    ("text", "constants", "want"),
    [
        # a total that is fixed is of one batch
        ("y = Reshape (x, k)", {"k": np.array([1, 343])}, (1, 7, 7, 7)),
        ("p = Conv (x, w) y = Reshape (p, k)", {"w": normal(4, 3, 5, 5), "k": np.array([1, 400])},
            (1, 3, 14, 14)),
        ("p = Pad <mode = \"reflect\"> (x, k) y = Conv (p, w)",
            {"k": np.array([0, 0, 80, 0, 0, 0, 80, 0]), "w": normal(2, 5, 1, 1)}, (2, 5, 128, 64)),
        ("y = Conv <strides = [16, 16]> (x, w)", {"w": normal(2, 5, 100, 100)}, (2, 5, 128, 128)),
        ("t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv <group = 2> (t, w)",
            {"w": normal(4, 3, 1, 1)}, (2, 64, 64, 6)),
        ("y = BatchNormalization (x, k, k, k, k)", {"k": np.ones(5, np.float32)}, (2, 5, 7, 7)),
        ("y = LayerNormalization <axis = -2> (x, k)", {"k": normal(5, 6)}, (2, 7, 5, 6)),
        ("a, b = Split <axis = 2> (x, k) y = Add (a, b)", {"k": np.array([5, 5])}, (2, 7, 10, 7)),
        ("y = Einsum <equation = \"abcd,de->abce\"> (x, k)", {"k": normal(9, 3)}, (2, 7, 7, 9)),
        ("c = Concat <axis = 1> (x, k) y = Neg (c)", {"k": normal(3, 1, 5, 6)}, (3, 7, 5, 6)),
        ("y = ConvTranspose <output_shape = [9, 13], strides = [2, 2]> (x, w)",
            {"w": normal(5, 2, 3, 3)}, (2, 5, 4, 6)),
    ],
)  # fmt: skip
def test_sizes_follow_from_the_operators(
    text: str, constants: dict[str, Any], want: tuple[int, ...]
) -> None:
    m = parse(f"g (float[a, b, c, d] x) => (float[p, q, r, s] y) {{ {text} }}", **constants)
    m.graph.output[0].type.tensor_type.ClearField("shape")
    found = shapes(m)["x"]
    assert found == want


def test_lengths_stay_within_tables() -> None:
    m = parse(
        """
        g (int64[b, s] ids) => (float[b, s, 4] y)
        {
          e = Gather (words, ids)
          shape = Shape (ids)
          n = Gather (shape, one)
          p = Range (zero, n, one)
          t = Gather (positions, p)
          y = Add (e, t)
        }
        """,
        words=normal(11, 4), positions=normal(3, 4), zero=np.int64(0), one=np.int64(1),
    )  # fmt: skip
    assert shapes(m)["ids"] == (2, 3)


def test_an_input_without_a_shape_has_the_rank_that_is_read() -> None:
    m = parse("g (float[a, b, c] x) => (float[p, q, r] y) { y = Conv (x, w) }", w=normal(4, 3, 5))
    m.graph.input[0].type.tensor_type.ClearField("shape")
    found = shapes(m)["x"]
    assert len(found) == 3 and found[1] == 3 and found[2] >= 5


def test_functions_are_looked_into() -> None:
    m = parse(
        "g (float[a, b] x) => (float[a, k] y) { y = mine.f (x, w) }",
        w=normal(24, 3),
        extra=', "mine" : 1',
    )
    m.functions.append(
        helper.make_function(
            "mine",
            "f",
            ["u", "v"],
            ["z"],
            [helper.make_node("MatMul", ["u", "v"], ["z"])],
            m.opset_import[:1],
        )
    )
    assert shapes(m)["x"] == (2, 24)


# --- what is too large, or cannot be told ---------------------------------------------------------
def test_dims_that_are_too_large_are_said_in_one_line() -> None:
    m = parse("g (float[N, 8] x, float[4] z) => (float[N, 8] y) { y = Neg (x) }")
    x = m.graph.input[0].type.tensor_type.shape
    for d in x.dim:
        d.dim_value = 1 << 40
    e = refused(m)
    assert (
        isinstance(e, ModelError)
        and "input 'x' has dims [1099511627776, 1099511627776]" in str(e)
        and "--load-inputs" in e.fix
    )
    del x.dim[:]
    for _ in range(30):  # more bytes than a float can tell
        x.dim.add(dim_value=(1 << 62) - 1)
    assert "GiB" in refused(m).what
    del x.dim[:]
    x.dim.add(dim_param="N")
    x.dim.add(dim_value=1 << 20)
    assert shapes(m)["x"] == (2, 1 << 20)
    e = refused(m, shapes={"x": (4096, 1 << 20)})
    assert isinstance(e, UsageError) and "16 GiB" in e.what and "--input-shape" in e.fix


def test_sizes_that_lead_to_too_much_are_not_tried() -> None:
    m = parse(
        "g (float[n] x) => (float[p, q] y) { y = Reshape (x, k) }", k=np.array([1 << 20, 1 << 10])
    )
    e = refused(m)
    assert (
        isinstance(e, ModelError)
        and "input 'x' of shape [1073741824]" in e.what
        and "--input-shape x:1073741824" in e.fix
    )
    outer = (
        "g (float[n] x) => (float[p, q] y) { s = Add (x, k) c = Unsqueeze (s, one) r = "
        "Unsqueeze (s, zero) y = MatMul (c, r) }"
    )
    e = refused(
        parse(outer, k=np.zeros(1 << 15, np.float32), one=np.array([1]), zero=np.array([0]))
    )
    assert isinstance(e, ModelError) and "--input-shape x:32768" in e.fix
    m = parse(
        "g (float[n, m] x) => (float[p] y) { s = Shape (x) r = Concat <axis = 0> (s, s, s) t = "
        "Concat <axis = 0> (r, r) y = Expand (x, t) }"
    )
    assert next(iter(input_values.generate(m)))["x"].shape == (2, 7)


def test_sizes_that_are_towers_of_squares_are_followed() -> None:
    squares = " ".join(f"s{k + 1} = Mul (s{k}, s{k})" for k in range(40))
    m = parse(
        f"g (float[n] x) => (float[p] y) {{ s0 = Size (x) {squares} u = Unsqueeze (s40, z) y = "
        f"Expand (x, u) }}",
        z=np.array([0]),
    )
    assert shapes(m)["x"] == (1,)


def test_what_cannot_be_told_is_asked_for_with_the_option_to_give() -> None:
    m = parse(
        "g (float[n] x, float[2] z) => (float[p] y) { "
        "c = Compress <axis = 0> (x, k) y = Reshape (c, s) }",
        k=np.ones(1000, np.bool_),
        s=np.array([1000]),
    )
    e = refused(m)
    assert isinstance(e, VerificationError) and "--input-shape x:2," in e.fix and "z:" not in e.fix
    assert verification.measure(model_file.Source(m), shapes={"x": (1000,)}).fed["x"].shape == (
        1000,
    )
    m.graph.input[0].name = "my input;x"
    m.graph.node[0].input[0] = "my input;x"
    assert "--input-shape 'my input;x:2'" in refused(m).fix  # as a shell takes it


# --- values ---------------------------------------------------------------------------------------
def test_large_inputs_are_drawn_in_part() -> None:
    """No more numbers are drawn than a part that repeats, and no size of a model is a multiple of
    that part.
    """
    for kind in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT8):
        m = parse("g (float[5000, 5000] x) => (float[5000, 5000] y) { y = Neg (x) }")
        m.graph.input[0].type.tensor_type.elem_type = m.graph.output[
            0
        ].type.tensor_type.elem_type = kind
        (x,) = next(iter(input_values.generate(m))).values()
        assert x.shape == (5000, 5000) and (x[0] != x[1]).any()
        assert (x.reshape(-1)[:1000] == x.reshape(-1)[input_values._DRAWN :][:1000]).all()


@pytest.mark.parametrize(
    ("kind", "low", "high"), [(np.uint8, 0, 256), (np.int8, 0, 128), (np.int64, 0, 300)]
)
def test_ids_fit_their_type_and_their_table(kind: type, low: int, high: int) -> None:
    drawn = input_values._integers(
        "ids", np.dtype(kind), (4000,), np.random.default_rng(0), input_values.Range(0, 300)
    )
    assert drawn.dtype == kind and drawn.min() >= low and high * 0.9 < drawn.max() < high


@pytest.mark.parametrize(
    "table",
    [
        input_values.Range(0, 0),
        input_values.Range(-5, -2),
        input_values.Range(3, 3),
        input_values.Range(0, 1),
    ],
)
def test_tables_without_rows_are_safe(table: input_values.Range) -> None:
    for name in ("ids", "position_ids"):
        for shape in ((), (0,), (3,), (2, 0)):
            drawn = input_values._integers(
                name, np.dtype(np.int64), shape, np.random.default_rng(0), table
            )
            assert drawn.shape == shape and (drawn >= 0).all()


def test_ids_that_a_body_looks_up_stay_in_its_table() -> None:
    m = parse(
        """
        g (bool flag, int64[n] ids) => (float[n, 4] y)
        {
          y = If (flag) <then_branch = a () => (float[n, 4] p) { p = Gather (words, ids) },
              else_branch = b () => (float[n, 4] q) { q = Gather (words, ids) }>
        }
        """,
        words=normal(1, 4),
    )
    assert not next(iter(input_values.generate(m)))["ids"].any()


def test_sequences_count_what_they_hold() -> None:
    m = parse("g (float[4] x) => (float[4] y) { y = SequenceAt (x, k) }", k=np.int64(0))
    m.graph.input[0].type.CopyFrom(
        helper.make_sequence_type_proto(
            helper.make_tensor_type_proto(TensorProto.FLOAT, [1 << 28, "n"])
        )
    )
    assert isinstance(m.graph.input[0].type, TypeProto)
    assert isinstance(refused(m), ModelError)
    m.graph.input[0].type.sequence_type.elem_type.tensor_type.shape.dim[0].dim_value = 3
    assert [v.shape for v in next(iter(input_values.generate(m)))["x"]] == [(3, 7), (3, 7)]

"""Canonicalisation changes the graph and never a bit of its results; a second pass changes
nothing.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from tests.host.pipeline_models import Array, copy, normal, ops, parse, run, same_bits
from tracea_onnx.canonicalize.canonical_form import canonicalise
from tracea_onnx.canonicalize.constant_folding import Budget
from tracea_onnx.errors import ModelError


def canonical(model: ModelProto, **kwargs: object) -> ModelProto:
    return canonicalise(copy(model), **kwargs)  # type: ignore[arg-type]


def values(model: ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def unchanged(
    model: ModelProto, feeds: dict[str, Array], result: ModelProto | None = None
) -> ModelProto:
    """The canonical model, after checking bits, interface, validity and idempotence."""
    result = canonical(model) if result is None else result
    onnx.checker.check_model(result, full_check=True)
    assert list(result.graph.output) == list(model.graph.output)
    assert same_bits(run(model, feeds), run(result, feeds))
    assert canonical(result).SerializeToString(deterministic=True) == result.SerializeToString(
        deterministic=True
    )
    return result


def test_every_form_of_constant_node_becomes_an_initializer() -> None:
    m = parse(
        """
        g (float[3] x) => (float[3] y, int64[2] n, string[2] s)
        {
          a = Constant <value_float = 2.5> ()
          b = Constant <value_floats = [1.0, 2.0, 3.0]> ()
          c = Constant <value = float {-0.5}> ()
          i = Constant <value_int = 7> ()
          k = Constant <value_ints = [4, 5]> ()
          t = Constant <value_strings = ["p", "q"]> ()
          u = Mul (x, a)
          v = Add (u, b)
          y = Mul (v, c)
          n = Add (k, i)
          s = Identity (t)
        }
        """
    )
    r = unchanged(m, {"x": normal(3)})
    assert "Constant" not in ops(r)[:-1] or ops(r).count("Constant") == 0
    assert values(r)["a"] == np.float32(2.5) and values(r)["a"].shape == ()
    assert values(r)["b"].tolist() == [1.0, 2.0, 3.0]


def test_a_constant_whose_attribute_is_of_another_kind_is_left() -> None:
    """ONNX Runtime goes by the kind: to it this one is another number."""
    m = parse(
        "g (float[3] x) => (float[3] y) { a = Constant <value = float {2.0}> () y = Mul (x, a) }"
    )
    m.graph.node[0].attribute[0].type = AttributeProto.FLOAT
    assert ops(canonicalise(m)) == ["Constant", "Mul"]


def test_constants_hidden_behind_other_nodes_are_found() -> None:
    m = parse(
        "g (float[2, 3] x) => (float[2, 4] y) { i = Identity (w) t = Transpose <perm = [1, 0]> "
        "(i) h = Cast <to = 1> (d) z = MatMul (x, t) y = Add (z, h) }",
        w=normal(4, 3),
        d=np.arange(4, dtype=np.float64),
    )
    r = unchanged(m, {"x": normal(2, 3)})
    assert ops(r) == ["MatMul", "Add"]
    assert values(r)["t"].shape == (3, 4)


@pytest.mark.parametrize(
    "node",
    [
        "y = Identity (a)",
        "y = Dropout (a)",
        "y = Cast <to = 1> (a)",
        "y = Transpose <perm = [0, 1]> (a)",
        "y = Reshape (a, same)",
        "y = Reshape (a, zeros)",
        "y = Reshape (a, free)",
        "y = Slice (a, start, end)",
        "y = Slice (a, start, far)",
        "y = Concat <axis = 0> (a)",
        "y = Mul (a, one)",
        "y = Div (a, one)",
    ],
)
@pytest.mark.parametrize("place", ["inner", "output"])
def test_a_node_that_gives_back_its_input_goes(node: str, place: str) -> None:
    body = (
        f"{{ a = Relu (x) {node} z = Neg (y) }}"
        if place == "inner"
        else f"{{ a = Relu (x) {node} z = Neg (a) }}"
    )
    out = "float[2, 3] z" if place == "inner" else "float[2, 3] z, float[2, 3] y"
    m = parse(
        f"g (float[2, 3] x) => ({out}) {body}",
        same=np.array([2, 3]),
        zeros=np.array([0, 0]),
        free=np.array([-1, 3]),
        start=np.array([0, 0]),
        end=np.array([2, 9]),
        far=np.array([2**31 - 1, 2**63 - 1]),
        one=np.float32(1.0),
    )
    r = unchanged(m, {"x": normal(2, 3)})
    assert ops(r) == ["Relu", "Neg"]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("y = Cast <to = 10> (a)", "another type"),
        ("y = Transpose (a)", "reverses the axes"),
        ("y = Reshape (a, other)", "another shape"),
        ("y = Reshape <allowzero = 1> (a, zeros)", "zeros mean zero here"),
        ("y = Slice (a, start, end)", "ends early"),
        ("y = Slice (a, late, far)", "starts late"),
        ("y, m = Dropout (a)", "the mask is read"),
        ("y = Mul (a, near)", "not exactly one"),
        ("y = Mul (a, wide)", "broadcasts to a higher rank"),
        ("y = Add (a, zero)", "-0.0 + 0.0 is 0.0"),
        ("y = Add (a, tiny)", "a tiny constant guards a division"),
    ],
)
def test_a_node_that_only_looks_like_its_input_stays(node: str, why: str) -> None:
    out = "bool[2, 3] m" if "m =" in node else "float w"
    tail = "" if "m =" in node else "w = ReduceSum <keepdims = 0> (c)"
    m = parse(
        f"g (float[2, 3] x) => (float z, {out}) {{ a = Neg (x) {node} c = Cast <to = 1> (y) z = "
        f"ReduceMax <keepdims = 0> (c) {tail} }}",
        other=np.array([3, 2]),
        zeros=np.array([0, 0]),
        start=np.array([0, 0]),
        end=np.array([2, 2]),
        late=np.array([1, 0]),
        far=np.array([2**31 - 1, 2**31 - 1]),
        near=np.float32(np.nextafter(np.float32(1), np.float32(2))),
        wide=np.ones((1, 1, 1), np.float32),
        zero=np.float32(0.0),
        tiny=np.float32(1e-12),
    )
    kind = node.split("=")[1].split("<")[0].split("(")[0].strip()
    assert kind in ops(canonical(m)), why


def test_a_training_dropout_and_random_numbers_stay() -> None:
    m = parse(
        """
        g (float[4] x) => (float[4] y, float[4] z)
        {
          y = Dropout (x, half, yes)
          r = RandomNormal <shape = [4], seed = 1.0> ()
          q = RandomNormal <shape = [4], seed = 1.0> ()
          z = Add (r, q)
        }
        """,
        half=np.float32(0.5),
        yes=np.array(True),
    )
    assert ops(canonical(m)) == ["Dropout", "RandomNormal", "RandomNormal", "Add"]


def test_equal_nodes_and_initializers_become_one_by_bits() -> None:
    m = parse(
        "g (float[3] x) => (float[3] y) { a = Add (x, p) b = Add (x, q) c = Add (x, r) d = Mul "
        "(a, b) y = Mul (d, c) }",
        p=np.array([0.0, 1.0, np.nan], np.float32),
        q=np.array([0.0, 1.0, np.nan], np.float32),
        r=np.array([-0.0, 1.0, np.nan], np.float32),
    )
    r = unchanged(m, {"x": np.array([-0.0, 1, 2], np.float32)})
    assert ops(r) == ["Add", "Add", "Mul", "Mul"]
    assert sorted(values(r)) == ["p", "r"]


def test_two_equal_outputs_keep_both_names() -> None:
    m = parse("g (float[3] x) => (float[3] y, float[3] z) { y = Relu (x) z = Relu (x) }")
    r = unchanged(m, {"x": normal(3)})
    assert [o.name for o in r.graph.output] == ["y", "z"]


def test_quantisation_pairs_are_left_alone() -> None:
    m = parse(
        "g (float[4] x) => (float[4] y) { w = DequantizeLinear (q, s) v = DequantizeLinear (q, "
        "s) a = Mul (x, w) y = Mul (a, v) }",
        q=np.array([1, -2, 3, 4], np.int8),
        s=np.float32(0.5),
    )
    assert ops(unchanged(m, {"x": normal(4)})) == [
        "DequantizeLinear",
        "DequantizeLinear",
        "Mul",
        "Mul",
    ]


def test_an_initializer_that_is_an_input_becomes_constant_unless_kept() -> None:
    m = parse(
        "g (float[2, 3] x, float[3] b) => (float[2, 3] y) { t = Identity (b) y = Add (x, t) }",
        b=normal(3),
    )
    notes: list[str] = []
    r = canonical(m, notes=notes)
    assert [i.name for i in r.graph.input] == ["x"] and len(notes) == 1
    kept = canonical(m, keep_initializer_inputs=True)
    assert [i.name for i in kept.graph.input] == ["x", "b"] and [
        t.name for t in kept.graph.initializer
    ] == ["b"]
    feeds = {"x": normal(2, 3), "b": normal(3, seed=9)}
    assert same_bits(run(m, feeds), run(kept, feeds))


def test_before_ir_4_initializers_are_inputs_by_rule_and_need_no_note() -> None:
    m = parse(
        "g (float[2, 3] x, float[3] b) => (float[2, 3] y) { y = Add (x, b) }",
        opset=8,
        ir=3,
        b=normal(3),
    )
    notes: list[str] = []
    r = canonical(m, notes=notes)
    assert r.ir_version == 4 and not notes and [i.name for i in r.graph.input] == ["x"]
    assert same_bits(run(m, {"x": normal(2, 3)}), run(r, {"x": normal(2, 3)}))
    # nothing to keep: nobody can override it
    assert canonical(m, keep_initializer_inputs=True) == r


def test_constants_of_an_old_model_without_weights() -> None:
    m = parse(
        "g (float[2] x) => (float[2] y) { k = Constant <value = float[2] {1, 2}> () y = Add (x, "
        "k) }",
        opset=8,
        ir=3,
    )
    onnx.checker.check_model(unchanged(m, {"x": normal(2)}))


def test_folding_keeps_to_its_budget() -> None:
    m = parse(
        "g (float[1000, 1000] x) => (float[1000, 1000] y) { "
        "z = ConstantOfShape (n) y = Add (x, z) }",
        n=np.array([1000, 1000]),
    )
    assert ops(canonical(m)) == ["ConstantOfShape", "Add"]
    assert ops(canonical(m, budget=Budget(node=8 << 20))) == ["Add"]
    assert ops(canonical(m, budget=Budget(node=8 << 20, growth=1 << 20))) == [
        "ConstantOfShape",
        "Add",
    ]


def test_windows_and_mel_weights_are_constants() -> None:
    m = parse(
        """
        g (float[batch, samples, 1] x) => (float[batch, frames, 20] y)
        {
          w = HannWindow (n)
          s = STFT (x, step, w, n)
          p = ReduceSumSquare <keepdims = 0> (s, last)
          m = MelWeightMatrix (bins, n, rate, low, high)
          y = MatMul (p, m)
        }
        """,
        opset=18,
        n=np.array(64),
        step=np.array(16),
        bins=np.array(20),
        rate=np.array(8000),
        last=np.array([-1]),
        low=np.float32(0),
        high=np.float32(4000),
    )
    assert ops(canonical(m)) == ["STFT", "ReduceSumSquare", "MatMul"]
    large = parse("g () => (float[k] y) { y = HannWindow (n) }", n=np.array(1 << 30))
    assert ops(canonical(large)) == ["HannWindow"]


def test_shapes_of_static_values_fold_and_symbolic_ones_do_not() -> None:
    m = parse(
        """
        g (float[batch, 3, 5] x) => (float[batch, 15] y, int64[1] n)
        {
          s = Shape (x)
          b = Gather (s, zero)
          u = Unsqueeze (b, axis)
          c = Concat <axis = 0> (u, rest)
          y = Reshape (x, c)
          n = Shape <start = 1, end = 2> (x)
        }
        """,
        zero=np.array(0),
        axis=np.array([0]),
        rest=np.array([15]),
    )
    r = unchanged(m, {"x": normal(2, 3, 5)})
    assert ops(r) == ["Reshape", "Shape"]  # the graph output keeps its producer
    assert values(r)["y_target"].tolist() == [0, 15]
    assert r.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_dead_nodes_and_weights_go_but_inputs_stay() -> None:
    m = parse(
        "g (float[2] x, float[2] unused) => (float[2] y) { "
        "y = Relu (x) d = Mul (x, w) e = Exp (d) }",
        w=normal(2),
    )
    r = unchanged(m, {"x": normal(2), "unused": normal(2)})
    assert (
        ops(r) == ["Relu"]
        and not r.graph.initializer
        and [i.name for i in r.graph.input] == ["x", "unused"]
    )


def test_bodies_are_canonicalised_and_captured_values_survive() -> None:
    m = parse(
        """
        g (float[3] x, bool c) => (float[3] y)
        {
          k = Constant <value_floats = [1.0, 2.0, 3.0]> ()
          a = Relu (x)
          i = Identity (a)
          dead = Exp (x)
          y = If (c) <then_branch = t () => (float[3] ty) { tk = Constant <value_float = 2.0> ()
              tt = Mul (i, tk) ti = Identity (tt) ty = Add (ti, k) },
                      else_branch = e () => (float[3] ey) { ei = Identity (i) ey = Neg (ei) }>
        }
        """
    )
    for c in (True, False):
        r = unchanged(m, {"x": normal(3), "c": np.array(c)})
    assert ops(r) == ["Relu", "If"]
    bodies = {a.name: [n.op_type for n in a.g.node] for a in r.graph.node[1].attribute}
    assert bodies == {"then_branch": ["Mul", "Add"], "else_branch": ["Neg"]}


def test_a_body_that_reuses_an_outer_name_is_not_confused() -> None:
    m = parse(
        """
        g (float[3] x, bool c) => (float[3] y)
        {
          a = Relu (x)
          s = Identity (a)
          z = If (c) <then_branch = t () => (float[3] ty) { q = Neg (s) ty = Abs (q) },
              else_branch = e () => (float[3] ey) { q = Exp (s) ey = Abs (q) }>
          y = Add (z, s)
        }
        """
    )
    for c in (True, False):
        unchanged(m, {"x": normal(3), "c": np.array(c)})


def test_what_users_wrote_is_kept() -> None:
    m = parse(
        "g (float[N, 3] x) => (float[N, 3] y) { t = Identity (x) y = Add (t, w) }", w=normal(3)
    )
    m.doc_string, m.producer_name, m.graph.doc_string = "a model", "someone", "a graph"
    m.metadata_props.add(key="license", value="MIT")
    m.graph.node[1].doc_string = "adds"
    m.graph.input[0].doc_string = "pixels"
    note = m.graph.quantization_annotation.add(tensor_name="t")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    r = canonical(m)
    for field in ("doc_string", "producer_name", "metadata_props", "opset_import"):
        assert getattr(r, field) == getattr(m, field)
    assert (
        r.graph.doc_string == "a graph"
        and r.graph.node[-1].doc_string == "adds"
        and list(r.graph.input) == list(m.graph.input)
    )
    # the annotated value is still there
    assert r.graph.quantization_annotation == m.graph.quantization_annotation and "Identity" in ops(
        r
    )


def test_training_information_stops_every_change() -> None:
    m = parse("g (float[3] x) => (float[3] y) { t = Identity (x) y = Add (t, w) }", w=normal(3))
    m.training_info.add().algorithm.name = "step"
    notes: list[str] = []
    assert ops(canonical(m, notes=notes)) == ["Identity", "Add"] and notes


def test_nodes_are_sorted_and_named() -> None:
    m = parse("g (float[3] x) => (float[3] y) { a = Relu (x) b = Neg (a) y = Abs (b) }")
    nodes = list(reversed([copy_node(n) for n in m.graph.node]))
    del m.graph.node[:]
    m.graph.node.extend(nodes)
    r = canonical(m)
    assert ops(r) == ["Relu", "Neg", "Abs"] and [n.name for n in r.graph.node] == [
        "Relu_a",
        "Neg_b",
        "Abs_y",
    ]


def copy_node(n: onnx.NodeProto) -> onnx.NodeProto:
    out = onnx.NodeProto()
    out.CopyFrom(n)
    return out


def test_a_cycle_is_named() -> None:
    m = parse("g (float[3] x) => (float[3] y) { a = Add (x, b) b = Relu (a) y = Neg (b) }")
    with pytest.raises(ModelError, match="cycle through node"):
        canonical(m)


_UNARY = ("Relu", "Neg", "Identity", "Abs", "Dropout", "Sqrt", "Floor")


@st.composite
def graphs(draw: st.DrawFn) -> ModelProto:
    """Random graphs over a 5-vector: unary and binary nodes on inputs, constants and each other,
    with repeats and dead ends.
    """
    known = ["x", "k0", "k1"]
    nodes = []
    for i in range(draw(st.integers(1, 14))):
        if draw(st.booleans()):
            op = draw(st.sampled_from(_UNARY))
            nodes.append(helper.make_node(op, [draw(st.sampled_from(known))], [f"v{i}"]))
        else:
            op = draw(st.sampled_from(("Add", "Mul", "Sub", "Div")))
            nodes.append(
                helper.make_node(
                    op, [draw(st.sampled_from(known)), draw(st.sampled_from(known))], [f"v{i}"]
                )
            )
        known.append(f"v{i}")
    outs = draw(st.lists(st.sampled_from(known[3:]), min_size=1, max_size=3, unique=True))
    # of constants alone it may be a scalar
    info = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outs]
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])]
    constants = [
        numpy_helper.from_array(np.array([0, -0.0, 1, np.inf, 3], np.float32), "k0"),
        numpy_helper.from_array(np.array(1.0, np.float32), "k1"),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "g", x, info, constants),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )


@settings(max_examples=150)
@given(graphs())
def test_random_graphs_keep_every_bit(model: ModelProto) -> None:
    result = canonical(model)
    feeds = {"x": np.array([-2.0, -0.0, 0.5, np.nan, 7.0], np.float32)}
    assert same_bits(run(model, feeds), run(result, feeds))
    assert canonical(result).SerializeToString(deterministic=True) == result.SerializeToString(
        deterministic=True
    )


def test_an_if_with_a_constant_condition_becomes_its_branch() -> None:
    m = parse(
        """
        g (float[2, 1] x) => (float[n] y, float[2, 1] z)
        {
          yes = Constant <value = bool {1}> ()
          no = Constant <value = bool {0}> ()
          y, z = If (yes) <
            then_branch = a () => (float[n] s, float[2, 1] t) {
              one = Constant <value = int64[1] {1}> ()
              s = Squeeze (x, one)
              t = If (no) <
                then_branch = b () => (float[2, 1] u) { u = Neg (x) },
                else_branch = c () => (float[2, 1] u) { u = Exp (x) }
              >
            },
            else_branch = d () => (float[2, 1] s, float[2, 1] t) { s = Identity (x)  t = Neg (x) }
          >
        }
        """
    )
    r = unchanged(m, {"x": normal(2, 1)})
    assert "If" not in ops(r) and "Exp" in ops(r)


def test_shapes_computed_from_shapes_keep_their_rank() -> None:
    """ConstantOfShape of [n, n] is a matrix, Unsqueeze of a vector too: neither is a shape."""
    m = parse(
        """
        g (float[3, 4] x) => (int64[3, 4] y, int64[1, 2] z, bool[2] b)
        {
          s = Shape (x)
          y = ConstantOfShape <value = int64[1] {7}> (s)
          zero = Constant <value = int64[1] {0}> ()
          z = Unsqueeze (s, zero)
          b = Cast <to = 9> (s)
        }
        """
    )
    unchanged(m, {"x": normal(3, 4)})


def test_a_split_by_sizes_known_only_at_run_time_has_no_known_shape() -> None:
    m = parse(
        "g (float[2, 8] x, int64[2] n) => (float[?, ?] y) { "
        "a, b = Split <axis = 1> (x, n)  s = Shape (a)  t = Relu (a)  y = Reshape (t, s) }",
        opset=18,
    )
    unchanged(m, {"x": normal(2, 8), "n": np.array([6, 2])})


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(("shared", "target"), [(False, [0, 0, 4]), (True, None)])
def test_reshape_targets_become_constant_where_one_input_names_the_sizes(
    batch: int, shared: bool, target: list[int] | None
) -> None:
    """[n, s, 2, 2] to [n, s, 4].

    Another input's axis of the same name may have another size: nothing checks it.
    """
    m = parse(
        f"""
        g (float[n, s, 2, 2] x, float[{"n" if shared else "other"}, 2] z) => (float[n, s, 4] y,
            float[n, s, 2, 2] e, float[p, 2] w)
        {{
          shape = Shape (x)
          head = Shape <start = 0, end = 1> (x)
          middle = Shape <start = 1, end = 2> (x)
          long = Concat <axis = 0> (head, middle, four)
          y = Reshape (x, long)
          r = Relu (x)
          same = Expand (r, shape)
          e = Neg (same)
          w = Exp (z)
        }}
        """,
        four=np.array([4]),
    )
    r = unchanged(m, {"x": normal(batch, 5, 2, 2), "z": normal(2, 2)})
    assert ("Expand" in ops(r)) == shared
    assert (values(r)["y_target"].tolist() if "y_target" in values(r) else None) == target

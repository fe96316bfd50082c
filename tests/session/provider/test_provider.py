"""The provider in a session, with plans made by hand: what it claims and runs."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.session.provider.provider_plans import (
    ADD,
    F32,
    MUL,
    Entries,
    Install,
    chain_model,
    chain_plan,
    check_chain,
    elementwise,
    key,
    model,
    whole_graph,
)
from tests.support.in_threads import in_threads
from tracea_onnx import provider
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import PlanBuilder


@pytest.mark.parametrize("threads", ["1", "2"])
def test_dynamic_shapes_in_one_session(answer: Install, threads: str) -> None:
    answer(whole_graph(chain_plan()))
    before = provider.stats()
    session = provider.create_session(chain_model(), {"num_threads": threads})
    provider.assert_provider_selected(session)
    for rows in (1, 2, 7, 0, 1, 3000, 7):
        check_chain(session, rows)
    after = provider.stats()
    assert after["claimed_nodes"] - before["claimed_nodes"] == 4
    assert after["runs"] - before["runs"] == 7
    assert after["bound_plans"] - before["bound_plans"] == 5  # as many as distinct shapes


def test_bound_plans_are_bounded_and_rebound(answer: Install) -> None:
    answer(whole_graph(chain_plan()))
    session = provider.create_session(chain_model())
    before = provider.stats()["bound_plans"]
    for _ in range(2):
        for rows in range(20):  # more shapes than are remembered
            check_chain(session, rows)
    assert provider.stats()["bound_plans"] - before == 40
    check_chain(session, 19)
    assert provider.stats()["bound_plans"] - before == 40


def test_compiler_is_asked_once_per_graph(answer: Install) -> None:
    answer(whole_graph(chain_plan()))
    before = provider.stats()["compile_requests"]
    provider.create_session(chain_model())
    assert provider.stats()["compile_requests"] - before == 1


def test_concurrent_runs(answer: Install) -> None:
    answer(whole_graph(chain_plan()))
    session = provider.create_session(chain_model(), {"num_threads": "2"})

    def work(seed: int) -> None:
        for k in range(40):
            check_chain(session, (seed * 7 + k) % 23, seed)

    in_threads(work, range(6))


def test_two_sessions_and_destruction_in_both_orders(answer: Install) -> None:
    answer(whole_graph(chain_plan()))
    for first in (0, 1):
        sessions = [
            provider.create_session(chain_model()),
            provider.create_session(chain_model(), {"isa": "base"}),
        ]
        for k in range(2):
            check_chain(sessions[k], 3)
        del sessions[first]
        gc.collect()
        check_chain(sessions[0], 4)


def test_kernel_pack_without_a_compiler(
    answer: Install, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(whole_graph(chain_plan()))
    provider.create_session(chain_model())
    path = tmp_path / "chain.pack"
    path.write_bytes(answer.packs[-1])  # type: ignore[attr-defined]
    answer(lambda g: pytest.fail("the pack has the plan"))
    before = provider.stats()
    session = provider.create_session(
        chain_model(), {"kernel_pack": str(path), "log_level": "info"}
    )
    check_chain(session, 3)
    assert provider.stats()["claimed_nodes"] - before["claimed_nodes"] == 4
    assert provider.stats()["compile_requests"] == before["compile_requests"]
    assert "4 of 4 nodes claimed" in capfd.readouterr().err


def test_constants_initializers_and_blobs(answer: Install) -> None:
    """y = x * w + c + d: w prepared by an init launch from a large initializer, c read in place, d
    a blob of the plan.
    """
    rng = np.random.default_rng(3)
    w, c, d = (rng.standard_normal((1, 1500)).astype(np.float32) for _ in range(3))
    nodes = [
        h.make_node("Mul", ["x", "w"], ["xw"]),
        h.make_node("Add", ["xw", "c"], ["xwc"]),
        h.make_node("Neg", ["xwc"], ["y"]),
    ]
    columns = 1500

    def entries(graph: Graph) -> Entries:
        stored = graph.const("w")
        # the compiler reads constants in place
        assert stored is not None and np.array_equal(stored, w)
        b = PlanBuilder("constants", "cpu")
        x = b.add_input("x", F32, 2)
        b.define_symbol("n", 0, 0)
        y = b.add_output("y")
        prepared = b.arena(4 * columns)
        ints = {
            "elem": 4,
            "n0": 1,
            "n1": 1,
            "n2": 1,
            "n3": 1,
            "n4": 1,
            "n5": columns,
            "x5": 1,
            "y5": 1,
        }
        b.launch("copy", {"x": b.initializer("w")}, {"y": prepared}, ints)
        full: dict[str, D.DimLike] = {
            "n0": 1,
            "n1": 1,
            "n2": 1,
            "n3": 1,
            "n4": D.symbol("n"),
            "n5": columns,
            "y_dtype": F32,
            "x0_4": columns,
        }
        full |= {f"x{k}_5": 1 for k in range(4)} | {f"x{k}_dtype": F32 for k in range(4)}
        code = [[MUL, 4, 0, 1, 0, 0.0], [ADD, 5, 4, 2, 0, 0.0], [ADD, 6, 5, 3, 0, 0.0]]
        operands = {"x0": x, "x1": prepared, "x2": b.initializer("c"), "x3": b.blob(d)}
        b.launch(
            "pointwise",
            operands,
            {"y": y},
            full,
            program={"type": 0, "n_in": 4, "regs": 7, "out": 6, "code": code},
        )
        b.finish_output("y", F32, [D.symbol("n"), columns])
        plan = b.to_json()
        assert len(plan["init"]) == 1 and len(plan["run"]) == 1
        return [([key(n) for n in graph.nodes], plan, b.blobs)]

    answer(entries)
    session = provider.create_session(
        model(nodes, {"x": ["n", columns]}, {"y": ["n", columns]}, {"w": w, "c": c})
    )
    gc.collect()
    x = rng.standard_normal((3, columns)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], x * w.astype(np.float64) + c + d, rtol=1e-5, atol=1e-6
    )


def test_bodies_of_if(answer: Install) -> None:
    """Both branches capture x; each is a graph of its own and its plan reads the captured value."""

    def branch(op: str, out: str) -> onnx.GraphProto:
        return h.make_graph(
            [h.make_node(op, ["x", "x"], [out])],
            out,
            [],
            [h.make_tensor_value_info(out, T.FLOAT, ["n", 5])],
        )

    inputs = [
        h.make_tensor_value_info("x", T.FLOAT, ["n", 5]),
        h.make_tensor_value_info("c", T.BOOL, []),
    ]
    choose = h.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("Mul", "squared"),
        else_branch=branch("Add", "doubled"),
    )
    graph = h.make_graph([choose], "g", inputs, [h.make_tensor_value_info("y", T.FLOAT, ["n", 5])])
    seen: list[str] = []

    def entries(g: Graph) -> Entries:
        if g.nodes[0].written == "If":
            seen.extend(g.nodes[0].inputs)
            assert not g.nodes[0].attrs
            return []
        b = PlanBuilder(g.nodes[0].op, "cpu")
        x = b.add_input("x", F32, 2)
        b.define_symbol("n", 0, 0)
        name = g.outputs[0]
        op = MUL if g.nodes[0].op == "Mul" else ADD
        elementwise(b, [x], b.add_output(name), [D.symbol("n"), 5], [[op, 1, 0, 0, 0, 0.0]], 2)
        b.finish_output(name, F32, [D.symbol("n"), 5])
        return [([key(n) for n in g.nodes], b.to_json(), [])]

    answer(entries)
    before = provider.stats()["runs"]
    session = provider.create_session(
        h.make_model(
            graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10
        ).SerializeToString()
    )
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x, "c": np.array(True)})[0], x * x, rtol=1e-6
    )
    np.testing.assert_allclose(
        session.run(None, {"x": x, "c": np.array(False)})[0], x + x, rtol=1e-6
    )
    assert provider.stats()["runs"] - before == 2
    assert "x" in seen  # captured values appear as extra inputs


def test_request_holds_what_ort_shows(answer: Install) -> None:
    """Attributes of every type, dims, symbols and metadata arrive at the compiler."""
    seen: list[onnx.ModelProto] = []
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    conv = h.make_node(
        "Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], auto_pad="NOTSET", name="conv"
    )
    nodes = [conv, h.make_node("LeakyRelu", ["c"], ["y"], alpha=0.25)]

    def entries(g: Graph) -> Entries:
        seen.append(g.model)
        by_op = {n.op: n for n in g.nodes}
        assert (
            by_op["Conv"].attrs["pads"] == [1, 1, 1, 1]
            and by_op["Conv"].attrs["auto_pad"] == "NOTSET"
        )
        assert by_op["LeakyRelu"].attrs["alpha"] == 0.25
        assert g.shape("x") == ("n", 3, 8, "wide") and g.shape("y") == ("n", 4, 4, None)
        assert g.opset() == 21
        assert len({key(n) for n in g.nodes}) == 2
        return []

    answer(entries)
    data = model(nodes, {"x": ["n", 3, 8, "wide"]}, {"y": ["n", 4, 4, None]}, {"w": w})
    session = provider.create_session(data, {"num_threads": "1", "isa": "base"})
    metadata = {p.key: p.value for p in seen[0].metadata_props}
    assert len(metadata.pop("digest")) == 64
    assert metadata == {
        "backend": "cpu",
        "cache_dir": "",
        "claim": "auto",
        "specs": "rematch",
        "tf32": "0",
        "bf16": "0",
        "body": "0",
        "isa": "base",
        "int8": "base",
        "bf16_isa": "base",
        "threads": "1",
    }
    x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    reference = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5
    )


def test_node_keys_depend_on_small_constants_only(answer: Install) -> None:
    keys: list[str] = []

    def entries(g: Graph) -> Entries:
        keys.append(key(g.nodes[0]))
        return []

    answer(entries)

    def key_of(w: np.ndarray, out: str = "y") -> str:
        provider.create_session(
            model(
                [h.make_node("Mul", ["x", "w"], [out])],
                {"x": ["n", w.shape[1]]},
                {out: ["n", w.shape[1]]},
                {"w": w},
            )
        )
        return keys[-1]

    small, large = np.ones((1, 1024), np.float32), np.ones((1, 1025), np.float32)
    assert key_of(small) == key_of(small.copy())
    assert key_of(small) != key_of(small * 2)
    assert key_of(large) == key_of(large * 2)
    assert key_of(large) != key_of(large, "z") != key_of(small, "z")


@pytest.mark.parametrize("claimed", [True, False])
def test_model_local_functions_arrive_whole_or_are_inlined(answer: Install, claimed: bool) -> None:
    """A call of an ai.tracea function is one node with its spec; what is not claimed runs as its
    body.
    """
    body = [h.make_node("Mul", ["a", "a"], ["t"]), h.make_node("Add", ["t", "a"], ["z"])]
    function = h.make_function(
        "ai.tracea", "Fused_0", ["a"], ["z"], body, [h.make_opsetid("", 21)], attributes=["spec"]
    )
    call = h.make_node("Fused_0", ["x"], ["y"], domain="ai.tracea", spec='{"op": "pointwise"}')
    values = [h.make_tensor_value_info(n, T.FLOAT, ["n", 5]) for n in ("x", "y")]
    graph = h.make_graph([call], "g", values[:1], values[1:])
    opsets = [h.make_opsetid("", 21), h.make_opsetid("ai.tracea", 1)]
    data = h.make_model(
        graph, opset_imports=opsets, ir_version=10, functions=[function]
    ).SerializeToString()
    specs: list[str] = []

    def entries(g: Graph) -> Entries:
        # the second question, after ORT inlined what was not claimed
        if g.nodes[0].op != "ai.tracea.Fused_0":
            assert not claimed
            return []
        specs.append(g.nodes[0].attrs["spec"])
        b = PlanBuilder("fused", "cpu")
        x = b.add_input("x", F32, 2)
        b.define_symbol("n", 0, 0)
        code = [[MUL, 1, 0, 0, 0, 0.0], [ADD, 2, 1, 0, 0, 0.0]]
        elementwise(b, [x], b.add_output("y"), [D.symbol("n"), 5], code, 3)
        b.finish_output("y", F32, [D.symbol("n"), 5])
        return [([key(g.nodes[0])], b.to_json(), [])] if claimed else []

    answer(entries)
    before = provider.stats()["runs"]
    session = provider.create_session(data)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], x.astype(np.float64) ** 2 + x, rtol=1e-5, atol=1e-6
    )
    assert set(specs) == {'{"op": "pointwise"}'}
    assert provider.stats()["runs"] - before == int(claimed)


def test_external_data_and_scalars(answer: Install, tmp_path: Path) -> None:
    """Constants of an external data file reach the compiler and the plan, and so do rank-0
    tensors.
    """
    w, s = np.random.default_rng(1).standard_normal((1, 2000)).astype(np.float32), np.float32(2.5)
    nodes = [h.make_node("Mul", ["x", "w"], ["t"]), h.make_node("Mul", ["t", "s"], ["y"])]
    data = onnx.ModelProto.FromString(
        model(nodes, {"x": ["n", 2000]}, {"y": ["n", 2000]}, {"w": w, "s": s})
    )
    onnx.save(
        data, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=1024
    )
    assert (tmp_path / "m.bin").stat().st_size >= w.nbytes

    def entries(g: Graph) -> Entries:
        stored = g.const("w")
        assert (
            g.scalar("s") == 2.5
            and g.shape("s") == ()
            and stored is not None
            and np.array_equal(stored, w)
        )
        b = PlanBuilder("external", "cpu")
        x = b.add_input("x", F32, 2)
        b.define_symbol("n", 0, 0)
        ints: dict[str, D.DimLike] = {
            "n0": 1,
            "n1": 1,
            "n2": 1,
            "n3": 1,
            "n4": D.symbol("n"),
            "n5": 2000,
            "x0_4": 2000,
            "x0_5": 1,
            "x1_5": 1,
            "y_dtype": F32,
        }
        ints |= {f"x{k}_dtype": F32 for k in range(3)}
        code = [[MUL, 3, 0, 1, 0, 0.0], [MUL, 4, 3, 2, 0, 0.0]]
        program = {"type": 0, "n_in": 3, "regs": 5, "out": 4, "code": code}
        operands = {"x0": x, "x1": b.initializer("w"), "x2": b.initializer("s")}
        b.launch("pointwise", operands, {"y": b.add_output("y")}, ints, program=program)
        b.finish_output("y", F32, [D.symbol("n"), 2000])
        return [([key(n) for n in g.nodes], b.to_json(), [])]

    answer(entries)
    session = provider.create_session(tmp_path / "m.onnx")
    provider.assert_provider_selected(session)
    x = np.random.default_rng(2).standard_normal((3, 2000)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], x.astype(np.float64) * w * s, rtol=1e-6
    )

"""What the provider refuses, and how it says so: damaged packs, malformed plans, bad options, bad
data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.host.pipeline_models import parse
from tests.session.provider.provider_plans import (
    ADD,
    F32,
    MUL,
    RELU,
    Entries,
    Install,
    chain_model,
    chain_plan,
    chain_reference,
    check_chain,
    elementwise,
    key,
    model,
    whole_graph,
)
from tracea_onnx import provider
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import PlanBuilder


def test_pack_of_another_model_claims_nothing(answer: Install, tmp_path: Path) -> None:
    answer(whole_graph(chain_plan()))
    provider.create_session(chain_model())
    path = tmp_path / "chain.pack"
    path.write_bytes(answer.packs[-1])  # type: ignore[attr-defined]
    answer(lambda g: [])
    before = provider.stats()["claimed_nodes"]
    # other dims, other keys
    session = provider.create_session(chain_model(columns=6), {"kernel_pack": str(path)})
    x = np.ones((2, 6), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], chain_reference(x)[0])
    assert provider.stats()["claimed_nodes"] == before


def test_damaged_pack_is_one_clear_error(answer: Install, tmp_path: Path) -> None:
    answer(whole_graph(chain_plan()))
    provider.create_session(chain_model())
    good = answer.packs[-1]  # type: ignore[attr-defined]
    path = tmp_path / "damaged.pack"
    cases = [good[:n] for n in (0, 7, 8, 40, 63, 64, 65, len(good) // 2, len(good) - 1)] + [
        good + b"x",
        b"not a pack at all" * 10,
    ]
    cases += [
        good[:k] + bytes([good[k] ^ 0x40]) + good[k + 1 :]
        for k in (0, 8, 16, 23, 24, 31, 32, 63, 64, 100, len(good) - 1)
    ]
    for case in cases:
        path.write_bytes(case)
        with pytest.raises(Exception, match=r"TraceaExecutionProvider: .*pack") as e:
            provider.create_session(chain_model(), {"kernel_pack": str(path)})
        assert len(str(e.value).splitlines()) == 1
    with pytest.raises(Exception, match="cannot open the pack file"):
        provider.create_session(chain_model(), {"kernel_pack": str(tmp_path / "missing.pack")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p["run"][0].update(k="no_such_family"),
            "unknown kernel family 'no_such_family'",
        ),
        (lambda p: p["run"][0]["i"].pop(), "wrong number of parameters"),
        (lambda p: p["run"][0]["b"].__setitem__(0, [99, 0]), "buffer 99 does not exist"),
        (lambda p: p["run"][0]["b"].__setitem__(0, None), "lacks operand 0"),
        (lambda p: p["run"][0]["i"].__setitem__(0, 10**6), "expression 1000000 does not exist"),
        (
            lambda p: p["run"][0]["p"]["code"][0].__setitem__(0, 10**4),
            "opcode 10000 does not exist",
        ),
        (lambda p: p["run"][0]["p"]["code"][0].__setitem__(2, -1), "register -1 does not exist"),
        (lambda p: p["exprs"].append(["add", 0]), "wrong number of operands"),
        (lambda p: p["exprs"].append(["power", 0, 0]), "unknown operator 'power'"),
        (lambda p: p["symbols"].append([0, 2]), "axis 2 does not exist"),
        (lambda p: p.update(version=2), "plan version 2"),
        (lambda p: p.pop("checks"), "'checks' is missing"),
        (lambda p: p["buffers"].append({"kind": "heap"}), "unknown kind of buffer 'heap'"),
        (lambda p: p.update(init=p["run"][:1]), "an init launch may only use constants"),
    ],
)
def test_malformed_plan_fails_loading_with_one_line(
    answer: Install, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    plan = chain_plan("broken")
    change(plan)
    answer(whole_graph(plan))
    with pytest.raises(Exception, match=message) as e:
        provider.create_session(chain_model())
    assert "TraceaExecutionProvider: bad plan" in str(e.value)


def test_shapes_the_plan_does_not_allow(answer: Install) -> None:
    answer(whole_graph(chain_plan(columns=4)))
    session = provider.create_session(chain_model(5))
    with pytest.raises(
        Exception, match=r"input 'x' has shape \[2,5\], but its dimension 1 must be 4"
    ):
        session.run(None, {"x": np.ones((2, 5), np.float32)})


def test_plans_of_another_backend_are_passed_over(answer: Install) -> None:
    answer(
        lambda g: [
            ([key(n) for n in g.nodes], {**chain_plan(), "backend": backend}, [])
            for backend in ("cuda", "cpu")
        ]
    )
    before = provider.stats()["partitions"]
    check_chain(provider.create_session(chain_model()), 3)
    assert provider.stats()["partitions"] - before == 1


def test_failing_compiler_leaves_the_model_to_ort(
    answer: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(graph: Graph) -> Entries:
        raise TraceaError("cannot compile this", "try another model")

    answer(fail)
    before = provider.stats()["claimed_nodes"]
    session = provider.create_session(chain_model(), {"log_level": "error"})
    check_chain(session, 3)
    assert provider.stats()["claimed_nodes"] == before
    assert "cannot compile this; try another model" in capfd.readouterr().err


def test_names_of_a_model_reach_no_terminal_as_they_are(
    answer: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(graph: Graph) -> Entries:
        raise TraceaError("node 'a\x1b]0;title\x07b\nerror: forged \u009b31m caf\u00e9'")

    answer(fail)
    provider.create_session(chain_model(), {"log_level": "error"})
    said = capfd.readouterr().err
    assert r"node 'a\x1b]0;title\x07b" in said and r"\x9b31m café'" in said
    assert not any(c in said for c in "\x1b\x07\u009b") and not any(
        line.startswith("error: forged") for line in said.splitlines()
    )


@pytest.mark.parametrize("names", [("\0", "w"), ("w\0a", "w\0b")])
def test_values_that_share_a_name_in_c_are_left_to_ort(names: tuple[str, str]) -> None:
    """ONNX Runtime hands over names up to their first NUL."""
    stored = [nh.from_array(np.full(4, k + 2, np.float32), n) for k, n in enumerate(names)]
    nodes = [h.make_node("Mul", ["x", names[0]], ["t"]), h.make_node("Add", ["t", names[1]], ["y"])]
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [4]) for n in "xy")
    model = h.make_model(
        h.make_graph(nodes, "g", [x], [y], stored),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=10,
    )
    session = provider.create_session(model.SerializeToString(), {"claim": "all"})
    assert session.run(None, {"x": np.ones(4, np.float32)})[0].tolist() == [5.0] * 4


def test_entries_that_do_not_fit_are_not_claimed(
    answer: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    def entries(graph: Graph) -> Entries:
        missing_output = chain_plan()
        missing_output["outputs"][0]["name"] = "nobody"
        cycle = {
            **chain_plan(),
            "inputs": [{"name": "x", "dtype": 1, "rank": 2}],
            "outputs": [{"name": n, "dtype": 1, "dims": [0, 0]} for n in ("t", "u")],
        }
        by_output = {n.outputs[0]: key(n) for n in graph.nodes}
        return [
            ([key(n) for n in graph.nodes], missing_output, []),
            ([by_output["t"], by_output["u"]], cycle, []),
        ]

    answer(entries)
    before = provider.stats()["claimed_nodes"]
    session = provider.create_session(chain_model(), {"log_level": "warning"})
    check_chain(session, 3)
    assert provider.stats()["claimed_nodes"] == before
    err = capfd.readouterr().err
    assert "does not make 'u'" in err and "does not fit" in err


def test_of_plans_that_make_a_cycle_together_the_first_is_claimed(
    answer: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    """{u, y} reads s of {t, s}, which reads u; a third plan is claimed beside the first."""
    nodes = [
        h.make_node("Mul", ["x", "x"], ["u"]), h.make_node("Relu", ["u"], ["t"]),
        h.make_node("Add", ["x", "x"], ["s"]), h.make_node("Mul", ["u", "s"], ["y"]),
        h.make_node("Relu", ["t"], ["z"]),
    ]  # fmt: skip
    code: dict[str, list[Any]] = {
        "u": [MUL, 1, 0, 0, 0, 0.0],
        "t": [RELU, 1, 0, 0, 0, 0.0],
        "s": [ADD, 1, 0, 0, 0, 0.0],
        "y": [MUL, 2, 0, 1, 0, 0.0],
        "z": [RELU, 1, 0, 0, 0, 0.0],
    }

    def entry(
        graph: Graph, reads: str, makes: str
    ) -> tuple[list[str], dict[str, Any], list[bytes]]:
        b = PlanBuilder(makes, "cpu")
        refs = {name: b.add_input(name, F32, 2) for name in reads}
        b.define_symbol("n", 0, 0)
        dims: list[D.DimLike] = [D.symbol("n"), 5]
        members = [next(n for n in graph.nodes if n.outputs[0] == name) for name in makes]
        for n in members:
            refs[n.outputs[0]] = b.add_output(n.outputs[0])
            elementwise(
                b,
                [refs[i] for i in dict.fromkeys(n.inputs)],
                refs[n.outputs[0]],
                dims,
                [code[n.outputs[0]]],
                code[n.outputs[0]][1] + 1,
            )
            b.finish_output(n.outputs[0], F32, dims)
        return [key(n) for n in members], b.to_json(), []

    answer(
        lambda graph: [entry(graph, "xs", "uy"), entry(graph, "ux", "ts"), entry(graph, "t", "z")]
    )
    data = model(nodes, {"x": ["n", 5]}, {"y": ["n", 5], "z": ["n", 5]})
    session = provider.create_session(data, {"log_level": "warning"})
    assert sorted(provider.assigned_nodes(session)) == ["Mul", "Mul", "Relu"]
    assert (
        "a plan of graph 'g' does not fit: fusing its nodes would make a cycle"
        in capfd.readouterr().err
    )
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    y, z = session.run(None, {"x": x})
    np.testing.assert_allclose(y, 2 * x**3, rtol=1e-5)
    np.testing.assert_allclose(z, x * x, rtol=1e-5)


def test_index_out_of_range_fails_the_run_and_only_it(answer: Install) -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    index = h.make_tensor_value_info("i", T.INT64, ["n"])
    graph = h.make_graph(
        [h.make_node("Gather", ["w", "i"], ["y"])],
        "g",
        [index],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", 2])],
        [nh.from_array(table, "w")],
    )
    data = h.make_model(
        graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()

    def entries(g: Graph) -> Entries:
        b = PlanBuilder("gather", "cpu")
        idx = b.add_input("i", 7, 1)
        b.define_symbol("n", 0, 0)
        y = b.add_output("y")
        ints: dict[str, D.DimLike] = {
            "elem": 4,
            "outer": 1,
            "n": 6,
            "inner": 2,
            "count": D.symbol("n"),
            "idx_dtype": 7,
        }
        b.launch("gather", {"x": b.initializer("w"), "idx": idx}, {"y": y}, ints)
        b.finish_output("y", F32, [D.symbol("n"), 2])
        return [([key(n) for n in g.nodes], b.to_json(), [])]

    answer(entries)
    session = provider.create_session(data)
    for bad in (6, -7, 2**40):
        with pytest.raises(Exception, match="'gather' met an index out of range"):
            session.run(None, {"i": np.array([0, bad], np.int64)})
        np.testing.assert_array_equal(
            session.run(None, {"i": np.array([-1, 2], np.int64)})[0], table[[-1, 2]]
        )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"isa": "sse9"}, "isa='sse9' is not available"),
        ({"num_threads": "many"}, "num_threads='many'"),
        ({"tf32": "yes"}, "tf32='yes' is not one of: 0, 1"),
        ({"bf16": "2"}, "bf16='2' is not one of: 0, 1"),
        ({"log_level": "loud"}, "log_level='loud'"),
    ],
)
def test_bad_option_is_one_clear_error(
    answer: Install, option: dict[str, str], message: str
) -> None:
    answer(lambda g: [])
    with pytest.raises(Exception, match=message):
        provider.create_session(chain_model(), option)


def test_assert_provider_selected() -> None:
    provider.register()
    provider.register()  # idempotent
    session = ort.InferenceSession(chain_model(), providers=["CPUExecutionProvider"])
    with pytest.raises(UsageError, match=r"does not use TraceaExecutionProvider.*register\(\)"):
        provider.assert_provider_selected(session)


def test_assert_provider_selected_wants_a_node(answer: Install) -> None:
    answer(lambda g: [])
    with pytest.raises(UsageError, match="runs no node"):
        provider.assert_provider_selected(provider.create_session(chain_model()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p["outputs"][1].update(dtype=int(T.FLOAT16)),
            r"its output 'y' has the element type 10, the graph's 1",
        ),
        (lambda p: p["outputs"][0]["dims"].pop(), r"its output 'u' has 1 dims, the graph's 2"),
        (
            lambda p: p["inputs"][0].update(dtype=int(T.INT32)),
            r"its input 'x' has the element type 6, the graph's 1",
        ),
        (lambda p: p["inputs"][0].update(rank=3), r"its input 'x' has 3 dims, the graph's 2"),
    ],
)
def test_a_plan_of_other_types_or_ranks_is_left_to_onnx_runtime(
    answer: Install,
    change: Callable[[dict[str, Any]], Any],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plan = chain_plan("other")
    change(plan)
    answer(whole_graph(plan))
    session = provider.create_session(chain_model(), {"log_level": "warning"})
    check_chain(session, 3)
    assert not provider.assigned_nodes(session)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "does not fit" in line]
    assert message in line


def test_a_pack_is_the_one_whose_sum_was_given(answer: Install, tmp_path: Path) -> None:
    answer(whole_graph(chain_plan()))
    provider.create_session(chain_model())
    path = tmp_path / "chain.pack"
    path.write_bytes(answer.packs[-1])  # type: ignore[attr-defined]
    answer(lambda g: [])
    right, wrong = (
        hashlib.sha256(path.read_bytes()).hexdigest(),
        hashlib.sha256(b"another").hexdigest(),
    )
    for given in (right, right.upper()):
        session = provider.create_session(
            chain_model(), {"kernel_pack": str(path), "kernel_pack_sha256": given}
        )
        provider.assert_provider_selected(session)
        check_chain(session, 3)
    for options, message in (
        (
            {"kernel_pack": str(path), "kernel_pack_sha256": wrong},
            f"has the SHA-256 {right}, the provider option kernel_pack_sha256 asks for {wrong}",
        ),
        (
            {"kernel_pack": str(path), "kernel_pack_sha256": right[1:]},
            "is not 64 hexadecimal digits",
        ),
        (
            {"kernel_pack_sha256": right},
            "kernel_pack_sha256 is of a kernel_pack, which is not given",
        ),
    ):
        with pytest.raises(Exception, match=message) as e:
            provider.create_session(chain_model(), options)
        assert len(str(e.value).splitlines()) == 1


def test_an_index_out_of_range_among_constants_fails_the_runs(tmp_path: Path) -> None:
    """As in ONNX Runtime, which creates the session, too."""
    m = parse(
        "g (float[2] x) => (float[2] y) { c = Gather (w, i) y = Mul (x, c) }",
        w=np.ones(6, np.float32),
        i=np.array([0, 9]),
    )
    try:
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:
        pytest.skip(
            "this ONNX Runtime folds the node when it creates the session, and fails there itself"
        )
    for session in (
        stock(m),
        provider.create_session(
            m.SerializeToString(), {"claim": "all", "cache_dir": str(tmp_path)}
        ),
    ):
        for _ in range(2):
            with pytest.raises(Exception, match=r"out of (range|data bounds)"):
                session.run(None, {"x": np.ones(2, np.float32)})
    assert {"Gather", "Mul"} <= set(provider.assigned_nodes(session))


def stock(m: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])

"""A Plan whose integers do not fit its buffers is refused in one line before a kernel runs, whoever
made it.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tracea_onnx
from tests.host.pipeline_models import parse
from tests.session.operators.test_log_mel import whisper
from tests.session.provider.provider_plans import Entries, Install
from tests.session.test_models import feeds, small
from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.kernel_families import FAMILIES


def plans(g: Graph, *, everything: bool = False) -> Entries:
    compiled = partition_compiler.compile_graph(g, everything=everything)
    return [
        ([n.proto.doc_string for n in nodes], plan, blobs)
        for nodes, plan, blobs in compiled.entries
    ]


def constant(plan: dict[str, Any], value: int) -> int:
    plan["exprs"].append(["const", value])
    return len(plan["exprs"]) - 1


def changed(entries: Entries, part: str, pick: random.Random, family: str = "") -> Entries:
    """The Plans with one integer of one launch (of this family) set to another."""
    out = copy.deepcopy(entries)
    for _, plan, _ in out:
        if launches := [r for r in plan[part] if family in ("", r["k"])]:
            launch = pick.choice(launches)
            launch["i"][pick.randrange(len(launch["i"]))] = constant(
                plan, pick.choice([-1, 0, 3, 10**6, 2**40, 2**62])
            )
    return out


def outcome(model: bytes, feed: dict[str, Any]) -> str:
    """What a session says of the model; "" when it runs."""
    try:
        session = provider.create_session(model, {"backend": "cpu", "num_threads": "1"})
        provider.assert_provider_selected(session)
        session.run(None, feed)
    except Exception as e:
        assert "TraceaExecutionProvider" in str(e), e
        return str(e)
    return ""


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(tracea_onnx.optimize(small("demo"), backend="cpu").model.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["run", "init"])
def test_changed_integers_are_refused_or_harmless(part: str, answer: Install, model: bytes) -> None:
    feed = feeds(onnx.load_from_string(model), 2, 1, 0)
    answer(plans)
    assert outcome(model, feed) == ""
    pick = random.Random(7)
    answer(lambda g: changed(plans(g), part, pick))
    lines = [outcome(model, feed) for _ in range(40)]
    assert sum(map(bool, lines)) > 10
    assert all("\n" not in line for line in lines)


@pytest.mark.slow
def test_changed_integers_of_a_transform(answer: Install) -> None:
    """Radices, sizes and strides that do not belong together."""
    model = whisper().SerializeToString()
    feed = {"audio": np.zeros((2, 2000), np.float32)}
    answer(plans)
    assert outcome(model, feed) == ""
    pick = random.Random(3)
    answer(lambda g: changed(plans(g), "run", pick, "fft"))
    lines = [outcome(model, feed) for _ in range(60)]
    assert sum(map(bool, lines)) > 30
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("width", [0, 3, 5, 16])
def test_an_element_has_1_2_4_or_8_bytes(width: int, answer: Install) -> None:
    """Kernels take every other width for 8 bytes."""
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2])],
        "g",
        [helper.make_tensor_value_info("x", 1, [5, 3, 7])],
        [helper.make_tensor_value_info("y", 1, [3, 5, 7])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def other(g: Graph) -> Entries:
        entries = plans(g, everything=True)
        for _, plan, _ in entries:
            (launch,) = (r for r in plan["run"] if r["k"] == "copy")
            launch["i"][0] = constant(plan, width)
        return entries

    data, feed = made.SerializeToString(), {"x": np.zeros((5, 3, 7), np.float32)}
    answer(lambda g: plans(g, everything=True))
    assert outcome(data, feed) == ""
    answer(other)
    assert "'copy' takes no elem of this size" in outcome(data, feed)


def test_a_launch_that_would_write_for_ever_is_refused(answer: Install) -> None:
    """Every element of the result again and again: within the buffers, for hours."""
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
        "g",
        [helper.make_tensor_value_info("x", 1, [5, 3])],
        [helper.make_tensor_value_info("y", 1, [3, 5])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def endless(g: Graph) -> Entries:
        entries = plans(g, everything=True)
        for _, plan, _ in entries:
            (launch,) = (r for r in plan["run"] if r["k"] == "copy")
            launch["i"][1] = constant(plan, 1 << 40)  # of strides 0
        return entries

    answer(endless)
    line = outcome(made.SerializeToString(), {"x": np.zeros((5, 3), np.float32)})
    assert "'copy' would touch bytes 0 to" in line


_DET = "g (float[64, 3, 3] x) => (y) { y = Det (x) }"
_DECONV = "g (float[1, 4, 5, 5] x) => (y) { y = ConvTranspose <strides = [2, 2]> (x, w) }"
_GATHER = "g (float[4, 5] x, int64[2, 2] i) => (y) { y = GatherND (x, i) }"
_RESIZE = 'g (float[1, 1, 4, 4] x) => (y) { y = Resize <mode = "linear"> (x, , s) }'
_ROI = "g (float[1, 1, 4, 4] x, float[1, 4] r) => (y) { y = RoiAlign (x, r, b) }"
_PRODUCT = "g (float[2, 3] x, float[3, 4] v) => (y) { y = MatMul (x, v) }"
_MEAN = "g (float[1, 3, 6, 6] x) => (y) { a = Conv (x, w) y = GlobalAveragePool (a) }"
_MAX = "g (float[1, 3, 9, 9] x) => (y) { y = MaxPool <kernel_shape = [2, 2]> (x) }"
_PADDED = "g (float[1, 3, 9, 9] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
_ALONG = "g (float[4, 5, 2] x, int64[2, 3, 2] i) => (y) { y = GatherElements <axis = 0> (x, i) }"


@pytest.mark.parametrize(
    ("text", "family", "changed"),
    [
        (_DET, "determinant", {"n": 1 << 60}),  # 64 matrices have 2^128 bytes
        (_DECONV, "deconv2d", {"DH": 1 << 57}),
        (_DECONV, "deconv2d", {"DW": 1 << 60}),
        (_DECONV, "deconv2d", {"PL": 1 << 60}),
        (_GATHER, "gather_tuples", {"m0": -(1 << 58)}),
        (_RESIZE, "resize2d", {"IH": 0}),  # the row before the first would be read
        (_ROI, "roi_align", {"ratio": 1 << 16}),  # 2^32 samples for each element
        (_PRODUCT, "matmul", {"K": 1 << 40, "a_k": 0, "b_k": 0}),
        (_MEAN, "global_pool", {"H": 1 << 40, "W": 0}),
        (_MEAN, "global_pool", {"H": 1 << 40, "x_rs": 0}),
        (_MEAN, "global_pool", {"H": 50, "W": 50, "x_rs": 1, "x_cs": 1}),  # of 64 elements
        (_MAX, "pool2d", {"SW": 1 << 60}),  # eight of which overflow 64 bits
        (_ALONG, "gather_along", {"idx_dtype": 3}),  # read as if it had 8 bytes
    ],
)
def test_sizes_that_lead_out_of_buffers_or_to_no_end_are_refused(
    text: str, family: str, changed: dict[str, int], answer: Install
) -> None:
    given: dict[str, Any] = {"w": np.ones((4, 3, 3, 3), np.float32), "b": np.zeros(1, np.int64)}
    given["s"] = np.array([1, 1, 2, 2], np.float32)
    model = parse(text, **{k: v for k, v in given.items() if f" {k})" in text})
    numbers = {FAMILIES[family].ints.index(name): value for name, value in changed.items()}

    def other(g: Graph) -> Entries:
        entries = plans(g, everything=True)
        for _, plan, _ in entries:
            for launch in (r for r in plan["run"] if r["k"] == family):
                for number, value in numbers.items():
                    launch["i"][number] = constant(plan, value)
        return entries

    feed = {
        i.name: np.zeros(
            [d.dim_value for d in i.type.tensor_type.shape.dim],
            np.int64 if i.name == "i" else np.float32,
        )
        for i in model.graph.input
    }
    answer(lambda g: plans(g, everything=True))
    assert outcome(model.SerializeToString(), feed) == ""
    answer(other)
    line = outcome(model.SerializeToString(), feed)
    assert f"'{family}'" in line or "out of memory" in line


def test_what_repeats_is_named_with_both_numbers(answer: Install) -> None:
    """A sum of one element: ever so often in a Plan that was changed, within its buffers."""
    model = parse(_PRODUCT).SerializeToString()
    feed = {"x": np.ones((2, 3), np.float32), "v": np.ones((3, 4), np.float32)}

    def sums(terms: int) -> str:
        def other(g: Graph) -> Entries:
            entries = plans(g, everything=True)
            for _, plan, _ in entries:
                (launch,) = (r for r in plan["run"] if r["k"] == "matmul")
                for name, value in (("K", terms), ("a_k", 0), ("b_k", 0)):
                    number = FAMILIES["matmul"].ints.index(name)
                    launch["i"][number] = constant(plan, value)
            return entries

        answer(other)
        return outcome(model, feed)

    assert sums(1 << 16) == ""
    line = f"'matmul' would go over the same elements {(1 << 16) + 1} times, more than {1 << 16}:"
    assert line in sums((1 << 16) + 1)


@pytest.mark.parametrize(
    ("text", "family", "changed"),
    [
        (_DECONV, "pack_deconv2d", {"OC": 1 << 58, "IC": 0}),  # filters of no channels
        (_PADDED, "zero_border", {"N": 1 << 58, "y_cs": 0}),
    ],
)
def test_a_launch_without_results_does_not_run(
    text: str, family: str, changed: dict[str, int], answer: Install
) -> None:
    """However many trips its loops have."""
    model = parse(text, w=np.ones((4, 3, 3, 3), np.float32))
    feed = {"x": np.ones((1, 4, 5, 5) if "1, 4" in text else (1, 3, 9, 9), np.float32)}
    found = []

    def other(g: Graph) -> Entries:
        entries = plans(g, everything=True)
        for _, plan, _ in entries:
            for launch in (r for r in (*plan["init"], *plan["run"]) if r["k"] == family):
                found.append(launch)
                for name, value in changed.items():
                    launch["i"][FAMILIES[family].ints.index(name)] = constant(plan, value)
        return entries

    answer(other)
    assert outcome(model.SerializeToString(), feed) == ""
    assert found


def test_a_buffer_that_is_too_small_is_named(answer: Install, model: bytes) -> None:
    found: list[Entries] = []

    def smaller(g: Graph) -> Entries:
        entries = plans(g)
        for _, plan, _ in entries:
            for b in plan["buffers"]:
                if b["kind"] == "arena":
                    b["bytes"] = constant(plan, 64)
        found.append(entries)
        return entries

    answer(smaller)
    session = provider.create_session(model, {"backend": "cpu"})
    assert found[-1]
    with pytest.raises(
        Exception,
        match=r"would touch bytes -?\d+ to \d+ of operand \d+, which has \d+|starts outside its "
        r"buffer",
    ):
        session.run(None, feeds(onnx.load_from_string(model), 2, 1, 0))

"""Results whose size only contents say, on the CPU: NonZero, Compress, Unique, NonMaxSuppression,
and what reads them, against ONNX Runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.session.provider.provider_plans import Entries, Install
from tests.session.test_extents import constant, outcome, plans
from tests.support.sessions import assigned, session
from tracea_onnx.ir.graph import Graph

Arrays = dict[str, Any]
RNG = np.random.default_rng(11)


def _model(
    nodes: list[onnx.NodeProto], feeds: Arrays, results: list[str], kept: Arrays | None = None
) -> onnx.ModelProto:
    """Operands have unknown sizes."""
    given = [
        helper.make_tensor_value_info(
            k, helper.np_dtype_to_tensor_dtype(v.dtype), [f"{k}{a}" for a in range(v.ndim)]
        )
        for k, v in feeds.items()
    ]
    stored = [numpy_helper.from_array(v, k) for k, v in (kept or {}).items()]
    made = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _compare(model: onnx.ModelProto, many: list[Arrays]) -> list[list[Any]]:
    """Runs on both, one session each; every node is on the provider, and all is equal."""
    ours, stock = session(model, provider=True, everything=True), session(model)
    assert assigned(ours) == (len(model.graph.node),) * 2
    out = []
    for feeds in many:
        got, want = ours.run(None, feeds), stock.run(None, feeds)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype and g.shape == w.shape
            np.testing.assert_array_equal(g, w)
        out.append(got)
    return out


def _sparse(shape: tuple[int, ...], dtype: Any, share: float) -> Any:
    x = RNG.integers(1, 100, shape) * (RNG.random(shape) < share)
    return (-x if dtype != np.uint8 and dtype != np.bool_ else x).astype(dtype)


_SHAPES: dict[int, list[tuple[int, ...]]] = {
    1: [(0,), (1,), (7,), (64,), (1031,)],
    2: [(0, 5), (3, 0), (1, 1), (5, 17), (31, 64)],
    4: [(2, 3, 0, 5), (2, 3, 5, 7), (1, 1, 1, 9)],
    6: [(2, 1, 3, 2, 1, 5)],
}


@pytest.mark.parametrize(
    ("rank", "dtype"), [(1, np.bool_), (2, np.float32), (4, np.int64), (6, np.int32), (2, np.uint8)]
)
def test_places_of_what_is_not_zero(rank: int, dtype: Any) -> None:
    feeds = [
        {"x": _sparse(s, dtype, share)} for s in _SHAPES[rank] for share in (0.0, 0.1, 0.6, 1.0)
    ]
    if dtype == np.float32:
        feeds.append({"x": np.array([[-0.0, np.nan, 1e-45, 0.0]], np.float32)})
    _compare(_model([helper.make_node("NonZero", ["x"], ["y"])], feeds[0], ["y"]), feeds)


@pytest.mark.parametrize(
    ("axis", "dtype"), [(None, np.float32), (0, np.int64), (-1, np.uint8), (1, np.float16)]
)
def test_slices_that_are_chosen(axis: int | None, dtype: Any) -> None:
    attrs: Arrays = {} if axis is None else {"axis": axis}
    feeds = []
    for shape in ((5, 7, 3), (1, 1, 1), (2, 13, 4), (0, 3, 2)):
        n = int(np.prod(shape)) if axis is None else shape[axis]
        x = _sparse(shape, dtype, 0.9)
        feeds += [
            {"x": x, "c": RNG.random(length) < share}
            for length, share in ((n, 0.5), (n, 0.0), (n, 1.0), (max(n - 1, 0), 1.0), (0, 1.0))
        ]
    _compare(
        _model([helper.make_node("Compress", ["x", "c"], ["y"], **attrs)], feeds[0], ["y"]), feeds
    )


@pytest.mark.parametrize(
    ("axis", "in_order", "dtype", "outputs"),
    [
        (None, 1, np.float32, ["y", "first", "which", "times"]),
        (None, 0, np.int64, ["y", "first", "which", "times"]),
        (0, 1, np.int64, ["y", "", "which", ""]),
        (1, 0, np.float32, ["y", "first", "", "times"]),
        (-1, 1, np.float32, ["y"]),
    ],
)
def test_what_differs(axis: int | None, in_order: int, dtype: Any, outputs: list[str]) -> None:
    attrs: Arrays = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
    feeds = [
        {"x": RNG.integers(-most, most + 1, shape).astype(dtype)}
        for shape in ((2, 9), (1, 1), (5, 31), (3, 1))
        for most in (0, 1, 40)
    ]
    node = helper.make_node("Unique", ["x"], outputs, **attrs)
    _compare(_model([node], feeds[0], [o for o in outputs if o]), feeds)


def _boxes(batch: int, n: int, center: int) -> Any:
    """Some of them the same, some without an area."""
    first, size = RNG.random((2, batch, n, 2)) * (1.0, 0.4)[:: -1 if center else 1][0]
    size = np.where(RNG.random((batch, n, 1)) < 0.1, 0.0, size)
    parts = (first, size) if center else (first, first + size * RNG.choice((-1, 1), (batch, n, 1)))
    boxes = np.concatenate(parts, axis=-1).astype(np.float32)
    boxes[:, n // 2 :: 3] = boxes[:, : len(range(n // 2, n, 3))]
    return boxes


@pytest.mark.parametrize(
    ("center", "most", "overlap", "score"),
    [
        (0, 5, 0.5, 0.3),
        (1, 100, 0.3, None),
        (0, 2**40, 0.0, 0.0),
        (1, None, None, None),
        (0, 3, 1.0, 2.0),
    ],
)
def test_boxes_that_stay(
    center: int, most: int | None, overlap: float | None, score: float | None
) -> None:
    kept = {
        "m": np.array([most], np.int64) if most is not None else None,
        "o": np.array([overlap], np.float32) if overlap is not None else None,
        "s": np.array(score, np.float32) if score is not None else None,
    }
    feeds = [
        {
            "b": _boxes(batch, n, center),
            # few values, so that many are equal
            "p": (RNG.integers(0, 40, (batch, classes, n)) / 40).astype(np.float32),
        }
        for batch, classes, n in ((1, 1, 1), (2, 3, 37), (1, 5, 200), (3, 1, 16), (2, 2, 0))
    ]
    names = ["b", "p", *(k if v is not None else "" for k, v in kept.items())]
    node = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=center)
    stored = {k: v for k, v in kept.items() if v is not None}
    found = _compare(_model([node], feeds[0], ["y"], stored), feeds)
    assert (sum(len(y) for (y,) in found) > 40) == (score != 2.0 and most is not None)


def _chain() -> onnx.ModelProto:
    """The elements above a limit, twice as large, and how many there are."""
    nodes = [
        helper.make_node("Greater", ["x", "limit"], ["above"]),
        helper.make_node("NonZero", ["above"], ["at"]),
        helper.make_node("Transpose", ["at"], ["places"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "places"], ["some"]),
        helper.make_node("Add", ["some", "some"], ["twice"]),
        helper.make_node("Shape", ["some"], ["count"]),
        helper.make_node("Unique", ["twice"], ["y", "", "", "times"]),
        helper.make_node("Expand", ["one", "count"], ["ones"]),
    ]
    kept = {"limit": np.float32(0.5), "one": np.ones(1, np.float32)}
    results = ["y", "times", "count", "ones", "places"]
    return _model(nodes, {"x": np.zeros((2, 3), np.float32)}, results, kept)


def test_what_reads_a_counted_result_has_its_size() -> None:
    many = [
        {"x": RNG.integers(0, 4, shape).astype(np.float32) / np.float32(scale)}
        for shape in ((4, 5), (7, 3), (4, 5))
        for scale in (2, 1, 100)  # some, most, none are above
    ]
    _compare(_chain(), many)


def test_counts_on_several_threads() -> None:
    model = _chain()
    ours = session(model, provider=True, everything=True, threads=2)
    for scale in (1, 3):
        feeds = {"x": RNG.integers(0, 4, (50, 41)).astype(np.float32) / np.float32(scale)}
        for got, want in zip(ours.run(None, feeds), session(model).run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, want)


def _other_axis(plan: dict[str, Any]) -> None:
    plan["outputs"][0]["counted"][0] = 2


def _count_from_result(plan: dict[str, Any]) -> None:
    """The first result is taken for the count."""
    counted = plan["outputs"][0]["counted"]
    counted[2] = counted[1]


def _larger(plan: dict[str, Any]) -> None:
    plan["outputs"][0]["dims"][0] = constant(plan, 1000)


def _written_directly(plan: dict[str, Any]) -> None:
    (launch,) = plan["run"]
    launch["b"][2][0] = next(k for k, b in enumerate(plan["buffers"]) if b["kind"] == "output")


def _from_input(plan: dict[str, Any]) -> None:
    plan["outputs"][0]["counted"][1] = 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_other_axis, "bad plan"),
        (_count_from_result, "was counted to have 1000 of 2"),
        (_larger, "nothing writes all of the counted output"),
        (_written_directly, "counted output"),
        (_from_input, "not in the arena"),
    ],
)
def test_a_changed_count_is_refused(
    change: Callable[[dict[str, Any]], None], line: str, answer: Install
) -> None:
    nodes = [helper.make_node("Compress", ["x", "c"], ["y"])]
    feed = {"x": np.array([1000, -7]), "c": np.array([True, True])}
    data = _model(nodes, feed, ["y"]).SerializeToString()

    def other(g: Graph) -> Entries:
        entries = copy.deepcopy(plans(g, everything=True))
        for _, plan, _ in entries:
            change(plan)
        return entries

    answer(lambda g: plans(g, everything=True))
    assert outcome(data, feed) == ""
    answer(other)
    said = outcome(data, feed)
    assert line in said and "\n" not in said

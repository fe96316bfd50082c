"""What `tune report` says of a model: every launch below ceilings, and what each fusion saves."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.bench import advantage, rates
from tracea_onnx.cli import main
from tracea_onnx.codegen import work
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.verify import verification

pytestmark = pytest.mark.once

_CONV = {
    "N": 2, "IC": 16, "IH": 8, "IW": 8, "OC": 32, "OH": 8, "OW": 8, "KH": 3, "KW": 3, "SH": 1,
    "SW": 1, "DH": 1, "DW": 1, "PT": 1, "PL": 1, "G": 1, "x_cs": 16, "x_rs": 160, "x_ns": 1600,
    "y_cs": 32, "y_rs": 256, "y_ns": 2048,
}  # fmt: skip


def _request(
    family: str, ints: dict[str, int], operands: str, program: dict[str, Any] | None = None
) -> Request:
    return Request(family, DType.F32, dict(ints), {}, program, frozenset(operands.split()), None)  # type: ignore[arg-type]


def test_work_of_launches() -> None:
    product = _request(
        "gemm", {"M": 5, "N": 8, "K": 7, "ldx": 7, "ldy": 8}, "x w y",
        {"code": [["relu", 1, 0, 0, 0, 0.0]] * 3, "n_in": 1, "regs": 2, "out": 1},
    )  # fmt: skip
    assert work.operations(product) == 2 * 5 * 8 * 7 + 3 * 5 * 8
    # packed weights have whole panels
    assert work.moved(product, border=False) == 4 * (5 * 7 + 8 * 7 + 5 * 8)
    direct = _request("conv2d", _CONV, "x w bias y")
    macs = 2 * 32 * 8 * 8 * 16 * 9
    assert work.operations(direct) == 2 * macs
    image, results = 2 * 10 * 10 * 16, 2 * 8 * 8 * 32
    assert work.moved(direct, border=True) == 4 * (image + 32 * 16 * 9 + 32 + results)
    winograd = _request("conv2d_wino", _CONV, "x w bias y")
    assert work.operations(winograd) == pytest.approx(2 * macs * 16 / 36)
    # one channel in two of a wider image: what lies between is not moved
    halves = _request("conv2d", {**_CONV, "y_cs": 64, "y_rs": 512, "y_ns": 4096}, "x w bias y")
    assert work.moved(halves, border=True) == work.moved(direct, border=True)
    # rows of a table, as many as are chosen
    rows = {"elem": 4, "outer": 1, "n": 1000, "inner": 8, "count": 3, "idx_dtype": 7}
    assert work.moved(_request("gather", rows, "x idx y"), border=True) == 3 * 8 + 2 * 3 * 8 * 4
    around = {"N": 1, "H": 6, "W": 4, "PT": 1, "PL": 1, "PB": 1, "PR": 1}
    border = _request("zero_border", {**around, "y_cs": 16, "y_rs": 96, "y_ns": 768}, "y")
    assert work.moved(border, border=True) == 4 * 16 * (8 * 6 - 6 * 4)
    assert work.operations(border) == 0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    # ceilings take seconds
    monkeypatch.setattr(rates, "gemm", lambda *_: 100.0)
    monkeypatch.setattr(rates, "memory", lambda _: {"level 2": 80.0, "memory": 20.0})
    rng = np.random.default_rng(0)
    shapes = {"w": (24, 8, 3, 3), "v": (24, 40)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, 20, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 40])],
        [
            numpy_helper.from_array((0.1 * rng.standard_normal(s)).astype(np.float32), n)
            for n, s in shapes.items()
        ],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def _report(file: Path, model: Path) -> int:
    shape = ["--input-shape", "x:2,8,20,20", "--backend", "cpu", "--threads", "1"]
    return main.main(["tune", "report", str(file), str(model), "--budget", "0.2s", *shape])


def test_every_launch_and_every_fusion(model: Path, tmp_path: Path) -> None:
    assert _report(tmp_path / "report.json", model) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    roofline = found["roofline"]
    points = {p["family"]: p for p in roofline["points"]}
    assert {"conv2d", "gemm", "global_pool"} <= points.keys()
    macs = 2 * 24 * 20 * 20 * 8 * 9
    assert points["conv2d"]["operations"] == 2 * macs
    for p in roofline["points"]:
        rate = {c["name"]: c["rate"] for c in (roofline["arithmetic"], *roofline["memory"])}
        work_of = p["operations"] if p["bound"] == "products" else p["moved"]
        assert p["share"] == pytest.approx(work_of / rate[p["bound"]] / 1e3 / p["us"])
    gains = {g["fusion"]: g for g in found["fusions"]}
    (conv,) = (g for name, g in gains.items() if name.startswith("conv: Conv + Relu"))
    assert conv["count"] == conv["launches"] == 1 and conv["leaving"] == 0
    assert conv["moved"] == 2 * 4 * 2 * 24 * 20 * 20  # what Relu reads and writes
    assert gains[advantage.ALL]["launches"] == 2
    for g in gains.values():
        assert g["ratio"][1] <= g["ratio"][0] <= g["ratio"][2] and g["us"] > 0


def test_tables(model: Path, tmp_path: Path) -> None:
    assert _report(tmp_path / "report.csv", model) == 0
    with (tmp_path / "report.csv").open() as launches:
        assert {"conv2d", "gemm"} <= {row["family"] for row in csv.DictReader(launches)}
    with (tmp_path / "report-fusions.csv").open() as fusions:
        assert {int(row["launches"]) for row in csv.DictReader(fusions)} == {1, 2}


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_page_needs_no_other_file(model: Path, tmp_path: Path) -> None:
    assert _report(tmp_path / "report.html", model) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("<figure><svg") == 2 and 'src="' not in page and "<link" not in page
    assert '<g id="launch1"><title>1: ' in page


def test_a_wrong_result_is_no_figure(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verification.compared

    def compared(reference: Any, got: Any) -> Any:
        return real(reference, [got[0] + 1])

    monkeypatch.setattr(verification, "compared", compared)
    with pytest.raises(TraceaError, match="the provider's result 'y' is wrong by"):
        advantage.measured(model, "cpu", {"x": (1, 8, 20, 20)}, 1, 0.1, lambda _: None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "a.json", "m.onnx", "--budget", "7"], "a report measures no candidates"),
        (["report", "a.txt"], "would be of no known form"),
        (["report", "a.csv", "m.onnx", "n.onnx"], "3 files were given"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tune", *arguments]) == 2
    assert said in capsys.readouterr().err

"""Rewrites at fault are found, turned back alone, and named; everything else stays fused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto

from tests.host.pipeline_models import RULES, copy, normal, parse, run, same_bits
from tracea_onnx.cli.main import main
from tracea_onnx.errors import MissingFusionError
from tracea_onnx.ir.contracts import DOMAIN, Match
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import fusion_loop, optimizer
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.verify import delta_debugging, verification


@pytest.mark.parametrize("guilty", [{3}, {0}, {16}, {2, 11}, {0, 16}, {4, 5, 6}])
def test_the_smallest_failing_part_is_found(guilty: set[int]) -> None:
    """All of the guilty together fail, no part of them does."""
    asked = 0

    def fails(kept: list[int]) -> bool:
        nonlocal asked
        asked += 1
        return guilty <= set(kept)

    assert set(delta_debugging.smallest(list(range(17)), fails)) == guilty
    assert asked < 17 * 6


def test_independent_faults_are_all_found_and_a_sum_of_small_ones_loses_as_few_as_needed() -> None:
    assert sorted(
        delta_debugging.at_fault(
            list(range(20)), lambda kept: 3 in kept or 17 in kept or {5, 6} <= set(kept)
        )
    ) in ([3, 5, 17], [3, 5, 6, 17], [3, 6, 17])
    drift = delta_debugging.at_fault(list(range(20)), lambda kept: sum(0.1 for _ in kept) > 1.55)
    assert 5 <= len(drift) <= 16
    assert (
        delta_debugging.at_fault([1, 2], lambda _: True) == []
        and delta_debugging.at_fault([1, 2], lambda _: False) == []
    )


def test_the_search_ends_when_its_budget_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_debugging, "BUDGET", 3)
    found = delta_debugging.at_fault(list(range(64)), lambda kept: 40 in kept)
    assert 40 in found and len(found) < 64


def layers(count: int = 6) -> ModelProto:
    """`count` times Conv, Relu, then Add, Relu: 2 * count fusions."""
    text = "g (float[1, 3, 6, 6] v0) => (float[1, 3, 6, 6] y) {"
    for k in range(count):
        text += (
            f" [conv{k}] a{k} = Conv <pads = [1, 1, 1, 1]> (v{k}, w{k})  r{k} = Relu (a{k})  "
            f"[add{k}] s{k} = Add (r{k}, v{k})  v{k + 1} = Relu (s{k}) "
        )
    weights = {f"w{k}": normal(3, 3, 3, 3, seed=k) / 5 for k in range(count)}
    model = parse(text + f" y = Neg (v{count}) }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in weights.items())
    return model


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a rule wrong on one anchor: the body of that fusion computes another activation than
    the nodes it replaces.
    """

    def install(anchor: str, instead: str) -> None:
        honest = fused_calls._bare

        honest_call = fused_calls._call

        def call(model: ModelProto, graph: Graph, match: Match, op: str, taken: set[str]) -> object:
            lie = match.anchor.name in anchor.split()

            def bare(node: NodeProto, new: dict[str, str], opset: int) -> NodeProto:
                out = honest(node, new, opset)
                if lie and out.op_type == "Relu":
                    out.op_type = instead
                return out

            monkeypatch.setattr(fused_calls, "_bare", bare)
            return honest_call(model, graph, match, op, taken)

        monkeypatch.setattr(fused_calls, "_call", call)

    return install


def optimized(model: ModelProto, **options: object) -> optimizer.OptimizeResult:
    return optimizer.optimize(model, rules=RULES, backend="cpu", **options)  # type: ignore[arg-type]


def test_only_the_wrong_fusions_are_turned_back(lying: Callable[[str, str], None]) -> None:
    lying("conv2 add4", "Neg")
    m = layers()
    result = optimized(m)
    kept = [f.anchor for f in result.report.fused]
    assert len(kept) == 10 and {"conv2", "add4"} == {
        f"{k}{i}" for k in ("conv", "add") for i in range(6)
    } - set(kept)
    refused = {r.anchor: r for r in result.report.refused if "turned back" in r.reason}
    assert (
        set(refused) == {"conv2", "add4"}
        and refused["conv2"].rule == "conv_relu"
        and "output 'y' differs by" in refused["conv2"].reason
    )
    assert sum(n.domain == DOMAIN for n in result.model.graph.node) == 10
    assert [n.name for n in result.model.graph.node if n.op_type == "Conv"] == ["conv2"]
    assert (
        result.report.verify is not None
        and result.report.verify.ok
        and any("2 fusions were turned back" in n for n in result.report.notes)
    )
    assert (
        result.report.nodes_after == len(result.model.graph.node) == result.report.nodes_before - 10
    )
    onnx.checker.check_model(result.model, full_check=True)
    feeds = {"v0": normal(1, 3, 6, 6, seed=9)}
    assert same_bits(run(m, feeds), run(result.model, feeds))
    assert model_file.serialize(optimized(result.model).model) == model_file.serialize(result.model)


def test_a_fusion_that_does_not_even_run_is_turned_back(lying: Callable[[str, str], None]) -> None:
    lying("add1", "Size")
    assert [r.anchor for r in optimized(layers()).report.refused if "turned back" in r.reason] == [
        "add1"
    ]


def test_a_required_fusion_that_was_turned_back_is_missing(
    lying: Callable[[str, str], None],
) -> None:
    lying("conv0 conv1 conv2 conv3 conv4 conv5", "Abs")
    with pytest.raises(MissingFusionError, match="conv_relu"):
        optimized(layers(), only=["conv_relu"])


def test_a_fault_outside_the_fusions_is_not_blamed_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = fusion_loop.transform

    def spoil(source: model_file.Source, *rest: object) -> None:
        honest(source, *rest)  # type: ignore[arg-type]
        source.model.graph.initializer[0].CopyFrom(
            onnx.numpy_helper.from_array(
                normal(3, 3, 3, 3, seed=77), source.model.graph.initializer[0].name
            )
        )

    monkeypatch.setattr(optimizer, "transform", spoil)
    with pytest.raises(optimizer.FailedVerification) as e:
        optimized(layers(2))
    assert "output 'y' differs by" in e.value.what and len(e.value.report.fused) == 4


def test_wrong_constants_cost_only_the_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracea_onnx.canonicalize import constant_folding

    m = parse(
        "g (float[3] x) => (float[3] y) { b = Neg (c)  a = Add (x, b)  y = Relu (a) }", c=normal(3)
    )
    honest = constant_folding._evaluate
    monkeypatch.setattr(
        constant_folding,
        "_evaluate",
        lambda *a: {k: v + np.float32(1) for k, v in honest(*a).items()},
    )
    result = optimized(m)
    assert [f.rule for f in result.report.fused] == ["add_relu"] and any(
        "constants were not folded: with them folded output" in n for n in result.report.notes
    )
    assert same_bits(run(m, {"x": normal(3, seed=1)}), run(result.model, {"x": normal(3, seed=1)}))


def test_verify_bisect_names_and_mends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused op whose call reads other operands than the nodes it stands for is found in the file
    alone.
    """
    m = layers(3)
    good = optimized(m).model
    onnx.save(m, str(tmp_path / "a.onnx"))
    onnx.save(good, str(tmp_path / "b.onnx"))
    honest = verification.session

    def session(source: model_file.Source, **options: object) -> object:
        """A runtime whose kernel for the fused op conv1 is wrong: it reads other weights."""
        other = model_file.Source(copy(source.model))
        for n in other.model.graph.node:
            if n.domain == DOMAIN and n.name == "conv1/Conv":
                n.input[1] = "w2"
        return honest(other, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "session", session)
    both = [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]
    assert main(["verify", *both]) == 4
    capsys.readouterr()
    assert main(["verify", *both, "--bisect", "-o", str(tmp_path / "c.onnx"), "--json"]) == 4
    out, err = capsys.readouterr()
    (fault,) = json.loads(out)["at_fault"]
    assert (
        fault
        == {
            "name": "conv1/Conv",
            "outputs": ["r1"],
            "rule": "conv_relu",
            "nodes": ["conv1", "Relu_r1"],
        }
        and "conv1/Conv (conv_relu)" in err
    )
    mended = model_file.load(tmp_path / "c.onnx")
    assert (
        len(delta_debugging.calls(mended.model)) == 5
        and verification.verify(model_file.Source(copy(m)), mended).ok
    )
    assert (
        main(
            [
                "verify",
                both[0],
                str(tmp_path / "c.onnx"),
                "--bisect",
                "-o",
                str(tmp_path / "d.onnx"),
            ]
        )
        == 0
    )
    assert not (tmp_path / "d.onnx").exists()
    assert main(["verify", both[0], str(tmp_path / "c.onnx"), "-o", str(tmp_path / "d.onnx")]) == 2


def test_verify_bisect_of_models_that_differ_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    m = layers(2)
    onnx.save(m, str(tmp_path / "a.onnx"))
    other = optimized(m).model
    other.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(normal(3, 3, 3, 3, seed=77), other.graph.initializer[0].name)
    )
    onnx.save(other, str(tmp_path / "b.onnx"))
    assert main(["verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--bisect"]) == 4
    assert "no fused op is at fault" in capsys.readouterr().err

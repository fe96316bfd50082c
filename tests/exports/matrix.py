"""One cell of the export matrix: canonicalise, match, schedule, rewrite, and hold every step
against ONNX Runtime without optimisations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper

from tests.exports.chains import CHAINS, Chain
from tests.host.rules import rules_oracle, rules_oracle_attention
from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.codegen import backend as backends
from tracea_onnx.ir import edit
from tracea_onnx.ir.contracts import DOMAIN, Match
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.refusals import Refusal, Refuse
from tracea_onnx.match import find, rule_set
from tracea_onnx.model_io import model_file
from tracea_onnx.pricing import cost_model
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import discovery
from tracea_onnx.verify import verification as verification

#: A folder for each chain; a file in it for each exporter.
FOLDER = Path(__file__).resolve().parent / "files"
_ROUNDS = 8
#: Sizes of the dynamic axes, by what their name says; unequal, so that no two can be confused. Some
#: exports only run with a batch of one.
_SIZES = (
    {"batch": 2, "sequence": 5, "states": 7, "past": 3},
    {"batch": 1, "sequence": 5, "states": 7, "past": 3},
)


@dataclass
class Cell:
    """What one exported file became.

    `faults` are wrong results, `missing` what did not fuse; both empty when all is well.
    """

    chain: str
    exporter: str
    fused: Counter[str] = field(default_factory=Counter)
    plain: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def attention(self) -> tuple[int, int]:
        """(attention layers fused, attention layers in the chain)."""
        return self.fused["Attention"], CHAINS[self.chain].fused.get("Attention", 0)


def files() -> Iterator[Path]:
    return iter(sorted(FOLDER.glob("*/*.onnx")))


def file(name: str) -> Path:
    """The file of `<chain>.<exporter>`."""
    chain, exporter = name.split(".")
    return FOLDER / chain / f"{exporter}.onnx"


def name(path: Path) -> str:
    """`<chain>.<exporter>` of a file."""
    return f"{path.parent.name}.{path.stem}"


def feeds(model: ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Random inputs: booleans and every integer input but the first are masks (0 or 1, the first of
    each row 1), the first holds ids.
    """
    rng, out = np.random.default_rng(seed), {}
    for k, i in enumerate(model.graph.input):
        dims = i.type.tensor_type.shape.dim
        # A size without a telling name is a batch on axis 0 and a sequence elsewhere.
        shape = [
            d.dim_value
            if d.HasField("dim_value")
            else sizes.get(d.dim_param, sizes["sequence" if a else "batch"])
            for a, d in enumerate(dims)
        ]
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        if dtype.kind == "f":
            out[i.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "i" and k == 0:
            out[i.name] = rng.integers(3, 20, shape).astype(dtype)
        else:
            keep = rng.random(shape) < 0.7
            keep[..., 0] = True
            out[i.name] = keep.astype(dtype)
    return out


def accepted(model: ModelProto) -> dict[str, Any]:
    """Inputs ONNX Runtime, without optimisations, runs the model on.

    Raises its error when there are none.
    """
    session = verification.session(model_file.Source(model, None, None))
    for sizes in _SIZES[:-1]:
        given = feeds(model, sizes)
        try:
            session.run(None, given)
        except Exception:
            continue
        return given
    given = feeds(model, _SIZES[-1])
    session.run(None, given)
    return given


def evaluate(path: Path) -> Cell:
    """The cell of one file."""
    cell, original = Cell(path.parent.name, path.stem), onnx.load(path)
    given, work = accepted(original), onnx.load(path)
    typed = onnx_inference.user_types(work)
    rates = backends.usual_target("cpu").rates
    for _ in range(_ROUNDS):
        canonical_form.canonicalise(work, typed=typed)
        graph = Graph(work)
        found, cell.refused = find.find(graph)
        rules = {r.name: r for r in rule_set.rules()}
        chosen, left = discovery.module("scheduler", "priority").schedule(
            graph, [(m, cost_model.price(graph, m, rates), rules[m.rule].priority) for m in found]
        )
        cell.refused += left
        if not chosen:
            break
        values = rules_oracle.run_all(work, given)
        for m, _ in chosen:
            fault = wrong(m, values)
            if fault:
                cell.faults.append(f"{m.rule} at {m.anchor.name}: {fault}")
            cell.fused[rules[m.rule].op] += 1
        fused_calls.apply(work, graph, [(m, rules[m.rule].op) for m, _ in chosen])
        edit.drop_dead(work.graph, edit.protected_names(work, work.graph))
        edit.drop_value_info(work.graph)
    onnx_inference.restore_types(work, typed)
    result = verification.verify(
        model_file.Source(original, None, None), model_file.Source(work, None, None), values=given
    )
    cell.faults += [
        f"output {o.name} differs by {o.max_abs:.3g}: {o.note}" for o in result.outputs if not o.ok
    ]
    cell.plain = [n.op_type for n in work.graph.node if n.domain != DOMAIN]
    cell.missing = _missing(CHAINS[cell.chain], cell)
    return cell


def _missing(chain: Chain, cell: Cell) -> list[str]:
    alone = sum(op in chain.alone for op in cell.plain)
    out, spared = [], 0
    for ops, count in chain.fused.items():
        got = sum(cell.fused[op] for op in ops.split("|"))
        if got < count:
            enough = min(count - got, alone)  # one operator already says it all
            got, alone, spared = got + enough, alone - enough, spared + enough
        if got < count:
            out.append(f"{got} of {count} {ops}")
    if chain.left is not None and len(cell.plain) - spared > chain.left:
        out.append(f"{len(cell.plain)} plain nodes, {chain.left} allowed: {' '.join(cell.plain)}")
    return out


def wrong(m: Match, values: Mapping[str, Any], tolerance: float = 5e-5) -> str:
    """Why the spec of `m`, evaluated in float64 on what enters the chain, is not what its nodes
    computed; "" when it is.
    """
    entering = {
        role: np.asarray(values[name], np.float64)
        for role, name in zip(m.spec.roles, m.inputs, strict=True)
    }
    try:
        results = rules_oracle_attention.results(m.spec, entering)
    except (AssertionError, KeyError, ValueError, Refuse) as e:
        return f"{type(e).__name__}: {e}"
    for got, name in zip(results, m.outputs, strict=False):
        want = np.asarray(values[name], np.float64)
        eps = max(tolerance, 4 * float(np.finfo(values[name].dtype).eps))
        if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
            return f"shape {got.shape} or NaN are not those of {want.shape}"
        finite = np.isfinite(want)
        if (
            not np.array_equal(np.isinf(got), np.isinf(want))
            or (np.isinf(want) & (got != want)).any()
        ):
            return f"infinities of '{name}' are elsewhere"
        gap, scale = (
            np.abs(got[finite] - want[finite]),
            np.nanmax(np.abs(want[finite]), initial=0.0),
        )
        if np.nanmax(gap, initial=0.0) > eps * (scale + 1e-6):
            return f"'{name}' differs by {np.nanmax(gap):.3g} of {scale:.3g}"
    return ""

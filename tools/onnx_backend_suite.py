"""The ONNX backend suite (node, simple, pytorch, real) through stock ORT, through `optimize`, and
through the provider.

No test that ORT's CPU provider passes may fail on another leg; the last lines say how many tests
the provider ran nodes of. It is told to claim every node it can run, not only those where it should
be the faster.

    python -m tools.onnx_backend_suite [--filter REGEX] [--legs
    ort,optimized,provider,both,constants] [--backend cuda] [--jobs 2] [--json FILE]

Cases come with the installed onnx package; nothing is downloaded. Exit status 1 when a test fails
that ORT passes.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.support.isolate import Lost, run_each

#: Sub-suites of the onnx package.
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
#: ort: stock ORT. optimized: `optimize`, then stock ORT. provider: the original on the provider.
#: both: the optimized model on the provider. constants: the provider with every input but the first
#: turned into an initializer, as weights are in real models. half: as constants, in fp16 (ORT's own
#: converter), against what stock ORT makes of the same model; for backends that compute in it.
LEGS = ("ort", "optimized", "provider", "both", "constants", "half")
#: Of a result's largest value: how far fp16 results may lie apart.
_HALF_BOUND = 2e-2


@dataclass(frozen=True)
class Case:
    """One test: the model, and pairs of inputs and expected outputs (arrays, TensorProtos or lists
    of them), loaded when needed.
    """

    name: str
    kind: str
    rtol: float
    atol: float
    model: onnx.ModelProto | Path
    data: Any


@dataclass(frozen=True)
class Outcome:
    """`status`: pass, fail, crash.

    `ours`, `nodes`: nodes the provider ran, of how many (provider legs).
    """

    status: str
    reason: str = ""
    ours: int = 0
    nodes: int = 0


@cache
def cases() -> tuple[Case, ...]:
    """Every case of the installed onnx package, sorted by name.

    Takes several seconds: node tests are generated.
    """
    from onnx.backend.test import loader

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators of node tests divide by zero on purpose
        listed = [(kind, t) for kind in KINDS for t in loader.load_model_tests(kind=kind)]
    for kind, t in listed:
        if t.model is not None:
            found.append(Case(t.name, kind, t.rtol, t.atol, t.model, t.data_sets))
        elif t.model_dir is not None:
            found.append(Case(t.name, kind, t.rtol, t.atol, Path(t.model_dir) / "model.onnx", None))
        elif t.url is not None and "/light/" in t.url:
            # The "real" models come with weights of constant fill and one expected output each.
            found.append(
                Case(
                    t.name,
                    kind,
                    t.rtol,
                    t.atol,
                    Path(loader.DATA_DIR) / "light" / Path(t.url).name,
                    None,
                )
            )
    return tuple(sorted(found, key=lambda c: (c.kind, c.name)))


def _value(item: Any) -> Any:
    if isinstance(item, TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, np.generic):
        return np.asarray(item)
    return [_value(x) for x in item] if isinstance(item, (list, tuple)) else item


def _read(path: Path, value: onnx.ValueInfoProto) -> Any:
    raw = path.read_bytes()
    which = value.type.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
    return numpy_helper.to_array(TensorProto.FromString(raw))


def load(case: Case) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """The model, and for each data set its inputs and expected outputs."""
    if isinstance(case.model, onnx.ModelProto):
        return case.model, [([_value(x) for x in i], [_value(x) for x in o]) for i, o in case.data]
    model = onnx.load(str(case.model))
    if case.kind == "real":
        initializers = {t.name for t in model.graph.initializer}
        inputs = []
        for i in model.graph.input:
            if i.name not in initializers:
                dims = [d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
                inputs.append(
                    (np.arange(np.prod(dims)).reshape(dims) / np.prod(dims)).astype(np.float32)
                )
        expected = case.model.with_name(f"{case.model.stem}_output_0.pb")
        return model, [
            (inputs, [numpy_helper.to_array(TensorProto.FromString(expected.read_bytes()))])
        ]
    sets = []
    for folder in sorted(case.model.parent.glob("test_data_set_*")):
        inputs = [
            _read(folder / f"input_{k}.pb", v)
            for k, v in enumerate(model.graph.input)
            if (folder / f"input_{k}.pb").is_file()
        ]
        sets.append(
            (
                inputs,
                [_read(folder / f"output_{k}.pb", v) for k, v in enumerate(model.graph.output)],
            )
        )
    return model, sets


def with_constants(model: onnx.ModelProto, inputs: list[Any]) -> onnx.ModelProto | None:
    """The model with its inputs from the second on as initializers of these values; None where a
    value is not a plain tensor.
    """
    listed = list(model.graph.input)
    if (
        len(listed) < 2
        or len(inputs) != len(listed)
        or any(not isinstance(v, np.ndarray) or v.dtype.kind not in "fiub" for v in inputs)
    ):
        return None
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.input[1:]
    out.graph.initializer.extend(
        numpy_helper.from_array(v, i.name) for i, v in zip(listed[1:], inputs[1:], strict=True)
    )
    return out


def _run_constants(case: Case, backend: str) -> Outcome:
    """The `constants` leg: against the expected outputs where stock ORT gives them for the same
    model.
    """
    from onnx.backend.test.runner import Runner

    from tests.support.sessions import assigned, session

    model, sets = load(case)
    ours = total = 0
    for inputs, expected in sets:
        changed = with_constants(model, inputs)
        if changed is None:
            continue
        fed = {changed.graph.input[0].name: inputs[0]}
        try:
            Runner.assert_similar_outputs(
                expected, session(changed).run(None, fed), case.rtol, case.atol
            )
        except Exception:  # ORT folds some of these models into something it then rejects
            continue
        made = session(changed, provider=True, everything=True, backend=backend)
        ours, total = assigned(made)
        Runner.assert_similar_outputs(expected, made.run(None, fed), case.rtol, case.atol)
    return Outcome("pass", "", ours, total)


def _halved(value: Any) -> Any:
    return (
        value.astype(np.float16)
        if isinstance(value, np.ndarray) and value.dtype == np.float32
        else value
    )


def _run_half(case: Case, backend: str) -> Outcome:
    """The `half` leg, where every value is finite."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    from tests.support.sessions import assigned, session

    model, sets = load(case)
    ours = total = 0
    for inputs, _ in sets:
        try:
            narrow = convert_float_to_float16(with_constants(model, inputs) or model)
            fed = {i.name: _halved(v) for i, v in zip(narrow.graph.input, inputs, strict=False)}
            expected = session(narrow).run(None, fed)
        except Exception:  # the converter or ORT does not take the model
            continue
        made = session(narrow, provider=True, everything=True, backend=backend)
        ours, total = assigned(made)
        for got, want in zip(made.run(None, fed), expected, strict=True):
            if (
                isinstance(want, np.ndarray)
                and want.dtype.kind == "f"
                and want.size
                and np.isfinite(want).all()
            ):
                bound = _HALF_BOUND * float(np.abs(want.astype(np.float64)).max())
                np.testing.assert_allclose(
                    np.asarray(got, np.float64), want.astype(np.float64), rtol=0, atol=bound
                )
    return Outcome("pass", "", ours, total)


def run_case(case: Case, leg: str, backend: str = "cpu") -> Outcome:
    """One case on one leg, the provider's on `backend`; whatever goes wrong is a failed outcome
    with its first line as the reason.
    """
    from onnx.backend.test.runner import Runner

    from tests.support.sessions import assigned, session

    ours = total = 0
    try:
        if leg == "constants":
            return _run_constants(case, backend)
        if leg == "half":
            return _run_half(case, backend)
        model, sets = load(case)
        if leg in ("optimized", "both"):
            import tracea_onnx

            model = tracea_onnx.optimize(model, verify=False).model
        made = session(
            model, provider=leg in ("provider", "both"), everything=True, backend=backend
        )
        if leg in ("provider", "both"):
            ours, total = assigned(made)
        for inputs, expected in sets:
            names = [i.name for i in made.get_inputs()]
            outputs = made.run(None, dict(zip(names, inputs, strict=True)))
            Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)
    except Exception as e:  # the report names every kind of failure
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        return Outcome("fail", f"{type(e).__name__}: {' '.join(lines[:4])[:300]}", ours, total)
    return Outcome("pass", "", ours, total)


def run_all(
    selected: Sequence[Case], legs: Sequence[str], *, jobs: int, backend: str = "cpu"
) -> dict[str, dict[str, Outcome]]:
    """Outcomes by leg and case name.

    Cases that ORT fails are not tried on the other legs: nothing can be asked of them.
    """
    results: dict[str, dict[str, Outcome]] = {}
    for leg in legs:
        todo = [
            c
            for c in selected
            if leg == "ort" or "ort" not in results or results["ort"][c.name].status == "pass"
        ]
        results[leg] = {}
        run = functools.partial(run_case, leg=leg, backend=backend)
        for n, (case, result) in enumerate(run_each(todo, run, jobs=jobs)):
            results[leg][case.name] = (
                Outcome("crash", result.reason) if isinstance(result, Lost) else result
            )
            if sys.stderr.isatty():
                print(f"\r{leg} {n + 1}/{len(todo)}", end="", file=sys.stderr)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    return results


def report(results: dict[str, dict[str, Outcome]], selected: Sequence[Case]) -> tuple[str, int]:
    """Markdown, and the number of regressions against ORT."""
    lines = [
        "| leg | tests | pass | fail | crash | fails though ORT passes |",
        "|---|---|---|---|---|---|",
    ]
    regressions: list[str] = []
    good = {n for n, o in results.get("ort", {}).items() if o.status == "pass"}
    for leg, outcomes in results.items():
        count = Counter(o.status for o in outcomes.values())
        worse = [
            n
            for n, o in sorted(outcomes.items())
            if leg != "ort" and n in good and o.status != "pass"
        ]
        regressions += [f"{leg} {n}: {outcomes[n].status} {outcomes[n].reason}" for n in worse]
        lines.append(
            f"| {leg} | {len(outcomes)} | {count['pass']} | {count['fail']} | {count['crash']} | "
            f"{'-' if leg == 'ort' else len(worse)} |"
        )
    lines += ["", *regressions]
    kinds = {c.name: c.kind for c in selected}
    for leg in ("provider", "both", "constants", "half"):
        if leg in results:
            ran = [n for n, o in results[leg].items() if o.ours and o.status == "pass"]
            whole = sum(o.ours == o.nodes for n, o in results[leg].items() if n in set(ran))
            by_kind = ", ".join(
                f"{k} {v}" for k, v in sorted(Counter(kinds[n] for n in ran).items())
            )
            if not ran and len(results[leg]) > 100:
                regressions.append(leg)
                lines.append(
                    f"{leg}: the provider ran nothing at all: compiling fails, or the provider "
                    "was not chosen"
                )
            lines.append(
                f"{leg}: the provider ran nodes of {len(ran)} of {len(results[leg])} tests "
                f"({by_kind}); {whole} of them entirely"
            )
    return "\n".join(lines), len(regressions)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The ONNX backend suite on ONNX Runtime, the optimizer and the provider."
    )
    parser.add_argument(
        "--filter", default="", help="only tests whose name matches this regular expression"
    )
    parser.add_argument("--legs", default=",".join(LEGS[:-1]), help="of " + ", ".join(LEGS))
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"), help="of the provider")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every outcome here")
    args = parser.parse_args()
    legs = args.legs.split(",")
    if unknown := set(legs) - set(LEGS):
        parser.error(f"unknown legs {sorted(unknown)}; there are {', '.join(LEGS)}")
    began = time.perf_counter()
    selected = [c for c in cases() if re.search(args.filter, c.name)]
    results = run_all(selected, legs, jobs=args.jobs, backend=args.backend)
    text, regressions = report(results, selected)
    print(text)
    print(f"{len(selected)} tests in {time.perf_counter() - began:.0f} s")
    if args.json:
        args.json.write_text(
            json.dumps(
                {leg: {n: vars(o) for n, o in sorted(r.items())} for leg, r in results.items()},
                indent=1,
            )
        )
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())

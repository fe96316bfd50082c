"""The commands, on models that were changed. Right are success and one line with the exit code of
its kind.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.fuzz import mutations
from tests.fuzz.cases import OK, REFUSED, Case, DecodeError, failure
from tests.fuzz.judges import reads_garbage
from tests.fuzz.seeds import model_of, seed_model
from tests.fuzz.sessions import feeds, resized
from tests.fuzz.workers import Verdict
from tracea_onnx.cli import main
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.match.rule_set import rules
from tracea_onnx.verify.input_values import load_inputs


def _said() -> str:
    """What the case has printed so far."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return Path(f"/proc/{os.getpid()}/fd/1").read_text("utf-8", "replace")


_CODES = frozenset({0, 2, 3, 4, 5})

#: What a library inside ONNX Runtime (re2) writes to the log by itself.
_LIBRARIES_LOG = re.compile(
    r"^(WARNING: All log messages before absl::InitializeLog\(\).*|[IWEF]\d{4} \d\d:.* "
    r"\S+\.cc:\d+\] .*)\n",
    re.MULTILINE,
)


#: Two models that `verify` compares differ, which it says without an error.
UNLIKE = "unlike"


def command(argv: Sequence[str], *, codes: frozenset[int] = _CODES) -> Verdict:
    """One command of the CLI in this process. codes: with which it may exit."""
    before = len(_said())
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        code = main.main(list(argv))
    text = _LIBRARIES_LOG.sub("", _said()[before:])
    if code not in codes or "error: internal" in text:
        try:
            main.main([*argv, "--debug"])
        except Exception as e:
            return failure("internal", e)
        return Verdict(
            "internal",
            text.splitlines()[-1] if text else f"exit {code}",
            "internal, and not again",
            text,
        )
    if "Traceback (most recent call last)" in text:
        return Verdict(
            "traceback", text.splitlines()[-1], "traceback " + text.splitlines()[-1][:80], text
        )
    odd = [ch for ch in text if (ord(ch) < 32 and ch not in "\n\t") or 127 <= ord(ch) < 160]
    if odd and "\r" not in odd:
        line = next(line for line in text.split("\n") if odd[0] in line)
        return Verdict(
            "escape",
            repr(line[:300]),
            f"escape in {argv[0]}: {line.split(chr(58))[0][:40]!r}",
            repr(text[-3000:]),
        )
    lines = text.splitlines()
    if code == 0:
        return Verdict(OK)
    errors = [k for k, line in enumerate(lines) if line.startswith("error: ")]
    if code == 4 and argv[0] == "verify" and lines and not errors:
        return Verdict(UNLIKE, lines[-1][:300], UNLIKE, text[-3000:])
    if len(errors) != 1 or errors[0] != len(lines) - 1:
        return Verdict(
            "lines",
            (lines or ["nothing"])[-1][:300],
            f"lines of {argv[0]}: exit {code}, {len(errors)} error lines",
            text[-3000:],
        )
    return Verdict(REFUSED, lines[-1], f"{code}")


def inspect(c: Case) -> Verdict:
    return command(
        [
            "inspect",
            str(c.write(model_of(c))),
            *(["--all"] if c.random.random() < 0.7 else []),
            *(["--json"] if c.random.random() < 0.3 else []),
        ]
    )


def inline(c: Case) -> Verdict:
    more = ["--external-data", "always"] if c.random.random() < 0.2 else []
    return command(
        ["inline", str(c.write(model_of(c))), "-o", str(c.folder / "inlined.onnx"), *more]
    )


def explain(c: Case) -> Verdict:
    page = c.folder / "page.html"
    page.unlink(missing_ok=True)
    more = c.random.choice(
        ([], ["--all"], ["--json"], *(["--backend", b] for b in ("cpu", "cuda", "webgpu")))
    )
    found = command(["explain", str(c.write(model_of(c))), "--html", str(page), *more])
    if found.status == OK and mutations.SCRIPT in page.read_text():
        return Verdict("escape", "a name is markup in the page", "escape in explain --html")
    return found


def doctor(c: Case) -> Verdict:
    more = c.random.choice(([], ["--json"], ["--backend", "cpu"]))
    return command(["doctor", str(c.write(model_of(c))), "--quick", *more])


def _takes_long(data: bytes) -> bool:
    """Whether the model itself wants inputs so large that comparing results takes longer than a
    case may, and not so large that they are refused.
    """
    try:
        inputs = ModelProto.FromString(data).graph.input
    except DecodeError:
        return False
    sizes = (
        np.prod([float(max(d.dim_value, 1)) for d in i.type.tensor_type.shape.dim]) for i in inputs
    )
    return any(1 << 23 < n <= 1 << 28 for n in sizes)


def optimize(c: Case) -> Verdict:
    data, out = model_of(c), c.folder / "optimized.onnx"
    path = c.write(data)
    more: list[str] = c.random.choice(
        (
            [],
            [],
            ["--no-verify"],
            ["--no-verify", "-v"],
            ["--dry-run"],
            ["--external-data", "always"],
            ["--precision", "fp16", "--no-verify"],
            ["--precision", "bf16", "--no-verify"],
            ["--weights", "int8", "--no-verify"],
            ["--weights", "int8"],
            ["--weights", "int4", "--block", c.random.choice(("32", "128", "0", "7"))],
            ["--json"],
        )
    )
    if c.random.random() < 0.01:
        more = ["--backend", "cpu", "--tune", "1"]
    if _takes_long(data):
        more = ["--no-verify"]
    out.unlink(missing_ok=True)
    # with 1 ends a tuning of a model of which nothing runs here
    codes = _CODES | {1} if "--tune" in more else _CODES
    found = command(["optimize", str(path), "-o", str(out), *more], codes=codes)
    if found.signature == "4" and not any(t in found.line for t in ("the original", "--no-verify")):
        return Verdict("unverified", found.line, "unverified " + found.line[:90], _said()[-3000:])
    return found


def quantize(c: Case) -> Verdict:
    """`optimize --quantize`: a model that was changed, or calibration data that are damaged or do
    not fit it.
    """
    r, model = c.random, seed_model(c)
    fed = _calibration(feeds(model, r) or {}, r)
    if r.random() < 0.5:
        c.mutate(model)
    file = io.BytesIO()
    np.savez(file, **fed)
    data = file.getvalue()
    given = c.write(mutations.damage(data, r) if r.random() < 0.1 else data, "given.npz")
    more = r.choice(([], [], ["--calibration", "minmax"], ["--calibration", "entropy"]))
    more = more + r.choice(([], ["--drift", "1e-3"], ["--no-verify"], ["--dry-run"]))
    data = bytes(model.SerializeToString())
    if _takes_long(data):
        more.append("--no-verify")
    path, out = c.write(data), c.folder / "quantized.onnx"
    out.unlink(missing_ok=True)
    return command(["optimize", str(path), "-o", str(out), "--quantize", str(given), *more])


def _calibration(fed: dict[str, Any], r: Random) -> dict[str, Any]:
    """Samples along one more axis, rows, or one; now and then some that do not fit."""
    if r.random() < 0.4:
        count = r.choice((1, 2, 3))
        fed = {k: np.stack([v * n for n in range(1, count + 1)]) for k, v in fed.items()}
    if r.random() < 0.25:
        fed = resized(fed, r)
    for name in [*fed] if r.random() < 0.4 else ():
        v, how = fed[name], r.randrange(6)
        if how == 0:
            del fed[name]
        elif how == 1:
            fed[r.choice(mutations.TEXTS)] = v
        elif how == 2:
            with np.errstate(all="ignore"):
                fed[name] = v.astype(r.choice(("float64", "float16", "int8", "bool", "S3", "U2")))
        elif how == 3 and v.dtype.kind == "f" and v.size:
            v = v.reshape(-1).copy()
            v[r.randrange(v.size)] = r.choice(mutations.FLOATS)
            fed[name] = v.reshape(fed[name].shape)
        elif how == 4 and v.dtype.kind == "f":
            fed[name] = np.full_like(v, r.choice(mutations.FLOATS))
    return fed


def verify(c: Case) -> Verdict:
    """The mutated model against itself, or against what it was."""
    data = model_of(c)
    if _takes_long(data):
        return Verdict(REFUSED, "not run")
    path = c.write(data)
    other = path
    if c.random.random() < 0.5:
        other = c.write(model_of(Case(c.key, c.folder, frozenset(range(100)))), "other.onnx")
    more = ["--bisect"] if c.random.random() < 0.3 else []
    found = command(["verify", str(other), str(path), *more])
    return Verdict(OK) if found.status == UNLIKE else found


def given_inputs(c: Case) -> Verdict:
    """A model that compares with itself, on a file of inputs that is damaged or does not fit."""
    r, model = c.random, seed_model(c)
    fed = feeds(model, r) or {}
    if r.random() < 0.5:
        fed = resized(fed, r)
    file = io.BytesIO()
    (np.savez_compressed if r.random() < 0.3 else np.savez)(file, **fed)
    data = file.getvalue()
    given = c.write(mutations.damage(data, r) if r.random() < 0.8 else data, "given.npz")
    return with_itself(c.write(bytes(model.SerializeToString())), given)


def with_itself(path: Path, given: Path) -> Verdict:
    """A model differs from itself only where ONNX Runtime reads what it has not written."""
    found = command(["verify", str(path), str(path), "--load-inputs", str(given)])
    if found.status != UNLIKE:
        return found
    data = path.read_bytes()
    known = {i.name for i in ModelProto.FromString(data).graph.input}
    fed = {k: v for k, v in load_inputs(given).items() if k in known}
    return Verdict(OK) if reads_garbage(data, fed) else found


def compile_model(c: Case) -> Verdict:
    """For the CPU: kernels for a GPU would be compiled for minutes."""
    more: list[str] = ["--embed"] if c.random.random() < 0.5 else []
    if c.random.random() < 0.3:
        more += ["--provider-option", c.random.choice(("specs=trust", "claim=all", "claim", "x=y"))]
    if c.random.random() < 0.2:
        more += ["--external-data", "always"]
    out = c.folder / "compiled.onnx"
    return command(
        ["compile", str(c.write(model_of(c))), "-o", str(out), "--backend", "cpu", *more],
        codes=_CODES | {1},  # ONNX Runtime cannot compile it, or nothing of it runs here
    )


def check(c: Case) -> Verdict:
    """A model beside a baseline that is damaged, or says something else."""
    r = c.random
    row = {"nodes": r.randrange(9), "fusions": {rule.name: r.randrange(3) for rule in rules()}}
    baseline: object = {"version": 1, "models": {"input.onnx": row}}
    for _ in range(r.choice((0, 1, 1, 2, 4))):
        baseline = mutations.tree(baseline, r)
    data = json.dumps(baseline).encode()
    if r.random() < 0.3:
        data = mutations.damage(data, r)
    given = str(c.write(data, "baseline.json"))
    more = [flag for flag in ("--json", "--update") if r.random() < 0.2]
    return command(["check", str(c.write(model_of(c))), "--baseline", given, *more])

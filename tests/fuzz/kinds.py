"""What is fuzzed, by kind: a case draws its input from its number, runs it, and says how that
ended.

Right are success and one line with the exit code of its kind. Everything else is a finding: a
traceback, an internal error, control characters on the terminal, a wrong result; and what takes the
process down, which only the parent sees (`workers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz import mutations, workers
from tests.fuzz.workers import Verdict
from tests.support import difference, sessions
from tools.fuzz import operator_fuzz
from tracea_onnx.cli import main
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.edit import graphs
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import compiled_model, optimizer
from tracea_onnx.plan import builder
from tracea_onnx.runtime import device_caps
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import artifact_cache
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.verify import verification as verification

DecodeError: type[Exception] = import_module(
    "google.protobuf.message"
).DecodeError  # protobuf ships no types
EXPORTS = Path(__file__).resolve().parents[1] / "exports" / "files"
#: Seeds above this size cost more than they find.
_LARGEST = 24_000
OK, REFUSED = "ok", "refused"
#: No faults by themselves: ONNX Runtime refuses the inputs and the provider computes; the other way
#: round, with a line that says why.
ACCEPTED, DENIED = "accepted", "denied"


@dataclass
class Case:
    """One case in the making. skip: mutations left out, by number (how a finding is minimised)."""

    key: str
    folder: Path
    skip: frozenset[int] = frozenset()
    applied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.key)

    def mutate(
        self, model: ModelProto, wanted: Sequence[mutations.Mutation] = mutations.MUTATIONS
    ) -> None:
        """A few mutations, each with random numbers of its own, so that leaving one out changes no
        other.
        """
        for _ in range(self.random.choice((1, 1, 2, 2, 3, 4))):
            at = len(self.applied)
            own = Random(f"{self.key}:{at}")
            chosen = own.choice(wanted)
            self.applied.append(chosen.__name__)
            if at not in self.skip:
                with contextlib.suppress(
                    ValueError, TypeError, OverflowError, UnicodeError, DecodeError
                ):  # what protobuf cannot hold
                    chosen(model, own)

    def write(self, data: bytes, name: str = "input.onnx") -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def feed(self, fed: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what the model is fed: each set of inputs."""
        self.write(pickle.dumps(fed), "inputs.pickle")


# --- seeds ----------------------------------------------------------------------------------------


@cache
def exports() -> tuple[Path, ...]:
    return tuple(sorted(p for p in EXPORTS.glob("*/*.onnx") if p.stat().st_size < _LARGEST))


@cache
def _export(path: Path) -> bytes:
    return path.read_bytes()


@cache
def node_tests() -> tuple[tuple[bytes, dict[str, Any]], ...]:
    """Models and inputs of ONNX's own tests of operators."""
    from tools import onnx_backend_suite

    found = []
    for case in onnx_backend_suite.cases():
        if case.kind != "node" or not isinstance(case.model, ModelProto) or not case.data:
            continue
        names = [i.name for i in case.model.graph.input]
        fed = dict(zip(names, case.data[0][0], strict=False))
        if case.model.ByteSize() < _LARGEST and all(
            isinstance(v, np.ndarray) and v.size < 50_000 for v in fed.values()
        ):
            found.append((case.model.SerializeToString(), fed))
    return tuple(found)


def _drawn(r: Random) -> tuple[ModelProto, dict[str, Any]]:
    _, model, fed = operator_fuzz.draw(r.randrange(1 << 30), list(operator_fuzz.KINDS))
    return model, fed


#: Where what many cases begin with is kept for all workers; None: each makes it anew.
shared: Path | None = None


def _kept(make: Callable[..., bytes]) -> Callable[..., bytes]:
    """What `make` gives for these arguments, made once for all workers, each of which ends after a
    few cases.
    """

    def found(*key: Any) -> bytes:
        if shared is None:
            return make(*key)
        name = hashlib.sha256(repr((make.__name__, key)).encode()).hexdigest()
        with contextlib.suppress(FileNotFoundError):
            return (shared / name).read_bytes()
        data = make(*key)
        fresh = shared / f"{name}.{os.getpid()}.{threading.get_ident()}"
        fresh.write_bytes(data)
        fresh.rename(shared / name)
        return data

    return cache(found)


@_kept
def _fused(model: bytes) -> bytes:
    """The model with fused ops in it, where the optimizer takes it."""
    with contextlib.suppress(TraceaError):
        found = optimizer.optimize(ModelProto.FromString(model), verify=False)
        return bytes(found.model.SerializeToString())
    return model


def _seed(c: Case) -> ModelProto:
    model = ModelProto()
    kind = c.random.random()
    if kind < 0.65:
        model.ParseFromString(_export(c.random.choice(exports())))
    elif kind < 0.8:
        model.ParseFromString(c.random.choice(node_tests())[0])
    else:
        model.CopyFrom(_drawn(c.random)[0])
        if model.ByteSize() > 1 << 20:
            model.ParseFromString(_export(c.random.choice(exports())))
    if c.random.random() < 0.25:
        model.ParseFromString(_fused(bytes(model.SerializeToString())))
    return model


def model_of(c: Case) -> bytes:
    """A mutated model's bytes."""
    model = _seed(c)
    c.mutate(model)
    data = bytes(model.SerializeToString())
    return mutations.damage(data, c.random) if c.random.random() < 0.08 else data


# --- judging --------------------------------------------------------------------------------------


def _signature(e: BaseException) -> str:
    """Exception type and the innermost frame of this project."""
    frames = traceback.extract_tb(e.__traceback__)
    ours = [
        f
        for f in frames
        if any(p in f.filename for p in ("tracea_onnx", "fusion_rules", "scheduler", "kernels"))
        and "site-packages" not in f.filename
    ]
    at = (ours or list(frames))[-1]
    return f"{type(e).__name__} {Path(at.filename).name}:{at.lineno} {at.name}"


def _failure(status: str, e: BaseException) -> Verdict:
    return Verdict(
        status,
        f"{type(e).__name__}: {str(e)[:300]}",
        f"{status} {_signature(e)}",
        "".join(traceback.format_exception(e))[-6000:],
    )


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


def command(argv: Sequence[str], *, unlike_is_fine: bool = False) -> Verdict:
    """One command of the CLI in this process. unlike_is_fine: two models are compared, and may
    differ.
    """
    before = len(_said())
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        code = main.main(list(argv))
    text = _LIBRARIES_LOG.sub("", _said()[before:])
    if code not in _CODES or "error: internal" in text:
        try:
            main.main([*argv, "--debug"])
        except Exception as e:
            return _failure("internal", e)
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
    if code == 4 and unlike_is_fine and not errors:
        return Verdict(OK)
    if len(errors) != 1 or errors[0] != len(lines) - 1:
        return Verdict(
            "lines",
            (lines or ["nothing"])[-1][:300],
            f"lines of {argv[0]}: exit {code}, {len(errors)} error lines",
            text[-3000:],
        )
    return Verdict(REFUSED, lines[-1], f"{code}")


# --- the command line -----------------------------------------------------------------------------


def _inspect(c: Case) -> Verdict:
    return command(
        [
            "inspect",
            str(c.write(model_of(c))),
            *(["--all"] if c.random.random() < 0.7 else []),
            *(["--json"] if c.random.random() < 0.3 else []),
        ]
    )


def _inline(c: Case) -> Verdict:
    more = ["--external-data", "always"] if c.random.random() < 0.2 else []
    return command(
        ["inline", str(c.write(model_of(c))), "-o", str(c.folder / "inlined.onnx"), *more]
    )


def _explain(c: Case) -> Verdict:
    page = c.folder / "page.html"
    page.unlink(missing_ok=True)
    more = c.random.choice(([], ["--all"], ["--backend", "cpu"], ["--json"], ["--backend", "cuda"]))
    found = command(["explain", str(c.write(model_of(c))), "--html", str(page), *more])
    if found.status == OK and mutations.SCRIPT in page.read_text():
        return Verdict("escape", "a name is markup in the page", "escape in explain --html")
    return found


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


def _optimize(c: Case) -> Verdict:
    data, out = model_of(c), c.folder / "optimized.onnx"
    path = c.write(data)
    more = c.random.choice(
        (
            [],
            [],
            ["--no-verify"],
            ["--no-verify", "-v"],
            ["--dry-run"],
            ["--external-data", "always"],
            ["--precision", "fp16", "--no-verify"],
            ["--precision", "bf16", "--no-verify"],
            ["--json"],
        )
    )
    if _takes_long(data):
        more = ["--no-verify"]
    out.unlink(missing_ok=True)
    found = command(["optimize", str(path), "-o", str(out), *more])
    if found.signature == "4" and not any(t in found.line for t in ("the original", "--no-verify")):
        return Verdict("unverified", found.line, "unverified " + found.line[:90], _said()[-3000:])
    return found


def _verify(c: Case) -> Verdict:
    """The mutated model against itself, or against what it was."""
    data = model_of(c)
    if _takes_long(data):
        return Verdict(REFUSED, "not run")
    path = c.write(data)
    other = path
    if c.random.random() < 0.5:
        other = c.write(model_of(Case(c.key, c.folder, frozenset(range(100)))), "other.onnx")
    more = ["--bisect"] if c.random.random() < 0.3 else []
    return command(["verify", str(other), str(path), *more], unlike_is_fine=True)


# --- the provider ---------------------------------------------------------------------------------


def _sizes_of(value: onnx.ValueInfoProto, known: dict[str, int], r: Random) -> tuple[int, ...]:
    out = []
    for d in value.type.tensor_type.shape.dim:
        if d.HasField("dim_value"):
            out.append(d.dim_value)
        else:
            out.append(
                known.setdefault(d.dim_param, r.choice((1, 1, 2, 3, 4, 5, 8)))
                if d.dim_param
                else r.choice((1, 2, 3, 5))
            )
    return tuple(out)


def feeds(model: ModelProto, r: Random) -> dict[str, Any] | None:
    """Random inputs of the declared types; None where one has none that can be made."""
    stored, known, out = (
        {t.name for t in model.graph.initializer},
        dict[str, int](),
        dict[str, Any](),
    )
    rng = np.random.default_rng(r.randrange(1 << 30))
    for i in model.graph.input:
        if i.name in stored:
            continue
        shape = _sizes_of(i, known, r)
        if min(shape, default=0) < 0 or np.prod([float(n) for n in shape]) > 1 << 18:
            return None
        try:
            dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        except KeyError:
            return None
        if dtype.kind in "iu":
            out[i.name] = rng.integers(0, r.choice((2, 10, 100)), shape).astype(dtype)
        elif dtype.kind == "b":
            out[i.name] = rng.random(shape) < 0.7
        elif dtype.kind == "f":
            out[i.name] = rng.standard_normal(shape).astype(dtype)
        else:
            return None
    return out


def _line(e: BaseException) -> str:
    """What an error of ONNX Runtime says, without where it says it."""
    return " ".join(str(e).split()).split("Status Message: ")[-1][:300]


def _differ(model: ModelProto, want: Sequence[Any], got: Sequence[Any]) -> float:
    """How far apart, where values are not so large or so close that rounding decides."""
    if any(
        np.asarray(w).dtype.kind == "f"
        and (not np.isfinite(w).all() or (np.asarray(w).size and np.abs(w).max() > 1e15))
        for w in want
        if isinstance(w, np.ndarray)
    ):
        return 0.0
    apart = 0.0
    for a, b in zip(want, got, strict=True):
        if isinstance(a, list):  # a sequence
            apart = max(apart, _differ(model, a, b) if len(a) == len(b) else np.inf)
            continue
        x, y = np.asarray(a), np.asarray(b)
        if (
            x.dtype == y.dtype
            and x.shape == y.shape
            and x.dtype.kind == "f"
            and x.size
            and np.isfinite(y).all()
            and np.abs(x.astype(np.float64) - y).max() < 1e-4
        ):
            continue
        apart = max(apart, difference.difference([a], [b]))
    return apart


def _overflows(model: ModelProto, values: Mapping[str, Any]) -> bool:
    """Whether the graph computes values so large that the order of its operations decides. Those
    that a constant holds, as a mask does, are no such values.
    """
    bare = ModelProto.FromString(_undeclared(model))
    del bare.graph.output[:]
    made = dict.fromkeys(o for n in bare.graph.node for o in n.output if o)
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = _on_stock(bare.SerializeToString(), [values], optimize=False)
    constants = [numpy_helper.to_array(t) for t in model.graph.initializer]
    constants += [
        numpy_helper.to_array(a.t)
        for n in model.graph.node
        for a in n.attribute
        if a.type == onnx.AttributeProto.TENSOR and n.op_type == "Constant"
    ]
    stored = [c.item() for c in constants if c.dtype.kind == "f" and c.size == 1]
    return any(
        bool((~(np.abs(v) <= 1e15) & ~np.isin(v, stored)).any())
        for v in (found[0] if found and isinstance(found[0], list) else [])
        if isinstance(v, np.ndarray) and v.dtype.kind == "f"
    )


_RANDOM = ("Random", "Multinomial", "Bernoulli", "Dropout")


_OF_NOTHING = frozenset(
    {"ArgMax", "ArgMin", "ReduceMean", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
)


def _is_of_nothing(model: ModelProto, values: Mapping[str, Any]) -> bool:
    """Whether ONNX does not say what the result is: of no elements ArgMax, ArgMin and ReduceMean
    keep a dim of 0 in ONNX Runtime, and a mean is 0.
    """
    return bool({n.op_type for n in model.graph.node} & _OF_NOTHING) and any(
        not np.size(v) for v in values.values()
    )


def _undeclared(model: ModelProto) -> bytes:
    """The model without the types that it claims its values have. ONNX Runtime infers types when it
    loads a model and each time it has changed the graph, and only the first time wrong claims can
    hide an error from it: such a model loads as long as nothing changes the graph.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    for g in graphs(bare):
        del g.value_info[:]
    return bytes(bare.SerializeToString())


def claims_falsely(model: ModelProto, fed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value of the graph has another rank or size on ONNX Runtime than the model says it
    has. A fused node hides what it computes, and ONNX Runtime then believes the model.
    """
    claimed = {v.name: v.type.tensor_type for v in (*model.graph.value_info, *model.graph.output)}
    bare = ModelProto.FromString(_undeclared(model))
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in claimed)
    found = _on_stock(bare.SerializeToString(), fed, optimize=False) or []
    return any(
        t.HasField("shape")
        and (
            len(t.shape.dim) != np.ndim(v)
            or any(
                d.HasField("dim_value") and d.dim_value != n
                for d, n in zip(t.shape.dim, np.shape(v), strict=True)
            )
        )
        for values in found
        if isinstance(values, list)
        for t, v in zip(claimed.values(), values, strict=True)
        if isinstance(v, np.ndarray)
    )


#: glibc's mallopt: fresh memory holds the complement of this byte.
_M_PERTURB = -6


def _reads_garbage(data: bytes, values: Mapping[str, Any]) -> bool:
    """Whether what ONNX Runtime gives depends on what its memory held before."""
    import ctypes

    found: list[Sequence[Any]] = []
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for byte in (0xC0, 0x3F):
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)
        try:
            with workers.stock():
                found.append(ort.InferenceSession(data, settings).run(None, dict(values)))
        except Exception:
            return False
        finally:
            ctypes.CDLL(None).mallopt(_M_PERTURB, 0)
    return any(
        np.asarray(a).tobytes() != np.asarray(b).tobytes()
        for a, b in zip(*found, strict=True)
        if isinstance(a, np.ndarray)
    )


def _as_onnx_says(model: ModelProto, values: Mapping[str, Any], got: Sequence[Any]) -> bool:
    """Whether ONNX's own implementation gives what the provider does, where ONNX Runtime gives
    something else.
    """
    try:
        want = list(ReferenceEvaluator(model).run(None, dict(values)))
        return (
            not any(np.shape(a) != np.shape(b) for a, b in zip(want, got, strict=True))
            and _differ(model, want, got) <= 2e-3
        )
    except Exception:  # it does not know every operator
        return False


def _is_rounding(model: ModelProto, fed: Mapping[str, Any], got: Sequence[Any]) -> bool:
    """Whether a float64 evaluation of the graph moves as far when its values are rounded."""
    from tools.fuzz import graph_differential

    values = dict(fed)
    try:
        reference = graph_differential._measured(model, values)
        at = [o.name for o in model.graph.output]
        results = [got[at.index(name)] for name in reference.names]
        return not graph_differential._beyond(reference, range(len(results)), results, values)
    except Exception:  # it does not know every operator
        return False


def _on_stock(data: bytes, fed: Sequence[Mapping[str, Any]], *, optimize: bool) -> list[Any] | None:
    """What ONNX Runtime alone gives for each input, or the error that it raises; None where it does
    not load the model.
    """
    found: list[Any] = []
    with workers.stock():
        try:
            peer = sessions.session(data, optimize=optimize)
        except Exception:
            return None
        for values in fed:
            try:
                found.append(peer.run(None, dict(values)))
            except Exception as e:
                found.append(e)
    return found


def _against(c: Case, model: ModelProto, data: bytes, fed: Sequence[Mapping[str, Any]]) -> Verdict:
    """The model on ONNX Runtime, then on the provider, on the same inputs.

    What ends the process already without the provider is not judged.
    """
    c.feed(fed)
    everything = c.random.random() < 0.8
    wanted = _on_stock(data, fed, optimize=False)
    try:
        ours = sessions.session(data, provider=True, everything=everything)
    except Exception as e:
        if "the partition compiler raised" in str(e):
            return Verdict(
                "internal",
                str(e)[:300],
                "internal in compile_request: "
                + str(e).split("raised", 1)[1][-80:].replace("\n", " "),
            )
        if (
            wanted is None
            or "the session does not use" in str(e)
            or _on_stock(data, [], optimize=True) is None
            or _on_stock(_undeclared(model), [], optimize=False) is None
            or claims_falsely(model, fed)
        ):
            return Verdict(REFUSED, str(e)[:200])
        return Verdict(
            "unloaded", " ".join(str(e).split())[:300], "unloaded " + " ".join(str(e).split())[:60]
        )
    done, why, odd = OK, "", Counter[str]()
    operators = " ".join(sorted({n.op_type for n in model.graph.node}))[:120]
    for k, values in enumerate(fed):
        want = None if wanted is None else wanted[k]
        try:
            got = ours.run(None, dict(values))
        except Exception as e:
            done = REFUSED
            if isinstance(want, list) and "TraceaExecutionProvider" in str(e):
                odd[DENIED] += 1
                why = _line(e)
            continue
        if isinstance(want, Exception) and sessions.assigned(ours)[0]:
            odd[ACCEPTED] += 1
            why = _line(want)
        if (
            not isinstance(want, list)
            or any(n.op_type.startswith(_RANDOM) for n in model.graph.node)
            or _is_of_nothing(model, values)
            or _differ(model, want, got) <= 2e-3
        ):
            continue
        # ONNX Runtime's own optimisations may be wrong about odd models, too
        other = _on_stock(data, [values], optimize=True)
        if other and isinstance(other[0], list) and _differ(model, want, other[0]) > 2e-3:
            continue
        if _as_onnx_says(model, values, got) or _reads_garbage(data, values):
            continue
        if _overflows(model, values) or _is_rounding(model, values, got):
            continue
        shapes = {k: np.shape(v) for k, v in values.items()}
        return Verdict(
            "wrong",
            f"{_differ(model, want, got):.1e} apart, {operators}; fed {shapes}",
            f"wrong {operators}",
        )
    if odd:
        status = ACCEPTED if odd[ACCEPTED] else DENIED
        return Verdict(
            status,
            why,
            f"{status} {operators[:60]}"
            if status == ACCEPTED
            else "denied " + "".join(ch for ch in why if not ch.isdigit())[-80:],
        )
    return Verdict(done)


def _session(c: Case) -> Verdict:
    data = model_of(c)
    c.write(data)
    fed = []
    try:
        model = ModelProto.FromString(data)
        for _ in range(3):
            values = feeds(model, c.random)
            if values is not None:
                fed.append(values)
    except Exception:  # damaged bytes: loading alone is tried
        model = ModelProto()
    return _against(c, model, data, fed)


def resized(values: Mapping[str, Any], r: Random) -> dict[str, Any]:
    """The inputs with one of them of another shape, or with other integers."""
    out = dict(values)
    for _ in range(r.choice((1, 1, 2))):
        if not out:
            break
        name = r.choice(sorted(out))
        v = np.asarray(out[name])
        if v.dtype.kind in "iu" and r.random() < 0.6 and v.size:
            flat = v.reshape(-1).copy()
            with np.errstate(all="ignore"):
                flat[r.randrange(flat.size)] = np.array(r.choice(mutations.INTS)).astype(v.dtype)
            out[name] = flat.reshape(v.shape)
        elif v.ndim:
            axis = r.randrange(v.ndim)
            size = r.choice(
                (
                    0,
                    1,
                    2,
                    v.shape[axis] + 1,
                    max(v.shape[axis] - 1, 0),
                    v.shape[axis] * 2,
                    v.shape[axis] * 3 + 1,
                    7,
                )
            )
            out[name] = (
                np.take(v, np.arange(size) % max(v.shape[axis], 1), axis=axis)
                if v.size
                else np.zeros([size if k == axis else n for k, n in enumerate(v.shape)], v.dtype)
            )
    return out


def _sizes(c: Case) -> Verdict:
    """Whole models with unknown sizes, and inputs whose sizes or integers do not fit."""
    r = c.random
    if r.random() < 0.5:
        data, fed = r.choice(node_tests())
        model = ModelProto.FromString(data)
    elif r.random() < 0.6:
        model, fed = _drawn(r)
    else:
        model = ModelProto.FromString(_export(r.choice(exports())))
        made = feeds(model, r)
        if made is None:
            return Verdict(REFUSED, "no inputs")
        fed = made
    mutations.symbolic(model, r)
    if r.random() < 0.3:
        with contextlib.suppress(TraceaError):
            model = optimizer.optimize(model, verify=False).model
    data = bytes(model.SerializeToString())
    c.write(data)
    return _against(c, model, data, [fed, *(resized(fed, r) for _ in range(6))])


#: Kinds whose command runs the model on ONNX Runtime alone, too.
RUNS_STOCK = frozenset({"optimize", "verify", "explain", "session", "sizes"})


def on_stock(inputs: Path) -> None:
    """Loads a case's models and runs them as the case did, on ONNX Runtime alone: as `optimize`
    does before it compares anything, and with the inputs that the case made. What ends the process
    here is its doing.
    """
    for path in (inputs / name for name in ("input.onnx", "other.onnx")):
        with workers.stock(), contextlib.suppress(Exception):
            source = model_file.load(path)
            for optimise in (False, True):
                with contextlib.suppress(Exception):
                    verification.session(source, optimise=optimise)
            _ = verification.measure(source).spread
    fed = inputs / "inputs.pickle"
    if fed.is_file():
        for optimise in (False, True):
            _on_stock(
                (inputs / "input.onnx").read_bytes(),
                pickle.loads(fed.read_bytes()),
                optimize=optimise,
            )


# --- packs, Plans, caches, records, requests ------------------------------------------------------


@_kept
def _made(number: int) -> bytes:
    """`_packed`, as bytes."""
    for k in range(100):
        model, fed = _drawn(Random(f"packed {number} {k}"))
        data = bytes(model.SerializeToString())
        if len(data) > 1 << 18:
            continue
        with (
            contextlib.suppress(Exception),
            compile_requests.recording() as packs,
            compile_requests.listening() as requests,
        ):
            sessions.session(data, provider=True, everything=True)
            pack = builder.merge_packs(packs, "fuzz")
            if builder.read_pack(pack)[0]["entries"]:
                asked = tuple(r.SerializeToString() for r in requests)
                return pickle.dumps((data, fed, pack, asked))
    raise RuntimeError("no model could be packed")


@cache
def _packed(number: int) -> tuple[bytes, dict[str, Any], bytes, tuple[bytes, ...]]:
    """A small model, its inputs, its pack, and the requests that were made for it."""
    found: tuple[bytes, dict[str, Any], bytes, tuple[bytes, ...]] = pickle.loads(_made(number))
    return found


def _some(c: Case) -> tuple[bytes, dict[str, Any], bytes, tuple[bytes, ...]]:
    return _packed(c.random.randrange(40))


def _with_options(data: bytes, fed: Mapping[str, Any], options: Mapping[str, str]) -> Sequence[Any]:
    import onnxruntime as ort

    from tracea_onnx import provider

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    made = provider.create_session(data, {"claim": "all", **options}, settings)
    return list(made.run(None, dict(fed)))


def _run_pack(c: Case, data: bytes, fed: Mapping[str, Any], pack: bytes) -> Verdict:
    path = c.write(pack, "input.pack")
    c.write(data)
    c.feed([fed])
    try:
        _with_options(data, fed, {"kernel_pack": str(path)})
    except Exception as e:
        line = " ".join(str(e).split())
        return (
            Verdict(REFUSED, line[:300])
            if not isinstance(e, (SystemError, MemoryError))
            else _failure("internal", e)
        )
    return Verdict(OK)


def _pack(c: Case) -> Verdict:
    """Bytes that are no pack any more."""
    data, fed, pack, _ = _some(c)
    broken = mutations.damage(pack, c.random)
    if broken != pack:
        with contextlib.suppress(TraceaError):
            builder.read_pack(broken)
    return _run_pack(c, data, fed, broken)


def _changed(c: Case, pack: bytes) -> bytes | None:
    """A well-formed pack with another Plan in it; None where that cannot be written."""
    header, blobs = builder.read_pack(pack)
    entries = json.loads(json.dumps(header["entries"]))
    for at in range(c.random.choice((1, 1, 2, 3))):
        own = Random(f"{c.key}:{at}")
        c.applied.append("tree")
        if at not in c.skip:
            mutations.tree(entries, own)
    try:
        return builder.write_pack(
            [(e["nodes"], e["plan"], [*blobs] if k == 0 else []) for k, e in enumerate(entries)],
            "fuzz",
        )
    except Exception:
        return None


def _plan(c: Case) -> Verdict:
    """A well-formed pack with another Plan in it."""
    data, fed, pack, _ = _some(c)
    changed = _changed(c, pack)
    if changed is None:
        return Verdict(REFUSED, "not written")
    return _run_pack(c, data, fed, changed)


@_kept
def _compiled_of(data: bytes) -> bytes:
    """The model's compiled form (EPContext), with its pack inside."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "compiled.onnx"
        source.write_bytes(data)
        compiled_model.compile_model(source, target, embed=True, options={"claim": "all"})
        return target.read_bytes()


def _compiled(c: Case) -> Verdict:
    """A compiled model that is damaged, says something else, or holds another Plan."""
    data, fed, _, _ = _some(c)
    data = _compiled_of(data)
    model, kind = ModelProto.FromString(data), c.random.random()
    if kind < 0.4:
        for n in model.graph.node:
            own = {a.name: a for a in n.attribute}
            if n.op_type != "EPContext" or not own["main_context"].i:
                continue
            old = own["ep_cache_context"].s
            changed = _changed(c, old)
            if changed is None:
                return Verdict(REFUSED, "not written")
            own["ep_cache_context"].s = changed
            # of the packs' headers
            before, after = (p[32:64].hex().encode() for p in (old, changed))
            for other in model.graph.node:
                for a in other.attribute:
                    if a.name == "partition_name":
                        a.s = a.s.replace(before, after)
    elif kind < 0.9:
        c.mutate(
            model, [mutations.attribute, mutations.attribute_kind, mutations.dims, mutations.nodes]
        )
    data = bytes(model.SerializeToString())
    data = mutations.damage(data, c.random) if kind >= 0.9 else data
    c.write(data)
    try:
        _with_options(data, fed, {})
    except SystemError as e:
        return _failure("internal", e)
    except Exception as e:
        return Verdict(REFUSED, _line(e))
    return Verdict(OK)


def _cache(c: Case) -> Verdict:
    """A cache whose entries were damaged, or replaced by others with a right checksum."""
    data, fed, _, _ = _some(c)
    folder = c.folder / "cache"
    store = Cache(folder)
    options = {"cache_dir": str(folder)}
    try:
        want = _with_options(data, fed, options)
    except Exception as e:
        return Verdict(REFUSED, str(e)[:200])
    right = c.random.random() < 0.5
    for f in sorted(folder.glob("*.entry")):
        raw = f.read_bytes()
        if right:
            payload = mutations.damage(raw[artifact_cache.HEAD :], c.random)
            f.write_bytes(
                raw[: artifact_cache.HEAD - 32] + hashlib.sha256(payload).digest() + payload
            )
        else:
            f.write_bytes(mutations.damage(raw, c.random))
    try:
        got = _with_options(data, fed, options)
    except Exception as e:
        return _failure("denied", e)
    finally:
        store.clear()
    if (
        any(
            not np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
            for a, b in zip(want, got, strict=True)
        )
        and difference.difference(want, got) > 2e-4
    ):
        return Verdict(
            "wrong", "another result with a damaged cache", "wrong after a damaged cache"
        )
    return Verdict(OK)


def _tuning(c: Case) -> Verdict:
    """A tuning record with other contents."""
    from unittest import mock

    _, _, _, requests = _some(c)
    if not requests:
        return Verdict(REFUSED, "no request")
    model = ModelProto.FromString(c.random.choice(requests))
    folder = c.folder / "records"
    with mock.patch.dict(os.environ, {"XDG_DATA_HOME": str(folder)}):
        try:
            offers = json.loads(_offers(bytes(model.SerializeToString())))
            found = {
                k: tuning_records.Measured(c.random.choice(v), 1.0, 2.0, [{}])
                for k, v in offers.items()
            }
            device = device_caps.usual(90, 132)
            path = tuning_records.add(device, found)
            if c.random.random() < 0.7:
                value: object = tuning_records.exported()
                for _ in range(c.random.choice((1, 2, 4))):
                    value = mutations.tree(value, c.random)
                tuning_records.clear()
                tuning_records.imported(json.loads(json.dumps(value)), "the export")
            else:
                path.write_bytes(mutations.damage(path.read_bytes(), c.random))
                tuning_records.trials(device)
                tuning_records.similar(device)
            _compile_cuda(model, tuning_records.choices(device))
        except TraceaError as e:
            return Verdict(REFUSED, str(e))
        except Exception as e:
            return _failure("internal", e)
        finally:
            tuning_records.clear()
    return Verdict(OK)


@_kept
def _offers(request: bytes) -> bytes:
    """Which kernels each launch of a request may be, as JSON."""
    offers: kernel_choice.Offers = {}
    _compile_cuda(ModelProto.FromString(request), kernel_choice.Choices(offers=offers))
    return json.dumps({k: sorted(v) for k, v in offers.items()}).encode()


def _compile_cuda(model: ModelProto, choices: kernel_choice.Choices) -> None:
    backend = plan_writer.writer(backends.get("cuda"), None, choices)
    partition_compiler.compile_graph(
        Graph(model),
        plan_writer.Writer(backend.target, lambda name, probe: backend.plan(name, True)),
        everything=True,
    )


def _request(c: Case) -> Verdict:
    """A request to the compiler of partitions that ONNX Runtime might never make."""
    r = c.random
    _, _, _, requests = _some(c)
    if not requests or r.random() < 0.5:
        model = _seed(c)
        for n in model.graph.node:
            n.doc_string = f"{r.getrandbits(256):064x}"
        model.metadata_props.add(key="claim", value="all")
    else:
        model = ModelProto.FromString(r.choice(requests))
    # Constants are ONNX Runtime's own, so they are what they say.
    c.mutate(
        model, [m for m in mutations.MUTATIONS if m not in (mutations.tensor, mutations.external)]
    )
    if r.random() < 0.1:
        for p in model.metadata_props:
            if p.key == "backend":  # kernels for a GPU would be compiled, for minutes
                continue
            p.value = r.choice((p.value, "", "x", "all", "cpu"))
    if r.random() < 0.6:  # as ONNX Runtime, which tells types and shapes
        with contextlib.suppress(Exception):
            checked = model_file.load(model).model
            onnx_inference.infer(checked, onnx_inference.user_types(checked))
            model = checked
    data = bytes(model.SerializeToString())
    if r.random() < 0.1:
        data = mutations.damage(data, r)
    c.write(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", partition_compiler.Fault)
            pack = compile_requests.compile_request(data)
        header, _ = builder.read_pack(pack)
        for entry in header["entries"]:
            json.dumps(entry)
    except TraceaError as e:
        return Verdict(REFUSED, str(e)[:300])
    except Exception as e:
        try:
            sessions.session(data, optimize=False)
        except Exception:  # ONNX Runtime would never have asked
            return Verdict(REFUSED, str(e)[:100])
        return _failure("internal", e)
    return Verdict(OK)


def _of_the_fuzzer(e: BaseException) -> bool:
    """Whether nothing of the product was at work."""
    frames = traceback.extract_tb(e.__traceback__)
    return not any("tracea_onnx" in Path(f.filename).parts for f in frames)


def _nothing(c: Case, run: Callable[[Case], Verdict]) -> Verdict:
    try:
        return run(c)
    except MemoryError as e:  # of the fuzzer's own comparisons: commands turn theirs into a line
        return Verdict(REFUSED, str(e)[:100]) if _of_the_fuzzer(e) else _failure("traceback", e)
    except Exception as e:  # in a fuzzer's own code, or what a command let out
        return _failure("traceback", e)


_RUN: Mapping[str, Callable[[Case], Verdict]] = {
    "inspect": _inspect,
    "inline": _inline,
    "explain": _explain,
    "optimize": _optimize,
    "verify": _verify,
    "session": _session,
    "sizes": _sizes,
    "pack": _pack,
    "plan": _plan,
    "compiled": _compiled,
    "cache": _cache,
    "tuning": _tuning,
    "request": _request,
}
KINDS: Mapping[str, Callable[[Case], Verdict]] = {
    name: partial(_nothing, run=run) for name, run in _RUN.items()
}
#: How often a kind is drawn.
WEIGHTS: Mapping[str, int] = {
    "inspect": 2,
    "inline": 3,
    "explain": 4,
    "optimize": 5,
    "verify": 2,
    "session": 5,
    "sizes": 5,
    "pack": 3,
    "plan": 3,
    "compiled": 2,
    "cache": 1,
    "tuning": 1,
    "request": 4,
}

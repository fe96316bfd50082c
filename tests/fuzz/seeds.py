"""What cases begin with: exports, ONNX's own tests, drawn models, fused models."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.fuzz import mutations
from tests.fuzz.cases import Case
from tools.fuzz import operator_fuzz
from tracea_onnx.errors import TraceaError
from tracea_onnx.pipeline import optimizer

EXPORTS = Path(__file__).resolve().parents[1] / "exports" / "files"
#: Seeds above this size cost more than they find.
_LARGEST = 24_000


@cache
def exports() -> tuple[Path, ...]:
    return tuple(sorted(p for p in EXPORTS.glob("*/*.onnx") if p.stat().st_size < _LARGEST))


@cache
def export(path: Path) -> bytes:
    return path.read_bytes()


#: The newest format and operator set that ONNX Runtime takes.
_FORMAT, _OPERATORS = 11, 26


def _taken(model: ModelProto) -> bytes:
    """A test in what ONNX Runtime takes: most of the newest ones have nothing that is new."""
    taken = ModelProto()
    taken.CopyFrom(model)
    taken.ir_version = min(model.ir_version, _FORMAT)
    for o in taken.opset_import:
        if not o.domain:
            o.version = min(o.version, _OPERATORS)
    return bytes(taken.SerializeToString())


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
            found.append((_taken(case.model), fed))
    return tuple(found)


def drawn(r: Random) -> tuple[ModelProto, dict[str, Any]]:
    _, model, fed = operator_fuzz.draw(r.randrange(1 << 30), list(operator_fuzz.KINDS))
    return model, fed


#: Where what many cases begin with is kept for all workers; None: each makes it anew.
shared: Path | None = None


def kept(make: Callable[..., bytes]) -> Callable[..., bytes]:
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


@kept
def _fused(model: bytes) -> bytes:
    """The model with fused ops in it, where the optimizer takes it."""
    with contextlib.suppress(TraceaError):
        found = optimizer.optimize(ModelProto.FromString(model), verify=False)
        return bytes(found.model.SerializeToString())
    return model


def seed_model(c: Case) -> ModelProto:
    model = ModelProto()
    kind = c.random.random()
    if kind < 0.65:
        model.ParseFromString(export(c.random.choice(exports())))
    elif kind < 0.8:
        model.ParseFromString(c.random.choice(node_tests())[0])
    else:
        model.CopyFrom(drawn(c.random)[0])
        if model.ByteSize() > 1 << 20:
            model.ParseFromString(export(c.random.choice(exports())))
    if c.random.random() < 0.25:
        model.ParseFromString(_fused(bytes(model.SerializeToString())))
    return model


def model_of(c: Case) -> bytes:
    """A mutated model's bytes."""
    model = seed_model(c)
    c.mutate(model)
    data = bytes(model.SerializeToString())
    return mutations.damage(data, c.random) if c.random.random() < 0.08 else data

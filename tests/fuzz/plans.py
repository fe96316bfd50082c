"""Packs, Plans, compiled models and caches that are damaged, or say something else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto

from tests.fuzz import mutations
from tests.fuzz.cases import OK, REFUSED, Case, failure, line_of
from tests.fuzz.seeds import drawn, kept
from tests.fuzz.workers import Verdict
from tests.support import difference, sessions
from tracea_onnx.compiler import compile_requests
from tracea_onnx.errors import TraceaError
from tracea_onnx.pipeline import compiled_model
from tracea_onnx.plan import builder
from tracea_onnx.support import artifact_cache
from tracea_onnx.support.artifact_cache import Cache


@kept
def _made(number: int) -> bytes:
    """`_packed`, as bytes."""
    for k in range(100):
        model, fed = drawn(Random(f"packed {number} {k}"))
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


def packed_model(c: Case) -> tuple[bytes, dict[str, Any], bytes, tuple[bytes, ...]]:
    return _packed(c.random.randrange(40))


def _with_options(data: bytes, fed: Mapping[str, Any], options: Mapping[str, str]) -> Sequence[Any]:
    """Results. Raises SystemError where an input was written."""
    from tracea_onnx import provider

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    made = provider.create_session(data, {"claim": "all", **options}, settings)
    given = {k: np.array(v) for k, v in fed.items()}
    try:
        return list(made.run(None, dict(given)))
    finally:
        for name, v in fed.items():
            if given[name].tobytes() != np.asarray(v).tobytes():
                raise SystemError(f"input '{name}' was written")


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
            else failure("internal", e)
        )
    return Verdict(OK)


def damaged_pack(c: Case) -> Verdict:
    """Bytes that are no pack any more."""
    data, fed, pack, _ = packed_model(c)
    broken = mutations.damage(pack, c.random)
    if broken != pack:
        with contextlib.suppress(TraceaError):
            builder.read_pack(broken)
    return _run_pack(c, data, fed, broken)


#: Sizes that fit nothing, and the first that overflow something.
_SIZES = (0, 1, -1, 3, 1 << 17, 1 << 31, 1 << 40, 1 << 60, -(1 << 60))


def _resized(entries: Sequence[Any], own: Random) -> None:
    """Other integers in one launch of a CPU Plan, and in no other launch."""
    launches = [
        (e["plan"], launch)
        for e in entries
        for part in ("init", "run")
        for launch in e["plan"][part]
        if launch.get("i")
    ]
    if not launches:
        return
    plan, launch = own.choice(launches)
    for _ in range(own.choice((1, 1, 2, 3))):
        plan["exprs"].append(["const", own.choice(_SIZES)])
        launch["i"][own.randrange(len(launch["i"]))] = len(plan["exprs"]) - 1


def _overlaid(entries: Sequence[Any], own: Random) -> None:
    """Operands of one launch of a CPU Plan where others of it lie."""
    launches = [
        launch["b"]
        for e in entries
        for launch in e["plan"]["run"]
        if len([o for o in launch.get("b", ()) if o]) > 1
    ]
    if not launches:
        return
    operands = own.choice(launches)
    there = [k for k, o in enumerate(operands) if o]
    for _ in range(own.choice((1, 2, 3))):
        k, other = own.sample(there, 2)
        operands[k] = operands[other]


def _changed(c: Case, pack: bytes) -> bytes | None:
    """A well-formed pack with another Plan in it; None where that cannot be written."""
    header, blobs = builder.read_pack(pack)
    entries = json.loads(json.dumps(header["entries"]))
    change = c.random.choice((mutations.tree, mutations.tree, _resized, _overlaid))
    for at in range(c.random.choice((1, 1, 2, 3))):
        own = Random(f"{c.key}:{at}")
        c.applied.append(change.__name__)
        if at not in c.skip:
            change(entries, own)
    try:
        return builder.write_pack(
            [(e["nodes"], e["plan"], [*blobs] if k == 0 else []) for k, e in enumerate(entries)],
            "fuzz",
        )
    except Exception:
        return None


def changed_plan(c: Case) -> Verdict:
    """A well-formed pack with another Plan in it."""
    data, fed, pack, _ = packed_model(c)
    changed = _changed(c, pack)
    if changed is None:
        return Verdict(REFUSED, "not written")
    return _run_pack(c, data, fed, changed)


@kept
def _compiled_of(data: bytes) -> bytes:
    """The model's compiled form (EPContext), with its pack inside."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "compiled.onnx"
        source.write_bytes(data)
        compiled_model.compile_model(source, target, embed=True, options={"claim": "all"})
        return target.read_bytes()


def changed_compiled(c: Case) -> Verdict:
    """A compiled model that is damaged, says something else, or holds another Plan."""
    data, fed, _, _ = packed_model(c)
    held = {t.data_type for t in ModelProto.FromString(data).graph.initializer}
    if held & {TensorProto.INT4, TensorProto.UINT4}:
        return Verdict(REFUSED, "ONNX Runtime gives compiled nodes no weights of 4 bits")
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
        return failure("internal", e)
    except Exception as e:
        return Verdict(REFUSED, line_of(e))
    return Verdict(OK)


def damaged_cache(c: Case) -> Verdict:
    """A cache whose entries were damaged, or replaced by others with a right checksum."""
    data, fed, _, _ = packed_model(c)
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
        return failure("denied", e)
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

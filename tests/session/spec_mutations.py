"""Sessions over models whose specs were changed at random, with `specs=trust`: each ends in a
result of the right shape or in one line.

    python -m tests.session.spec_mutations MODEL.onnx FIRST COUNT [SEED]

prints each case that does not
"""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.fuzz import workers
from tests.fuzz.workers import Limits, Verdict
from tests.session.test_models import feeds
from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.abi import OPCODES
from tracea_onnx.ir.contracts import SPEC_ATTRIBUTE
from tracea_onnx.match import spec_table

INTS = (0, -1, 1, 2, 3, 7, 1 << 20, 1 << 40, -(1 << 40))
FLOATS = (0.0, -1.0, 1e-30, 1e38, 1e308, -1e308, float("nan"), float("inf"))
OTHERS: tuple[Any, ...] = (
    None,
    True,
    "",
    "x" * 1000,
    [],
    {},
    [[]],
    {"layout": "bsx"},
    1.5,
    3,
    "-inf",
    "kv",
)
STRINGS = (
    "none",
    "add",
    "bool",
    "drop",
    "bsx",
    "bhsd",
    "bshd",
    "bhds",
    "bs3x",
    "sb3x",
    "hsd",
    "bxs",
    "bs999x",
    "kv",
    "-inf",
    "nan",
    "VALID",
    "SAME_UPPER",
    "gemm",
    "",
)
ROLES = sorted(
    {r for op in spec_table.OPS.values() for r in (*op.roles, *op.optional)}
    | {"e0", "e1", "e9", "x0", "x1", "y"}
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON tree."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(p for k, v in inner for p in _places(v, (*at, k)))]


def _changed(value: Any, rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(OTHERS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTS, value + 1, value - 1, value * 2))
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(STRINGS if value not in OPCODES else OPCODES)
    if isinstance(value, list) and value:
        k = rng.randrange(len(value))
        return rng.choice((value[:k] + value[k + 1 :], [*value, value[k]], value[::-1], []))
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {k: v for k, v in value.items() if k != key}
    return rng.choice(OTHERS)


def mutate(spec: dict[str, Any], others: list[dict[str, Any]], rng: random.Random) -> Any:
    """A changed copy: one to three changes to values anywhere in it, to its roles, or to which op
    it names.
    """
    out: Any = copy.deepcopy(spec)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not isinstance(out, dict):
            break
        kind, roles, attrs = rng.random(), out.get("roles"), out.get("attrs")
        if kind < 0.1:
            out["op"] = rng.choice((*spec_table.OPS, "nothing"))
        elif kind < 0.3 and isinstance(roles, list) and roles:
            a, b = rng.randrange(len(roles)), rng.randrange(len(roles))
            if rng.random() < 0.5:
                roles[a], roles[b] = roles[b], roles[a]
            else:
                roles[a] = rng.choice(ROLES)
        elif kind < 0.4:
            out["attrs"] = copy.deepcopy(rng.choice(others).get("attrs"))
        elif kind < 0.5 and isinstance(attrs, dict):
            op = rng.choice(list(spec_table.OPS.values()))
            attrs[rng.choice(list(op.forms()))] = rng.choice((*INTS, *FLOATS, *STRINGS, *OTHERS))
        else:
            # Places lie mostly in expressions: those of the attributes themselves get their turn
            # first.
            places = [list(p) for p in _places(out) if p and (len(p) <= 3 or rng.random() < 0.3)]
            *outer, last = rng.choice(places)
            holder = out
            for k in outer:
                holder = holder[k]
            holder[last] = _changed(holder[last], rng)
    return out


def work(path: Path, seed: int) -> workers.Work:
    model = onnx.load(path)
    inputs = feeds(model, 2, 5, 0)
    at = [k for k, n in enumerate(model.graph.node) if fused_op_names.spec_text(n) is not None]
    texts = [fused_op_names.spec_text(model.graph.node[k]) or "" for k in at]
    known = [json.loads(t) for t in texts]

    honest = model.SerializeToString()
    right: list[Any] = []

    def case(index: int, folder: Path) -> Verdict:
        # by the worker itself: a session's threads do not survive a fork
        wanted = right or _run(honest, inputs, folder / "cache")
        right[:] = wanted
        rng = random.Random(f"{seed} {path.name} {index}")
        which = rng.randrange(len(at))
        node = model.graph.node[at[which]]
        text = json.dumps(mutate(known[which], known, rng))
        attribute = next(a for a in node.attribute if a.name == SPEC_ATTRIBUTE)
        attribute.s = text.encode()
        spec, why = spec_table.read(text)
        refused = bool(why) or spec is None or bool(spec_table.fault(spec, node.input, node.output))
        try:
            found = _run(model.SerializeToString(), inputs, folder / "cache")
        except partition_compiler.Fault as e:
            return Verdict("fault", str(e), str(e), f"{node.op_type} {text}")
        except Exception as e:
            line = str(e).strip()
            known_end = "\n" not in line and type(e).__module__.startswith(
                ("tracea_onnx", "onnxruntime")
            )
            return Verdict(
                "refused" if known_end else "odd end",
                f"{type(e).__name__}: {line[:300]}",
                type(e).__name__,
                f"{node.op_type} {text}",
            )
        finally:
            attribute.s = texts[which].encode()
        if [a.shape for a in found] != [a.shape for a in wanted]:
            return Verdict("wrong shape", "", "wrong shape", f"{node.op_type} {text}")
        if refused and not all(
            np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(found, wanted, strict=True)
        ):
            return Verdict(
                "wrong",
                "another result though the spec was refused",
                "wrong",
                f"{node.op_type} {text}",
            )
        return Verdict("ok", "refused" if refused else "ran")

    return case


def _run(model: bytes, inputs: dict[str, Any], cache: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        session = provider.create_session(
            model, {"backend": "cpu", "specs": "trust", "cache_dir": str(cache)}
        )
        return session.run(None, inputs)


def main(path: str, first: str, count: str, seed: str = "0") -> int:
    provider.register()
    bad, seen = 0, collections.Counter[str]()
    for index, v in workers.run(
        work(Path(path), int(seed)),
        int(count),
        first=int(first),
        limits=Limits(seconds=10.0, memory=0),
    ):
        seen[f"{v.status} ({v.line})" if v.status == "ok" else v.status] += 1
        if v.status not in ("ok", "refused"):
            bad += 1
            print(f"case {index}: {v.status}: {v.line}\n    {v.detail[-1500:]}")
    print(dict(seen))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Models on ONNX Runtime, then on the provider, with the same inputs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper

from tests.fuzz import mutations
from tests.fuzz.cases import ACCEPTED, DENIED, OK, REFUSED, Case, line_of
from tests.fuzz.judges import (
    RANDOM,
    as_onnx_says,
    claims_falsely,
    computed,
    differ,
    is_of_nothing,
    is_rounding,
    overflows,
    pads_what_is_not_finite,
    quantises_nan,
    reads_garbage,
    stock_results,
    undeclared,
)
from tests.fuzz.seeds import drawn, export, exports, model_of, node_tests
from tests.fuzz.workers import Verdict
from tests.support import sessions
from tracea_onnx.errors import TraceaError
from tracea_onnx.pipeline import optimizer


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


def _against(c: Case, model: ModelProto, data: bytes, fed: Sequence[Mapping[str, Any]]) -> Verdict:
    """The model on ONNX Runtime, then on the provider, on the same inputs.

    What ends the process already without the provider is not judged.
    """
    c.feed(fed)
    everything = c.random.random() < 0.8
    wanted = stock_results(data, fed, optimize=False)
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
            or stock_results(data, [], optimize=True) is None
            or stock_results(undeclared(model), [], optimize=False) is None
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
                why = line_of(e)
                if why.endswith(": the plan is damaged"):  # and it was made just now
                    return Verdict("damaged", why, "damaged " + why[-80:])
            continue
        if isinstance(want, Exception) and sessions.assigned(ours)[0]:
            odd[ACCEPTED] += 1
            why = line_of(want)
        if (
            not isinstance(want, list)
            or any(n.op_type.startswith(RANDOM) for n in model.graph.node)
            or pads_what_is_not_finite(model)
            or quantises_nan(model)
            or differ(model, want, got) <= 2e-3
        ):
            continue
        # ONNX Runtime's own optimisations may be wrong about odd models, too
        other = stock_results(data, [values], optimize=True)
        if other and isinstance(other[0], list) and differ(model, want, other[0]) > 2e-3:
            continue
        if as_onnx_says(model, values, got) or reads_garbage(data, values):
            continue
        made = computed(model, values)
        if is_of_nothing(model, [*values.values(), *made]) or overflows(model, made):
            continue
        if is_rounding(model, values, got):
            continue
        shapes = {k: np.shape(v) for k, v in values.items()}
        return Verdict(
            "wrong",
            f"{differ(model, want, got):.1e} apart, {operators}; fed {shapes}",
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


def changed_model(c: Case) -> Verdict:
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


def unfit_inputs(c: Case) -> Verdict:
    """Whole models with unknown sizes, and inputs whose sizes or integers do not fit."""
    r = c.random
    if r.random() < 0.5:
        data, fed = r.choice(node_tests())
        model = ModelProto.FromString(data)
    elif r.random() < 0.6:
        model, fed = drawn(r)
    else:
        model = ModelProto.FromString(export(r.choice(exports())))
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

"""Padding of strided tensors, in any mode, by one launch."""

from __future__ import annotations

import itertools

from tracea_onnx.codegen.kernel_request import Int64, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import factor
from tracea_onnx.plan.kernel_families import PADDED

from ..common.epilogue import Parameter
from ..common.instantiate import instance, ints, longs, pointer, unsigned
from ..common.launch import WORDS, blocks, known, parameters, reciprocal, static

#: (bytes of a vector, vectors in flight) of a thread where the result is one run: below _FEW
#: elements, and from there on.
_FEW, _SMALL, _LARGE = 1 << 15, (4, 4), (16, 1)
_MODES = ("kConstant", "kReflect", "kEdge", "kWrap")


def pad(request: Request) -> list[Kernel]:
    i = parameters(request)
    elem = static(i["elem"], "element size")
    names = ("n", "m", "p", "x", "y")
    rows = [{c: i[f"{c}{k}"] for c in names} for k in range(PADDED)]
    rows = [r for r in rows if known(r["n"]) != 1 or known(r["m"]) != 1] or rows[-1:]
    value = static(i["value"], "fill") & ((1 << 8 * elem) - 1)
    last, wide = rows[-1], 16 // elem
    whole = (
        known(last["p"]) == 0
        and last["n"] == last["m"]
        and known(last["x"]) == known(last["y"]) == 1
    )
    steps = [r[c] for r in rows[:-1] for c in "xy"]
    word, fill = WORDS[elem], f"{WORDS[elem]}(fill)"
    if whole and not request.unaligned and all(factor(s) % wide == 0 for s in (*steps, last["n"])):
        rows = [
            {**r, "x": D.floordiv(r["x"], wide), "y": D.floordiv(r["y"], wide)} for r in rows[:-1]
        ]
        rows.append({**last, "n": D.floordiv(last["n"], wide), "m": D.floordiv(last["m"], wide)})
        value = sum(value << 8 * elem * k for k in range(8 // elem))
        word, fill = "uint4", "make_uint4(u32(fill), u32(fill >> 32), u32(fill), u32(fill >> 32))"
    count = range(len(rows))
    axes = ", ".join(f"{{n{k}, m{k}, p{k}, per{k}, x{k}, y{k}}}" for k in count)
    run = (
        "y" not in request.unaligned
        and all(a["y"] == D.mul(b["n"], b["y"]) for a, b in itertools.pairwise(rows))
        and known(last["y"]) == 1
    )
    total = D.product([r["n"] for r in rows])
    bytes, each = _SMALL if known(D.less(total, _FEW)) == 1 else _LARGE
    side = max(bytes // elem, 1) if run and word != "uint4" else 1
    each = 2 if word == "uint4" else each if run else 4
    signed = value - (1 << 64) if value >> 63 else value
    given: list[Parameter] = [
        pointer(f"const {word}", "x", "from"),
        pointer(word, "y", "to"),
        ("u64", "fill", Int64(signed)),
        *ints({f"{c}{k}": r[c] for c in "nmp" for k, r in enumerate(rows)}),
        *unsigned({f"per{k}": reciprocal(r["n"]) for k, r in enumerate(rows)}),
        *longs({f"{c}{k}": r[c] for c in "xy" for k, r in enumerate(rows)}),
    ]
    units = D.ceildiv(total, side)
    most = D.ceildiv(units, 1024 if word == "uint4" else 256 * each)
    call = f"pad<{_MODES[static(i['mode'], 'mode')]}, {side}, {each}>(from, to, {fill}, axes);"
    return [
        instance(
            request,
            "pad_kernel",
            "movement/pad",
            given,
            blocks(units, 256, D.maximum(request.sms * 8, most)),
            256,
            f"pdl_launch_dependents();\n  const Axis axes[{len(rows)}] = {{{axes}}};\n  {call}",
            dtype=DType.F32,
        )
    ]


FAMILIES = {"pad": pad}

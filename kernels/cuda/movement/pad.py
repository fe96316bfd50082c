"""The CUDA kernel for padding: every mode, of strided tensors, in one launch."""

from __future__ import annotations

import itertools

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import factor
from tracea_onnx.plan.kernel_families import PADDED

from ..common.launch import WORDS, blocks, known, overlapped, parameters, reciprocal, static
from ..common.prelude import prelude
from ..common.templates import template

#: Bytes side by side of a result that is one run that a thread makes, and how often it does at
#: once: of fewer than so many elements, and of more.
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
    signature = ", ".join(
        [f"int {c}{k}" for c in "nmp" for k in count]
        + [f"u32 per{k}" for k in count]
        + [f"i64 {c}{k}" for c in "xy" for k in count]
    )
    source = f"""{prelude(DType.F32)}{template("common/base", "common/vector_io", "movement/pad")}
extern "C" __global__ void __launch_bounds__(256) pad_kernel(const {word}* from, {word}* to, u64 fill, {signature}) {{
  next_may_start();
  const Axis axes[{len(rows)}] = {{{axes}}};
  pad<{_MODES[static(i["mode"], "mode")]}, {side}, {each}>(from, to, {fill}, axes);
}}
"""
    sizes: tuple[Argument, ...] = (
        *(Int32(r[c]) for c in "nmp" for r in rows),
        *(Int32(reciprocal(r["n"])) for r in rows),
        *(Int64(r[c]) for c in "xy" for r in rows),
    )
    signed = value - (1 << 64) if value >> 63 else value
    units = D.ceildiv(total, side)
    grid = (
        blocks(
            units,
            256,
            D.maximum(request.sms * 8, D.ceildiv(units, 1024 if word == "uint4" else 256 * each)),
        ),
        1,
        1,
    )
    return [
        Kernel(
            source,
            "pad_kernel",
            grid,
            256,
            (Pointer("x"), Pointer("y"), Int64(signed), *sizes),
            pdl=overlapped(request),
        )
    ]


FAMILIES = {"pad": pad}

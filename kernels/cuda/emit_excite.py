"""Squeeze-excite in one launch on Hopper: a cluster has an image."""

from __future__ import annotations

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Float32, Int32, Int64, Kernel, Pointer, Request, Unfit
from tracea_onnx.cuda_source import known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import activation_source, prelude

#: Threads of a block, vectors that a slice of the channels has at least, and bytes of the image that a block may keep.
_THREADS, _SLICE, _KEPT = 256, 8, 80 * 1024
#: Blocks of a cluster; and for images of more bytes than this, on devices where that many multiprocessors lie together.
_BLOCKS, _LARGE, _LARGE_BLOCKS, _LARGE_DEVICE = 8, 256 * 1024, 16, 132
#: Most vectors of a slice, and of them times hidden channels, that shared memory is laid out for.
_WIDEST, _SUMS = 128, 1 << 14


def squeeze_excite(request: Request) -> list[Kernel]:
    i, wide = parameters(request), 16 // request.dtype.size
    c, r = static(i["C"], "channel count"), static(i["R"], "hidden channel count")
    vectors = -(-c // wide)
    pixels = known(D.mul(i["H"], i["W"]))
    large = pixels is not None and pixels * vectors * 16 >= _LARGE and request.sms >= _LARGE_DEVICE
    across = max(k for k in (1, 2, 4, 8) if k == 1 or vectors >= k * _SLICE)
    piece = -(-vectors // across)
    down = (_LARGE_BLOCKS if large else _BLOCKS) // across
    pitches = [i[f"{s}_{p}"] for s in "xy" for p in ("cs", "rs", "ns")]
    whole = not request.unaligned & {"x", "y"} and all(known(D.mod(p, wide)) == 0 for p in pitches)
    if request.arch < 90 or piece > _WIDEST or r * piece > _SUMS or not whole:
        raise Unfit("squeeze-excite that one launch cannot compute")
    kept = min(_KEPT, -(-pixels // down) * piece * 16) if pixels is not None else 0
    sums = 4 * (max(_THREADS // piece * piece * wide, r * piece) + 2 * piece * wide + 2 * r)
    sizes = {"C": c, "R": r, "THREADS": _THREADS, "ACROSS": across, "DOWN": down, "SLICE": piece, "KEPT": kept, "EARLY": int({"w1", "w2"} <= request.constant)}
    acts = (static(i[k], "activation") for k in ("act1", "act2"))
    present = [o for o in ("x", "w1", "b1", "w2", "b2", "y") if o in request.operands]
    kinds = {"b1": "const float*", "b2": "const float*", "y": "T*"}
    place = {o: o if o in present else "nullptr" for o in ("x", "y", "w1", "b1", "w2", "b2")}
    source = f"""{prelude(request.dtype)}{"".join(activation_source(a, n) for a, n in zip(acts, ("first_act", "second_act"), strict=True))}{template("base")}
{"".join(f"constexpr int {k} = {v};{chr(10)}" for k, v in sizes.items())}{template("excite")}
extern "C" __global__ void __launch_bounds__({_THREADS}) squeeze_excite({", ".join(f"{kinds.get(o, 'const T*')} {o}" for o in present)}, int H, int W,
    int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns, float p0, float p1, float q0, float q1) {{
  excite({", ".join(place.values())}, H, Plane{{W, x_cs, x_rs, x_ns}}, Plane{{W, y_cs, y_rs, y_ns}}, p0, p1, q0, q1);
}}
"""
    side = [(Int32(i[f"{s}_cs"]), Int64(i[f"{s}_rs"]), Int64(i[f"{s}_ns"])) for s in "xy"]
    floats = (Float32(request.floats.get(k, 0.0)) for k in ("p0", "p1", "q0", "q1"))
    args: tuple[Argument, ...] = (*(Pointer(o) for o in present), Int32(i["H"]), Int32(i["W"]), *side[0], *side[1], *floats)
    empty = D.equal(D.mul(i["H"], i["W"]), 0)
    grid = (D.select(empty, 0, D.mul(i["N"], across * down)), 1, 1)
    return [Kernel(source, "squeeze_excite", grid, _THREADS, args, smem=kept + sums, cluster=across * down, pdl=overlapped(request))]


FAMILIES = {"squeeze_excite": squeeze_excite}

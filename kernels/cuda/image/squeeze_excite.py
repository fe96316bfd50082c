"""Squeeze-excite in one launch (sm_90 and later): a cluster has one or several images."""

from __future__ import annotations

from typing import NamedTuple

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import weight_pitch

from ..common.instantiate import constexprs, floats, instance, ints, longs, pointer
from ..common.launch import known, parameters, static
from ..common.prelude import activation_source

#: Channels * hidden channels: most for this kernel; from which on weights cost more than pixels;
#: from which on a CTA reads a part of the weights, not all.
_MOST_WEIGHTS, _HEAVY, _SLICED = 1 << 20, 100000, 9000
#: Least bytes of an image whose time is bound by memory; bytes that a CTA keeps of images of
#: symbolic size.
_LARGE, _KEPT = 400 * 1024, 64 * 1024
#: Portable cluster size; SMs from which on clusters of 16 are used; most bytes of sums of a CTA,
#: and least bytes of shared memory besides.
_CLUSTER, _BIG_DEVICE, _MOST_SUMS, _LEFT = 8, 132, 96 * 1024, 16 * 1024


class Shape(NamedTuple):
    """Division of a cluster: slices of channels, ranges of pixels, images, threads per CTA."""

    across: int
    down: int
    images: int = 1
    threads: int = 256


def squeeze_excite(request: Request) -> list[Kernel]:
    """The best shape depends on the number of images: a launch per range of it; one launch runs."""
    n = parameters(request)["N"]
    kernels, low = [], -1
    for most, shape in _ranges(request):
        inside = D.mul(D.less(low, n), D.less(n, most + 1) if most is not None else 1)
        low = low if most is None else most
        if inside != 0:
            kernels.append(_kernel(request, shape, inside))
    return kernels


def _ranges(request: Request) -> list[tuple[int | None, Shape]]:
    """(most images, shape), ascending; None: any number. By measurement on an H200, which has room
    for 7 clusters of 16 large CTAs at once, for 15 of 8, 30 of 4, 66 of 2: one cluster too many
    costs as much as that many again.
    """
    i, sms, caps = parameters(request), request.sms, request.caps
    most_sums, cluster = min(_MOST_SUMS, caps.smem_block - _LEFT), caps.largest_cluster(_CLUSTER)
    c, r = static(i["C"], "channel count"), static(i["R"], "hidden channel count")
    wide = 16 // request.dtype.size
    pixels, vectors = known(D.mul(i["H"], i["W"])), -(-c // wide)
    large = pixels is not None and pixels * vectors * 16 >= _LARGE
    heavy = c * r >= _HEAVY

    def share(blocks: int, images: int = 1, threads: int = 256) -> Shape:
        blocks = blocks if blocks <= caps.cluster else cluster
        # slices of 32 bytes: a sector of memory
        sliced = c * r >= _SLICED and vectors >= 2 * blocks
        shape = Shape(blocks, 1, images, threads) if sliced else Shape(1, blocks, 1, threads)
        return shape if _sums(shape, vectors, wide, r) <= most_sums else Shape(cluster, 1, 1, 512)

    few = sms * 7 // (16 * 8) if sms >= _BIG_DEVICE and caps.cluster >= 16 else -1
    crowd = share(3, 1, 512) if large else share(6, 2, 512) if heavy else share(8)
    found = [
        (few, share(16)),
        (sms // 8, share(8, 1, 512 if heavy else 256)),
        (2 * sms // 3, crowd),
        (None, crowd if large else share(2, 2, 512) if heavy else share(1, 1, 512)),
    ]
    return [
        (most, shape)
        for k, (most, shape) in enumerate(found)
        if k + 1 == len(found) or shape != found[k + 1][1]
    ]


def _sums(shape: Shape, vectors: int, wide: int, r: int) -> int:
    """Bytes of shared memory beside the image: barriers and what the template lays out after them;
    more than there is if a slice has more vectors than threads.
    """
    piece = -(-vectors // shape.across)
    if piece > shape.threads:
        return 1 << 30
    rows, groups = shape.threads // piece, max(1, shape.threads // (piece * 2))
    scratch = max(max(groups, min(rows, r)) * piece * wide, r * (piece | 1)) * shape.images
    pushed = [1 + (n if n > 1 else 0) for n in (shape.down, shape.across)]
    return 16 + 4 * (
        scratch + piece * wide * (1 + shape.images * pushed[0]) + r * shape.images * pushed[1]
    )


def _kernel(request: Request, shape: Shape, use: DimLike) -> Kernel:
    """The launch in that shape; no CTAs where `use` is 0."""
    i, size = parameters(request), request.dtype.size
    wide = 16 // size
    c, r = static(i["C"], "channel count"), static(i["R"], "hidden channel count")
    pixels = known(D.mul(i["H"], i["W"]))
    vectors, blocks = -(-c // wide), shape.across * shape.down
    piece, sums = -(-vectors // shape.across), _sums(shape, vectors, wide, r)
    pitches = [i[f"{s}_{p}"] for s in "xy" for p in ("cs", "rs", "ns")]
    whole = not request.unaligned & {"x", "y"} and all(known(D.mod(p, wide)) == 0 for p in pitches)
    pixel = shape.images * piece * 16
    if (
        request.arch < 90
        or c * r > _MOST_WEIGHTS
        or sums + pixel > request.caps.smem_block
        or not whole
    ):
        raise NoKernel("squeeze-excite that one launch cannot compute")
    held = max(
        1,
        min(
            (request.caps.smem_block - sums) // pixel,
            -(-pixels // shape.down) if pixels is not None else _KEPT // pixel,
        ),
    )
    constants = {"w1", "b1", "w2", "b2"} & request.operands
    flat = {s: int(D.equal(i[f"{s}_rs"], D.mul(i["W"], i[f"{s}_cs"])) == 1) for s in "xy"}
    sizes = {k.upper(): v for k, v in shape._asdict().items()}
    sizes |= {"C": c, "R": r, "PITCH": weight_pitch(c, size), "SLICE": piece, "HELD": held}
    sizes |= {"X_FLAT": flat["x"], "Y_FLAT": flat["y"]}
    sizes["EARLY"] = int(constants <= request.constant)
    acts = "".join(
        activation_source(static(i[act], "activation"), name)
        for act, name in (("act1", "first_act"), ("act2", "second_act"))
    )
    present = [o for o in ("x", "w1", "b1", "w2", "b2", "y") if o in request.operands]
    kinds = {"b1": "const float", "b2": "const float", "y": "T"}
    given = [pointer(kinds.get(o, "const T"), o) for o in present]
    given += ints({k: i[k] for k in ("N", "H", "W")})
    for s in "xy":
        given += ints({f"{s}_cs": i[f"{s}_cs"]})
        given += longs({f"{s}_{p}": i[f"{s}_{p}"] for p in ("rs", "ns")})
    given += floats({k: request.floats.get(k, 0.0) for k in ("p0", "p1", "q0", "q1")})
    absent = "".join(f"const float* {o} = nullptr;\n  " for o in ("b1", "b2") if o not in present)
    planes = "Plane{W, x_cs, x_rs, x_ns}, Plane{W, y_cs, y_rs, y_ns}"
    empty = D.equal(D.mul(i["H"], i["W"]), 0)
    grid = D.select(empty, 0, D.mul(D.ceildiv(i["N"], shape.images), blocks))
    return instance(
        request,
        "squeeze_excite",
        "image/squeeze_excite",
        given,
        D.mul(use, grid),
        shape.threads,
        f"{absent}squeeze_excite_cta(x, y, w1, b1, w2, b2, N, H, {planes}, p0, p1, q0, q1);",
        before=acts + constexprs(sizes),
        smem=held * pixel + sums,
        cluster=blocks,
    )


FAMILIES = {"squeeze_excite": squeeze_excite}

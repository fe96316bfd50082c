"""CUDA kernels over channels-last images: pooling, resizing, sampling, responses."""

from __future__ import annotations

from collections.abc import Mapping

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    Unfit,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common.launch import about, blocks, known, overlapped, parameters, static
from ..common.prelude import C_TYPES, prelude
from ..common.templates import template

#: Pixels that a thread of global pooling reads at most before an image is split, pixels of a slice,
#: and the most slices.
_SPLIT_FROM, _SLICE, _SLICES = 64, 256, 32
#: Pixels that a thread of global pooling has on their way at once, how often it should, and blocks
#: of a cluster (that divide an image, where clusters are few).
_AHEAD, _ROUNDS, _BESIDE = 8, 6, 8
#: Bytes of images from which on memory bounds global pooling; pixels that threads beside each other
#: should have, at most, before they have more channels.
_MUCH, _SMALL = 4_000_000, 16


def _head(request: Request) -> str:
    return prelude(request.dtype) + template(
        "common/base", "common/half2_max", "common/cluster", "image/pool_resize"
    )


def _pitch(request: Request, side: str) -> tuple[Argument, ...]:
    return (
        Int32(parameters(request)[f"{side}_cs"]),
        Int64(parameters(request)[f"{side}_rs"]),
        Int64(parameters(request)[f"{side}_ns"]),
    )


def _units(request: Request, bytes: int = 16) -> DimLike:
    """Output pixels times that many bytes of channels, of which whole eights are written where
    pitches are such (`vectors_of`).
    """
    i, wide = parameters(request), bytes // request.dtype.size
    channels = D.mul(D.ceildiv(i["C"], 8), 8) if known(D.mod(i["y_cs"], 8)) == 0 else i["C"]
    return D.product([i["N"], i["OH"], i["OW"], D.ceildiv(channels, wide)])


def _pixels(request: Request, bytes: int = 16, lanes: int = 1) -> DimLike:
    """Blocks for so many threads of each of these."""
    return blocks(D.mul(_units(request, bytes), lanes), 256, request.sms * 16)


#: Windows of at most so many taps along an axis are unrolled.
_UNROLLED = 7
_WINDOW = ("KH", "KW", "SH", "SW", "DH", "DW")
_PITCHES = ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns")
_POOL = (
    "N",
    "C",
    "IH",
    "IW",
    "OH",
    "OW",
    "KH",
    "KW",
    "SH",
    "SW",
    "DH",
    "DW",
    "PT",
    "PL",
    "PB",
    "PR",
)


#: Threads of a multiprocessor that neighbours should divide windows for, taps of such a window and
#: of such a thread at least.
_DIVIDE, _WINDOW_FROM, _LEAST_TAPS = 1024, 12, 2


def pool2d(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode = static(i["mode"], "pooling mode")
    window = known(i["KH"]), known(i["KW"])
    kh, kw = window if max(k or _UNROLLED + 1 for k in window) <= _UNROLLED else (0, 0)
    lanes = _lanes(request)
    kh, kw = window if lanes > 1 else (kh, kw)
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__(256) pool2d(const T* x, T* y, {", ".join(f"int {n}" for n in _POOL)},
    int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns) {{
  after_previous();
  pool<{mode}, {kh}, {kw}, {lanes}>(x, y, Pool{{{", ".join(_POOL)}}}, Pitch{{x_cs, x_rs, x_ns}}, Pitch{{y_cs, y_rs, y_ns}});
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"),
        Pointer("y"),
        *(Int32(i[n]) for n in _POOL),
        *_pitch(request, "x"),
        *_pitch(request, "y"),
    )
    return [
        Kernel(
            source,
            "pool2d",
            (_pixels(request, 16, lanes), 1, 1),
            256,
            args,
            pdl=overlapped(request),
        )
    ]


def _lanes(request: Request) -> int:
    """Threads that divide the window of an output, where these are known to be few."""
    i = parameters(request)
    kh, kw = known(i["KH"]), known(i["KW"])
    if kh is None or kw is None or kh * kw < _WINDOW_FROM:
        return 1
    results = about(
        D.product([i["N"], i["OH"], i["OW"], D.ceildiv(i["C"], 16 // request.dtype.size)]),
        request.sms * _DIVIDE,
    )
    lanes = 1
    while (
        lanes < 32
        and results * lanes * 2 <= request.sms * _DIVIDE
        and kh * kw >= 2 * lanes * _LEAST_TAPS
    ):
        lanes *= 2
    return lanes


def global_pool(request: Request) -> list[Kernel]:
    i, largest = (
        parameters(request),
        "false" if static(parameters(request)["mode"], "pooling mode") else "true",
    )
    n, c, pixels = i["N"], static(i["C"], "channel count"), D.mul(i["H"], i["W"])
    size = known(pixels)
    wide = (
        16 // request.dtype.size
        if all(
            known(D.mod(i[f"x_{p}"], 16 // request.dtype.size)) in (0, None)
            for p in ("cs", "rs", "ns")
        )
        else 1
    )
    # As many threads across the channels as leave a block for each multiprocessor, but whole lines
    # of memory where they can.
    lanes = next(
        (k for k in (32, 16, 8) if about(n, 1) * -(-c // (k * wide)) >= request.sms),
        2 if wide > 1 else 8,
    )
    lanes = _wider(request, lanes, wide, size)
    slices = (
        min(_SLICES, -(-size // _SLICE))
        if size is not None and size >= _SPLIT_FROM * (256 // lanes)
        else 1
    )
    across = -(-c // (lanes * wide))
    beside = _beside(request, size, 256 // lanes, across)
    slices = 1 if beside > 1 else slices
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__(256) global_pool(const T* x, T* y, float* partial, int N, int C, int H, int W, int cs, i64 rs, i64 ns, i64 y_ns,
    int across) {{
  after_previous();
  pool_whole<{largest}, {"true" if wide > 1 else "false"}, {lanes}, {beside}>(x, y, partial, N, C, H, W, Pitch{{cs, rs, ns}}, y_ns, across);
}}
extern "C" __global__ void __launch_bounds__(256) join(const float* partial, T* y, int slices, int N, int C, int pixels, i64 y_ns) {{
  after_previous();
  pool_join<{largest}>(partial, y, slices, N, C, pixels, y_ns);
}}
"""
    scratch: tuple[DimLike, ...] = (D.mul(n, slices * c * 4),) if slices > 1 else ()
    sizes = (Int32(n), Int32(c), Int32(i["H"]), Int32(i["W"]))
    args: tuple[Argument, ...] = (
        Pointer("x"),
        Pointer("y"),
        Pointer("scratch0"),
        *sizes,
        *_pitch(request, "x"),
        Int64(i["y_ns"]),
        Int32(across),
    )
    first = Kernel(
        source,
        "global_pool",
        (D.mul(n, across * beside), slices, 1),
        256,
        args,
        cluster=beside,
        scratch=scratch,
        pdl=overlapped(request),
    )
    if slices == 1:
        return [first]
    args = (
        Pointer("scratch0"),
        Pointer("y"),
        Int32(slices),
        Int32(n),
        Int32(c),
        Int32(pixels),
        Int64(i["y_ns"]),
    )
    return [
        first,
        Kernel(
            source, "join", (D.ceildiv(D.mul(n, c), 256), 1, 1), 256, args, pdl=overlapped(request)
        ),
    ]


def _wider(request: Request, lanes: int, wide: int, pixels: int | None) -> int:
    """Threads across the channels of global pooling of few images: more where clusters divide much
    memory, of which threads should read whole lines, and where there are few pixels."""
    n, c, size = (
        about(request.ints["N"], 0),
        static(request.ints["C"], "channel count"),
        request.dtype.size,
    )
    if pixels is None:
        return lanes
    vectors = -(-c // wide)
    if lanes == 2 and wide > 1 and request.arch >= 90 and n * c * pixels * size >= _MUCH:
        lanes = next(
            (
                k
                for k in (32, 16, 8)
                if vectors >= k and n * -(-vectors // k) * _BESIDE >= request.sms // 2
            ),
            lanes,
        )
    while lanes < 32 and lanes < vectors and pixels * lanes <= _SMALL:
        lanes *= 2
    return lanes


def _beside(request: Request, pixels: int | None, down: int, across: int) -> int:
    """Blocks of a cluster that divide the pixels of a few images, of which each reads `down` at a
    time.
    """
    n = about(request.ints["N"], 0)
    if pixels is None or n == 0 or request.arch < 90:
        return 1
    rounds = -(-pixels // (_AHEAD * down))
    if rounds == 1 or rounds > _BESIDE * _ROUNDS:
        return 1
    beside = 1
    while (
        beside < min(rounds, _BESIDE, request.caps.cluster)
        and 2 * beside * n * across <= 4 * request.sms
    ):
        beside *= 2
    return beside


#: Channels that a response is normalised by, at most: a thread has them in registers.
_MOST_CHANNELS = 65
_RESIZE = ("N", "C", "IH", "IW", "OH", "OW")
#: Threads of a multiprocessor up to which resizing has small blocks, which spread evenly.
_FEW, _FEW_BLOCK = 1024, 64


def resize2d(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode, coord, rounding = (static(i[k], f"resize {k}") for k in ("mode", "coord", "rounding"))
    if mode not in (0, 1):
        raise Unfit(f"resize mode {mode}")
    return _resize(
        request, f"resize<{'true' if mode else 'false'}, {coord}, {rounding}>(x, y, g,", {}, 16
    )


def resize_cubic(request: Request) -> list[Kernel]:
    return _resize(
        request,
        f"resize_cubic<{static(parameters(request)['coord'], 'resize coord')}>(x, y, g, a,",
        {"a": request.floats["a"]},
        8,
    )


def _resize(request: Request, call: str, more: Mapping[str, float], wide: int) -> list[Kernel]:
    """call: what computes the image, up to its last two arguments. wide: bytes of channels of a
    thread.
    """
    i, floats = (
        parameters(request),
        {**{n: request.floats[n] for n in ("scale_h", "scale_w")}, **more},
    )
    units = _units(request, wide)
    block = _FEW_BLOCK if known(D.less(units, _FEW * request.sms + 1)) == 1 else 256
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__({block}) resize2d(const T* x, T* y, {", ".join(f"int {n}" for n in _RESIZE)}, {", ".join(f"float {n}" for n in floats)},
    int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns) {{
  next_may_start();
  const bool same = IH == OH && IW == OW;  // a copy, whatever the scales
  const Resize g{{{", ".join(_RESIZE)}, same ? 1.f : scale_h > 0.f ? scale_h : float(OH) / float(IH), same ? 1.f : scale_w > 0.f ? scale_w : float(OW) / float(IW)}};
  {call} Pitch{{x_cs, x_rs, x_ns}}, Pitch{{y_cs, y_rs, y_ns}});
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"), Pointer("y"), *(Int32(i[n]) for n in _RESIZE), *(Float32(v) for v in floats.values()), *_pitch(request, "x"), *_pitch(request, "y"),
    )  # fmt: skip
    return [
        Kernel(
            source,
            "resize2d",
            (blocks(units, block, request.sms * 16 * 256 // block), 1, 1),
            block,
            args,
            pdl=overlapped(request),
        )
    ]


def grid_sample(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode, pad, corners = (static(i[k], f"sampling {k}") for k in ("mode", "pad", "corners"))
    grid = C_TYPES[DType(static(i["grid_dtype"], "type of places"))]
    source = f"""{_head(request)}{template("image/grid_sample")}
extern "C" __global__ void __launch_bounds__(256) grid_sample(const T* x, const {grid}* grid, T* y, {", ".join(f"int {n}" for n in _RESIZE)},
    int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns) {{
  after_previous();
  sample<{mode}, {pad}, {str(bool(corners)).lower()}>(x, grid, y, Sample{{{", ".join(_RESIZE)}}}, Pitch{{x_cs, x_rs, x_ns}}, Pitch{{y_cs, y_rs, y_ns}});
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"), Pointer("grid"), Pointer("y"), *(Int32(i[n]) for n in _RESIZE), *_pitch(request, "x"), *_pitch(request, "y"),
    )  # fmt: skip
    return [
        Kernel(source, "grid_sample", (_pixels(request), 1, 1), 256, args, pdl=overlapped(request))
    ]


def lrn(request: Request) -> list[Kernel]:
    i, floats = parameters(request), [request.floats[n] for n in ("alpha", "beta", "bias")]
    size = static(i["size"], "number of channels")
    if size > _MOST_CHANNELS:
        raise Unfit(f"responses of {size} channels")
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__(256) lrn(const T* x, T* y, int N, int C, int H, int W, float alpha, float beta, float bias,
    int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns) {{
  after_previous();
  respond<{size}>(x, y, N, C, H, W, alpha, beta, bias, Pitch{{x_cs, x_rs, x_ns}}, Pitch{{y_cs, y_rs, y_ns}});
}}
"""
    sizes = [i[n] for n in ("N", "C", "H", "W")]
    args: tuple[Argument, ...] = (
        Pointer("x"),
        Pointer("y"),
        *map(Int32, sizes),
        *map(Float32, floats),
        *_pitch(request, "x"),
        *_pitch(request, "y"),
    )
    grid = blocks(D.product([i["N"], i["H"], i["W"], D.ceildiv(i["C"], 8)]), 256, request.sms * 16)
    return [Kernel(source, "lrn", (grid, 1, 1), 256, args, pdl=overlapped(request))]


FAMILIES = {
    "lrn": lrn,
    "grid_sample": grid_sample,
    "pool2d": pool2d,
    "global_pool": global_pool,
    "resize2d": resize2d,
    "resize_cubic": resize_cubic,
}

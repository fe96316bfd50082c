"""CUDA kernels over channels-last images: pooling, resizing, sampling, regions, responses."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common.epilogue import Parameter
from ..common.instantiate import entry, floats, instance, ints, longs, pointer
from ..common.launch import blocks, known, parameters, size_hint, static
from ..common.prelude import C_TYPES

#: Pixels that a thread of global pooling reads at most before an image is split, pixels of a slice,
#: and the most slices.
_SPLIT_FROM, _SLICE, _SLICES = 64, 256, 32
#: Pixels that a thread of global pooling has on their way at once, how often it should, and CTAs
#: of a cluster (that divide an image, where clusters are few).
_AHEAD, _ROUNDS, _CLUSTER = 8, 6, 8
#: Bytes of images from which on memory bounds global pooling; pixels that neighbouring threads
#: should have, at most, before they have more channels.
_MUCH, _SMALL = 4_000_000, 16


#: Pitches of x and y as the templates take them.
_X, _Y = "Pitch{x_cs, x_rs, x_ns}", "Pitch{y_cs, y_rs, y_ns}"


def _pitches(request: Request, *sides: str) -> list[Parameter]:
    i, found = parameters(request), list[Parameter]()
    for side in sides:
        found += ints({f"{side}_cs": i[f"{side}_cs"]})
        found += longs({f"{side}_{p}": i[f"{side}_{p}"] for p in ("rs", "ns")})
    return found


def _image(
    request: Request,
    symbol: str,
    call: str,
    grid: DimLike,
    given: list[Parameter],
    *,
    threads: int = 256,
    header: str = "image/pool_resize",
) -> Kernel:
    """The kernel with the statements `call`, which reads x and writes y, and has their pitches."""
    ends = [pointer("const T", "x"), pointer("T", "y")]
    given = [*ends, *given, *_pitches(request, "x", "y")]
    body = f"pdl_begin();\n  {call}"
    return instance(request, symbol, header, given, grid, threads, body)


def _units(request: Request, bytes: int = 16) -> DimLike:
    """Output pixels times that many bytes of channels, of which whole eights are written where
    pitches are such (`vectors_of`).
    """
    i, wide = parameters(request), bytes // request.dtype.size
    channels = D.mul(D.ceildiv(i["C"], 8), 8) if known(D.mod(i["y_cs"], 8)) == 0 else i["C"]
    return D.product([i["N"], i["OH"], i["OW"], D.ceildiv(channels, wide)])


def _pixels(request: Request, bytes: int = 16, lanes: int = 1) -> DimLike:
    """CTAs for so many threads of each of these."""
    return blocks(D.mul(_units(request, bytes), lanes), 256, request.sms * 16)


#: Windows of at most so many taps along an axis are unrolled.
_UNROLLED = 7
_RESIZE = ("N", "C", "IH", "IW", "OH", "OW")
_POOL = (*_RESIZE, "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL", "PB", "PR")


#: Threads of an SM that neighbours should divide windows for, taps of such a window and
#: of such a thread at least.
_DIVIDE, _WINDOW_FROM, _LEAST_TAPS = 1024, 12, 2


def pool2d(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode = static(i["mode"], "pooling mode")
    window = known(i["KH"]), known(i["KW"])
    kh, kw = window if max(k or _UNROLLED + 1 for k in window) <= _UNROLLED else (0, 0)
    lanes = _lanes(request)
    kh, kw = window if lanes > 1 else (kh, kw)
    call = f"pool<{mode}, {kh}, {kw}, {lanes}>(x, y, Pool{{{', '.join(_POOL)}}}, {_X}, {_Y});"
    given = ints({n: i[n] for n in _POOL})
    return [_image(request, "pool2d", call, _pixels(request, 16, lanes), given)]


def _lanes(request: Request) -> int:
    """Threads that divide the window of an output, where these are known to be few."""
    i = parameters(request)
    kh, kw = known(i["KH"]), known(i["KW"])
    if kh is None or kw is None or kh * kw < _WINDOW_FROM:
        return 1
    results = size_hint(
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
    # As many threads across the channels as leave a CTA for each SM, but whole lines
    # of memory where they can.
    lanes = next(
        (k for k in (32, 16, 8) if size_hint(n, 1) * -(-c // (k * wide)) >= request.sms),
        2 if wide > 1 else 8,
    )
    lanes = _wider(request, lanes, wide, size)
    slices = (
        min(_SLICES, -(-size // _SLICE))
        if size is not None and size >= _SPLIT_FROM * (256 // lanes)
        else 1
    )
    across = -(-c // (lanes * wide))
    cluster = _clusters(request, size, 256 // lanes, across)
    slices = 1 if cluster > 1 else slices
    sums = pointer("const float", "scratch0", "partial")
    given = [
        pointer("const T", "x"),
        pointer("T", "y"),
        pointer("float", "scratch0", "partial"),
        *ints({"N": n, "C": c, "H": i["H"], "W": i["W"]}),
        *_pitches(request, "x"),
        *longs({"y_ns": i["y_ns"]}),
        *ints({"across": across}),
    ]
    joined = [
        sums,
        pointer("T", "y"),
        *ints({"slices": slices, "N": n, "C": c, "pixels": pixels}),
        *longs({"y_ns": i["y_ns"]}),
    ]
    flags = f"{largest}, {'true' if wide > 1 else 'false'}, {lanes}, {cluster}"
    join = f"combine_pool<{largest}>(partial, y, slices, N, C, pixels, y_ns);"
    first = instance(
        request,
        "global_pool",
        "image/pool_resize",
        given,
        (D.mul(n, across * cluster), slices, 1),
        256,
        f"pdl_begin();\n  pool_all<{flags}>(x, y, partial, N, C, H, W, {_X}, y_ns, across);",
        after=entry("global_pool_join", joined, 256, f"pdl_begin();\n  {join}"),
        cluster=cluster,
        scratch=(D.mul(n, slices * c * 4),) if slices > 1 else (),
    )
    if slices == 1:
        return [first]
    grid, args = (D.ceildiv(D.mul(n, c), 256), 1, 1), tuple(v for _, _, v in joined)
    return [
        first,
        replace(first, symbol="global_pool_join", grid=grid, args=args, cluster=1, scratch=()),
    ]


def _wider(request: Request, lanes: int, wide: int, pixels: int | None) -> int:
    """Threads across the channels of global pooling of few images: more where clusters divide much
    memory, of which threads should read whole lines, and where there are few pixels.
    """
    n, c, size = (
        size_hint(request.ints["N"], 0),
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
                if vectors >= k and n * -(-vectors // k) * _CLUSTER >= request.sms // 2
            ),
            lanes,
        )
    while lanes < 32 and lanes < vectors and pixels * lanes <= _SMALL:
        lanes *= 2
    return lanes


def _clusters(request: Request, pixels: int | None, down: int, across: int) -> int:
    """CTAs of a cluster that divide the pixels of a few images, of which each reads `down` at a
    time.
    """
    n = size_hint(request.ints["N"], 0)
    if pixels is None or n == 0 or request.arch < 90:
        return 1
    rounds = -(-pixels // (_AHEAD * down))
    if rounds == 1 or rounds > _CLUSTER * _ROUNDS:
        return 1
    cluster = 1
    while (
        cluster < min(rounds, _CLUSTER, request.caps.cluster)
        and 2 * cluster * n * across <= 4 * request.sms
    ):
        cluster *= 2
    return cluster


#: Channels that a response is normalised by, at most: a thread has them in registers.
_MOST_CHANNELS = 65
#: Threads of an SM up to which resizing has small CTAs, which spread evenly.
_FEW, _FEW_BLOCK = 1024, 64


def resize2d(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode, coord, rounding = (static(i[k], f"resize {k}") for k in ("mode", "coord", "rounding"))
    if mode not in (0, 1):
        raise NoKernel(f"resize mode {mode}")
    call = f"resize<{'true' if mode else 'false'}, {coord}, {rounding}>(x, y, g,"
    return _resize(request, call, ("scale_h", "scale_w"), 16)


def resize_cubic(request: Request) -> list[Kernel]:
    coord = static(parameters(request)["coord"], "resize coord")
    names = ("scale_h", "scale_w", "a")
    return _resize(request, f"resize_cubic<{coord}>(x, y, g, a,", names, 8)


def _resize(request: Request, call: str, names: tuple[str, ...], wide: int) -> list[Kernel]:
    """call: what computes the image, up to its last two arguments. wide: bytes of channels of a
    thread.
    """
    i, units = parameters(request), _units(request, wide)
    block = _FEW_BLOCK if known(D.less(units, _FEW * request.sms + 1)) == 1 else 256
    given = [
        pointer("const T", "x"),
        pointer("T", "y"),
        *ints({n: i[n] for n in _RESIZE}),
        *floats({n: request.floats[n] for n in names}),
        *_pitches(request, "x", "y"),
    ]
    scaled = "const Resize g = resize_of(N, C, IH, IW, OH, OW, scale_h, scale_w);"
    grid = blocks(units, block, request.sms * 16 * 256 // block)
    return [
        instance(
            request,
            "resize2d",
            "image/pool_resize",
            given,
            grid,
            block,
            f"pdl_launch_dependents();\n  {scaled}\n  {call} {_X}, {_Y});",
        )
    ]


def grid_sample(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode, pad, corners = (static(i[k], f"sampling {k}") for k in ("mode", "pad", "corners"))
    places = C_TYPES[DType(static(i["grid_dtype"], "type of places"))]
    given = [
        pointer("const T", "x"),
        pointer(f"const {places}", "grid"),
        pointer("T", "y"),
        *ints({n: i[n] for n in _RESIZE}),
        *_pitches(request, "x", "y"),
    ]
    flags = f"{mode}, {pad}, {str(bool(corners)).lower()}"
    call = f"sample<{flags}>(x, grid, y, Sample{{{', '.join(_RESIZE)}}}, {_X}, {_Y});"
    body = f"pdl_begin();\n  {call}"
    header, grid = "image/grid_sample", _pixels(request)
    return [instance(request, "grid_sample", header, given, grid, 256, body)]


def roi_align(request: Request) -> list[Kernel]:
    i = parameters(request)
    mode, half = static(i["mode"], "mode of regions"), bool(static(i["half"], "place of pixels"))
    names = (*_RESIZE[:4], "R", "OH", "OW", "ratio")
    given = [
        pointer("const T", "x"),
        pointer("const T", "rois"),
        pointer("const i64", "batch"),
        pointer("T", "y"),
        *ints({n: i[n] for n in names}),
        *floats({"scale": request.floats["scale"]}),
        *_pitches(request, "x", "y"),
        ("u32*", "fault", FaultWord()),
    ]
    region = f"RoiAlign{{{', '.join(names)}, scale}}"
    forms = f"{mode}, {str(half).lower()}"
    call = f"roi_align<{forms}>(x, rois, batch, y, {region}, {_X}, {_Y}, fault);"
    bins = D.product([i["R"], i["OH"], i["OW"], D.ceildiv(i["C"], 16 // request.dtype.size)])
    grid, header = blocks(bins, 256, request.sms * 16), "image/roi_align"
    body = f"pdl_begin();\n  {call}"
    return [instance(request, "roi_align", header, given, grid, 256, body)]


def deform_columns(request: Request) -> list[Kernel]:
    i, wide = parameters(request), 16 // request.dtype.size
    c, g, moved = (static(i[n], "number of channels") for n in ("C", "G", "DG"))
    width = wide if c // g % wide == 0 and c // moved % wide == 0 else 1
    names = (*_RESIZE, *_POOL[6:14], "G", "DG")
    masked = "mask" in request.operands
    given = [
        pointer("const T", "x"),
        pointer("const T", "offset"),
        *([pointer("const T", "mask")] if masked else []),
        pointer("T", "y"),
        *ints({n: i[n] for n in names}),
        *_pitches(request, "x"),
    ]
    mask = "mask" if masked else "(const T*)nullptr"
    call = f"deform_columns<{width}>(x, offset, {mask}, y, DeformConv{{{', '.join(names)}}}, {_X});"
    units = D.product([*(i[n] for n in ("N", "OH", "OW", "KH", "KW")), c // width])
    grid, body = blocks(units, 256, request.sms * 16), f"pdl_begin();\n  {call}"
    return [instance(request, "deform_columns", "image/deform", given, grid, 256, body)]


def lrn(request: Request) -> list[Kernel]:
    i = parameters(request)
    size = static(i["size"], "number of channels")
    if size > _MOST_CHANNELS:
        raise NoKernel(f"responses of {size} channels")
    given = [
        *ints({n: i[n] for n in ("N", "C", "H", "W")}),
        *floats({n: request.floats[n] for n in ("alpha", "beta", "bias")}),
    ]
    call = f"local_response<{size}>(x, y, N, C, H, W, alpha, beta, bias, {_X}, {_Y});"
    grid = blocks(D.product([i["N"], i["H"], i["W"], D.ceildiv(i["C"], 8)]), 256, request.sms * 16)
    return [_image(request, "lrn", call, grid, given)]


FAMILIES = {
    "lrn": lrn,
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "deform_columns": deform_columns,
    "pool2d": pool2d,
    "global_pool": global_pool,
    "resize2d": resize2d,
    "resize_cubic": resize_cubic,
}

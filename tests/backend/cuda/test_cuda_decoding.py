"""CUDA attention of few query rows, a step of decoding above all: which tiles divide heads and
keys, and that they compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import attention, compile_kernels, copied, kernels_of, request
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")


def _kernel(r: Request) -> Kernel:
    k: Kernel
    (k,) = cuda.emit(r)
    return k


def _cached(dtype: DType, d: int, *, wide: bool = False, **sizes: Any) -> Request:
    """Over a cache with lengths."""
    r = attention(dtype, d, causal=1, clean=2, **sizes)
    lengths: dict[str, DimLike] = {
        "lens_dtype": int(DType.I64 if wide else DType.I32), "lens_add": 1 - wide, "clamp": 1 - wide
    }  # fmt: skip
    return replace(r, ints={**r.ints, **lengths}, operands=r.operands | {"lens"})


def _writing(elem: int, d: int, arch: int) -> Request:
    ints: dict[str, DimLike] = {
        "elem": elem, "B": symbol("B"), "H": 8, "S": symbol("S"), "P": symbol("P"), "D": d,
        "T": symbol("T"), "x_b": 8 * d, "x_s": 8 * d, "x_h": d, "at_dtype": int(DType.I32),
        "at_add": 1, "keep": arch % 2,
    }  # fmt: skip
    operands = ("x", "at", "y", *(["past"] if elem > 2 else []))
    return request("cache_write", DType.F32, ints, operands=operands, arch=arch)


def _turning(dtype: DType, d: int, arch: int = 90, **sizes: DimLike) -> Request:
    given: dict[str, DimLike] = {n: symbol(n) for n in ("B", "S", "P", "T")}
    given |= {"H": 4, "KVH": 2, "rot": d, **sizes}
    for n, heads in (("q", 4), ("k", 2), ("v", 2)):
        given |= {f"{n}_b": D.mul(given["S"], heads * d), f"{n}_s": heads * d, f"{n}_h": d}
    half = D.floordiv(given["rot"], 2)
    given |= {"c_b": D.mul(given["S"], half), "c_s": half, "D": d}
    given |= {"at_dtype": int(DType.I32), "at_add": -1}
    names = ("q", "k", "v", "cos", "sin", "past_k", "past_v", "at", "y", "keys", "values")
    return request("rope_cache", dtype, given, operands=names, arch=arch)


@pytest.mark.parametrize(("dtype", "arch"), [(DType.F32, 90), (DType.F16, 80)])
def test_caches_compile(dtype: DType, arch: int) -> None:
    sizes: dict[str, Any] = {"s": symbol("S"), "t": symbol("T"), "b": symbol("B"), "arch": arch}
    wide = dtype == DType.F32
    r = _cached(dtype, 256 if wide else 64, wide=wide, mask=int(wide), **sizes)
    r = replace(r, ints={**r.ints, "window": 0 if wide else 4096})
    compile_kernels(kernels_of(r), arch)
    compile_kernels(kernels_of(_writing(dtype.size, 64, arch)), arch)
    compile_kernels(kernels_of(_turning(dtype, 64, arch)), arch)


@pytest.mark.parametrize(
    ("s", "wide", "sms", "window", "arch", "t"),
    [
        (3, True, 8, 0, 86, 1100), (3, False, 1, 31, 86, 1100), (3, True, 20, 70, 90, 1024),
        (37, True, 4, 0, 86, 100), (37, False, 4, 5, 86, 100),
    ],
)  # fmt: skip
def test_attention_over_a_cache(
    s: int, wide: bool, sms: int, window: int, arch: int, t: int, tmp_path: Path
) -> None:
    """Few rows, with keys divided among CTAs, and those of a cluster, and not; many rows; behind
    the last key of a row lies what no one may read.
    """
    d, lens = 16, [90, 2]
    r = _cached(DType.F32, d, wide=wide, s=s, t=t, b=2, heads=4, kv=2, arch=arch)
    r = replace(r, ints={**r.ints, "window": window}, caps=replace(r.caps, sms=sms))
    rng = np.random.default_rng(0)
    places = {
        n: cuda_host.aligned(rng.standard_normal((2, 512, h, d)).astype(np.float32))
        for n, h in (("q", 4), ("k", 2), ("v", 2), ("y", 4))
    }
    want = np.zeros((2, s, 4, d))
    for b, i, h in np.ndindex(2, s, 4):
        past = lens[b] - s if wide else max(0, lens[b] - s)
        n = max(0, min(past + i + 1, lens[b]))
        seen_from = max(0, n - window) if window else 0
        k, v = (places[x][b, seen_from:n, h // 2].astype(np.float64) for x in "kv")
        e = np.exp(0.125 * k @ places["q"][b, i, h])
        want[b, i, h] = e @ v / e.sum() if n else 0
    for x in "kv":
        places[x][0, 90:], places[x][1, 2:] = np.nan, np.nan
    places["lens"] = np.array(lens, np.int64 if wide else np.int32) - (not wide)
    places["scratch0"] = cuda_host.aligned(np.full(1 << 18, 0xAB, np.uint8))
    kernels = cuda.emit(r)
    divided = s == 3 and arch == 86 and sms > 1
    assert len(kernels) == 1 + divided and (kernels[0].cluster > 1) == (arch == 90)
    seen = slice(0 if wide else None, None)
    for j, k in enumerate(kernels):
        assert not cuda_host.run(k, places, tmp_path / str(j))
    rows = places["y"][:, :s]
    if not wide:  # of tokens that are there
        rows, want = np.where(_there(lens, s), (rows, want), 0)
    np.testing.assert_allclose(rows[:, seen], want[:, seen], rtol=1e-5, atol=1e-6)
    places["lens"][1] = t + 1
    assert cuda_host.run(kernels[0], places, tmp_path / "0")


def _there(lens: list[int], s: int) -> Any:
    return (np.arange(s) < np.array(lens)[:, None])[None, :, :, None, None]


@pytest.mark.parametrize(("elem", "keep", "circular"), [(2, 0, 0), (4, 1, 1)])
def test_rows_are_written_into_a_cache(elem: int, keep: int, circular: int, tmp_path: Path) -> None:
    b, h, s, room, p, d = 2, 2, 4, 11, 11 if keep else 8, 8 * elem - 4
    rng = np.random.default_rng(1)
    past, x = (
        cuda_host.aligned(rng.integers(1, 99, n).astype(f"u{elem}"))
        for n in ((b, h, p, d), (b, s, h, d))
    )
    ints: dict[str, DimLike] = {
        "elem": elem, "B": b, "H": h, "S": s, "P": p, "T": room, "D": d, "x_b": s * h * d,
        "x_s": h * d, "x_h": d, "at_dtype": int(DType.I32), "at_add": -3, "keep": keep,
        "circular": circular,
    }  # fmt: skip
    (k,) = cuda.emit(request("cache_write", DType.F32, ints, operands=("past", "x", "at", "y")))
    at = [7, 9 if circular else 0]
    want = np.zeros((b, h, room, d), past.dtype)
    for i, start in enumerate(at):
        want[i, :, : p if keep else start] = past[i, :, : p if keep else start]
        for j in range(s):
            want[i, :, (start + j) % room] = x[i, j]
    places = {"past": past, "x": x, "at": np.array([10, 12 if circular else 1], np.int32)}
    places["y"] = cuda_host.aligned(np.full(want.shape, 7, past.dtype))
    assert not cuda_host.run(k, places, tmp_path)
    np.testing.assert_array_equal(places["y"], want)
    if keep:
        places["y"] = places["past"]
        assert not cuda_host.run(k, places, tmp_path)
        np.testing.assert_array_equal(places["y"], want)
    places["at"][0] = -1
    assert cuda_host.run(k, places, tmp_path)


@pytest.mark.parametrize(("d", "rot", "interleaved"), [(16, 16, 0), (6, 4, 1), (7, 4, 0)])
def test_queries_and_caches_are_turned_at_once(
    d: int, rot: int, interleaved: int, tmp_path: Path
) -> None:
    """Caches made anew, and in place; a row that does not fit is a fault."""
    b, s, heads, kv, p, room = 2, 3, 4, 2, 8, 11
    sizes: dict[str, DimLike] = {"B": b, "S": s, "T": room, "rot": rot, "interleaved": interleaved}
    rng, starts = np.random.default_rng(2), [7, 0]
    shapes = {
        "q": (b, s, heads, d), "k": (b, s, kv, d), "v": (b, s, kv, d), "cos": (b, s, rot // 2),
        "sin": (b, s, rot // 2), "past_k": (b, kv, p, d), "past_v": (b, kv, p, d),
        "y": (b, s, heads, d), "keys": (b, kv, room, d), "values": (b, kv, room, d),
    }  # fmt: skip
    places = {
        n: cuda_host.aligned(rng.standard_normal(x).astype(np.float32)) for n, x in shapes.items()
    }
    places["at"] = np.array(starts, np.int32) + 1
    at = np.arange(rot // 2)
    first, second = (2 * at, 2 * at + 1) if interleaved else (at, at + rot // 2)

    def rotated(x: Any) -> Any:
        out, (cos, sin) = x.astype(np.float64), (places[n][:, :, None] for n in ("cos", "sin"))
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def check(name: str, new: Any, old: Any) -> None:
        want = np.zeros((b, kv, room, d)) if old is None else old.copy()
        for i, start in enumerate(starts):
            if old is None:
                want[i, :, :start] = places[f"past_{name[0]}"][i, :, :start]
            want[i, :, start : start + s] = new[i].transpose(1, 0, 2)
        np.testing.assert_allclose(places[name], want, rtol=1e-6, atol=1e-6)

    (kernel,) = cuda.emit(_turning(DType.F32, d, 90, P=p, **sizes))
    assert not cuda_host.run(kernel, places, tmp_path)
    np.testing.assert_allclose(places["y"], rotated(places["q"]), rtol=1e-6, atol=1e-6)
    check("keys", rotated(places["k"]), None)
    check("values", places["v"], None)
    old = {n: rng.standard_normal(shapes[n]).astype(np.float32) for n in ("keys", "values")}
    places |= {n: cuda_host.aligned(x) for n, x in old.items()}
    places |= {"past_k": places["keys"], "past_v": places["values"]}
    (kernel,) = cuda.emit(_turning(DType.F32, d, 90, P=room, **sizes))
    assert not cuda_host.run(kernel, places, tmp_path)
    check("keys", rotated(places["k"]), old["keys"])
    check("values", places["v"], old["values"])
    for wrong in (-1, room):
        places["at"][0] = wrong
        assert cuda_host.run(kernel, places, tmp_path)
    places["at"][0] = starts[0] + 1
    tables = {n: rng.standard_normal((room, rot // 2)).astype(np.float32) for n in ("cos", "sin")}
    there = [np.arange(start, start + s) for start in starts]
    places |= {n: np.stack([x[rows] for rows in there]) for n, x in tables.items()}
    want, keys = rotated(places["q"]), rotated(places["k"])
    places |= {n: cuda_host.aligned(x) for n, x in tables.items()}
    for count in (max(starts) + s, max(starts) + s - 1):  # rows of the tables
        (kernel,) = cuda.emit(_turning(DType.F32, d, 90, P=room, **{**sizes, "places": count}))
        assert cuda_host.run(kernel, places, tmp_path) == (count < max(starts) + s)
    np.testing.assert_allclose(places["y"], want, rtol=1e-6, atol=1e-6)
    check("keys", keys, places["keys"])


def test_sinks_and_other_windows_have_no_kernel() -> None:
    r = _cached(DType.F16, 64)
    plain = replace(r, operands=r.operands - {"lens"}, ints={**r.ints, "window": 9})
    for other, why in (
        (replace(r, ints={**r.ints, "smooth": 1}), "sinks or smooth sums"),
        (replace(r, operands=r.operands | {"sink"}), "sinks or smooth sums"),
        (plain, "windows of keys that are no cache's"),
    ):
        with pytest.raises(NoKernel, match=why):
            cuda.emit(other)


@pytest.mark.parametrize(
    ("dtype", "s", "t", "b", "parts"),
    [
        (DType.F32, 1, 1031, 2, 8),
        (DType.F16, 1, 100, 2, 1),
        (DType.BF16, 4, 1000, 64, 1),
        (DType.F32, 1, 2000, 1, 8),
    ],
)
def test_few_rows_divide_the_keys(dtype: DType, s: int, t: int, b: int, parts: int) -> None:
    k = _kernel(attention(dtype, 64, s=s, t=t, b=b))
    assert k.cluster == parts and k.grid[0] == b * 2 * -(-2 * s // min(4, 2 * s)) * parts


def test_heads_of_one_row_that_share_keys_are_few_rows() -> None:
    for dtype, arch, tiles in ((DType.BF16, 89, 2), (DType.F32, 90, 6)):
        read, join = cuda.emit(attention(dtype, 128, s=1, t=16381, b=1, heads=48, kv=2, arch=arch))
        assert read.grid[0] == join.grid[0] == 2 * tiles
    read, join = cuda.emit(attention(DType.BF16, 128, s=1, t=16381, b=1, heads=48, kv=2))
    assert read.grid == (256, 1, 1) and join.grid[:2] == (2, 24)
    assert copied(attention(DType.BF16, 128, s=3, t=900, b=1, heads=48, kv=2)) == [
        ["q", "k", "v", "y"]
    ]


def test_few_rows_of_heads_that_share_many_keys_are_one_tile() -> None:
    def rows(heads: int) -> list[int]:
        kernels = cuda.emit(
            attention(DType.F16, 128, s=1, t=16381, b=1, heads=heads, kv=1, arch=80)
        )
        return [
            int(k.source.split("int ROWS = ")[1].split(";")[0])
            for k in kernels
            if "int ROWS = " in k.source
        ]

    assert rows(16) == rows(4) == [16, 16] and rows(1) == [1, 1]
    read, join = (
        k
        for k in cuda.emit(
            attention(DType.F16, 128, s=1, t=symbol("T"), b=1, heads=7, kv=1, arch=80)
        )
        if "ROWS = 16" in k.source
    )
    assert read.scratch == join.scratch
    for keys, grids in ((16381, [(1, 128), (1, 7)]), (100, [(0, 1), (0, 7)])):
        assert [tuple(evaluate(n, {"T": keys}) for n in k.grid[:2]) for k in (read, join)] == grids


@pytest.mark.parametrize(
    ("b", "heads", "kv", "t", "arch", "blocks", "parts"),
    [
        (1, 16, 1, 16381, 80, 1, 128),
        (4, 28, 4, 9124, 80, 2, 16),
        (2, 8, 2, 300, 80, 1, 3),
        (4, 28, 4, 9124, 89, 1, 8),
    ],
)
def test_tiles_of_few_rows_share_a_multiprocessor_where_they_are_many(
    b: int, heads: int, kv: int, t: int, arch: int, blocks: int, parts: int
) -> None:
    read, join = cuda.emit(attention(DType.F16, 128, s=1, t=t, b=b, heads=heads, kv=kv, arch=arch))
    assert read.grid == (b * kv, parts, 1) and join.grid[:2] == (b * kv, heads // kv)
    room = {80: 164, 89: 100}[arch] * 1024
    assert blocks * (read.smem + 4096) <= room < (blocks + 1) * (read.smem + 4096)
    compile_kernels([read, join], arch)


def _address(ints: Mapping[str, DimLike], operand: str, b: int, h: int, row: int, last: str) -> int:
    strides = [ints.get(f"{operand}_{a}", 0) for a in ("b", "h", last)]
    return sum(n * int(str(s)) for n, s in zip((b, h, row), strides, strict=True))


def test_one_row_of_many_heads_that_share_keys_is_a_tile() -> None:
    """The heads of a group are rows of one head, whose operands lie where they did."""
    select = discovery.module("kernels", "cuda.attention.decode.select")
    one = attention(DType.F16, 128, s=1, t=400, b=7, heads=40, kv=8, mask=1)
    one = replace(one, ints={**one.ints, "m_h": 400, "m_b": 40 * 400, "causal": 1, "past": 399})
    rows = select.as_rows(one)
    assert [rows.ints[n] for n in ("H", "S", "KVH", "causal")] == [8, 5, 8, 0]
    for b, h in ((0, 0), (6, 39), (3, 17)):
        for operand, last in (("q", "s"), ("y", "s"), ("m", "q")):
            assert _address(one.ints, operand, b, h, 0, last) == _address(
                rows.ints, operand, b, h // 5, h % 5, last
            )
    k = _kernel(one)
    q, keys, *_ = (a for a in k.args if isinstance(a, TensorMap))
    assert (q.dims, q.strides) == (
        (128, 5, 8, 7),
        (256, 5 * 256, 40 * 128 * 2 * 512),
    ) and keys.dims == (128, 400, 8, 7)
    assert (k.grid[0], k.cluster) == (56, 1)
    compile_kernels([k], 90)
    for ints in ({"past": 398}, {"past": symbol("P")}, {"KVH": 40}, {"S": 2}):
        other = replace(one, ints={**one.ints, **ints})
        assert select.as_rows(other) is other and not any(copied(other))


@pytest.mark.parametrize(
    ("heads", "kv", "t", "d", "b", "tile", "symbolic"),
    [
        (71, 1, 2039, 64, 2, "1x64*2 SINGLE_WG split-KV", "1x64*2 SINGLE_WG split-KV"),
        (64, 8, 531, 128, 8, "1x112+96 SINGLE_WG", "1x64*2 SINGLE_WG split-KV"),
        (16, 1, 16381, 128, 1, "1x64*2 SINGLE_WG split-KV", "1x64*2 SINGLE_WG split-KV"),
        (64, 8, 16, 128, 1, "2x64+16 PINGPONG", "simt 4"),
        (71, 1, 2039, 61, 2, "simt 4/4", "simt 4/4"),
    ],
)
def test_tiles_of_heads_that_share_keys_are_chosen_by_price(
    heads: int, kv: int, t: int, d: int, b: int, tile: str, symbolic: str
) -> None:
    emitter = discovery.module("kernels", "cuda.attention.emit")
    for batch, want in ((b, tile), (symbol("B"), symbolic)):
        r = attention(DType.BF16, d, s=1, t=t, b=batch, heads=heads, kv=kv)
        assert [
            str(chosen)
            for chosen, use in emitter.configs(r, emitter.problem.problem(r))
            if evaluate(use, {"B": b})
        ] == [want]


@pytest.mark.parametrize(
    ("s", "t", "d", "b", "heads", "kv", "tile"),
    [
        (16, 30011, 128, 1, 8, 8, "1x64*2 SINGLE_WG split-KV"),
        (33, 16381, 80, 1, 16, 16, "1x64*2 SINGLE_WG split-KV"),
        (48, 3001, 256, 2, 8, 8, "1x64 SINGLE_WG split-KV"),
        (150, 20011, 96, 1, 8, 8, "1x64*2 SINGLE_WG split-KV"),
        (7, 9001, 64, 2, 12, 12, "1x64*2 SINGLE_WG split-KV"),
        (4, 8191, 128, 4, 32, 8, "mma 16 split-KV"),
        (20, 2503, 64, 8, 12, 12, "2x128 SPLIT_CTA"),
        (16, 500, 128, 1, 8, 8, "1x64 SINGLE_WG/8"),
        (1, 30011, 64, 2, 12, 12, "simt 1 split-KV"),
    ],
)
def test_few_rows_of_many_keys_are_spread_where_that_pays(
    s: int, t: int, d: int, b: int, heads: int, kv: int, tile: str
) -> None:
    r = attention(DType.F16, d, s=s, t=t, b=b, heads=heads, kv=kv)
    emitter = discovery.module("kernels", "cuda.attention.emit")
    ((chosen, _),) = emitter.configs(r, emitter.problem.problem(r))
    assert str(chosen) == tile


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("b", "heads", "kv", "t", "d", "tile"),
    [
        (8, 10, 10, 479, 80, "1x96 SINGLE_WG"),
        (4, 2, 1, 128, 128, "1x128 SINGLE_WG"),
        (13, 56, 14, 1128, 64, "stream 32x4*3/2"),
        (10, 64, 8, 9000, 128, "1x64*2 SINGLE_WG split-KV"),
        (12, 17, 17, 1887, 64, "1x64+32*2 SINGLE_WG"),
        (5, 13, 13, 2280, 80, "stream 16x4*3/5"),
        (3, 24, 3, 640, 128, "1x80 SINGLE_WG/8"),
        (300, 4, 4, 300, 250, "simt 1"),
        (16, 16, 16, 1000, 128, "stream 32x4*2"),
        (11, 104, 13, 361, 128, "1x32+16*2 SINGLE_WG"),
        (12, 20, 20, 2645, 40, "stream 16x4*5/2"),
        (7, 52, 13, 1405, 40, "stream 32x4*3/4"),
        (6, 30, 30, 700, 96, "stream 16x4*3/2"),
        (35, 160, 10, 1596, 64, "stream 32x4*3"),
    ],
)
def test_one_row_of_each_head_is_read_soonest(
    b: int, heads: int, kv: int, t: int, d: int, tile: str
) -> None:
    """One tile for each head, two beside each other where they are more than multiprocessors, keys
    divided where they are fewer, threads where heads share nothing.
    """
    r = attention(DType.F16, d, s=1, t=t, b=b, heads=heads, kv=kv)
    emitter = discovery.module("kernels", "cuda.attention.emit")
    ((chosen, _),) = emitter.configs(r, emitter.problem.problem(r))
    assert str(chosen) == tile
    compile_kernels(cuda.emit(r), 90)


@pytest.mark.parametrize(
    ("d", "dv", "rows", "tile"),
    [
        (8, 8, 1, (1, 1, 2, 7)),
        (40, 64, 4, (4, 4, 2, 3)),
        (56, 56, 8, (3, 2, 1, 10)),
        (64, 64, 16, (2, 4, 1, 4)),
        (128, 72, 9, (7, 1, 1, 8)),
        (128, 128, 2, (8, 2, 2, 4)),
    ],
)
def test_keys_flow_to_warps_whatever_divides_them(
    d: int, dv: int, rows: int, tile: tuple[int, int, int, int]
) -> None:
    emitter = discovery.module("kernels", "cuda.attention.emit")
    r = emitter.select.as_rows(
        attention(
            DType.BF16, d, dv=dv, s=1, t=999, b=7, heads=13 * rows, kv=13, cap=float(rows % 2)
        )
    )
    cluster, warps, sets, ctas = tile
    config = emitter.DecodeConfig("stream", rows, cluster, False, warps, sets, ctas)
    (k,) = config.kernels(r, emitter.problem.problem(r), 1)
    assert (k.grid, k.block, k.cluster) == ((7 * 13 * cluster, 1, 1), 32 * warps, cluster)
    compile_kernels([k], 90)


def test_keys_flow_only_where_all_blocks_find_a_place() -> None:
    """Not for rows that are long, many, masked or no whole 16 bytes, on other devices, nor of few
    heads.
    """
    emitter = discovery.module("kernels", "cuda.attention.emit")
    prices, problem = emitter.select.stream_prices, emitter.problem.problem
    few = attention(DType.F16, 128, s=1, t=2000, b=2, heads=20, kv=20)
    assert not prices(few, problem(few), 40, 2000)
    for heads in (48, 131, 132, 133, 204, 500, 900, 2000):
        one = attention(DType.F16, 64, s=1, t=2000, b=heads, heads=1, kv=1)
        for tile in prices(one, problem(one), heads, 2000):
            assert heads * tile.cluster <= 132 * tile.ctas and tile.cluster <= 8
    others: tuple[dict[str, Any], ...] = (
        {"mask": 2},
        {"d": 160},
        {"d": 68},
        {"pad": 4},
        {"arch": 80},
        {"heads": 34, "kv": 2},
        {"unaligned": ("v",)},
    )
    for other in others:
        r = emitter.select.as_rows(
            attention(DType.F16, **{"d": 64, "s": 1, "t": 2000, "b": 100, **other})
        )
        assert not prices(r, problem(r), 200, 2000)


def test_tiles_of_few_rows_divide_keys_among_blocks_that_fill_the_device() -> None:
    for d, mask, t, blocks in ((64, 0, 9001, 264), (72, 1, 9001, 264), (128, 2, 1000, 4 * 8)):
        r = attention(DType.F16, d, s=9, t=t, b=2, heads=2, kv=2, mask=mask, causal=1)
        r = replace(r, ints={**r.ints, "m_q": 300, "past": t - 9})
        emitter = discovery.module("kernels", "cuda.attention.emit")
        p = emitter.problem.problem(r)
        tile = emitter.fa3.split_kv_config(p)
        read, join = tile.kernels(r, p, 1, "scratch0")
        assert read.grid == (blocks, 1, 1) and join.grid[:2] == (4, 9)
        assert tile.scratch(r, p, 1) == (4 + blocks) * -(-9 * (d + 2) * 4 // 16) * 16
        assert 2 * (read.smem + 1024) <= 228 * 1024
        compile_kernels([read, join], 90)


def test_blocks_that_divide_keys_have_equal_shares_of_all_heads() -> None:
    """Of few heads as many whole shares as fill the device, of more heads than half of the blocks
    as much as each other, whichever head that is of.
    """
    for heads, blocks in ((40, 40 * 6), (132, 264), (150, 264), (300, 264), (0, 0)):
        r = attention(DType.F16, 64, s=1, t=2000, b=heads, heads=1, kv=1)
        emitter = discovery.module("kernels", "cuda.attention.emit")
        p = emitter.problem.problem(r)
        tile = emitter.fa3.split_kv_config(p)
        read, join = tile.kernels(r, p, 1, "scratch0")
        assert read.grid == (blocks, 1, 1) and join.grid[0] == heads
        assert tile.scratch(r, p, 1) == (heads + blocks) * 272

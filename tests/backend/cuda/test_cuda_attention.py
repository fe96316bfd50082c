"""CUDA attention: every kernel compiles without a GPU and fits the device; Hopper gets the
warp-specialised one where tensor copies can read the operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import attention, compile_kernels, copied
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request, TensorMap
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")


def cases() -> Iterator[tuple[str, Request]]:
    for d in (32, 40, 64, 80, 96, 128, 256):
        yield f"{d} sm_90", attention(DType.F16, d)
        yield f"{d} sm_80", attention(DType.BF16, d, arch=80)
        yield f"{d} sm_89", attention(DType.F32, d, arch=89)
    for dtype, arch in ((DType.F16, 90), (DType.BF16, 89), (DType.F32, 80)):
        yield f"causal sm_{arch}", attention(dtype, 64, causal=1, s=8192, t=8192, arch=arch)
        for mask in (1, 2, 3):
            yield (
                f"mask {mask} sm_{arch}",
                attention(dtype, 64, mask=mask, clean=mask % 2, causal=int(mask == 3), arch=arch),
            )
    yield "odd heads", attention(DType.F16, 17, dv=13)
    yield "long odd heads", attention(DType.BF16, 191, dv=133, mask=1)
    for dtype, arch in ((DType.F16, 90), (DType.BF16, 80), (DType.F32, 90)):
        yield f"few rows sm_{arch}", attention(dtype, 61, s=1, t=5000, mask=2, arch=arch)
        yield (
            f"few rows of long heads sm_{arch}",
            attention(dtype, 256, s=3, t=5000, causal=1, arch=arch),
        )
    for dtype, d in ((DType.F16, 64), (DType.BF16, 200), (DType.F32, 72)):
        yield f"divided keys of {d}", attention(dtype, d, s=20, t=5000, b=1, mask=1, causal=1)
    yield (
        "keys of tensor cores divided",
        attention(DType.F32, 72, s=131, t=1031, b=1, mask=3, causal=1),
    )
    for d, s in ((61, 515), (128, 1021), (256, 700)):
        yield f"large tiles of {d}", attention(DType.F32, d, s=s, t=700, mask=1, causal=1)
        yield f"large tiles of {d} sm_80", attention(DType.F32, d, s=s, t=700, arch=80)
    yield (
        "symbolic large tiles",
        attention(DType.F32, 64, s=symbol("S"), t=symbol("T"), b=symbol("B")),
    )
    yield "odd pitches", attention(DType.BF16, 64, pad=1)
    for dtype, arch in ((DType.F16, 90), (DType.BF16, 80), (DType.F32, 90), (DType.F32, 89)):
        for d, s, t in ((256, 700, 700), (128, 1, 5000), (64, 64, 64)):
            yield (
                f"capped scores of {s}x{d} sm_{arch}",
                attention(dtype, d, s=s, t=t, causal=int(s > 1), arch=arch, cap=50.0),
            )
    for mask, pitch in ((1, 300), (1, 301), (2, 304), (3, 299)):
        r = attention(DType.F16, 96, mask=mask)
        yield f"mask {mask} of rows, {pitch} apart", replace(r, ints={**r.ints, "m_q": pitch})
    yield (
        "mask of rows, its keys apart",
        replace(
            attention(DType.F16, 64, mask=1),
            ints={**attention(DType.F16, 64, mask=1).ints, "m_q": 600, "m_k": 2},
        ),
    )
    yield "negative scale", attention(DType.BF16, 128, scale=-0.1)
    yield "symbolic", attention(DType.F16, 128, s=symbol("S"), t=symbol("T"), b=symbol("B"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("r", [pytest.param(r, id=f"{n} {r.dtype.name}") for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def _kernel(r: Request) -> Kernel:
    k: Kernel
    (k,) = cuda.emit(r)
    return k


def test_hopper_uses_tensor_copies() -> None:
    for d in (64, 72, 128, 256):
        assert copied(attention(DType.F16, d)) == [["q", "k", "v", "y"]]
    assert copied(attention(DType.F16, 64, arch=80)) == copied(attention(DType.F32, 64)) == [[]]


def test_operands_that_tensor_copies_cannot_read_are_copied() -> None:
    assert copied(attention(DType.F16, 64, unaligned=("k",))) == [[], ["q", "scratch0", "v", "y"]]
    assert (
        copied(attention(DType.BF16, 61))
        == copied(attention(DType.F16, 64, pad=1))
        == [[], ["scratch0", "scratch1", "scratch2"]]
    )
    copy, main = cuda.emit(attention(DType.F16, 61, dv=33))
    assert (
        copy.scratch
        == main.scratch
        == tuple(
            2 * 2 * heads * rows * row
            for heads, rows, row in ((4, 200, 64), (2, 300, 64), (2, 300, 40))
        )
    )
    assert copy.grid[1] == 3 and [a.strides[0] for a in main.args if isinstance(a, TensorMap)] == [
        128,
        128,
        80,
    ]


@pytest.mark.parametrize(
    ("d", "b", "heads", "s", "tile"),
    [
        (64, 1, 6, 1728, "2x128 SPLIT_CTA"),
        (64, 1, 12, 1728, "1x80*3 INTER_WG"),
        (64, 1, 5, 1500, "2x128 SPLIT_CTA"),
        (40, 2, 60, 600, "2x80*2 INTER_WG"),
    ],
)
def test_causal_rows_of_some_heads(d: int, b: int, heads: int, s: int, tile: str) -> None:
    """A multiprocessor has a short tile behind a long one; short heads whose rows are no whole
    sectors of memory want many rows for each that is fetched.
    """
    r = attention(DType.F16, d, s=s, t=s, b=b, heads=heads, kv=heads, causal=1)
    emitter = discovery.module("kernels", "cuda.attention.emit")
    ((chosen, _),) = emitter.configs(r, emitter.problem.problem(r))
    assert str(chosen) == tile


@pytest.mark.parametrize(
    ("d", "b", "heads", "s", "t", "mask", "tile"),
    [
        (128, 4, 16, 1024, 1024, 1, "2x112+16 PINGPONG"),
        (72, 8, 4, 631, 1760, 2, "2x128 INTRA_WG"), (64, 2, 12, 777, 777, 1, "1x80+64*3 INTER_WG"),
        (64, 4, 16, 1000, 1000, 2, "1x128+112*2 INTER_WG"),
        (128, 16, 16, 256, 256, 1, "2x96+64 PINGPONG"),
    ],
)  # fmt: skip
def test_tiles_of_rows_with_masks_of_their_own(
    d: int, b: int, heads: int, s: int, t: int, mask: int, tile: str
) -> None:
    r = attention(DType.F16, d, b=b, heads=heads, kv=heads, s=s, t=t, mask=mask)
    r = replace(r, ints={**r.ints, "m_q": t, "m_b": 0})
    emitter = discovery.module("kernels", "cuda.attention.emit")
    ((chosen, _),) = emitter.configs(r, emitter.problem.problem(r))
    assert str(chosen) == tile


def test_masks_of_rows_have_room_in_shared_memory() -> None:
    """What is copied of a row are 16 bytes that begin before it where rows do; one 16 bytes more,
    so that rows beside each other lie in other banks.
    """
    emitter = discovery.module("kernels", "cuda.attention.emit")
    for mask, pitch, step, row in (
        (1, 300, 4, 128 * 2 + 16),
        (2, 304, 16, 128 + 16),
        (3, 301, 1, 128 + 16),
        (1, 299, 1, 128 * 2 + 16),
    ):
        r = attention(DType.F16, 64, mask=mask, s=300, t=300)
        own = replace(r, ints={**r.ints, "m_q": pitch, "m_b": 300 * pitch})
        assert emitter.problem.problem(own).mask_step == step
        tiles = [
            emitter.fa3.config(emitter.problem.problem(q), 1, 128, 1, "SINGLE_WG")
            for q in (own, replace(own, ints={**own.ints, "m_k": 2}))
        ]
        assert tiles[0].smem - 2048 - tiles[0].slots * 64 * 128 == tiles[0].stages * (
            2 * 128 * 128 + 64 * row
        )
        assert tiles[1].smem - 2048 - tiles[1].slots * 64 * 128 == tiles[1].stages * 2 * 128 * 128
        assert emitter.problem.problem(replace(own, unaligned=frozenset({"mask"}))).mask_step == 1
        compile_kernels(cuda.emit(own), 90)


@pytest.mark.parametrize(
    ("d", "s", "t", "b", "tile"),
    [
        (64, 1021, 1021, 4, "3xtf32 64x64"), (64, 512, 512, 1, "3xtf32 64x64/2"),
        (128, 1021, 1021, 1, "3xtf32 128x64/2"), (128, 2039, 2039, 4, "3xtf32 128x64"),
        (256, 1031, 1031, 1, "3xtf32 96x32*2/2"), (240, 337, 337, 8, "3xtf32 32x32*2"),
        (192, 60, 333, 4, "3xtf32 32x64*4/2"),
        (64, 17, 17, 4, "16x64"), (45, 67, 67, 1, "16x64/2"), (128, 130, 130, 6, "3xtf32 32x64*4"),
        (128, 40, 40, 3, "3xtf32 32x64*4"),
    ],
)  # fmt: skip
def test_f32_tiles_are_large_where_that_pays(d: int, s: int, t: int, b: int, tile: str) -> None:
    r = attention(DType.F32, d, s=s, t=t, b=b, heads={64: 12, 128: 8}.get(d, 6))
    emitter = discovery.module("kernels", "cuda.attention.emit")
    ((chosen, _),) = emitter.configs(r, emitter.problem.problem(r))
    assert str(chosen) == tile


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("warps", "keys", "parts", "groups"),
    [(4, 64, 1, 2), (2, 64, 4, 4), (6, 32, 2, 2), (2, 32, 1, 2)],
)
def test_groups_of_f32_tiles_divide_columns(warps: int, keys: int, parts: int, groups: int) -> None:
    tf32 = discovery.module("kernels", "cuda.attention.tf32x3")
    tile = tf32.Tf32Config(warps, keys, parts, groups)
    for d, dv in ((256, 240), (61, 70)):
        r = attention(DType.F32, d, dv=dv, s=100, t=130)
        p = discovery.module("kernels", "cuda.attention.emit").problem.problem(r)
        columns = tile.columns(p)
        assert columns % 16 == 0 and columns * groups >= dv > (columns - 16) * groups
        (k,) = tile.kernels(r, p, 1)
        assert (
            k.block == 32 * warps * groups
            and k.smem >= tile.smem(p)
            and tile.residents(p) * (tile.smem(p) + 1024) <= 228 * 1024
        )
        compile_kernels([k], 90)


@pytest.mark.parametrize(("b", "resident"), [(2, 1), (4, 2)])
def test_a_multiprocessor_holds_no_more_f32_blocks_than_its_share(b: int, resident: int) -> None:
    emitter, tf32 = (
        discovery.module("kernels", f"cuda.{n}") for n in ("attention.emit", "attention.tf32x3")
    )
    r = attention(DType.F32, 64, s=320, t=320, b=b, heads=6)
    p, tile = emitter.problem.problem(r), tf32.Tf32Config(2, 64, 1, 4)
    (k,) = tile.kernels(r, p, 1)
    assert tile.residents(p) == 2 and 228 * 1024 // (k.smem + 1024) == resident


def test_f32_has_tensor_cores_where_these_are_many() -> None:
    for arch, tensor in ((80, True), (86, False), (89, False), (90, True), (120, False)):
        for r in (
            attention(DType.F32, 64, arch=arch, s=1021, t=1021, b=4),
            attention(DType.F32, 64, arch=arch, s=symbol("S"), t=symbol("T"), b=symbol("B")),
        ):
            assert any("m16n8k8" in k.source for k in cuda.emit(r)) == tensor


def test_one_f32_tile_runs_whatever_the_sizes() -> None:
    for d, arch in ((64, 90), (256, 90), (61, 80), (128, 89)):
        kernels = cuda.emit(
            attention(DType.F32, d, arch=arch, s=symbol("S"), t=symbol("T"), b=symbol("B"))
        )
        for b in (1, 3, 32):
            for s in (1, 9, 64, 65, 128, 200, 1000, 9000):
                grids = [
                    evaluate(k.grid[0], {"B": b, "S": s, "T": s})
                    for k in kernels
                    if "TOGETHER" not in k.source
                ]
                assert sorted(grids)[:-1] == [0] * (len(grids) - 1) and max(grids) > 0


def test_more_keys_than_a_cluster_should_read_are_spread() -> None:
    read, join = cuda.emit(attention(DType.F16, 128, s=1, t=9000, b=1, heads=2, kv=2))
    assert read.cluster == 1 and read.grid == (2, 64, 1) and join.grid == (2, 1, 2)
    assert read.scratch == join.scratch == (2 * 65 * 528,)
    # whose blocks fill the device
    assert all(k.cluster == 1 for k in cuda.emit(attention(DType.F16, 128, s=1, t=9000, b=80)))
    for dtype in (DType.BF16, DType.F32):
        kernels = cuda.emit(attention(dtype, 61, s=symbol("S"), t=symbol("T"), b=symbol("B")))
        assert len({k.scratch for k in kernels if k.scratch}) == 1
        for env in (
            {"S": s, "T": t, "B": b}
            for s in (1, 4, 5, 9)
            for t in (0, 100, 20000)
            for b in (0, 1, 40)
        ):
            used = [k for k in kernels if min(evaluate(g, env) for g in k.grid) > 0]
            assert bool(used) == (env["B"] > 0)
            assert [k.grid[0] for k in used if "TOGETHER" in k.source] == [] or env["T"] == 20000


@pytest.mark.parametrize(
    ("dtype", "d", "s", "t", "parts"),
    [
        (DType.F16, 64, 20, 4000, 8),
        (DType.F16, 64, 64, 200, 1),
        (DType.F16, 128, 1000, 4000, 2),
        (DType.F32, 64, 131, 131, 4),
        (DType.F32, 64, 131, 60, 1),
    ],
)
def test_many_keys_of_some_rows_are_divided(
    dtype: DType, d: int, s: int, t: int, parts: int
) -> None:
    k = _kernel(attention(dtype, d, s=s, t=t, b=1))
    assert k.cluster == parts


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("d", "b", "s", "causal", "groups", "keys", "last", "blocks"),
    [
        (64, 1, 128, 0, 1, 128, 128, 8), (64, 48, 128, 0, 1, 64, 64, 384),
        (64, 64, 128, 0, 2, 64, 64, 256), (64, 1, 197, 0, 1, 208, 208, 16),
        (64, 1, 512, 0, 2, 128, 128, 32), (64, 96, 197, 0, 2, 80, 48, 264),
        (64, 32, 577, 0, 2, 80, 32, 264), (64, 4, 4096, 0, 4, 96, 64, 132),
        (64, 4, 4096, 1, 4, 96, 96, 132), (128, 64, 128, 0, 2, 128, 128, 132),
        (128, 96, 128, 1, 2, 64, 64, 132), (128, 32, 263, 0, 2, 96, 80, 132),
        (128, 16, 2041, 0, 2, 128, 128, 132),
    ],
)  # fmt: skip
def test_tiles_fit_short_sequences(
    d: int, b: int, s: int, causal: int, groups: int, keys: int, last: int, blocks: int
) -> None:
    """The last of many narrow tiles has only the keys that are left, where none is hidden."""
    k = _kernel(attention(DType.F16, d, b=b, s=s, t=s, causal=causal))
    q, fetched, *_ = (a for a in k.args if isinstance(a, TensorMap))
    assert (q.box[1], fetched.box[1], k.block, k.grid[0]) == (
        128 if "SCHEDULE INTRA_WG" in k.source else 64,
        keys,
        128 * (groups + 1),
        blocks,
    )
    assert f"int BN = {keys};" in k.source and f"int LAST = {last};" in k.source
    compile_kernels([k], 90)


def test_copies_read_no_more_than_they_bring() -> None:
    """A row of 64 elements of one head lies beside another head's."""
    assert {
        a.l2_promotion for a in _kernel(attention(DType.F16, 64)).args if isinstance(a, TensorMap)
    } == {128}


@pytest.mark.parametrize("mask", [0, 1, 2])
def test_blocks_that_share_a_multiprocessor_fit_it(mask: int) -> None:
    kernels = cuda.emit(attention(DType.F16, 64, mask=mask, s=symbol("S"), t=symbol("T"), b=32))
    together = [
        max(evaluate(k.grid[0], {"S": s, "T": 128}) for s in range(1, 3000, 61)) / 132
        for k in kernels
    ]
    assert 1 < max(together) <= 4
    assert all(n * (k.smem + 1024) <= 228 * 1024 for n, k in zip(together, kernels, strict=True))


def test_grid_is_persistent_on_hopper() -> None:
    assert _kernel(attention(DType.F16, 128, s=100_000, t=500)).grid[0] == 132


@pytest.mark.parametrize(("d", "causal"), [(64, 0), (128, 0), (128, 1)])
def test_one_tile_runs_whatever_the_sizes(d: int, causal: int) -> None:
    kernels = cuda.emit(
        attention(DType.F16, d, s=symbol("S"), t=symbol("T"), b=symbol("B"), causal=causal)
    )
    for b in (1, 3, 32):
        for s in (1, 64, 65, 128, 200, 1000, 9000):
            grids = [evaluate(k.grid[0], {"B": b, "S": s, "T": s}) for k in kernels]
            assert sorted(grids)[:-1] == [0] * (len(kernels) - 1) and 0 < max(grids) <= 4 * 132
    assert all(evaluate(k.grid[0], {"B": 1, "S": 0, "T": 5}) == 0 for k in kernels)


@pytest.mark.parametrize(("d", "dv"), [(0, 64), (64, 257), (300, 64)])
def test_head_sizes_out_of_range_are_refused(d: int, dv: int) -> None:
    with pytest.raises(NoKernel, match="heads of"):
        cuda.emit(attention(DType.F16, d, dv=dv))


def test_symbolic_heads_are_refused() -> None:
    r = attention(DType.F16, 64)
    with pytest.raises(NoKernel, match="fixed head size"):
        cuda.emit(
            Request(
                r.family, r.dtype, {**r.ints, "D": symbol("d")}, r.floats, None, r.operands, r.caps
            )
        )


def _rows_without_numbers() -> tuple[dict[str, Any], Any]:
    """Operands of one head, f32, and softmax of its scores: of the rows one has finite scores, one
    NaN alone, one a NaN, one a +inf, one -inf alone.
    """
    rng = np.random.default_rng(5)
    q, k, v = (
        cuda_host.aligned(rng.standard_normal((n, 16)).astype(np.float32)) for n in (5, 90, 90)
    )
    mask = cuda_host.aligned(np.zeros((5, 90), np.float32))
    q[1, 3] = mask[2, 70] = np.nan
    mask[3, 5], mask[4] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        scores = 0.25 * (q.astype(np.float64) @ k.astype(np.float64).T) + mask
        e = np.exp(scores - scores.max(1, keepdims=True))
        return {"q": q, "k": k, "v": v, "mask": mask}, e / e.sum(1, keepdims=True)


def _without_tensor_cores(r: Request, which: str) -> list[Kernel]:
    p = discovery.module("kernels", "cuda.attention.emit").problem.problem(r)
    emitter = discovery.module("kernels", "cuda.attention.emit")
    config = emitter.DecodeConfig("simt", 4, split_kv=which == "split-KV")
    if which == "tile":
        config = emitter.simt.SimtConfig(1, 2)
    return list(config.kernels(r, p, 1, "scratch0"))


@pytest.mark.parametrize("which", ["tile", "few rows", "split-KV"])
@pytest.mark.parametrize("clean", [0, 1, 2])
def test_rows_that_softmax_makes_nan(clean: int, which: str, tmp_path: Path) -> None:
    """nan_to_zero 1 clears all of them, 2 those that are masked entirely."""
    places, weights = _rows_without_numbers()
    r = attention(
        DType.F32, 16, s=5, t=90, b=1, heads=1, kv=1, mask=1, clean=clean, arch=80, scale=0.25
    )
    r = replace(r, ints={**r.ints, "m_q": 90}, caps=replace(r.caps, sms=2))
    y = places["y"] = cuda_host.aligned(np.full((5, 16), 99, np.float32))
    places["scratch0"] = cuda_host.aligned(np.full(1 << 16, 0xAB, np.uint8))
    kernels = _without_tensor_cores(r, which)
    assert len(kernels) == 1 + (which == "split-KV")
    for j, k in enumerate(kernels):
        cuda_host.run(k, places, tmp_path / str(j))
    weights[[] if clean == 0 else [4] if clean == 2 else [1, 2, 3, 4]] = 0
    np.testing.assert_allclose(y, weights @ places["v"], rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("dtype", "arch", "sizes"),
    [
        (DType.F16, 90, {}),  # wgmma: tiles in a row, of few keys, of keys that blocks divide
        (DType.F16, 90, {"b": 64, "s": 128, "t": 128, "causal": 1, "d": 128}),
        (DType.F16, 90, {"b": 1, "s": 20, "t": 4000}),
        (DType.F16, 90, {"b": 1, "s": 1, "t": 16381, "heads": 48, "kv": 2, "d": 128}),
        (DType.F16, 90, {"b": 9, "s": 1, "t": 517, "heads": 28, "kv": 7, "d": 40}),  # registers
        (DType.F16, 80, {}),  # mma.sync: tiles, few rows of a group of heads
        (DType.F16, 80, {"b": 1, "s": 1, "t": 16381, "heads": 16, "kv": 1, "d": 128}),
        (DType.F32, 90, {"b": 4, "s": 1021, "t": 1021}),  # TF32
        (DType.F32, 90, {"b": 1, "s": 131, "t": 1031, "d": 72}),
        (DType.F32, 89, {}),  # without tensor cores: tiles, few rows
        (DType.F32, 90, {"b": 2, "s": 1, "t": 1031}),
    ],
)
def test_every_kernel_clears_nan(dtype: DType, arch: int, sizes: dict[str, Any]) -> None:
    """The one that writes the result compares for NaN where it would not otherwise."""
    compiler = discovery.module("kernels", "cuda.compiler")
    target = f"compute_{arch}a" if arch == 90 else f"compute_{arch}"
    found = []
    for clean in (1, 2):
        r = attention(dtype, **{"d": 64, **sizes}, clean=clean, arch=arch)
        ptx = compiler._compile(cuda.emit(r)[-1].source, target).decode()
        found.append(len(re.findall(r"setp\.(?:nan|num)[.\w]*f32", ptx)))
    assert found[0] > found[1]

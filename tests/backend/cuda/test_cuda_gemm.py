"""CUDA matrix products: every kernel compiles without a GPU, within the hardware's limits, and the
emitters choose what they should.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend.cuda.cuda_requests import (
    batched,
    check_kernels,
    compile_kernels,
    kernels_of,
    request,
)
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import evaluate, multiple_of
from tracea_onnx.runtime.device_caps import usual
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
TYPES = (DType.F16, DType.BF16, DType.F32)
GATED = {
    "type": 0,
    "n_in": 3,
    "regs": 3,
    "out": 0,
    "code": [[6, 0, 0, 1, 2, 0.0], [41, 0, 0, 0, 0, 0.0]],
}


def gemm(
    dtype: DType,
    m: D.DimLike,
    n: int,
    k: int,
    arch: int = 90,
    *,
    res_mode: int = 0,
    act: int = 1,
    pad: int = 0,
    unaligned: tuple[str, ...] = (),
) -> Request:
    ints = {
        "M": m,
        "N": n,
        "K": k,
        "ldx": k + pad,
        "ldr": n + pad,
        "ldy": n + pad,
        "act": act,
        "res_mode": res_mode,
    }
    return request(
        "gemm",
        dtype,
        ints,
        operands=("x", "w", "bias", "y", *(["res"] if res_mode else [])),
        arch=arch,
        unaligned=unaligned,
    )


def gemm_norm(
    dtype: DType, m: int, sides: str, n: int = 320, k: int = 768, unaligned: tuple[str, ...] = ()
) -> Request:
    """sides: which of x, the residual and y have statistics of their rows."""
    ints = {
        "M": m,
        "N": n,
        "K": k,
        "ldx": k,
        "ldr": n,
        "ldy": n,
        "act": 10,
        "res_mode": int("r" in sides),
        "x_rms": int("y" in sides),
    }
    given = {
        "x": ("x_stats", "x_sums"),
        "r": ("res", "r_stats", "r_gamma", "r_beta"),
        "y": ("y_stats",),
    }
    operands = ("x", "w", "bias", "y", *(o for side in sides for o in given[side]))
    return request(
        "gemm_norm",
        dtype,
        ints,
        {"x_eps": 1e-5, "r_eps": 1e-5, "unscale": 1.0},
        operands=operands,
        unaligned=unaligned,
    )


def matmul(dtype: DType, a: tuple[int, int], b: tuple[int, int], arch: int = 90) -> Request:
    """a = (a_m, a_k), b = (b_k, b_n) of a product of 72 x 40 x 56."""
    ints = {
        "B0": 2,
        "B1": 3,
        "M": 72,
        "N": 40,
        "K": 56,
        "a_0": 3 * 4096,
        "a_1": 4096,
        "a_m": a[0],
        "a_k": a[1],
        "b_0": 3 * 4096,
        "b_1": 4096,
    }
    return request(
        "matmul",
        dtype,
        ints | {"b_k": b[0], "b_n": b[1], "y_0": 3 * 2880, "y_1": 2880, "ldy": 40},
        {"alpha": 0.5},
        operands=("a", "b", "y"),
        arch=arch,
    )


def cases() -> Iterator[tuple[str, Request]]:
    for arch in (80, 89, 90):
        for d in TYPES if arch == 90 else (DType.F16, DType.F32):
            yield f"wide {d.name} sm_{arch}", gemm(d, 4096, 1024, 512, arch, res_mode=1)
            yield f"one row {d.name} sm_{arch}", gemm(d, 1, 1000, 4096, arch)
            yield f"primes {d.name} sm_{arch}", gemm(d, 67, 131, 257, arch, res_mode=2, act=10)
    for d in (DType.F16, DType.BF16):
        for sides in ("x", "y", "ry", "xry"):
            for m in (3, 128, 4096):
                yield f"norms {sides} {m} {d.name}", gemm_norm(d, m, sides)
    for d in TYPES:
        yield f"a and b along k {d.name}", matmul(d, (56, 1), (1, 56))
        yield f"a along m, b along n {d.name}", matmul(d, (1, 72), (40, 1))
        yield f"strided {d.name}", matmul(d, (112, 2), (80, 2))
        ints = {
            "M": 100,
            "N": 104,
            "K": 64,
            "ldx": 64,
            "ldy": 104,
            "o0_kind": 0,
            "o0_ld": 104,
            "o1_kind": 1,
        }
        yield (
            f"program {d.name}",
            request("gemm", d, ints, program=GATED, operands=("x", "w", "bias", "y", "o0", "o1")),
        )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "r"), [pytest.param(n, r, id=n) for n, r in cases()])
def test_compiles(name: str, r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def test_results_of_many_tiles_leave_by_tma() -> None:
    for d in (DType.F16, DType.BF16):
        for r in (gemm(d, 65536, 3072, 768, act=10), gemm_norm(d, 65536, "x", 3072)):
            kernels = list(cuda.emit(r))
            # both operands and the result
            assert [len([a for a in k.args if isinstance(a, TensorMap)]) for k in kernels] == [3]
            compile_kernels(kernels, 90)


def test_only_kernels_that_read_through_tensor_maps_know_of_norms() -> None:
    with pytest.raises(NoKernel, match="norms folded into a GEMM of operands that are not aligned"):
        cuda.emit(gemm_norm(DType.F16, 64, "x", unaligned=("x",)))


def test_statistics_need_whole_panels() -> None:
    split = discovery.module("kernels", "cuda.gemm.cluster_splitk_sm90")
    sizes = discovery.module("kernels", "cuda.gemm.sm90").Sizes(197, 768, 12, 132)
    assert any(t.bn % 64 for t in split.prices(sizes))
    assert all(t.bn % 64 == 0 for t in split.prices(sizes._replace(statistics=True)))


def test_packing_compiles() -> None:
    for d in TYPES:
        weight = {"K": 5, "N": 7, "ldw": 7}
        for family, ints in (
            ("pack_gemm", {**weight, "N_total": 7}),
            ("fold_norm", weight),
            ("pack_bias", {"OC": 7}),
            ("fold_bn", {"C": 7}),
        ):
            compile_kernels(cuda.emit(request(family, d, ints)), 80)


def test_every_activation_compiles() -> None:
    text = discovery.module("kernels", "cuda.common.epilogue")
    for act in range(len(ACTIVATIONS)):
        r = gemm(DType.F16, 64, 64, 64, 80, act=act)
        assert (
            text.epilogue(r, (64,)).source
            != text.epilogue(
                gemm(DType.F16, 64, 64, 64, 80, act=(act + 1) % len(ACTIVATIONS)), (64,)
            ).source
        )
    compile_kernels(cuda.emit(gemm(DType.F16, 64, 64, 64, 80, act=ACTIVATIONS.index("mish"))), 80)


def test_hopper_kernel_only_where_tensor_maps_reach() -> None:
    assert kernels_of(gemm(DType.F16, 8192, 4096, 4096))[0].symbol in (
        "gemm_persistent_sm90",
        "gemm_cluster_splitk_sm90",
    )
    for r in (gemm(DType.F16, 8192, 4096, 4096, 89), gemm(DType.F32, 8192, 4096, 4096)):
        assert [k.symbol for k in kernels_of(r)] == ["gemm_multistage"]
    # its results need not lie at multiples of 16 bytes, a residual must
    for res_mode, symbol in ((0, "gemm_persistent_sm90"), (1, "gemm_cluster_splitk_sm90")):
        for r in (
            gemm(DType.F16, 8192, 4095, 4096, res_mode=res_mode),
            gemm(DType.F16, 8192, 4096, 4096, unaligned=("y", "res"), res_mode=res_mode),
        ):
            assert kernels_of(r)[0].symbol == symbol
    assert kernels_of(gemm(DType.F16, 16, 4096, 4096))[0].symbol == "gemm_cluster_splitk_sm90"


def test_rows_known_at_run_time_take_one_kernel_each() -> None:
    """The ranges of M that a symbolic product is tuned for cover every M once."""
    m = D.symbol("m")
    for arch in (80, 90):
        kernels = kernels_of(gemm(DType.F16, m, 768, 3072, arch))
        mains = [k for k in kernels if k.symbol != "gemm_splitk_reduce"]
        assert len(mains) > 1
        for value in (1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 100000):
            grids = [evaluate(k.grid[0], {"m": value}) for k in mains]
            assert sum(g > 0 for g in grids) == 1, (value, grids)
        assert all(evaluate(k.grid[0], {"m": 0}) == 0 for k in mains)


def test_few_rows_share_k() -> None:
    assert any(k.cluster > 1 for k in kernels_of(gemm(DType.F16, 1, 768, 8192)))
    split = kernels_of(gemm(DType.F16, 12, 768, 8192, 80))
    assert [k.symbol for k in split] == ["gemm_multistage", "gemm_splitk_reduce"]
    assert split[0].scratch == split[1].scratch != ()


def test_copies_that_are_whole() -> None:
    """Rows at multiples of 4 or 8 bytes, of as many elements or not."""
    for m, n, k, pitch, whole in (
        (243, 68, 190, 190, True),
        (243, 68, 189, 190, False),
        (243, 67, 190, 190, False),
    ):
        r = batched(DType.F16, m, n, k, (pitch, 1), (68, 1))
        (kernel,) = kernels_of(
            replace(
                r,
                ints={
                    **r.ints,
                    "B1": 96,
                    "b_0": 0,
                    "b_1": k * 68,
                    "a_0": 96 * m * pitch,
                    "a_1": m * pitch,
                },
            )
        )
        assert kernel.symbol == "gemm_multistage"
        assert (
            f"A_WHOLE = {k % 2 == 0};".lower() in kernel.source.lower()
            and f"B_WHOLE = {n % 4 == 0};".lower() in kernel.source.lower()
        ) and whole == (k % 2 == 0 and n % 4 == 0)


def test_f32_blocks_lie_evenly() -> None:
    """A multiprocessor holds no more blocks of a launch than its share, unless two launches fit
    together or it is full of one.
    """
    even, r = (
        discovery.module("kernels", "cuda.common.launch").smem_of_even_waves,
        batched(DType.F32, 203, 407, 286, (286, 1), (1, 286)),
    )
    smem = even(r, 20480, 364, 5)
    assert 227 * 1024 // (smem + 1024) == 3
    assert (
        even(r, 20480, 300, 5)
        == even(r, 20480, 700, 5)
        == even(r, 20480, D.symbol("blocks"), 5)
        == even(replace(r, caps=usual(80, 132)), 20480, 364, 5)
        == 20480
    )


@pytest.mark.slow
def test_f32_in_simt_tiles_of_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    simt, select = (
        discovery.module("kernels", "cuda.gemm.simt"),
        discovery.module("kernels", "cuda.gemm.select"),
    )
    # along k and along rows, and neither
    for a, b in (((107, 1), (87, 1)), ((1, 185), (1, 107)), ((214, 2), (174, 2))):
        r = batched(DType.F32, 185, 87, 107, a, b)
        r = replace(r, ints={**r.ints, "B0": 9, "B1": 9})
        for t in simt.TILES:
            monkeypatch.setattr(select, "choose", lambda *_, t=t: [(t, 1)])
            (kernel,) = kernels_of(r)
            assert (
                kernel.symbol == "gemm_simt"
                and kernel.grid == (-(-185 // t.bm) * -(-87 // t.bn), 9, 9)
                and kernel.block == t.threads
            )
            compile_kernels([kernel], 90)
        monkeypatch.setattr(
            select, "choose", lambda *_: [(simt.SimtTile(8, 4, 1, 1, 4, split=4), 1)]
        )
        (kernel,) = kernels_of(r)
        assert kernel.cluster == 4 and kernel.grid == (-(-185 // 32) * -(-87 // 32) * 4, 9, 9)
        compile_kernels([kernel], 90)
    monkeypatch.undo()
    r = batched(DType.F32, 185, 87, 107, (107, 1), (87, 1))
    compile_kernels(kernels_of(replace(r, ints={**r.ints, "M": D.symbol("m")})), 90)

    def splits(m: int, n: int, k: int) -> set[int]:
        a = select.Access(4)
        return {t.split for t in simt.works(r, select.problem(r, m, n, k, 6, a, a, True))}

    assert splits(64, 64, 512) == {1, 2, 4} and splits(64, 64, 40) == {1}
    assert splits(4096, 4096, 512) == {1}  # there are blocks enough


def test_few_rows_stream_the_other_operand() -> None:
    for d in TYPES:
        for m, n in ((1021, 1), (1, 1021), (1, 1)):
            r = batched(d, m, n, 515, (515, 1), (1, 515))
            kernels = kernels_of(r)
            assert len(kernels) == 1 and kernels[0].symbol == "gemv", (d, m, n, r.ints)
            compile_kernels(kernels, 90)
    # one row for all warps
    assert "WARPS_PER_ROW = 8;" in kernels_of(gemm(DType.F32, 1, 1, 100003))[0].source
    for d, k in ((DType.F16, 65536), (DType.F32, 100003)):  # a few results of many terms
        (kernel,) = kernels_of(gemm(d, 1, 1, k))
        assert (kernel.symbol, kernel.cluster) == ("gemv", 16)
    assert "STAGED 1" in kernels_of(gemm(DType.F32, 1021, 1, 4093))[0].source
    assert kernels_of(gemm(DType.F32, 7, 1021, 4099, 80))[0].cluster == 1


@pytest.mark.slow
def test_gemv_reads_the_operand_of_many_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever operand has many rows; as many lanes and reads as all of k needs."""
    gemv, select = (
        discovery.module("kernels", "cuda.gemm.gemv"),
        discovery.module("kernels", "cuda.gemm.select"),
    )
    for m, n, k, a, b in ((160, 1, 43, (43, 1), (1, 1)), (1, 5, 21, (21, 1), (1, 21))):
        for d in TYPES:
            r = batched(d, m, n, k, a, b)
            (kernel,) = kernels_of(r)
            if d != DType.F32:  # other tiles are better there for so few
                assert "STAGED 0" in kernel.source, (d, m, n, k)
            for t in gemv.at_once(m > 1, min(m, n), k, size=d.size):
                assert 16 // d.size * (t.lanes_per_row * t.reads - 1) + 1 >= k
                monkeypatch.setattr(select, "choose", lambda *_, t=t: [(t, 1)])
                (kernel,) = kernels_of(r)
                assert kernel.grid == (-(-max(m, n) // t.rows), 3, 2) and kernel.block == 256
                check_kernels([kernel], 90)
                monkeypatch.undo()
        r = batched(TYPES[-1], m, n, k, a, b)
        compile_kernels(kernels_of(replace(r, ints={**r.ints, "K": D.symbol("k")})), 90)
    # beside kernels that read through tensor maps
    assert "STAGED 0" in kernels_of(gemm(DType.F16, 404, 4, 88))[0].source
    assert kernels_of(gemm(DType.F16, 4, 768, 3072))[0].symbol != "gemv"


def test_f32_reads_neighbouring_rows_together() -> None:
    """Copies of an operand whose rows are neighbours go along these; only the widest tile without
    tensor cores reads columns one by one.
    """
    trans_a, both = (
        batched(DType.F32, 1024, 1024, 1024, (1, 1024), (1, 1024)),
        batched(DType.F32, 512, 64, 512, (1, 512), (64, 1)),
    )
    for r, transposed in ((trans_a, "false"), (both, "true")):
        (k,) = kernels_of(r)
        assert "A_TRANS = true;" in k.source and f"B_TRANS = {transposed};" in k.source
        assert "A_BYTES = 16;" in k.source and "B_BYTES = 16;" in k.source
        compile_kernels([k], 90)
    wide = batched(DType.F32, 2048, 2048, 2048, (2048, 1), (2048, 1))
    (k,) = kernels_of(wide)
    assert "TERMS 3" in k.source and "B_TRANS = true;" in k.source
    assert "A_GATHER = false;" in k.source and "B_GATHER = false;" in k.source
    (k,) = kernels_of(replace(wide, caps=usual(89, 128)))
    assert "BM = 128;" in k.source and "BN = 128;" in k.source
    assert "B_TRANS = false;" in k.source and "B_GATHER = true;" in k.source


def test_f32_on_tensor_cores() -> None:
    """Three products of TF32 make one of f32 where that is fast; one does where the request allows
    it. Small products stay with FFMA.
    """
    for arch, terms in ((80, 3), (89, 0), (90, 3)):
        r = gemm(DType.F32, 1031, 1021, 1027, arch)
        for asked, count in ((r, terms), (replace(r, tf32=True), 1)):
            kernels = kernels_of(asked)
            assert f"#define TERMS {count}\n" in kernels[0].source, (arch, count)
            compile_kernels(kernels, arch)
    assert "TERMS 3" not in kernels_of(gemm(DType.F32, 100, 96, 64))[0].source


@pytest.mark.slow
def test_every_f32_tile_on_tensor_cores_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    select = discovery.module("kernels", "cuda.gemm.select")
    r, a = gemm(DType.F32, 67, 131, 257), select.Access(4)
    p = select.problem(r, 67, 131, 257, 1, a, a, True)
    for t in discovery.module("kernels", "cuda.gemm.multistage_sm80.tiles").tiles(
        DType.F32, tf32=True, arch=90
    ):
        if t.terms:
            assert t in select.works(replace(r, tf32=True), p)
            assert (t.terms == 3) == (t in select.works(r, p))
            monkeypatch.setattr(select, "choose", lambda *_, t=t: [(t, 1)])
            compile_kernels(kernels_of(r), 90)


def test_linear_layers_have_the_tile_that_is_best_in_a_network() -> None:
    """Among tiles that cost about as little by themselves; the best one costs what the cheapest of
    them does, for other kernels are compared with it.
    """
    select, wgmma, split = (
        discovery.module("kernels", f"cuda.gemm.{n}")
        for n in ("select", "persistent_sm90", "cluster_splitk_sm90")
    )
    sm90 = discovery.module("kernels", "cuda.gemm.sm90")
    changed = 0
    for m, n, k in (
        (512, 3072, 768),
        (300, 1024, 4096),
        (197, 768, 768),
        (77, 512, 1536),
        (2000, 512, 512),
    ):
        sizes = sm90.Sizes(m, n, k // 64, 132)
        alone = wgmma.prices(sizes, True) | split.prices(sizes)
        select._likely.cache_clear()
        costs = select._likely(sizes, True, "gemm", 1.4)
        best, least = min(costs, key=costs.__getitem__), min(alone.values())
        assert costs[best] == pytest.approx(least) and alone[best] <= 1.1 * least
        near = {
            t: c
            + (
                split.network_cost(t, sizes, False)
                if isinstance(t, split.SplitTile)
                else wgmma.NETWORK_COST
            )
            for t, c in alone.items()
            if c <= 1.1 * least
        }
        assert near[best] == min(near.values())
        changed += alone[best] > least
        convolved = wgmma.prices(sizes, False) | split.prices(sizes)
        assert select._likely(sizes, True, "conv2d", 1.4) == {
            t: c for t, c in convolved.items() if c <= 1.4 * min(convolved.values())
        }
    assert changed >= 3
    across, along = split.SplitTile(64, 64, True), split.SplitTile(64, 64, False)
    s = sm90.Sizes(512, 512, 1, 132)
    assert (
        split.network_cost(across, s, True)
        > split.network_cost(along, s, True)
        == split.network_cost(along, s, False)
    )


def test_few_rows_at_run_time() -> None:
    """A kernel for few rows serves no more of them than it was made for."""
    m = D.symbol("m")
    few = [k for k in kernels_of(gemm(DType.F32, m, 1021, 4099)) if k.symbol == "gemv"]
    assert any(evaluate(k.grid[0], {"m": 8}) for k in few) and not any(
        evaluate(k.grid[0], {"m": 9}) for k in few
    )


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [(DType.F16, 31, 33, 17), (DType.F32, 5, 7, 3), (DType.F16, 8, 16, 24)],
)
def test_more_matrices_than_a_grid_has_places_for(dtype: DType, m: int, n: int, k: int) -> None:
    strides = {
        "a_0": 0,
        "a_1": m * k,
        "a_m": k,
        "a_k": 1,
        "b_0": 0,
        "b_1": k * n,
        "b_k": n,
        "b_n": 1,
        "y_0": 0,
        "y_1": m * n,
        "ldy": n,
    }

    def kernels(b0: int, b1: int) -> list[Kernel]:
        return kernels_of(
            request(
                "matmul",
                dtype,
                {"B0": b0, "B1": b1, "M": m, "N": n, "K": k, **strides},
                {"alpha": 1.0},
                operands=("a", "b", "y"),
            )
        )

    whole = 2 << 15
    assert {k.grid[1:] for k in kernels(1, whole)} == {(1 << 15, 2)}
    found = kernels(1, whole + 9)
    assert {k.grid[1:] for k in found} == {(1 << 15, 2), (9, 1)} and len(
        {k.scratch for k in found} - {()}
    ) <= 1
    moved = {
        p.operand: p.offset
        for k in found
        for p in k.args
        if isinstance(p, Pointer) and p.operand in "aby" and k.grid[1] == 9
    }
    assert {
        o: b
        for o, b in moved.items()
        if b != {"a": m * k, "b": k * n, "y": m * n}[o] * whole * dtype.size
    } == {} and "y" in moved
    with pytest.raises(NoKernel, match="17 x 65536 matrices"):
        kernels(17, whole)


def test_sizes_the_kernels_cannot_take() -> None:
    r = gemm(DType.F16, 8, 8, 8)
    with pytest.raises(NoKernel, match="symbolic K"):
        cuda.emit(
            request("gemm", DType.F16, {**r.ints, "K": D.symbol("k")}, operands=("x", "w", "y"))
        )


def test_multiple_of() -> None:
    s = D.symbol("s")
    assert [multiple_of(v) for v in (0, 1, 8, 24, 1 << 20)] == [4096, 1, 8, 8, 4096]
    assert multiple_of(s) == 1
    assert multiple_of(D.mul(s, 24)) == 8
    assert multiple_of(D.add(D.mul(s, 16), 8)) == 8
    assert multiple_of(D.select(D.equal(s, 1), D.mul(s, 32), 8)) == 8

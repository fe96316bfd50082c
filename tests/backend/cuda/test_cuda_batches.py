"""CUDA products of batches of matrices that tensor maps reach: copies, clusters that share
operands, and what their tiles cost.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.backend.cuda.cuda_requests import batched, compile_kernels, kernels_of, many
from tracea_onnx.codegen.kernel_request import TensorMap
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import evaluate
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")


def test_batches_that_tensor_maps_reach() -> None:
    for a, b in (
        ((512, 1), (64, 1)),
        ((512, 1), (1, 512)),
        ((1, 512), (64, 1)),
        ((1, 512), (1, 512)),
    ):
        for d in (DType.F16, DType.BF16):
            (kernel,) = kernels_of(batched(d, 512, 64, 512, a, b))
            maps = [arg for arg in kernel.args if isinstance(arg, TensorMap)]
            assert kernel.symbol == "gemm_cluster_splitk_sm90" and kernel.grid[1:] == (3, 2)
            assert [m.dims for m in maps] == [
                (512, 512, 3, 2),
                (64, 512, 3, 2) if b[1] == 1 else (512, 64, 3, 2),
            ]
            compile_kernels([kernel], 90)
    (kernel,) = kernels_of(batched(DType.F16, 512, 64, 512, (512, 1), (1, 512)))
    (_, b_map) = (arg for arg in kernel.args if isinstance(arg, TensorMap))
    # b is the same along the first axis: no stride, but one that a map takes
    assert b_map.strides == (1024, 65536, 16)
    for other in (
        batched(DType.F32, 512, 64, 512, (512, 1), (64, 1)),
        batched(DType.F16, 512, 64, 512, (1024, 2), (64, 1)),
    ):
        assert {k.symbol for k in kernels_of(other)} == {"gemm_multistage"}


def test_large_batches_take_turns() -> None:
    for a, b in (((128, 1), (504, 1)), ((128, 1), (1, 128)), ((1, 904), (1, 128))):
        (kernel,) = kernels_of(many(batched(DType.F16, 904, 504, 128, a, b), 4, 9))
        maps = [arg for arg in kernel.args if isinstance(arg, TensorMap)]
        sizes = [
            (904, 128, 9, 4) if a[0] == 1 else (128, 904, 9, 4),
            (128, 504, 9, 4) if b[0] == 1 else (504, 128, 9, 4),
        ]
        assert kernel.symbol == "gemm_persistent_sm90" and kernel.grid in ((132, 1, 1), (120, 1, 1))
        assert [m.dims for m in sorted(maps, key=lambda m: m.pointer.operand)] == sizes
        compile_kernels([kernel], 90)


def test_batches_share_and_swap_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a cluster copy parts of what they share: rows, or of operands whose rows are
    neighbours some of the 64 k.
    """
    wgmma, r = (
        discovery.module("kernels", "cuda.gemm.persistent_sm90"),
        many(batched(DType.F16, 904, 504, 136, (136, 1), (504, 1)), 4, 9),
    )
    for cluster, beside, swap in (
        (2, 1, False),
        (1, 2, False),
        (2, 2, False),
        (2, 2, True),
        (4, 1, False),
        (2, 4, True),
    ):
        tile = wgmma.HopperTile(
            128, 160, True, cluster, staging=1, swap=swap, multicast_a=beside, panels=not swap
        )
        monkeypatch.setattr(
            discovery.module("kernels", "cuda.gemm.select"),
            "choose",
            lambda *_, tile=tile: [(tile, 1)],
        )
        (kernel,) = kernels_of(r)
        left, right = (arg for arg in kernel.args if isinstance(arg, TensorMap))
        assert (left.pointer.operand, right.pointer.operand) == (("b", "a") if swap else ("a", "b"))
        assert left.box == (64, (64 if swap else 128) // beside, 1, 1) and right.box == (
            64,
            (160 if swap else 64) // cluster,
            1,
            1,
        )
        assert (
            kernel.cluster == cluster * beside
            and evaluate(kernel.grid[0], {}) % kernel.cluster == 0
            and "LAST_STAGE_MMAS = 1;" in kernel.source
        )
        compile_kernels([kernel], 90)


def test_split_batches_share_either_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    split, r = (
        discovery.module("kernels", "cuda.gemm.cluster_splitk_sm90"),
        many(batched(DType.F16, 300, 504, 136, (136, 1), (504, 1)), 4, 9),
    )
    for share, beside, swap, parts in (
        (1, 4, False, 1),
        (4, 1, False, 1),
        (2, 4, True, 1),
        (2, 2, True, 2),
    ):
        tile = split.SplitTile(64, 128, swap, parts, share, 1, beside)
        monkeypatch.setattr(
            discovery.module("kernels", "cuda.gemm.select"),
            "choose",
            lambda *_, tile=tile: [(tile, 1)],
        )
        (kernel,) = kernels_of(r)
        boxes = {arg.pointer.operand: arg.box for arg in kernel.args if isinstance(arg, TensorMap)}
        # rows that tiles have of A, and of k of B, by blocks that copy them
        a, b = ((128, 64), (share, beside)) if swap else ((64, 64), (beside, share))
        assert boxes == {"a": (64, a[0] // b[0], 1, 1), "b": (64, a[1] // b[1], 1, 1)}
        down, along = (beside, share) if swap else (share, beside)
        tiles = -(-300 // (tile.bm * down)) * -(-504 // (tile.bn * along))
        assert (
            kernel.cluster == parts * share * beside
            and evaluate(kernel.grid[0], {}) == tiles * kernel.cluster
        )
        compile_kernels([kernel], 90)


def test_rows_that_cross_lines_cost_more() -> None:
    """Rows at multiples of 16 bytes cost more than at multiples of 32, and these more than at
    multiples of 128.
    """
    crossed = discovery.module("kernels", "cuda.gemm.sm90").crossed
    assert crossed(64) == 1.0 < crossed(80) == crossed(16) < crossed(72) == crossed(8)


def test_swapped_batches_have_no_bias() -> None:
    r = many(batched(DType.F16, 904, 504, 128, (128, 1), (504, 1)), 4, 9)
    (kernel,) = kernels_of(replace(r, operands=r.operands | {"bias"}))
    maps = [arg for arg in kernel.args if isinstance(arg, TensorMap)]
    assert [m.pointer.operand for m in maps] == ["a", "b"]
    compile_kernels([kernel], 90)

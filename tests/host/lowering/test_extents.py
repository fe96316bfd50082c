"""The table of what kernels may touch: every family and operand is in it, and small launches come
out as counted by hand.
"""

from __future__ import annotations

import pytest

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.extents import Extent, extents, limits, repeats, results, types
from tracea_onnx.plan.kernel_families import FAMILIES

#: The result of `copies` is made of its parts.
UNBOUNDED = {"copies": {"y"}}


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("border", [False, True])
def test_every_operand_has_an_extent(family: str, border: bool) -> None:
    spec = FAMILIES[family]
    operands = {o.rstrip("?") for o in spec.operands}
    found = extents(
        family, {n: D.symbol(n) for n in spec.ints}, dict.fromkeys(operands, 1), 4, border=border
    )
    assert found.keys() == operands - UNBOUNDED.get(family, set())
    ranges, _ = limits(family)
    assert ranges.keys() <= set(spec.ints)


def of(
    family: str,
    operand: str,
    ints: dict[str, D.DimLike],
    *,
    present: tuple[str, ...] = (),
    border: bool = True,
    size: int = 4,
) -> Extent:
    return extents(family, ints, dict.fromkeys(present, 1), size, border=border)[operand]


def test_by_hand() -> None:
    assert of("gemm", "x", {"M": 3, "K": 5, "ldx": 7}) == (0, 4 * (2 * 7 + 5))
    assert of("gemm", "y", {"M": 0, "N": 5, "ldy": 7}) == (0, 0)
    backwards: dict[str, D.DimLike] = {
        "elem": 2,
        "n0": 1,
        "n1": 1,
        "n2": 1,
        "n3": 1,
        "n4": 3,
        "n5": 4,
        "x4": 10,
        "x5": -1,
    }
    assert of("copy", "x", backwards) == (-6, 2 * (20 + 1))
    image: dict[str, D.DimLike] = {
        "N": 1, "IC": 2, "IH": 4, "IW": 4, "OC": 16, "OH": 4, "OW": 4, "KH": 3, "KW": 3, "SH": 1,
        "SW": 1, "DH": 1, "DW": 1, "G": 1, "PT": 1, "PL": 1,
        "x_cs": 2, "x_rs": 12, "x_ns": 72,
    }  # fmt: skip
    # the zeros around the image, too
    assert of("conv2d", "x", image) == (-4 * 14, 4 * (5 * 12 + 5 * 2 + 2 - 14))
    assert of("conv2d", "x", image, border=False) == (0, 4 * (3 * 12 + 3 * 2 + 2))
    part: dict[str, D.DimLike] = {"K": 3, "N": 5, "n0": 40, "N_total": 45, "ldw": 5}
    # also where n0 lies outside
    assert (
        of("pack_gemm", "packed", part)
        == of("pack_gemm", "packed", part | {"N_total": 5})
        == (0, 4 * 3 * 64)
    )
    heads: dict[str, D.DimLike] = {
        "B": 1,
        "H": 2,
        "KVH": 1,
        "S": 3,
        "T": 5,
        "D": 4,
        "DV": 4,
        "k_s": 8,
        "m_q": 5,
        "m_k": 1,
    }
    assert of("attention", "k", heads) == (0, 4 * (4 * 8 + 4))
    assert of("attention", "mask", heads | {"mask_kind": 2}) == (0, 15)  # one byte each
    assert of("attention", "mask", heads | {"mask_kind": 1}) == (0, 60)
    rows: dict[str, D.DimLike] = {
        "outer": 2,
        "inner": 3,
        "N": 4,
        "x0_o": 0,
        "x0_i": 1,
        "x0_lo": 0,
        "x0_hi": 3,
        "x0_n": 9,
        "x0_ld": 4,
        "i0_dtype": 7,
    }
    assert of("layernorm_sum", "x0", rows, present=("x0", "i0")) == (0, 4 * 36)  # a table
    assert of("layernorm_sum", "i0", rows, present=("x0", "i0")) == (0, 8 * 3)
    assert of(
        "pointwise", "y", {"y_dtype": 9, "n0": 1, "n1": 1, "n2": 1, "n3": 1, "n4": 2, "n5": 3}
    ) == (0, 6)


def test_a_result_has_room_for_each_of_its_elements() -> None:
    """Strides of 0 make a launch write the same place again and again."""
    written: dict[str, D.DimLike] = {"elem": 4, **{f"n{d}": 1 for d in range(6)}, "n2": 1 << 40}
    assert of("copy", "x", written) == (0, 4)
    assert of("copy", "y", written) == (0, 4 << 40)
    assert of("copy", "y", written | {"y2": -1}) == (-4 * ((1 << 40) - 1), 4)
    assert of("matmul", "y", {"B0": 9, "B1": 1, "M": 2, "N": 3, "ldy": 3}) == (0, 4 * 9 * 2 * 3)
    assert of("pool2d", "y", {"N": 1, "OH": 1 << 30, "OW": 2, "C": 3, "y_cs": 3}) == (0, 24 << 30)


def test_an_extent_of_0_says_nothing_of_the_others() -> None:
    rows: dict[str, D.DimLike] = {
        "elem": 4, "count": 2, "each": 2, "k": 1, "inner": 5, "m0": 3, "s0": 5, "m4": 0
    }  # fmt: skip
    assert of("gather_tuples", "x", rows) == (0, 4 * (2 * 5 + 5))
    assert of("gather_tuples", "x", rows | {"count": 0}) == (0, 0)


@pytest.mark.parametrize("family", ["conv2d_dw", "conv2d_int8_dw"])
def test_a_depthwise_convolution_reads_as_many_channels_as_it_writes(family: str) -> None:
    image: dict[str, D.DimLike] = {
        "N": 1, "IC": 0, "OC": 4, "IH": 2, "IW": 3, "OH": 2, "OW": 3, "KH": 1, "KW": 1, "SH": 1,
        "SW": 1, "DH": 1, "DW": 1, "x_cs": 4, "x_rs": 12, "x_ns": 24,
    }  # fmt: skip
    assert of(family, "x", image) == (0, 24 * (1 if "int8" in family else 4))


def test_an_image_without_pixels_has_no_edge() -> None:
    image: dict[str, D.DimLike] = {"N": 1, "C": 2, "IW": 4, "x_cs": 2, "x_rs": 8, "OW": 4}
    assert of("resize2d", "x", image | {"IH": 2, "OH": 4}) == (0, 4 * 2 * 8)
    assert of("resize2d", "x", image | {"IH": 0, "OH": 4}) == (0, 1 << 60)
    assert of("resize2d", "x", image) == (0, 0)


def test_what_is_read_has_room_for_each_of_its_elements() -> None:
    """But for what is repeated."""
    image: dict[str, D.DimLike] = {
        "N": 2, "C": 3, "H": 4, "W": 5, "x_cs": 3, "x_rs": 15, "x_ns": 60, "y_ns": 3
    }  # fmt: skip
    assert of("global_pool", "x", image) == (0, 4 * 120)
    assert of("global_pool", "x", image | {"x_ns": 0}) == (0, 4 * 60)
    assert of("global_pool", "x", image | {"x_rs": 3}) == (0, 4 * 120)  # rows that overlap
    assert of("global_pool", "x", image | {"x_rs": 3, "W": 0}) == (0, 0)
    assert of("global_pool", "x", image | {"x_rs": 3}, border=False) == (0, 4 * (60 + 9 + 12 + 3))
    around: dict[str, D.DimLike] = {"N": 1, "H": 1 << 20, "W": 1, "PL": 1, "y_cs": 4}
    assert of("zero_border", "y", around) == (-16, 4 * (8 << 20) - 16)
    rotated: dict[str, D.DimLike] = {"B": 1, "S": 1, "H": 1, "D": 4, "rot": 9}
    assert of("rope", "y", rotated) == (0, 4 * 8)  # more than a row is rotated


def test_how_often_a_launch_goes_over_the_same_elements() -> None:
    product: dict[str, D.DimLike] = {"K": 1 << 40, "a_k": 0, "b_k": 1}
    assert repeats("matmul", product, {}) == repeats("matmul", product | {"a_k": -1}, {}) == 1
    assert repeats("matmul", product | {"b_k": 0}, {}) == 1 << 40
    assert repeats("matmul", {"K": 0}, {}) == 1
    pooled: dict[str, D.DimLike] = {"H": 7, "W": 1 << 40, "x_rs": 5, "x_cs": 1}
    assert repeats("global_pool", pooled, {}) == 1
    assert repeats("global_pool", pooled | {"H": 0}, {}) == 1 << 40  # of no elements
    assert repeats("global_pool", pooled | {"x_rs": 0, "x_cs": 0}, {}) == 7 << 40
    window: dict[str, D.DimLike] = {"KH": 1 << 20, "IH": 3, "IW": 4, "KW": 1 << 20}
    assert repeats("pool2d", window, {}) == 12  # taps outside of the image are left out
    steps: dict[str, D.DimLike] = {"T": 100, "I": 3}
    assert repeats("recurrent_layer", steps, {}) == 100
    assert repeats("recurrent_layer", steps, {"y": 1}) == 1
    assert repeats("recurrent_layer", steps | {"x_t": 1}, {}) == 1
    assert repeats("recurrent_layer", steps | {"x_t": 1, "I": 0}, {}) == 100
    filters: dict[str, D.DimLike] = {"IC": 4, "G": 2, "KH": 3, "KW": 5}
    assert repeats("conv2d", filters, {}) == 1
    assert repeats("conv2d", filters | {"IC": 0}, {}) == 15


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_launch_writes_something(family: str) -> None:
    assert results(family) & set(FAMILIES[family].names)


def test_pixels_lie_one_behind_the_other() -> None:
    """The zeros around an image are set by their number, which a negative stride would make
    negative.
    """
    assert all(
        limits(family)[0][n][0] >= 0
        for family, spec in FAMILIES.items()
        for n in spec.ints
        if n.endswith("_cs")
    )


def test_what_whole_vectors_write_and_panels_hold_counts() -> None:
    """A convolution stores whole vectors of channels where a pixel has room for them; a product
    reads whole panels of 32 columns.
    """
    one = dict.fromkeys(("N", "IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "G"), 1)
    for pitch, high in ((8, 32), (15, 32), (16, 64), (48, 64)):
        ints = one | {"IC": 16, "OC": 8, "y_cs": pitch, "y_rs": pitch, "y_ns": pitch}
        for family in ("conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"):
            assert extents(family, ints, {}, 4, border=True)["y"] == (0, high)
    for n, columns in ((1, 32), (32, 32), (33, 64)):
        found = extents("gemm", {"M": 1, "N": n, "K": 5}, {}, 4, border=True)
        assert found["w"] == (0, 5 * columns * 4)


def test_scales_of_few_bits_have_one_type_on_the_cpu() -> None:
    """The kernel reads no other, whatever the size of what it is told."""
    assert types("pack_gemm_nbits")["scale_dtype"] == {int(DType.F32)}

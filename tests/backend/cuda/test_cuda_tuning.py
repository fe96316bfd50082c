"""Tuning records and the CUDA emitters: what they offer, and that a record changes the kernel for
its sizes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from onnx import ModelProto

from tests.backend.cuda.cuda_requests import attention, compile_kernels, request, running
from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, mul, symbol
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure

cuda = discovery.module("kernels", "cuda")


def _gemm(m: DimLike, n: int = 768, k: int = 768, dtype: DType = DType.F16) -> Request:
    return request(
        "gemm",
        dtype,
        {"M": m, "N": n, "K": k, "ldx": k, "ldy": n},
        operands=("x", "w", "bias", "y"),
    )


def _conv(
    n: DimLike, c: int, side: int, oc: int, kernel: int, groups: int = 1, dtype: DType = DType.F16
) -> Request:
    family = "conv2d_dw" if groups == c else "conv2d"
    ints: dict[str, DimLike] = {
        "N": n, "IC": c, "IH": side, "IW": side, "OC": oc, "OH": side, "OW": side, "KH": kernel,
        "KW": kernel, "SH": 1, "SW": 1, "DH": 1, "DW": 1,
        "PT": kernel // 2, "PL": kernel // 2, "G": groups, "x_cs": c, "x_rs": side * c,
        "x_ns": side * side * c,
        "y_cs": oc, "y_rs": side * oc, "y_ns": side * side * oc,
    }  # fmt: skip
    return request(family, dtype, ints, operands=("x", "w", "bias", "y"))


REQUESTS = {
    "product": _gemm(512),
    "product of few rows": _gemm(3),
    "product in f32": _gemm(200, dtype=DType.F32),
    "convolution": _conv(4, 64, 28, 64, 3),
    "convolution in f32": _conv(2, 17, 19, 23, 3, dtype=DType.F32),
    "depthwise": _conv(64, 96, 56, 96, 3, 96),
    "decoding": attention(DType.F16, 64, b=8, s=1, t=1024, heads=12, kv=12),
    "attention": attention(DType.F16, 64, b=8, s=197, t=197, heads=12, kv=12),
    "attention in f32": attention(DType.F32, 64, b=2, s=200, t=300),
}


def _emit(
    r: Request,
    records: kernel_choice.Records | None = None,
    offers: kernel_choice.Offers | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[Kernel]:
    with kernel_choice.choosing(
        kernel_choice.Choices(records or {}, offers, [sizes] if sizes else ())
    ):
        kernels: list[Kernel] = cuda.emit(r)
    return kernels


@pytest.mark.parametrize(("name", "some"), [("decoding", True), ("product of few rows", False)])
def test_kernels_need_the_memory_of_their_scratch(name: str, some: bool) -> None:
    """Attention that is split has some; parts of a product meet without."""
    r, offers = REQUESTS[name], kernel_choice.Offers()
    usual, key = _emit(r, offers=offers), kernel_choice.cache_key(r)
    part = measure.Part({}, [], {}, [], {}, [key], {key: r})
    subject = measure._Subject(cuda.BACKEND, ModelProto(), {}, [part], 0)
    found = subject.memory(key, offers[key])
    kernels = {"": usual, **{one: _emit(r, {key: one}) for one in offers[key]}}
    for one, launches in kernels.items():
        assert found[one] == sum(map(int, next((k.scratch for k in launches if k.scratch), ()))), (
            one
        )
    assert min(found.values()) == 0 and (max(found.values()) > 0) == some


@pytest.mark.parametrize("name", REQUESTS)
def test_a_record_decides(name: str) -> None:
    r, offers = REQUESTS[name], kernel_choice.Offers()
    plain = _emit(r, offers=offers)
    assert plain == cuda.emit(r)  # listening changes nothing
    key = kernel_choice.cache_key(r)
    assert list(offers) == [key] and len(offers[key]) > 1
    priced = min(offers[key], key=offers[key].__getitem__)
    assert _emit(r, {key: priced}) == plain
    others = sorted(offers[key], key=offers[key].__getitem__)[1:6]
    made = [_emit(r, {key: other}) for other in others]
    assert sum(m != plain for m in made) >= len(made) - 1  # two may be one kernel for these sizes
    compile_kernels(made[0], 90)


def test_records_of_others_and_unknown_kernels_change_nothing() -> None:
    r, offers = _gemm(512), kernel_choice.Offers()
    plain = _emit(r, offers=offers)
    for changed in (_gemm(513), _gemm(512, n=776), _gemm(512, dtype=DType.BF16)):
        other = kernel_choice.cache_key(changed)
        assert other != kernel_choice.cache_key(r)
        assert (
            _emit(
                r,
                {
                    other: max(
                        offers[kernel_choice.cache_key(r)],
                        key=offers[kernel_choice.cache_key(r)].__getitem__,
                    )
                },
            )
            == plain
        )
    assert _emit(r, {kernel_choice.cache_key(r): "Tile(of='an older version')"}) == plain


_SYMBOLIC: dict[str, tuple[Callable[..., Request], dict[str, int]]] = {
    "rows of a batch": (lambda batch: _gemm(mul(batch, 128)), {"batch": 8}),
    "images": (lambda batch: _conv(batch, 64, 28, 64, 3), {"batch": 13}),
    "attention": (
        lambda batch: attention(DType.F16, 64, b=batch, s=197, t=197, heads=12, kv=12),
        {"batch": 3},
    ),
    "batch and sequence": (
        lambda batch, sequence: _gemm(mul(batch, sequence)),
        {"batch": 8, "sequence": 77},
    ),
}


@pytest.mark.parametrize("name", _SYMBOLIC)
def test_symbols_are_tuned_for_the_sizes_that_were_measured(name: str) -> None:
    make, sizes = _SYMBOLIC[name]
    symbolic, known, offers = (
        make(**{s: symbol(s) for s in sizes}),
        make(**sizes),
        kernel_choice.Offers(),
    )
    key = kernel_choice.cache_key(known)
    assert kernel_choice.cache_key(kernel_choice.specialize(symbolic, sizes)) == key
    plain = cuda.emit(symbolic)
    # these are of known sizes
    assert _emit(symbolic, offers=offers, sizes=sizes) == plain and key not in offers
    _emit(known, offers=offers)
    for other in sorted(offers[key], key=offers[key].__getitem__)[:3]:
        # the record does not say for which sizes it was measured
        assert _emit(symbolic, {key: other}) == plain
        tuned = _emit(symbolic, {key: other}, sizes=sizes)
        assert [k.source for k in running(tuned, **sizes)] == [
            k.source for k in _emit(known, {key: other})
        ]
        for changed in (1, 2, 5, 7, 16, 300):
            elsewhere = {**sizes, "batch": changed}
            assert [k.source for k in running(tuned, **elsewhere)] == [
                k.source for k in running(plain, **elsewhere)
            ]
        assert not running(tuned, **{**sizes, "batch": 0})


def test_several_sizes_are_tuned_side_by_side() -> None:
    symbolic, offers = _gemm(mul(symbol("batch"), 128)), kernel_choice.Offers()
    records = {}
    for batch in (4, 9):
        _emit(_gemm(batch * 128), offers=offers)
        key = kernel_choice.cache_key(_gemm(batch * 128))
        records[key] = sorted(offers[key], key=offers[key].__getitem__)[1]
    with kernel_choice.choosing(
        kernel_choice.Choices(
            records,
            sizes=[{"batch": 4}, {"batch": 9}, {"batch": 5}, {"rows": 7}, {"batch": 4, "rows": 7}],
        )
    ):
        tuned = cuda.emit(symbolic)
    for batch in (1, 4, 5, 9, 30):
        want = (
            _emit(_gemm(batch * 128), records)
            if batch in (4, 9)
            else running(cuda.emit(symbolic), batch=batch)
        )
        assert [k.source for k in running(tuned, batch=batch)] == [k.source for k in want]

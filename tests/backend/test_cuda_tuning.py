"""Tuning records and the CUDA emitters: what they offer, and that a record changes the kernel for its sizes and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backend.cuda_requests import attention, compile_kernels, request, running
from tracea_onnx import registry, tuning
from tracea_onnx.cuda import Kernel, Request
from tracea_onnx.dims import DimLike, mul, symbol
from tracea_onnx.ops import DType

cuda = registry.module("kernels", "cuda")


def _gemm(m: DimLike, n: int = 768, k: int = 768, dtype: DType = DType.F16) -> Request:
    return request("gemm", dtype, {"M": m, "N": n, "K": k, "ldx": k, "ldy": n}, operands=("x", "w", "bias", "y"))


def _conv(n: DimLike, c: int, side: int, oc: int, kernel: int, groups: int = 1, dtype: DType = DType.F16) -> Request:
    family = "conv2d_dw" if groups == c else "conv2d"
    ints: dict[str, DimLike] = {
        "N": n, "IC": c, "IH": side, "IW": side, "OC": oc, "OH": side, "OW": side, "KH": kernel, "KW": kernel, "SH": 1, "SW": 1, "DH": 1, "DW": 1,
        "PT": kernel // 2, "PL": kernel // 2, "G": groups, "x_cs": c, "x_rs": side * c, "x_ns": side * side * c,
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
    "depthwise of many taps": _conv(1, 64, 40, 64, 13, 64),
    "decoding": attention(DType.F16, 64, b=8, s=1, t=1024, heads=12, kv=12),
    "attention": attention(DType.F16, 64, b=8, s=197, t=197, heads=12, kv=12),
    "attention in f32": attention(DType.F32, 64, b=2, s=200, t=300),
}


def _emit(r: Request, records: tuning.Records | None = None, offers: tuning.Offers | None = None, batch: int = 0) -> list[Kernel]:
    with tuning.choosing(tuning.Choices(records or {}, offers, {"batch": (batch,)} if batch else {})):
        kernels: list[Kernel] = cuda.emit(r)
    return kernels


@pytest.mark.parametrize("name", REQUESTS)
def test_a_record_decides(name: str) -> None:
    r, offers = REQUESTS[name], tuning.Offers()
    plain = _emit(r, offers=offers)
    assert plain == cuda.emit(r)  # listening changes nothing
    key = tuning.identity(r)
    assert list(offers) == [key] and len(offers[key]) > 1
    priced = min(offers[key], key=offers[key].__getitem__)
    assert _emit(r, {key: priced}) == plain
    others = sorted(offers[key], key=offers[key].__getitem__)[1:6]
    made = [_emit(r, {key: other}) for other in others]
    assert sum(m != plain for m in made) >= len(made) - 1  # two may be one kernel for these sizes
    compile_kernels(made[0], 90)


def test_records_of_others_and_unknown_kernels_change_nothing() -> None:
    r, offers = _gemm(512), tuning.Offers()
    plain = _emit(r, offers=offers)
    for changed in (_gemm(513), _gemm(512, n=776), _gemm(512, dtype=DType.BF16)):
        other = tuning.identity(changed)
        assert other != tuning.identity(r)
        assert _emit(r, {other: max(offers[tuning.identity(r)], key=offers[tuning.identity(r)].__getitem__)}) == plain
    assert _emit(r, {tuning.identity(r): "Tile(of='an older version')"}) == plain


@pytest.mark.parametrize("size", [8, 12, 13])
@pytest.mark.parametrize("make", [lambda b: _gemm(mul(b, 128)), lambda b: _conv(b, 64, 28, 64, 3)])
def test_a_symbolic_batch_is_tuned_for_one_size(make: Callable[[DimLike], Request], size: int) -> None:
    symbolic, known, offers = make(symbol("batch")), make(size), tuning.Offers()
    assert _emit(symbolic, batch=size) == cuda.emit(symbolic)  # where nothing was measured, sizes change nothing
    _emit(symbolic, offers=offers, batch=size)
    key = tuning.identity(known)
    assert key == tuning.identity(symbolic, {"batch": size}) and len(offers[key]) > 1
    priced = min(offers[key], key=offers[key].__getitem__)
    other = next(n for n in sorted(offers[key], key=offers[key].__getitem__) if n != priced and _emit(known, {key: n}) != _emit(known))
    tuned = _emit(symbolic, {key: other}, batch=size)

    def sources(kernels: list[Kernel], batch: int) -> list[str]:
        return [k.source for k in running(kernels, batch=batch)]

    assert sources(tuned, size) != sources(cuda.emit(symbolic), size)
    assert all(sources(tuned, batch) == sources(cuda.emit(symbolic), batch) for batch in (1, 2, 4, 6, 24, 32, 100))  # of other ranges
    assert all(len(running(tuned, batch=batch)) >= 1 for batch in range(1, 40))

"""What kernels read before the kernels before them have ended: constants alone. The assembler moves
loads through the texture path (of `__restrict__` and `__ldg`) before the wait for those kernels,
whatever stands between. And that they wait at all: the next kernel takes the end of one for the end
of all before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest

from tests.backend.cuda import test_cuda_conv, test_cuda_gemm
from tests.backend.cuda.conv.test_cuda_narrow import Shape
from tests.backend.cuda.conv.test_cuda_narrow import _request as windows
from tests.backend.cuda.ptx import every_block_waits
from tests.backend.cuda.quantised import test_cuda_nbits
from tests.golden.record import FAMILIES
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
_PARTS = 8  # of all kernels, so that CI may draw some
_WINDOWS = (
    Shape(1, 3, 64, 64, 32, (7, 7), (2, 2), pad=(3, 3)), Shape(2, 4, 40, 40, 8),
    Shape(1, 300, 24, 24, 6, (1, 1), pad=(0, 0)), Shape(2, 64, 30, 30, 64, groups=64),
    Shape(1, 32, 90, 90, 32, (21, 21), pad=(10, 10), groups=32),
    Shape(1, 16, 12, 12, 8, (4, 4), (2, 2), transposed=True), Shape(2, 48, 20, 20, 96),
    Shape(1, 24, 60, 60, 24, (5, 5), pad=(2, 2), groups=4),
)  # fmt: skip


def cases() -> Iterator[tuple[str, Request]]:
    yield from test_cuda_gemm.cases()
    yield from test_cuda_conv.cases()
    for d in (DType.F16, DType.F32):
        for rows, columns, terms in (
            (1, 10, 256),
            (7, 300, 80),
            (2000, 40, 7),
            (900, 330, 70),
            (64, 64, 200),
            (300, 1, 4000),
        ):
            yield f"{rows}x{columns}x{terms} {d.name}", test_cuda_gemm.gemm(d, rows, columns, terms)
        for v in _WINDOWS:
            yield f"{v} {d.name}", windows(v, d)


@pytest.mark.parametrize(
    "constant",
    [frozenset(), frozenset({"w", "bias"})],
    ids=["nothing constant", "constant weights"],
)
def test_only_constants_are_read_through_the_texture_path(constant: frozenset[str]) -> None:
    seen, alone = set(), 0
    for name, r in cases():
        for k in cuda.emit(replace(r, constant=constant)):
            seen.add(k.symbol)
            shared = re.findall(r"const \w+\* __restrict__ (\w+)", k.source)
            alone += len(shared)
            read = re.findall(r"__ldg\(\(?[^)]*?\)?\(?e\.(\w+)", k.source)
            touched = re.findall(r"touch\(e\.(\w+)", k.source)
            assert k.source.count("__ldg(") == len(read) and set(touched) <= constant, (
                name,
                k.symbol,
            )
            assert set(shared) <= ({"w", "b", "bias", "own_w"} if constant else set()), (
                name,
                k.symbol,
                shared,
            )
            assert set(read) <= constant, (name, k.symbol, read)
    assert len(seen) > 10 and bool(alone) == bool(constant), seen


@cache
def _of_every_kind() -> list[Kernel]:
    """Kernels that begin before those before them have ended: one of each symbol and set of
    switches.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], Kernel] = {}
    more = (
        c
        for family in (*FAMILIES, "rows")
        for c in import_module(f"tests.backend.cuda.test_cuda_{family}").cases()
    )
    for _, r in (*cases(), *test_cuda_nbits.cases(), *more):
        if r.dtype == DType.BF16:  # as F16
            continue
        for constant in (frozenset[str](), frozenset({"w", "bias"})):
            try:
                kernels = cuda.emit(replace(r, constant=constant))
            except NoKernel:
                continue
            for k in kernels:
                switches = re.findall(
                    r"(?:#define|constexpr \w+) (\w+) (?:= )?([01]|true|false)\b(?!\.)", k.source
                )
                kind = (k.symbol, frozenset(switches))
                if k.pdl:
                    found.setdefault(kind, k)
    return list(found.values())


def _ptx(source: str) -> str:
    return str(
        discovery.module("kernels", "cuda.compiler")._compile(source, "compute_90a").decode()
    )


def _sources(k: Kernel) -> list[str]:
    """Its source; that of a running sum as it is for one part of a row and for several, which wait
    at different places.
    """
    return (
        [re.sub(r"(\bcumsum\([^{]*\{)", rf"\1 parts = {n};", k.source) for n in (1, 2)]
        if k.symbol == "cumsum"
        else [k.source]
    )


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_block_waits_for_the_kernels_before_it(part: int) -> None:
    kernels = _of_every_kind()
    assert len({k.symbol for k in kernels}) > 25
    assert not [
        k.symbol
        for k in kernels[part::_PARTS]
        if not all(every_block_waits(_ptx(s), k.symbol) for s in _sources(k))
    ]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("WAIT; x[threadIdx.x] = n;", True),
        ("x[threadIdx.x] = n;", False),
        ("if (blockIdx.x >= n) return; WAIT; x[0] = 1;", False),
        ("if (blockIdx.x < n) { WAIT; x[threadIdx.x] = 1; }", False),
        ("if (threadIdx.x < 32) { WAIT; x[0] = 1; } else x[threadIdx.x] = 2;", True),
        (
            (
                "if (blockIdx.x < n) { if (threadIdx.x < 32) { WAIT; x[0] = 1; "
                "} else x[threadIdx.x] = 2; }"
            ),
            False,
        ),
        ("for (int k = blockIdx.x; k < n; k += gridDim.x) { WAIT; x[k] = 1; }", False),
        ("for (int k = threadIdx.x; k < 4096; k += n) { if (k > n) { WAIT; } x[k] = 1; }", False),
        ("WAIT; for (int k = threadIdx.x; k < n; k += 128) x[k] = 1;", True),
        ("for (int k = 0; k < n; k++) x[k] = x[k + threadIdx.x]; WAIT; x[0] = 1;", True),
        (
            (
                "switch (n) { case 1: WAIT; x[0] = 1; break; case 2: x[0] = 7; WAIT; break; "
                "case 3: x[4] = 1; WAIT; break; case 4: x[9] = 5; break; default: WAIT; }"
            ),
            False,
        ),
    ],
)
def test_what_the_check_finds(text: str, waits: bool) -> None:
    body = text.replace("WAIT", 'asm volatile("griddepcontrol.wait;" ::: "memory")')
    assert (
        every_block_waits(
            _ptx(f'extern "C" __global__ void kernel(volatile int* x, int n) {{ {body} }}'),
            "kernel",
        )
        == waits
    )

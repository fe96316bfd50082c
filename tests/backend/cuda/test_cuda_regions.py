"""CUDA kernels of regions of images, of moved windows and of determinants: they compile, and those
of images, computed by the host's compiler, agree with float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, request
from tests.backend.cuda.test_cuda_indexed import _HOST, IMAGE, _own, _pointers
from tests.cpp import library
from tests.gpu.cases import regions
from tests.support.cuda.case import Case, poisoned
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
_TYPES = ((DType.F32, 80), (DType.F16, 90), (DType.BF16, 89))


def cases() -> Iterator[tuple[str, Request]]:
    for mode, half, (dtype, arch) in itertools.product(range(2), range(2), _TYPES):
        ints: dict[str, DimLike] = {
            **IMAGE, "N": 2, "R": symbol("r"), "OH": 7, "mode": mode, "half": half,
            "ratio": 2 * mode,
        }  # fmt: skip
        yield (
            f"regions {mode} {half} {dtype.name}",
            request(
                "roi_align", dtype, ints, {"scale": 0.25}, operands=("x", "rois", "batch", "y"),
                arch=arch,
            ),
        )  # fmt: skip
    for masked, (c, g, moved), (dtype, arch) in itertools.product(
        (False, True), ((5, 1, 1), (64, 2, 4)), _TYPES
    ):
        ints = {
            "N": symbol("n"), "C": c, "IH": 6, "IW": 7, "OH": symbol("h"), "OW": 5,
            "KH": 3, "KW": 2, "SH": 1, "SW": 2, "DH": 1, "DW": 1, "PT": 1, "PL": 0, "G": g,
            "DG": moved, "x_cs": 64, "x_rs": 448, "x_ns": 2688,
        }  # fmt: skip
        names = ("x", "offset", *(["mask"] if masked else []), "y")
        made = request("deform_columns", dtype, ints, operands=names, arch=arch)
        yield f"moved {c} {masked} {dtype.name}", made
    for dtype, arch in _TYPES:
        ints = {"count": symbol("count"), "n": symbol("size") if arch == 80 else 4}
        made = request("determinant", dtype, ints, operands=("x", "y"), arch=arch)
        yield f"determinant {dtype.name}", made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=f"{n} sm_{r.arch}") for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


_MORE = """
DEV bool aligned(const void*, int) { return true; }

"""


def _computed(tmp_path: Path, case: Case, header: str, call: str, fields: tuple[str, ...]) -> Any:
    """The result of a case by the host's compiler. fields: members of the struct `g`."""
    i: dict[str, Any] = dict(case.ints)
    given = ", ".join(str(case.floats.get(f, i.get(f, 0))) for f in fields)
    pitches = ", ".join(
        f"Pitch{{{i[f'{o}_cs']}, {i[f'{o}_rs']}, {i[f'{o}_ns']}}}" for o in "xy" if f"{o}_cs" in i
    )
    names = [*case.operands, *case.outputs]
    text = (
        f'extern "C" void run({", ".join(f"void* {n}" for n in names)}) {{ unsigned fault = 0; '
        f"(void)fault; {call.format(given=given, pitches=pitches)} }}"
    )
    host = library(tmp_path, "own", _HOST + _MORE + _own(header) + text)
    (out,) = case.outputs.values()
    y = poisoned(out.count, out.dtype)
    host.run(*_pointers(*case.operands.values(), y))
    return out.error(y)


def _taken(maker: Any, every: int) -> list[Case]:
    made = [c for c in maker(np.random.default_rng(5)) if c.dtype == DType.F32]
    return made[::every]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", _taken(regions.regions, 3), ids=lambda c: c.name)
def test_regions(tmp_path: Path, case: Case) -> None:
    fields = ("N", "C", "IH", "IW", "R", "OH", "OW", "ratio", "scale")
    forms = f"{case.ints['mode']}, {str(bool(case.ints['half'])).lower()}"
    call = (
        f"roi_align<{forms}>((const float*)x, (const float*)rois, (const i64*)batch, (float*)y, "
        "RoiAlign{{{given}}}, {pitches}, &fault);"
    )
    assert _computed(tmp_path, case, "image/roi_align", call, fields) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", _taken(regions.moved, 1), ids=lambda c: c.name)
def test_moved_windows(tmp_path: Path, case: Case) -> None:
    fields = (
        "N", "C", "IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL", "G", "DG",
    )  # fmt: skip
    mask = "(const float*)mask" if "mask" in case.operands else "(const float*)nullptr"
    wide = 4 if case.ints["C"] == 32 else 1
    call = (
        f"deform_columns<{wide}>((const float*)x, (const float*)offset, {mask}, (float*)y, "
        "DeformConv{{{given}}}, {pitches});"
    )
    assert _computed(tmp_path, case, "image/deform", call, fields) <= 1

"""CUDA pointwise programs: every opcode and conversion compiles without a GPU; vectors where the
layout allows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, request
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir.abi import F32_OPCODES, I64_OPCODES, OPCODES, DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
PAIRS = ((DType.F32, 80), (DType.BF16, 89), (DType.F16, 90))
_CHAIN = compile_program(Expr(2, (Instr("add", (0, 1)), Instr("gelu_erf", (2,))), 3), type="f32")


def _plain(
    shape: Sequence[DimLike],
    inputs: Sequence[tuple[DType, Sequence[DimLike]]],
    out: DType,
    program: dict[str, object] = _CHAIN,
    arch: int = 90,
) -> Request:
    ints: dict[str, DimLike] = {
        "y_dtype": int(out),
        **{f"n{k}": d for k, d in enumerate([*[1] * (6 - len(shape)), *shape])},
    }
    for j, (dtype, strides) in enumerate(inputs):
        ints |= {
            f"x{j}_dtype": int(dtype),
            **{f"x{j}_{k}": s for k, s in enumerate([*[0] * (6 - len(shape)), *strides])},
        }
    return request(
        "pointwise",
        DType.F32,
        ints,
        program=program,
        operands=[*(f"x{j}" for j in range(len(inputs))), "y"],
        arch=arch,
    )


def _image(dtype: DType, c: int, kinds: Sequence[int], arch: int = 90) -> Request:
    cs = -(-c // 8) * 8
    ints: dict[str, DimLike] = {
        "N": symbol("N"),
        "C": c,
        "H": 5,
        "W": 6,
        "y_cs": cs,
        "y_rs": cs * 6,
        "y_ns": cs * 30,
    }
    for j, kind in enumerate(kinds):
        pitches = (
            {f"x{j}_{p}": v for p, v in (("cs", cs), ("rs", cs * 6), ("ns", cs * 30))}
            if kind == 0
            else {f"x{j}_ns": 0}
        )
        ints |= {f"x{j}_kind": kind, **pitches}
    return request(
        "pointwise_nhwc", dtype, ints, program=_CHAIN, operands=("x0", "x1", "y"), arch=arch
    )


def cases() -> Iterator[tuple[str, Request]]:
    for d, arch in PAIRS:
        yield "flat", _plain([1009], [(d, [1]), (d, [1])], d, arch=arch)
        yield (
            "broadcast",
            _plain([3, symbol("n"), 64], [(d, [0, 64, 1]), (d, [1, 0, 0])], d, arch=arch),
        )
        yield (
            "strided",
            _plain(
                [2, 3, 4, 5, 6, 7], [(d, [1, 2, 3, 4, 5, 6]), (d, [0, 1, 0, 4, 0, 1])], d, arch=arch
            ),
        )
        for kinds in ((0, 0), (0, 1), (0, 3)):
            yield f"image {kinds}", _image(d, 20, kinds, arch)
    one = compile_program(Expr(1, (), 0), type="f32")
    for d in DType:
        if d != DType.F64:
            yield f"cast {d.name}", _plain([70], [(DType.F32, [1])], d, one, 80)
            yield f"cast from {d.name}", _plain([70], [(d, [1])], DType.F16, one, 80)
    integer = compile_program(Expr(2, (Instr("mul", (0, 1)),), 2), type="i64")
    yield "i64", _plain([7, 9], [(DType.I32, [9, 1]), (DType.BOOL, [0, 1])], DType.I64, integer, 80)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "r", [pytest.param(r, id=f"{n} {r.dtype.name} sm_{r.arch}") for n, r in cases()]
)
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["f32", "f16", "i64"])
def test_every_opcode_compiles(kind: str) -> None:
    code = [Instr("const", (), 2.0)]
    for op in sorted((I64_OPCODES if kind == "i64" else F32_OPCODES) - {"const", "copy"}):
        for args in ((0,), (0, 1), (0, 1, 2)):
            code.append(Instr("add", (len(code) + 2, len(code) + 2)))
            code.append(Instr(op, args))
    rows = [
        [OPCODES.index(i.op), 3 + k, *i.args, *[0] * (3 - len(i.args)), i.imm]
        for k, i in enumerate(code)
    ]
    total = 3 + len(rows)
    rows += [
        [OPCODES.index("add"), total, total if k else 3, 3 + k, 0, 0.0] for k in range(len(code))
    ]
    program = {"type": int(kind == "i64"), "n_in": 3, "regs": total + 1, "out": total, "code": rows}
    d = {"f32": DType.F32, "f16": DType.F16, "i64": DType.I64}[kind]
    compile_kernels(cuda.emit(_plain([64], [(d, [1])] * 3, d, program)), 90)


def _width(r: Request) -> int:
    (k,) = cuda.emit(r)
    found = re.search(r"int VECTOR = (\d+);", k.source)
    assert found
    return int(found.group(1))


def test_vectors_are_16_bytes_of_the_widest_type() -> None:
    assert _width(_plain([64], [(DType.F16, [1])] * 2, DType.F16)) == 8
    assert _width(_plain([64], [(DType.F16, [1]), (DType.F32, [1])], DType.F16)) == 4
    assert _width(_plain([64], [(DType.I64, [1])] * 2, DType.BOOL)) == 2


def test_few_elements_anywhere_are_single() -> None:
    d = DType.F16
    for shape, each in (
        ((85, 1001), 512),
        ((500, 500), 512),
        ((520, 521), 8 * 256),
        ((100_003, 3), 512),
    ):
        grid = -(-(shape[0] * shape[1] + (each > 512) * 16) // each)
        (k,) = cuda.emit(_plain(shape, [(d, [shape[1], 1]), (d, [1, 0])], d))
        assert k.grid[0] == grid and f"int FEW = {int(shape[1] != 521)};" in k.source
    (k,) = cuda.emit(_plain([500, 504], [(d, [504, 1]), (d, [0, 1])], d))
    assert k.grid[0] == -(-(500 * 504 // 8 + 1) // 256)


def test_pad_channels_make_an_image_one_run() -> None:
    (k,) = cuda.emit(_image(DType.F16, 20, (0, 0)))
    assert evaluate(k.grid[0], {"N": 100}) == -(-100 * 30 * 24 // 8 // 256)
    assert "int RANK = 1;" in k.source


def test_a_program_is_needed() -> None:
    with pytest.raises(NoKernel, match="without a program"):
        cuda.emit(request("pointwise", DType.F32, {"n5": 3, "y_dtype": 1}, operands=("y",)))

"""A header (`.cuh`) and what its generator defines become a kernel.

instantiate(
    request, "softmax", "norm/softmax", [pointer("const T", "x"), *ints({"outer": m})], grid, 256,
    macros={"SPLIT": 2}, constants={"BK": 16, "HELD": True},
)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.codegen.kernel_request import Float32, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .epilogue import Epilogue, Parameter
from .launch import declared, uses_pdl
from .prelude import prelude
from .templates import template

#: Names of element types in PTX of tensor cores.
MMA_TYPE = {
    DType.F16: "f16", DType.BF16: "bf16", DType.F32: "tf32", DType.U8: "u8", DType.I8: "s8"
}  # fmt: skip


def ints(values: Mapping[str, DimLike]) -> list[Parameter]:
    """Parameters of type `int`."""
    return [("int", name, Int32(v)) for name, v in values.items()]


def unsigned(values: Mapping[str, DimLike]) -> list[Parameter]:
    """Parameters of type `u32`."""
    return [("u32", name, Int32(v)) for name, v in values.items()]


def longs(values: Mapping[str, DimLike]) -> list[Parameter]:
    """Parameters of type `i64`."""
    return [("i64", name, Int64(v)) for name, v in values.items()]


def sizes(request: Request, *names: str) -> dict[str, DimLike]:
    """Integer parameters of the request; lowering leaves out what is 0."""
    return {name: request.ints.get(name, 0) for name in names}


def pointer(ctype: str, operand: str, name: str = "") -> Parameter:
    """The parameter that points to `operand`, called so or `name`; `ctype` is of its elements."""
    return f"{ctype}*", name or operand, Pointer(operand)


def floats(values: Mapping[str, float]) -> list[Parameter]:
    """Parameters of type `float`."""
    return [("float", name, Float32(v)) for name, v in values.items()]


def constexprs(values: Mapping[str, bool | int | float]) -> str:
    """`constexpr` definitions."""
    return "".join(
        f"constexpr {type(v).__name__} {name} = {str(v).lower()};\n" for name, v in values.items()
    )


def defines(values: Mapping[str, bool | int | str]) -> str:
    """`#define`s: for values that the preprocessor tests, or that are no expressions."""
    return "".join(
        f"#define {name} {v if isinstance(v, str) else int(v)}\n" for name, v in values.items()
    )


def wgmma(dtype: DType, *columns: int) -> dict[str, bool | int | str]:
    """Macros of `common/wgmma` for wgmma with these numbers of columns (N)."""
    return {
        "MMA_TYPE": f'"{MMA_TYPE[dtype]}"',
        "WGMMA_SIZES": " ".join(f"WGMMA({n})" for n in sorted({*columns})),
    }


def instantiate(
    request: Request,
    symbol: str,
    header: str,
    parameters: Sequence[Parameter],
    grid: tuple[DimLike, DimLike, DimLike],
    threads: int,
    *,
    epilogue: Epilogue | None = None,
    macros: Mapping[str, bool | int | str] = {},
    constants: Mapping[str, bool | int | float] = {},
    text: str = "",
    smem: int = 0,
    cluster: int = 1,
    scratch: tuple[DimLike, ...] = (),
    fast: bool | None = None,
) -> Kernel:
    """The kernel `symbol` of `header`, which may use: the prelude of the request's element type
    (fast: as for `prelude`, default: the epilogue's), IS_F32, `macros` and `constants`, the macro
    PARAMETERS (of `parameters` and those of `epilogue`), further `text`, and the epilogue with the
    macro EPILOGUE_ARGUMENTS. smem: bytes; cluster: CTAs; the rest as in `Kernel`.
    """
    given = [*parameters, *(epilogue.parameters if epilogue else ())]
    defined = {
        "IS_F32": request.dtype == DType.F32,
        **macros,
        "PARAMETERS": declared(request, given),
        **({"EPILOGUE_ARGUMENTS": epilogue.arguments} if epilogue else {}),
    }
    if fast is None and epilogue is not None:
        fast = epilogue.fast
    source = (
        prelude(request.dtype, fast=fast)
        + defines(defined)
        + constexprs(constants)
        + text
        + (epilogue.source if epilogue else "")
        + template(header)
    )
    args = tuple(v for _, _, v in given)
    pdl = uses_pdl(request)
    return Kernel(source, symbol, grid, threads, args, smem, cluster, pdl, scratch)


def invoke(name: str, forms: Sequence[int | str], given: str) -> str:
    """The statement `name<forms>(given);`."""
    texts = (str(f).lower() if isinstance(f, bool) else str(f) for f in forms)
    return f"{name}<{', '.join(texts)}>({given});"


def entry(
    symbol: str, parameters: Sequence[Parameter], threads: int, body: str, *, resident: int = 0
) -> str:
    """An entry point with the statements `body`. resident: CTAs per SM that registers must permit
    (0: any).
    """
    given = ", ".join(f"{ctype} {name}" for ctype, name, _ in parameters)
    bounds = f"{threads}, {resident}" if resident else threads
    return (
        f'\nextern "C" __global__ void __launch_bounds__({bounds}) {symbol}({given}) {{\n'
        f"  {body}\n}}\n"
    )


def instance(
    request: Request,
    symbol: str,
    header: str,
    parameters: Sequence[Parameter],
    grid: DimLike | tuple[DimLike, DimLike, DimLike],
    threads: int,
    body: str,
    *,
    dtype: DType | None = None,
    fast: bool | None = None,
    resident: int = 0,
    before: str = "",
    text: str = "",
    after: str = "",
    smem: int = 0,
    cluster: int = 1,
    scratch: tuple[DimLike, ...] = (),
) -> Kernel:
    """The kernel `symbol` whose statements `body` call function templates of `header`. dtype: the
    element type (default: the request's). before: definitions that the header needs. text, after:
    texts before and after the entry point. The rest as in `instantiate` and `entry`.
    """
    source = (
        prelude(request.dtype if dtype is None else dtype, fast=fast)
        + before
        + template(header)
        + text
        + entry(symbol, parameters, threads, body, resident=resident)
        + after
    )
    args = tuple(v for _, _, v in parameters)
    blocks = grid if isinstance(grid, tuple) else (grid, 1, 1)
    pdl = uses_pdl(request)
    return Kernel(source, symbol, blocks, threads, args, smem, cluster, pdl, scratch)

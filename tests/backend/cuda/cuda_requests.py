"""Requests to the CUDA backend, and what every kernel it answers with must satisfy on any
machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime.device_caps import DeviceCaps, usual
from tracea_onnx.support import discovery


def request(
    family: str,
    dtype: DType,
    ints: Mapping[str, DimLike],
    floats: Mapping[str, float] | None = None,
    program: Mapping[str, Any] | None = None,
    operands: Iterable[str] = (),
    *,
    arch: int = 90,
    unaligned: Iterable[str] = (),
) -> Request:
    spec = FAMILIES[family]
    assert set(ints) <= set(spec.ints) and set(operands) <= {o.rstrip("?") for o in spec.operands}
    return Request(
        family,
        dtype,
        dict(ints),
        dict(floats or {}),
        program,
        frozenset(operands),
        usual(arch, 132),
        frozenset(unaligned),
    )


def attention(
    dtype: DType, d: int, *, dv: int = 0, s: DimLike = 200, t: DimLike = 300, b: DimLike = 2,
    mask: int = 0, causal: int = 0, clean: int = 0, pad: int = 0,
    arch: int = 90, scale: float = 0.125, unaligned: tuple[str, ...] = (), heads: int = 4,
    kv: int = 0, cap: float = 0.0,
) -> Request:  # fmt: skip
    dv, kv = dv or d, kv or heads // 2
    ints: dict[str, DimLike] = {
        "B": b,
        "H": heads,
        "KVH": kv,
        "S": s,
        "T": t,
        "D": d,
        "DV": dv,
        "causal": causal,
        "past": 0,
        "nan_to_zero": clean,
    }
    for o, n, width in (("q", heads, d), ("k", kv, d), ("v", kv, dv), ("y", heads, dv)):
        ints |= {
            f"{o}_h": width + pad,
            f"{o}_s": n * (width + pad),
            f"{o}_b": n * (width + pad) * 512,
        }
    if mask:
        ints |= {"mask_kind": mask, "m_k": 1, "m_b": 300}
    operands = ("q", "k", "v", "y", *(["mask"] if mask else []))
    return request(
        "attention",
        dtype,
        ints,
        {"scale": scale, "fill": float("-inf"), "softcap": cap},
        operands=operands,
        arch=arch,
        unaligned=unaligned,
    )


def copied(r: Request) -> list[list[str]]:
    """Where tensor copies of each launch read and write."""
    return [
        [a.pointer.operand for a in k.args if isinstance(a, TensorMap)]
        for k in discovery.module("kernels", "cuda").emit(r)
    ]


def running(kernels: Iterable[Kernel], **sizes: int) -> list[Kernel]:
    """Those that are launched for such values of the symbols."""
    return [k for k in kernels if all(evaluate(g, sizes) > 0 for g in k.grid)]


def check_kernels(kernels: list[Kernel], device: int | DeviceCaps) -> None:
    """device: its capabilities, or the architecture whose usual ones it has."""
    caps = usual(device) if isinstance(device, int) else device
    for k in kernels:
        assert k.smem <= caps.smem_block, (k.symbol, k.smem)
        assert k.block % 32 == 0 and k.block <= 1024 and 1 <= k.cluster <= caps.cluster, (
            k.symbol,
            k.block,
            k.cluster,
        )
        assert not isinstance(k.grid[0], int) or k.grid[0] % k.cluster == 0
        for a in k.args:
            if isinstance(a, TensorMap):
                assert len(a.strides) == len(a.dims) - 1
                assert all(0 < b <= 256 for b in a.box) and (
                    not a.box or a.box[0] * a.dtype.size <= 128
                )
                assert all(s % 16 == 0 for s in a.strides if isinstance(s, int))


def compile_kernels(kernels: list[Kernel], arch: int) -> None:
    """Each source becomes a cubin that holds the symbols its launches name."""
    check_kernels(kernels, arch)
    backend = discovery.module("kernels", "cuda")
    for k in kernels:
        cubin = backend.compile(k.source, arch)
        assert cubin[:4] == b"\x7fELF" and k.symbol.encode() in cubin


def kernels_of(r: Request) -> list[Kernel]:
    kernels: list[Kernel] = discovery.module("kernels", "cuda").emit(r)
    check_kernels(kernels, r.caps)
    return kernels


def batched(
    dtype: DType, m: int, n: int, k: int, a: tuple[DimLike, DimLike], b: tuple[DimLike, DimLike]
) -> Request:
    """Products of 2 x 3 packed matrices; a = (a_m, a_k), b = (b_k, b_n)."""
    ints = {
        "B0": 2,
        "B1": 3,
        "M": m,
        "N": n,
        "K": k,
        "a_0": 3 * m * k,
        "a_1": m * k,
        "a_m": a[0],
        "a_k": a[1],
        "b_0": 0,
        "b_1": n * k,
        "b_k": b[0],
        "b_n": b[1],
    }
    return request(
        "matmul", dtype, ints | {"y_0": 3 * m * n, "y_1": m * n, "ldy": n}, operands=("a", "b", "y")
    )


def many(r: Request, b0: int, b1: int) -> Request:
    i = r.ints
    return replace(
        r, ints={**i, "B0": b0, "B1": b1, **{f"{o}_0": D.mul(i[f"{o}_1"], b1) for o in "aby"}}
    )

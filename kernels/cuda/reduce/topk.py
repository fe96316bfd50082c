"""Top-k: the largest or smallest elements along an axis, in order."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.epilogue import Parameter
from ..common.instantiate import instance, ints, invoke, longs, pointer
from ..common.launch import blocks, known, parameters, static
from ..common.prelude import C_TYPES

#: Most keys that a CTA sorts (72 KiB).
_MOST = 8192
#: Rows of a warp: most elements, most results, most (elements of a lane) * results; each result
#: examines all elements.
_WARP_ROW, _WARP_RESULTS, _WARP_LOOKS = 512, 32, 256
#: Longest row that is sorted as a whole; selection takes several passes.
_SORTED = 512
#: Rows from _LONG elements on are divided into at most _PARTS parts of at least _PART elements.
_LONG, _PART, _PARTS = 24576, 8192, 64


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class _Top:
    request: Request
    dtype: DType
    k: int
    outer: DimLike
    n: DimLike
    inner: DimLike

    @property
    def rows(self) -> DimLike:
        return D.mul(self.outer, self.inner)

    def _kernel(
        self,
        call: str,
        grid: DimLike,
        block: int,
        more: Sequence[Parameter] = (),
        smem: int = 0,
        scratch: tuple[DimLike, ...] = (),
    ) -> Kernel:
        shared = "extern __shared__ __align__(16) u64 kept[];\n  " if smem else ""
        e = C_TYPES[self.dtype]
        given = [
            pointer(f"const {e}", "x"),
            pointer(e, "y"),
            pointer("i64", "at", "indices"),
            *longs({"rows": self.rows, "n": self.n, "inner": self.inner}),
            ("u32*", "fault", FaultWord()),
            *more,
        ]
        return instance(
            self.request,
            "topk",
            "reduce/topk",
            given,
            grid,
            block,
            f"{shared}pdl_begin();\n  {call}",
            dtype=DType.F32,
            smem=smem,
            scratch=scratch,
        )

    def kernels(self) -> list[Kernel]:
        n, k, sms, largest = (
            known(self.n),
            self.k,
            self.request.sms,
            bool(static(parameters(self.request)["largest"], "order")),
        )
        if (
            n is not None
            and n <= _WARP_ROW
            and k <= _WARP_RESULTS
            and -(-n // 32) * k <= _WARP_LOOKS
        ):
            by_warps = (k, max(1, -(-n // 32)), largest)
            call = invoke("top_warps", by_warps, "x, y, indices, rows, n, inner, fault")
            return [self._kernel(call, blocks(self.rows, 4, sms * 16), 128)]
        if k > _MOST:
            raise NoKernel(f"the {k} first of a row, of which a block sorts {_MOST}")
        size = max(_power(n if n is not None and n <= _SORTED else k), 8)
        looks = 1024 if n is None else 0 if n <= size else _power(n // 4)
        threads = min(max(looks, size // 8, 64), 1024)
        forms, smem = (threads, k, size, largest), 9 * size  # with the padding
        grid = D.minimum(self.rows, sms * (2048 // threads))

        def top(keys: str, parts: str, *, joined: bool) -> str:
            given = f"x, {keys}, y, indices, rows, n, inner, {parts}, kept, fault"
            return invoke("top_rows", (*forms, joined), given)

        if n is None or n < max(_LONG, 4 * k) or known(D.less(self.rows, 2 * sms)) == 0:
            return [self._kernel(top("nullptr", "0", joined=False), grid, threads, smem=smem)]
        each = max(_PART, 2 * k, -(-n // _PARTS))
        parts = -(-n // each)
        count, scratch = ints({"parts": parts}), (D.mul(self.rows, 8 * parts * k),)
        first = invoke("top_parts", forms, f"x, keys, rows, n, inner, parts, {each}, kept")
        rest = top("keys", "parts", joined=True)
        given = [[pointer(t, "scratch0", "keys"), *count] for t in ("u64", "const u64")]
        return [
            self._kernel(first, D.mul(self.rows, parts), threads, given[0], smem, scratch),
            self._kernel(rest, grid, threads, given[1], smem, scratch),
        ]


def topk(request: Request) -> list[Kernel]:
    i = parameters(request)
    dtype = DType(static(i["dtype"], "type"))
    if dtype not in (DType.F32, DType.F16, DType.BF16, DType.I32):
        raise NoKernel(f"the first of a row of {dtype.name}")
    if (known(i["n"]) or 0) >> 31:
        raise NoKernel(f"the first of a row of {i['n']} elements")
    return _Top(
        request, dtype, static(i["k"], "number of results"), i["outer"], i["n"], i["inner"]
    ).kernels()


FAMILIES = {"topk": topk}

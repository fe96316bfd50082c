"""Max pooling of 8-bit images (`pool_bytes.cuh`)."""

from __future__ import annotations

from collections.abc import Callable

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of

from ..common.instantiate import constexprs, instance, ints, longs, pointer, sizes
from ..common.launch import blocks, known

_PITCHES = tuple(f"{s}_{p}" for s in "xy" for p in ("cs", "rs", "ns"))
_SIZES = ("N", "C", "IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
#: Windows of at most so many taps along an axis are unrolled; threads, and CTAs of an SM.
_UNROLLED, _THREADS, _RESIDENT = 3, 256, 16


def pool(r: Request) -> list[Kernel]:
    """Raises NoKernel for images of other types."""
    if r.dtype.size != 1:
        raise NoKernel("an image of no bytes")
    i = r.ints
    if i.get("mode", 0) != 0:
        raise NoKernel("a mean of bytes")
    window = [known(i["KH"]), known(i["KW"])]
    if max(k or _UNROLLED + 1 for k in window) > _UNROLLED:
        window = [0, 0]
    wide = 1 if r.unaligned else min(16, *(multiple_of(i[n]) for n in ("C", *_PITCHES)))
    wide = wide if wide >= 4 else 1
    units = D.product([i["N"], i["OH"], i["OW"], D.floordiv(i["C"], wide)])
    given = sizes(r, *_SIZES)
    given = {{"KH": "run_kh", "KW": "run_kw"}.get(n, n): v for n, v in given.items()}
    parameters = [
        pointer("const T", "x"), pointer("T", "y"), *ints(given), *longs(sizes(r, *_PITCHES))
    ]  # fmt: skip
    names = ", ".join((*given, *_PITCHES))
    return [
        instance(
            r,
            "pool_bytes_of",
            "image/pool_bytes",
            parameters,
            blocks(units, _THREADS, r.sms * _RESIDENT),
            _THREADS,
            f"pdl_begin();\n  pool_bytes<{wide}>(x, y, Bytes{{{names}}});",
            before=constexprs({"KH": window[0] or 0, "KW": window[1] or 0}),
        )
    ]


KERNELS: dict[str, Callable[[Request], list[Kernel]]] = {"pool2d": pool}

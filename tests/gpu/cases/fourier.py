"""Cases of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.support.cuda.case import Case, plain, rounding, stored, value
from tests.support.fourier import COMPLEX, OF_REAL, TO_REAL, Fourier, all_kinds
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol

FLOATS = (DType.F32, DType.F16, DType.BF16)
#: Every radix, many frames, axes that are not the last.
CASES = (
    *all_kinds(1), *all_kinds(30), *all_kinds(64, batch=(2, 300)), *all_kinds(143, batch=(3, 5)),
    *all_kinds(400, columns=True), *all_kinds(1024),
    *(Fourier(n, bins=n // 2 + 1, batch=(2, 99), window=True, step=step)
      for n, step in ((400, 160), (512, 128), (1024, 256), (2048, 512), (4096, 1000), (819, 33))),
    Fourier(1331, COMPLEX, terms=1000), Fourier(3072, COMPLEX, True), Fourier(98, TO_REAL, True),
    Fourier(882, OF_REAL, bins=442, batch=(1, 5001)), Fourier(512, OF_REAL, batch=(3, 0)),
)  # fmt: skip


def fft(rng: np.random.Generator) -> Iterator[Case]:
    for k, case in enumerate(CASES):
        for dtype in FLOATS:
            given = {o: stored(v, dtype) for o, v in case.draw(rng).items()}
            want = case.want({o: value(v, dtype) for o, v in given.items()})
            bound = rounding(want, dtype, case.bound(want) * 2.0**24, 1)
            ints: dict[str, DimLike] = {**case.ints()}
            env = {"m": case.batch[1]} if k % 2 else {}
            if env:
                ints["M"] = symbol("m")
            yield Case(
                f"fft {case.length} of kind {case.kind}, number {k}", "fft", dtype, ints,
                given | {"tables": case.tables()}, {"y": plain(dtype, want, bound)},
                case.floats(), env=env, constant=frozenset({"tables"}),
            )  # fmt: skip


FAMILIES = {"fft": fft}

"""How fast products by weights of 4 and 8 bits are on a GPU, beside the same by fp16 weights.

    python -m benchmarks.nbits_gemm [--rows 1 8 128] [--bits 4 8] [--block 32]

Layers of decoders of 1 and 8 billion weights. `ours` is one launch of `gemm_nbits` on packed
weights, `fp16` our kernel for fp16 weights, `library` PyTorch's linear. Results are compared with
float64 first. Times are those of CUDA graphs of many calls, on inputs rotated past L2. The share is
that of the bytes of weights, scales, zeros, rows and results in what a copy of 1 GiB moves. A ratio
is a peer's time over ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks import harness
from tests.support.cuda import operands as O
from tests.support.cuda import runner as R
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import packed_elements

F16 = DType.F16
#: Columns and terms.
LAYERS = (
    (2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (6144, 4096), (14336, 4096),
    (4096, 14336), (32000, 4096),
)  # fmt: skip
_COPIED, _EXACT = 1 << 30, 32


def bandwidth() -> float:
    """Bytes per microsecond that a copy reads and writes."""
    t = R.torch()
    a, b = (t.empty(_COPIED, dtype=t.uint8, device="cuda") for _ in range(2))
    times = harness.on_device({harness.OURS: lambda i: a.copy_(b)}, least=2)
    return 2 * _COPIED / float(times.us[harness.OURS])


def requests(m: int, n: int, k: int, bits: int, block: int) -> tuple[Request, Request, Request]:
    """Packing, product, and product by fp16 weights."""
    blocks, f16 = k // block, int(F16)
    pack = {
        "K": k, "N": n, "bits": bits, "block": block, "zero_dtype": int(DType.U8), "w_n": k,
        "w_k": 1, "s_n": blocks, "s_k": 1, "z_n": blocks, "z_k": 1, "scale_dtype": f16,
    }  # fmt: skip
    sizes = {"M": m, "N": n, "K": k, "ldx": k, "ldy": n}
    few = sizes | {"bits": bits, "block": block, "zeros": 1, "scale_dtype": f16}
    constant = ("w",)
    return (
        R.request("pack_gemm_nbits", DType.F32, pack, operands=("w", "scale", "zero", "packed")),
        R.request("gemm_nbits", F16, few, operands=("x", "w", "y"), constant=constant),
        R.request("gemm", F16, sizes, operands=("x", "w", "y"), constant=constant),
    )


def _unpacked(values: Any, bits: int) -> Any:
    t = R.torch()
    parts = [values >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return t.stack(parts, -1).reshape(len(values), -1)


def measure(
    m: int, n: int, k: int, bits: int, block: int
) -> tuple[float, float, int, harness.Times]:
    """Worst error over its bound of ours and of fp16, bytes, times."""
    t = R.torch()
    pack, few, plain = requests(m, n, k, bits, block)
    size = n * k * bits // 8 + n * (k // block) * (2 + bits / 8) + 2 * m * (n + k)
    sets = harness.sets_for(int(size), most=40)
    calls: dict[str, list[Callable[[int], None]]] = {"ours": [], "fp16": []}
    rows, wide, results = [], [], [None] * sets
    exact: Any = None
    kept: list[Any] = []  # what launches read and write
    errors = [0.0, 0.0]
    count = packed_elements("pack_gemm_nbits", **{key: int(v) for key, v in pack.ints.items()})
    for j in range(sets):
        w, zero = (
            t.randint(0, 256, (n, c * bits // 8), dtype=t.uint8, device="cuda")
            for c in (k, k // block)
        )
        scale = (t.rand(n, k // block, device="cuda") * 0.1 / k**0.5).half()
        packed = t.zeros(count, device="cuda")
        places = {"w": w, "scale": scale, "zero": zero, "packed": packed}
        R.bind_all([pack], [places])(R.current_stream())
        x, ours, other = (t.randn(m, c, device="cuda").half() for c in (k, n, n))
        rows.append(x)
        # fp16 weights fill L2 several times over in fewer sets
        if j < max(2, -(-(160 << 20) // (2 * n * k))):
            v = _unpacked(w, bits).float().reshape(n, -1, block)
            exact = (v - _unpacked(zero, bits)[..., None]) * scale.float()[..., None]
            wide.append(exact.reshape(n, k).half())
        stored = O.packed_weight(wide[j % len(wide)], F16, trans=True)
        kept += [packed, stored, ours, other]
        calls["ours"].append(R.bind_all([few], [{"x": x, "w": packed, "y": ours}]))
        calls["fp16"].append(R.bind_all([plain], [{"x": x, "w": stored, "y": other}]))
        if j == 0:
            for at, (name, y) in enumerate((("ours", ours), ("fp16", other))):
                calls[name][0](R.current_stream())
                # more rows are multiplied by weights rounded to fp16
                used = exact.reshape(n, k) if name == "ours" and m <= _EXACT else wide[0]
                want, magnitude = (
                    a.double() @ b.double().T for a, b in ((x, used), (x.abs(), used.abs()))
                )
                bound = 2.0**-11 * 1.01 * want.abs() + 2.0**-20 * magnitude + 2.0**-24
                errors[at] = float(((y.double() - want).abs() / bound).max())

    def library(i: int) -> None:
        results[i] = t.nn.functional.linear(rows[i], wide[i % len(wide)])

    variants = {
        harness.OURS: lambda i: calls["ours"][i](R.current_stream()),
        "fp16": lambda i: calls["fp16"][i](R.current_stream()),
        "library": library,
    }
    return errors[0], errors[1], int(size), harness.on_device(variants, sets, rounds=5)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--bits", nargs="*", type=int, default=[4, 8])
    parser.add_argument("--block", nargs="*", type=int, default=[32, 128])
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="so many of the layers")
    args = parser.parse_args()
    report = harness.Report("nbits_gemm", args, device=True)
    most = bandwidth()
    report.row("copy", f"{most / 1e3:.0f} GB/s", gbytes=most / 1e3)
    for m in args.rows:
        for bits in args.bits:
            for block in args.block:
                for n, k in LAYERS[: args.layers]:
                    name = f"M {m}, N {n}, K {k}, {bits} bits in {block}"
                    try:
                        error, other, size, times = measure(m, n, k, bits, block)
                    except Exception as e:
                        report.fail(name, harness.described(e))
                        if any(word in str(e) for word in ("CUDA 7", "illegal", "misaligned")):
                            return 1  # the context is lost
                        continue
                    if not error <= 1:
                        report.fail(name, f"{error:.2f} of its bound (fp16 {other:.2f}), {times}")
                        continue
                    ours = times.us[harness.OURS]
                    report.row(
                        name, f"{times}, {size / ours / 1e3:.0f} GB/s, {size / ours / most:.0%}",
                        error=error, bytes=size, share=size / ours / most, times=times,
                    )  # fmt: skip
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

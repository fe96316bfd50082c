"""What GPUs sustain, for the cost model."""

from __future__ import annotations

from tracea_onnx.pricing.rates import Rates
from tracea_onnx.runtime.device_caps import DeviceCaps, usual

#: 989 TFLOP/s fp16 and 4.8 TB/s by its data sheet, of which kernels sustain about 2/3 and 3/4; 3 us
#: a launch without a graph.
H200 = Rates(600_000.0, 3_600.0, 3.0, "NVIDIA H200 data sheet; launches measured")
#: Flops of fp16 MMAs with sums in fp32, per clock of a multiprocessor, by the newest compute
#: capability x 10 that is no newer than the GPU's. What NVIDIA documents as peak TFLOPS of dense
#: fp16 over multiprocessors x boost clock: data sheets of T4 (65), A100 (312), A40 (149.7), L4
#: (121) and H100 SXM (989), the white paper of GA102 (512 FMAs), 170 sparse int8 TOPS of the
#: technical brief of Jetson AGX Orin (a quarter of them), and 503.8 of RTX PRO 6000 Blackwell. The
#: 2,250 of B200 need tcgen05, which no kernel uses; for mma.sync there nothing is documented, and
#: A100's rate stands for it.
_PER_CLOCK = {75: 1024, 80: 2048, 86: 1024, 87: 2048, 89: 1024, 90: 4096, 100: 2048, 120: 1024}
#: Names of GPUs that sum in fp32 at half of that: white papers of GA102, AD102 (RTX 4090: 165.2 of
#: 330.3) and GB202 (RTX 5090: 209.5 of 419), data sheet of A10G.
_HALVED = ("GeForce", "A10G")


def rates(caps: DeviceCaps) -> Rates:
    """The share of its own peaks that kernels sustain on an H200."""
    h200 = usual(90)
    return Rates(
        H200.gflops * _peak(caps) / _peak(h200),
        H200.gbytes * caps.bandwidth / h200.bandwidth,
        H200.launch,
        f"peaks of {caps.name}",
    )


def _peak(caps: DeviceCaps) -> float:
    arch = max((a for a in _PER_CLOCK if a <= caps.arch), default=min(_PER_CLOCK))
    return (
        caps.sms
        * caps.clock
        * _PER_CLOCK[arch]
        / (2 if any(name in caps.name for name in _HALVED) else 1)
    )

"""What lowering must know of a backend: what its device sustains, which types its kernels take and
how it stores images.
"""

from __future__ import annotations

from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import channel_pitch
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Target:
    """rates: what fusions are priced by. families: those that can be launched. types: float types
    the compute kernels take. border: whether a convolution reads its padding from a zero border
    around the image (else the kernel checks bounds itself). pitch_multiple: channel pitches are
    rounded up to it (0: the CPU's rule, `kernel_families.channel_pitch`). launch_bound: whether a
    launch costs more than some memory traffic: GEMMs of one input become one, squeeze-excite is
    a kernel, images are read in any order of axes. planar: a convolution of at most so many
    channels reads its image in any order of axes (`conv._in_planes` says which). folds_norms:
    whether GEMMs in 16-bit types leave statistics of their rows and take rows that are to be
    normalised. stages: whether a pointwise kernel computes several expressions, each of what the
    ones before it made. group_packing: whether filters in 16-bit types are also packed for several
    groups at once. ieee: whether pointwise kernels round every operation on what is quantised as
    IEEE 754 says, division too, and join none to another. faster_integers: whether GEMMs of
    8-bit integers were measured to take less time than ONNX Runtime's. leaves_quantised: whether
    quantised groups may be left to ONNX Runtime's integer kernels, which are the CPU's: not where
    their operands would leave the device. byte_pools: whether maxima of images of 8-bit integers
    are taken as these are. byte_pitch: bytes at multiples of which pixels of such images begin that
    have more channels. window_rows: whether convolutions of few channels of 8-bit integers may read
    rows of windows as pixels that overlap.
    """

    rates: Rates
    families: frozenset[str]
    types: frozenset[DType]
    border: bool
    pitch_multiple: int
    launch_bound: bool
    planar: int = 0
    folds_norms: bool = False
    stages: bool = False
    group_packing: bool = False
    ieee: bool = False
    faster_integers: bool = False
    leaves_quantised: bool = True
    byte_pools: bool = False
    byte_pitch: int = 1
    window_rows: bool = False

    @property
    def vector(self) -> int:
        """Channels of a pixel that a kernel may read at once."""
        return self.pitch_multiple or 16

    def channel_pitch(self, channels: int) -> int:
        """Elements from one pixel to the next."""
        if self.pitch_multiple:
            return -(-channels // self.pitch_multiple) * self.pitch_multiple
        return channel_pitch(channels)

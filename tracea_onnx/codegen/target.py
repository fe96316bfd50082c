"""What lowering must know of a backend: rates of its device, abilities of its kernels, and how it
stores images.
"""

from __future__ import annotations

from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import channel_pitch
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Target:
    """What a backend's kernels can do on a device. Fields with defaults are optional abilities."""

    #: What the device sustains: fusions are priced by it.
    rates: Rates
    #: Kernel families that can be launched.
    families: frozenset[str]
    #: Float types that the compute kernels take.
    types: frozenset[DType]
    #: Whether convolutions read padding from a zero border that is stored around the image; else
    #: their kernels check bounds.
    border: bool
    #: Channel pitches are rounded up to multiples of it; 0: `kernel_families.channel_pitch`.
    pitch_multiple: int
    #: Whether a launch costs more than some memory traffic: then GEMMs of one input are merged,
    #: squeeze-excite is one kernel, and images are read in any order of their axes.
    launch_bound: bool
    #: Convolutions of at most so many channels read images in any order of their axes
    #: (`conv._in_planes`).
    planar: int = 0
    #: Whether 16-bit GEMMs can store statistics of their rows, and read rows that they normalise.
    folds_norms: bool = False
    #: Whether a pointwise kernel computes several expressions, each from results of the former.
    stages: bool = False
    #: Whether 16-bit filters can also be packed for several groups of a convolution at once.
    group_packing: bool = False
    #: Whether pointwise kernels round each operation on quantised values as IEEE 754 does, with
    #: exact division and without fused multiply-add.
    ieee: bool = False
    #: Whether 8-bit GEMMs were measured to be faster than ONNX Runtime's.
    faster_integers: bool = False
    #: Whether quantised groups may be left to ONNX Runtime's integer kernels, which run on the CPU.
    #: False where their operands would leave the device.
    leaves_quantised: bool = True
    #: Whether max pooling takes 8-bit images.
    byte_pools: bool = False
    #: Alignment in bytes of the pixels of 8-bit images that have at least as many channels.
    byte_pitch: int = 1
    #: Whether 8-bit convolutions of few channels may read rows of windows as overlapping pixels.
    window_rows: bool = False
    #: How many multiply-adds of bfloat16 take the time of one of f32; 0 where they have no kernels,
    #: or slower ones.
    bf16: float = 0.0
    #: Whether GEMMs and convolutions of f32 may round their operands to bfloat16.
    rounds: bool = False
    #: Types whose values are stored as f32, and may keep more digits than the type has.
    held: frozenset[DType] = frozenset()

    @property
    def vector(self) -> int:
        """Channels of a pixel that a kernel may read at once."""
        return self.pitch_multiple or 16

    def channel_pitch(self, channels: int) -> int:
        """Elements from one pixel to the next."""
        if self.pitch_multiple:
            return -(-channels // self.pitch_multiple) * self.pitch_multiple
        return channel_pitch(channels)

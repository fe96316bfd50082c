"""What a GPU can do: read from the driver by the provider, or a table for compiling without one.

Emitters ask `Request.caps` for limits (shared memory, clusters), so that no kernel is chosen that
the device cannot launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace

from tracea_onnx.errors import UsageError
from tracea_onnx.support.data_classes import dataclass

#: The GPU that kernels are chosen for at present.
present: ContextVar[DeviceCaps | None] = ContextVar("device", default=None)


@dataclass(frozen=True)
class DeviceCaps:
    """One GPU, or one part of a GPU (MIG).

    arch: compute capability x 10. sms: multiprocessors. memory, l2: bytes. bandwidth: of the
    memory, bytes a second. smem_block: bytes of shared memory that a block may ask for; smem_sm: of
    a multiprocessor. registers: of a multiprocessor. clusters: (blocks of a cluster, how many such
    clusters run at once where each block has a multiprocessor of its own), of the sizes that the
    device can launch; empty where it has no clusters. clock: kHz. driver: CUDA version x 1000, 0
    without one. identity: everything that tells one kind of device from another, in words. backend:
    the one whose device it is.
    """

    arch: int
    sms: int
    name: str
    memory: int
    bandwidth: int
    l2: int
    smem_block: int
    smem_sm: int
    registers: int
    clusters: tuple[tuple[int, int], ...]
    clock: int
    driver: int = 0
    identity: str = ""
    backend: str = "cuda"

    @property
    def kind(self) -> str:
        """Key of tuning records."""
        return self.identity or f"{self.name}, sm_{self.arch}, {self.sms} multiprocessors"

    @property
    def cluster(self) -> int:
        """Blocks of the largest cluster that the device can launch; 1 without clusters."""
        return max((size for size, _ in self.clusters), default=1)

    @property
    def mig(self) -> bool:
        """Whether it is a part of a GPU."""
        return " MIG " in self.name

    def launches(self, smem: int, cluster: int) -> bool:
        """Whether it can launch blocks that ask for so much shared memory, in clusters of so
        many.
        """
        return smem <= self.smem_block and cluster <= self.cluster

    def largest_cluster(self, size: int) -> int:
        """`size` blocks, or as many fewer (halved) as the device can launch."""
        while size > self.cluster:
            size //= 2
        return max(size, 1)


@dataclass(frozen=True)
class HostCaps:
    """The host. int8, bf16: the instruction sets that its kernels of products of 8 bits and of
    bfloat16 are compiled for. rounds: whether the session lets products of f32 round to bfloat16.
    """

    int8: str
    bf16: str = ""
    rounds: bool = False


#: Of a GPU, or of the host.
Caps = DeviceCaps | HostCaps

_KB, _MB, _GB = 1 << 10, 1 << 20, 10**9


def _table(
    arch: int,
    name: str,
    sms: int,
    memory: int,
    bandwidth: int,
    l2: int,
    smem: int,
    clock: int,
    wide: int = 1,
    smem_sm: int = 0,
) -> DeviceCaps:
    sizes = tuple((size, max(sms // size, 1)) for size in (2, 4, 8, 16) if size <= wide)
    return DeviceCaps(
        arch,
        sms,
        name,
        memory * _GB,
        bandwidth * _GB,
        l2 * _MB,
        smem * _KB,
        (smem_sm or smem + 1) * _KB,
        65536,
        sizes,
        clock * 1000,
    )


#: The usual device of each architecture.
_USUAL = {
    caps.arch: caps
    for caps in (
        _table(75, "T4", 40, 16, 320, 4, 64, 1590, smem_sm=64),
        _table(80, "A100", 108, 40, 1555, 40, 163, 1410),
        _table(86, "A10", 72, 24, 600, 6, 99, 1695),
        _table(87, "Orin", 16, 32, 205, 4, 163, 1300),
        _table(89, "L4", 58, 24, 300, 48, 99, 2040),
        _table(90, "H200", 132, 141, 4800, 50, 227, 1980, 16),
        _table(100, "B200", 148, 180, 8000, 126, 227, 1965, 16),
        _table(103, "B300", 148, 270, 8000, 126, 227, 1920, 16),
        _table(120, "GeForce RTX 5090", 170, 32, 1792, 96, 99, 2407, 8),
        _table(121, "GB10", 48, 128, 273, 24, 99, 2418, 8),
    )
}  # fmt: skip


def usual(arch: int, sms: int | None = None) -> DeviceCaps:
    """The usual device of an architecture, with `sms` multiprocessors if they are given.

    Of one that is not in the table: its older neighbour's.
    """
    known = max((a for a in _USUAL if a <= arch), default=min(_USUAL))
    found = replace(_USUAL[known], arch=arch)
    if sms is None or sms == found.sms:
        return found
    return replace(
        found, sms=sms, clusters=tuple((size, max(sms // size, 1)) for size, _ in found.clusters)
    )


#: Numbers of a compile request's metadata, beside `arch` and `sms`, that have a field's name.
NUMBERS = ("memory", "bandwidth", "l2", "smem_block", "smem_sm", "registers", "clock", "driver")


def of_request(properties: Mapping[str, str]) -> DeviceCaps:
    """The GPU that a compile request with these properties is for; what they leave out is as in the
    usual device of that architecture.

    Raises UsageError where one is not a number.
    """
    try:
        numbers = {
            key: int(properties[key]) for key in ("arch", "sms", *NUMBERS) if properties.get(key)
        }
        clusters = [
            tuple(map(int, pair.split(":")))
            for pair in properties.get("clusters", "").split(",")
            if pair
        ]
    except ValueError:
        raise UsageError(
            "the compile request describes its device with something that is not a number"
        ) from None
    found = usual(numbers.pop("arch", 80), numbers.pop("sms", None))
    more: dict[str, object] = {
        key: value for key, value in numbers.items() if value > 0 or key == "driver"
    }
    if "clusters" in properties:
        more["clusters"] = tuple((size, count) for size, count in clusters if count > 0)
    return replace(
        found,
        name=properties.get("name", found.name),
        identity=properties.get("device", ""),
        **more,  # type: ignore[arg-type]
    )

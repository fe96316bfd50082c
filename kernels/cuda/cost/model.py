"""Cost model of kernel launches, in SM clocks.

    time = launch + max(waves * (fill + latency + steps * step + epilogue + exchange), DRAM)
    step = max(arithmetic + copy instructions, latency / stages, L2)

`Work` describes one configuration of a kernel, `DeviceCaps` the peaks of the device, and
`Efficiencies` the share of these peaks that the kernel reaches. `tools/fit.py` fits the
efficiencies to measured times; there is one file of them for each device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.support.scoped_value import override

#: Flops a clock of one SM by arithmetic unit and architecture (data sheets, as in `rates.py`).
PEAK = {
    "tf32": {75: 512, 80: 1024, 86: 256, 87: 1024, 89: 512, 90: 2048, 100: 1024, 120: 512},
    "ffma": {75: 128, 80: 128, 86: 256, 87: 256, 89: 256, 90: 256, 100: 256, 120: 256},
}
#: Bytes a clock from shared memory to registers of one SM, from L2 to one SM, from L2 to all SMs.
SHARED, L2_SM, L2 = 128, 64, 5120


class Work(NamedTuple):
    """One launch of a kernel with one configuration.

    kernel: the name of its efficiencies. peak: flops per clock and SM. ctas: of the grid; slots:
    concurrent CTAs. Of one CTA: steps of the main loop; of one step: flops, shared (bytes read from
    shared memory), loaded (bytes copied into it) and copies (warp instructions that copy); groups:
    of four warps, which hide each other's latency; stages: prefetched steps; results of the
    epilogue, weighted by the cost of one; reduced: partial sums exchanged; preloaded: bytes copied
    before the main loop. clustered: whether the grid is launched in clusters. dram: least bytes
    read and written. other_launches: clocks of further launches that this configuration needs.
    """

    kernel: str
    peak: float
    ctas: int
    slots: int
    steps: float
    flops: float
    shared: float
    loaded: float
    copies: float
    groups: float
    stages: float
    results: float
    reduced: float
    dram: float
    clustered: bool
    preloaded: float = 0.0
    other_launches: float = 0.0


class Efficiencies(NamedTuple):
    """Of one kernel on one device. fill: clocks of a wave of CTAs outside the main loop.
    arithmetic: share of the peak flops. latency: clocks of one copy. sync: clocks of a barrier
    after each step. copy: clocks of one copy instruction. epilogue, reduction: clocks of one result
    and of one partial sum. cluster: clocks to start clusters. Of the device: launch: clocks to
    start a kernel; l2, dram: share of the peak bandwidth.
    """

    fill: float
    arithmetic: float
    latency: float
    sync: float
    copy: float
    epilogue: float
    reduction: float
    cluster: float
    launch: float
    l2: float
    dram: float


#: Exponent of the norm that combines times which overlap.
_OVERLAP = 4
#: Efficiencies of a device, equal for all kernels.
OF_DEVICE = ("launch", "l2", "dram")


def _most(*times: Any) -> Any:
    """A smooth maximum: times overlap, but not completely."""
    return sum(t**_OVERLAP for t in times) ** (1 / _OVERLAP)


def time(w: Any, e: Any, caps: DeviceCaps) -> Any:
    """Clocks of launches. w, e: `Work` and `Efficiencies` whose fields are arrays."""
    largest = np.maximum
    running = np.minimum(w.ctas, w.slots)
    waves = -(-w.ctas // w.slots)
    resident = -(-running // caps.sms)  # CTAs per SM
    own = _most(w.flops / w.peak, w.shared / SHARED) / e.arithmetic + w.copies * e.copy
    step = _most(
        resident * own,
        own / w.groups + e.sync,
        e.latency / w.stages,
        w.loaded * largest(resident / L2_SM, running / L2) / e.l2,
    )
    fill = e.fill + e.latency + resident * w.preloaded / (L2_SM * e.l2)
    epilogue = resident * w.results * e.epilogue
    exchange = resident * w.reduced * e.reduction + w.clustered * e.cluster
    wave = fill + w.steps * step + epilogue + exchange
    memory = w.dram / (caps.bandwidth / (caps.clock * 1000) * e.dram)
    return e.launch + w.other_launches + _most(waves * wave, memory)


def slots(caps: DeviceCaps, cluster: int, resident: int) -> int:
    """Concurrent CTAs in clusters of `cluster`, with `resident` CTAs per SM."""
    known = dict(caps.clusters)
    if cluster == 1 or not known:
        return caps.sms * resident
    largest = max(known)  # a slot of which fits clusters of smaller sizes
    count = known.get(cluster) or known[largest] * (largest // cluster)
    return max(count, 1) * cluster * resident


def peak(unit: str, arch: int) -> float:
    """Flops per clock and SM."""
    known = PEAK[unit]
    return known[max(a for a in known if a <= arch)]


#: Efficiencies by device, as `tools/fit.py` writes them.
FOLDER = Path(__file__).parent.parent / "efficiencies"


@cache
def efficiencies(name: str, arch: int) -> Mapping[str, Efficiencies]:
    """By kernel, from the file whose stem is part of the device's name, else from the file of the
    nearest architecture.
    """
    read = {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json"))}
    files = {stem: known for stem, known in read.items() if "kernels" in known}
    exact = [stem for stem in files if stem in name.lower()]
    stem = exact[0] if exact else min(files, key=lambda s: abs(int(files[s]["arch"]) - arch))
    known = files[stem]
    return {k: Efficiencies(**v, **known["device"]) for k, v in known["kernels"].items()}


#: `prices` returns configurations up to this many times the least price: what tuning measures.
SLACK = 1.4
_collector: ContextVar[dict[Any, Work] | None] = ContextVar("collected", default=None)


@contextmanager
def collecting() -> Iterator[dict[Any, Work]]:
    """Collects the works that `prices` is called with in the block."""
    found: dict[Any, Work] = {}
    with override(_collector, found):
        yield found


def prices(works: Mapping[Any, Work], caps: DeviceCaps) -> dict[Any, float]:
    """Clocks of a launch with each configuration, of those up to SLACK times the least."""
    if (collected := _collector.get()) is not None:
        collected.update(works)
    if not works:
        return {}
    known = efficiencies(caps.name, caps.arch)
    rows = works.values()
    work = Work("", *np.array([w[1:] for w in rows], float).T)
    of = Efficiencies(*np.array([known[w.kernel] for w in rows]).T)
    costs = time(work, of, caps)
    within = costs <= SLACK * costs.min()
    return {t: float(c) for t, c, kept in zip(works, costs, within, strict=True) if kept}

"""What a launch takes, in clocks of a multiprocessor (SM): one model for all kernels.

    time = launch + max(waves * (fill + latency + steps * step + epilogue + exchange), DRAM)
    step = max(arithmetic + copy instructions, latency / stages, L2)

`Work` says what a kernel does with one configuration, `DeviceCaps` what the device can do at most,
`Efficiencies` how much of that the kernel reaches: measured (`tools/fit.py`), in a file per
device.
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
#: Bytes a clock from shared memory to one SM's registers, from L2 to one SM, and from L2 to all.
SHARED, L2_SM, L2 = 128, 64, 5120


class Work(NamedTuple):
    """What a launch does with one configuration.

    kernel: whose efficiencies hold. peak: flops a clock of an SM. ctas: of the launch, `slots` of
    which run at a time. Of one CTA: steps of its main loop; of one step: flops, bytes read from
    shared memory, bytes copied into it and instructions of warps that copy; groups: of four warps
    that hide each other's waits; stages: steps that are copied ahead; results that the epilogue
    finishes, weighed by what it does with each; reduced: partial sums that it exchanges; kept:
    bytes that it copies before the main loop. clustered: whether CTAs are launched in clusters.
    dram: bytes that the launch reads and writes at least. others: clocks of launches that it needs
    beside itself.
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
    kept: float = 0.0
    others: float = 0.0


class Efficiencies(NamedTuple):
    """Of one kernel on one device. fill: clocks of each wave of CTAs beside its main loop.
    arithmetic: the share of the peak that it reaches. latency, sync: clocks until a copy has come,
    and between the steps of a CTA. copy: clocks of an instruction that copies. epilogue,
    reduction: clocks of a result and of a partial sum. cluster: clocks to start clusters. Of all
    kernels: launch: clocks to start one; l2, dram: the share of either's bandwidth that they
    reach.
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


#: The power that times add up in which hide each other in part.
_HIDDEN = 4
#: Those of a device rather than of a kernel.
OF_DEVICE = ("launch", "l2", "dram")


def _most(*times: Any) -> Any:
    """The largest, and somewhat more where others are about as large: they hide in part."""
    return sum(t**_HIDDEN for t in times) ** (1 / _HIDDEN)


def time(w: Any, e: Any, caps: DeviceCaps) -> Any:
    """Clocks of launches. w, e: `Work` and `Efficiencies` whose members are arrays."""
    largest = np.maximum
    running = np.minimum(w.ctas, w.slots)
    waves = -(-w.ctas // w.slots)
    here = -(-running // caps.sms)  # CTAs of an SM
    own = _most(w.flops / w.peak, w.shared / SHARED) / e.arithmetic + w.copies * e.copy
    step = _most(
        here * own,
        own / w.groups + e.sync,
        e.latency / w.stages,
        w.loaded * largest(here / L2_SM, running / L2) / e.l2,
    )
    fill = e.fill + e.latency + here * w.kept / (L2_SM * e.l2)
    epilogue = here * w.results * e.epilogue
    exchange = here * w.reduced * e.reduction + w.clustered * e.cluster
    wave = fill + w.steps * step + epilogue + exchange
    memory = w.dram / (caps.bandwidth / (caps.clock * 1000) * e.dram)
    return e.launch + w.others + _most(waves * wave, memory)


def slots(caps: DeviceCaps, cluster: int, resident: int) -> int:
    """CTAs that run at a time in clusters of so many, where an SM holds `resident` of them."""
    known = dict(caps.clusters)
    if cluster == 1 or not known:
        return caps.sms * resident
    largest = max(known)  # within which clusters of other sizes lie
    count = known.get(cluster) or known[largest] * (largest // cluster)
    return max(count, 1) * cluster * resident


def peak(unit: str, arch: int) -> float:
    """Flops a clock of one SM."""
    known = PEAK[unit]
    return known[max(a for a in known if a <= arch)]


#: Efficiencies by device, as `tools/fit.py` writes them.
FOLDER = Path(__file__).parent.parent / "efficiencies"


@cache
def efficiencies(name: str, arch: int) -> Mapping[str, Efficiencies]:
    """By kernel: of the file whose name is in the device's, else of the nearest architecture."""
    files = {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json"))}
    exact = [stem for stem in files if stem in name.lower()]
    stem = exact[0] if exact else min(files, key=lambda s: abs(int(files[s]["arch"]) - arch))
    known = files[stem]
    return {k: Efficiencies(**v, **known["device"]) for k, v in known["kernels"].items()}


#: Configurations whose price is at most so many times the least are told: what tuning tries.
NEAR = 1.4
_heard: ContextVar[dict[Any, Work] | None] = ContextVar("heard", default=None)


@contextmanager
def listening() -> Iterator[dict[Any, Work]]:
    """Collects what is priced meanwhile."""
    found: dict[Any, Work] = {}
    with override(_heard, found):
        yield found


def prices(works: Mapping[Any, Work], caps: DeviceCaps) -> dict[Any, float]:
    """Clocks of a launch with each configuration, of those that are near the best."""
    if (heard := _heard.get()) is not None:
        heard.update(works)
    if not works:
        return {}
    known = efficiencies(caps.name, caps.arch)
    rows = works.values()
    work = Work("", *np.array([w[1:] for w in rows], float).T)
    of = Efficiencies(*np.array([known[w.kernel] for w in rows]).T)
    costs = time(work, of, caps)
    near = costs <= NEAR * costs.min()
    return {t: float(c) for t, c, also in zip(works, costs, near, strict=True) if also}

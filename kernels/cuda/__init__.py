"""The CUDA backend: family launches become generated CUDA C++, and NVRTC turns that into cubins (no
GPU needed).

Families lie in folders by operator, a kernel's template (`.cuh`) beside the Python module that
fills it in (README.md lists them).
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tracea_onnx.codegen import kernel_choice, recorded_choices
from tracea_onnx.codegen.backend import Backend, Probe, Properties
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.codegen.size_ranges import aligned, dispatch, ranged
from tracea_onnx.codegen.target import Target
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime import device_caps, nvrtc
from tracea_onnx.runtime.device_caps import Caps, DeviceCaps
from tracea_onnx.support.check import Check
from tracea_onnx.support.scoped_value import override

from .common.templates import template as template
from .compiler import compile as compile
from .compiler import target as target
from .compiler import trapping as trapping
from .launches import Launch
from .rates import rates

#: Threads that compile at a time (133 kernels, 16 cores: one thread 36 s, 16 threads 4.4 s; NVRTC
#: keeps a cache of its own, beside which nothing gains).
_COMPILERS = 16
Emit = Callable[[Request], list[Kernel]]


def emit(request: Request) -> list[Kernel]:
    """The kernels that compute one family launch; raises NoKernel with a sentence when the backend
    has none.
    """
    fn = families().get(request.family)
    if fn is None:
        raise NoKernel(f"the CUDA backend has no kernel for {request.family}")

    def chosen(r: Request) -> list[Kernel]:
        with kernel_choice.emitting(r), override(device_caps.present, r.caps):
            return fn(r)

    kernels = aligned(request, lambda r: ranged(r, chosen))
    tuned = [
        (use, ranged(numbered, chosen)) for use, numbered in kernel_choice.tuned_shapes(request)
    ]
    found = (
        dispatch([*tuned, (D.sub(1, sum((use for use, _ in tuned), start=0)), kernels)])
        if tuned
        else kernels
    )
    for k in found:
        if not request.caps.launches(k.smem, k.cluster):
            device = (
                f"the device, which has {request.caps.smem_block} for a block, and clusters "
                f"of {request.caps.cluster}"
            )
            raise NoKernel(
                f"kernel '{k.symbol}' asks for {k.smem} bytes of shared memory and clusters of "
                f"{k.cluster}: more than {device}"
            )
    return found


@cache
def families() -> dict[str, Emit]:
    """Emitters by family, of all modules below this package. `FAMILIES` of a module has those that
    compute whatever a family asks. `KERNELS` has kernels for some of a family's requests: they are
    asked first, and raise NoKernel for the others.

    The modules are imported here: a process that finds its packs compiled needs none.
    """
    whole: dict[str, Emit] = {}
    some: dict[str, list[Emit]] = {}
    for m in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = import_module(m.name)
        whole |= getattr(module, "FAMILIES", {})
        for family, fn in getattr(module, "KERNELS", {}).items():
            some.setdefault(family, []).append(fn)
    return {family: _first([*some.get(family, []), fn]) for family, fn in whole.items()}


def _first(emitters: Sequence[Emit]) -> Emit:
    """The answer of the first one that takes the request."""
    *some, last = emitters

    def fn(request: Request) -> list[Kernel]:
        for each in some:
            with contextlib.suppress(NoKernel):
                return each(request)
        return last(request)

    return fn if some else last


class Cuda(Backend):
    """NVIDIA GPUs from sm_80 on: kernels are made for a model and compiled by NVRTC."""

    name = "cuda"

    def probe(self) -> Probe:
        found = self.harness.listed()
        why = "" if found else "NVIDIA's driver offers no GPU, or there is no driver"
        return Probe(tuple(f"CUDA device {k}" for k in range(found)), why)

    def caps(self, properties: Properties | None) -> DeviceCaps | None:
        return device_caps.usual(90) if properties is None else device_caps.of_request(properties)

    def target(self, caps: Caps | None) -> Target:
        assert isinstance(caps, DeviceCaps)
        hopper = caps.arch == 90
        return Target(
            rates(caps), frozenset(families()), frozenset({DType.F32, DType.F16, DType.BF16}),
            border=False, pitch_multiple=8, launch_bound=True, planar=4,
            folds_norms=hopper, stages=True, group_packing=hopper, ieee=True, byte_pools=True,
            byte_pitch=16, window_rows=True, leaves_quantised=False,
        )  # fmt: skip

    def emit(self, request: Request) -> Sequence[Launch]:
        return [Launch(kernel) for kernel in emit(request)]

    def compile(self, sources: Sequence[str], properties: Properties) -> list[bytes]:
        """Several at a time: NVRTC compiles without Python's lock. With the property `traps`, to
        look for a fault, kernels that wait for a copy which never ends give an error instead.
        """
        caps, traps = device_caps.of_request(properties), properties.get("traps") == "1"
        with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1, _COMPILERS)) as pool:
            return list(
                pool.map(lambda s: compile(trapping(s) if traps else s, caps.arch), sources)
            )

    def toolchain(self) -> str:
        return nvrtc.present()

    def fingerprint(self, properties: Properties) -> str:
        """NVRTC is not loaded for this: a model whose pack is cached needs none."""
        chosen = recorded_choices.choices(device_caps.of_request(properties))
        library, found = "", nvrtc.chosen()
        if found is not None:
            with contextlib.suppress(OSError):
                info = Path(found.path).stat()
                library = repr((found.path, info.st_size, info.st_mtime_ns))
        return library + repr((sorted(chosen.records.items()), chosen.sizes))

    def checks(self) -> Iterable[Check]:
        from . import diagnosis

        return diagnosis.checks()

    @property
    def harness(self) -> Any:
        from tracea_onnx.runtime import cuda_harness

        return cuda_harness


BACKEND = Cuda()

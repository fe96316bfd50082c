"""The CUDA backend: family launches become generated CUDA C++, and NVRTC turns that into cubins (no
GPU needed).

Families lie in folders by operator, a kernel's template (`.cuh`) beside the Python module that
fills it in (README.md lists them)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request, Unfit
from tracea_onnx.codegen.size_ranges import aligned, either, ranged
from tracea_onnx.ir import dims as D
from tracea_onnx.pricing import device_caps
from tracea_onnx.support.scoped_value import meanwhile

from .common.templates import template as template
from .compiler import compile as compile
from .compiler import target as target
from .compiler import trapping as trapping

Emit = Callable[[Request], list[Kernel]]


def emit(request: Request) -> list[Kernel]:
    """The kernels that compute one family launch; raises Unfit with a sentence when the backend has
    none.
    """
    fn = families().get(request.family)
    if fn is None:
        raise Unfit(f"the CUDA backend has no kernel for {request.family}")

    def chosen(r: Request) -> list[Kernel]:
        with kernel_choice.emitting(r), meanwhile(device_caps.present, r.caps):
            return fn(r)

    kernels = aligned(request, lambda r: ranged(r, chosen))
    tuned = [(use, ranged(numbered, chosen)) for use, numbered in kernel_choice.points(request)]
    found = (
        either([*tuned, (D.sub(1, sum((use for use, _ in tuned), start=0)), kernels)])
        if tuned
        else kernels
    )
    for k in found:
        if not request.caps.launches(k.smem, k.cluster):
            device = f"the device, which has {request.caps.smem_block} for a block, and clusters of {request.caps.cluster}"
            raise Unfit(
                f"kernel '{k.symbol}' asks for {k.smem} bytes of shared memory and clusters of {k.cluster}: more than {device}"
            )
    return found


@cache
def families() -> dict[str, Emit]:
    """Emitters by family.

    Their modules are imported here: a process that finds its packs compiled needs none.
    """
    from .attention import emit as attention
    from .conv import emit as conv
    from .gemm import emit as gemm
    from .image import emit as image
    from .image import squeeze_excite
    from .movement import copy, gather, indexed, pack, pad
    from .norm import groupnorm, layernorm, softmax
    from .pointwise import pointwise
    from .reduce import reduce, scan, topk

    modules = (
        attention,
        conv,
        copy,
        gather,
        gemm,
        groupnorm,
        image,
        indexed,
        layernorm,
        pack,
        pad,
        pointwise,
        reduce,
        scan,
        softmax,
        squeeze_excite,
        topk,
    )
    found: dict[str, Emit] = {}
    for module in modules:
        found |= module.FAMILIES
    return found

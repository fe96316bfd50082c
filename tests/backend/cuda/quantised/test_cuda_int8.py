"""8-bit products on CUDA: every form compiles without a GPU, and quantised models are lowered to
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, kernels_of, request
from tests.golden.record import gpu, sources_for_cubins
from tests.session.test_models import feeds, small
from tests.support import int8_cases
from tests.support.cuda.check import program
from tests.support.int8_cases import BF16, F16, F32, I8, I32, U8, Case, gemm
from tests.support.quantised_models import Form, quantise
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import symbol
from tracea_onnx.ir.graph import Graph

GATED = program(
    ("fma", 0, (0, 1, 2)), ("add", 0, (0, 3)), ("mul", 0, (0, 4)), n_in=5, regs=5, out=0
)


def launch(case: Case, arch: int = 90, **more: Any) -> Request:
    """A request for a case, whatever its operands hold."""
    made = int8_cases.problem(case)
    names = [k for k, v in made.operands.items() if v is not None] + ["w", "y"]
    ints = {**made.ints, **more.pop("ints", {})}
    names += more.pop("operands", ())
    return request(case.kind, case.floats, ints, made.floats, operands=names, arch=arch, **more)


def conv(**more: Any) -> Case:
    return Case("conv2d_int8", **more)


PADDED: dict[str, Any] = {"k": (3, 3), "pads": (1, 1, 1, 1)}


def forms() -> dict[str, Callable[[], Request]]:
    """One of each kind of text."""
    made: dict[str, Callable[[], Request]] = {}
    for arch in (80, 89, 90):
        for x, w in ((U8, I8), (I8, I8), (U8, U8), (I8, U8)):
            name = f"sm_{arch} {x.name} {w.name}"
            made[f"{name} wide"] = partial(launch, gemm(512, 256, 384, x=x, wt=w), arch)
            made[f"{name} few"] = partial(
                launch, gemm(7, 131, 2000, x=x, wt=w, y=F32, spread=1), arch
            )
        zeros = gemm(100, 96, 100, wt=U8, w_zero="each", y=I8, res=I8, mode=1, middle=U8)
        made[f"sm_{arch} zeros"] = partial(launch, zeros, arch)
        narrow = gemm(100, 96, 100, y=F16, res=F16, mode=1, act="gelu_erf")
        made[f"sm_{arch} narrow"] = partial(launch, narrow, arch)
        narrow_image = conv(n=2, h=14, w=14, ic=64, oc=70, y=BF16, res=BF16, mode=2, **PADDED)
        made[f"sm_{arch} narrow window"] = partial(launch, narrow_image, arch)
        made[f"sm_{arch} sums"] = partial(launch, gemm(100, 96, 100, y=I32), arch)
        image = conv(n=2, h=14, w=14, ic=64, oc=64, act="relu", res=U8, mode=1, **PADDED)
        made[f"sm_{arch} window"] = partial(launch, image, arch)
        stem = conv(h=31, w=31, ic=3, oc=64, k=(7, 7), s=(2, 2), pads=(3, 3, 3, 3))
        made[f"sm_{arch} stem"] = partial(launch, stem, arch)
        groups = conv(h=9, w=9, ic=96, oc=96, g=4, x=I8, y=F32, res=F32, mode=2, **PADDED)
        made[f"sm_{arch} groups"] = partial(launch, groups, arch)
        kinds = {f"o{k}_kind": k for k in range(4)} | {"o0_ld": 96}
        given = gemm(100, 96, 100, y=F32)
        made[f"sm_{arch} program"] = partial(
            launch, given, arch, program=GATED, ints=kinds, operands=[f"o{k}" for k in range(4)]
        )
        pointwise = conv(h=14, w=14, ic=256, oc=64, act="silu", y=I8)
        made[f"sm_{arch} batch"] = partial(launch, pointwise, arch, ints={"N": symbol("n")})
    for x, w in ((U8, I8), (I8, U8)):
        wide = gemm(8192, 384, 1536, x=x, wt=w, y=w, res=x, mode=1, middle=U8, act="relu")
        made[f"wgmma {x.name} {w.name}"] = partial(launch, wide)
        image = conv(n=32, h=28, w=28, ic=64, oc=128, x=x, wt=w, x_zero=False, y=F32, **PADDED)
        made[f"wgmma window {x.name} {w.name}"] = partial(launch, image)
    for y, res in ((F16, F16), (BF16, U8)):
        floats = gemm(8192, 384, 1536, y=y, res=res, mode=1)
        made[f"wgmma {y.name} {res.name}"] = partial(launch, floats)
    made["wgmma sums"] = partial(launch, gemm(8192, 384, 1536, y=I32))
    return made


FORMS = forms()
_WGMMA = {"gemm_persistent_sm90", "gemm_cluster_splitk_sm90"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMS)
def test_compiles(name: str) -> None:
    r = FORMS[name]()
    kernels = kernels_of(r)
    compile_kernels(kernels, r.arch)
    assert not name.startswith("wgmma") or kernels[0].symbol in _WGMMA


def test_images_with_a_zero_point_are_not_filled_with_zeros() -> None:
    """As copies by tensor maps would; nor are those of which weights have zero points."""
    shape: dict[str, Any] = {"n": 16, "h": 28, "w": 28, "ic": 64, "oc": 128}
    for padded in (True, False):
        window = PADDED if padded else {"s": (2, 2)}
        (kernel,) = kernels_of(launch(conv(**shape, **window)))
        assert (kernel.symbol == "gemm_multistage") == padded
    (kernel,) = kernels_of(launch(gemm(8192, 384, 1536, wt=U8, w_zero="same")))
    assert kernel.symbol == "gemm_multistage"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda t: t.name)
@pytest.mark.parametrize("family", ["pack_gemm_int8", "pack_conv2d_int8"])
def test_packing_compiles(family: str, dtype: DType) -> None:
    case = gemm(1, 7, 33) if family == "pack_gemm_int8" else conv(ic=6, oc=4, g=2, k=(3, 2))
    _, ints = int8_cases.packing(case)
    r = request(family, F32, {**ints, "w_dtype": int(dtype)}, operands=("w", "packed"))
    compile_kernels(kernels_of(r), 90)


@pytest.mark.parametrize("form", ["qdq", "dynamic"])
def test_a_quantised_model_is_taken_whole(form: Form) -> None:
    """All that the CPU takes, and products by kernels of integers."""
    name = "resnet50" if form == "qdq" else "minilm"
    model = small(name)
    given = Graph(quantise(model, form, [feeds(model, 2, 9, 0)]))
    with sources_for_cubins():
        found = compile_graph(given, gpu(90, 132), everything=True)
    assert not found.refused
    launched = {r["symbol"] for _, plan, _ in found.entries for r in plan["run"]}
    packed = [r["symbol"] for _, plan, _ in found.entries for r in plan["init"]]
    products = {"qdq": "Conv", "dynamic": "MatMulInteger"}[form]
    weights = sum(n.op == products for n in given.nodes) + (form == "qdq")  # and a Gemm
    assert packed.count("pack_bytes") == weights
    assert launched & {"gemm_multistage", *_WGMMA}
    # the first convolution reads rows of windows of floats, and pools what it makes
    first = {"quantise_image_of", "conv_window_rows", "global_mean_of_bytes"}
    assert (launched >= first) == (form == "qdq") and "pool_bytes_of" not in launched

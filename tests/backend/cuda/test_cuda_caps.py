"""No kernel is chosen that a device cannot launch: shared memory and clusters of every family's
requests, on large, small and unusual GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend.cuda.cuda_requests import (
    attention,
    batched,
    check_kernels,
    compile_kernels,
    request,
)
from tests.golden import record
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.errors import UsageError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.runtime import device_caps
from tracea_onnx.runtime.device_caps import DeviceCaps, usual
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import discovery

#: A part of an H100 (MIG) with few multiprocessors, of which only half can be in one cluster, and
#: one that holds hardly any.
_SLICE = replace(usual(90, 16), clusters=((2, 8), (4, 4), (8, 1)))
_TINY = replace(usual(90, 8), clusters=((2, 3), (4, 1)))
DEVICES = {
    "A100": usual(80), "A10": usual(86), "L4": usual(89), "H100 PCIe": usual(90, 114),
    "slice": _SLICE, "tiny": _TINY, "B200": usual(100), "RTX 5090": usual(120),
    "GB10": usual(121),
}  # fmt: skip
_FAMILIES = (*record.FAMILIES, "rows")


def _excite(n: D.DimLike, c: int, r: int, size: int, dtype: DType = DType.F16) -> Request:
    sizes = {"N": n, "C": c, "R": r, "H": size, "W": size, "act1": 1, "act2": 2}
    pitches = {
        f"{s}_{p}": v
        for s in "xy"
        for p, v in (("cs", c), ("rs", c * size), ("ns", c * size * size))
    }
    return request(
        "squeeze_excite", dtype, {**sizes, **pitches}, operands=("x", "w1", "b1", "w2", "b2", "y")
    )


def _rows(outer: D.DimLike, n: D.DimLike, inner: D.DimLike = 1) -> Request:
    return request("softmax", DType.F16, {"outer": outer, "n": n, "inner": inner}, operands="xy")


def _requests() -> Iterator[tuple[str, Request]]:
    for family in _FAMILIES:
        module = __import__(f"tests.backend.cuda.test_cuda_{family}", fromlist=["cases"])
        seen = set()
        # one of each kind and type: what tells devices apart is their sizes
        for name, r in module.cases():
            kind = (r.family, r.dtype, name.split(" sm_")[0].split(" ")[0])
            if kind not in seen:
                seen.add(kind)
                yield f"{name} {r.family}", r
    for n in (1, 2, 10, 21, 64, 300, D.symbol("n")):
        for c, hidden, size in ((32, 8, 112), (96, 4, 56), (480, 20, 14), (1152, 48, 7)):
            yield f"squeeze-excite of {n}x{c}x{size}", _excite(n, c, hidden, size)
    for outer in (1, 3, 17, D.symbol("n")):
        for length in (150_000, 40_000, D.symbol("n") if isinstance(outer, int) else 9000):
            yield f"softmax of {outer}x{length}", _rows(outer, length)
        yield f"softmax of columns {outer}", _rows(outer, 50_000, 8)


@pytest.fixture(scope="module")
def requests() -> list[tuple[str, Request]]:
    return list(_requests())


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_fit_the_device(device: str, requests: list[tuple[str, Request]]) -> None:
    found, emit = DEVICES[device], discovery.module("kernels", "cuda").emit
    refused = []
    for name, r in requests:
        try:
            check_kernels(emit(replace(r, caps=found)), found)
        except NoKernel as e:
            refused.append((name, str(e)))
    # What other reasons refuse (squeeze-excite before sm_90) is not of the device's limits.
    assert not [why for why in refused if "bytes of shared memory" in why[1]]
    assert len(refused) < (40 if found.arch < 90 else 3), refused


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["B200", "RTX 5090"])
def test_kernels_for_other_devices_compile(device: str) -> None:
    found, emit = DEVICES[device], discovery.module("kernels", "cuda").emit
    product = batched(DType.F16, 128, 96, 64, (64, 1), (96, 1))
    for r in (
        _excite(2, 32, 8, 112),
        _rows(3, 150_000),
        _rows(3, 50_000, 8),
        attention(DType.F16, 128),
        attention(DType.F32, 64),
        product,
    ):
        compile_kernels(emit(replace(r, caps=found)), found.arch)


def _smem(c: int, r: int, size: int, n: int, device: DeviceCaps) -> list[tuple[int, int]]:
    kernels = discovery.module("kernels", "cuda").emit(replace(_excite(n, c, r, size), caps=device))
    return [(k.smem, k.cluster) for k in kernels]


def test_squeeze_excite_is_as_large_as_the_device() -> None:
    """EfficientNet's first one: 16 blocks of a cluster and up to 227 KB on an H200, 8 and 99 KB on
    an RTX 5090.
    """
    assert max(cluster for n in (1, 5) for _, cluster in _smem(32, 8, 112, n, usual(90))) == 16
    assert max(smem for n in (1, 15, 64) for smem, _ in _smem(32, 8, 112, n, usual(90))) > 99 * 1024
    for n in (1, 5, 15, 21, 64, 500):
        assert all(
            smem <= 99 * 1024 and cluster <= 8 for smem, cluster in _smem(32, 8, 112, n, usual(120))
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["RTX 5090", "slice"])
@pytest.mark.parametrize("name", ["efficientnet_b0", "gpt2"])
def test_models_run_whole_on_other_devices(name: str, device: str) -> None:
    found = DEVICES[device]
    model = record.half(record.wide(name))
    onnx_inference.infer(model, {})
    props = {
        "backend": "cuda",
        "arch": str(found.arch),
        "sms": str(found.sms),
        "clusters": ",".join(f"{s}:{n}" for s, n in found.clusters),
    }
    with record.sources_for_cubins():
        compiled = partition_compiler.compile_graph(Graph(model), plan_writer.writer_of(props))
    assert compiled.entries and not [
        why for _, why in compiled.refused if "device" in why or "squeeze" in why
    ]
    for _, plan, _ in compiled.entries:
        for launch in [*plan["init"], *plan["run"]]:
            assert launch["smem"] <= found.smem_block and launch["cluster"] <= found.cluster, (
                launch["symbol"]
            )


def test_what_fits_nothing_is_refused_with_the_sizes() -> None:
    none = replace(usual(90), smem_block=16 * 1024)
    with pytest.raises(
        NoKernel,
        match=r"16384 bytes of shared memory for a CTA|asks for \d+ bytes of shared memory and "
        r"clusters of \d+: more than .* 16384",
    ) as e:
        discovery.module("kernels", "cuda").emit(replace(attention(DType.F16, 128), caps=none))
    assert "\n" not in str(e.value)


def test_a_request_describes_its_device() -> None:
    given = {
        "device": "NVIDIA H200, ...", "name": "NVIDIA H200", "arch": "90", "sms": "132",
        "memory": "150754820096", "bandwidth": "4916736000000", "l2": "62914560",
        "smem_block": "232448", "smem_sm": "233472", "registers": "65536", "clock": "1980000",
        "driver": "13000", "clusters": "2:66,4:32,8:16,16:7",
    }  # fmt: skip
    found = device_caps.of_request(given)
    assert (
        found.identity,
        found.memory,
        found.l2,
        found.cluster,
        dict(found.clusters)[16],
        found.driver,
    ) == ("NVIDIA H200, ...", 150754820096, 62914560, 16, 7, 13000)
    assert (
        device_caps.of_request({"arch": "90"}) == usual(90)
        and device_caps.of_request({}).arch == 80
    )
    # the driver says that it can have none
    assert device_caps.of_request({"arch": "90", "sms": "132", "clusters": ""}).cluster == 1
    assert usual(121).cluster == 8 and usual(123).smem_block == 99 * 1024 and usual(123).arch == 123
    assert replace(usual(90), name="NVIDIA H100 MIG 1g.10gb").mig
    with pytest.raises(UsageError, match="not a number"):
        device_caps.of_request({**given, "sms": "many"})

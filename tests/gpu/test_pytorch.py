"""`tracea_onnx.torch` on a GPU: tensors stay there, and PyTorch's streams order the work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.gpu import Gpu

torch = pytest.importorskip("torch")
tracea = pytest.importorskip("tracea_onnx.torch")
nn: Any = torch.nn

pytestmark = pytest.mark.cuda
TYPES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}


@pytest.fixture(autouse=True)
def device(gpu: Gpu) -> Any:
    if gpu.only_compile:
        pytest.skip("runs sessions")
    torch.compiler.reset()
    yield
    tracea.unpatch()


def small(dtype: Any) -> Any:
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 24),
        nn.GELU(), nn.LayerNorm(24),
    )  # fmt: skip
    return model.eval().cuda().to(dtype)


def close(got: Any, want: Any, bound: float) -> None:
    assert got.device == want.device and got.dtype == want.dtype
    largest = float(want.abs().max())
    torch.testing.assert_close(got / largest, want / largest, rtol=0, atol=bound)


def compiled(f: Any, **options: Any) -> Any:
    pytest.importorskip("onnxscript")
    return torch.compile(f, backend="tracea", options={"fallback": 0, "claim": "all", **options})


@pytest.mark.parametrize("name", TYPES)
def test_a_model_of_any_batch(name: str) -> None:
    dtype = getattr(torch, name)
    model = small(dtype)
    g = compiled(model)
    with torch.inference_mode():
        for batch in (2, 4, 7, 32, 4):
            x = torch.randn(batch, 16, 20, 20, device="cuda", dtype=dtype)
            close(g(x), model(x), TYPES[name])
    report = tracea.report()
    assert len(report.graphs) == len(report.compiled) == 2, report
    assert all(r.nodes == r.provider_nodes > 0 for r in report.graphs), report


def test_streams_of_pytorch_order_the_work() -> None:
    """Nothing waits for the GPU between a slow product, the compiled graph and what follows."""
    model = small(torch.float32)
    g, side = compiled(model), torch.cuda.Stream()
    slow = torch.randn(4096, 4096, device="cuda")
    with torch.inference_mode():
        x = torch.randn(8, 16, 20, 20, device="cuda")
        g(x)
        for stream in (torch.cuda.current_stream(), side, torch.cuda.Stream()):
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for k in range(20):
                    for _ in range(4):
                        slow = (slow @ slow).tanh()
                    given = x * (k + 1) + slow[0, 0] * 0
                    got = g(given) * 2
                    close(got, model(given) * 2, 1e-4)


def test_arguments_that_are_written_and_views_that_are_returned() -> None:
    def f(x: Any, scale: Any) -> Any:
        y = x @ x * scale
        x.add_(1)
        return x[1], y, y.t(), y.sum(), x.shape[0]

    g = compiled(f)
    with torch.no_grad():
        for n in (8, 12, 16):
            ours, theirs = (torch.eye(n, device="cuda") for _ in range(2))
            got, want = g(ours, torch.tensor(3.0)), f(theirs, torch.tensor(3.0))
            for a, b in zip((*got[:4], ours), (*want[:4], theirs), strict=True):
                torch.testing.assert_close(a, b)
            assert got[0].data_ptr() == ours[1].data_ptr() and got[4] == n
            assert got[1].data_ptr() == got[2].data_ptr()


def test_weights_that_change_are_noticed() -> None:
    model = nn.Linear(16, 24).cuda()
    g, x = compiled(model), torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            close(g(x), model(x), 1e-4)
            model.weight.mul_(1.5)
            close(g(x), model(x), 1e-4)


def test_tensors_of_the_host_on_a_gpu() -> None:
    """The option backend puts a model of host tensors there."""
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU())
    x = torch.randn(4, 16)
    with torch.no_grad():
        close(compiled(model, backend="cuda")(x), model(x), 1e-4)


@pytest.mark.parametrize("name", TYPES)
def test_convolutions(name: str) -> None:
    dtype = getattr(torch, name)
    side = torch.cuda.Stream()
    for groups, how in ((1, {"padding": "same"}), (16, {"padding": 1, "stride": 2})):
        weight = torch.randn(32, 16 // groups, 3, 3, device="cuda", dtype=dtype) / 12
        x = torch.randn(4, 16, 30, 30, device="cuda", dtype=dtype)
        want = torch.conv2d(x.float(), weight.float(), groups=groups, **how).to(dtype)
        for measure in (False, True):
            with tracea.patch_conv2d(measure=measure) as patch, torch.inference_mode():
                for stream in (None, None, None, side):
                    with torch.cuda.stream(stream):
                        got = torch.nn.functional.conv2d(x, weight, groups=groups, **how)
                    torch.cuda.synchronize()
                    close(got, want, TYPES[name])
            assert patch.calls["on the provider"] == 3

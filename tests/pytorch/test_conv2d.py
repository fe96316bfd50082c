"""`patch_conv2d`: convolutions of programs that are not compiled."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tracea = pytest.importorskip("tracea_onnx.torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

ORIGINAL = F.conv2d
PROVIDER = "on the provider"
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def check(x: Any, weight: Any, bias: Any = None, **how: Any) -> None:
    want = ORIGINAL(x, weight, bias, **how)
    for _ in range(2):  # the second call has a session
        got = F.conv2d(x, weight, bias, **how)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride() and got.is_inference() == want.is_inference()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"padding": "same"},
        {"padding": "valid", "stride": 2},
        {"padding": (2, 1), "stride": (1, 2)},
        {"padding": "same", "dilation": 2},
        {"padding": [3], "dilation": (2, 1), "stride": [2]},
    ],
)
def test_windows(how: dict[str, Any], bias: bool) -> None:
    weight, b = nn.Parameter(torch.randn(8, 4, 3, 3)), torch.randn(8) if bias else None
    with tracea.patch_conv2d(measure=False) as patch, torch.inference_mode():
        for shape in ((2, 4, 11, 9), (4, 12, 8), (1, 4, 7, 30)):
            check(torch.randn(shape), weight, b, **how)
    assert patch.calls == {PROVIDER: 5, "in PyTorch: its weight is new": 1}


def test_groups_and_even_kernels() -> None:
    with tracea.patch_conv2d(measure=False) as patch, torch.no_grad():
        check(torch.randn(2, 8, 9, 9), torch.randn(8, 1, 2, 4), padding="same", groups=8)
        check(torch.randn(2, 8, 9, 9), torch.randn(4, 2, 3, 1), torch.randn(4), groups=4)
    assert patch.calls[PROVIDER] == 2


def test_modules_use_it_and_what_was_there_comes_back() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), nn.Conv2d(8, 4, 1)
    )
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        want = model(x)
        patch = tracea.patch_conv2d(measure=False)
        with tracea.patch_conv2d(measure=False) as inner:
            for _ in range(3):
                torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-4)
        assert inner.calls[PROVIDER] == 4 and not patch.calls
        model(x)
        assert patch.calls.total() == 2
        tracea.unpatch()
        assert F.conv2d is ORIGINAL
        model(x)
    assert patch.calls.total() == 2


def test_a_function_that_somebody_else_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tracea.patch_conv2d(measure=False)
    ours = F.conv2d

    def theirs(*given: Any, **named: Any) -> Any:
        return ours(*given, **named)

    monkeypatch.setattr(F, "conv2d", theirs)
    tracea.unpatch()
    assert F.conv2d is theirs
    x, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    torch.testing.assert_close(F.conv2d(x, weight), ORIGINAL(x, weight))
    monkeypatch.undo()
    assert F.conv2d is ours
    tracea.unpatch()
    assert F.conv2d is ORIGINAL


def test_a_weight_that_changes_gets_a_session_anew() -> None:
    weight, x = nn.Parameter(torch.randn(8, 4, 3, 3)), torch.randn(1, 4, 8, 8)
    with tracea.patch_conv2d(measure=False) as patch, torch.no_grad():
        check(x, weight)
        weight.mul_(2)
        check(x, weight)
        weight.data = torch.randn(8, 4, 3, 3)
        check(x, weight)
        for _ in range(3):
            check(x, weight * 2)
    assert patch.calls == {PROVIDER: 6, "in PyTorch: its weight is new": 6}


def test_a_weight_that_is_gone_takes_its_session_along() -> None:
    with tracea.patch_conv2d(measure=False) as patch, torch.no_grad():
        check(torch.randn(1, 4, 8, 8), torch.randn(8, 4, 3, 3))
        assert not len(patch._weights)


REASONS = {
    "autograd records it": lambda x, w: F.conv2d(x, w.requires_grad_()),
    "the provider has none of float64": lambda x, w: F.conv2d(x.double(), w.double()),
    "has none of float32 and float64": lambda x, w: F.conv2d(x, w.double()),
    "its input is not contiguous": lambda x, w: F.conv2d(x.mT, w),
    "its operands are empty": lambda x, w: F.conv2d(x[:0], w),
    "an operand is no plain tensor": lambda x, w: F.conv2d(torch.masked.as_masked_tensor(
        x, x > 0), w),
    "a transform or a mode of PyTorch": lambda x, w: torch.vmap(lambda t: F.conv2d(t, w))(x[None]),
    "autocast chooses its type": lambda x, w: torch.autocast("cpu")(F.conv2d)(x, w),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.filterwarnings("ignore")
def test_what_runs_in_pytorch_is_said_once(reason: str, said: list[str]) -> None:
    x, weight = torch.randn(1, 4, 8, 8), torch.randn(8, 4, 3, 3)

    def outcome() -> Any:
        try:
            return REASONS[reason](x, weight)
        except Exception as e:
            return type(e), str(e)

    want = outcome()
    with tracea.patch_conv2d(measure=False) as patch:
        for _ in range(2):
            got = outcome()
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want)
            else:
                assert got == want
    assert sum(reason in line for line in said) == 1
    assert not patch.calls[PROVIDER]


def test_gradients_are_pytorchs() -> None:
    conv, x = nn.Conv2d(4, 8, 3), torch.randn(1, 4, 8, 8)
    conv(x).sum().backward()
    want = conv.weight.grad.clone()
    conv.zero_grad()
    with tracea.patch_conv2d(measure=False):
        for _ in range(2):
            conv.zero_grad()
            conv(x).sum().backward()
            torch.testing.assert_close(conv.weight.grad, want)


def test_errors_are_pytorchs() -> None:
    x, weight = torch.randn(1, 4, 8, 8), torch.randn(8, 5, 3, 3)
    with tracea.patch_conv2d(), pytest.raises(RuntimeError, match="expected input"):
        F.conv2d(x, weight)
    with tracea.patch_conv2d(), pytest.raises(TypeError, match="unexpected keyword"):
        F.conv2d(x, weight, speed=3)


def test_the_faster_side_gets_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracea_onnx.torch import conv2d

    x, weight = torch.randn(1, 4, 8, 8), torch.randn(8, 4, 3, 3)
    for slow in (True, False):
        now, calls = 0.0, 0

        def clock(device: Any, slow: bool = slow) -> float:
            nonlocal now, calls
            calls += 1  # before, between and after the two: PyTorch is first
            now += {2: 1.0, 0: 2.0 if slow else 0.5}.get(calls % 3, 0.0)
            return now

        monkeypatch.setattr(conv2d, "_clock", clock)
        with tracea.patch_conv2d() as patch, torch.no_grad():
            for _ in range(20):
                torch.testing.assert_close(
                    F.conv2d(x, weight), ORIGINAL(x, weight), rtol=1e-4, atol=1e-4
                )
        assert patch.calls[PROVIDER] == (4 if slow else 19)
        assert patch.calls["in PyTorch: PyTorch is faster at it"] == (15 if slow else 0)


def test_threads_share_a_session() -> None:
    weight, xs = torch.randn(8, 4, 3, 3), [torch.randn(1, 4, 8, 8 + k) for k in range(4)]
    wants, wrong = [ORIGINAL(x, weight) for x in xs], list[BaseException]()

    def work(x: Any, want: Any) -> None:
        try:
            with torch.no_grad():
                for _ in range(50):
                    torch.testing.assert_close(F.conv2d(x, weight), want, rtol=1e-4, atol=1e-4)
        except BaseException as e:
            wrong.append(e)

    with tracea.patch_conv2d() as patch:
        threads = [threading.Thread(target=work, args=p) for p in zip(xs, wants, strict=True)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong and patch.calls[PROVIDER]


@pytest.mark.filterwarnings("ignore")
def test_dynamo_traces_through_it() -> None:
    conv, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    with tracea.patch_conv2d(measure=False) as patch, torch.no_grad():
        got = torch.compile(conv, backend="eager", fullgraph=True)(x)
        torch.testing.assert_close(got, conv(x))
    assert patch.calls.total() == 1

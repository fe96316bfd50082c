"""`torch.nn.functional.conv2d` by the provider, in programs that are not compiled.

    with tracea_onnx.torch.patch_conv2d() as patch:
        model(x)
    print(patch.calls)

`nn.Conv2d` calls it, too. A weight that is seen again gets a session, which has it packed; what the
provider does not take, or is slower at, runs in PyTorch.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from tracea_onnx.torch import devices, reasons
from tracea_onnx.torch.reasons import RunsInEagerError
from tracea_onnx.torch.session import Slot, TensorSession, external

_TYPES = {
    devices.HOST: (torch.float32,),
    devices.GPU: (torch.float32, torch.float16, torch.bfloat16),
}
#: How often both sides are timed before the faster one gets the rest of the calls; of the first
#: time the session's first look at the shapes is a part.
_TRIALS = 4
_NO_CONVOLUTION = "its operands are empty, or not those of a convolution"
PROVIDER = "on the provider"


class _Window(NamedTuple):
    """Parameters of a convolution besides its weight; `pads` are above, left, below and right."""

    pads: tuple[int, int, int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def result(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int, int]:
        """The shape of the result, of one image or of several."""
        *images, _, height, width = x.shape
        outputs, _, rows, columns = weight.shape
        above, left, below, right = self.pads
        (down, across), (r, c) = self.stride, self.dilation
        return (
            images[0] if images else 1,
            outputs,
            (height + above + below - r * (rows - 1) - 1) // down + 1,
            (width + left + right - c * (columns - 1) - 1) // across + 1,
        )


class _Trial:
    """Comparison of both sides at convolutions of one size (up to a factor of two)."""

    def __init__(self) -> None:
        self.times = {True: list[float](), False: list[float]()}
        self.provider: bool | None = None

    def add(self, provider: bool, seconds: float) -> None:
        taken = self.times[provider]
        taken.append(seconds)
        if min(map(len, self.times.values())) >= _TRIALS:
            self.provider = min(self.times[True]) <= min(self.times[False])


class _Weight:
    """What is known of a weight with one window: its contents when it was first seen, whose memory
    is kept from being somebody else's, and its session, or why it has none.
    """

    def __init__(self, stamp: Any, *held: torch.Tensor) -> None:
        self.stamp, self.held = stamp, held
        self.session: TensorSession | None = None
        self.refused: RunsInEagerError | None = None
        self.trials: dict[int, _Trial] = {}
        self.lock = threading.Lock()

    def prepare(
        self, weight: torch.Tensor, bias: torch.Tensor | None, window: _Window,
        options: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Makes the session, unless it was tried."""
        with self.lock:
            if self.session is None and self.refused is None:
                try:
                    self.session = _session(weight, bias, window, options)
                except RunsInEagerError as e:
                    self.refused = e
        if self.refused is not None:
            raise self.refused


class Patch:
    """Handle of `patch_conv2d`. `calls` counts calls by where they ran: on the provider, or in
    PyTorch for a reason.
    """

    def __init__(self, options: Mapping[str, str], measure: bool) -> None:
        self.calls: Counter[str] = Counter()
        self._options, self._measure = dict(options), measure
        self._weights = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def __enter__(self) -> Patch:
        with _lock:
            if self not in _patches:
                _patches.append(self)
            _apply_patches()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        with _lock:
            if self in _patches:
                _patches.remove(self)
            _apply_patches()

    def _run(self, original: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """The convolution, by the provider or by the original function."""
        try:
            window = _window(*given)
            x, weight, bias = given[:3]
            known = self._known(weight, bias, window)
        except RunsInEagerError as e:
            return self._in_eager(str(e), original, *given)
        if known.session is None:
            return self._in_eager("its weight is new", original, *given, quiet=True)
        if not self._measure:
            return self._on_provider(known.session, window, x, weight)
        return self._faster(known, window, original, *given)

    def _known(self, weight: torch.Tensor, bias: torch.Tensor | None, window: _Window) -> _Weight:
        """Of the weight with this window; with a session from the second call on."""
        given = (weight,) if bias is None else (weight, bias)
        stamp = [(id(t), t.data_ptr(), t._version) for t in given]
        with self._lock:
            windows = self._weights.get(weight)
            if windows is None:
                windows = self._weights[weight] = {}
            key = (window, bias is None)
            known: _Weight | None = windows.get(key)
            if known is None or known.stamp != stamp:
                known = windows[key] = _Weight(stamp, *(t.detach() for t in given))
                return known
        if known.session is None:
            known.prepare(weight, bias, window, self._options)
        return known

    def _in_eager(
        self, reason: str, original: Callable[..., torch.Tensor], *given: Any, quiet: bool = False
    ) -> torch.Tensor:
        self.calls[f"in PyTorch: {reason}"] += 1
        if not quiet:
            reasons.once(f"a conv2d runs in PyTorch: {reason}")
        return original(*given)

    def _on_provider(
        self, session: TensorSession, window: _Window, x: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        self.calls[PROVIDER] += 1
        whole = x if x.dim() == 4 else x.unsqueeze(0)
        (y,) = session.run([whole], [window.result(whole, weight)])
        return y if x.dim() == 4 else y.squeeze(0)

    def _faster(
        self, known: _Weight, window: _Window, original: Callable[..., torch.Tensor], *given: Any
    ) -> torch.Tensor:
        x, weight = given[:2]
        session = known.session
        assert session is not None
        size = (x.numel() * weight.numel()).bit_length()
        trial = known.trials.setdefault(size, _Trial())
        if trial.provider is None:
            begin = _clock(x.device)
            original(*given)
            middle = _clock(x.device)
            y = self._on_provider(session, window, x, weight)
            end = _clock(x.device)
            trial.add(False, middle - begin)
            trial.add(True, end - middle)
            return y
        if trial.provider:
            return self._on_provider(session, window, x, weight)
        return self._in_eager("PyTorch is faster at it", original, *given)


_lock = threading.RLock()
_patches: list[Patch] = []
_original: Callable[..., torch.Tensor] = functional.conv2d


def _conv2d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> torch.Tensor:  # fmt: skip
    if torch.compiler.is_compiling():
        return _original(input, weight, bias, stride, padding, dilation, groups)
    given = (input, weight, bias, stride, padding, dilation, groups)
    patches = _patches[-1:]
    return patches[0]._run(_original, *given) if patches else _original(*given)


def patch_conv2d(*, options: Mapping[str, str] | None = None, measure: bool = True) -> Patch:
    """Let the provider run `torch.nn.functional.conv2d`, until `unpatch` or the end of a `with`.

    `options` are provider options. measure: a convolution's first calls run on both sides, and the
    faster side gets the rest; without it the provider runs all that it can.
    """
    return Patch(options or {}, measure).__enter__()


def unpatch() -> None:
    """Give `torch.nn.functional.conv2d` back, however often it was patched."""
    with _lock:
        _patches.clear()
        _apply_patches()


def _apply_patches() -> None:
    """Puts the function there that belongs there. Where somebody else has put theirs over ours,
    ours stays, and passes calls on.
    """
    global _original
    if _patches and functional.conv2d is not _conv2d:
        _original = functional.conv2d
        functional.conv2d = _conv2d
    elif not _patches and functional.conv2d is _conv2d:
        functional.conv2d = _original


def _window(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> _Window:  # fmt: skip
    """Raises RunsInEagerError where the provider does not take the call, or it is an error that
    PyTorch has words for.
    """
    given = [x, weight] if bias is None else [x, weight, bias]
    _plain(given)
    if x.dtype not in _TYPES.get(x.device.type, ()) or any(t.dtype != x.dtype for t in given):
        kinds = " and ".join(sorted({str(t.dtype).removeprefix("torch.") for t in given}))
        raise RunsInEagerError(f"the provider has none of {kinds} on {x.device.type}")
    if any(t.device != x.device for t in given):
        raise RunsInEagerError("its tensors are on several devices")
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise RunsInEagerError(
            "autograd records it; call it in torch.inference_mode() or torch.no_grad()"
        )
    if not x.is_contiguous():
        raise RunsInEagerError("its input is not contiguous")
    if any(t.is_inference() for t in given[1:]):
        raise RunsInEagerError("its weight is an inference tensor, of which no change is told")
    if x.dim() not in (3, 4) or weight.dim() != 4:
        raise RunsInEagerError(_NO_CONVOLUTION)
    window = _window_of(
        tuple(weight.shape), *map(_hashable, (stride, padding, dilation)), int(groups)
    )
    if (
        x.shape[-3] != weight.shape[1] * window.groups
        or (bias is not None and bias.shape != weight.shape[:1])
        or not x.numel()
        or min(window.result(x, weight)) < 1
    ):
        raise RunsInEagerError(_NO_CONVOLUTION)
    return window


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else tuple(value)


@functools.lru_cache(4096)
def _window_of(
    weight: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
) -> _Window:
    steps, gaps = _pair(stride), _pair(dilation)
    if padding == "valid":
        pads = (0, 0, 0, 0)
    elif padding == "same" and steps == (1, 1):
        total = [gaps[i] * (weight[2 + i] - 1) for i in (0, 1)]
        pads = (total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2)
    else:
        pads = _pair(padding) * 2
    if groups < 1 or weight[0] % groups or min(*steps, *gaps, *weight) < 1 or min(pads) < 0:
        raise RunsInEagerError(_NO_CONVOLUTION)
    return _Window(pads, steps, gaps, groups)


def _plain(given: list[torch.Tensor]) -> None:
    """Raises RunsInEagerError where somebody else listens to operators, or a tensor is more than
    its memory.
    """
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in given):
        raise RunsInEagerError("an operand is no plain tensor")
    if (
        torch._C._len_torch_dispatch_stack()
        or torch.jit.is_tracing()
        or torch.autograd.forward_ad._current_level >= 0
        or any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in given)
    ):
        raise RunsInEagerError("a transform or a mode of PyTorch is at work")
    if torch.is_autocast_enabled(given[0].device.type):
        raise RunsInEagerError("autocast chooses its type")
    if any(t.layout != torch.strided or t.is_neg() for t in given):
        raise RunsInEagerError("an operand is no plain tensor")


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else value
    if isinstance(values, str) or len(values) not in (1, 2):
        raise RunsInEagerError(_NO_CONVOLUTION)
    return int(values[0]), int(values[-1])


def _clock(device: torch.device) -> float:
    if device.type == devices.GPU:
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _session(
    weight: torch.Tensor, bias: torch.Tensor | None, window: _Window, options: Mapping[str, str]
) -> TensorSession:
    """The convolution of images of any size."""
    from onnx import helper

    element = devices.ELEMENT_TYPES[weight.dtype]
    weights = {"weight": weight} | ({} if bias is None else {"bias": bias})
    node = helper.make_node(
        "Conv", ["x", *weights], ["y"], kernel_shape=weight.shape[2:], pads=window.pads,
        strides=window.stride, dilations=window.dilation, group=window.groups,
    )  # fmt: skip
    channels = weight.shape[1] * window.groups
    graph = helper.make_graph(
        [node],
        "conv2d",
        [helper.make_tensor_value_info("x", element, ["n", channels, "h", "w"])],
        [helper.make_tensor_value_info("y", element, ["n", weight.shape[0], "oh", "ow"])],
        [external(*named) for named in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    slot = Slot(weight.dtype, weight.device)
    try:
        made = TensorSession(
            model.SerializeToString(), weights, [slot], weight.device, {"claim": "all", **options}
        )
    except Exception as e:
        raise RunsInEagerError(f"no session: {reasons.of_conversion(e)}") from e
    if not made.provider_nodes:
        raise RunsInEagerError("the provider has no kernel for it")
    return made

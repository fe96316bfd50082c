"""Small torch modules, one for each chain of the matrix: what real networks write, at the smallest
size that keeps every operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

C = 4  # channels of images
X = 16  # width of sequences
H = 2  # heads


class Net(nn.Module):
    """`fn(self, *inputs)` over named parts."""

    def __init__(self, fn: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.fn = fn
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
        return self.fn(self, *(v for v in (a, b, c, d) if v is not None))


@dataclass(frozen=True)
class Case:
    """A module and its example inputs.

    batch: inputs whose first axis is the batch, or axes: the dynamic axes of every input by name.
    preserve: BatchNormalization stays a node. half: weights and inputs are fp16.
    """

    net: Any
    inputs: tuple[Any, ...]
    batch: tuple[int, ...] = (0,)
    preserve: bool = False
    half: bool = False
    axes: tuple[Mapping[int, str], ...] | None = None

    def dynamic(self) -> tuple[Mapping[int, str], ...]:
        """Name of each dynamic axis, input by input."""
        return (
            self.axes
            if self.axes is not None
            else tuple({0: "batch"} if k in self.batch else {} for k in range(len(self.inputs)))
        )


def image(channels: int = C, size: int = 5) -> Any:
    return torch.randn(2, channels, size, size)


def tokens(length: int = 6, width: int = X) -> Any:
    return torch.randn(2, length, width)


def _norm(channels: int) -> Any:
    bn = nn.BatchNorm2d(channels)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.normal_(bn.bias)
    bn.running_mean.normal_()
    bn.running_var.uniform_(0.5, 1.5)
    return bn


# --- convolutions ---------------------------------------------------------------------------------
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "silu": F.silu,
    "hswish": F.hardswish,
    "mish": F.mish,
    "gelu": F.gelu,
    "hswish_div": lambda x: x * F.relu6(x + 3.0) / 6.0,
    "hswish_inner": lambda x: x * (F.relu6(x + 3.0) / 6.0),
    "hswish_mul": lambda x: x * (F.relu6(x + 3.0) * (1.0 / 6.0)),
    "hswish_sigmoid": lambda x: x * F.hardsigmoid(x),
    "hswish_clamp": lambda x: x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0,
}


def conv_act(act: str, *, preserve: bool = False) -> Case:
    fn = ACTIVATIONS[act]
    net = Net(
        lambda m, x: fn(m.bn(m.conv(x))),
        conv=nn.Conv2d(C, C, 3, padding=1, bias=False),
        bn=_norm(C),
    )
    return Case(net, (image(),), preserve=preserve)


def conv_residual(*, preserve: bool = False, swapped: bool = False) -> Case:
    def fn(m: Any, x: Any) -> Any:
        y = m.bn(m.conv(x))
        return F.relu(x + y if swapped else y + x)

    return Case(
        Net(fn, conv=nn.Conv2d(C, C, 3, padding=1, bias=False), bn=_norm(C)),
        (image(),),
        preserve=preserve,
    )


def conv_two_inputs() -> Case:
    return Case(
        Net(lambda m, x, y: F.silu(m.conv(x) + y), conv=nn.Conv2d(C, C, 1)),
        (image(), image()),
        batch=(0, 1),
    )


def depthwise_separable() -> Case:
    net = Net(
        lambda m, x: m.b2(m.point(F.relu6(m.b1(m.depth(x))))) + x,
        depth=nn.Conv2d(C, C, 3, padding=1, groups=C, bias=False), b1=_norm(C),
        point=nn.Conv2d(C, C, 1, bias=False), b2=_norm(C),
    )  # fmt: skip
    return Case(net, (image(),))


def conv_transpose(*, preserve: bool = False) -> Case:
    net = Net(
        lambda m, x: F.relu(m.bn(m.conv(x))),
        conv=nn.ConvTranspose2d(C, C, 2, stride=2, bias=False),
        bn=_norm(C),
    )
    return Case(net, (image(),), preserve=preserve)


def concat_bn() -> Case:
    return Case(
        Net(lambda m, x, y: F.relu(m.bn(torch.cat([x, y], 1))), bn=_norm(2 * C)),
        (image(), image()),
        batch=(0, 1),
        preserve=True,
    )


def preactivation() -> Case:
    return Case(
        Net(
            lambda m, x: m.conv(F.relu(m.bn(x))) + x,
            bn=_norm(C),
            conv=nn.Conv2d(C, C, 3, padding=1),
        ),
        (image(),),
        preserve=True,
    )


def conv1d_gelu() -> Case:
    return Case(
        Net(lambda m, x: F.gelu(m.conv(x)), conv=nn.Conv1d(C, 8, 3, stride=2, padding=1)),
        (torch.randn(2, C, 11),),
    )


def conv1d_as_2d() -> Case:
    net = Net(
        lambda m, x: F.relu(m.conv(x.unsqueeze(2)).squeeze(2)),
        conv=nn.Conv2d(C, 8, (1, 3), padding=(0, 1)),
    )
    return Case(net, (torch.randn(2, C, 11),))


def squeeze_excite(pool: str, mid: Callable[[Any], Any], gate: Callable[[Any], Any]) -> Case:
    def fn(m: Any, x: Any) -> Any:
        s = F.adaptive_avg_pool2d(x, 1) if pool == "pool" else x.mean((2, 3), keepdim=True)
        return x * gate(m.up(mid(m.down(s))))

    return Case(Net(fn, down=nn.Conv2d(8, 2, 1), up=nn.Conv2d(2, 8, 1)), (image(8),))


def squeeze_excite_linear() -> Case:
    def fn(m: Any, x: Any) -> Any:
        s = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        s = torch.sigmoid(m.up(F.relu(m.down(s))))
        return x * s.view(x.shape[0], x.shape[1], 1, 1)

    return Case(Net(fn, down=nn.Linear(8, 2), up=nn.Linear(2, 8)), (image(8),))


# --- linear layers --------------------------------------------------------------------------------
GELUS: dict[str, Callable[[Any], Any]] = {
    "erf": F.gelu,
    "python": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5)),
    "half_last": lambda x: 0.5 * (x * (1.0 + torch.erf(x * 0.7071067811865475))),
    "tanh": lambda x: F.gelu(x, approximate="tanh"),
    "new": lambda x: (
        0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "cubed": lambda x: (
        0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    ),
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
}


def linear_gelu(name: str) -> Case:
    fn = GELUS[name]
    return Case(Net(lambda m, x: fn(m.fc(x)), fc=nn.Linear(X, 8)), (tokens(),))


def alone(fn: Callable[[Any], Any]) -> Case:
    return Case(Net(lambda m, x: fn(x)), (tokens(),))


def linear(kind: str) -> Case:
    if kind == "bias_first":
        return Case(
            Net(lambda m, x: m.b + x @ m.w, w=torch.randn(X, 8), b=torch.randn(8)), (tokens(),)
        )
    if kind == "relu":
        return Case(Net(lambda m, x: F.relu(m.fc(x)), fc=nn.Linear(X, 8)), (tokens(),))
    if kind == "residual":
        return Case(Net(lambda m, x: x + m.fc(x), fc=nn.Linear(X, X)), (tokens(),))
    if kind == "gpt2":

        def conv1d(m: Any, x: Any) -> Any:
            return GELUS["new"](
                torch.addmm(m.b, x.view(-1, x.size(-1)), m.w).view((*x.size()[:-1], 8))
            )

        return Case(Net(conv1d, w=torch.randn(X, 8), b=torch.randn(8)), (tokens(),))
    x = torch.randn(2, X) if kind == "2d" else tokens()
    return Case(Net(lambda m, x: m.fc(x), fc=nn.Linear(X, 8)), (x,))


def mlp(act: Callable[[Any], Any]) -> Case:
    return Case(
        Net(lambda m, x: m.down(act(m.up(x))), up=nn.Linear(X, 24), down=nn.Linear(24, X)),
        (tokens(),),
    )


def swiglu(kind: str) -> Case:
    if kind == "packed":

        def fn(m: Any, x: Any) -> Any:
            up, gate = m.fc(x).chunk(2, dim=-1)
            return up * F.silu(gate)

        return Case(Net(fn, fc=nn.Linear(X, 24, bias=False)), (tokens(),))
    act = F.silu if kind == "silu" else lambda x: F.gelu(x, approximate="tanh")
    net = Net(
        lambda m, x: m.down(act(m.gate(x)) * m.up(x)),
        gate=nn.Linear(X, 24, bias=False), up=nn.Linear(X, 24, bias=False),
        down=nn.Linear(24, X, bias=False),
    )  # fmt: skip
    return Case(net, (tokens(),))


# --- normalisations -------------------------------------------------------------------------------
def _layer_norm(width: int = X) -> Any:
    ln = nn.LayerNorm(width, eps=1e-5)
    nn.init.uniform_(ln.weight, 0.5, 1.5)
    nn.init.normal_(ln.bias)
    return ln


def layer_norm(kind: str) -> Case:
    g, b = torch.rand(X) + 0.5, torch.randn(X)

    def manual(m: Any, x: Any) -> Any:
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return m.g * ((x - u) / torch.sqrt(s + 1e-12)) + m.b

    def rsqrt(m: Any, x: Any) -> Any:
        u = x - x.mean(-1, keepdim=True)
        return u * torch.rsqrt((u * u).mean(-1, keepdim=True) + 1e-6) * m.g + m.b

    def var(m: Any, x: Any) -> Any:
        return (
            m.g
            * (x - x.mean(-1, keepdim=True))
            / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-6)
            + m.b
        )

    if kind in ("manual", "rsqrt", "var"):
        return Case(
            Net({"manual": manual, "rsqrt": rsqrt, "var": var}[kind], g=g, b=b), (tokens(),)
        )
    if kind == "skip":
        return Case(
            Net(lambda m, x, y: m.ln(x + y), ln=_layer_norm()), (tokens(), tokens()), batch=(0, 1)
        )
    # the dense layer's bias before the residual, and the sum is needed later
    if kind == "skip_bias":

        def block(m: Any, x: Any, y: Any) -> Any:
            s = m.fc(x) + y
            return m.ln(s), s * 2.0

        return Case(
            Net(block, fc=nn.Linear(X, X), ln=_layer_norm()), (tokens(), tokens()), batch=(0, 1)
        )
    if kind == "transposed":  # ConvNeXt: [N, C, H, W] through channels-last
        return Case(
            Net(lambda m, x: m.ln(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), ln=_layer_norm(C)),
            (image(),),
        )
    if kind == "channels_first":

        def first(m: Any, x: Any) -> Any:
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            return m.g[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + m.b[:, None, None]

        return Case(Net(first, g=torch.rand(C) + 0.5, b=torch.randn(C)), (image(),))
    return Case(Net(lambda m, x: m.ln(x), ln=_layer_norm()), (tokens(),))


def rms_norm(kind: str) -> Case:
    w = torch.rand(X) + 0.5

    def llama(m: Any, x: Any) -> Any:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return m.w * h.to(x.dtype)

    def gemma(m: Any, x: Any) -> Any:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + m.w.float())).type_as(x)

    def divided(m: Any, x: Any) -> Any:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * m.w

    if kind == "nn":
        return Case(nn.RMSNorm(X, eps=1e-6), (tokens(),))
    if kind == "skip":
        return Case(Net(lambda m, x, y: llama(m, x + y), w=w), (tokens(), tokens()), batch=(0, 1))
    half = kind == "llama_fp16"
    fn = {"llama": llama, "llama_fp16": llama, "gemma": gemma, "div": divided}[kind]
    return Case(Net(fn, w=w), (tokens(),), half=half)


def group_norm(kind: str) -> Case:
    gn = nn.GroupNorm(2, C)
    nn.init.uniform_(gn.weight, 0.5, 1.5)
    nn.init.normal_(gn.bias)
    if kind == "silu_conv":
        return Case(
            Net(lambda m, x: m.conv(F.silu(m.gn(x))), gn=gn, conv=nn.Conv2d(C, C, 3, padding=1)),
            (image(),),
        )
    if kind == "instance":
        return Case(
            Net(lambda m, x: F.relu(m.norm(x)), norm=nn.InstanceNorm2d(C, affine=True)), (image(),)
        )
    return Case(Net(lambda m, x: m.gn(x), gn=gn), (image(),))


def embedding(kind: str) -> Case:
    word, position = nn.Embedding(20, X), nn.Embedding(12, X)
    ids = torch.randint(0, 20, (2, 6))
    if kind == "norm":

        def fn(m: Any, i: Any) -> Any:
            return m.ln(m.word(i) + m.position(torch.arange(i.shape[1], device=i.device)[None]))

        return Case(Net(fn, word=word, position=position, ln=_layer_norm()), (ids,))
    net = Net(
        lambda m, i, t: m.ln(m.word(i) + m.segment(t) + m.position.weight[None, : i.shape[1]]),
        word=word, segment=nn.Embedding(2, X), position=position, ln=_layer_norm(),
    )  # fmt: skip
    return Case(net, (ids, torch.randint(0, 2, (2, 6))), batch=(0, 1))

"""Sizes drawn at random, of every kind that the other modules of this name list: sizes between a
few and some thousands, odd ones and round ones alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from tests.support.cuda.trials import axes as A
from tests.support.cuda.trials import dense as P
from tests.support.cuda.trials import images as I
from tests.support.cuda.trials import move as M
from tests.support.cuda.trials import rows as W
from tests.support.cuda.trials.trial import Trial
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType

F16, BF16, F32, I64, U8 = DType.F16, DType.BF16, DType.F32, DType.I64, DType.U8
#: Elements of a tensor, and products that a trial sums, at most: a run of some hundreds takes a
#: minute.
_ELEMENTS, _PRODUCTS = 3e7, 3e10


class _Draw(random.Random):
    def size(self, low: int, high: int) -> int:
        """As many of 10 to 20 as of 1000 to 2000; one in three a multiple of 8."""
        n = round(math.exp(self.uniform(math.log(low), math.log(high))))
        return max(low, n // 8 * 8) if n >= 16 and self.random() < 1 / 3 else n

    def floating(self) -> DType:
        return self.choice((F16, F16, BF16, F32, F32))

    def any_type(self) -> DType:
        return self.choice((F16, BF16, F32, F32, I64, U8))

    def often(self, share: float = 0.5) -> bool:
        return self.random() < share


def _linear(g: _Draw) -> Trial:
    m, n, k = g.size(1, 5000), g.size(3, 5000), g.size(3, 5000)
    return P.linear(
        g.floating(), m, n, k, g.choice(("none", "relu", "gelu_erf", "silu")), pad=3 * g.often(0.1)
    )


def _bmm(g: _Draw) -> Trial:
    return P.bmm(
        g.floating(),
        g.size(1, 200),
        g.size(1, 1000),
        g.size(1, 1000),
        g.size(1, 1000),
        trans_a=g.often(0.25),
        trans_b=g.often(),
    )


def _side(g: _Draw, high: int = 130) -> tuple[int, int]:
    h = g.size(5, high)
    return h, h if g.often() else g.size(5, high)


def _dense(g: _Draw) -> Trial:
    kernel, stride = g.choice((1, 2, 3, 3, 3, 5, 7)), g.choice((1, 1, 2))
    return P.convolution(
        g.floating(),
        I.conv(g.size(1, 32), g.size(5, 700), _side(g), g.size(5, 700), kernel, stride),
    )


def _first(g: _Draw) -> Trial:
    v = I.conv(
        g.size(1, 16),
        g.choice((1, 2, 3, 3, 3, 4)),
        _side(g, 400),
        g.size(8, 200),
        g.choice((3, 5, 7)),
        g.choice((1, 2, 4)),
        planes=True,
    )
    return P.convolution(g.floating(), v)


def _depthwise(g: _Draw) -> Trial:
    c = g.size(8, 1000)
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 32),
            c,
            _side(g),
            c,
            g.choice((3, 3, 5, 7, 9, 11)),
            g.choice((1, 1, 2)),
            groups=c,
        ),
    )


def _groups(g: _Draw) -> Trial:
    groups = g.choice((2, 3, 4, 8, 16, 32))
    c, oc = groups * g.size(2, 48), groups * g.size(2, 48)
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            c,
            _side(g),
            c if g.often(0.7) else oc,
            3,
            g.choice((1, 1, 2)),
            groups=groups,
        ),
    )


def _pointwise_groups(g: _Draw) -> Trial:
    groups, (h, w) = g.choice((2, 2, 3, 4, 8)), _side(g)
    c, oc = groups * g.size(2, 100), groups * g.size(2, 100)
    return P.convolution(
        g.floating(), I.conv(g.size(1, 16), c, (h, w), c if g.often() else oc, 1, groups=groups)
    )


def _dilated(g: _Draw) -> Trial:
    d = g.choice((2, 2, 3, 4, 6))
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            g.size(5, 500),
            _side(g),
            g.size(5, 500),
            3,
            dilation=(d, d),
            pads=(d,) * 4,
        ),
    )


def _separated(g: _Draw) -> Trial:
    k = g.choice((3, 5, 7, 7))
    return P.convolution(
        g.floating(),
        I.conv(g.size(1, 16), g.size(5, 500), _side(g), g.size(5, 500), g.choice(((1, k), (k, 1)))),
    )


def _head(g: _Draw) -> Trial:
    """Few outputs."""
    kernel = g.choice((1, 3, 3, 5, 7))
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            g.size(8, min(700, 9000 // kernel**2)),
            _side(g),
            g.size(1, 20),
            kernel,
            act=g.choice(("none", "silu")),
        ),
    )


def _image(g: _Draw) -> Trial:
    """One large image."""
    side = g.size(400, 1000), g.size(400, 1000)
    return P.convolution(
        g.floating(),
        I.conv(
            1,
            g.size(5, 70),
            side,
            g.size(3, 70),
            g.choice((1, 3, 3, 5)),
            g.choice((1, 1, 2)),
            act=g.choice(("none", "relu")),
        ),
    )


def _multiplied(g: _Draw) -> Trial:
    """Depthwise, with several outputs of each channel."""
    c = g.size(4, 300)
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            c,
            _side(g),
            c * g.choice((2, 2, 3, 4)),
            g.choice((3, 3, 5)),
            g.choice((1, 1, 2)),
            groups=c,
        ),
    )


def _transposed(g: _Draw) -> Trial:
    kernel, pad = g.choice(((2, 0), (3, 1), (4, 1)))
    more: dict[str, object] = {"pads": (pad,) * 4, "extra": (1, 1) if kernel == 3 else (0, 0)}
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            g.size(3, 300),
            _side(g, 60),
            g.size(3, 300),
            kernel,
            2,
            transposed=True,
            **more,
        ),
    )


def _line(g: _Draw) -> Trial:
    kernel, stride = g.choice((1, 3, 3, 5, 9, 25)), g.choice((1, 1, 2))
    return P.convolution(
        g.floating(),
        I.conv(
            g.size(1, 16),
            g.size(5, 700),
            (1, g.size(30, 4000)),
            g.size(5, 700),
            (1, kernel),
            stride,
        ),
    )


def _attention(g: _Draw) -> Trial:
    d, kv, b = (
        g.choice((32, 40, 64, 64, 64, 72, 80, 96, 128, 128, 192, 256)),
        g.size(1, 16),
        g.size(1, 16),
    )
    s = g.size(1, 2000)
    causal = g.often(0.3)
    t = s if causal or g.often(0.6) else g.size(1, 2000)
    h = kv * (g.choice((1, 1, 1, 2, 4, 8)))
    return P.attention(
        g.floating(),
        b,
        h,
        s,
        t,
        d,
        kv=kv,
        causal=causal,
        masked=not causal and h == kv and g.often(0.25),
    )


def _decode(g: _Draw) -> Trial:
    kv = g.size(1, 16)
    return P.attention(
        g.choice((F16, BF16)),
        g.size(1, 16),
        kv * g.choice((1, 1, 2, 4, 8)),
        1,
        g.size(100, 20000),
        g.choice((64, 64, 80, 96, 128, 128)),
        kv=kv,
    )


def _softmax(g: _Draw) -> Trial:
    return W.softmax(
        g.floating(),
        g.size(1, 20000),
        g.size(2, 20000),
        g.size(2, 300) if g.often(0.3) else 1,
        log=g.often(0.3),
    )


def _norm(g: _Draw) -> Trial:
    return W.layernorm(
        g.floating(), g.size(1, 20000), g.size(8, 9000), residual=g.often(0.4), rms=g.often(0.4)
    )


def _groupnorm(g: _Draw) -> Trial:
    groups = g.choice((1, 2, 4, 8, 32))
    return W.groupnorm(g.floating(), g.size(1, 16), groups * g.size(1, 40), groups, *_side(g))


def _reduction(g: _Draw) -> Trial:
    kind = g.choice(("sum", "mean", "mean", "max", "min", "l2", "logsumexp"))
    return W.reduction(
        g.floating(),
        kind,
        g.size(1, 20000),
        g.size(2, 20000),
        g.size(2, 5000) if g.often(0.4) else 1,
    )


def _argmax(g: _Draw) -> Trial:
    return W.argmax(
        g.floating(),
        g.size(1, 5000),
        g.size(2, 50000),
        g.size(2, 1000) if g.often(0.3) else 1,
        least=g.often(0.2),
    )


def _topk(g: _Draw) -> Trial:
    n = g.size(2, 50000)
    return W.topk(g.floating(), g.size(1, 2000), n, min(n, g.size(1, 1000)), largest=g.often(0.8))


def _cumsum(g: _Draw) -> Trial:
    return W.cumsum(
        g.choice((I64, F32, F16)),
        g.size(1, 2000),
        g.size(2, 50000),
        g.size(2, 300) if g.often(0.3) else 1,
    )


def _broadcast(g: _Draw) -> Trial:
    a, b, c = g.size(1, 300), g.size(1, 1000), g.size(1, 3000)
    other = g.choice(((a, b, c), (c,), (b, 1), (a, 1, c), (a, 1, 1), (1,)))
    if g.often(0.25):
        return A.where(g.any_type(), g.choice(((a, b, c), (b, c), (a, 1, c))), (a, b, c), other)
    if g.often(0.5):
        return A.plus(g.choice((F16, BF16, F32, I64)), (a, b, c), other)
    return W.pointwise(
        g.floating(), W._GELU, W._gelu, [(a, b, c), other], (), "gelu(a + b) / 2 + a"
    )


def _cast(g: _Draw) -> Trial:
    # what bytes become of numbers beyond them is not defined
    source, to = g.sample((F16, BF16, F32, I64), 2)
    return A.cast(source, to, g.size(1, 3000), g.size(3, 3000))


def _permuted(g: _Draw) -> Trial:
    rank = g.choice((2, 3, 3, 4, 4, 5))
    shape, order = (
        tuple(g.size(2, round(3e6 ** (1 / rank) * 3)) for _ in range(rank)),
        g.sample(range(rank), rank),
    )
    swaps = []  # a permutation as swaps, which NumPy and PyTorch spell alike
    now = list(range(rank))
    for k, axis in enumerate(order):
        at = now.index(axis)
        now[k], now[at] = now[at], now[k]
        swaps.append((k, at))

    def look(x: object) -> object:
        for k, at in swaps:
            x = x.swapaxes(k, at)  # type: ignore[attr-defined]
        return x

    return A.view(f"permute {order}", g.any_type(), shape, look)


def _sliced(g: _Draw) -> Trial:
    shape = (g.size(1, 50), g.size(8, 1000), g.size(8, 2000))
    first, step = g.randrange(4), g.choice((1, 1, 1, 2, 3))
    if g.often():
        return A.view(
            f"columns from {first} by {step}", g.any_type(), shape, lambda x: x[:, :, first::step]
        )
    return A.view(f"rows from {first} by {step}", g.any_type(), shape, lambda x: x[:, first::step])


def _concat(g: _Draw) -> Trial:
    return M.concat(
        g.any_type(), g.size(1, 5000), [g.size(1, 1000) for _ in range(g.choice((2, 2, 3, 4, 6)))]
    )


def _padded(g: _Draw) -> Trial:
    shape = (g.size(1, 8), g.size(1, 200), *_side(g))
    if g.often(0.4):
        return A.mirrored(g.floating(), shape[1], *shape[2:], g.randrange(1, 5))
    before, after = ((0, 0, g.randrange(4), g.randrange(4)) for _ in range(2))
    return A.padded(g.any_type(), shape, before, after)


def _gather(g: _Draw) -> Trial:
    if g.often(0.3):
        return A.gather_elements(
            g.any_type(), g.size(1, 200), g.size(2, 2000), g.size(1, 300), g.size(1, 500)
        )
    shape = (g.size(1, 200), g.size(2, 5000), g.size(1, 1000))
    axis = g.randrange(3)
    return A.gather(g.any_type(), shape, axis, g.size(1, 3000))


def _pool(g: _Draw) -> Trial:
    n, c, (h, w) = g.size(1, 16), g.size(3, 600), _side(g)
    if g.often(0.3):
        return M.global_pool(g.floating(), n, c, h, w)
    k = g.choice((2, 3, 3, 5, 7))
    return M.pool(g.floating(), g.choice((0, 2)), n, c, h, w, k, g.choice((1, 2, 2, k)), k // 2)


def _resized(g: _Draw) -> Trial:
    n, c, (h, w) = g.size(1, 8), g.size(3, 300), _side(g, 100)
    more = g.choice((0.5, 2, 2, 1.37))
    return (I.cubic if g.often(0.2) else M.resize)(
        g.floating(), n, c, h, w, max(1, int(h * more)), max(1, int(w * more))
    )


def _excite(g: _Draw) -> Trial:
    c = g.size(8, 1000)
    return M.excite(
        g.choice((F16, BF16)), g.size(1, 16), c, *_side(g, 60), max(1, c // g.choice((4, 8, 16)))
    )


KINDS: tuple[Callable[[_Draw], Trial], ...] = (
    _linear, _bmm, _dense, _first, _depthwise, _groups, _pointwise_groups, _dilated, _separated,
    _head, _image, _multiplied, _transposed, _line, _attention, _decode,
    _softmax, _norm, _groupnorm, _reduction, _argmax, _topk, _cumsum,
    _broadcast, _cast, _permuted, _sliced, _concat, _padded, _gather, _pool, _resized, _excite,
)  # fmt: skip


def _fits(request: Request) -> bool:
    """Whether its tensors and its work are small enough, by the sizes that it names."""

    def product(*names: str) -> int:
        return math.prod(int(request.ints.get(n, 1)) for n in names)

    match request.family:
        case "gemm" | "matmul":
            b = product("B0", "B1")
            tensors, work = [b * product(*o) for o in ("MK", "NK", "MN")], b * product(*"MNK")
        case "conv2d" | "conv2d_dw" | "deconv2d" | "deconv2d_dw":
            tensors = [product("N", "IC", "IH", "IW"), product("N", "OC", "OH", "OW")]
            pixels = ("IH", "IW") if request.family.startswith("deconv") else ("OH", "OW")
            work = product("N", "OC", "IC", "KH", "KW", *pixels) // product("G")
        case "attention":
            tensors, work = [product(*"BHSD"), product("B", "KVH", "T", "D")], 4 * product(*"BHSTD")
        case "pointwise" | "copy":
            tensors, work = [product(*(f"n{k}" for k in range(6)))], 0
        case "copies":
            tensors, work = (
                [
                    sum(
                        product(*(f"p{k}_n{a}" for a in range(3)))
                        for k in range(9)
                        if f"p{k}_n1" in request.ints
                    )
                ],
                0,
            )
        case "gather" | "gather_elements":
            tensors, work = [product("outer", "n", "inner"), product("outer", "count", "inner")], 0
        case "layernorm":
            tensors, work = [product("rows", "N")], 0
        case "softmax" | "reduce" | "argmax" | "topk" | "cumsum":
            tensors, work = [product("outer", "n", "inner")], 0
        case _:  # images
            tensors, work = (
                [
                    product(*"BNCHW", "inner"),
                    product(*"NC", "IH", "IW"),
                    product(*"NC", "OH", "OW"),
                ],
                0,
            )
    return min(tensors) >= 1 and max(tensors) <= _ELEMENTS and work <= _PRODUCTS


def trials(count: int, seed: int) -> Iterator[Trial]:
    """As many of each kind as of each other."""
    for n in range(count):
        g = _Draw(f"{seed} {n}")
        trial = KINDS[n % len(KINDS)](g)
        while not all(map(_fits, trial.requests)):
            trial = KINDS[n % len(KINDS)](g)
        yield trial

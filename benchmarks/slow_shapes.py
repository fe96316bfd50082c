"""Odd sizes on which a kernel was once slower than PyTorch's eager one: what a change must not
bring back, and what is left to mend.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.cuda.trials import dense as P
from tests.support.cuda.trials import rows as rows
from tests.support.cuda.trials.images import conv
from tests.support.cuda.trials.trial import Trial
from tracea_onnx.ir.abi import DType

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32

#: Type, batch, M, N, K of products of two run-time operands; letters of those that are transposed.
_BATCHES = (
    (F16, 192, 243, 68, 190, ""), (F16, 112, 49, 500, 208, ""), (F16, 128, 138, 30, 242, ""),
    (F16, 18, 694, 744, 288, "b"), (F16, 112, 243, 8, 136, ""),
    (F16, 29, 923, 109, 200, ""), (F16, 32, 200, 916, 105, ""), (F16, 66, 539, 63, 109, ""),
    (F16, 56, 384, 456, 24, ""), (F16, 137, 1, 6, 208, "a"),
    (F16, 28, 592, 496, 520, ""), (F16, 14, 920, 152, 328, "b"), (F16, 2, 1, 19, 553, ""),
    (BF16, 34, 384, 1, 64, "b"), (F16, 53, 428, 59, 24, "a"),
    (BF16, 12, 217, 104, 1480, ""), (F16, 17, 632, 312, 208, "b"), (BF16, 13, 120, 328, 568, ""),
    (F16, 6, 951, 400, 1088, ""), (F16, 16, 336, 312, 208, "b"),
    (BF16, 5, 466, 112, 1240, "b"), (F16, 44, 216, 264, 816, ""), (BF16, 13, 1947, 96, 216, ""),
    (F16, 10, 353, 1984, 312, ""), (F16, 5, 408, 392, 480, "a"),
    (F16, 51, 408, 240, 656, "b"), (F16, 2, 904, 1816, 968, "b"), (BF16, 11, 195, 664, 1080, ""),
    (F16, 8, 512, 512, 512, ""),
    (F16, 16, 400, 376, 1632, ""), (F16, 47, 112, 288, 328, "b"), (F16, 11, 984, 128, 1224, "b"),
    (F16, 19, 1405, 208, 120, ""), (BF16, 11, 64, 1088, 576, ""),
    (F16, 16, 576, 48, 712, "ab"), (BF16, 18, 8, 40, 992, "ab"), (F16, 79, 8, 336, 376, ""),
    (F32, 187, 656, 1, 80, ""), (F32, 24, 703, 1, 24, ""), (F32, 28, 49, 982, 276, "a"),
    (F32, 34, 941, 88, 335, ""), (F32, 78, 98, 155, 666, ""),
    (F32, 15, 942, 30, 347, ""), (F32, 11, 606, 279, 204, "a"), (F32, 72, 3, 455, 113, ""),
    (F32, 104, 1, 334, 36, ""), (F32, 55, 875, 76, 342, ""),
    (F32, 11, 257, 783, 872, "a"), (F32, 16, 1, 7, 584, ""), (F32, 4, 203, 407, 286, ""),
    (F32, 97, 105, 15, 552, ""),
)  # fmt: skip
_LINEAR = (
    (F16, 207, 10, 40), (F16, 200, 2342, 10), (F16, 1973, 776, 9), (BF16, 4520, 494, 50),
    (F32, 2910, 339, 77), (F32, 4912, 822, 182), (F32, 4410, 330, 70),
    (F32, 1933, 997, 61), (F32, 1, 1000, 2048), (F32, 2, 50257, 768), (F32, 8, 4096, 4096),
    (F32, 8, 1024, 4096), (F16, 3290, 888, 1040),
    (F16, 4096, 4096, 1000), (F16, 1000, 1000, 1000),
)  # fmt: skip
#: Type, batch, heads, queries, keys, head; heads of keys.
_ATTENTION = (
    (F32, 10, 1, 894, 112, 256, 0), (F32, 6, 7, 410, 110, 256, 0), (F32, 12, 2, 40, 40, 128, 0),
    (F16, 12, 17, 1, 1887, 64, 0), (F16, 13, 56, 1, 1128, 64, 14),
    (F16, 12, 20, 1, 2645, 40, 0), (F16, 7, 52, 1, 1405, 40, 13), (F16, 11, 104, 1, 361, 128, 13),
    (BF16, 13, 26, 1, 591, 128, 13), (F16, 4, 8, 1497, 1497, 64, 2),
    (F16, 11, 48, 1, 2353, 96, 12), (BF16, 9, 74, 1, 2032, 56, 37), (BF16, 10, 84, 1, 496, 40, 21),
    (BF16, 13, 58, 1, 352, 56, 29), (F16, 4, 54, 1, 2515, 128, 27),
    (F16, 13, 14, 1, 719, 128, 7), (F16, 4, 12, 1000, 1000, 64, 0), (F16, 9, 10, 1, 2360, 128, 0),
    (F16, 7, 16, 1, 1802, 128, 0), (F32, 7, 2, 700, 128, 256, 0),
)  # fmt: skip
_CONVOLUTIONS = (
    (F32, conv(8, 272, 24, 6, 4, 2, transposed=True, pads=(1,) * 4)),
    (F16, conv(9, 6, (1, 3907), 48, (1, 9))), (F32, conv(1, 41, (623, 448), 28, 5)),
    (F16, conv(2, 32, 113, 272, 7)), (BF16, conv(28, 88, (19, 54), 64, 7)),
    (F32, conv(7, 351, (16, 56), 1, 8, 4, transposed=True, pads=(2,) * 4)),
    (BF16, conv(7, 64, 14, 128, 7, groups=64)),
    (F32, conv(32, 59, (1, 1752), 118, (1, 31), groups=59, dilation=(1, 2), pads=(0, 30, 0, 30))),
    (F32, conv(1, 234, 46, 55, 5, 2, transposed=True, pads=(2,) * 4)),
    (F32, conv(1, 101, (53, 23), 131, 2, pads=(0,) * 4)), (F16, conv(1, 16, (664, 747), 9, 1)),
    (F16, conv(1, 32, (935, 304), 11, 3, 2)), (F32, conv(1, 5, (192, 78), 160, 5, 2)),
    (F32, conv(8, 504, (58, 35), 13, 2, 2, transposed=True, pads=(0,) * 4)),
    (F32, conv(32, 256, 14, 256, 3)), (F32, conv(32, 128, 28, 128, 3)),
)  # fmt: skip
#: Type, outer, n, inner of means.
_MEANS = (
    (BF16, 13386, 88, 9), (F32, 80, 1355, 163), (BF16, 24000, 30, 15), (F32, 6000, 200, 7),
    (F16, 50000, 33, 9), (BF16, 100000, 17, 9),
)  # fmt: skip


def trials() -> Iterator[Trial]:
    for t, b, m, n, k, transposed in _BATCHES:
        yield P.bmm(t, b, m, n, k, trans_a="a" in transposed, trans_b="b" in transposed)
    for t, m, n, k in _LINEAR:
        yield P.linear(t, m, n, k)
    for t, b, h, s, keys, d, kv in _ATTENTION:
        yield P.attention(t, b, h, s, keys, d, kv=kv)
    for t, v in _CONVOLUTIONS:
        yield P.convolution(t, v)
    for t, outer, n, inner in ((F16, 667, 1842, 5), (F32, 2806, 851, 9)):
        yield rows.softmax(t, outer, n, inner)
    for t, outer, n, inner in _MEANS:
        yield rows.reduction(t, "mean", outer, n, inner)
    for t, outer, n, inner in ((F16, 1261, 112, 153), (F32, 1104, 2, 289)):
        yield rows.cumsum(t, outer, n, inner)

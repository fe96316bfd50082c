"""The kernel families a Plan may name: operands and parameters of each, in ABI order.

One table serves both sides: the partition compiler fills parameters by name, `kernels/cpu.py` turns
it into C++ enums (`conv2d::x`, `conv2d::IC`), and every CPU kernel reads its launch through those.
All sizes and pitches count elements.

Conventions
* A channels-last ("NHWC") operand is given by its pointer to pixel (n=0, h=0, w=0, c=0) and three
  pitches: `cs` per pixel (channel pitch, multiple of 16 except a stem input with C <= 4), `rs` per
  row, `ns` per image. A zero border wide enough for the reader's padding lies around the pixels,
  and at least 64 elements of readable slack at the buffer's end. Pad channels (C..cs) hold
  anything: a reader must not let them influence real channels, a writer may write them (up to
  round_up(C, 16)).
* Epilogue of conv/gemm families: v = acc + bias; residual per `res_mode`; then `act` with floats
  p0, p1. When the launch has a program, it replaces act and residual: register 0 = acc + bias,
  register 1.. = operands o0..o3 read per `o*_kind` (Broadcast) and `o*_ld`.
* Packed operands come from the `pack_*` families, run once per session; their sizes are given by
`packed_elements`.
"""

from __future__ import annotations

from functools import cached_property

from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Family:
    """Operands (trailing `?`: may be absent), integer and float parameters of one kernel family."""

    operands: tuple[str, ...]
    ints: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    program: bool = False  # whether a pointwise/epilogue program may be attached

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the operands."""
        return tuple(o.rstrip("?") for o in self.operands)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Operands that no launch may lack."""
        return tuple(o for o in self.operands if not o.endswith("?"))

    @cached_property
    def known(self) -> frozenset[str]:
        """Names of operands and parameters."""
        return frozenset((*self.names, *self.ints, *self.floats))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_EPI_OPERANDS = ("o0?", "o1?", "o2?", "o3?")
_EPI_INTS = _names("act res_mode o0_kind o0_ld o1_kind o1_ld o2_kind o2_ld o3_kind o3_ld")
_CONV_INTS = _names(
    "N IC IH IW OC OH OW KH KW SH SW DH DW PT PL G x_cs x_rs x_ns y_cs y_rs y_ns r_cs r_rs r_ns"
)  # fmt: skip

#: How many copies one launch makes.
COPIES = 16
#: Dims of what `pad` pads, those that are not padded joined.
PADDED = 5
#: Steps of a recurrent layer whose projected inputs are kept.
PROJECTED_STEPS = 12
#: Most passes of a Fourier transform.
PASSES = 8
#: Columns of a row that one pair of `gemm_norm`'s statistics is of.
PANEL = 64
#: Columns that packed weights of a few bits have together.
NBITS_TILE = 16

# --- 8-bit products
_INT8 = Family(
    (*_names("x w x_scale? x_zero? w_scale? w_zero? bias? res? r_scale? r_zero? m_scale? m_zero?"),
     "y", "y_scale?", "y_zero?", *_EPI_OPERANDS),
    (*_EPI_INTS, *_names("x_dtype w_dtype w_scales w_zeros r_dtype m_dtype y_dtype")),
    ("p0", "p1"),
    True,
)  # fmt: skip
_ATTENTION_INTS = _names(
    "B H KVH S T D DV q_b q_s q_h k_b k_s k_h v_b v_s v_h y_b y_s y_h m_b m_h m_q m_k "
    "mask_kind causal past nan_to_zero lens_dtype lens_add clamp window smooth"
)
_INT8_CONV = Family(_INT8.operands, (*_CONV_INTS, *_INT8.ints), _INT8.floats, True)

_FIVE = tuple(f"{letter}{k}" for letter in "nsm" for k in range(5))

_CONV = Family(
    ("x", "w", "bias", "res?", "y", *_EPI_OPERANDS), (*_CONV_INTS, *_EPI_INTS), ("p0", "p1"), True
)

FAMILIES: dict[str, Family] = {
    # --- convolution, channels-last f32 -----------------------------------------------------------
    # Direct (implicit GEMM), any kernel/stride/dilation; G > 1 = grouped (not depthwise). x has a
    # zero border >= padding. The full-tensor operands o* of a conv program are channels-last with
    # the residual's pitches (r_cs, r_rs, r_ns); o*_ld is unused. x_c: from a channel to the next; 0
    # means 1, more only where `Target.planar` allows it.
    "conv2d": Family(
        ("x", "w", "bias", "res?", "y", *_EPI_OPERANDS),
        (*_CONV_INTS, *_EPI_INTS, "x_c"),
        ("p0", "p1"),
        True,
    ),
    # conv2d of few channels, then max pooling in windows of PKH x PKW (2 or 3), stride 2: y is PH x
    # PW; CUDA only. OH x OW is what the convolution would write; PPT and PPL are the top and left
    # pads of the pooling. Full-tensor operands are not taken.
    "conv_pool": Family(
        ("x", "w", "bias", "y", *_EPI_OPERANDS),
        (*_CONV_INTS, *_EPI_INTS, "x_c", "PKH", "PKW", "PPT", "PPL", "PH", "PW"),
        ("p0", "p1"),
        True,
    ),
    # Winograd F(2x2,3x3): KH=KW=3, stride 1, dilation 1, G=1. May read (not use) up to one row and
    # column past the border.
    "conv2d_wino": _CONV,
    # Depthwise: G = IC = OC, where there is deconv2d_dw also OC a multiple of G = IC.
    "conv2d_dw": _CONV,
    # deconv2d where each group has one input channel and windows have no dilation; CUDA only.
    # Weights are packed by pack_conv2d_dw.
    "deconv2d_dw": _CONV,
    # Transposed convolution; PT/PL are the *forward* pads of ONNX ConvTranspose (top, left crop). x
    # needs no border.
    "deconv2d": _CONV,
    # Weight packing (ONNX layouts in: OIHW; ConvTranspose IOHW). scale? [OC] multiplies each output
    # channel (folded BatchNormalization).
    "pack_conv2d": Family(("w", "scale?", "packed"), _names("OC IC KH KW G x_cs")),
    "pack_conv2d_wino": Family(("w", "scale?", "packed"), ("OC", "IC")),
    "pack_conv2d_dw": Family(("w", "scale?", "packed"), ("OC", "KH", "KW")),
    "pack_deconv2d": Family(("w", "scale?", "packed"), _names("OC IC KH KW G")),
    # y[0..round_up(OC,16)) = b*scale + shift, zero-filled tail; absent b = 0, scale = 1, shift = 0.
    "pack_bias": Family(("b?", "scale?", "shift?", "packed"), ("OC",)),
    # scale = gamma / sqrt(var + eps); shift = beta - mean * scale (float64 inside).
    "fold_bn": Family(_names("gamma beta mean var scale shift"), ("C",), ("eps",)),
    # --- pooling and image movement, channels-last ------------------------------------------------
    # mode 0 = max, 1 = average excluding padding, 2 = average including padding. Explicit bounds
    # checks: the border is not read. PB/PR are the bottom/right pads (for the divisor of mode 2;
    # ceil_mode windows that run past them are not counted). Maxima of U8 and I8: CUDA only.
    "pool2d": Family(
        ("x", "y"),
        _names("mode N C IH IW OH OW KH KW SH SW DH DW PT PL PB PR x_cs x_rs x_ns y_cs y_rs y_ns"),
    ),
    # mode 0 = max, 1 = mean over H x W; y is [N, C] with pitch y_ns.
    "global_pool": Family(("x", "y"), _names("mode N C H W x_cs x_rs x_ns y_ns")),
    # mode 0 nearest, 1 linear; coord 0 half_pixel, 1 asymmetric, 2 align_corners, 3
    # pytorch_half_pixel; rounding (nearest) 0 round_prefer_floor, 1 floor, 2 ceil, 3
    # round_prefer_ceil, 4 ceil where the scale is below 1 and else floor. floats: scale_h, scale_w
    # = output/input as ONNX uses them in the coordinate transform; 0 = the sizes' own ratio. An
    # image whose size stays is copied.
    "resize2d": Family(
        ("x", "y"),
        _names("mode coord rounding N C IH IW OH OW x_cs x_rs x_ns y_cs y_rs y_ns"),
        ("scale_h", "scale_w"),
    ),
    # The same with Keys' cubic of coefficient a; what lies outside the image is its edge.
    "resize_cubic": Family(
        ("x", "y"),
        _names("coord N C IH IW OH OW x_cs x_rs x_ns y_cs y_rs y_ns"),
        ("scale_h", "scale_w", "a"),
    ),
    # y = x / (bias + alpha / size * sum of squares of the `size` channels around it) ** beta,
    # channels-last.
    "lrn": Family(
        ("x", "y"), _names("size N C H W x_cs x_rs x_ns y_cs y_rs y_ns"), ("alpha", "beta", "bias")
    ),
    # x sampled at (x, y) in -1..1 of grid, which is plain [N, OH, OW, 2] of type grid_dtype. mode 0
    # nearest, 1 linear, 2 cubic; pad 0 zeros, 1 border, 2 reflection; corners: align_corners.
    "grid_sample": Family(
        ("x", "grid", "y"),
        _names("mode pad corners grid_dtype N C IH IW OH OW x_cs x_rs x_ns y_cs y_rs y_ns"),
    ),
    # Of R regions rois [R, 4] (x1, y1, x2, y2, of x's type; times scale they are pixels) of the
    # images batch [R] (I64) says, OH x OW bins: mode 0 the mean of its samples, 1 the largest of
    # their weighted pixels. half: pixels lie half a pixel off; else no side is shorter than one.
    # ratio: samples of a bin along each axis, 0 = as many as it has pixels. Batches out of range,
    # and bins of more than 65,536 samples an axis, are errors as of gather.
    "roi_align": Family(
        _names("x rois batch y"),
        _names("mode half ratio N C IH IW R OH OW x_cs x_rs x_ns y_cs y_rs y_ns"),
        ("scale",),
    ),
    # Of a deformable convolution with DG groups of offsets [N, DG, KH, KW, 2, OH, OW] and masks
    # [N, DG, KH, KW, OH, OW], both plain, what each window sees: y is [N, OH, OW, G, KH, KW, C/G].
    "deform_columns": Family(
        _names("x offset mask? y"),
        _names("N C IH IW OH OW KH KW SH SW DH DW PT PL G DG x_cs x_rs x_ns"),
    ),
    # Layout change: x is plain contiguous NCHW, y channels-last interior; and back. elem is the
    # element size (4).
    "nchw_to_nhwc": Family(("x", "y"), _names("N C H W y_cs y_rs y_ns")),
    "nhwc_to_nchw": Family(("x", "y"), _names("N C H W x_cs x_rs x_ns")),
    # Zeroes everything of an NHWC buffer that lies outside the H x W pixels of each image, within
    # [-PT, H+PB) x [-PL, W+PR).
    "zero_border": Family(("y",), _names("N H W PT PL PB PR y_cs y_rs y_ns")),
    # Channels-last channel-slice copy (concat/split/slice of channels): y[..., y_c0 + c] = x[...,
    # x_c0 + c]. Pointers are pre-offset: no c0.
    "copy_nhwc": Family(("x", "y"), _names("N C H W x_cs x_rs x_ns y_cs y_rs y_ns")),
    # Pointwise program over channels-last operands; input k is full (kFull, own pitches), per
    # channel (kChannel: [C], image pitch k_ns for [N,C], 0 when shared), or scalar. dtype f32 only.
    "pointwise_nhwc": Family(
        _names("x0 x1? x2? x3? y"),
        _names(
            "N C H W x0_kind x0_cs x0_rs x0_ns x1_kind x1_cs x1_rs x1_ns x2_kind x2_cs x2_rs x2_ns "
            "x3_kind x3_cs x3_rs x3_ns y_cs y_rs y_ns"
        ),
        (),
        True,
    ),
    # --- GEMM, row-major f32 ---------------------------------------------------------------------
    # y[m, n] = epilogue(sum_k x[m, k] * W[k, n] + bias[n]); W packed by pack_gemm. ldx/ldr/ldy are
    # row pitches.
    "gemm": Family(
        ("x", "w", "bias?", "res?", "y", *_EPI_OPERANDS),
        ("M", "N", "K", "ldx", "ldr", "ldy", *_EPI_INTS),
        ("p0", "p1"),
        True,
    ),
    # The same between norms over rows, CUDA only. *_stats hold, for every 64 columns of a row,
    # their mean and the sum of their squared distances from it. x_stats: x is to be normalised
    # first (w includes gamma / unscale, x_sums[n] = unscale * sum_k w[k, n], bias includes beta);
    # r_stats: so is the residual, with f32 r_gamma and r_beta; y_stats: those of y's rows are
    # wanted. *_rms: no mean is taken off. K and N are multiples of 64 where there are statistics.
    "gemm_norm": Family(
        (
            "x",
            "w",
            "bias?",
            "res?",
            "x_stats?",
            "x_sums?",
            "r_stats?",
            "r_gamma?",
            "r_beta?",
            "y",
            "y_stats?",
            *_EPI_OPERANDS,
        ),
        ("M", "N", "K", "ldx", "ldr", "ldy", *_EPI_INTS, "x_rms", "r_rms"),
        _names("p0 p1 x_eps r_eps unscale"),
        True,
    ),
    # Of a weight as pack_gemm takes it, and packed: sums[n] = unscale * sum_k packed[n, k], bias[n]
    # = b[n] + sum_k beta[k] w[k, n].
    "fold_norm": Family(
        _names("w packed beta? b? sums bias"), ("K", "N", "trans", "ldw"), ("alpha", "unscale")
    ),
    # trans = 1 when the source is [N, K] (Gemm transB); ldw its row pitch. scale? [N] per output
    # column, gamma? [K] (+ gamma_add) per input; alpha scales all. n0 and N_total let several
    # weights share one packed matrix (merged QKV): this source fills columns n0..n0+N.
    "pack_gemm": Family(
        ("w", "scale?", "packed", "gamma?"),
        _names("K N trans ldw n0 N_total gamma_add"),
        ("alpha",),
    ),
    # --- GEMMs and convolutions of bfloat16, sums in f32; CPU only --------------------------------
    # gemm and conv2d (G > 1: grouped, not depthwise) of x and w rounded half to even. x, the
    # residual and y are F32 or BF16 (*_dtype), other operands F32. Denormals may be taken for
    # zeros.
    "gemm_bf16": Family(
        ("x", "w", "bias?", "res?", "y", *_EPI_OPERANDS),
        (*_names("M N K ldx ldr ldy"), *_EPI_INTS, *_names("x_dtype r_dtype y_dtype")),
        ("p0", "p1"),
        True,
    ),
    "conv2d_bf16": Family(
        _CONV.operands, (*_CONV.ints, *_names("x_dtype r_dtype y_dtype")), _CONV.floats, True
    ),
    # As pack_gemm and pack_conv2d, of F32 or BF16 (w_dtype); packed is bfloat16.
    "pack_gemm_bf16": Family(
        ("w", "packed"), _names("K N trans ldw n0 N_total w_dtype"), ("alpha",)
    ),
    "pack_conv2d_bf16": Family(("w", "scale?", "packed"), _names("OC IC KH KW G w_dtype")),
    # --- GEMMs and convolutions of 8-bit integers (U8 or I8) --------------------------------------
    # acc = sum over k of (x - x_zero) (w - w_zero), in wrapping I32; y of type I32 (y_dtype) is acc
    # itself. Else v = acc * (x_scale * w_scale[n]) + bias[n]; v = m(v) where there is an m_scale;
    # residual, act or program as of `gemm`, in f32; and y is v (F32), or
    # q(v) = saturate(round_half_even(v / y_scale) + y_zero) of type U8 or I8, by a true division.
    # m(v) is q(v) of m_scale, m_zero and m_dtype, read back: (q - m_zero) * m_scale. Scales are
    # f32, an absent one is 1; zero points have the type of what they belong to, an absent one is 0.
    # w_scales and w_zeros: how many of them there are, 1 or one for each column. A residual of 8
    # bits (r_dtype) is (res - r_zero) * r_scale. Exactly what x has is read, and N floats of bias.
    "gemm_int8": Family(
        _INT8.operands, (*_names("M N K ldx ldr ldy"), *_INT8.ints), _INT8.floats, True
    ),
    # Channels-last images of any pitches, without a border: taps outside of x are x_zero.
    "conv2d_int8": _INT8_CONV,
    # conv2d_int8 with results of 8 bits, then max pooling as of conv_pool. CUDA only.
    "conv_pool_int8": Family(
        _INT8.operands,
        (*_CONV_INTS, *_INT8.ints, *_names("PKH PKW PPT PPL PH PW")),
        _INT8.floats,
        True,
    ),
    # Depthwise: G = IC = OC.
    "conv2d_int8_dw": _INT8_CONV,
    # Packed bytes are good for the instruction set that packed them. n0, N_total as of pack_gemm.
    "pack_gemm_int8": Family(("w", "packed"), _names("K N trans ldw n0 N_total w_dtype")),
    "pack_conv2d_int8": Family(("w", "packed"), _names("OC IC KH KW G w_dtype")),
    "pack_conv2d_int8_dw": Family(("w", "packed"), _names("OC KH KW w_dtype")),
    # An image of C channels at any strides, quantised to 8 bits (y_dtype) as by QuantizeLinear: y
    # [N, rows, columns, P] begins `top` rows and `left` columns before it, and has the zero point
    # where x has nothing. CUDA only.
    "quantise_image": Family(
        _names("x scale zero? y"), _names("N C H W x_n x_c x_h x_w P top left rows columns y_dtype")
    ),
    # Means over all pixels of channels-last images of 8 bits, dequantised before, and (where y has
    # 8 bits) quantised after. CUDA only.
    "global_mean_int8": Family(
        _names("x x_scale? x_zero? y_scale? y_zero? y"),
        _names("N C H W x_cs x_rs x_ns y_ns x_dtype y_dtype"),
    ),
    # Of each of so many pieces of x [n] the least of 0 and its elements, and behind all of these
    # the largest: y [2, pieces]. CPU only.
    "ends": Family(("x", "y"), ("n", "pieces")),
    # DynamicQuantizeLinear of x [n] with such ends. CPU only.
    "quantise_dynamic": Family(_names("x ends y scale zero"), ("n", "pieces")),
    # gemm with weights (q - zero) * scale of so many bits (2, 4, 8), where every `block` terms (a
    # multiple of 16) of a column have a scale and, with `zeros` (1: integers, 2: floats), a zero of
    # their own; packed by pack_gemm_nbits. Without `zeros` the float `zero` is that of all.
    "gemm_nbits": Family(
        ("x", "w", "bias?", "res?", "y", *_EPI_OPERANDS),
        ("M", "N", "K", "ldx", "ldr", "ldy", *_EPI_INTS, *_names("bits block zeros scale_dtype")),
        ("p0", "p1", "zero"),
        True,
    ),
    # The same of normalised rows: of x, contiguous, minus its mean (rms: of x) over its deviation,
    # times gamma (+ gamma_add), plus beta, rounded. gated: w has 2 N columns, and y[m, n] =
    # program(v[m, n], v[m, N + n]) of v = x w + bias. CUDA only.
    "gemm_nbits_norm": Family(
        ("x", "w", "bias?", "res?", "gamma?", "beta?", "y", *_EPI_OPERANDS),
        (
            *_names("M N K ldx ldr ldy"),
            *_EPI_INTS,
            *_names("bits block zeros scale_dtype"),
            *_names("rms gamma_add gated"),
        ),
        _names("p0 p1 zero eps"),
        True,
    ),
    # Values of w lie one behind the other from the lowest bits of a byte on: term k of column n is
    # number k * w_k + n * w_n; so do zeros of as many bits (zero_dtype U8), others are F32. Scales
    # (of scale_dtype: F32 on the CPU) and zeros of block b and column n are number b * s_k + n *
    # s_n. is_signed: of values and zeros in two's complement; 2^(bits - 1) is added to what is
    # packed.
    "pack_gemm_nbits": Family(
        _names("w scale zero? packed"),
        _names("K N bits block w_k w_n s_k s_n z_k z_n zero_dtype is_signed scale_dtype"),
    ),
    # The same into columns n0 .. n0 + N of a packed weight of N_total, n0 a multiple of NBITS_TILE;
    # CUDA only.
    "pack_gemm_nbits_part": Family(
        _names("w scale zero? packed"),
        _names(
            "K N bits block w_k w_n s_k s_n z_k z_n zero_dtype is_signed scale_dtype n0 N_total"
        ),
    ),
    # Batched product of two run-time operands: y[b] = epilogue(alpha * op(a[b]) @ op(b[b])). Batch
    # = B0 x B1 with a stride per level (0 = broadcast); op by element strides: a[m*a_m + k*a_k],
    # b[k*b_k + n*b_n]; y[m*ldy + n]. Residual has y's strides unless r_* given.
    "matmul": Family(
        _names("a b bias? res? y"),
        _names("B0 B1 M N K a_0 a_1 a_m a_k b_0 b_1 b_k b_n y_0 y_1 ldy r_0 r_1 ldr act res_mode"),
        ("alpha", "p0", "p1"),
    ),
    # softmax(scale * q k^T + mask) v per head. q[b, s, h, :]: b*q_b + s*q_s + h*q_h, unit last
    # stride; same for k, v, y. Query head h reads key/value head h // (H // KVH). mask? f32
    # additive: b*m_b + h*m_h + s*m_q + t*m_k (0 = broadcast). causal: key t visible iff t <= s +
    # past. kv_len counts the keys (T). mask_kind 0 = none, 1 = f32 additive, 2 = bool/u8 (true =
    # keep), 3 = bool/u8 (true = drop); 2 and 3 write `fill` over what they mask. A row whose every
    # key is masked by -inf gives NaN, or zeros with nan_to_zero 1 or 2; with 1 any row with a NaN
    # score gives zeros. softcap (0 = none): scores s are softcap * tanh(s / softcap) before any
    # mask. lens (of type lens_dtype, I32 or I64): batch b has lens[b] + lens_add keys, 0 to T;
    # causal, its queries lie at the last S of them (past = keys - S; clamp: at least 0). window (0
    # = none): of what is visible causally, the last `window` keys. sink: per query head, a score
    # more of a key without a value; smooth: one of 0, for all heads.
    "attention": Family(
        _names("q k v mask? lens? sink? y"), _ATTENTION_INTS, ("scale", "fill", "softcap")
    ),
    # The same with results quantised as by QuantizeLinear to 8 bits (q_dtype), as of
    # `layernorm_quantised`; y is contiguous. CUDA only.
    "attention_quantised": Family(
        _names("q k v mask? lens? sink? y"),
        (*_ATTENTION_INTS, *_names("q_dtype q_zero")),
        ("scale", "fill", "softcap", "q_scale"),
    ),
    # LSTM (G = 4 gates i, o, f, c), GRU (3: z, r, h) or RNN (1) over T steps of B rows, H units, D
    # directions: direction d runs backwards where d is odd, or reverse is 1, but not both. x: the
    # projection of the input, of step t and row b at t*x_t + b*x_b, there [D, G, H]; r from
    # pack_recurrent; bias [G, H] added to h R, bias_d from a direction to the next; peephole [D, 3,
    # H]. lens: steps of each row (I32; out of 0..T is an error); y is 0 behind them. y: t*y_t +
    # b*y_b + d*y_d; first and last h and c: b*h_b + d*h_d. before: GRU's reset gate is applied to
    # h R, else to h. coupled: the forget gate is 1 - i. Activations f, g, h as of an epilogue; what
    # f and g take is clipped where clip is not 0. state: room for D * 4 * B * (H rounded up to
    # 32) floats.
    "recurrent": Family(
        _names("x r bias? peephole? lens? h? c? y? y_h? y_c? state"),
        _names(
            "T B D H G x_t x_b y_t y_b y_d h_b h_d bias_d before coupled reverse act_f act_g act_h"
        ),
        _names("clip f0 f1 g0 g1 h0 h1"),
    ),
    # The same of the input itself, of step t and row b at t*x_t + b*x_b, there [I]: w is from
    # pack_recurrent, too; bias [D, 2, G, H]. state: room for D * ((4 + PROJECTED_STEPS * G) * B +
    # G) * (H rounded up to 32) floats; CPU only.
    "recurrent_layer": Family(
        _names("x w r bias? peephole? lens? h? c? y? y_h? y_c? state"),
        _names("T B D H I G x_t x_b y_t y_b y_d h_b h_d before coupled reverse act_f act_g act_h"),
        _names("clip f0 f1 g0 g1 h0 h1"),
    ),
    # r [D, G, H, K]; the first gates are those that are computed together (GRU: 2 unless before).
    "pack_recurrent": Family(("r", "packed"), _names("D H K G first")),
    # --- rows: norms, softmax, reductions ---------------------------------------------------------
    # s = x (+ res) (+ xbias[n]); skip? = s; y = (s - mean) / sqrt(var + eps) * gamma + beta. rms =
    # 1: mean not removed, no beta. gamma_add = 1: weight is (1 + gamma). Row pitch N (contiguous).
    "layernorm": Family(
        _names("x res? xbias? gamma? beta? y skip?"), ("rows", "N", "rms", "gamma_add"), ("eps",)
    ),
    # The same, and q = y quantised as by QuantizeLinear to 8 bits (q_dtype) by the float q_scale
    # and the integer q_zero. CUDA only.
    "layernorm_quantised": Family(
        _names("x res? xbias? gamma? beta? y? skip? q"),
        _names("rows N rms gamma_add q_dtype q_zero"),
        ("eps", "q_scale"),
    ),
    # `layernorm` over rows [outer, inner] of a sum of up to four: row (b, s) of xk starts at xk + b
    # * xk_o + (s - xk_lo) * xk_i and counts where xk_lo <= s < xk_hi. With ik the strides are those
    # of positions in it, and the row is number ik[position] of the table xk of xk_n rows, xk_ld
    # apart; negative indices and errors as gather.
    "layernorm_sum": Family(
        (*(f"{o}{k}?" for k in range(4) for o in "xi"), "gamma?", "beta?", "y", "skip?"),
        (
            "outer",
            "inner",
            "N",
            "rms",
            "gamma_add",
            *(
                p
                for k in range(4)
                for p in (*(f"x{k}_{s}" for s in _names("o i ld n lo hi")), f"i{k}_dtype")
            ),
        ),
        ("eps",),
    ),
    # Plain NCHW [B, C, inner]: groups of C/G channels; gamma/beta per channel; act fused.
    "groupnorm": Family(
        ("x", "gamma?", "beta?", "y"), _names("B C G inner act"), ("eps", "p0", "p1")
    ),
    # Same over channels-last.
    "groupnorm_nhwc": Family(
        ("x", "gamma?", "beta?", "y"),
        _names("N C G H W x_cs x_rs x_ns y_cs y_rs y_ns act"),
        ("eps", "p0", "p1"),
    ),
    # Over axis n of [outer, n, inner]; log = 1 for LogSoftmax.
    "softmax": Family(("x", "y"), ("outer", "n", "inner", "log")),
    # kind 0 sum, 1 mean, 2 max, 3 min, 4 prod, 5 l1, 6 l2, 7 sum_square, 8 log_sum, 9 log_sum_exp;
    # over n of [outer, n, inner]; dtype F32, or I64/I32 for kinds 0, 2, 3, 4.
    "reduce": Family(("x", "y"), _names("kind outer n inner dtype")),
    # Index of the first (last = 1: last) max (min = 1: min) over n of [outer, n, inner], as i64. x
    # is F32, I64 or I32.
    "argmax": Family(("x", "y"), _names("outer n inner min last dtype")),
    # The k largest (or smallest) of n of [outer, n, inner], in order, and where they lie (I64);
    # equal ones in the order of the row, NaN above all.
    "topk": Family(("x", "y?", "at?"), _names("outer n inner k largest dtype")),
    # Sums over n of [outer, n, inner] up to each element, without the element itself (exclusive) or
    # from the end (reverse).
    "cumsum": Family(("x", "y"), _names("outer n inner exclusive reverse dtype")),
    # --- results whose size only contents say: `count` (I64) gets it, y has room for the most -----
    # The CPU has them alone.
    # Where x [n0, ..., n5] is not zero, as the last `rank` coordinates: y [rank, n0 * ... * n5]
    # (I64), each row with `count` elements. x is F32, I32, I64, U8 or BOOL.
    "nonzero": Family(("x", "y", "count"), _names("rank n0 n1 n2 n3 n4 n5 dtype")),
    # Of x [outer, n, inner] the slices j whose condition[j] holds, j < length: y [outer, min(n,
    # length), inner].
    "compress": Family(_names("x condition y count"), _names("outer n length inner elem")),
    # The different slices of x [outer, n, inner], in order (sorted) or as they come: y [outer, n,
    # inner], where each is first, how often it is there, and which one each slice is (I64). x is
    # F32 or I64.
    "unique": Family(
        _names("x y first? inverse? counts? count"), _names("outer n inner sorted dtype")
    ),
    # For each batch and class the boxes by their scores, at most `most`, without those that overlap
    # a better one by more than `overlap` (intersection over union); above: of those above `score`.
    # boxes [B, N, 4], corners or (center) center and size; scores [B, C, N]; picked [B, C, most],
    # counts [B, C] (I64).
    "nms": Family(
        _names("boxes scores picked counts"),
        _names("B C N most center above"),
        ("overlap", "score"),
    ),
    # Those as rows of batch, class and box: y [B * C * most, 3].
    "nms_list": Family(_names("picked counts y count"), _names("B C most")),
    # The determinants y [count] of x [count, n, n].
    "determinant": Family(("x", "y"), ("count", "n")),
    # y = x * act2(w2 act1(w1 mean(x) + b1) + b2), channels-last, per image; CUDA only. w1 packed as
    # the [R, C] weight of a gemm to R columns, w2 as that of a gemm from C to R columns (so [R, C],
    # too), b1 and b2 packed. act1 has floats p0, p1, act2 q0, q1.
    "squeeze_excite": Family(
        _names("x w1 b1? w2 b2? y"),
        _names("N C R H W x_cs x_rs x_ns y_cs y_rs y_ns act1 act2"),
        ("p0", "p1", "q0", "q1"),
    ),
    # Fourier transforms of length N of B x M signals: y[k] = scale * sum_j exp(-+2 pi i j k / N)
    # window[j] x[j] for k < K, of which x has the T first; elements *_n apart, pairs (re, im) but
    # for x of kind 1 and y of kind 2. kind 0: complex to complex; 1: real to complex; 2: half a
    # spectrum to real (inverse). `tables` of C floats and radices are those of
    # `plan.fourier_tables`.
    "fft": Family(
        _names("x window? tables y"),
        (
            *_names("kind inverse B M N T K C x_b x_m x_n y_b y_m y_n"),
            *(f"radix{k}" for k in range(PASSES)),
        ),
        ("scale",),
    ),
    # --- movement and pointwise, plain layout -----------------------------------------------------
    # Strided copy of up to 6 dims (outermost first, unused leading dims are 1): y[sum i_d*y_d] =
    # x[sum i_d*x_d]. Any element size 1, 2, 4, 8.
    "copy": Family(
        ("x", "y"), _names("elem n0 n1 n2 n3 n4 n5 x0 x1 x2 x3 x4 x5 y0 y1 y2 y3 y4 y5")
    ),
    # Fill count elements with a constant, given as the low `elem` bytes of value (bit pattern).
    "fill": Family(("y",), ("elem", "count", "value")),
    # y[j] = i[j] for j < count (count <= 8), of type I64, I32 or BOOL: materialises a shape
    # computed from symbolic dims.
    "store_ints": Family(("y",), _names("count dtype v0 v1 v2 v3 v4 v5 v6 v7")),
    # y[o, j, :] = x[o, idx[j], :] for x [outer, n, inner]; negative indices count from the end;
    # index dtype I32 or I64. An index out of range makes Compute fail with an ORT-like message: the
    # kernel writes 1 to the run's error flag.
    "gather": Family(("x", "idx", "y"), _names("elem outer n inner count idx_dtype")),
    # y[j] = start + j * delta for j < count, of type I64, I32 or F32.
    "range": Family(("y",), ("count", "start", "delta", "dtype")),
    # y[o, j, k] = x[o, idx[o, j, k], k] for x [outer, n, inner] and idx, y [outer, count, inner];
    # negative indices and errors as gather.
    "gather_elements": Family(("x", "idx", "y"), _names("elem outer n inner count idx_dtype")),
    # Elements of up to five dims by indices, of dims n_0..n_4, into a tensor of extents
    # m_* and strides s_*. Along one axis (of those five): y[i] = x[i with i[axis] = idx[i]], and
    # y[i with i[axis] = idx[i]] = u[i]; by tuples of k indices into its first k dims, rows of
    # `inner` elements that follow each other: y[idx[j]] = u[j] for j < count, or y[j] = x[idx[j]],
    # `step` elements further for each `each` tuples. Negative indices and errors as gather.
    "gather_along": Family(("x", "idx", "y"), ("elem", "idx_dtype", "axis", *_FIVE)),
    "scatter_along": Family(("idx", "u", "y"), ("elem", "idx_dtype", "axis", *_FIVE)),
    "scatter_tuples": Family(
        ("idx", "u", "y"), ("elem", "idx_dtype", "k", "count", "inner", *_FIVE)
    ),
    "gather_tuples": Family(
        ("x", "idx", "y"), ("elem", "idx_dtype", "k", "count", "inner", "each", "step", *_FIVE)
    ),
    # y[o, d, i] = values[idx[o, i] == d], for d < depth; negative indices count from the
    # end.
    "one_hot": Family(("idx", "values", "y"), _names("elem idx_dtype outer depth inner")),
    # y[o, j, k] = (x[o, idx[j], k] - zero) * scale in F32, of type y_dtype, for x [outer, n, inner]
    # of integers of `bits` bits (2, 4 or 8), one behind the other from the lowest bits of each byte
    # on; without idx all n = count of them. Element e of x, counted through, has the scale number
    # (e / within / span * blocks + e / within % span / block) * within + e % within, where blocks =
    # span / block rounded up, and the zero of that number: those of zero_row scales begin a byte.
    # Without zeros it is `middle`, counted from the least integer. Of an index out of range: zeros.
    "dequantise": Family(
        _names("x idx? scale zero? y"),
        _names(
            "outer n inner count idx_dtype bits is_signed middle span within block zero_row"
            " scale_dtype y_dtype"
        ),
    ),
    # A cache y [B, H, T, D] with new rows x[b, s, h] (strides as attention's): s < S of batch b are
    # rows max(0, at[b] + at_add) + s. What is before them comes from past [B, H, P, D]; behind them
    # lies what past has there (keep), or 0. circular: row T is row 0. Where past and y are the same
    # memory, nothing else is written. at: I32 or I64 (at_dtype); a negative one, and rows behind T
    # or P, are errors as of gather.
    "cache_write": Family(
        _names("past? x at y"), _names("elem B H S P T D x_b x_s x_h at_dtype at_add keep circular")
    ),
    # Of matrices, what lies on the diagonal and above (upper) or below it; 0 elsewhere.
    "triangle": Family(("x", "y"), _names("elem outer rows columns diagonal upper")),
    # Pointwise program with broadcasting over up to 6 collapsed dims; input k has strides k_0..k_5
    # (0 = broadcast) and element type k_dtype; y is contiguous of type y_dtype. f32 programs read
    # F32/F16/BF16/F64/int/bool (converted), i64 programs read I64/I32/int/bool exactly. To bool: !=
    # 0. To int from float: truncation.
    "pointwise": Family(
        _names("x0 x1? x2? x3? x4? x5? y"),
        (
            "n0",
            "n1",
            "n2",
            "n3",
            "n4",
            "n5",
            *(f"x{k}_{p}" for k in range(6) for p in _names("0 1 2 3 4 5 dtype")),
            "y_dtype",
        ),
        (),
        True,
    ),
    # Rotary embedding of x[b, s, h, :rot] (strides as attention's q); cos/sin rows [.., rot/2] at
    # b*c_b + s*c_s; interleaved = 1 pairs (2i, 2i+1), else (i, i+rot/2). full = 1: cos/sin rows
    # hold rot values, first half for element i, second for i + rot/2. Elements rot..D are copied.
    "rope": Family(
        ("x", "cos", "sin", "y"),
        _names("B S H D rot x_b x_s x_h y_b y_s y_h c_b c_s interleaved full"),
    ),
    # A step of attention over caches, CUDA only: y [B, S, H, D] is `rope` of q, keys and values are
    # `cache_write` of `rope` of k [B, S, KVH, D] and of v, into past_k and past_v; strides of q, k
    # and v as attention's. places: tables have so many rows, and a token's is that of its row in
    # the caches (0: at b*c_b + s*c_s); one behind them is an error.
    "rope_cache": Family(
        _names("q k v cos sin past_k? past_v? at y keys values"),
        _names(
            "B S H KVH P T D rot q_b q_s q_h k_b k_s k_h v_b v_s v_h c_b c_s places interleaved"
            " at_dtype at_add"
        ),
    ),
    # Several copies into one tensor, CUDA only: of x<k>, [n0, n1, n2] elements of strides x0, x1,
    # x2 (of the family's ints, p<k>_ before them) go to element `at` of y and those after it, y0,
    # y1 and 1 apart. What they write does not overlap.
    "copies": Family(
        (*(f"x{k}?" for k in range(COPIES)), "y"),
        (
            "elem",
            *(
                f"p{k}_{name}"
                for k in range(COPIES)
                for name in _names("n0 n1 n2 x0 x1 x2 y0 y1 at")
            ),
        ),
    ),
    # Padding: n elements along each dim of y (outermost first, unused leading dims are
    # 1), of which p (cropped if negative) lie before the first of x's m. Others hold `value` (bits
    # as of `fill`; mode 0), or what x has when read on backwards from its edge (1), at its edge
    # (2), or from its other end (3).
    "pad": Family(
        ("x", "y"), ("elem", "mode", "value", *(f"{c}{k}" for c in "nmpxy" for k in range(PADDED)))
    ),
}


def _round_up(n: int, m: int) -> int:
    return -(-n // m) * m


def weight_pitch(k: int, size: int) -> int:
    """Elements, of `size` bytes, from row to row of the packed weight [N, K] of a CUDA product:
    rows begin at multiples of 16 bytes and, longer ones of two-byte elements, of 128: L2 takes up
    to twice as long for rows that cross its lines.
    """
    return _round_up(k, 64 if size == 2 and k > 64 else 8)


def packed_elements(family: str, **p: int) -> int:
    """Elements the packing family writes for the given parameters, slack included: output channels
    rounded up to 16 or 32 (CPU), or the reduced channels rounded up to 8 or 64 (CUDA), whichever is
    more. The buffer is zeroed before.
    """
    if family in ("pack_conv2d", "pack_deconv2d"):
        g = p["G"]
        return (
            max(
                g * _round_up(p["OC"] // g, 16) * (p["IC"] // g),
                p["OC"] * _round_up(p["IC"] // g, 8),
            )
            * p["KH"]
            * p["KW"]
            + 64
        )
    if family == "pack_conv2d_wino":
        return 16 * p["IC"] * _round_up(p["OC"], 16) + 64
    if family == "pack_conv2d_dw":
        return p["KH"] * p["KW"] * _round_up(p["OC"], 16) + 64
    if family == "pack_bias":
        return _round_up(p["OC"], 32)
    if family == "pack_gemm":
        return (
            max(p["K"] * _round_up(p["N_total"], 32), weight_pitch(p["K"], 2) * p["N_total"]) + 64
        )
    if family == "pack_gemm_nbits":
        blocks = -(-p["K"] // p["block"])
        bits = max(blocks * p["block"], _round_up(p["K"], 256 // p["bits"])) * p["bits"]
        words = blocks * (1 + (p["zero_dtype"] != 0)) + bits // 32
        return _round_up(p["N"], 64) * words + 64
    if family == "pack_recurrent":
        return p["D"] * p["G"] * _round_up(p["H"], 32) * p["K"]
    if family == "pack_gemm_bf16":
        return _round_up(p["N_total"], 32) * _round_up(p["K"], 32) + 64
    if family == "pack_conv2d_bf16":
        depth = p["IC"] // p["G"] * p["KH"] * p["KW"]
        return p["G"] * _round_up(p["OC"] // p["G"], 32) * _round_up(depth, 32) + 64
    if family == "pack_gemm_int8":
        return packed_bytes(p["N_total"], p["K"])
    if family == "pack_conv2d_int8":
        return p["G"] * packed_bytes(p["OC"] // p["G"], p["IC"] // p["G"] * p["KH"] * p["KW"])
    if family == "pack_conv2d_int8_dw":
        return _round_up(p["OC"], 16) * (_round_up(p["KH"], 4) * p["KW"] + 4) + 64
    raise KeyError(family)


def byte_pitch(k: int) -> int:
    """Bytes from row to row of the packed 8-bit weight [N, K] of a CUDA product, as
    `weight_pitch`.
    """
    return _round_up(k, 128 if k > 128 else 16)


def tap_pitch(channels: int) -> int:
    """Bytes of a tap of so many channels of packed 8-bit filters (CUDA)."""
    return _round_up(channels, 16)


def packed_rows(family: str, **p: int) -> int:
    """Bytes that a packing family of 8-bit weights writes on CUDA: a row for each column of the
    product, and the sums of all rows behind them; of depthwise ones a row for each tap.
    """
    if family == "pack_gemm_int8":
        return p["N_total"] * (byte_pitch(p["K"]) + 4) + 64
    if family == "pack_conv2d_int8":
        return p["OC"] * (p["KH"] * p["KW"] * tap_pitch(p["IC"] // p["G"]) + 4) + 64
    if family == "pack_conv2d_int8_dw":
        return p["KH"] * p["KW"] * tap_pitch(p["OC"]) + 64
    raise KeyError(family)


def packed_bytes(columns: int, depth: int) -> int:
    """Of a packed 8-bit weight of the CPU: panels of 32 columns, depth rounded up to 4, and the
    sums.
    """
    return _round_up(columns, 32) * (_round_up(depth, 4) + 4) + 64


def merged_groups(channels: int, columns: int, groups: int) -> int:
    """How many neighbouring groups, each of so many input and output channels, a CUDA kernel merges
    into one GEMM: those that leave the fewest tiles of 64 x 64 for each group, of channels that
    begin at multiples of 8: tensor maps copy from multiples of 16 bytes alone.
    """
    counts = [
        q
        for q in range(1, min(groups, 64) + 1)
        if q == groups or not (q * channels % 8 or q * columns % 8)
    ]
    return min(
        counts,
        key=lambda q: (_round_up(q * channels, 64) * _round_up(q * columns, 64) / q, q),
        default=1,
    )


def widened_elements(**p: int) -> int:
    """Elements that the CUDA backend writes behind packed filters, for merged groups."""
    g = p["G"]
    q = merged_groups(p["IC"] // g, p["OC"] // g, g)
    return p["OC"] * p["KH"] * p["KW"] * _round_up(q * (p["IC"] // g), 8) if q > 1 else 0


def channel_pitch(channels: int) -> int:
    """Elements per pixel of a channels-last buffer: rows at multiples of 4 KiB lose 15-20 points of
    peak, so pitches avoid 2 KiB multiples.
    """
    if channels <= 4:
        return channels
    pitch = _round_up(channels, 16)
    return pitch + 16 if pitch * 4 % 2048 == 0 else pitch

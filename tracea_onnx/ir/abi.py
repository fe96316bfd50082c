"""Numbers shared by the partition compiler and the native kernels: program opcodes, activations,
element types.

`kernels/cpu.py` writes the C++ twin of these tables when the wheel is built; the order here is the
ABI."""

from __future__ import annotations

from enum import IntEnum

#: Activations a fused epilogue has built in, with the launch floats (p0, p1) each reads. Order =
#: C++ `enum Act`.
ACTIVATIONS = (
    "none", "relu", "leaky_relu", "clip", "sigmoid", "silu", "hard_sigmoid", "hard_swish",
    "tanh", "elu", "gelu_erf", "gelu_tanh", "quick_gelu", "mish", "softplus", "exp",
)  # fmt: skip

#: Opcodes of a pointwise program (r[dst] = op(r[a], r[b], r[c])); `const` loads `imm`. Comparisons
#: and logic give 1 or 0. For i64 programs only the opcodes in `I64_OPCODES` exist and `imm` must be
#: an integer below 2**24.
OPCODES = (
    "const", "copy", "add", "sub", "mul", "div", "fma", "min", "max", "neg", "abs", "sqrt", "rsqrt", "reciprocal",
    "exp", "log", "erf", "tanh", "sigmoid", "floor", "ceil", "round", "sign", "pow", "mod", "fmod",
    "sin", "cos", "eq", "lt", "le", "and", "or", "not", "xor", "where", "isnan", "isinf",
    "relu", "leaky_relu", "clip", "silu", "hard_sigmoid", "hard_swish", "elu", "gelu_erf", "gelu_tanh",
    "quick_gelu", "mish", "softplus", "square", "prelu", "atan", "tan", "asin", "acos", "sinh", "cosh", "selu", "celu",
    "softsign", "trunc",
)  # fmt: skip
# Semantics that are not obvious: fma = a*b+c; where = a ? b : c; clip = min(max(a, b), c);
# leaky_relu/elu/celu read alpha from r[b]; hard_sigmoid = clip(r[b]*a + r[c], 0, 1); quick_gelu =
# a*sigmoid(r[b]*a); prelu = a>=0 ? a : r[b]*a; selu: alpha r[b], gamma r[c]; div of i64 truncates
# toward zero (ONNX integer Div); mod takes the divisor's sign (Python %), fmod the dividend's;
# round is half to even.

#: Registers an opcode reads where it is not two.
OPCODE_ARITY = {
    **dict.fromkeys(("const",), 0),
    **dict.fromkeys(
        ("copy", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "tanh", "sigmoid", "floor", "ceil", "round", "sign", "sin", "cos", "not",
         "isnan", "isinf", "relu", "silu", "hard_swish", "gelu_erf", "gelu_tanh", "mish", "softplus", "square", "atan", "tan", "asin", "acos", "sinh", "cosh",
         "softsign", "trunc"), 1),
    **dict.fromkeys(("fma", "where", "clip", "hard_sigmoid", "selu"), 3),
}  # fmt: skip
#: Opcodes of i64 programs.
I64_OPCODES = frozenset(
    {
        "const",
        "copy",
        "add",
        "sub",
        "mul",
        "div",
        "min",
        "max",
        "neg",
        "abs",
        "sign",
        "mod",
        "fmod",
        "eq",
        "lt",
        "le",
        "and",
        "or",
        "not",
        "xor",
        "where",
        "square",
    }
)


class DType(IntEnum):
    """Element types under ONNX's TensorProto numbers."""

    F32 = 1
    U8 = 2
    I8 = 3
    U16 = 4
    I16 = 5
    I32 = 6
    I64 = 7
    BOOL = 9
    F16 = 10
    F64 = 11
    U32 = 12
    U64 = 13
    BF16 = 16

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


#: Floating-point types of expressions, and those of them that backends may have kernels for.
FLOATS = frozenset({DType.F32, DType.F16, DType.BF16, DType.F64})
KERNEL_FLOATS = FLOATS - {DType.F64}
_SIZES = {
    DType.F32: 4, DType.U8: 1, DType.I8: 1, DType.U16: 2, DType.I16: 2, DType.I32: 4, DType.I64: 8,
    DType.BOOL: 1, DType.F16: 2, DType.F64: 8, DType.U32: 4, DType.U64: 8, DType.BF16: 2,
}  # fmt: skip

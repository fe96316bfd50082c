"""A whole backend in one file: a reference interpreter that runs Plans in numpy, in float64.

Its families are those that the zoo needs and Python can state in a few lines; lowering leaves what
needs others to ONNX Runtime. Images are channels-last without a border, packed weights lie as ONNX
has them. `Interpreter` is also the shortest description of a Plan that runs (docs/plan-format.md).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_onnx.codegen.backend import Backend, Probe, Properties
from tracea_onnx.codegen.target import Target
from tracea_onnx.ir.abi import ACTIVATIONS, OPCODE, OPCODES, DType
from tracea_onnx.ir.activations import evaluate
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.plan import builder
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.runtime.device_caps import Caps, DeviceCaps

Array = npt.NDArray[Any]
NUMPY = {
    DType.F32: np.float32, DType.F64: np.float64, DType.F16: np.float16, DType.BOOL: np.bool_,
    DType.U8: np.uint8, DType.I8: np.int8,
    DType.I32: np.int32, DType.I64: np.int64,
}  # fmt: skip


class Reference(Backend):
    name = "reference"
    host = True

    @property
    def families(self) -> frozenset[str]:
        return frozenset(_TABLE)

    def probe(self) -> Probe:
        return Probe(("numpy",))

    def caps(self, properties: Properties | None) -> DeviceCaps | None:
        return None

    def target(self, caps: Caps | None) -> Target:
        return Target(
            Rates(1.0, 1.0, 10.0, "a guess"),
            self.families,
            frozenset({DType.F32}),
            border=False,
            pitch_multiple=1,
            launch_bound=False,
        )

    def attach(self, library: ctypes.CDLL) -> None:
        library.tracea_add_runtime(self.name.encode(), ctypes.byref(_CALLS))


BACKEND = Reference()


# --- Plans ---------------------------------------------------------------------------------------


class Interpreter:
    """One Plan. blobs, constants: contents of the buffers that have an index or a name.

    launches: of all runs, by family.
    """

    launches: ClassVar[Counter[str]] = Counter()

    def __init__(
        self, plan: Mapping[str, Any], blobs: Mapping[int, bytes], constants: Mapping[str, bytes]
    ) -> None:
        self.plan = plan
        self._fixed = {
            k: _bytes(b["bytes"])
            if b["kind"] == "const"
            else _bytes(blobs[b["index"]])
            if b["kind"] == "blob"
            else _bytes(constants[b["name"]])
            for k, b in enumerate(plan["buffers"])
            if b["kind"] in ("const", "blob", "initializer")
        }
        # what init launches use depends on no size of an input
        fixed = [e[1] if e[0] == "const" else 0 for e in plan["exprs"]]
        self._launches("init", self._fixed, fixed)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Raises ValueError where sizes are not what the Plan was made for."""
        plan = self.plan
        value = builder.evaluate(plan, [x.shape for x in inputs])
        for k, axis, e in plan["checks"]:
            if inputs[k].shape[axis] != value[e]:
                raise ValueError(f"axis {axis} of '{plan['inputs'][k]['name']}'")
        for how, a, b, what in plan["requires"]:
            if not (value[a] == value[b] if how == "eq" else value[a] >= value[b]):
                raise ValueError(f"{what}: {value[a]} and {value[b]}")
        shapes = [tuple(value[d] for d in o["dims"]) for o in plan["outputs"]]
        kinds = [NUMPY[o["dtype"]] for o in plan["outputs"]]
        memory = dict(self._fixed)
        for k, b in enumerate(plan["buffers"]):
            if b["kind"] == "arena":
                memory[k] = _bytes(value[b["bytes"]])
            elif b["kind"] == "input":
                memory[k] = _bytes(np.ascontiguousarray(inputs[b["index"]]).tobytes())
            elif b["kind"] == "output":
                i = b["index"]
                memory[k] = _bytes(math.prod(shapes[i]) * np.dtype(kinds[i]).itemsize)
        self._launches("run", memory, value)
        made = {
            b["index"]: memory[k] for k, b in enumerate(plan["buffers"]) if b["kind"] == "output"
        }
        return [
            np.ndarray(shape, kind, made[k].data)
            for k, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        ]

    def _launches(self, part: str, memory: Mapping[int, Array], value: Sequence[int]) -> None:
        for record in self.plan[part]:
            spec = FAMILIES[record["k"]]
            operands = {
                name.rstrip("?"): (memory[place[0]], value[place[1]])
                for name, place in zip(spec.operands, record["b"], strict=True)
                if place is not None
            }
            ints = {n: value[e] for n, e in zip(spec.ints, record["i"], strict=True)}
            floats = dict(zip(spec.floats, record["f"], strict=True))
            self.launches[record["k"]] += 1
            with np.errstate(all="ignore"):
                _TABLE[record["k"]](Launch(operands, ints, floats, record["p"]))


def _bytes(content: int | bytes) -> Array:
    """A buffer, with the slack that every buffer has."""
    if isinstance(content, int):
        return np.zeros(content + 256, np.uint8)
    return np.frombuffer(content + bytes(256), np.uint8).copy()


@dataclass(frozen=True)
class Launch:
    """operands: buffer and byte offset of those that are present."""

    operands: Mapping[str, tuple[Array, int]]
    i: Mapping[str, int]
    f: Mapping[str, float]
    program: Mapping[str, Any] | None

    def at(
        self, name: str, shape: Sequence[int], strides: Sequence[int], kind: int = DType.F32
    ) -> Array:
        """The operand as a tensor; strides in elements. numpy refuses what leaves the buffer."""
        memory, offset = self.operands[name]
        dtype = np.dtype(NUMPY[DType(kind)])
        steps = [s * dtype.itemsize for s in strides]
        return np.ndarray(tuple(shape), dtype, memory.data, offset, steps)

    def flat(self, name: str, *shape: int, kind: int = DType.F32) -> Array:
        """Contiguous."""
        return self.at(name, shape, [math.prod(shape[k + 1 :]) for k in range(len(shape))], kind)

    def maybe(self, name: str, *shape: int, default: float = 0.0) -> Array:
        return self.flat(name, *shape) if name in self.operands else np.array(default)

    def image(self, name: str, n: int, c: int, h: int, w: int, of: str = "") -> Array:
        """[N, H, W, C]; its pitches are called after `of`."""
        p = [self.i[f"{of or name}_{s}"] for s in ("ns", "rs", "cs")]
        return self.at(name, (n, h, w, c), [*p, self.i.get(f"{name}_c", 0) or 1])

    def raw(self, name: str, elem: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
        """Elements whose type does not matter."""
        kind = {1: DType.U8, 2: DType.F16, 4: DType.I32, 8: DType.I64}[elem]
        return self.at(name, shape, strides, kind)


# --- the native side -----------------------------------------------------------------------------


class _Tensor(ctypes.Structure):  # `HostTensor` of ep/testing/host_tensor.h
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


_POINTERS, _SIZES = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
_Output = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_size_t,
)
_Open = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_char_p,
    _POINTERS,
    _SIZES,
    _POINTERS,
    _SIZES,
    ctypes.c_void_p,
    ctypes.c_size_t,
)
_Run = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(_Tensor),
    _Output,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
)
_Close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Calls(ctypes.Structure):  # `HostedCalls` of ep/testing/hosted_runtime.cc
    _fields_ = [("open", _Open), ("run", _Run), ("close", _Close)]


#: Plans of the sessions that live, by handle.
opened: dict[int, Interpreter] = {}
_handles = itertools.count(1)


def _open(
    text: bytes, blobs: Any, blob_bytes: Any, data: Any, sizes: Any, message: int, room: int
) -> int:
    try:
        plan = json.loads(text)
        at = [(k, b) for k, b in enumerate(plan["buffers"])]
        contents = {
            b["index"]: _copied(blobs, blob_bytes, b["index"]) for _, b in at if b["kind"] == "blob"
        }
        constants = {
            b["name"]: _copied(data, sizes, k) for k, b in at if b["kind"] == "initializer"
        }
        handle = next(_handles)
        opened[handle] = Interpreter(plan, contents, constants)
        return handle
    except Exception as e:
        _report(e, message, room)
        return 0


def _copied(data: Any, sizes: Any, k: int) -> bytes:
    return ctypes.string_at(data[k], sizes[k]) if sizes[k] else b""


def _run(handle: int, inputs: Any, output: Any, context: int, message: int, room: int) -> int:
    try:
        plan = opened[handle]
        given = []
        for k in range(len(plan.plan["inputs"])):
            t = inputs[k]
            shape = tuple(t.dims[axis] for axis in range(t.rank))
            dtype = np.dtype(NUMPY[DType(t.type)])
            size = math.prod(shape) * dtype.itemsize
            content = ctypes.string_at(t.data, size) if size else b""
            given.append(np.frombuffer(content, dtype).reshape(shape))
        for k, made in enumerate(plan.run(given)):
            dims = (ctypes.c_int64 * max(made.ndim, 1))(*made.shape)
            ctypes.memmove(output(context, k, dims, made.ndim), made.tobytes(), made.nbytes)
        return 0
    except Exception as e:
        _report(e, message, room)
        return 1


def _report(e: Exception, message: int, room: int) -> None:
    line = f"{type(e).__name__}: {e}".encode()[: room - 1] + b"\0"
    ctypes.memmove(message, line, len(line))


def _close(handle: int) -> None:
    opened.pop(handle, None)


_CALLS = _Calls(_Open(_open), _Run(_run), _Close(_close))


# --- arithmetic ----------------------------------------------------------------------------------

_INTEGER: Mapping[str, Callable[..., Any]] = {
    "copy": lambda a: a, "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum,
    "max": np.maximum, "neg": np.negative, "abs": np.abs,
    "sign": np.sign, "mod": np.mod, "fmod": np.fmod, "eq": np.equal, "lt": np.less,
    "le": np.less_equal, "square": np.square,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "xor": np.logical_xor,
    "div": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), "where": lambda a, b,
    c: np.where(a != 0, b, c),
    "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "shift_left": lambda a, b: np.where(b < 64, a << np.minimum(b, 63), 0),
    "shift_right": lambda a, b: np.where(b < 64, a >> np.minimum(b, 63), 0),
}  # fmt: skip


def program(p: Mapping[str, Any], inputs: Sequence[Array]) -> Array:
    """The value of a program's `out` register."""
    at, code = dict(enumerate(range(p["n_in"]))), list[Instr]()
    for op, target, a, b, c, imm in p["code"]:
        name = OPCODES[op]
        args = tuple(at[r] for r in (a, b, c)[: OPCODE[name].arity])
        code.append(Instr(name, args, imm))
        at[target] = p["n_in"] + len(code) - 1
    if p["type"] == 0:
        return evaluate(Expr(p["n_in"], tuple(code), at[p["out"]]), inputs)
    values: list[Any] = [np.asarray(x, np.int64) for x in inputs]
    for i in code:
        made = np.int64(i.imm) if i.op == "const" else _INTEGER[i.op](*(values[a] for a in i.args))
        values.append(np.asarray(made, np.int64))
    return np.asarray(values[at[p["out"]]])


def activate(act: int, v: Array, *parameters: float) -> Array:
    name = ACTIVATIONS[act]
    if name == "none":
        return v
    constants = tuple(Instr("const", (), p) for p in parameters[: OPCODE[name].arity - 1])
    last = Instr(name, tuple(range(len(constants) + 1)))
    return evaluate(Expr(1, (*constants, last), len(constants) + 1), [v])


def epilogue(x: Launch, v: Array, full: Callable[[str], Array]) -> Array:
    """Of a product v whose last axis are its columns; full(name): an operand of the same shape."""
    if x.program is not None:
        columns, extra = v.shape[-1], list[Array]()
        for k in range(x.program["n_in"] - 1):
            kind, name = x.i[f"o{k}_kind"], f"o{k}"
            extra.append(
                full(name)
                if kind == 0
                else x.flat(name, columns)
                if kind == 1
                else x.flat(name, *v.shape[:-1], 1)
                if kind == 2
                else x.flat(name, 1)
            )
        return program(x.program, [v, *extra])
    residual = full("res") if x.i["res_mode"] else np.float64(0)
    if x.i["res_mode"] == 1:
        v = v + residual
    v = activate(x.i["act"], v, x.f["p0"], x.f["p1"])
    return v + residual if x.i["res_mode"] == 2 else v


# --- families ------------------------------------------------------------------------------------

_TABLE: dict[str, Callable[[Launch], None]] = {}


def _family(*names: str) -> Callable[[Callable[[Launch], None]], Callable[[Launch], None]]:
    def register(f: Callable[[Launch], None]) -> Callable[[Launch], None]:
        _TABLE.update(dict.fromkeys(names, f))
        return f

    return register


def _windows(x: Launch, data: Array, outside: float, groups: int = 1) -> Array:
    """[N, OH, OW, C, KH, KW] of an image, padded with `outside`."""
    p = x.i
    need_h = (p["OH"] - 1) * p["SH"] + (p["KH"] - 1) * p["DH"] + 1
    need_w = (p["OW"] - 1) * p["SW"] + (p["KW"] - 1) * p["DW"] + 1
    n, h, w, c = data.shape
    padded = np.full((n, p["PT"] + max(need_h, h), p["PL"] + max(need_w, w), c), outside)
    padded[:, p["PT"] : p["PT"] + h, p["PL"] : p["PL"] + w] = data
    a, b, d, e = padded.strides
    return np.lib.stride_tricks.as_strided(
        padded,
        (n, p["OH"], p["OW"], c, p["KH"], p["KW"]),
        (a, b * p["SH"], d * p["SW"], e, b * p["DH"], d * p["DW"]),
    )


@_family("conv2d", "conv2d_dw")
def _conv(x: Launch) -> None:
    p = x.i
    g, oc = p["G"], p["OC"]
    data = x.image("x", p["N"], p["IC"], p["IH"], p["IW"])
    at = _windows(x, data, 0.0).reshape(p["N"], p["OH"], p["OW"], g, p["IC"] // g, p["KH"], p["KW"])
    w = x.flat("w", g, oc // g, p["IC"] // g, p["KH"], p["KW"]).astype(np.float64)
    v = np.einsum("nhwgcij,gocij->nhwgo", at, w).reshape(p["N"], p["OH"], p["OW"], oc)
    shape = (p["N"], oc, p["OH"], p["OW"])
    v = epilogue(x, v + x.flat("bias", oc), lambda name: x.image(name, *shape, of="r"))
    x.image("y", *shape)[...] = v


@_family("pack_conv2d", "pack_conv2d_dw")
def _pack_conv(x: Launch) -> None:
    oc = x.i["OC"]
    shape = (oc, x.i.get("IC", 1) // x.i.get("G", 1) * x.i["KH"] * x.i["KW"])
    x.flat("packed", *shape)[...] = x.flat("w", *shape) * x.maybe("scale", oc, 1, default=1.0)


@_family("deconv2d")
def _deconv(x: Launch) -> None:
    p = x.i
    g, oc, ic = p["G"], p["OC"], p["IC"]
    data = x.image("x", p["N"], ic, p["IH"], p["IW"]).reshape(p["N"], p["IH"], p["IW"], g, ic // g)
    w = x.flat("w", g, ic // g, oc // g, p["KH"], p["KW"]).astype(np.float64)
    high = max(p["PT"] + p["OH"], (p["IH"] - 1) * p["SH"] + (p["KH"] - 1) * p["DH"] + 1)
    wide = max(p["PL"] + p["OW"], (p["IW"] - 1) * p["SW"] + (p["KW"] - 1) * p["DW"] + 1)
    v = np.zeros((p["N"], high, wide, g, oc // g))
    for i, j in itertools.product(range(p["KH"]), range(p["KW"])):
        rows = slice(i * p["DH"], i * p["DH"] + (p["IH"] - 1) * p["SH"] + 1, p["SH"])
        columns = slice(j * p["DW"], j * p["DW"] + (p["IW"] - 1) * p["SW"] + 1, p["SW"])
        v[:, rows, columns] += np.einsum("nhwgc,gco->nhwgo", data, w[..., i, j])
    v = v[:, p["PT"] : p["PT"] + p["OH"], p["PL"] : p["PL"] + p["OW"]]
    v = v.reshape(p["N"], p["OH"], p["OW"], oc) + x.flat("bias", oc)
    shape = (p["N"], oc, p["OH"], p["OW"])
    x.image("y", *shape)[...] = epilogue(x, v, lambda name: x.image(name, *shape, of="r"))


@_family("pack_deconv2d")
def _pack_deconv(x: Launch) -> None:
    p = x.i
    shape = (p["G"], p["IC"] // p["G"], p["OC"] // p["G"], p["KH"] * p["KW"])
    scale = x.maybe("scale", p["G"], 1, p["OC"] // p["G"], 1, default=1.0)
    x.flat("packed", *shape)[...] = x.flat("w", *shape) * scale


@_family("pack_bias")
def _pack_bias(x: Launch) -> None:
    oc = x.i["OC"]
    scale, shift = x.maybe("scale", oc, default=1.0), x.maybe("shift", oc)
    x.flat("packed", oc)[...] = x.maybe("b", oc) * scale + shift


@_family("fold_bn")
def _fold_bn(x: Launch) -> None:
    gamma, beta, mean, var = (
        x.flat(n, x.i["C"]).astype(np.float64) for n in ("gamma", "beta", "mean", "var")
    )
    scale = gamma / np.sqrt(var + x.f["eps"])
    x.flat("scale", x.i["C"])[...] = scale
    x.flat("shift", x.i["C"])[...] = beta - mean * scale


@_family("pool2d")
def _pool(x: Launch) -> None:
    p = x.i
    data = x.image("x", p["N"], p["C"], p["IH"], p["IW"])
    y = x.image("y", p["N"], p["C"], p["OH"], p["OW"])
    if p["mode"] == 0:
        y[...] = _windows(x, data, -np.inf).max((-2, -1))
        return
    ones = np.zeros((1, p["IH"] + p["PT"] + p["PB"], p["IW"] + p["PL"] + p["PR"], 1))
    inside = ones[:, p["PT"] : p["PT"] + p["IH"], p["PL"] : p["PL"] + p["IW"]]
    inside[...] = 1
    if p["mode"] == 2:
        ones[...] = 1
    at = {**p, "PT": 0, "PL": 0}
    count = _windows(Launch({}, at, {}, None), ones, 0.0).sum((-2, -1))
    y[...] = _windows(x, data, 0.0).sum((-2, -1)) / count


@_family("global_pool")
def _global_pool(x: Launch) -> None:
    p = x.i
    data = x.image("x", p["N"], p["C"], p["H"], p["W"]).astype(np.float64)
    y = x.at("y", (p["N"], p["C"]), (p["y_ns"], 1))
    y[...] = data.mean((1, 2)) if p["mode"] else data.max((1, 2))


@_family("resize2d")
def _resize(x: Launch) -> None:
    p = x.i
    data = x.image("x", p["N"], p["C"], p["IH"], p["IW"]).astype(np.float64)
    for axis, side in ((1, "H"), (2, "W")):
        before, after = p[f"I{side}"], p[f"O{side}"]
        scale = x.f[f"scale_{side.lower()}"] or after / before
        o = np.arange(after, dtype=np.float64)
        place = (
            o / scale
            if p["coord"] == 1
            else o * ((before - 1) / max(after - 1, 1))
            if p["coord"] == 2
            else o * 0
            if p["coord"] == 3 and after == 1
            else (o + 0.5) / scale - 0.5
        )
        if before == after:
            continue
        if p["mode"] == 0:
            up = p["rounding"] == 2 or (p["rounding"] == 4 and scale < 1)
            rounded = (
                np.ceil(place - 0.5)
                if p["rounding"] == 0
                else np.floor(place + 0.5)
                if p["rounding"] == 3
                else np.ceil(place)
                if up
                else np.floor(place)
            )
            data = data.take(np.clip(rounded.astype(int), 0, before - 1), axis)
        else:
            place = np.clip(place, 0, before - 1)
            low = np.floor(place).astype(int)
            share = (place - low).reshape([-1 if k == axis else 1 for k in range(4)])
            high = np.minimum(low + 1, before - 1)
            data = data.take(low, axis) * (1 - share) + data.take(high, axis) * share
    x.image("y", p["N"], p["C"], p["OH"], p["OW"])[...] = data


@_family("nchw_to_nhwc")
def _to_channels_last(x: Launch) -> None:
    n, c, h, w = (x.i[k] for k in "NCHW")
    x.image("y", n, c, h, w)[...] = x.flat("x", n, c, h, w).transpose(0, 2, 3, 1)


@_family("nhwc_to_nchw")
def _to_planes(x: Launch) -> None:
    n, c, h, w = (x.i[k] for k in "NCHW")
    x.flat("y", n, c, h, w)[...] = x.image("x", n, c, h, w).transpose(0, 3, 1, 2)


@_family("copy_nhwc")
def _copy_image(x: Launch) -> None:
    n, c, h, w = (x.i[k] for k in "NCHW")
    x.image("y", n, c, h, w)[...] = x.image("x", n, c, h, w)


@_family("pointwise_nhwc")
def _pointwise_image(x: Launch) -> None:
    n, c, h, w = (x.i[k] for k in "NCHW")
    assert x.program is not None
    inputs = [
        x.image(f"x{k}", n, c, h, w)
        if x.i[f"x{k}_kind"] == 0
        else x.at(f"x{k}", (n, 1, 1, c), (x.i[f"x{k}_ns"], 0, 0, 1))
        if x.i[f"x{k}_kind"] == 1
        else x.flat(f"x{k}", 1)
        for k in range(x.program["n_in"])
    ]
    x.image("y", n, c, h, w)[...] = program(x.program, inputs)


@_family("pack_gemm")
def _pack_gemm(x: Launch) -> None:
    p = x.i
    k, n, total = p["K"], p["N"], p["N_total"]
    w = x.at("w", (k, n), (1, p["ldw"]) if p["trans"] else (p["ldw"], 1)).astype(np.float64)
    gamma = x.flat("gamma", k, 1) + p["gamma_add"] if "gamma" in x.operands else 1.0
    packed = x.flat("packed", k, total)[:, p["n0"] : p["n0"] + n]
    packed[...] = x.f["alpha"] * w * gamma * x.maybe("scale", n, default=1.0)


@_family("gemm")
def _gemm(x: Launch) -> None:
    p = x.i
    m, n, k = p["M"], p["N"], p["K"]
    v = x.at("x", (m, k), (p["ldx"], 1)).astype(np.float64) @ x.flat("w", k, n).astype(np.float64)

    def full(name: str) -> Array:
        return x.at(name, (m, n), (p["ldr" if name == "res" else f"{name}_ld"], 1))

    x.at("y", (m, n), (p["ldy"], 1))[...] = epilogue(x, v + x.maybe("bias", n), full)


@_family("attention")
def _attention(x: Launch) -> None:
    p = x.i
    h, s, t = p["H"], p["S"], p["T"]

    def heads(name: str, count: int, rows: int, width: int) -> Array:
        strides = [p[f"{name}_{k}"] for k in ("b", "h", "s")]
        return x.at(name, (p["B"], count, rows, width), [*strides, 1])

    q = heads("q", h, s, p["D"]).astype(np.float64)
    k, v = (
        np.repeat(heads(name, p["KVH"], t, width), h // p["KVH"], 1).astype(np.float64)
        for name, width in (("k", p["D"]), ("v", p["DV"]))
    )
    scores = x.f["scale"] * (q @ k.swapaxes(-1, -2))
    if x.f["softcap"]:
        scores = x.f["softcap"] * np.tanh(scores / x.f["softcap"])
    if p["mask_kind"]:
        kind = DType.F32 if p["mask_kind"] == 1 else DType.U8
        mask = x.at("mask", scores.shape, [p[f"m_{a}"] for a in "bhqk"], kind)
        drops = (mask == 0) if p["mask_kind"] == 2 else (mask != 0)
        scores = scores + mask if p["mask_kind"] == 1 else np.where(drops, x.f["fill"], scores)
    if p["causal"]:
        unseen = np.arange(t) > np.arange(s)[:, None] + p["past"]
        scores = np.where(unseen, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    if p["nan_to_zero"]:
        weights = np.where(np.isnan(weights), 0.0, weights)
    heads("y", h, s, p["DV"])[...] = weights @ v


def _normalised(x: Launch, v: Array) -> Array:
    """Rows [..., N] of a layer norm."""
    n = x.i["N"]
    v = v if x.i["rms"] else v - v.mean(-1, keepdims=True)
    v = v / np.sqrt((v * v).mean(-1, keepdims=True) + x.f["eps"])
    gamma = x.flat("gamma", n) + x.i["gamma_add"] if "gamma" in x.operands else 1.0
    return np.asarray(v * gamma + (0.0 if x.i["rms"] else x.maybe("beta", n)))


@_family("layernorm")
def _layernorm(x: Launch) -> None:
    rows, n = x.i["rows"], x.i["N"]
    v = x.flat("x", rows, n).astype(np.float64) + x.maybe("res", rows, n) + x.maybe("xbias", n)
    y = _normalised(x, v)
    if "skip" in x.operands:
        x.flat("skip", rows, n)[...] = v
    x.flat("y", rows, n)[...] = y


@_family("layernorm_sum")
def _layernorm_sum(x: Launch) -> None:
    p = x.i
    outer, inner, n = p["outer"], p["inner"], p["N"]
    v = np.zeros((outer, inner, n))
    for k in range(4):
        if f"x{k}" not in x.operands:
            continue
        lo, hi = p[f"x{k}_lo"], min(p[f"x{k}_hi"], inner)
        strides = (p[f"x{k}_o"], p[f"x{k}_i"])
        if f"i{k}" in x.operands:
            index = x.at(f"i{k}", (outer, hi - lo), strides, p[f"i{k}_dtype"])
            table = x.at(f"x{k}", (p[f"x{k}_n"], n), (p[f"x{k}_ld"], 1))
            v[:, lo:hi] += table[index]
        else:
            v[:, lo:hi] += x.at(f"x{k}", (outer, hi - lo, n), (*strides, 1))
    if "skip" in x.operands:
        x.flat("skip", outer, inner, n)[...] = v
    x.flat("y", outer, inner, n)[...] = _normalised(x, v)


@_family("groupnorm_nhwc")
def _groupnorm(x: Launch) -> None:
    n, c, h, w = (x.i[k] for k in "NCHW")
    g = x.i["G"]
    v = x.image("x", n, c, h, w).astype(np.float64).reshape(n, h, w, g, c // g)
    v = v - v.mean((1, 2, 4), keepdims=True)
    v = v / np.sqrt((v * v).mean((1, 2, 4), keepdims=True) + x.f["eps"])
    v = v.reshape(n, h, w, c) * x.maybe("gamma", c, default=1.0) + x.maybe("beta", c)
    x.image("y", n, c, h, w)[...] = activate(x.i["act"], v, x.f["p0"], x.f["p1"])


@_family("softmax")
def _softmax(x: Launch) -> None:
    shape = [x.i[k] for k in ("outer", "n", "inner")]
    v = x.flat("x", *shape).astype(np.float64)
    v = v - v.max(1, keepdims=True)
    total = np.exp(v).sum(1, keepdims=True)
    x.flat("y", *shape)[...] = v - np.log(total) if x.i["log"] else np.exp(v) / total


@_family("reduce")
def _reduce(x: Launch) -> None:
    kind, outer, n, inner, dtype = (x.i[k] for k in ("kind", "outer", "n", "inner", "dtype"))
    v = x.flat("x", outer, n, inner, kind=dtype)
    how: tuple[Callable[..., Any], ...] = (
        np.sum, np.mean, np.max, np.min, np.prod,
        lambda v, axis: np.abs(v).sum(axis), lambda v, axis: np.sqrt((v * v).sum(axis)), lambda v,
        axis: (v * v).sum(axis),
        lambda v, axis: np.log(v.sum(axis)), lambda v, axis: np.log(np.exp(v).sum(axis)),
    )  # fmt: skip
    exact = v if dtype in (DType.I64, DType.I32) else v.astype(np.float64)
    x.flat("y", outer, inner, kind=dtype)[...] = how[kind](exact, axis=1)


@_family("copy")
def _copy(x: Launch) -> None:
    shape, elem = [x.i[f"n{k}"] for k in range(6)], x.i["elem"]
    source, goal = (x.raw(o, elem, shape, [x.i[f"{o}{k}"] for k in range(6)]) for o in "xy")
    goal[...] = source.copy()


@_family("gather")
def _gather(x: Launch) -> None:
    p = x.i
    outer, n, inner, count = (p[k] for k in ("outer", "n", "inner", "count"))
    table = x.raw("x", p["elem"], (outer, n, inner), (n * inner, inner, 1))
    goal = x.raw("y", p["elem"], (outer, count, inner), (count * inner, inner, 1))
    goal[...] = table[:, x.flat("idx", count, kind=p["idx_dtype"])]


@_family("pointwise")
def _pointwise(x: Launch) -> None:
    assert x.program is not None
    shape = [x.i[f"n{k}"] for k in range(6)]
    inputs = [
        x.at(f"x{k}", shape, [x.i[f"x{k}_{d}"] for d in range(6)], x.i[f"x{k}_dtype"])
        for k in range(x.program["n_in"])
    ]
    y = x.flat("y", *shape, kind=x.i["y_dtype"])
    made = np.broadcast_to(program(x.program, inputs), shape)
    y[...] = made != 0 if y.dtype == np.bool_ else made.astype(y.dtype)

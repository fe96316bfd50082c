"""What ONNX Runtime alone, ONNX itself and a float64 evaluation say of a model whose results
differ, and of a case that ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz import workers
from tests.support import difference, sessions
from tracea_onnx.ir import edit
from tracea_onnx.model_io import model_file
from tracea_onnx.verify import verification


def differ(model: ModelProto, want: Sequence[Any], got: Sequence[Any]) -> float:
    """How far apart, where values are not so large or so close that rounding decides."""
    if any(
        np.asarray(w).dtype.kind == "f"
        and (not np.isfinite(w).all() or (np.asarray(w).size and np.abs(w).max() > 1e15))
        for w in want
        if isinstance(w, np.ndarray)
    ):
        return 0.0
    apart = 0.0
    for a, b in zip(want, got, strict=True):
        if isinstance(a, list):  # a sequence
            apart = max(apart, differ(model, a, b) if len(a) == len(b) else np.inf)
            continue
        x, y = np.asarray(a), np.asarray(b)
        if (
            x.dtype == y.dtype
            and x.shape == y.shape
            and x.dtype.kind == "f"
            and x.size
            and np.isfinite(y).all()
            and np.abs(x.astype(np.float64) - y).max() < 1e-4
        ):
            continue
        apart = max(apart, difference.difference([a], [b]))
    return apart


def computed(model: ModelProto, values: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime computes for each value of the main graph, its calls of functions expanded;
    nothing where it fails.
    """
    bare = ModelProto.FromString(undeclared(model))
    with contextlib.suppress(Exception):  # a function may be damaged
        bare = onnx.inliner.inline_local_functions(bare)
    del bare.graph.output[:]
    made = dict.fromkeys(o for n in bare.graph.node for o in n.output if o)
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = stock_results(bare.SerializeToString(), [values], optimize=False)
    return found[0] if found and isinstance(found[0], list) else []


def overflows(model: ModelProto, found: Iterable[Any]) -> bool:
    """Whether the graph computes values (`computed`) so large that the order of its operations
    decides. Those that a constant holds, as a mask does, are no such values.
    """
    constants = [numpy_helper.to_array(t) for t in model.graph.initializer]
    constants += [
        numpy_helper.to_array(a.t)
        for n in [*model.graph.node, *(n for f in model.functions for n in f.node)]
        for a in n.attribute
        if a.type == onnx.AttributeProto.TENSOR and n.op_type == "Constant"
    ]
    stored = [c.item() for c in constants if c.dtype.kind == "f" and c.size == 1]
    return any(
        bool((~(np.abs(v) <= 1e15) & ~np.isin(v, stored)).any())
        for v in found
        if isinstance(v, np.ndarray) and v.dtype.kind == "f"
    )


RANDOM = ("Random", "Multinomial", "Bernoulli", "Dropout")

_OF_NOTHING = frozenset(
    {"ArgMax", "ArgMin", "ReduceMean", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
)


def is_of_nothing(model: ModelProto, values: Iterable[Any]) -> bool:
    """Whether ONNX does not say what the result is: of no elements ArgMax, ArgMin and ReduceMean
    keep a dim of 0 in ONNX Runtime, and a mean is 0. values: those fed and those `computed`.
    """
    return bool({n.op_type for n in model.graph.node} & _OF_NOTHING) and any(
        isinstance(v, np.ndarray) and not v.size for v in values
    )


def _second_operands(model: ModelProto, reader: str) -> Iterator[TensorProto]:
    """Constants that are the second operand of operators with `reader` in their name."""
    nodes = [n for g in edit.graphs(model) for n in g.node if reader in n.op_type]
    names = {name for n in nodes for name in n.input[1:2]}
    return (t for g in edit.graphs(model) for t in g.initializer if t.name in names)


def pads_what_is_not_finite(model: ModelProto) -> bool:
    """Whether a convolution has weights that are not finite: whether the zeros around its images
    count, which such a weight makes NaN, is up to each kernel (docs/numerics.md).
    """
    return any(
        not np.isfinite(v).all()
        for t in _second_operands(model, "Conv")
        if t.data_type == TensorProto.FLOAT and (v := _held(t)) is not None
    )


def _held(t: TensorProto) -> Any | None:
    """What a constant holds; None for one that lies elsewhere or is damaged."""
    try:
        return numpy_helper.to_array(t)
    except ValueError:
        return None


def quantises_nan(model: ModelProto) -> bool:
    """Whether a QuantizeLinear divides by 0 or by what is not finite: ONNX does not say which
    integer a NaN is.
    """
    scales = (numpy_helper.to_array(t) for t in _second_operands(model, "QuantizeLinear"))
    return any(not (np.isfinite(v) & (v != 0)).all() for v in (s.astype(float) for s in scales))


def undeclared(model: ModelProto) -> bytes:
    """The model without the types and dims that it claims its values have."""
    return bytes(edit.without_claims(model).SerializeToString())


def claims_falsely(model: ModelProto, fed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value of the graph has another rank or size on ONNX Runtime than the model says it
    has. A fused node hides what it computes, and ONNX Runtime then believes the model.
    """
    claimed = {v.name: v.type.tensor_type for v in (*model.graph.value_info, *model.graph.output)}
    bare = ModelProto.FromString(undeclared(model))
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in claimed)
    found = stock_results(bare.SerializeToString(), fed, optimize=False) or []
    return any(
        t.HasField("shape")
        and (
            len(t.shape.dim) != np.ndim(v)
            or any(
                d.HasField("dim_value") and d.dim_value != n
                for d, n in zip(t.shape.dim, np.shape(v), strict=True)
            )
        )
        for values in found
        if isinstance(values, list)
        for t, v in zip(claimed.values(), values, strict=True)
        if isinstance(v, np.ndarray)
    )


#: glibc's mallopt: fresh memory holds the complement of this byte.
_M_PERTURB = -6
#: Sizes of blocks that glibc keeps for each thread, whatever mallopt says, and how many of each.
_KEPT_SIZES, _KEPT = range(24, 1033, 16), 7


def _fill_kept_blocks(byte: int) -> None:
    """What the next small allocations of this thread hold."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for size in _KEPT_SIZES:
        blocks = [libc.malloc(size) for _ in range(_KEPT)]
        for block in blocks:
            ctypes.memset(block, byte, size)
            libc.free(block)


def reads_garbage(data: bytes, values: Mapping[str, Any]) -> bool:
    """Whether what ONNX Runtime gives depends on what its memory held before."""
    found: list[Sequence[Any]] = []
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for byte in (0xC0, 0x3F):
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)
        try:
            with workers.stock():
                peer = ort.InferenceSession(data, settings)
                _fill_kept_blocks(~byte & 0xFF)
                found.append(peer.run(None, dict(values)))
        except Exception:
            return False
        finally:
            ctypes.CDLL(None).mallopt(_M_PERTURB, 0)
    return any(
        np.asarray(a).tobytes() != np.asarray(b).tobytes()
        for a, b in zip(*found, strict=True)
        if isinstance(a, np.ndarray)
    )


def as_onnx_says(model: ModelProto, values: Mapping[str, Any], got: Sequence[Any]) -> bool:
    """Whether ONNX's own implementation gives what the provider does, where ONNX Runtime gives
    something else.
    """
    try:
        want = list(ReferenceEvaluator(model).run(None, dict(values)))
        return (
            not any(np.shape(a) != np.shape(b) for a, b in zip(want, got, strict=True))
            and differ(model, want, got) <= 2e-3
        )
    except Exception:  # it does not know every operator
        return False


def is_rounding(model: ModelProto, fed: Mapping[str, Any], got: Sequence[Any]) -> bool:
    """Whether a float64 evaluation of the graph moves as far when its values are rounded."""
    from tools.fuzz import graph_differential

    values = dict(fed)
    try:
        reference = graph_differential._measured(model, values)
        at = [o.name for o in model.graph.output]
        results = [got[at.index(name)] for name in reference.names]
        return not graph_differential._beyond(reference, range(len(results)), results, values)
    except Exception:  # it does not know every operator
        return False


def stock_results(
    data: bytes, fed: Sequence[Mapping[str, Any]], *, optimize: bool
) -> list[Any] | None:
    """What ONNX Runtime alone gives for each input, or the error that it raises; None where it does
    not load the model.
    """
    found: list[Any] = []
    with workers.stock():
        try:
            peer = sessions.session(data, optimize=optimize)
        except Exception:
            return None
        for values in fed:
            try:
                found.append(peer.run(None, dict(values)))
            except Exception as e:
                found.append(e)
    return found


def on_stock(inputs: Path) -> None:
    """Loads a case's models and runs them as the case did, on ONNX Runtime alone: as often as
    `optimize` does, and with the inputs that the case made. What ends the process here is its
    doing.
    """
    for path in (inputs / name for name in ("input.onnx", "other.onnx")):
        with workers.stock(), contextlib.suppress(Exception):
            source, made = model_file.load(path), []
            for optimise in (False, True):
                with contextlib.suppress(Exception):
                    made.append(verification.session(source, optimise=optimise))
            reference = verification.measure(source)
            for peer in made:  # in place of the fused model, and of what is compared with it
                with contextlib.suppress(Exception):
                    peer.run(None, reference.fed)
            _ = reference.spread
    fed = inputs / "inputs.pickle"
    if fed.is_file():
        for optimise in (False, True):
            stock_results(
                (inputs / "input.onnx").read_bytes(),
                pickle.loads(fed.read_bytes()),
                optimize=optimise,
            )

"""Records what code generation makes for a fixed list of requests and models, as short hashes by
name.

A record is `{case: {part: hash}}`. A part is what all launches of one kernel are made of (of a CUDA
kernel its source, grid and arguments), or the rest of a Plan. Comments and layout of a source do
not count. Equal records mean equal code, so a
change that should have no effect is shown to have none.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from tests.exports import matrix
from tests.session.test_models import SMALL
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes import contrib_functions, onnx_inference
from tracea_onnx.support import discovery

Record = dict[str, dict[str, str]]

#: Devices by (architecture, multiprocessors): an A100, an L4 and an H200.
DEVICES = ((80, 108), (89, 58), (90, 132))

#: The zoo at its real widths, so that the tiles that real layers get are recorded, and with few
#: layers of each kind.
WIDE: dict[str, dict[str, Any]] = {
    "bert_base": {"layers": 2, "vocab": 1000},
    "efficientnet_b0": {},
    "gpt2": {"layers": 2, "vocab": 1000},
    "minilm": {"layers": 1, "vocab": 1000},
    "mobilenet_v3": {},
    "resnet50": {"layers": (1, 2, 1, 1)},
    "unet": {},
    "vit_b16": {"layers": 2},
    "yolo_nano": {},
}

#: Test modules whose `cases()` are single requests of every CUDA family.
FAMILIES = (
    "attention", "conv", "gemm", "image", "indexed", "move", "pointwise", "recurrent", "regions",
)  # fmt: skip


def digest(data: object) -> str:
    """Hash of `data`: bytes as they are, anything else as JSON with sorted keys."""
    text = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _grouped(parts: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Hashes by name; parts of one name share a line, `how many hash`, in their order."""
    found: dict[str, list[str]] = {}
    for name, data in parts:
        found.setdefault(name, []).append(digest(data))
    return {name: f"{len(all_of)} {digest(all_of)}" for name, all_of in found.items()}


# --- plans ----------------------------------------------------------------------------------------


def _launches(plan: Mapping[str, Any], blobs: list[bytes]) -> Iterator[tuple[str, object]]:
    """Every launch of a Plan, then the rest of it.

    Expressions are spelled out, so that their places in the table do not matter.
    """
    exprs: list[object] = []
    for op, *args in plan["exprs"]:
        exprs.append(digest([op, args if op in ("const", "sym") else [exprs[a] for a in args]]))

    def argument(kind: str, *rest: Any) -> object:
        if kind in ("i", "l", "p"):
            return [kind, *rest[:-1], exprs[rest[-1]]]
        if kind == "t":
            named = {k: [exprs[e] for e in rest[0][k]] for k in ("dims", "strides")}
            return [kind, {**rest[0], **named, "offset": exprs[rest[0]["offset"]]}]
        return [kind, *rest]

    for part in ("init", "run"):
        for launch in plan[part]:
            if launch["k"] == "cuda":
                shown = {
                    **launch,
                    "cubin": digest(blobs[launch["cubin"]]),
                    "grid": [exprs[g] for g in launch["grid"]],
                }
                yield (
                    f"{part} {launch['symbol']}",
                    {**shown, "args": [argument(*a) for a in launch["args"]]},
                )
            else:
                places = [b and [b[0], exprs[b[1]]] for b in launch["b"]]
                yield (
                    f"{part} {launch['k']}",
                    {**launch, "b": places, "i": [exprs[i] for i in launch["i"]]},
                )
    outputs = [{**o, "dims": [exprs[d] for d in o["dims"]]} for o in plan["outputs"]]
    buffers = [
        {**b, "bytes": exprs[b["bytes"]]} if b["kind"] == "arena" else b for b in plan["buffers"]
    ]
    checks = [[input, axis, exprs[e]] for input, axis, e in plan["checks"]]
    yield (
        "interface",
        [plan["name"], plan["backend"], plan["inputs"], outputs, plan["symbols"], plan.get("arch")],
    )
    sources = {
        launch["cubin"] for part in ("init", "run") for launch in plan[part] if "cubin" in launch
    }
    yield "buffers", [buffers, [digest(b) for k, b in enumerate(blobs) if k not in sources]]
    yield (
        "checks",
        [checks, [[how, exprs[a], exprs[b], what] for how, a, b, what in plan.get("requires", ())]],
    )


_BLOCK_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|//[^\n]*)|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(r"""//.*|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\w+|\S)""")


def code(source: str) -> str:
    """The tokens of a CUDA source: what is left when comments and layout are not looked at.

    A preprocessor directive ends with its line, or where a line without a backslash does.
    """
    if "/*" in source:
        source = _BLOCK_COMMENT.sub(lambda m: m[1] or " ", source)
    lines: list[str] = []
    now: list[str] = []
    directive = False
    for line in source.split("\n"):
        text, continued = _line(line)
        if text[:1] == "#" and not directive:
            lines.append(" ".join(now))
            now, directive = [], True
        if text[:1] == '"' and now and now[-1][-1] == '"':
            now[-1] = now[-1][:-1] + text[1:]  # adjacent strings are one
        elif text:
            now.append(text)
        if directive and not continued:
            lines.append(" ".join(now))
            now, directive = [], False
    return "\n".join([*filter(None, lines), " ".join(now)])


@cache
def _line(line: str) -> tuple[str, bool]:
    """The tokens of a line, and whether a backslash at its end continues it. Most lines are those
    of a template that many sources have.
    """
    tokens = [m[1] for m in _TOKEN.finditer(line) if m[1]]
    continued = line.endswith("\\") and tokens[-1:] == ["\\"]
    if continued:
        del tokens[-1]
    return " ".join(tokens).replace('" "', ""), continued


@contextmanager
def sources_for_cubins() -> Iterator[None]:
    """CUDA Plans hold their kernels' sources where a session has cubins: nothing is compiled."""

    def keep_source(self: BackendPlan) -> None:
        for source, at in self._code.items():
            self.blobs[at] = code(source).encode()

    with mock.patch.object(BackendPlan, "_compile", keep_source):
        yield


def plans_of(model: ModelProto, backend: plan_writer.Writer) -> dict[str, str]:
    """The Plans of every partition that a session over `model` would have, and the names of refused
    nodes. Their sentences do not count.
    """
    shown = copy.deepcopy(model)
    onnx_inference.restore_types(shown, {})
    shown.functions.extend(contrib_functions.functions(model))
    shown = onnx.shape_inference.infer_shapes(shown, data_prop=True)  # as a session does
    del shown.functions[len(model.functions) :]
    with sources_for_cubins():
        compiled = partition_compiler.compile_graph(Graph(shown), backend)
    parts: list[tuple[str, object]] = []
    for nodes, plan, blobs in compiled.entries:
        parts.append(("nodes", [n.name for n in nodes]))
        parts += _launches(plan, blobs)
    parts.append(("refused", [n.name for n, _ in compiled.refused]))
    return _grouped(parts)


# --- models ---------------------------------------------------------------------------------------


def half(model: ModelProto) -> ModelProto:
    """The model in fp16 throughout, as exporters write `model.half()`."""
    out = copy.deepcopy(model)
    for tensor in out.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(_half(tensor))
    for node in out.graph.node:
        for a in node.attribute:
            if a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = TensorProto.FLOAT16
            if a.HasField("t") and a.t.data_type == TensorProto.FLOAT:
                a.t.CopyFrom(_half(a.t))
    for value in (*out.graph.input, *out.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del out.graph.value_info[:]
    return out


def _half(tensor: TensorProto) -> TensorProto:
    # a mask's lowest number stays finite
    values = np.clip(numpy_helper.to_array(tensor), -65504, 65504)
    return numpy_helper.from_array(values.astype(np.float16), tensor.name)


def wide(name: str) -> ModelProto:
    model: ModelProto = discovery.module("models", name).build(**WIDE[name])
    return model


def small(name: str) -> ModelProto:
    model: ModelProto = discovery.module("models", name).build(**SMALL[name])
    return model


def exports() -> list[str]:
    """One exported file of each chain: the exporters take turns."""
    by_chain: dict[str, list[str]] = {}
    for path in matrix.files():
        by_chain.setdefault(path.parent.name, []).append(matrix.name(path))
    return [files[k % len(files)] for k, files in enumerate(by_chain.values())]


def gpu(arch: int, sms: int) -> plan_writer.Writer:
    return plan_writer.writer_of({"backend": "cuda", "arch": str(arch), "sms": str(sms)})


# --- requests -------------------------------------------------------------------------------------


def kernels(request: Request) -> Iterator[tuple[str, object]]:
    """Every kernel that answers the request, its source and how it is launched."""
    for kernel in discovery.module("kernels", "cuda").emit(request):
        yield kernel.symbol, described(kernel)


def described(k: Kernel) -> list[str]:
    launch = (k.symbol, k.grid, k.block, k.args, k.smem, k.cluster, k.pdl, k.scratch)
    return [code(k.source), repr(launch)]


def requests(family: str) -> Iterator[tuple[str, Request]]:
    """The named requests of one test module."""
    module = __import__(f"tests.backend.cuda.test_cuda_{family}", fromlist=["cases"])
    for name, r in module.cases():
        yield f"{name} {r.family} {r.dtype.name} sm_{r.arch}", r


def requested(family: str) -> dict[str, str]:
    parts: list[tuple[str, object]] = []
    for name, r in requests(family):
        parts += [(f"{name}: {symbol}", data) for symbol, data in kernels(r)]
    return _grouped(parts)


# --- the fixed list -------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], dict[str, str]]]:
    """Everything that is recorded, by the name of its record."""
    out: dict[str, Callable[[], dict[str, str]]] = {}
    for family in FAMILIES:
        out[f"requests {family}"] = lambda family=family: requested(family)  # type: ignore[misc]
    for name in sorted(SMALL):
        out[f"cpu {name}"] = lambda name=name: plans_of(small(name), plan_writer.writer_of({}))  # type: ignore[misc]
    for file in exports():
        out[f"cpu {file}.onnx"] = lambda file=file: _export(file)  # type: ignore[misc]
    for name in sorted(WIDE):
        for arch, sms in DEVICES:
            out[f"sm_{arch} fp16 {name}"] = lambda n=name, a=arch, s=sms: plans_of(
                half(wide(n)), gpu(a, s)
            )  # type: ignore[misc]
        out[f"sm_90 fp32 {name}"] = lambda name=name: plans_of(wide(name), gpu(90, 132))  # type: ignore[misc]
    return out


def _export(name: str) -> dict[str, str]:
    return plans_of(onnx.load(str(matrix.file(name))), plan_writer.writer_of({}))

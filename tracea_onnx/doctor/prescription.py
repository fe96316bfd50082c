"""Which kernels a model's launches get and why, what would make it faster, and the command for
that.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from onnx import TensorProto

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.codegen.backend import Backend
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.errors import TraceaError
from tracea_onnx.explain import explanation
from tracea_onnx.explain.coverage import search_around
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.support import tables

#: Launches that are listed.
_LISTED = 40
#: How it begins, why a launch has a kernel that was not measured.
_PRICED, _USUAL = "priced", "usual"


@dataclass(frozen=True)
class Chosen:
    """Launches that are alike: what they compute, the kernel that they get, and why that one."""

    what: str
    kernel: str
    why: str
    count: int


@dataclass(frozen=True)
class Advice:
    """A cause that makes the model slower than it could be, and the command that removes it or
    shows more.
    """

    what: str
    command: str


@dataclass(frozen=True)
class Prescription:
    """launches: of a run of the model on the provider, by how many are alike. `of` says for which
    device they are.
    """

    model: str
    backend: str
    of: str
    nodes: int
    leaving: int
    launches: tuple[Chosen, ...]
    advice: tuple[Advice, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON of `doctor --json`."""
        return asdict(self)

    def text(self) -> list[str]:
        """A line, a table of launches, and what would be faster."""
        total = sum(c.count for c in self.launches)
        stay = f"{self.nodes - self.leaving} of {self.nodes} nodes on the provider"
        out = [f"{self.model} on {self.backend} ({self.of}): {stay}, in {total} launches"]
        rows = [(c.what, str(c.count), c.kernel, c.why) for c in self.launches[:_LISTED]]
        if rows:
            out += ["", *tables.table([("launch", "times", "kernel", "why"), *rows])]
        if len(self.launches) > _LISTED:
            out.append(f"and {len(self.launches) - _LISTED} more kinds of launch (--json has all)")
        out.append("")
        for a in self.advice:
            out += [a.what, f"    faster: {a.command}"]
        return out if self.advice else [*out, "nothing that this tool knows of would be faster"]


def prescribe(model: str | os.PathLike[str], backend: str) -> Prescription:
    """Of a model file, on the backend's device of this machine, or on the one that files are made
    for. Raises ModelError.
    """
    asked = backends.get(backend)
    inputs = _overridable(model)
    account = explanation.explain(
        model, backend=backend, provider=True, keep_initializer_inputs=bool(inputs)
    )
    assert account.coverage is not None
    device, of = _device(asked)
    found: Counter[tuple[str, str, str]] = Counter()
    for graph in canonical_form.views(account.model, account.folder):
        whole = Graph(account.model, graph.proto, folder=account.folder, outer=graph.outer)
        if asked.host or search_around(whole) is None:
            found.update(_launches(whole, asked, device))
    launches = tuple(Chosen(*key, count) for key, count in found.most_common())
    return Prescription(
        os.fspath(model), backend, of, account.coverage.total, len(account.coverage.leaving),
        launches, tuple(_advice(os.fspath(model), asked, account, launches)),
    )  # fmt: skip


def _device(asked: Backend) -> tuple[Any, str]:
    """Key of tuning records and its description in words; None without a device."""
    devices = asked.probe().devices
    if asked.harness is None or not devices:
        return None, devices[0] if devices else "no such device here: as files are made"
    try:
        device = asked.harness.device()
    except TraceaError as e:  # a driver without memory
        return None, f"{devices[0]}, which cannot be used ({e.what}): as files are made"
    return device, str(device.name)


def _launches(graph: Graph, asked: Backend, device: Any) -> Iterator[tuple[str, str, str]]:
    """Operation, kernel and reason of each launch of a run."""
    records = kernel_choice.BY_PRICE if device is None else tuning_records.choices(device)
    # which are no prices alone, so that a Plan notes what each launch was made for
    choices = replace(records, offers={})
    caps = device if isinstance(device, DeviceCaps) else asked.caps(None)
    emitter = plan_writer.Emitter(asked, choices)

    def plan(name: str, probe: bool) -> BackendPlan:
        return BackendPlan(name, emitter, {}, caps, compile_code=False)

    writer = plan_writer.Writer(asked.target(caps), plan)
    compiled = partition_compiler.compile_graph(graph, writer, trust=True)
    for builder in compiled.builders:
        assert isinstance(builder, BackendPlan)
        for request in {id(r): r for r in builder.asked}.values():  # some take several launches
            yield _chosen(request, asked, device, choices.records)


def _chosen(
    request: Request, asked: Backend, device: Any, records: kernel_choice.Records
) -> tuple[str, str, str]:
    """Operation, kernel and reason of a launch for which there is a choice at its sizes."""
    # prices follow from sizes on a GPU, on the host from the family alone
    priced = asked.host or not request.symbols
    prices = asked.configs(request, device) if priced else dict[str, float]()
    known = {n: d if isinstance(d, int) else "?" for n, d in request.ints.items()}
    what = tuning_records.in_words({**kernel_choice.described(request), "ints": known})
    if not priced:
        return what, "one that takes all sizes", f"{_PRICED}: the sizes are known in a run only"
    if len(prices) < 2:
        return request.family, request.family, "the only kernel for it"
    name = None if request.symbols else records.get(kernel_choice.cache_key(request))
    if name in prices:
        return what, str(name), f"tuned: chosen of {len(prices)} by measurement"
    best = min(prices, key=prices.__getitem__)
    if len({*prices.values()}) > 1:
        return what, best, f"{_PRICED}: the cheapest of {len(prices)}"
    return what, best, f"{_USUAL}: one of {len(prices)}, none of which was measured"


def _overridable(model: str | os.PathLike[str]) -> int:
    """How many weights are inputs, too."""
    graph = model_file.load(model).model.graph
    stored = {t.name for t in graph.initializer}
    return sum(i.name in stored for i in graph.input)


def _advice(
    model: str, asked: Backend, account: explanation.ExplainReport, launches: tuple[Chosen, ...]
) -> Iterator[Advice]:
    command, name = "tracea-onnx", shlex.quote(model)
    overridable = _overridable(model)
    if overridable:
        yield Advice(
            f"weights that are inputs, too, so that a session must expect others: {overridable}",
            f"{command} optimize {name}",
        )
    priced = sum(c.count for c in launches if c.why.startswith((_PRICED, _USUAL)))
    if priced and asked.harness is not None and asked.probe().devices:
        yield Advice(
            f"launches whose kernels were never measured here: {priced}",
            f"{command} tune {name} --backend {asked.name}",
        )
    wide = any(t.data_type == TensorProto.FLOAT for t in account.model.graph.initializer)
    if wide and DType.F16 in asked.target(asked.caps(None)).types:
        yield Advice(
            "weights in fp32", f"{command} optimize {name} --precision fp16 --backend {asked.name}"
        )
    assert account.coverage is not None
    leaving = account.coverage.leaving
    if leaving:
        reason, count = Counter(n.reason for n in leaving).most_common(1)[0]
        yield Advice(
            f"nodes that leave the provider: {len(leaving)}; {count} of them because {reason}",
            f"{command} explain {name} --backend {asked.name}",
        )
    mended = [e for e in account.anchors if e.fix and not e.fused_by and not e.light]
    if mended and not overridable:  # that is what they would need
        first = mended[0]
        yield Advice(
            f"chains that would fuse in a model that is made otherwise: {len(mended)}; "
            f"{first.anchor} ({first.op}): {first.fix}",
            f"{command} explain {name}",
        )

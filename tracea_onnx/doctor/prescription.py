"""Which kernels a model's launches get and why, what would make it faster, and the command for
that.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from onnx import TensorProto

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.codegen.backend import Backend, Properties
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.explain import explanation
from tracea_onnx.explain.coverage import search_around
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.support import tables

#: Launches that are listed.
_LISTED = 40


@dataclass(frozen=True)
class Chosen:
    """Launches that are alike: what they compute, the kernel that they get, and why that one."""

    what: str
    kernel: str
    why: str
    count: int


@dataclass(frozen=True)
class Advice:
    """What makes the model slower than it could be, and the command that mends it or says more."""

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
        """As `doctor --json` prints it."""
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
    properties, of = _device(asked)
    found: Counter[tuple[str, str, str]] = Counter()
    for graph in canonical_form.views(account.model, account.folder):
        whole = Graph(account.model, graph.proto, folder=account.folder, outer=graph.outer)
        if asked.host or search_around(whole) is None:
            found.update(_launches(whole, asked, properties))
    launches = tuple(Chosen(*key, count) for key, count in found.most_common())
    return Prescription(
        os.fspath(model), backend, of, account.coverage.total, len(account.coverage.leaving),
        launches, tuple(_advice(os.fspath(model), asked, account, launches)),
    )  # fmt: skip


def _device(asked: Backend) -> tuple[Properties | None, str]:
    """What a session's compile request would say of the device, and what it is."""
    devices = asked.probe().devices
    if asked.host:
        return None, devices[0]
    if asked.harness is None or not devices:
        return None, "no such device here: as files are made"
    properties: Properties = asked.harness.properties()
    return properties, properties.get("device", devices[0])


def _launches(
    graph: Graph, asked: Backend, properties: Properties | None
) -> Iterator[tuple[str, str, str]]:
    """What each launch of a run computes, its kernel, and why it got that."""
    caps = asked.caps(properties)
    records = kernel_choice.BY_PRICE if caps is None else tuning_records.choices(caps)
    offers: kernel_choice.Offers = {}
    choices = replace(records, offers=offers)
    emitter = plan_writer.Emitter(asked, choices)

    def plan(name: str, probe: bool) -> BackendPlan:
        return BackendPlan(name, emitter, properties or {}, caps, compile_code=False)

    writer = plan_writer.Writer(asked.target(caps), plan)
    compiled = partition_compiler.compile_graph(graph, writer, trust=True)
    for builder, (_, made, _) in zip(compiled.builders, compiled.entries, strict=True):
        assert isinstance(builder, BackendPlan)
        for request in {id(r): r for r in builder.asked}.values():  # some take several launches
            if request.family in asked.families:
                continue
            known = {n: d if isinstance(d, int) else "?" for n, d in request.ints.items()}
            what = tuning_records.in_words({**kernel_choice.described(request), "ints": known})
            yield what, *_why(request, choices.records, offers)
        for launch in made["run"]:
            if launch.get("k") in asked.families:
                yield launch["k"], "of the library", "the only kernel for it"


def _why(
    request: Request, records: kernel_choice.Records, offers: kernel_choice.Offers
) -> tuple[str, str]:
    """The kernel that a launch gets, and why."""
    if request.symbols:
        return "one that takes all sizes", "priced: the sizes are known in a run only"
    key = kernel_choice.cache_key(request)
    prices: Mapping[str, float] = offers.get(key, {})
    if records.get(key) in prices:
        return records[key], f"tuned: the fastest of {len(prices)} by measurement"
    if len(prices) < 2:
        return next(iter(prices), request.family), "the only kernel for it"
    return min(prices, key=prices.__getitem__), f"priced: the cheapest of {len(prices)}"


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
    priced = sum(c.count for c in launches if c.why.startswith("priced"))
    if priced and asked.harness is not None and asked.probe().devices:
        yield Advice(
            f"launches with kernels by price, which were never measured here: {priced}",
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

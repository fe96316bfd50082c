"""Plans whose launches a backend emits."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, recorded_choices
from tracea_onnx.codegen.backend import Backend, Launch, Properties
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.codegen.target import Target
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.plan.builder import PlanBuilder, Ref
from tracea_onnx.plan.extents import Extent, extents, results
from tracea_onnx.runtime.device_caps import Caps, DeviceCaps
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Writer:
    """Writes Plans for one device. `plan(name, probe)` makes an empty one; a probe's Plan is thrown
    away. on_host: whether tensors between partitions and ONNX Runtime lie in the host's memory.
    """

    target: Target
    plan: Callable[[str, bool], PlanBuilder]
    on_host: bool = True


def writer_of(properties: Properties) -> Writer:
    """For the backend and the device that a compile request asks for. Raises TraceaError."""
    name = properties.get("backend", backends.default().name)
    try:
        backend = backends.get(name)
    except UsageError:
        raise TraceaError(
            f"a compile request asks for the backend '{name}', which this version does not have",
            "install the provider and the Python package again",
        ) from None
    device = backend.device(properties)
    choices = kernel_choice.BY_PRICE if device is None else recorded_choices.choices(device)
    return writer(backend, properties, choices)


def writer(
    backend: Backend,
    properties: Properties | None = None,
    choices: kernel_choice.Choices = kernel_choice.BY_PRICE,
) -> Writer:
    """For one graph: its Plans share what was emitted. Without properties they say what would run
    on the device that files are made for, and cannot.
    """
    caps = backend.caps(properties)
    emitter = Emitter(backend, choices)

    def plan(name: str, probe: bool) -> BackendPlan:
        return BackendPlan(
            name, emitter, properties or {}, caps, compile_code=not probe and properties is not None
        )

    return Writer(backend.target(caps), plan, backend.on_host)


class Emitter:
    """The launches for requests, with kernels chosen in one way.

    Networks ask for the same again and again, first to learn what can run: it is emitted once.
    tuned: whether anything but prices counts.
    """

    def __init__(
        self, backend: Backend, choices: kernel_choice.Choices = kernel_choice.BY_PRICE
    ) -> None:
        self.backend, self.families, self._choices = backend, backend.families, choices
        self.tuned = choices != kernel_choice.BY_PRICE
        self._made: dict[tuple[object, ...], Sequence[Launch]] = {}

    def __call__(self, r: Request) -> Sequence[Launch]:
        """Raises NoKernel with a sentence when the backend has none."""
        named = (
            tuple(sorted(r.ints.items())),
            tuple(sorted(r.floats.items())),
            json.dumps(r.program, sort_keys=True),
        )
        key = (r.family, r.dtype, *named, r.operands, r.caps, r.unaligned, r.constant, r.tf32)
        if key not in self._made:
            with kernel_choice.choosing(self._choices):
                self._made[key] = self.backend.emit(r)
        return self._made[key]

    def variant(self, r: Request) -> DimLike:
        """As of the backend, with kernels chosen in this way."""
        with kernel_choice.choosing(self._choices):
            return self.backend.variant(r)

    def substitute(self, r: Request) -> str:
        """As of the backend, with kernels chosen in this way."""
        with kernel_choice.choosing(self._choices):
            return self.backend.substitute(r)


class BackendPlan(PlanBuilder):
    """emit: Plans of one graph share it. caps: the device; kernels do not depend on the host.

    `compile_code=False` leaves code out (the probe of which nodes can run needs only to know that a
    kernel exists). `asked` has what each emitted launch of
    a run was made for.
    """

    def __init__(
        self,
        name: str,
        emit: Emitter,
        properties: Properties,
        caps: Caps | None,
        *,
        compile_code: bool = True,
    ) -> None:
        super().__init__(name, emit.backend.name)
        self._emit, self._properties = emit, properties
        self.caps = caps if isinstance(caps, DeviceCaps) else None
        self.compile_code = compile_code
        self.asked: list[Request] = []
        self._code: dict[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        """The Plan (docs/plan-format.md)."""
        self._compile()
        device = {} if self.caps is None else {"arch": self.caps.arch, "sms": self.caps.sms}
        return {**super().to_json(), **device}

    def _compile(self) -> None:
        """Fill in the code that is still missing."""
        missing = [(source, at) for source, at in self._code.items() if not self.blobs[at]]
        if missing and self.compile_code:
            made = self._emit.backend.compile([source for source, _ in missing], self._properties)
            for (_, at), blob in zip(missing, made, strict=True):
                self.blobs[at] = blob

    def code(self, source: str) -> int:
        """Index of the blob that the source is compiled to."""
        if source not in self._code:
            self.blobs.append(b"")  # `to_json` compiles it
            self._code[source] = len(self.blobs) - 1
        return self._code[source]

    def _append(
        self,
        family: str,
        refs: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float],
        program: Mapping[str, Any] | None,
        dtype: DType,
        to: list[dict[str, Any]],
        instead_of: str = "",
    ) -> None:
        given = {n: r for n, r in refs.items() if r is not None}
        if family in self._emit.families:
            super()._append(family, refs, ints, floats, program, dtype, to)
            if to is self._run and self._emit.tuned:
                asked = instead_of or family
                self._vary(self._request(asked, given, ints, floats, program, dtype, constant=()))
            return
        present = {o: int(ref is not None) for o, ref in refs.items()}
        touched = extents(family, ints, present, dtype.size, border=False)
        made = [touched[o] for o in results(family) & given.keys() & touched.keys()]
        if made and all(e == (0, 0) for e in made):
            return  # no element of a result: kernels need not take such sizes
        constant = [n for n, r in given.items() if self.is_constant(r) and to is self._run]
        request = self._request(family, given, ints, floats, program, dtype, constant)
        try:
            launches = self._emit(request)
        except NoKernel as e:
            raise Unsupported(str(e)) from None
        if to is self._run:
            self._bound(family, refs, touched)
            self.asked += [request] * len(launches)
        sizes = next((k.scratch for k in launches if k.scratch), ())
        places = {**refs, **{f"scratch{k}": self.arena(n) for k, n in enumerate(sizes)}}
        to.extend(self._record(k, places) for k in launches)

    def _request(
        self,
        family: str,
        given: Mapping[str, Ref],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float],
        program: Mapping[str, Any] | None,
        dtype: DType,
        constant: Collection[str],
    ) -> Request:
        return Request(
            family,
            dtype,
            dict(ints),
            dict(floats),
            program,
            frozenset(given),
            cast(DeviceCaps, self.caps),  # None for backends that do not ask
            frozenset(n for n, r in given.items() if multiple_of(r.offset) % 16),
            frozenset(constant),
            self._properties.get("tf32") == "1",
        )

    def substitute(
        self,
        family: str,
        operands: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float] | None,
        program: Mapping[str, Any] | None,
        dtype: DType,
    ) -> str:
        """As `PlanBuilder.substitute`: as was measured."""
        if not self._emit.tuned or family not in self._emit.families:
            return family
        given = {n: r for n, r in operands.items() if r is not None}
        request = self._request(family, given, ints, floats or {}, program, dtype, constant=())
        return self._emit.substitute(request) or family

    def _vary(self, request: Request) -> None:
        """Give the launch that was written last the variant that was measured for it."""
        variant = self._emit.variant(request)
        if variant != 0:
            self._run[-1]["i"].append(self.expr(variant))
        self.asked.append(request)

    def _record(self, launch: Launch, places: Mapping[str, Ref | None]) -> dict[str, Any]:
        return launch.record(self, places)

    def _bound(
        self, family: str, refs: Mapping[str, Ref | None], touched: Mapping[str, Extent]
    ) -> None:
        """Note what the launch may touch of each buffer: a run compares it with the buffers'
        sizes.
        """
        for operand, (low, high) in touched.items():
            ref = refs.get(operand)
            if ref is not None and not (low == 0 and high == 0):
                first, end = (
                    self.expr(D.select(D.less(low, high), ref.offset + e, 0)) for e in (low, high)
                )
                self._extents[ref.buffer, first, end, f"{family} {operand}"] = None

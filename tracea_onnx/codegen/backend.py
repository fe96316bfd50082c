"""What a backend is: everything that the rest of the package asks of the modules of `kernels`.

A module `kernels/<name>.py` (or a package of that name) defines `BACKEND`, an instance of a class
derived from `Backend`. Its native side is a runtime of the same name (`ep/plan/runtime.h`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tracea_onnx.errors import UsageError
from tracea_onnx.support import discovery
from tracea_onnx.support.data_classes import dataclass

if TYPE_CHECKING:  # a session whose Plans are cached needs none of it
    from tracea_onnx.codegen.kernel_request import Request
    from tracea_onnx.codegen.target import Target
    from tracea_onnx.ir.dims import DimLike
    from tracea_onnx.plan.builder import Ref
    from tracea_onnx.runtime.device_caps import Caps
    from tracea_onnx.support.check import Check

#: What a compile request says of itself (docs/plan-format.md, "Compiler callback").
Properties = Mapping[str, str]


@dataclass(frozen=True)
class Probe:
    """devices: those that can be used here, in words. why: where there is none, the reason."""

    devices: tuple[str, ...]
    why: str = ""


class Plan(Protocol):
    """The Plan a launch is written into, as emitters see it."""

    @abstractmethod
    def expr(self, e: DimLike) -> int:
        """Index of an expression."""

    @abstractmethod
    def code(self, source: str) -> int:
        """Index of the blob that `Backend.compile` makes of the source."""


class Launch(Protocol):
    """One launch that computes a request, or a part of it."""

    @property
    @abstractmethod
    def scratch(self) -> Sequence[DimLike]:
        """Bytes of buffers that the launches of a request share; they begin undefined."""

    @abstractmethod
    def record(self, plan: Plan, places: Mapping[str, Ref | None]) -> dict[str, Any]:
        """The launch as the runtime reads it. places: of operands by their name in the family
        (None where absent), and of `scratch<k>`. Only `cubin` may hold the index of a blob.
        """


class Backend(ABC):
    """Devices of one kind. host: whether they compute in the host's memory, so that every machine
    has one.
    """

    name: str
    host: bool = False
    #: Other values of the provider option `backend` that mean some of its devices.
    aliases: frozenset[str] = frozenset()
    #: Whether ONNX Runtime is given its devices, so that tensors of a session may lie there.
    device_memory: bool = True

    @property
    def on_host(self) -> bool:
        """Whether tensors of its sessions lie in the host's memory."""
        return self.host or not self.device_memory

    @property
    def families(self) -> frozenset[str]:
        """Families that the runtime has kernels for: their launches are written as they are."""
        return frozenset()

    @abstractmethod
    def probe(self) -> Probe:
        """Devices and versions found on this machine. Initialises no device: the process may fork
        and use one then.
        """

    @abstractmethod
    def caps(self, properties: Properties | None) -> Caps | None:
        """The device that a compile request is for; of None the one that files are made for, which
        any device may run. None where kernels do not depend on it. Raises UsageError.
        """

    @abstractmethod
    def target(self, caps: Caps | None) -> Target:
        """The `Target` of the device: rates and abilities for lowering."""

    def emit(self, request: Request) -> Sequence[Launch]:
        """The launches that compute one launch of another family. Raises NoKernel with a sentence
        where there is none.
        """
        from tracea_onnx.codegen.kernel_request import NoKernel

        raise NoKernel(f"the backend '{self.name}' has no kernel for {request.family}")

    def configs(self, request: Request, device: Any) -> Mapping[str, float]:
        """The kernels that a request of known sizes could have on a device, by name, and their
        prices: what `tracea-onnx tune` measures.
        """
        from tracea_onnx.codegen import kernel_choice

        offers: kernel_choice.Offers = {}
        with kernel_choice.choosing(kernel_choice.Choices(offers=offers)):
            self.emit(request)
        return offers.get(kernel_choice.cache_key(request), {})

    def variant(self, request: Request) -> DimLike:
        """Number of the kernel variant for a launch of one of `families`; 0 where nothing was
        measured.
        """
        return 0

    def substitute(self, request: Request) -> str:
        """The family that was measured to be better for a launch of another one of `families`; ""
        where none was. `variant` is then of that one.
        """
        return ""

    def memory(self, request: Request) -> int:
        """Bytes that the launches of a request of known sizes need beside its operands."""
        scratch = next((k.scratch for k in self.emit(request) if k.scratch), ())
        return sum(map(int, scratch))

    def device(self, properties: Properties) -> Any:
        """Key of tuning records for this compile request: `backend`, `name` and `identity` of a
        device. None where the request names none, as of a file for any machine.
        """
        return self.caps(properties)

    def compile(self, sources: Sequence[str], properties: Properties) -> list[bytes]:
        """The blobs of the sources that launches have named (`Plan.code`). No device is needed.
        Raises TraceaError.
        """
        assert not sources, "launches name code that nothing compiles"
        return []

    # --- what has a default -----------------------------------------------------------------------
    def attach(self, library: Any) -> None:  # noqa: B027
        """Called before a session that names the backend, with the native library: one whose
        runtime is not in the library adds it (`tests/backends/reference.py`).
        """

    def toolchain(self) -> str:
        """Version of what `compile` calls; "" without one."""
        return ""

    def fingerprint(self, properties: Properties) -> str:
        """Inputs of a Plan besides the request and this package: a cached Plan with another one is
        not used.
        """
        return ""

    def checks(self) -> Iterable[Check]:
        """Lines of `tracea-onnx doctor`. None raises."""
        return ()

    @property
    def harness(self) -> Any:
        """A module that runs and times Plans without ONNX Runtime, as `runtime/cuda_harness.py`
        does; None without one. `tracea-onnx tune` needs it.
        """
        return None


def names() -> tuple[str, ...]:
    """Of all backends of this installation, sorted."""
    return discovery.names("kernels")


def get(name: str) -> Backend:
    """Raises UsageError where this installation has no such backend."""
    if name not in names():
        raise UsageError(
            f"this installation has no backend '{name}'", f"it has {', '.join(names())}"
        )
    backend: Backend = discovery.module("kernels", name).BACKEND
    return backend


def named(option: str) -> Backend | None:
    """The backend that the provider option `backend` means; None where none is called so."""
    if option in names():
        return get(option)
    return next((b for b in map(get, names()) if option in b.aliases), None) if option else None


def usual_target(name: str) -> Target:
    """Of the device that files are made for."""
    backend = get(name)
    return backend.target(backend.caps(None))


def default() -> Backend:
    """The one whose device every machine has."""
    return next(b for b in map(get, names()) if b.host)


def fastest() -> str:
    """Of those that have a device here, the one with the highest rate of arithmetic."""
    by_rate = sorted(names(), key=lambda name: -usual_target(name).rates.gflops)
    return next(name for name in by_rate if get(name).host or get(name).probe().devices)

"""Which kernel a launch gets where several could compute it: the cheapest by price, unless this kind of GPU has measured another to be faster.

Emitters ask `measured` before they go by price. `tracea-onnx tune` listens to what they choose from (`choosing`), measures it and keeps the fastest in a
tuning record: one of each kind of GPU in the cache, a table from what is asked of a launch (`identity`) to the name of a kernel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tracea_onnx import __version__, cuda_ranges
from tracea_onnx import dims as D
from tracea_onnx.cache import Cache
from tracea_onnx.cuda import Request
from tracea_onnx.dims import Dim, DimLike

#: What a launch is (`identity`) to the name of its kernel, or to the prices of those it could have.
Records = Mapping[str, str]
Offers = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Choices:
    """How kernels are chosen: by records and, where these say nothing, by price. What could be chosen is added to `offers`. sizes: values of symbols for which
    kernels are chosen by themselves, though they are within a range."""

    records: Records = field(default_factory=dict)
    offers: Offers | None = None
    sizes: Mapping[str, Collection[int]] = field(default_factory=dict)


BY_PRICE = Choices()

_choices: ContextVar[Choices] = ContextVar("choices", default=BY_PRICE)
_now: ContextVar[Request | None] = ContextVar("now", default=None)


@contextmanager
def choosing(choices: Choices) -> Iterator[None]:
    """Kernels are chosen in this way meanwhile."""
    token = _choices.set(choices)
    try:
        yield
    finally:
        _choices.reset(token)


@contextmanager
def emitting(request: Request) -> Iterator[None]:
    """Kernels are chosen for this request meanwhile."""
    token = _now.set(request)
    try:
        yield
    finally:
        _now.reset(token)


def measured(prices: Mapping[Any, float]) -> Any | None:
    """The tile that was measured to be the fastest of these for the present request; None where none was."""
    request, choices = _now.get(), _choices.get()
    if request is None or choices == BY_PRICE:
        return None
    key = identity(request)
    if choices.offers is not None:
        choices.offers.setdefault(key, {}).update((repr(tile), price) for tile, price in prices.items())
    name = choices.records.get(key)
    return None if name is None else next((tile for tile in prices if repr(tile) == name), None)


def cheapest(prices: Mapping[Any, float]) -> Any:
    """The fastest by measurement or, without one, by price."""
    fastest = measured(prices)
    return min(prices, key=prices.__getitem__) if fastest is None else fastest


def wanted() -> bool:
    """Whether tiles matter that are not among the cheapest: something listens to what could be chosen, or one was measured for this request."""
    request, choices = _now.get(), _choices.get()
    return choices.offers is not None or (request is not None and bool(choices.records) and identity(request) in choices.records)


def points(d: DimLike) -> Iterator[int]:
    """Values of `d` to choose a kernel for, beside those that ranges give: where one was measured."""
    choices = _choices.get()
    if isinstance(d, Dim) and len(d.symbols) == 1:
        for size in choices.sizes.get(d.symbols[0], ()):
            value = D.evaluate(d, {d.symbols[0]: size})
            with cuda_ranges.at(d, value):
                if wanted():
                    yield value


def identity(request: Request, sizes: Mapping[str, int] | None = None) -> str:
    """What a kernel is chosen by: everything about the request, with numbers for its symbols, those in `sizes` or at the low end of the present range; the same
    for a model whose sizes are known and for one that learns them in a run."""
    ints = sorted((name, cuda_ranges.least(d) if sizes is None else D.evaluate(d, dict(sizes))) for name, d in request.ints.items())
    sets = (sorted(request.operands), sorted(request.unaligned), sorted(request.constant))
    whole = (request.family, request.dtype.name, ints, *sets, request.program, request.arch, request.sms, request.tf32)
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


# --- what was measured, on disk ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A kernel that was faster than the one by price: microseconds of a launch with it, and with that one; values of the model's symbols meanwhile."""

    kernel: str
    us: float
    priced_us: float
    sizes: Mapping[str, int]


def load(arch: int, sms: int) -> dict[str, Measured]:
    """The record of a kind of GPU, for this version of the kernels; empty where nothing was measured."""
    data = Cache().get(_name(arch, sms))
    return {} if data is None else {key: Measured(**entry) for key, entry in json.loads(data).items()}


def save(arch: int, sms: int, found: Mapping[str, Measured | None]) -> bool:
    """Add to the record what was found (None: the one by price is the fastest). False where there is no usable cache."""
    kept = {key: entry for key, entry in {**load(arch, sms), **found}.items() if entry is not None}
    return Cache().put(_name(arch, sms), json.dumps({key: vars(entry) for key, entry in kept.items()}, sort_keys=True).encode())


def choices(arch: int, sms: int) -> Choices:
    """What the record of a kind of GPU says."""
    found, sizes = load(arch, sms), dict[str, set[int]]()
    for entry in found.values():
        for name, size in entry.sizes.items():
            sizes.setdefault(name, set()).add(size)
    return Choices({key: entry.kernel for key, entry in found.items()}, sizes=sizes)


def _name(arch: int, sms: int) -> str:
    return f"tuning record of sm_{arch} with {sms} multiprocessors, {__version__}"

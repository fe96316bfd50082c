"""Which kernel a launch gets where several could compute it: the cheapest by price, unless this
kind of GPU has measured another to be faster.

Emitters ask `measured` before they go by price. `tracea-onnx tune` listens to what they choose from
(`choosing`), measures it and keeps the fastest in a tuning record (`tuning_records.py`): a table
from what is asked of a launch (`cache_key`) to the name of a kernel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.scoped_value import override

#: What a launch is (`cache_key`) to the name of its kernel, or to the prices of those it could
#: have.
Records = Mapping[str, str]
Offers = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Choices:
    """How kernels are chosen: by records and, where these say nothing, by price. What could be
    chosen is added to `offers`. sizes: of symbols, for which what was measured gets kernels of its
    own.
    """

    records: Records = field(default_factory=dict)
    offers: Offers | None = None
    sizes: Sequence[Mapping[str, int]] = ()


BY_PRICE = Choices()

_choices: ContextVar[Choices] = ContextVar("choices", default=BY_PRICE)
_now: ContextVar[Request | None] = ContextVar("now", default=None)


def choosing(choices: Choices) -> AbstractContextManager[None]:
    """Kernels are chosen in this way within the block."""
    return override(_choices, choices)


def emitting(request: Request) -> AbstractContextManager[None]:
    """Kernels are chosen for this request within the block."""
    return override(_now, request)


def _present() -> Request | None:
    """The present request, where something else than prices counts for it: never where its sizes
    are not known.
    """
    request = _now.get()
    return None if request is None or _choices.get() == BY_PRICE or request.symbols else request


def measured(prices: Mapping[Any, float]) -> Any | None:
    """The tile that was measured to be the fastest of these for the present request; None where
    none was.
    """
    request, choices = _present(), _choices.get()
    if request is None:
        return None
    key = cache_key(request)
    if choices.offers is not None:
        choices.offers.setdefault(key, {}).update(
            (repr(tile), price) for tile, price in prices.items()
        )
    name = choices.records.get(key)
    return None if name is None else next((tile for tile in prices if repr(tile) == name), None)


def recorded(request: Request) -> str | None:
    """The name of the kernel that was measured to be the fastest for a request of known sizes."""
    return _choices.get().records.get(cache_key(request))


def cheapest(prices: Mapping[Any, float]) -> Any:
    """The fastest by measurement or, without one, by price."""
    fastest = measured(prices)
    return min(prices, key=prices.__getitem__) if fastest is None else fastest


def wanted() -> bool:
    """Whether tiles matter that are not among the cheapest: something listens to what could be
    chosen, or one was measured for this request.
    """
    request, choices = _present(), _choices.get()
    return request is not None and (
        choices.offers is not None or cache_key(request) in choices.records
    )


def tuned_shapes(request: Request) -> Iterator[tuple[DimLike, Request]]:
    """The request with its symbols as numbers for which a kernel was measured, and whether it is
    the one for the sizes of a run.
    """
    symbols, choices = request.symbols, _choices.get()
    if symbols:
        for values in dict.fromkeys(
            tuple(sizes[s] for s in symbols)
            for sizes in choices.sizes
            if sizes.keys() >= set(symbols)
        ):
            known = specialize(request, dict(zip(symbols, values, strict=True)))
            if cache_key(known) in choices.records:
                yield (
                    D.product(
                        [
                            D.equal(D.symbol(s), value)
                            for s, value in zip(symbols, values, strict=True)
                        ]
                    ),
                    known,
                )


def specialize(request: Request, sizes: Mapping[str, int]) -> Request:
    """With these sizes in place of symbols."""
    return replace(
        request, ints={name: D.evaluate(d, dict(sizes)) for name, d in request.ints.items()}
    )


def described(request: Request) -> dict[str, Any]:
    """Description of a request of known sizes, by which similar requests are found."""
    return {"family": request.family, "dtype": request.dtype.name, "ints": dict(request.ints)}


def cache_key(request: Request) -> str:
    """Key of kernel choices: everything about a request of known sizes."""
    sets = (sorted(request.operands), sorted(request.unaligned), sorted(request.constant))
    whole = (
        request.family,
        request.dtype.name,
        sorted(request.ints.items()),
        *sets,
        request.program,
        request.arch,
        request.sms,
        request.tf32,
    )
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

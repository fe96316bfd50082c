"""`dataclass` of the standard library, for classes that every session imports and few use.

Python 3.11 compiles up to seven functions for each data class. For those of the compiler that was
half of the time of its import. Here one is compiled, `__init__`, and only when the first instance
is made; the others are the same for all classes. `fields`, `replace` and `asdict` work as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

C = TypeVar("C", bound=type)
_set = object.__setattr__
#: Stands for the default of a field that a function makes anew.
_MADE = object()


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, kw_only: bool = False
) -> Any:
    def made(cls: C) -> C:
        cls.__doc__ = cls.__doc__ or cls.__name__  # the standard library works out a signature
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        methods: dict[str, Any] = {"__init__": _first_init(cls, frozen), "__repr__": _repr}
        if eq:
            key = _key([f.name for f in dataclasses.fields(cls) if f.compare])
            methods["__eq__"] = _eq(key)
            methods["__hash__"] = (lambda self: hash(key(self))) if frozen else None
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        for name, method in methods.items():
            if name not in cls.__dict__:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _first_init(cls: type, frozen: bool) -> Callable[..., None]:
    """An `__init__` that makes the real one, and gives way to it."""

    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        made = _init(cls, frozen)
        cls.__init__ = made  # type: ignore[misc]
        made(self, *args, **kwargs)

    return __init__


def _init(cls: type, frozen: bool) -> Callable[..., None]:
    places: list[str] = ["self"]
    only_by_name: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {"_set": _set, "_MADE": _MADE}
    for f in dataclasses.fields(cls):
        place, value = f.name, f.name
        if f.default is not dataclasses.MISSING:
            place, names[f"_{f.name}"] = f"{f.name}=_{f.name}", f.default
        elif f.default_factory is not dataclasses.MISSING:
            place, names[f"_{f.name}"] = f"{f.name}=_MADE", f.default_factory
            value = f"_{f.name}() if {f.name} is _MADE else {f.name}"
        (only_by_name if f.kw_only else places).append(place)
        body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join(places + (["*", *only_by_name] if only_by_name else []))
    exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What instances are compared by."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _eq(key: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")

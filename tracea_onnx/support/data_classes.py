"""`dataclass` of the standard library, for classes that every session imports and few use.

Python 3.11 compiles up to seven functions for each data class. For those of the compiler that was
half of the time of its import. Here one is compiled, `__init__`, and only when the first instance
is made; the others are the same for all classes. The standard library looks for fields only when
something asks it for them, since it takes longer than what is read here for `__init__`. `fields`,
`replace` and `asdict` work as ever.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

C = TypeVar("C", bound=type)
#: Held while the standard library changes a class, and those it is derived from.
_looking = threading.RLock()
#: Stands for the default of a field that a function makes anew.
_MADE = object()


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, kw_only: bool = False
) -> Any:
    def made(cls: C) -> C:
        cls.__doc__ = cls.__doc__ or cls.__name__  # the standard library works out a signature
        members: dict[str, Any] = {
            "__dataclass_fields__": _Fields(cls, kw_only),
            "__init__": _first_init(cls, frozen),
            "__repr__": _repr,
        }
        if eq:
            members |= {"__eq__": _first(cls, "__eq__", _eq), "__hash__": None}
            if frozen:
                members["__hash__"] = _first(cls, "__hash__", _hash)
        if frozen:
            members |= {"__setattr__": _refuse, "__delattr__": _refuse}
        for name, member in members.items():
            if name not in cls.__dict__:
                setattr(cls, name, member)
        return cls

    return made if cls is None else made(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


class _Fields:
    """Stands for the fields of a class until something asks for them."""

    def __init__(self, cls: type, kw_only: bool) -> None:
        self._cls, self.kw_only = cls, kw_only

    def __get__(self, instance: object, owner: type) -> Any:
        cls = self._cls
        with _looking:
            if cls.__dict__["__dataclass_fields__"] is self:
                dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=self.kw_only)(cls)
        return cls.__dict__["__dataclass_fields__"]


class _Field(NamedTuple):
    """A field of a class. factory: makes the default."""

    name: str
    default: Any
    factory: Callable[[], Any] | None
    compare: bool
    kw_only: bool


def _own_fields(cls: type) -> list[_Field]:
    """As the standard library finds them, of annotations that are text."""
    found: dict[str, _Field] = {}
    for base in reversed(cls.__mro__):
        ours = base.__dict__.get("__dataclass_fields__")
        if ours is None:
            continue
        if not isinstance(ours, _Fields):  # which the standard library knows already
            for f in ours.values():
                if f._field_type is dataclasses._FIELD:  # type: ignore[attr-defined]
                    found[f.name] = _field(f.name, f, f.kw_only)
            continue
        for name, of in base.__annotations__.items():
            if not str(of).startswith("ClassVar["):
                given = base.__dict__.get(name, dataclasses.MISSING)
                found[name] = _field(name, given, ours.kw_only)
    return list(found.values())


def _field(name: str, given: Any, kw_only: bool) -> _Field:
    if not isinstance(given, dataclasses.Field):
        return _Field(name, given, None, True, kw_only)
    made = None if given.default_factory is dataclasses.MISSING else given.default_factory
    by_name = kw_only if given.kw_only is dataclasses.MISSING else bool(given.kw_only)
    return _Field(name, given.default, made, given.compare, by_name)


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
    body = ["_d = self.__dict__"] if frozen else []
    names: dict[str, Any] = {"_MADE": _MADE}
    for f in _own_fields(cls):
        place, value = f.name, f.name
        if f.factory is not None:
            place, names[f"_{f.name}"] = f"{f.name}=_MADE", f.factory
            value = f"_{f.name}() if {f.name} is _MADE else {f.name}"
        elif f.default is not dataclasses.MISSING:
            place, names[f"_{f.name}"] = f"{f.name}=_{f.name}", f.default
        (only_by_name if f.kw_only else places).append(place)
        body.append(f"_d[{f.name!r}] = {value}" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join(places + (["*", *only_by_name] if only_by_name else []))
    exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _first(cls: type, name: str, make: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """A method that makes the real one of what instances are compared by, and gives way to it."""

    def method(self: Any, *other: object) -> Any:
        made = make(_key([f.name for f in _own_fields(cls) if f.compare]))
        setattr(cls, name, made)
        return made(self, *other)

    return method


def _key(names: list[str]) -> Callable[[Any], Any]:
    """Tuple that instances are compared by."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _eq(key: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(key: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda self: hash(key(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")

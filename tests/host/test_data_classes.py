"""`tracea_onnx.support.data_classes` against the standard library's."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from tracea_onnx.support import data_classes


@data_classes.dataclass(frozen=True)
class Point:
    x: int
    y: float = 2.0
    names: list[str] = field(default_factory=list, compare=False, repr=False)


@data_classes.dataclass(frozen=True, kw_only=True)
class Named(Point):
    label: str
    seen: bool = False


@data_classes.dataclass
class Count:
    total: int = 0

    def __post_init__(self) -> None:
        self.total += 1


@data_classes.dataclass(frozen=True)
class One:
    only: Any


@data_classes.dataclass(frozen=True, eq=False)
class Alone:
    x: int


def test_init_takes_what_the_standard_library_takes() -> None:
    assert (Point(1).x, Point(1).y, Point(y=3.0, x=1).y) == (1, 2.0, 3.0)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]
    assert Point(1).names is not Point(1).names


def test_a_subclass_has_the_fields_of_both() -> None:
    made = Named(1, label="a")
    assert [f.name for f in fields(made)] == ["x", "y", "names", "label", "seen"]
    assert made == Named(1, label="a") != Named(1, label="b")
    assert made != Point(1)
    with pytest.raises(TypeError):
        Named(1, 2.0, [], "a")  # type: ignore[call-arg]


def test_the_first_instance_of_a_subclass_comes_before_one_of_its_base() -> None:
    @data_classes.dataclass(frozen=True)
    class Base:
        x: int

    @data_classes.dataclass(frozen=True)
    class Derived(Base):
        y: int

    assert (Derived(1, 2).x, Derived(1, 2).y, Base(3).x) == (1, 2, 3)


def test_frozen_instances_do_not_change() -> None:
    point: Any = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2
    with pytest.raises(FrozenInstanceError):
        del point.x
    count = Count(4)
    count.total = 9
    assert count.total == 9


def test_equality_and_hash() -> None:
    assert Point(1, names=["a"]) == Point(1) and hash(Point(1, names=["a"])) == hash(Point(1))
    one: object = One(1)
    assert Point(1) != Point(2) and Point(1) != one
    not_itself = float("nan")
    assert One(not_itself) == One(not_itself)  # as tuples compare
    assert len({One(1), One(1), One(2)}) == 2
    assert Alone(1) != Alone(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Count())


def test_functions_of_the_standard_library() -> None:
    assert replace(Named(1, label="a"), y=5.0) == Named(1, 5.0, label="a")
    assert asdict(Point(1)) == {"x": 1, "y": 2.0, "names": []}
    assert Count(4).total == 5
    for copied in (copy.deepcopy(Point(1)), pickle.loads(pickle.dumps(Point(1)))):
        assert copied == Point(1)
    match Point(1):
        case Point(x, y):
            assert (x, y) == (1, 2.0)


def test_repr_is_the_standard_librarys() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2.0)"
    assert repr(One(Point(1))) == "One(only=Point(x=1, y=2.0))"


def test_a_method_of_the_class_stays() -> None:
    @data_classes.dataclass(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), hash(Own(1)), Own(1) == Own(1)) == ("own", 7, True)

"""Symbolic dims: simplification never changes a value."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracea_onnx.ir import dims as D
from tracea_onnx.plan.builder import PlanBuilder

BINARY: dict[str, tuple[Callable[[D.DimLike, D.DimLike], D.DimLike], Callable[[int, int], int]]] = {
    "add": (D.add, lambda a, b: a + b),
    "sub": (D.sub, lambda a, b: a - b),
    "mul": (D.mul, lambda a, b: a * b),
    "floordiv": (D.floordiv, lambda a, b: a // b),
    "ceildiv": (D.ceildiv, lambda a, b: -(-a // b)),
    "mod": (D.mod, lambda a, b: a % b),
    "max": (D.maximum, max),
    "min": (D.minimum, min),
    "eq": (D.equal, lambda a, b: int(a == b)),
    "lt": (D.less, lambda a, b: int(a < b)),
}
ENV = {"a": 1, "b": 7, "c": 12}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[D.DimLike, int]:
    """An expression and its value under ENV."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(ENV)))
            return D.symbol(name), ENV[name]
        k = draw(st.integers(-3, 13))
        return k, k
    (a, x), (b, y) = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    name = draw(st.sampled_from(sorted(BINARY)))
    if name in ("floordiv", "ceildiv", "mod") and y <= 0:
        return a, x
    make, value = BINARY[name]
    return make(a, b), value(x, y)


@given(expressions())
def test_simplified_value_equals_plain_arithmetic(case: tuple[D.DimLike, int]) -> None:
    expression, value = case
    assert D.evaluate(expression, ENV) == value


def test_equal_structure_is_one_object() -> None:
    n, s = D.symbol("n"), D.symbol("s")
    assert D.mul(n, s) is D.mul(s, n)
    assert D.add(D.add(n, 2), s) is D.add(s, D.add(2, n))
    assert D.sub(D.add(n, 3), n) == 3
    assert D.floordiv(D.mul(n, 12), D.mul(n, 4)) == 3
    assert D.floordiv(D.mul(D.mul(n, s), 64), s) is D.mul(n, 64)
    assert D.maximum(n, 0) is n


def test_a_symbol_has_no_value_of_its_own() -> None:
    with pytest.raises(TypeError, match="not known"):
        bool(D.symbol("n"))
    with pytest.raises(TypeError, match="before the input shapes"):
        range(D.symbol("n"))


def test_quotients_of_sums() -> None:
    a, b = D.symbol("a"), D.symbol("b")
    assert D.quotient(D.product([a, 16, b + 1, 64]), D.mul(b + 1, 64)) is D.mul(a, 16)
    assert D.floordiv(D.mul(D.mul(b + 1, a), 16), D.mul(a, 16)) is b + 1
    assert D.quotient(b + 1, 2) is None and D.quotient(D.mul(a, b) + a, a) is b + 1
    assert D.factors(D.mul(a, 6) + 9) == (3, {D.mul(a, 2) + 3: 1})


def test_a_dim_that_an_exporter_spells_as_a_sum() -> None:
    a, known = D.symbol("a"), frozenset("ab")
    assert D.named("a + 1", known) is a + 1 and D.named("2*(a//4)", known) is D.mul(
        D.floordiv(a, 4), 2
    )
    for text in ("a", "c", "c + 1", "Min(a, b)", "a.b", "a + ", "a**2", "a + 1.5"):
        d = D.named(text, known)
        assert isinstance(d, D.Dim) and d.op == "sym" and d.name == text


def test_what_shares_its_parts_stays_small() -> None:
    """A model that computes sizes from sizes: spelled out they would double with each step."""
    n: D.DimLike = D.symbol("n")
    for k in range(2, 60):
        n = D.floordiv(D.mul(n, D.add(n, k)), k)
    assert len(repr(n)) < 500 and D.symbols(n) == ("n",)
    plan = PlanBuilder("p", "cpu")
    plan.define_symbol("n", 0, 0)
    assert plan.expr(n) == plan.expr(n) < 300


def test_symbols_can_be_replaced() -> None:
    n, m = D.symbol("n"), D.symbol("m")
    for e in (
        D.mul(D.add(n, 3), m),
        D.select(D.less(n, m), D.ceildiv(n, 8), D.mod(m, 5)),
        D.maximum(D.sub(n, m), D.minimum(n, 7)),
        D.equal(n, m),
        5,
    ):
        scaled = D.replaced(e, {"n": D.mul(D.symbol("eighth"), 8)})
        assert "n" not in D.symbols(scaled)
        for k in range(6):
            assert D.evaluate(scaled, {"eighth": k, "m": 11}) == D.evaluate(
                e, {"n": 8 * k, "m": 11}
            )


def test_expressions_nothing_refers_to_are_let_go() -> None:
    kept = D.add(D.symbol("kept_a"), D.symbol("kept_b"))
    product = D.mul(D.symbol("gone_a"), D.symbol("gone_b"))
    assert isinstance(product, D.Dim)
    gone = weakref.ref(product)
    before = len(D._pool)
    assert D._recent.maxlen is not None
    del product
    for last in (D._recent.clear, D._add.cache_clear, D._mul.cache_clear):
        last()
    gc.collect()
    assert gone() is None and len(D._pool) <= before - 3
    assert D.add(D.symbol("kept_b"), D.symbol("kept_a")) is kept


def test_threads_that_make_an_expression_at_once_get_one_object() -> None:
    start, found = threading.Barrier(8), []

    def make() -> None:
        start.wait()
        found.append([D.add(D.mul(D.symbol(f"t{k}"), D.symbol("u")), k) for k in range(200)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8 and all(len({id(made[k]) for made in found}) == 1 for k in range(200))


def test_shared_parts_are_evaluated_once() -> None:
    d: D.DimLike = D.symbol("x")
    for k in range(200):
        d = D.maximum(D.add(d, 1), D.mod(d, k + 2))
    assert D.evaluate(d, {"x": 1}) == 201 and D.never_negative(d)


_NESTED, _LONG = "(" * 90 + "a" + ")" * 90, "9" * 300 + "**" + "9" * 9


@pytest.mark.parametrize(
    "text",
    [
        "4//0",
        "a//0",
        "a//(2-4)",
        "+".join(["a"] * 3000),
        _NESTED,
        "-" * 5000 + "a",
        _LONG,
        "a.b",
        "",
        "\0",
        "9" * 20,
        "9" * 18 + "*99",
    ],
)
def test_a_hostile_name_is_a_symbol(text: str) -> None:
    d = D.named(text, {"a"})
    assert isinstance(d, D.Dim) and (d.op == "sym" or d is D.symbol("a"))


def test_factors_of_what_shares_its_parts_are_not_spelled_out() -> None:
    """A tower of squares has 2 to the power of its height factors."""
    d: D.DimLike = D.symbol("n")
    for _ in range(20):
        d = D.mul(d, d)
    assert isinstance(d, D.Dim) and D.factors(d) == (1, {d: 1})


@pytest.mark.parametrize("b", [1, 2, 3, -1, -3])
def test_quotients_are_rounded_toward_zero(b: int) -> None:
    """As ONNX divides integers, whatever the sign of what is divided."""
    n = D.symbol("n")
    for a in (n, D.sub(n, 8), D.sub(3, n), D.mul(n, 6), -7, 7, 2**62 + 1):
        e = D.truncdiv(a, b)
        assert e is not None
        for k in range(20):
            value = D.evaluate(a, {"n": k})
            assert D.evaluate(e, {"n": k}) == (abs(value) // abs(b)) * (
                1 if (value < 0) == (b < 0) else -1
            )
    assert (
        D.truncdiv(n, 0) is None and D.truncdiv(7, 0) is None and D.truncdiv(n, D.sub(n, 8)) is None
    )
    assert D.truncdiv(n, 2) is D.floordiv(n, 2)

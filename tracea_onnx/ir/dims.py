"""Symbolic integers: the dims of a Plan, evaluated natively once per set of input shapes.

A dim is an `int` or a `Dim`: a node of a hash-consed expression over symbols. A symbol stands for
one dimension of the partition's inputs (several inputs may share it: the EP checks they agree).
Simplification is modest and exact.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import math
import operator
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from weakref import WeakValueDictionary

from tracea_onnx.support.data_classes import dataclass

#: Operators of the Plan's expression table; order is the native ABI. floordiv and mod take positive
#: divisors.
EXPR_OPS = (
    "const",
    "sym",
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "max",
    "min",
    "eq",
    "lt",
    "select",
)


@dataclass(frozen=True, eq=False)
class Dim:
    """One expression node. Equal structure is the same object, so `==` and `is` agree. symbols:
    those it depends on, in order; natural: it is never negative; divisor: an integer that divides
    it whatever its symbols are; length: operators and operands as if nothing was shared (at most
    _LONGEST_SPELLED); depth: how deep they are nested.
    """

    op: str
    args: tuple[DimLike, ...]
    name: str
    text: str
    symbols: tuple[str, ...]
    natural: bool
    divisor: int
    length: int
    depth: int

    def __add__(self, o: DimLike) -> DimLike:
        return add(self, o)

    __radd__ = __add__

    def __sub__(self, o: DimLike) -> DimLike:
        return sub(self, o)

    def __rsub__(self, o: DimLike) -> DimLike:
        return sub(o, self)

    def __mul__(self, o: DimLike) -> DimLike:
        return mul(self, o)

    __rmul__ = __mul__

    def __floordiv__(self, o: DimLike) -> DimLike:
        return floordiv(self, o)

    def __mod__(self, o: DimLike) -> DimLike:
        return mod(self, o)

    def __repr__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of symbolic dim {self!r} is not known")

    def __index__(self) -> int:
        raise TypeError(f"symbolic dim {self!r} has no value before the input shapes are known")


DimLike = int | Dim
#: How many of the last expressions, sums and products are kept: most are soon asked for again.
_KEPT = 1 << 14
#: Every expression that something still refers to, and the last that were made. Only what holds the
#: lock adds one, so that threads share one object, too.
_pool: WeakValueDictionary[tuple[object, ...], Dim] = WeakValueDictionary()
_recent: deque[Dim] = deque(maxlen=_KEPT)
_adding = threading.Lock()
#: Characters of a node that is spelled out.
_LONGEST = 400
#: Nesting of expressions that is followed from one value to the next: what looks at them recurses.
DEEPEST = 100
#: Length of a node whose factors are not looked for: nodes share parts, so that there may be as
#: many as 2 to the power of its depth.
_LONGEST_SPELLED = 1 << 14


def _make(op: str, args: tuple[DimLike, ...], name: str = "") -> Dim:
    # A node keeps its operands alive, and its entry goes before they do: no id in a key is that of
    # another one meanwhile.
    key = (op, tuple(a if isinstance(a, int) else ("d", id(a)) for a in args), name)
    known = _pool.get(key)
    if known is None:
        symbols = dict.fromkeys(s for a in args if isinstance(a, Dim) for s in a.symbols)
        length = min(1 + sum(a.length if isinstance(a, Dim) else 1 for a in args), _LONGEST_SPELLED)
        depth = 1 + max((a.depth for a in args if isinstance(a, Dim)), default=0)
        made = Dim(
            op,
            args,
            name,
            name or _text(op, args),
            (name,) if name else tuple(symbols),
            _natural(op, args),
            _divisor(op, args),
            length,
            depth,
        )
        with _adding:
            known = _pool.get(key)
            if known is None:
                known = _pool[key] = made
                _recent.append(made)
    return known


def _natural(op: str, args: tuple[DimLike, ...]) -> bool:
    """Whether a node is at least 0 by what is known of its operands: symbols are counts."""
    if op == "max":
        return any(map(never_negative, args))
    if op == "select":
        return all(map(never_negative, args[1:]))
    return op in ("sym", "eq", "lt") or (
        op in ("add", "mul", "min", "floordiv", "mod") and all(map(never_negative, args))
    )


def _divisor(op: str, args: tuple[DimLike, ...]) -> int:
    """An integer that divides a node by what is known of its operands."""
    if op == "mul":
        return factor(args[0]) * factor(args[1])
    if op in ("add", "sub", "max", "min"):
        return math.gcd(factor(args[0]), factor(args[1]))
    return math.gcd(factor(args[1]), factor(args[2])) if op == "select" else 1


def _text(op: str, args: tuple[DimLike, ...]) -> str:
    """How the node is written and ordered.

    Nodes share parts, so that what is spelled out may be as long as 2 to the power of its depth: a
    digest stands for more.
    """
    whole = f"{op}({', '.join(map(repr, args))})"
    return (
        whole
        if len(whole) <= _LONGEST
        else f"{op}#{hashlib.sha256(whole.encode()).hexdigest()[:24]}"
    )


def symbol(name: str) -> Dim:
    """The symbol called `name`; one name is one value throughout a partition."""
    return _make("sym", (), name)


_OPERATORS: dict[type[ast.operator], Callable[[DimLike, DimLike], DimLike]] = {}


def named(text: str, known: Collection[str]) -> DimLike:
    """The dim that `dim_param` names: a sum, product or quotient of `known` symbols where an
    exporter spelled one, else a symbol.
    """
    if text in known or text.isidentifier() or len(text) > _LONGEST:
        return symbol(text)

    def read(e: ast.expr) -> DimLike:
        if isinstance(e, ast.Constant) and type(e.value) is int:
            return e.value
        if isinstance(e, ast.Name) and e.id in known:
            return symbol(e.id)
        if isinstance(e, ast.BinOp) and type(e.op) in _OPERATORS:
            left, right = read(e.left), read(e.right)
            if isinstance(e.op, ast.FloorDiv) and isinstance(right, int) and right <= 0:
                raise ValueError(text)
            return _OPERATORS[type(e.op)](left, right)
        raise ValueError(text)

    try:
        found = read(ast.parse(text, mode="eval").body)
        usable = 0 <= found < 1 << 63 if isinstance(found, int) else found.depth <= DEEPEST
        return found if usable else symbol(text)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return symbol(text)


def never_negative(e: DimLike) -> bool:
    """Whether `e` is at least 0 whatever its symbols are, which are counts (False where that does
    not show).
    """
    return e >= 0 if isinstance(e, int) else e.natural


def _order(a: DimLike, b: DimLike) -> tuple[DimLike, DimLike]:
    if isinstance(a, int) and not isinstance(b, int):
        return b, a
    if isinstance(a, Dim) and isinstance(b, Dim) and repr(b) < repr(a):
        return b, a
    return a, b


def add(a: DimLike, b: DimLike) -> DimLike:
    """A + b."""
    return a + b if isinstance(a, int) and isinstance(b, int) else _add(a, b)


@lru_cache(_KEPT)
def _add(a: DimLike, b: DimLike) -> DimLike:
    terms: dict[DimLike, int] = {}
    const = _collect(a, 1, terms) + _collect(b, 1, terms)
    return _rebuild(terms, const)


def sub(a: DimLike, b: DimLike) -> DimLike:
    """A - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    terms: dict[DimLike, int] = {}
    const = _collect(a, 1, terms) + _collect(b, -1, terms)
    return _rebuild(terms, const)


def total(values: Sequence[DimLike]) -> DimLike:
    """The sum of all values; 0 for none."""
    terms: dict[DimLike, int] = {}
    const = sum(_collect(v, 1, terms) for v in values)
    return _rebuild(terms, const)


def too_deep(values: Iterable[object]) -> bool:
    """Whether one of them is nested too deep to be followed."""
    return any(isinstance(v, Dim) and v.depth > DEEPEST for v in values)


def _collect(e: DimLike, scale: int, terms: dict[DimLike, int]) -> int:
    """Add `scale * e` into linear `terms`; return its constant part."""
    if isinstance(e, int):
        return scale * e
    if e.op == "add":
        return _collect(e.args[0], scale, terms) + _collect(e.args[1], scale, terms)
    if e.op == "sub":
        return _collect(e.args[0], scale, terms) + _collect(e.args[1], -scale, terms)
    if e.op == "mul" and isinstance(e.args[1], int):
        return _collect(e.args[0], scale * e.args[1], terms)
    terms[e] = terms.get(e, 0) + scale
    return 0


def _rebuild(terms: dict[DimLike, int], const: int) -> DimLike:
    out: DimLike | None = None
    for t in sorted((t for t, k in terms.items() if k), key=repr):
        k = terms[t]
        piece = t if k == 1 else _make("mul", (t, k))
        out = piece if out is None else _make("add", (out, piece))
    if out is None:
        return const
    return out if const == 0 else _make("add", (out, const))


def mul(a: DimLike, b: DimLike) -> DimLike:
    """A * b."""
    return a * b if isinstance(a, int) and isinstance(b, int) else _mul(a, b)


@lru_cache(_KEPT)
def _mul(a: DimLike, b: DimLike) -> DimLike:
    a, b = _order(a, b)
    if isinstance(b, int):
        terms: dict[DimLike, int] = {}
        const = _collect(a, b, terms)
        return _rebuild(terms, const)
    if isinstance(a, Dim) and a.op == "mul" and isinstance(a.args[1], int):
        return mul(mul(a.args[0], b), a.args[1])
    if isinstance(b, Dim) and b.op == "mul" and isinstance(b.args[1], int):
        return mul(mul(a, b.args[0]), b.args[1])
    return _make("mul", (a, b))


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """A // b, rounded down."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a is b:
        return 1
    if isinstance(a, Dim) and a.op == "mul":
        if a.args[1] is b:
            return a.args[0]
        if a.args[0] is b:
            return a.args[1]
        if isinstance(b, int) and isinstance(a.args[1], int) and a.args[1] % b == 0:
            return mul(a.args[0], a.args[1] // b)
        if (
            isinstance(a.args[1], int)
            and isinstance(a.args[0], Dim)
            and a.args[0].op == "mul"
            and b in a.args[0].args
        ):
            return mul(floordiv(a.args[0], b), a.args[1])
        if (
            isinstance(b, Dim)
            and b.op == "mul"
            and isinstance(b.args[1], int)
            and a.args[0] is b.args[0]
            and isinstance(a.args[1], int)
            and a.args[1] % b.args[1] == 0
        ):
            return a.args[1] // b.args[1]
    exact = quotient(a, b)
    return _make("floordiv", (a, b)) if exact is None else exact


def factors(d: DimLike) -> tuple[int, Counter[Dim]]:
    """`d` as an integer times a multiset of what has no factors that show."""
    if isinstance(d, int):
        return d, Counter()
    if d.length == _LONGEST_SPELLED:
        return 1, Counter({d: 1})
    if d.op == "mul":
        (a, fa), (b, fb) = factors(d.args[0]), factors(d.args[1])
        return a * b, fa + fb
    if d.op not in ("add", "sub"):
        return 1, Counter({d: 1})
    terms: dict[DimLike, int] = {}
    const = _collect(d, 1, terms)
    parts = [(k * n, f) for t, k in terms.items() if k for n, f in (factors(t),)] + (
        [(const, Counter[Dim]())] if const else []
    )
    whole = math.gcd(*(k for k, _ in parts))
    common = functools.reduce(lambda x, y: x & y, (f for _, f in parts))
    if whole <= 1 and not common:
        return 1, Counter({d: 1})
    rest: DimLike = 0
    for k, f in parts:
        rest = add(rest, mul(product(list((f - common).elements())), k // whole))
    return (whole * rest, common) if isinstance(rest, int) else (whole, common + Counter({rest: 1}))


def quotient(a: DimLike, b: DimLike) -> DimLike | None:
    """a / b when that is whole for every value of the symbols (of which b is not 0), else None."""
    (ka, fa), (kb, fb) = factors(a), factors(b)
    if kb == 0 or ka % kb or fb - fa:
        return None
    out: DimLike = ka // kb
    for d, power in sorted((fa - fb).items(), key=lambda kv: repr(kv[0])):
        for _ in range(power):
            out = mul(out, d)
    return out


_OPERATORS |= {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv}


def truncdiv(a: DimLike, b: DimLike) -> DimLike | None:
    """a / b rounded toward zero, as ONNX divides integers; None where b is 0 or its sign is not
    known.
    """
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if (a < 0) == (b < 0) else -(-a // b)
    exact = quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and b < 0:
        return truncdiv(mul(a, -1), -b)
    if not never_negative(b):
        return None
    if never_negative(a):
        return floordiv(a, b)
    # One of the two terms is 0: which one, only a run knows.
    return sub(floordiv(maximum(a, 0), b), floordiv(maximum(mul(a, -1), 0), b))


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """A / b, rounded up."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return floordiv(add(a, sub(b, 1)), b)


def mod(a: DimLike, b: DimLike) -> DimLike:
    """A % b, with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or a is b:
        return 0
    return _make("mod", (a, b))


def _fold(op: str, f: Callable[[int, int], int]) -> Callable[[DimLike, DimLike], DimLike]:
    def apply(a: DimLike, b: DimLike) -> DimLike:
        if isinstance(a, int) and isinstance(b, int):
            return f(a, b)
        if a is b and op in ("max", "min"):
            return a
        if op == "eq" and (a is b or (isinstance(b, int) and b < 0 and never_negative(a))):
            return int(a is b)
        if op == "lt" and b == 0 and never_negative(a):
            return 0
        if op == "max" and b == 0 and never_negative(a):
            return a
        if op == "min" and b == 0 and never_negative(a):
            return 0
        return _make(op, (a, b))

    return apply


maximum = _fold("max", max)
minimum = _fold("min", min)
equal = _fold("eq", lambda a, b: int(a == b))
less = _fold("lt", lambda a, b: int(a < b))


def select(cond: DimLike, a: DimLike, b: DimLike) -> DimLike:
    """`a` where `cond` is non-zero, else `b`."""
    if isinstance(cond, int):
        return a if cond else b
    return a if a is b or a == b else _make("select", (cond, a, b))


def product(dims: Sequence[DimLike]) -> DimLike:
    """The product of all dims; 1 for none."""
    out: DimLike = 1
    for d in dims:
        out = mul(out, d)
    return out


def round_up(a: DimLike, m: int) -> DimLike:
    """The least multiple of m that is at least a."""
    return mul(ceildiv(a, m), m)


def is_static(dims: Sequence[DimLike]) -> bool:
    """Whether no dim is symbolic."""
    return all(isinstance(d, int) for d in dims)


def symbols(e: DimLike) -> tuple[str, ...]:
    """Names of the symbols an expression depends on, in order."""
    return e.symbols if isinstance(e, Dim) else ()


#: What makes the operations, of dims and of numbers (the native evaluator's reference).
_BUILD: Mapping[str, Callable[..., DimLike]] = {
    "add": add, "sub": sub, "mul": mul, "floordiv": floordiv, "mod": mod, "max": maximum,
    "min": minimum, "eq": equal, "lt": less, "select": select,
}  # fmt: skip
VALUES: Mapping[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "max": max, "min": min,
    "eq": lambda a, b: int(a == b), "lt": lambda a, b: int(a < b), "select": lambda cond, a,
    b: a if cond else b,
}  # fmt: skip


def replaced(e: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    """`e` with these in place of the symbols of that name."""
    done: dict[Dim, DimLike] = {}  # expressions share parts

    def go(d: DimLike) -> DimLike:
        if not isinstance(d, Dim) or not values.keys() & set(d.symbols):
            return d
        if d not in done:
            done[d] = values[d.name] if d.op == "sym" else _BUILD[d.op](*map(go, d.args))
        return done[d]

    return go(e)


def evaluate(e: DimLike, env: Mapping[str, int]) -> int:
    """Value of `e` when the symbols have the values in `env`."""
    done: dict[Dim, int] = {}  # expressions share parts

    def go(d: DimLike) -> int:
        if not isinstance(d, Dim):
            return d
        if d not in done:
            done[d] = env[d.name] if d.op == "sym" else VALUES[d.op](*map(go, d.args))
        return done[d]

    return go(e)


def factor(e: DimLike) -> int:
    """An integer that divides `e` whatever its symbols are; 0 divides only 0."""
    return abs(e) if isinstance(e, int) else e.divisor


def multiple_of(e: DimLike) -> int:
    """The largest power of two up to 4096 that is known to divide `e`."""
    f = factor(e)
    return min(f & -f, 4096) if f else 4096

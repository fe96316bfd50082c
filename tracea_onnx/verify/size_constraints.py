"""What the operators of a model ask of the sizes of its inputs.

One pass over the nodes follows the dims of every value as expressions over the inputs' dims
(`shapes.symbolic`), also through the bodies of If, Loop and Scan, and notes what each operator asks
of them: sizes that are equal (channels of a convolution, rows of a product, states of a recurrent
network, what broadcasts), least sizes (windows that fit, elements that are taken), most (tables).
"""

from __future__ import annotations

import math

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import Dim, DimLike

#: Length of an expression that is not looked into.
_LONG = 1000


class Facts:
    """Sizes by symbol (`bound`), and what else was asked.

    `own` are the symbols of the inputs; others stand for what is not followed.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self.own = own
        self.bound: dict[str, DimLike] = {}
        self.equal: list[tuple[DimLike, DimLike]] = []
        self.least: list[tuple[DimLike, int]] = []
        self.most: list[tuple[DimLike, int]] = []
        #: Symbols of heights and widths of images, and whether the model takes images at all.
        self.spatial: set[str] = set()
        self.images = False
        #: How many elements the values have that depend on inputs.
        self.counts: set[DimLike] = set()
        #: Symbols of first axes: of batches, where a total is fixed.
        self.leading: set[str] = set()

    def now(self, d: DimLike) -> DimLike:
        """`d` with what is known of its symbols."""
        while (
            isinstance(d, Dim)
            and any(s in self.bound for s in d.symbols)
            and not dims.too_deep((d,))
        ):
            d = dims.replaced(d, self.bound)
        return d

    def same(self, a: DimLike, b: DimLike) -> None:
        """Note that the two are equal.

        What contradicts something noted before is left out: it was of another branch, or
        broadcasts.
        """
        a, b = _without_common(self.now(a), self.now(b))
        if (isinstance(a, int) and isinstance(b, int)) or a is b:
            return
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Dim) and x.op == "min" and any(e is y for e in x.args):
                self.most += [(y, e) for e in x.args if isinstance(e, int)]
                return
        ways = [
            (x.name, y)
            for x, y in ((a, b), (b, a))
            if isinstance(x, Dim) and x.op == "sym" and self._may_be(x.name, y)
        ]
        ways.sort(key=lambda w: w[0] in self.own)
        ways = ways or self._linear(dims.sub(a, b))
        if ways:
            name, value = ways[0]
            if dims.too_deep((value,)):
                self.equal.append((a, b))
            elif not isinstance(value, int) or value > 0:
                self.bound[name] = value
        else:
            self.equal.append((a, b))

    def again(self) -> None:
        """Look at the equations once more, until they tell nothing new."""
        known = -1
        while known < len(self.bound):
            known, equal = len(self.bound), self.equal
            self.equal = []
            for a, b in equal:
                self.same(a, b)

    def _linear(self, d: DimLike) -> list[tuple[str, DimLike]]:
        """A symbol and its value where `d`, which is 0, is a multiple of the symbol plus what
        depends on others.
        """
        out: list[tuple[str, DimLike]] = []
        for name in dims.symbols(d):
            rest = dims.replaced(d, {name: 0}) if _divides_by_none(d) else d
            slope = dims.sub(dims.replaced(d, {name: 1}), rest) if rest is not d else 0
            if (
                isinstance(slope, int)
                and slope
                and dims.sub(d, dims.mul(dims.symbol(name), slope)) == rest
            ):
                value = dims.quotient(dims.mul(rest, -1 if slope > 0 else 1), abs(slope))
                if value is not None and dims.never_negative(value) and self._may_be(name, value):
                    out.append((name, value))
        return out

    def _may_be(self, name: str, value: DimLike) -> bool:
        used = dims.symbols(value)
        return name not in used and (name not in self.own or all(s in self.own for s in used))


def _without_common(a: DimLike, b: DimLike) -> tuple[DimLike, DimLike]:
    """The two sides of an equation without the factors they share."""
    (ka, fa), (kb, fb) = dims.factors(a), dims.factors(b)
    common, whole = fa & fb, math.gcd(ka, kb)
    if not whole or (not common and whole == 1):
        return a, b
    return tuple(
        dims.mul(dims.product(sorted((f - common).elements(), key=repr)), k // whole)
        for k, f in ((ka, fa), (kb, fb))
    )  # type: ignore[return-value]


def _divides_by_none(d: DimLike) -> bool:
    """Whether no symbol is a divisor, so that any may be 0."""
    if isinstance(d, Dim) and d.length > _LONG:
        return False
    return isinstance(d, int) or (
        (d.op not in ("floordiv", "mod") or isinstance(d.args[1], int))
        and all(map(_divides_by_none, d.args))
    )

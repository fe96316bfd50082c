"""Solves what operators ask of the sizes of inputs (`size_constraints`), with guesses for what they
leave open.

A symbol that one equation decides gets that size; heights and widths that only their product
decides (patches beside a table of positions) are equal; a total that is fixed is of one batch.
Sizes that many would do are the roundest, by powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.verify.size_constraints import Facts

#: Height to width of images that are not square.
_RATIOS = ((3, 4), (4, 3), (9, 16), (16, 9), (1, 2), (2, 1))
#: No size is larger.
_LARGEST = 1 << 26


class Solver:
    """Sizes of the inputs' symbols: those that equations decide, then guesses, raised and lowered
    to what operators ask.
    """

    def __init__(self, facts: Facts, guess: Callable[[str], int]) -> None:
        self.facts, self.guess = facts, guess
        self.sizes: dict[str, int] = {}
        self.equal = [(facts.now(a), facts.now(b)) for a, b in facts.equal]
        pending = list(self.equal)
        while pending:
            ready = [e for e in pending if self._sided(e) is not None]
            if not ready:
                break
            chosen = min(ready, key=lambda e: len(self._open(e)))
            pending = [e for e in pending if e is not chosen]
            sided = self._sided(chosen)
            if sided is not None:
                self._decide(*sided)
        for s in facts.own:
            if s not in facts.bound and s not in self.sizes:
                self.sizes[s] = self._bounded(s)
        # What two unknown sides meet in, now that everything has a size: one side may still follow
        # from the other.
        for a, b in pending:
            if (
                not self._holds(a, b)
                and len(inner := [s for e in (a, b) for s in dims.symbols(e) if s not in facts.own])
                == 1
            ):
                known = dims.replaced(b if inner[0] in dims.symbols(b) else a, {inner[0]: 1})
                other = a if inner[0] in dims.symbols(b) else b
                kept = dict(self.sizes)
                if isinstance(known, int):
                    for s in dims.symbols(other):
                        self.sizes.pop(s, None)
                    self._decide(other, known)
                    self.sizes = {**kept, **self.sizes}

    def _open(self, e: tuple[DimLike, DimLike]) -> set[str]:
        return {s for d in e for s in dims.symbols(d)} - self.sizes.keys()

    def _sided(self, e: tuple[DimLike, DimLike]) -> tuple[DimLike, int] | None:
        """The side with open symbols, and what the other is; None unless just one side is open, in
        symbols of inputs alone.
        """
        opened = [{s for s in dims.symbols(d) if s not in self.sizes} for d in e]
        for k in (0, 1):
            if opened[k] and not opened[1 - k] and opened[k] <= self.facts.own:
                target = self._at(e[1 - k], {})
                if target is not None:
                    return e[k], target
        return None

    def _at(self, d: DimLike, more: Mapping[str, int]) -> int | None:
        return _evaluated(d, {**self.sizes, **more})

    def _decide(self, d: DimLike, target: int) -> None:
        """Give the open symbols of `d` sizes with which it is `target`; none where that cannot be
        found.
        """
        names = [s for s in dims.symbols(d) if s not in self.sizes]
        if not names:
            return
        guessed = {s: self._bounded(s) for s in names}
        first = [s for s in names if s in self.facts.leading]
        rest = [s for s in names if s not in first] or names
        ones = dict.fromkeys(names, 1)
        square = dict.fromkeys(rest, 1)
        given = (
            [{}]
            if len(rest) == len(names)
            else [dict.fromkeys(first, 1), {s: guessed[s] for s in first}]
        )
        tries = [(others, square) for others in given]
        if len(rest) == 2:
            tries += [
                (others, dict(zip(rest, ratio, strict=True)))
                for others in given
                for ratio in _RATIOS
            ]
        if len(names) > 1:
            tries += [
                ({k: v for k, v in others.items() if k != s}, {s: 1})
                for others in (ones, guessed)
                for s in rest
            ]
        for others, parts in tries:
            found = self._proportional(d, target, others, parts)
            if found is not None:
                self.sizes |= {**others, **found}
                return

    def _proportional(
        self, d: DimLike, target: int, others: Mapping[str, int], parts: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Sizes in these proportions with which `d` is `target`: the guess, or else the
        roundest.
        """

        def at(v: int) -> int:
            found = self._at(d, {**others, **{s: p * v for s, p in parts.items()}})
            return -1 if found is None else found

        size: int | None = self._bounded(next(iter(parts)))
        if at(size or 0) != target:
            size = _first(lambda v: at(v) >= target)
            if size is None or at(size) != target:
                return None
            end = _first(lambda v: at(v) > target)
            size = size if end is None else _roundest(size, end)
        return {s: p * size for s, p in parts.items()} if size else None

    def _bounded(self, name: str) -> int:
        """The guess at a symbol, at least and at most what operators ask where they ask it of this
        symbol alone.
        """
        size = self.guess(name)
        for asked, n in self.facts.least:
            d = self.facts.now(asked)
            if [s for s in dims.symbols(d) if s not in self.sizes] == [name]:
                least = _first(lambda v, d=d, n=n: (self._at(d, {name: v}) or 0) >= n)  # type: ignore[misc]
                if least is not None and least > size:
                    size = _roundest(least, 2 * least)
        for asked, n in self.facts.most:
            d = self.facts.now(asked)
            if isinstance(d, Dim) and d.op == "sym" and d.name == name:
                size = min(size, n)
        return size

    def _holds(self, a: DimLike, b: DimLike) -> bool:
        """Whether an equation holds, for some size of what it has beside the inputs' symbols."""
        x, y = (
            self._at(
                dims.replaced(d, {s: 1 for s in dims.symbols(d) if s not in self.facts.own}), {}
            )
            for d in (a, b)
        )
        if x is None or y is None:
            return True
        inner = [[s for s in dims.symbols(d) if s not in self.facts.own] for d in (a, b)]
        if inner[0] and inner[1]:
            return True
        if inner[0] or inner[1]:
            whole, part = (y, x) if inner[0] else (x, y)
            return part == 0 or whole % part == 0
        return x == y

    def broken(self) -> int:
        """How much of what operators ask the sizes do not meet."""
        missed = sum(not self._holds(a, b) for a, b in self.equal)
        for asked, n in self.facts.least:
            found = self._at(self.facts.now(asked), {})
            missed += found is not None and found < n
        for asked, n in self.facts.most:
            found = self._at(self.facts.now(asked), {})
            missed += found is not None and found > n
        return missed

    def value(self, d: DimLike) -> int:
        """`d` with the sizes found so far; 1 where they do not tell."""
        found = self._at(self.facts.now(d), {})
        return 1 if found is None else found

    def largest(self) -> int:
        """How many elements the largest value of the model has that can be told."""
        return max(
            (self._at(d, {}) or 0 for d in {self.facts.now(d) for d in self.facts.counts}),
            default=0,
        )


def _evaluated(e: DimLike, sizes: Mapping[str, int]) -> int | None:
    """The value of `e`, at most 2^62; None where it has none."""
    done: dict[Dim, int] = {}  # expressions share parts

    def go(d: DimLike) -> int:
        if not isinstance(d, Dim):
            return d
        if d not in done:
            value = sizes[d.name] if d.op == "sym" else dims.VALUES[d.op](*map(go, d.args))
            done[d] = max(min(value, _INFINITE), -_INFINITE)
        return done[d]

    try:
        return go(e)
    except (KeyError, ZeroDivisionError, RecursionError):
        return None


_INFINITE = 1 << 62


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest size from 1 for which `holds`, which holds for all larger ones, too; None where
    it holds for none.
    """
    high = 1
    while not holds(high):
        high *= 2
        if high > _LARGEST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _roundest(low: int, end: int) -> int:
    """The number from `low` and below `end` that the highest power of two divides."""
    power = 1 << max(end.bit_length() - 1, 0)
    while power > 1:
        first = -(-low // power) * power
        if low <= first < end:
            return first
        power //= 2
    return low

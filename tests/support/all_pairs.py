"""Fewer cases of tests with several parameters: every pair of values, not every combination."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def all_pairs(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations that have any two values of two parameters together at least once.

    For k values of each of n parameters these are about k² log n, not kⁿ. A fault that needs three
    particular values may be missed: where parameters act on one another, take their product.
    """
    every = list(product(*(range(len(values)) for values in parameters)))

    def pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(row), 2))

    left = set[tuple[tuple[int, int], ...]]().union(*map(pairs, every))
    chosen = []
    while left:
        best = max(every, key=lambda row: len(pairs(row) & left))
        left -= pairs(best)
        chosen.append(best)
    return [
        tuple(values[k] for values, k in zip(parameters, row, strict=True))
        for row in sorted(chosen)
    ]

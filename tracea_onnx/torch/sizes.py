"""Sizes and strides that follow from the arguments of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._sympy.printers import PythonPrinter

from tracea_onnx.torch.reasons import RunsInEagerError


class Sizes:
    """Collects lists of integers, symbolic ones included. `given` are the arguments as Dynamo
    traced them: tensors without contents, whose sizes are symbols, and integers.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self.symbols: dict[Any, str] = {}
        #: Sizes of arguments: a symbol → which argument's, of which dimension.
        self.places: dict[Any, tuple[int, int]] = {}
        self._lists: list[str] = []
        self._used: set[Any] = set()
        for k, value in enumerate(given):
            if isinstance(value, torch.Tensor):
                for d, size in enumerate(value.shape):
                    if self._define(size, f"a[{k}].shape[{d}]"):
                        self.places[size.node.expr] = k, d
        for k, value in enumerate(given):
            if isinstance(value, torch.Tensor):
                for d, size in enumerate(value.stride()):
                    self._define(size, f"a[{k}].stride({d})")
            else:
                self._define(value, f"a[{k}]")

    def _define(self, value: Any, where: str) -> bool:
        new = (
            isinstance(value, torch.SymInt)
            and value.node.expr.is_symbol
            and value.node.expr not in self.symbols
        )
        if new:
            self.symbols[value.node.expr] = where
        return new

    def known(self, values: Iterable[Any]) -> bool:
        """Whether they follow from the arguments."""
        return all(
            not isinstance(v, torch.SymInt) or v.node.expr.free_symbols <= self.symbols.keys()
            for v in values
        )

    def add(self, values: Iterable[Any]) -> int:
        """The place of these in what the function of `compile` returns."""
        values = list(values)
        if not self.known(values):
            raise RunsInEagerError("a size depends on the contents of a tensor")
        self._lists.append(f"({''.join(f'{self._text(v)}, ' for v in values)})")
        return len(self._lists) - 1

    def _text(self, value: Any) -> str:
        if not isinstance(value, torch.SymInt):
            return str(int(value))
        self._used |= value.node.expr.free_symbols
        return str(PythonPrinter().doprint(value.node.expr))

    def compile(self) -> Callable[[Sequence[Any]], tuple[tuple[int, ...], ...]]:
        """A function from the arguments of a call to all lists."""
        lists = f"({''.join(f'{text}, ' for text in self._lists)})"
        used = sorted(self._used, key=str)
        names, where = ", ".join(map(str, used)), ", ".join(self.symbols[s] for s in used)
        source = f"lambda a: (lambda {names}: {lists})({where})"
        made: Callable[[Sequence[Any]], tuple[tuple[int, ...], ...]]
        # Of sympy's expressions, printed by PyTorch as it prints its guards
        made = eval(source, {"math": math, "torch": torch})
        if used:
            return made
        constant = made(())
        return lambda a: constant


def symbolic(value: Any) -> bool:
    """Whether it is no number: one that Dynamo took for a symbol may have become one."""
    return isinstance(value, torch.SymInt) and bool(value.node.expr.free_symbols)


def hint(value: Any) -> Any:
    """A size as it was when Dynamo traced, None where it depends on data. Asking for it adds no
    guard.
    """
    return value.node.hint if isinstance(value, torch.SymInt) else int(value)

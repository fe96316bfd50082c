"""What the tests of this folder share: the device, its exclusive use, and how a case is checked."""

from __future__ import annotations

import fcntl
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.gpu.cases.gemm import Case as TorchCase
from tests.support.cuda import driver, launch_case
from tests.support.cuda import runner as R
from tests.support.cuda.case import Case
from tests.support.cuda.trials.trial import Trial, check
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.support import discovery

#: Errors after which the context of a process is of no use.
_LOST = ("CUDA 7", "illegal", "misaligned")
#: Bytes that PyTorch may keep between cases.
_RESERVED = 1 << 30
#: A module of cases, the name of one of its makers, which part of its cases, of how many.
Maker = tuple[ModuleType, str, int, int]
#: SMs of the device for which small cases are emitted: few, so that a CTA has several tiles.
FEW = 6


@dataclass
class Gpu:
    """only_compile: emit and compile the kernels of a test, run nothing. cases: a regular
    expression; cases of other names are left out.
    """

    only_compile: bool
    cases: str
    lost: str = ""

    def takes(self, name: str) -> bool:
        return re.search(self.cases, name) is not None

    def compile(self, requests: Iterable[Request]) -> None:
        backend = discovery.module("kernels", "cuda")
        for r in requests:
            for k in R.kernels(r):
                backend.compile(k.source, r.arch)

    def run(self, name: str, run: Callable[[], float]) -> str:
        """What is wrong with a case; nothing where its worst error is within its bound."""
        if self.lost:
            return f"{name}: not run, the CUDA context was lost in {self.lost}"
        try:
            worst = run()
        except NoKernel:
            raise
        except Exception as e:
            if any(word in str(e) for word in _LOST):
                self.lost = name
            return f"{name}: {type(e).__name__}: {str(e)[:300]}"
        finally:
            if not self.lost:
                _leave_memory()
        return "" if worst <= 1 else f"{name}: {worst:.3g} of its bound"

    def torch_case(self, case: TorchCase, also: Sequence[Request] = ()) -> None:
        name, request, run = case
        if self.only_compile:
            self.compile([request, *also])
            return

        def worst() -> float:
            error, rmse = run()
            R.torch().cuda.synchronize()
            return error if np.isfinite(rmse) else np.inf

        _passes([self.run(name, worst)])

    def trial(self, trial: Trial, requests: Sequence[Request] = (), env: Any = None) -> None:
        """requests: instead of the trial's own, with the values of their symbols."""
        used = requests or trial.requests
        if self.only_compile:
            self.compile([*used, *trial.extra])
            return

        def worst() -> float:
            inputs = trial.inputs()
            places, got = trial.ours(inputs)
            call = R.bind_all(used, places, env)
            return check(trial, inputs, lambda: call(R.current_stream()), got, places)

        try:
            _passes([self.run(trial.name, worst)])
        except NoKernel as e:  # an operator that takes several kernels on such a device
            pytest.skip(str(e))

    def maker(self, maker: Maker, *, few: bool = False) -> None:
        """Every `parts`-th case of a maker from `part` on. few: emitted for a device of few SMs."""
        module, kind, part, parts = maker
        arch, sms = driver.device()
        with driver.assumed(arch, FEW if few else sms):
            made = module.FAMILIES[kind](np.random.default_rng(1))
            cases = [
                c
                for c in itertools.islice(made, part, None, parts)
                if self.takes(f"{c.family} {c.name} {c.dtype.name}")
                and (arch == 90 or c.tile is None)  # other devices have not its tiles
            ]
            requests = [launch_case.request_of(c) for c in cases]
        if self.only_compile:
            self.compile(requests)
            return

        def worst(c: Case, r: Request) -> Callable[[], float]:
            return lambda: launch_case.run(c, r)

        _passes(
            [
                self.run(f"{c.name} {c.dtype.name}", worst(c, r))
                for c, r in zip(cases, requests, strict=True)
            ]
        )


def _leave_memory() -> None:
    """Other processes use the GPU, too: PyTorch keeps little of what it has freed."""
    cuda = R.torch().cuda
    if cuda.memory_reserved() > _RESERVED:
        cuda.empty_cache()


def _passes(wrong: Sequence[str]) -> None:
    found = [w for w in wrong if w]
    assert not found, f"{len(found)} of {len(wrong)} wrong:\n" + "\n".join(found)


#: Makers of many cases: tests that share them.
_PARTS = {
    "softmax": 2, "reduce": 5, "argmax": 2, "cumsum": 2, "squeeze_excite": 4, "pool": 2,
    "pointwise": 5, "products": 3, "odd products": 12, "batches": 3,
    "convolutions": 3, "forms": 3, "F32 0": 2, "F32 1": 2, "F32 2": 2, "F32 3": 2,
    "nbits": 12, "pack nbits": 3, "int8": 4, "int8 convolutions": 2,
}  # fmt: skip


def makers(*modules: ModuleType) -> list[Any]:
    """Parameters (module, kind, part, parts) of all makers of these modules."""
    return [
        pytest.param(
            (m, kind, part, _PARTS.get(kind, 1)),
            id=f"{m.__name__.rpartition('.')[2]}-{kind}-{part}".replace(" ", "_"),
        )
        for m in modules
        for kind in m.FAMILIES
        for part in range(_PARTS.get(kind, 1))
    ]


def torch_cases(cases: Iterable[TorchCase], config: pytest.Config) -> list[Any]:
    """Those of bfloat16 are slow: their templates are those of float16."""
    only = str(config.getoption("--cases"))
    return [
        pytest.param(
            c, id=c[0].replace(" ", "_"), marks=[pytest.mark.slow] if " BF16 " in c[0] else []
        )
        for c in cases
        if re.search(only, c[0])
    ]


def trials(found: Iterable[Trial], config: pytest.Config) -> list[Any]:
    only = str(config.getoption("--cases"))
    return [pytest.param(t, id=t.name.replace(" ", "_")) for t in found if re.search(only, t.name)]


@contextmanager
def device_lock(exclusive: bool) -> Iterator[None]:
    """One process at a time has the device where that matters (`exclusive`); the others share."""
    path = Path(tempfile.gettempdir()) / "tracea-onnx-tests-gpu.lock"
    with path.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield

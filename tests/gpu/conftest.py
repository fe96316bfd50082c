"""Tests on a GPU. They are skipped without one, and where neither `-m cuda` nor `-m ""` asks for
them; then the thousands of cases are not even made.

--only-compile needs no GPU: it emits and compiles what the tests would run, for sm_90.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gpu.gpu import Gpu, device_lock
from tests.support.cuda import driver, older
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery

_KEY = pytest.StashKey[Gpu]()


def _missing(config: pytest.Config) -> str:
    """Why kernels cannot run here."""
    if nvrtc.load() is None:
        return "no NVRTC"
    if config.getoption("--only-compile"):
        return ""
    if not discovery.module("kernels", "cuda.diagnosis").cuda_devices():
        return "no CUDA device"
    return "" if importlib.util.find_spec("torch") else "no PyTorch"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = Gpu(
        bool(config.getoption("--only-compile")), str(config.getoption("--cases"))
    )
    if (
        config.getoption("--only-compile")
        or not discovery.module("kernels", "cuda.diagnosis").cuda_devices()
    ):
        driver.assume(90, 132)
    if arch := config.getoption("--arch"):
        older.pretend_here(int(arch))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A function of the module `<argument>_cases(config)` lists what a test takes."""
    for argument in ("case", "maker", "trial"):
        if argument not in metafunc.fixturenames:
            continue
        config = metafunc.config
        cases: Callable[[pytest.Config], list[Any]] = vars(metafunc.module)[f"{argument}_cases"]
        asked = "cuda" in config.option.markexpr
        reason = _missing(config)
        if config.option.markexpr and not asked:
            reason = reason or "they take minutes: -m cuda"
        if reason and not asked:
            made = [pytest.param(None, id="all", marks=pytest.mark.skip(reason=reason))]
        else:
            made = cases(config)
        metafunc.parametrize(argument, made)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Warnings of PyTorch, and of references that divide by zero, are no failures here."""
    item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> Gpu:
    reason = _missing(pytestconfig)
    if reason:
        pytest.skip(reason)
    made = pytestconfig.stash[_KEY]
    if not made.only_compile:
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        torch.backends.cudnn.allow_tf32 = False
    return made


@pytest.fixture(autouse=True)
def lock(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `alone` have the device for themselves."""
    with device_lock(request.node.get_closest_marker("alone") is not None):
        yield

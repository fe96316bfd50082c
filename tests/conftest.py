"""For every test: no file of the user's is read or written, and tests belong to tiers.

`pytest -m quick` runs what answers within a minute of a change on two cores, `pytest` all that is
not slow, `pytest -m ""` everything. `sampled(n)` leaves one in n of a test's cases to `pytest`,
always the same ones, and makes the others slow.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from functools import cache
from pathlib import Path

import hypothesis
import pytest

# How fast a machine draws its examples is nothing that a test asserts: a pause of it would fail.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

_HERE = Path(__file__).resolve().parent
#: Folders of the user's that the project reads or writes: caches, tuning records, settings.
_FOLDERS = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "LOCALAPPDATA")
#: What would take the place of one of these, and what would print more than tests expect.
_OTHERS = ("TRACEA_CACHE_DIR", "TRACEA_LOG", "FORCE_COLOR", "NO_COLOR")

#: Test modules, and single tests, that take longer than the quick tier allows: sessions, compilers,
#: thousands of files.
_SLOW = frozenset({
    "test_bisect", "test_cuda_launches", "test_cuda_native", "test_exports", "test_io_large",
    "test_pooled", "test_precision", "test_rules_generated",
    # Single tests: many processes or many graphs.
    "test_models_of_the_zoo_with_every_rule", "test_random_graphs_fuse_without_changing_a_value",
    "test_random_graphs_keep_every_bit", "test_two_processes_that_tune_at_once_lose_nothing",
    "test_two_writers_of_one_model_leave_one_of_the_two",
    "test_the_module_runs_as_a_program_and_survives_a_closed_pipe",
})  # fmt: skip

#: Of so many cases of `sampled` tests, of code generated for older GPUs and of CUDA's templates,
#: which mostly compile kernels, CI runs one.
_DRAWN = 8
#: And of those that run CUDA's kernels.
_RUN_ON_HOST = 4
_CUDA = _HERE / "backend" / "cuda"
_ON_HOST = _CUDA / "on_host"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the records of tests/golden anew (with -n0)",
    )
    parser.addoption(
        "--commit",
        default="",
        metavar="TEXT",
        help="of tests that mostly compile kernels one in eight, drawn by this text",
    )
    parser.addoption(
        "--one-in", type=int, default=1, help="of cases of other tests as many, drawn by --commit"
    )
    group = parser.getgroup("gpu", "tests/gpu")
    group.addoption("--only-compile", action="store_true", help="emit and compile, run nothing")
    group.addoption("--cases", default="", help="regular expression: cases of these names")
    group.addoption("--arch", type=int, help="kernels for an older device (80, 89), through PTX")
    group.addoption("--drawn", type=int, default=66, help="operators of sizes drawn at random")
    group.addoption("--seed", type=int, default=7, help="of these")


def pytest_configure(config: pytest.Config) -> None:
    """Point everything at an empty folder, before any module is imported that reads the
    environment; workers share it.
    """
    if "TRACEA_TEST_HOME" in os.environ:
        return
    home = Path(tempfile.mkdtemp(prefix="tracea-tests-"))
    os.environ["TRACEA_TEST_HOME"] = str(home)
    os.environ.update({name: str(home / name.lower()) for name in _FOLDERS})
    for name in _OTHERS:
        os.environ.pop(name, None)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Workers and the programs that tests start would compile every module again.
        os.environ["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules without a quick test are not imported for the quick ones: each worker would spend ten
    seconds on that.
    """
    if config.option.markexpr != "quick" or not collection_path.name.startswith("test_"):
        return None
    folder, module = _topic(collection_path), collection_path.stem
    return None if folder == "golden" or _is_quick(folder, module, "") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    drawn, left = config.getoption("--commit"), list[pytest.Item]()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and zlib.crc32(item.name.encode()) % sampled.args[0]:
            item.add_marker(pytest.mark.slow)
        # those of sm_90 cover most of the same code
        older = _topic(item.path) == "golden" and "[sm_8" in item.name
        if older:
            item.add_marker(pytest.mark.slow)
        compiles = sampled is not None or older or _CUDA in item.path.parents
        if item.path.parent == _ON_HOST:
            among = _RUN_ON_HOST
        elif compiles:
            among = _DRAWN
        else:
            among = config.option.one_in if _is_case(item) else 1
        if drawn and zlib.crc32(f"{drawn} {item.nodeid}".encode()) % among:
            left.append(item)
        if _topic(item.path) == "session" and not any(
            item.get_closest_marker(name) for name in ("once", "slow")
        ):
            item.add_marker(pytest.mark.varies)
        if item.get_closest_marker("slow") is None and _is_quick(
            _topic(item.path), item.path.stem, item.name
        ):
            item.add_marker(pytest.mark.quick)
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]


def _is_case(item: pytest.Item) -> bool:
    """Whether a test is one case of several; those that one run decides together (`outcomes`) cost
    nothing each.
    """
    return hasattr(item, "callspec") and "outcomes" not in getattr(item, "fixturenames", ())


@cache
def _topic(path: Path) -> str:
    """The folder of tests/ that a module belongs to."""
    return path.relative_to(_HERE).parts[0] if path.is_relative_to(_HERE) else ""


def _is_quick(folder: str, module: str, name: str) -> bool:
    if folder == "golden":  # of the zoo on the CPU, and of single requests
        return not name.endswith(".onnx]") and "[sm_" not in name
    return folder == "host" and not _SLOW & {module, name.partition("[")[0]}

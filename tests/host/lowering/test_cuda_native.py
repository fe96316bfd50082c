"""The CUDA launcher below ONNX Runtime, on a stand-in of the driver: marshalling, binding, arena,
graphs, errors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake import driver

CASES = Path(__file__).with_name("cuda_native_cases.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, str | None]:
    return driver.outcomes(folder, "tests.host.lowering.cuda_native_cases")


@pytest.mark.parametrize("case", driver.cases(CASES))
def test_case(outcomes: dict[str, str | None], case: str) -> None:
    driver.check(outcomes[case])


DEVICE = [
    "-c",
    (
        "from tracea_onnx.runtime import cuda_harness\ntry: cuda_harness.device()\n"
        "except Exception as e: print(e)"
    ),
]


def test_no_driver_is_one_line(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    assert (
        driver.run(tmp_path, DEVICE).stdout
        == "no NVIDIA driver is installed (libcuda.so.1 was not found)\n"
    )


def test_driver_without_a_gpu_is_one_line(folder: Path) -> None:
    assert driver.run(folder, DEVICE, init="100").stdout == "the NVIDIA driver finds no GPU\n"
    assert (
        driver.run(folder, DEVICE, init="999").stdout
        == "the NVIDIA driver does not start: unknown error\n"
    )

"""`tracea-onnx tune` on a stand-in of the driver, and its errors without one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.fake import driver
from tracea_onnx.cli import main
from tracea_onnx.runtime import nvrtc

MODULE = "cuda_tune_cases"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    return driver.outcomes(
        driver.build(tmp_path_factory.mktemp("cuda")), f"tests.session.cuda.{MODULE}", any="1"
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", driver.cases(Path(__file__).with_name(f"{MODULE}.py")))
def test_case(outcomes: dict[str, str | None], case: str) -> None:
    driver.check(outcomes[case])


def test_without_a_gpu_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if nvrtc.driver_version():
        pytest.skip("there is a driver")
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { '
            "y = Relu(x) }"
        ),
        path,
    )
    assert main.main(["tune", str(path), "--backend", "cuda"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("error: no NVIDIA driver is installed")

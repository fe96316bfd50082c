"""The provider on a GPU: in ONNX Runtime on a stand-in of the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fake import driver

MODULES = ("cuda_session_cases", "cuda_run_cases")
CASES = [(m, c) for m in MODULES for c in driver.cases(Path(__file__).with_name(f"{m}.py"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, dict[str, str | None]]:
    return {m: driver.outcomes(folder, f"tests.session.{m}") for m in MODULES}


@pytest.mark.parametrize(("module", "case"), CASES)
def test_case(outcomes: dict[str, dict[str, str | None]], module: str, case: str) -> None:
    driver.check(outcomes[module][case])


DEVICES = """
import onnxruntime as ort
from tests.session.cuda_session import *
answer(cube_plan)
ours = [d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME]
assert [d.ep_metadata["cuda_device_id"] for d in ours] == ["-1", "0", "1"]
log.take()
for n in ("1", "0"):
    session = provider.create_session(cube_model(), {"device_id": n})
    check_cube(session, 100)
    assert session.get_input_memory_infos()[0].device_id == int(n)
    assert log.take().count("context " + n) == 1
"""


def test_device_id_chooses_among_gpus(folder: Path) -> None:
    done = driver.run(folder, ["-c", DEVICES], devices="2")
    assert done.returncode == 0, done.stderr[-3000:]


WITHOUT = """
import onnxruntime as ort
from tests.session.provider_plans import chain_model
from tracea_onnx import provider
provider.register()
try: provider.create_session(chain_model(), {"backend": "cuda"})
except Exception as e: print("said:", str(e).strip().replace(chr(10), "NEWLINE"))
options = ort.SessionOptions()
options.add_session_config_entry("ep.traceaexecutionprovider.backend", "cuda")
try: ort.InferenceSession(chain_model(), provider.select({}, options), enable_fallback=0)
except Exception as e: print("said:", str(e).strip().replace(chr(10), "NEWLINE"))
provider.assert_provider_selected(provider.create_session(chain_model(), {"claim": "all"}))
print("said: the CPU works")
"""


def test_without_a_driver_the_cpu_works_and_the_gpu_is_one_line(folder: Path, tmp_path: Path) -> None:
    where, settings, reason = tmp_path, {}, r"no NVIDIA driver is installed \(libcuda.so.1 was not found\)"
    if Path("/dev/nvidiactl").exists():
        where, settings, reason = folder, {"init": "100"}, "the NVIDIA driver finds no GPU"
    done = driver.run(where, ["-c", WITHOUT], **settings)
    first, second, last = (line.removeprefix("said: ") for line in done.stdout.splitlines() if line.startswith("said: "))
    assert first.startswith("TraceaExecutionProvider has no CUDA device 0 on this machine")
    assert re.search(reason, second) and "NEWLINE" not in second
    assert last == "the CPU works", done.stderr[-2000:]

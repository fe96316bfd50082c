"""The provider on a GPU: in ONNX Runtime on a stand-in of the driver."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cpp import compiler
from tests.fake import driver
from tracea_onnx.runtime import native_library

MODULES = (
    "cuda_session_cases", "cuda_run_cases", "cuda_growth_cases", "cuda_stream_cases",
    "cuda_body_cases",
)  # fmt: skip
CASES = [(m, c) for m in MODULES for c in driver.cases(Path(__file__).with_name(f"{m}.py"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, dict[str, str | None]]:
    return {m: driver.outcomes(folder, f"tests.session.cuda.{m}") for m in MODULES}


@pytest.mark.parametrize(("module", "case"), CASES)
def test_case(outcomes: dict[str, dict[str, str | None]], module: str, case: str) -> None:
    driver.check(outcomes[module][case])


DEVICES = """
import onnxruntime as ort
from tests.session.cuda.cuda_session import *
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


LOST = """
import gc
import numpy as np, pytest
from tests.session.cuda.cuda_session import *
answer(cube_plan)
options = {"backend": "cuda", **OPTIONS}
first, second = (provider.create_session(cube_model(), options) for _ in range(2))
check_cube(first, 40)
x, u, y = device_tensor(vector(40)), empty_tensor([40]), empty_tensor([40])
io = bound(first, x, {"u": u, "y": y})
first.run_with_iobinding(io)
log.fail(CALL, 700, after=AFTER)
with pytest.raises(Exception) as e:
    first.run_with_iobinding(io)
print("said:", str(e.value).strip())
log.lose(700)
for session in (first, second):
    with pytest.raises(Exception) as e:
        check_cube(session, 40)
    print("said:", str(e.value).strip())
with pytest.raises(Exception) as e:
    provider.create_session(cube_model(), options)
print("said:", str(e.value).strip())
del io, x, u, y, first, second, session, e
gc.collect()
print("said: end")
"""


def _said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return [
        line.removeprefix("said: ")
        for line in done.stdout.splitlines()
        if line.startswith("said: ")
    ]


@pytest.mark.parametrize(("options", "call", "first"), [
    ({}, "cuStreamSynchronize", "CUDA: running: an illegal memory access was encountered (700)"),
    ({"enable_cuda_graph": "0"}, "cuLaunchKernelEx",
        "CUDA: launching kernel 'mul': an illegal memory access was encountered (700)"),
    ({"sync_launches": "1"}, "cuStreamSynchronize",
        ("CUDA: running kernel 'mul' (launch 1 of 3 of partition 'cube'): an illegal memory "
        "access was encountered (700)")),
])  # fmt: skip
def test_a_lost_context_is_named_by_every_later_call(
    folder: Path, options: dict[str, str], call: str, first: str
) -> None:
    text = LOST.replace("OPTIONS", repr(options)).replace("CALL", repr(call)).replace("AFTER", "0")
    lines = _said(driver.run(folder, ["-c", text]))
    assert first in lines[0]
    later = (
        "the GPU cannot be used by this process any more since an earlier failure "
        f"({first}); restart the process"
    )
    assert len(lines) == 5 and all(later in line for line in lines[1:4]) and lines[4] == "end"


NO_GRAPHS = """
from tests.session.cuda.cuda_session import *
from tracea_onnx.pipeline import optimizer
from tracea_onnx.runtime import cuda_harness, nvrtc
assert (cuda_harness.listed(), nvrtc.driver_version(), optimizer.choose_backend("auto")) == (1,
    13000, "cuda")
assert "initialise" not in log.take()
answer(cube_plan)
session = provider.create_session(cube_model(), {"backend": "cuda", "log_level": "warning"})
log.fail("cuGraphInstantiateWithFlags", 801, times=1000)
for n in (40, 50):
    io = bound(session, device_tensor(vector(n)), {"u": empty_tensor([n]), "y": empty_tensor([n])})
    for _ in range(3):
        session.run_with_iobinding(io)
print("said: end")
"""


def test_running_without_graphs_is_logged_once(folder: Path) -> None:
    done = driver.run(folder, ["-c", NO_GRAPHS])
    assert _said(done) == ["end"]
    assert [line for line in done.stderr.splitlines() if "CUDA graph" in line] == [
        (
            "tracea-onnx: warning: partition 'cube' runs without a CUDA graph: CUDA: making a "
            "graph: "
            "unknown error (801)"
        )
    ]


SMALL_CLUSTERS = """
from tests.session.cuda.cuda_session import *
def entries(graph):
    made = cube_plan(graph)
    made[0][1]["run"][0]["cluster"] = 16
    return made
answer(entries)
session = provider.create_session(cube_model(), {"backend": "cuda", "log_level": "warning"})
check_cube(session, 20)
print("said:", provider.assigned_nodes(session),
    {p.key: p.value for p in requests[-1].metadata_props}["clusters"])
"""


def test_clusters_that_find_no_room(folder: Path) -> None:
    """The driver is asked how large clusters may be; a kernel that needs larger ones is not
    claimed.
    """
    done = driver.run(folder, ["-c", SMALL_CLUSTERS], cluster="8")
    assert _said(done) == ["[] 2:66,4:33,8:16"]
    assert (
        "is left to ONNX Runtime: kernel 'mul' is launched in clusters of 16, the device has "
        "room for 8 at most" in done.stderr
    )


FORK = """
import gc, os, sys
import onnxruntime as ort
from tests.session.cuda.cuda_session import *
answer(cube_plan)
def alone():
    # ONNX Runtime joins the threads of its pool when a session goes, and crashes in a child, which
    # has none of them.
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options
def child(work):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException as e:
            print("said:", str(e).strip(), flush=True)
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def use():
    check_cube(provider.create_session(cube_model(), {"backend": "cuda"}), 20)
assert "initialise" not in log.take()
assert child(use) == 0  # registered, but not initialised
use()
assert log.take().count("initialise") == 1
captured = [{"device_id": "0", "enable_cuda_graph": "session"}] if has_ort(*CAPTURES) else []
for options in ({"backend": "cuda"}, {"device_id": "0"}, *captured, {"device_id": "0",
    "gpu_mem_limit": "100000000"}):
    session = provider.create_session(cube_model(), options, alone())
    x, outputs = device_tensor(vector(40)), {name: empty_tensor([40]) for name in ("u", "y")}
    io = bound(session, x, outputs)
    for _ in range(4):
        session.run_with_iobinding(io)
    def drop():
        global session, io, x, outputs
        del session, io, x, outputs
        gc.collect()
    assert child(drop) == 0, options
assert child(use) == 2
use()
print("said: end")
"""


def test_forked_processes(folder: Path) -> None:
    """Registering initialises nothing; a child of a process that used a GPU is told what to do, and
    may drop what it inherited.
    """
    lines = _said(driver.run(folder, ["-c", FORK]))
    assert (
        len(lines) == 2
        and "CUDA was initialised before this process was forked" in lines[0]
        and "'spawn' method" in lines[0]
        and lines[1] == "end"
    )


LISTED = """
import onnxruntime as ort
from tests.session.cuda.cuda_session import *
provider.register()
ours = [d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME][1:]
print("said:", *(d.ep_metadata.get("name", "?") for d in ours))
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("visible", "names"), [
    (None, ["Fake GPU 0", "Fake GPU 1", "Fake GPU 2"]), ("", []), ("-1", []),
    ("2,0", ["Fake GPU 2", "Fake GPU 0"]), ("1,7,0", ["Fake GPU 1"]),
    ("1,1", ["Fake GPU 1"]), ("GPU-00000002", ["Fake GPU 2"]), ("GPU-9", []), ("MIG-abc", ["?"]),
])  # fmt: skip
def test_gpus_are_listed_as_cuda_will_number_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _said(driver.run(folder, ["-c", LISTED], devices="3")) == (
        [" ".join(names)] if names else []
    )


MORE_LISTED = """
import os
from tests.session.cuda.cuda_session import *
answer(cube_plan)
os.environ["FAKE_CUDA_DEVICES"] = "1"
try: provider.create_session(cube_model(), {"backend": "cuda", "device_id": "1"})
except Exception as e: print("said:", str(e).strip())
"""


def test_a_gpu_that_cuda_does_not_offer_is_one_line(folder: Path) -> None:
    lines = _said(driver.run(folder, ["-c", MORE_LISTED], devices="2"))
    assert len(lines) == 1 and lines[0].endswith("there is no CUDA device 1; this machine has 1")


def test_gpus_are_found_without_the_management_library(folder: Path) -> None:
    if Path("/proc/driver/nvidia/gpus").exists():
        pytest.skip("the kernel's driver tells them")
    assert _said(driver.run(folder, ["-c", LISTED], devices="2", nvml="0")) == ["? ?"]


TWO_DEVICES = """
import ctypes
import onnxruntime as ort
from tests.session.cuda.cuda_session import *
answer(cube_plan)
sessions = [provider.create_session(cube_model(), {"device_id": n}) for n in "01"]
def on(device, x):
    return ort.OrtValue.ortvalue_from_numpy(x, "gpu", device, NVIDIA)
# The result of one device's run, which was not waited for, is copied to the other device.
x = vector(50)
io = sessions[0].io_binding()
io.bind_ortvalue_input("x", on(0, x))
u, y = on(0, 0 * x), on(0, 0 * x)
io.bind_ortvalue_output("u", u)
io.bind_ortvalue_output("y", y)
quiet = ort.RunOptions()
quiet.add_run_config_entry("disable_synchronize_execution_providers", "1")
sessions[0].run_with_iobinding(io, quiet)
other = on(1, 0 * x)
ort.copy_tensors([y], [other])
np.testing.assert_allclose(other.numpy(), x**3, rtol=1e-5)
# The same as an input of a run on the other device.
io.bind_ortvalue_input("x", on(0, 2 * x))
sessions[0].run_with_iobinding(io, quiet)
over = sessions[1].io_binding()
over.bind_ortvalue_input("x", u)
over.bind_output("u", "cpu")
over.bind_output("y", "cpu")
sessions[1].run_with_iobinding(over)
np.testing.assert_allclose(over.get_outputs()[1].numpy(), (2 * x)**6, rtol=1e-5)
print("said: end")
"""


def test_copies_between_devices_come_in_order(folder: Path) -> None:
    assert _said(driver.run(folder, ["-c", TWO_DEVICES], devices="2")) == ["end"]


@pytest.mark.once
def test_stream_contexts_of_nested_runs_and_of_threads(folder: Path) -> None:
    """Compiled from the launcher's own sources: ONNX Runtime alone nests no runs."""
    sources = Path(native_library.__file__).parents[1] / "ep"
    parts = [
        str(sources / f"{name}.cc")
        for name in (
            "cuda/stream_context",
            "cuda/device",
            "cuda/driver",
            "cuda/listing",
            "plan/sha256",
            "plan/stats",
        )
    ]
    program = folder / "stream_contexts"
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(sources)]
    command = [
        *compiler(),
        *flags,
        "-o",
        str(program),
        str(Path(driver.__file__).with_name("stream_contexts.cc")),
        *parts,
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_DEVICES": "2"}
    done = subprocess.run(
        [str(program)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


WITHOUT = """
import onnxruntime as ort
from tests.session.provider.provider_plans import chain_model
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


def test_without_a_driver_the_cpu_works_and_the_gpu_is_one_line(
    folder: Path, tmp_path: Path
) -> None:
    where, settings, reason = (
        tmp_path,
        {},
        r"no NVIDIA driver is installed \(libcuda.so.1 was not found\)",
    )
    if Path("/dev/nvidiactl").exists():
        where, settings, reason = (
            folder,
            {"init": "100", "devices": "0"},
            "the NVIDIA driver finds no GPU",
        )
    done = driver.run(where, ["-c", WITHOUT], seconds=600, **settings)
    first, second, last = (
        line.removeprefix("said: ")
        for line in done.stdout.splitlines()
        if line.startswith("said: ")
    )
    assert first.startswith("TraceaExecutionProvider has no CUDA device 0 on this machine")
    assert re.search(reason, second) and "NEWLINE" not in second
    assert last == "the CPU works", done.stderr[-2000:]

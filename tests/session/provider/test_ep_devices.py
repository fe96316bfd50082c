"""What ONNX Runtime's own tests of plugin providers ask of one, asked of this one through Python:
devices and their metadata, selection, registration again and again, allocators, data transfer,
runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tracea_onnx
from tests.session.provider.test_provider_cpp import mlp, pattern
from tests.support.sessions import assigned
from tracea_onnx import provider

X = pattern(48).reshape(3, 16)
binding = ort.capi.onnxruntime_pybind11_state


def selected(choose: Any, model: onnx.ModelProto | None = None) -> ort.InferenceSession:
    """A session of options that `choose` has completed."""
    provider.register()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    choose(options)
    return ort.InferenceSession((model or mlp()).SerializeToString(), options)


def expected(model: onnx.ModelProto | None = None) -> Any:
    source = (model or mlp()).SerializeToString()
    return ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


def device() -> Any:
    provider.register()
    return next(d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME)


def test_the_device_of_the_host_says_what_it_is() -> None:
    found = device()
    assert found.ep_vendor == "tracea-onnx" and found.ep_options == {}
    assert found.device.type == ort.OrtHardwareDeviceType.CPU
    theirs = next(d for d in ort.get_ep_devices() if d.ep_name == "CPUExecutionProvider")
    assert found.device.vendor_id == theirs.device.vendor_id
    metadata = dict(found.ep_metadata)
    assert metadata["version"] == tracea_onnx.__version__
    assert metadata["tracea_backend"] == "cpu"
    assert metadata["library_path"] == tracea_onnx.get_library_path()


POLICIES = (
    "DEFAULT", "PREFER_CPU", "PREFER_GPU", "PREFER_NPU", "MAX_PERFORMANCE", "MAX_EFFICIENCY",
    "MIN_OVERALL_POWER",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_prefers_the_provider_to_the_default_one(policy: str) -> None:
    chosen = getattr(ort.OrtExecutionProviderDevicePolicy, policy)
    session = selected(lambda options: options.set_provider_selection_policy(chosen))
    assert session.get_providers()[0] == provider.PROVIDER_NAME
    ours, total = assigned(session)
    assert ours == total > 0
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-5, atol=1e-6)


def test_a_delegate_is_shown_the_devices_and_its_choice_counts() -> None:
    seen: list[tuple[list[str], dict[str, str], int]] = []

    def choose(devices: Any, model: Any, runtime: Any, most: int) -> Any:
        seen.append(([d.ep_name for d in devices], dict(model), most))
        return [d for d in devices if d.ep_name == provider.PROVIDER_NAME][:1]

    session = selected(lambda options: options.set_provider_selection_policy_delegate(choose))
    [(names, metadata, most)] = seen
    assert names.count(provider.PROVIDER_NAME) >= 1 and names[-1] == "CPUExecutionProvider"
    assert metadata["graph_name"] == "mlp" and most > 2
    assert assigned(session)[0] == assigned(session)[1]


@pytest.mark.parametrize("names", [[], ["nobody"]])
def test_a_delegate_that_chooses_badly_is_an_error(names: list[str]) -> None:
    def choose(devices: Any, model: Any, runtime: Any, most: int) -> Any:
        if names:
            raise ValueError("no device of this kind")
        return []

    with pytest.raises(
        Exception, match=r"no device of this kind|[Dd]elegate|no .*devices"
    ) as raised:
        selected(lambda options: options.set_provider_selection_policy_delegate(choose))
    assert "Tracea" not in str(raised.value)


def test_nodes_that_it_cannot_run_stay_with_onnx_runtime() -> None:
    model = mlp()
    model.graph.node[1].op_type = "Selu"
    before = h.make_node("StringConcat", ["s", "s"], ["t"])
    model.graph.node.insert(0, before)
    model.graph.input.append(h.make_tensor_value_info("s", T.STRING, ["m"]))
    model.graph.output.append(h.make_tensor_value_info("t", T.STRING, ["m"]))
    session = selected(lambda options: options.add_provider_for_devices([device()], {}), model)
    ours, total = assigned(session)
    assert 0 < ours < total
    y, t = session.run(None, {"x": X, "s": np.array(["a"], dtype=object)})
    assert y.shape == (3, 24) and list(t) == ["aa"]


_REGISTRATIONS = """
import gc, sys
import numpy as np, onnxruntime as ort
from tests.session.provider.test_ep_devices import X, expected, mlp
from tracea_onnx import provider

library, name = provider.library_path(), provider.PROVIDER_NAME
def devices():
    return [d for d in ort.get_ep_devices() if d.ep_name == name]
for k in range(int(sys.argv[1])):
    ort.register_execution_provider_library(f"again{k}", library)
    assert len([d for d in devices() if d.ep_metadata["tracea_backend"] == "cpu"]) == 1
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices()[:1], {})
    session = ort.InferenceSession(mlp().SerializeToString(), options)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-5, atol=1e-6)
    del session, options
    gc.collect()
    ort.unregister_execution_provider_library(f"again{k}")
    assert not devices()
print(provider.stats()["live_sessions"], provider.stats()["live_partitions"])
for bad in ("again0", "never"):
    try:
        ort.unregister_execution_provider_library(bad)
        print("nothing said")
    except Exception as e:
        print(str(e).strip())
"""


def test_it_is_registered_and_unregistered_again_and_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REGISTRATIONS, "4"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left, *lines = done.stdout.splitlines()
    assert left == "0 0"
    assert len(lines) == 2 and all("was not registered" in line for line in lines)


def test_what_is_no_provider_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    for path in (tmp_path / "text.so", tmp_path / "missing.so"):
        with pytest.raises(Exception, match="Failed to load library"):
            ort.register_execution_provider_library("bad", str(path))
    assert not [d for d in ort.get_ep_devices() if d.ep_name == "bad"]


def test_sessions_share_the_allocators_of_the_environment() -> None:
    def share(options: Any) -> None:
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.add_provider_for_devices([device()], {})

    first, second = selected(share), selected(share)
    del first
    np.testing.assert_allclose(second.run(None, {"x": X})[0], expected(), rtol=1e-5, atol=1e-6)


def test_the_host_has_no_memory_of_its_own() -> None:
    """So that ONNX Runtime copies nothing, and asks for no allocator and no data transfer."""
    found = device()
    assert found.memory_info(ort.OrtDeviceMemoryType.DEFAULT) is None
    assert found.memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE) is None
    session = selected(lambda options: options.add_provider_for_devices([found], {}))
    value = ort.OrtValue.ortvalue_from_numpy(X)
    bound = session.io_binding()
    bound.bind_ortvalue_input("x", value)
    result = ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 24), np.float32))
    address = result.data_ptr()
    bound.bind_ortvalue_output("y", result)
    session.run_with_iobinding(bound)
    assert bound.get_outputs()[0].data_ptr() == address
    np.testing.assert_allclose(result.numpy(), expected(), rtol=1e-5, atol=1e-6)


def test_outputs_that_onnx_runtime_makes_and_bad_ones(capfd: pytest.CaptureFixture[str]) -> None:
    session = selected(lambda options: options.add_provider_for_devices([device()], {}))
    bound = session.io_binding()
    bound.bind_cpu_input("x", X)
    bound.bind_output("y")
    session.run_with_iobinding(bound)
    np.testing.assert_allclose(bound.copy_outputs_to_cpu()[0], expected(), rtol=1e-5, atol=1e-6)
    bound.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros((4, 24), np.float32)))
    with pytest.raises(Exception, match=r"\{4,24\}.*\{3,24\}"):
        session.run_with_iobinding(bound)
    capfd.readouterr()
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-5, atol=1e-6)


def test_run_options(capfd: pytest.CaptureFixture[str]) -> None:
    session = selected(lambda options: options.add_provider_for_devices([device()], {}))
    options = ort.RunOptions()
    options.logid = "tagged"
    options.add_run_config_entry("gpu_graph_id", "-1")
    np.testing.assert_allclose(
        session.run(None, {"x": X}, options)[0], expected(), rtol=1e-5, atol=1e-6
    )
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        session.run(None, {"x": X}, options)
    capfd.readouterr()
    options.terminate = False
    assert session.run(None, {"x": X}, options)[0].shape == (3, 24)


def test_a_profile_names_the_provider(tmp_path: Path) -> None:
    def profiled(options: Any) -> None:
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        options.add_provider_for_devices([device()], {})

    session = selected(profiled)
    for _ in range(2):
        session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
    assert [e["args"]["provider"] for e in nodes] == [provider.PROVIDER_NAME] * 2


def test_no_device_is_called_incompatible() -> None:
    if not hasattr(binding, "get_hardware_device_ep_incompatibility_details"):
        pytest.skip("this onnxruntime does not ask")
    provider.register()
    ask = binding.get_hardware_device_ep_incompatibility_details
    for hardware in binding.get_hardware_devices():
        if hardware.type == ort.OrtHardwareDeviceType.CPU:
            assert ask(provider.PROVIDER_NAME, hardware)["reasons_bitmask"] == 0

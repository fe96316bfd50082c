"""Imports point one way: from later packages of the pipeline to earlier ones, and never in a
circle. Imports inside functions count. Folders hold few files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tracea_onnx.compiler import code_identity
from tracea_onnx.support import discovery

ROOT = Path(__file__).resolve().parents[2]
#: Packages and modules of `tracea_onnx`, the lowest first. Each may import itself and what stands
#: before it.
LAYERS = (
    "_version", "errors", "support", "ir", "model_io", "shapes", "canonicalize", "match", "pricing",
    "plan", "runtime", "codegen", "compiler",
    "provider", "rewrite", "verify", "pipeline", "onnx_ir", "olive", "torch", "explain", "tuning",
    "bench", "doctor", "cli", "__main__",
)  # fmt: skip
#: Folders that are found by name; what they may import.
OUTER = {"fusion_rules": "match", "scheduler": "match", "models": "model_io", "kernels": "compiler"}


#: Files directly in one folder: more cannot be taken in at a glance.
MOST_FILES = 25


def _modules(folder: str) -> dict[str, Path]:
    return {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in (ROOT / folder).rglob("*.py")
    }


INSIDE = _modules("tracea_onnx")


def _imported(path: Path) -> Iterator[str]:
    """Modules of `tracea_onnx` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{a.name}" for a in node.names]
        for name in found:
            while name.startswith("tracea_onnx.") and name not in INSIDE:
                name = name.rpartition(".")[0]
            if name.startswith("tracea_onnx."):
                yield name


def _layer(module: str) -> int:
    return LAYERS.index(module.split(".")[1])


def test_every_module_has_a_layer() -> None:
    assert {m.split(".")[1] for m in INSIDE if m != "tracea_onnx"} - {"ep"} == set(LAYERS)


def test_plans_follow_from_no_later_layer() -> None:
    assert set(LAYERS[LAYERS.index("compiler") + 1 :]) >= code_identity.ABOVE


def test_imports_point_to_earlier_layers() -> None:
    upward = [
        f"{module} imports {name}"
        for module, path in INSIDE.items()
        if module != "tracea_onnx" and module.split(".")[1] != "ep"
        for name in _imported(path)
        if _layer(name) > _layer(module)
    ]
    assert not upward


def test_the_outer_folders_import_no_later_layer_than_they_need() -> None:
    late = [
        f"{module} imports {name}"
        for folder, last in OUTER.items()
        for module, path in _modules(folder).items()
        for name in _imported(path)
        if LAYERS.index(last) < _layer(name)
    ]
    assert not late


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        m: {n for n in _imported(p) if n != m} for m, p in INSIDE.items() if m != "tracea_onnx"
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the modules


#: The option --provider means ONNX Runtime's CPU provider; PyTorch's devices and a clock have these
#: names.
KNOWING = {
    ("cli.options", "cpu"), ("torch.devices", "cpu"), ("torch.devices", "cuda"),
    ("bench.worker", "cpu"), ("bench.worker", "cuda"), ("bench.sampling", "cpu"),
}  # fmt: skip


def test_no_backend_is_known_by_name() -> None:
    """But in its own folders: in `kernels`, beside the native library, and in `ep`."""
    backends = discovery.names("kernels")
    known = {
        (module.removeprefix("tracea_onnx."), node.value)
        for module, path in INSIDE.items()
        if not module.startswith(("tracea_onnx.ep", "tracea_onnx.runtime"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in backends
    }
    assert known == KNOWING
    native = [p for kind in ("ort", "plan") for p in (ROOT / "tracea_onnx/ep" / kind).iterdir()]
    spelled = [f(name) for name in backends for f in ('"{}"'.format, '"{}/'.format, "{}::".format)]
    assert not [(p.name, s) for p in native for s in spelled if s in p.read_text("utf-8")]


def test_no_backend_uses_the_package_of_another() -> None:
    """Cached Plans follow from the code of their own backend (`compiler/code_identity.py`)."""
    names, folder = set(discovery.names("kernels")), discovery.folder("kernels")
    for path in folder.rglob("*.py"):
        others = names - {path.relative_to(folder).parts[0].removesuffix(".py")}
        said: list[str] = []
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.append(node.value)
            elif isinstance(node, ast.ImportFrom) and node.module:
                said.append(node.module)
            elif isinstance(node, ast.Import):
                said += [a.name for a in node.names]
        first = {text.removeprefix("tracea_onnx.kernels.").split(".")[0] for text in said}
        assert not first & others, path


def test_no_folder_has_many_files() -> None:
    try:
        listed = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no checkout of git")
    found = Counter(Path(line).parent for line in listed.splitlines())
    assert {str(folder): n for folder, n in found.items() if n > MOST_FILES} == {}


def test_the_build_needs_no_package(tmp_path: Path) -> None:
    """A wheel is built where nothing else is installed."""
    command = [sys.executable, "-S", str(ROOT / "kernels" / "cpu.py"), "--out", str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    assert (tmp_path / "units.cmake").exists()

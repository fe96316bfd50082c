"""Whether a wheel is all that it takes: models run where nothing of a developer's machine is.

    python -m tools.fresh_environment dist/tracea_onnx-*.whl
    python -m tools.fresh_environment dist/tracea_onnx-*.whl --debian build/debian   # as root
    # a wheel for ARM, on a machine that runs its programs with qemu-user-static (binfmt_misc)
    python -m tools.fresh_environment dist/*_aarch64.whl --debian build/arm64 --arch arm64

The wheel is installed into a new virtual environment, whose programs see its own folder in `PATH`
and nothing else of the caller's environment; with `--debian` into a Debian of its own (debootstrap
makes it in the folder, if need be), which has neither a compiler nor git nor a network. There

1. Python registers the library by its path, and every node of each model runs on the provider;
2. so does the C++ example, and the Python that the library is installed in compiles for it;
3. `tracea-onnx compile` writes compiled models, which the same C++ program runs with the same
   results in a root folder that has nothing but the program and the libraries it loads.

Ends with one line and exit status 1 where a step fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import onnx

from tests.cpp import compiler
from tests.session.test_models import small

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("vit_b16", "mobilenet_v2")
#: What the library may link: parts of the C library.
ALLOWED = ("linux-vdso.so", "ld-linux", "libc.so", "libm.so", "libpthread.so", "libdl.so")
_NOT_THERE = ("cc", "c++", "gcc", "g++", "clang", "cmake", "ninja", "git", "nvcc")
#: Symbolic dims of the models, which the C++ example sets, too.
_SIZE = 3
#: Machines by Debian's names of them.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_CLIENT = """import json, shutil, sys
import numpy as np, onnxruntime as ort, tracea_onnx

found = [name for name in sys.argv[3:] if shutil.which(name)]
name = tracea_onnx.get_ep_name()
ort.register_execution_provider_library(name, tracea_onnx.get_library_path())
options = ort.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == name][:1], {})
session = ort.InferenceSession(sys.argv[1], options)
nodes = [a.ep_name for a in session.get_provider_graph_assignment_info() for _ in a.get_nodes()]
feeds = {}
for i in session.get_inputs():
    shape = [d if isinstance(d, int) else int(sys.argv[2]) for d in i.shape]
    at = np.arange(np.prod(shape)).reshape(shape)
    feeds[i.name] = at % 10 if i.type == "tensor(int64)" else (at * 7919 % 1000 / 1000 - 0.5
        ).astype(np.float32)
reference = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
differences = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(
    session.run(None, feeds), reference.run(None, feeds))]
print(json.dumps({"tools": found, "nodes": len(nodes), "ours": nodes.count(name),
    "difference": max(differences)}))
"""
_WHERE = """import json, pathlib, onnxruntime, tracea_onnx
[runtime] = (pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
print(json.dumps([str(runtime), tracea_onnx.get_library_path()]))
"""


class Failed(Exception):
    """A step failed: the line says which, and what was seen."""


def _tool(name: str) -> str:
    found = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")
    if found is None:
        raise Failed(f"{name} is not installed")
    return found


class Place(NamedTuple):
    """Where programs run: a root folder ("/" or that of another system), and a folder in it."""

    root: Path
    folder: Path  # as programs see it
    path: str  # their PATH

    def outside(self, inside: str | Path) -> Path:
        """A path of a program, as this process sees it."""
        return self.root / Path(inside).relative_to("/")

    def run(self, *command: str | Path) -> str:
        """Standard output of a command. Raises Failed."""
        line = [str(part) for part in command]
        if self.root != Path("/"):
            apart = [] if os.geteuid() == 0 else ["--map-root-user"]
            line = [_tool("unshare"), *apart, "--net", _tool("chroot"), str(self.root), *line]
        done = subprocess.run(
            line, capture_output=True, text=True, cwd=self.outside(self.folder),
            env={"PATH": self.path, "HOME": str(self.folder)},
        )  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
            what = " ".join(str(part).split("\n")[0] for part in command)
            raise Failed(f"{what}: exit {done.returncode}: {said[-1]}")
        return done.stdout

    def libraries(self, file: Path) -> dict[str, Path]:
        """What the loader loads with a file, by name."""
        lines = [line.split() for line in self.run("/usr/bin/ldd", file).splitlines()]
        found = {words[0]: words[2] for words in lines if "=>" in words and len(words) > 2}
        return {k: Path(v) for k, v in found.items()} | {
            Path(words[0]).name: Path(words[0]) for words in lines if "=>" not in words
        }


def debian(root: Path, arch: str) -> Place:
    """A Debian with a Python, made if need be. arch: Debian's name, or "" for this machine's."""
    if not (root / "usr" / "bin" / "python3").exists():
        command = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv"]
        kind = [f"--arch={arch}"] if arch else []
        command = [*command, *kind, "stable", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    folder = Path("/fresh")
    shutil.rmtree(root / "fresh", ignore_errors=True)
    (root / "fresh").mkdir()
    return Place(root, folder, "/usr/bin:/bin")


def install(place: Place, wheel: Path) -> Path:
    """The Python of a new environment with the wheel and ONNX Runtime."""
    environment = place.folder / "env"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if place.root == Path("/"):
        command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
        subprocess.run(command, check=True)
        python = environment / "bin" / "python"
        target = ["--python", str(python), "install", "--no-compile", f"{wheel}[cpu]"]
        subprocess.run([*pip, *target], check=True)
        return python
    asked = "import platform, sys; print('%d.%d' % sys.version_info[:2], platform.machine())"
    version, machine = place.run("python3", "-c", asked).split()
    wheels = place.outside(place.folder / "wheels")
    of_there = ["--only-binary=:all:", "--python-version", version]
    for platform in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"):
        of_there += ["--platform", f"{platform}_{machine}"]
    command = [*pip, "download", *of_there, "--dest", str(wheels), f"{wheel}[cpu]"]
    subprocess.run(command, check=True)
    place.run("python3", "-m", "venv", environment)
    python = environment / "bin" / "python"
    inside = ("--no-index", "--find-links", place.folder / "wheels", "tracea-onnx[cpu]")
    place.run(python, "-m", "pip", "--quiet", "install", *inside)
    return python


def bare(place: Place, folder: Path, files: list[Path]) -> Place:
    """A root folder with these files of a place, what the loader loads with them, and no more."""
    wanted = {f for file in files for f in (file, *place.libraries(file).values())}
    for file in wanted:
        if file.is_absolute():  # not the kernel's own
            target = folder / file.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place.outside(file), target)
    (folder / "models").mkdir()
    return Place(folder, Path("/models"), "/nowhere")


def results(output: str) -> tuple[list[str], dict[str, int]]:
    """What the C++ example prints: a line per output, then the provider's counters."""
    *lines, counters = output.splitlines()
    found: dict[str, int] = json.loads(counters)
    return lines, found


def check(place: Place, wheel: Path, work: Path, arch: str) -> None:
    """Every step. Raises Failed."""
    program = place.outside(place.folder / "run")
    source = ROOT / "examples" / "cpp" / "run.cc"
    target = ["-target", f"{_MACHINES[arch]}-linux-gnu.2.28"] if arch else []
    cxx = [sys.executable, "-m", "ziglang", "c++", *target] if arch else compiler()
    command = [*cxx, "-std=c++17", "-O1", "-o", str(program), str(source), "-ldl"]
    subprocess.run(command, check=True)
    python = install(place, wheel)
    print(f"installed: {wheel.name}")
    place.run(python.parent / "tracea-onnx", "doctor")
    runtime, library = map(Path, json.loads(place.run(python, "-c", _WHERE)))
    files = [place.folder / "run", runtime, library]

    def of_python(model: Path) -> dict[str, object]:
        given = (model, str(_SIZE), *_NOT_THERE)
        answer: dict[str, object] = json.loads(place.run(python, "-c", _CLIENT, *given))
        return answer

    for name in MODELS:
        model, compiled = (place.folder / f"{name}{end}.onnx" for end in ("", "_ctx"))
        onnx.save(small(name), place.outside(model))
        found = of_python(model)
        if found["tools"]:
            raise Failed(f"this is no fresh environment: it has {found['tools']}")
        if not found["nodes"] or found["ours"] != found["nodes"]:
            raise Failed(f"{name}: {found['ours']} of {found['nodes']} nodes on the provider")
        if not float(str(found["difference"])) < 1e-3:
            raise Failed(f"{name}: relative difference {found['difference']}")
        print(f"Python, {name}: all {found['nodes']} nodes on the provider")

        lines, counters = results(place.run(*files, model, "", str(_SIZE)))
        if counters["claimed_nodes"] != found["nodes"] or counters["compile_requests"] != 1:
            raise Failed(f"C++, {name}: {counters}")
        print(f"C++, {name}: all {found['nodes']} nodes, compiled by {python}")

        place.run(python.parent / "tracea-onnx", "compile", model, "-o", compiled)
        alone = bare(place, work / f"bare_{name}", files)
        for file in place.outside(place.folder).glob(f"{name}_ctx*"):
            shutil.copy(file, alone.outside(alone.folder))
        loaded, counters = results(alone.run(*files, alone.folder / compiled.name, "", str(_SIZE)))
        if loaded != lines or counters["compile_requests"] or not counters["runs"]:
            raise Failed(f"C++ with a compiled model, {name}: {loaded} {counters}")
        count = sum(p.is_file() for p in alone.root.rglob("*"))
        print(f"C++, {name} compiled: the same results in a root of {count} files, without Python")
    linked = place.libraries(library)
    if other := [k for k in linked if not k.startswith(ALLOWED)]:
        raise Failed(f"the library links {', '.join(other)}")
    print(f"the library links {', '.join(sorted(linked))}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--debian", type=Path, metavar="FOLDER", help="a root folder for Debian")
    parser.add_argument("--arch", default="", choices=("", *_MACHINES), help="of that Debian")
    args = parser.parse_args()
    if args.arch and not args.debian:
        parser.error("--arch needs --debian")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "fresh"
        folder.mkdir()
        place = (
            debian(args.debian.resolve(), args.arch)
            if args.debian
            else Place(Path("/"), folder, str(folder / "env" / "bin"))
        )
        try:
            check(place, args.wheel.resolve(), Path(work), args.arch)
        except Failed as e:
            print(e, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

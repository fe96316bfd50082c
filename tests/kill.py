"""Kills processes at random moments (SIGKILL) and looks at what they leave: nothing corrupt,
nothing that stays, and the next run gives the same bytes.

    python -m tests.kill [--count 500] [--seed 0] [--kinds optimize replace session tune]

`optimize` writes a model with external data, `replace` writes it over the model it reads, `session`
compiles a model into the cache that all share, `tune` measures on the stand-in of the CUDA driver.
Half of the kills come after a random time, half at a random one of the system calls that write,
link, rename or remove. Exit status 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

# a thread of the parent would be missing in its children
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.fake import driver
from tracea_onnx import provider
from tracea_onnx.model_io import external, model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure

KINDS = ("optimize", "replace", "session", "tune")
_INNER = "TRACEA_KILL_INNER"
_STEPS = ("write", "link", "replace", "unlink", "fsync", "utime", "fchmod")
_MODEL, _OUTPUT = "model.onnx", "out.onnx"


def _model(kind: str) -> ModelProto:
    """Two linear layers with a ReLU, or on the GPU a GELU, between them; three weights of 256
    KiB.
    """
    rng = np.random.default_rng(0)
    dtype = np.float16 if kind == "tune" else np.float32
    shapes = {"w": (256, 256), "b": (256,), "v": (256, 256), "k": (256, 256)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / 16).astype(dtype), n)
        for n, s in shapes.items()
    ]
    middle = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
    ]
    ends = [
        helper.make_node("MatMul", ["r", "v"], ["s"]),
        helper.make_node("MatMul", ["s", "k"], ["y"]),
    ]
    nodes = [*middle, helper.make_node("Gelu" if kind == "tune" else "Relu", ["a"], ["r"]), *ends]
    values = [
        helper.make_tensor_value_info(
            n, TensorProto.FLOAT16 if kind == "tune" else TensorProto.FLOAT, [64, 256]
        )
        for n in "xy"
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


class Trial:
    """One kind in a folder of its own: what it starts from, what it does, and what is right
    afterwards.
    """

    def __init__(self, kind: str, folder: Path, home: Path) -> None:
        self.kind, self.folder, self.home = kind, folder, home
        self.model = folder / _MODEL
        self.output = self.model if kind == "replace" else folder / _OUTPUT

    def prepare(self) -> None:
        """The state before any run, but for the cache."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        model_file.save(
            model_file.Source(_model(self.kind)),
            self.model,
            external_data="never" if self.kind == "tune" else "always",
        )

    def work(self) -> None:
        if self.kind in ("optimize", "replace"):
            optimizer.optimize(self.model, output=self.output, backend="cpu")
        elif self.kind == "session":
            provider.create_session(self.model, {"claim": "all"}).run(
                None, {"x": np.zeros((64, 256), np.float32)}
            )
        else:
            measure.tune(self.model, {}, backend="cuda", budget=measure.Budget(20))

    def files(self) -> dict[str, bytes]:
        """What a run leaves: files in the model's folder, and entries of the cache."""
        own = {
            str(p.relative_to(self.folder)): p.read_bytes()
            for p in self.folder.rglob("*")
            if p.is_file()
        }
        if self.kind == "session":
            own.update({p.name: p.read_bytes() for p in _kept(self.home)})
        return own

    def contents(self) -> dict[str, bytes] | None:
        """The weights, wherever the model keeps them, and its nodes; None for no model."""
        if not self.output.exists():
            return None
        source = model_file.load(self.output)
        external.load_into_memory(source, lambda t: True)
        return {
            "nodes": repr(source.model.graph.node).encode(),
            **{t.name: numpy_helper.to_array(t).tobytes() for t in source.model.graph.initializer},
        }


def _in_a_child(work: Callable[[], None], quiet: bool = True) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if quiet:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def _whole(trial: Trial) -> float:
    """Runs it without a kill. Returns the seconds that took; exits where it fails."""
    began = time.monotonic()
    _, status = os.waitpid(_in_a_child(trial.work, quiet=False), 0)
    if status:
        raise SystemExit(f"{trial.kind} fails without a kill, status {status}")
    return time.monotonic() - began


def _count_steps(stop: int) -> None:
    """The process is killed before its system call number `stop` of those that change files."""
    left = [stop]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return step

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))


def _killed(trial: Trial, seconds: float, random: Random) -> str:
    """How the kill was made: "time", "step", or "late" when the run had ended."""
    if random.random() < 0.5:
        stop = random.randrange(24)

        def work() -> None:
            _count_steps(stop)
            trial.work()

        _, status = os.waitpid(_in_a_child(work), 0)
        how = "step"
    else:
        child = _in_a_child(trial.work)
        time.sleep(random.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        how = "time"
    return how if os.WIFSIGNALED(status) else "late"


def _kept(home: Path) -> list[Path]:
    """What the project keeps in the user's folders (ONNX Runtime keeps files of its own there)."""
    return [p for folder in home.glob("*/tracea-onnx") for p in folder.rglob("*") if p.is_file()]


#: The tuning records, and what SQLite keeps beside them.
_DATABASE = (".db", ".db-wal", ".db-shm")


def _stray(home: Path) -> list[str]:
    """Kept files that are neither whole entries of the cache, nor tuning records, nor their
    lock.
    """
    out = []
    for p in _kept(home):
        if p.suffix not in (".entry", *_DATABASE, ".lock") or p.name.startswith("."):
            out.append(str(p))
        elif p.suffix == ".entry" and p.read_bytes()[:8] != b"TRACEACE":
            out.append(f"{p} is torn")
    return out


def run(kinds: list[str], count: int, seed: int, folder: Path) -> int:
    random, home = Random(seed), folder / "home"
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        os.environ[variable] = str(home / variable[4:9].lower())
    # NVRTC wants more of a driver than the stand-in
    vars(discovery.module("kernels", "cuda"))["compile"] = lambda source, arch: source.encode()
    trials, wrong, how = {}, 0, Counter[str]()
    for kind in kinds:
        trial = Trial(kind, folder / kind, home)
        trial.prepare()
        before = trial.contents()
        shutil.rmtree(home, ignore_errors=True)
        seconds = _whole(trial)
        trials[kind] = trial, seconds, before, trial.files(), trial.contents()
    for k in range(count):
        trial, seconds, before, expected, after = trials[random.choice(kinds)]
        trial.prepare()
        if random.random() < 0.7 or trial.kind == "session":
            shutil.rmtree(home, ignore_errors=True)
        how[f"{trial.kind} {_killed(trial, seconds, random)}"] += 1
        faults = _stray(home)
        try:
            if trial.contents() not in (before, after, None) or (
                trial.kind == "replace" and trial.contents() is None
            ):
                faults.append("the model is neither the old one nor the new one")
        except Exception as e:
            faults.append(f"the model does not load: {e}")
        if trial.kind == "session":
            entries = {p.name: p.read_bytes() for p in _kept(home) if p.suffix == ".entry"}
            faults += [
                f"entry {name} is no use"
                for name, data in entries.items()
                if expected.get(name) != data
            ]
        left = sorted(trial.files())
        _whole(trial)
        if trial.files() != expected:
            faults.append(f"the next run gives other files: {left} -> {sorted(trial.files())}")
        for fault in [*faults, *_stray(home)]:
            print(f"kill {k} of {trial.kind}: {fault}", flush=True)
        wrong += bool(faults)
    print(f"{count} kills, {wrong} with faults; {dict(sorted(how.items()))}")
    return 1 if wrong else 0


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--count", type=int, default=500)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = p.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        if "tune" in args.kinds and _INNER not in os.environ:
            os.environ[_INNER] = "1"
            done = driver.run(
                driver.build(Path(name)),
                ["-m", "tests.kill", *(argv or sys.argv[1:])],
                seconds=None,
                any="1",
            )
            print(done.stdout, end="")
            print(done.stderr, end="", file=sys.stderr)
            return done.returncode
        return run(args.kinds, args.count, args.seed, Path(name))


if __name__ == "__main__":
    sys.exit(main())

"""A peer that runs in a process of its own (`worker.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracea_onnx.bench import sampling
from tracea_onnx.errors import TraceaError
from tracea_onnx.support import child

#: Seconds that a sample should take, that it takes at most (but for its last run), and after which
#: a process that does not answer is ended.
_SAMPLE, _LONGEST, _PATIENCE = 0.03, 0.3, 900.0


@dataclass(frozen=True)
class Peer:
    """A program that runs models, and how to install it."""

    what: str
    install: str


_OWN_PYTHON = (
    "in an environment of its own, which --python {name}=PATH names (its ONNX Runtime takes the "
    "place of yours)"
)
PEERS = {
    "ort-cpu": Peer("ONNX Runtime's CPU provider", "python -m pip install onnxruntime"),
    "ort-cuda": Peer(
        "ONNX Runtime's CUDA provider",
        f'python -m pip install "onnxruntime-gpu[cuda,cudnn]" {_OWN_PYTHON}',
    ),
    "openvino": Peer("OpenVINO", "python -m pip install openvino"),
    "openvino-ep": Peer(
        "ONNX Runtime's OpenVINO provider",
        f"python -m pip install onnxruntime-openvino {_OWN_PYTHON}",
    ),
    "torch": Peer("PyTorch, through onnx2torch", "python -m pip install torch onnx2torch"),
    "torch-compile": Peer(
        "torch.compile, through onnx2torch", "python -m pip install torch onnx2torch"
    ),
    "tensorrt": Peer(
        "ONNX Runtime's TensorRT provider",
        f"python -m pip install onnxruntime-gpu tensorrt {_OWN_PYTHON}",
    ),
}  # fmt: skip
#: Peers that never use a GPU.
ON_HOST = frozenset({"ort-cpu", "openvino", "openvino-ep"})


class Unavailable(Exception):
    """A peer that this machine does not have: why, and what to do."""


class Failed(Exception):
    """A program that does not run the model: why."""


class Program:
    """The process of one peer, or of ours. It ends with its context."""

    def __init__(self, name: str, request: Mapping[str, Any], python: str | None = None) -> None:
        """Loads the model. Raises Unavailable, Failed."""
        self.name = name
        self._sessions = int(request["sessions"])
        self.taken: list[float] = []  # microseconds of each timed call
        self.waited: list[float] = []  # share of each sample
        self.peak: int | None = None
        self._repeats = 0
        self._results = Path(str(request["outputs"]))
        threads = str(request["threads"])
        env = dict(os.environ) if python is not None else child.environment()
        env |= {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        self._errors = self._results.with_suffix(".err")
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [python or sys.executable, str(Path(__file__).with_name("worker.py"))],
                    env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    text=True,
                )  # fmt: skip
        except OSError as e:
            raise Failed(f"{python} cannot be started: {e.strerror}") from None
        try:
            found = self._ask({**request, "peer": name})
        except BaseException:
            self.close()
            raise
        self.version, self.note = str(found["version"]), str(found["note"])
        self.load = float(found["load"])
        self.memory: int | None = found["memory"]
        self.device_memory: int | None = found["device_memory"]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with contextlib.suppress(OSError):  # what was not read any more
            self._process.__exit__(None, None, None)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def results(self) -> list[Any]:
        """Of the last run, in the order of the model's outputs. Raises Failed."""
        self._ask(None)
        with np.load(self._results) as file:
            made = [file[f"arr_{k}"] for k in range(len(file.files))]
        return [v.astype(object) if v.dtype.kind == "U" else v for v in made]

    def sample(self) -> float:
        """Microseconds of a run. Of one session the median of runs in a row: what else the machine
        does prolongs single ones. Of several all that they did, by the time that it took.
        """
        if not self._repeats:  # how many calls are long enough
            least = statistics.median(self._timed(3)["calls"]) / 1e3
            self._repeats = sampling.calls_for(least, _SAMPLE)
        found = self._timed(self._repeats)
        calls = [ns / 1e3 for ns in found["calls"]]
        self.taken += calls
        self.waited.append(found["waited"])
        if self._sessions == 1:
            return float(statistics.median(calls))
        return float(found["wall"]) / 1e3 / len(calls)

    def _timed(self, calls: int) -> dict[str, Any]:
        found = self._ask([calls, _LONGEST])
        self.peak = found["peak"]
        return found

    def _ask(self, what: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(_PATIENCE, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late = not timer.is_alive()
            timer.cancel()
        if not line:
            self._process.kill()
            raise Failed(f"it did not answer in {_PATIENCE:g} s" if late else self._last_words())
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            self.close()
            raise Failed(str(found["failed"]))
        if "missing" in found:
            fix = f"; {PEERS[self.name].install}" if found["install"] and self.name in PEERS else ""
            raise Unavailable(f"{found['missing']}{fix}".format(name=self.name))
        return found

    def _last_words(self) -> str:
        code = self._process.wait()
        said = self._errors.read_text(errors="replace").strip().splitlines()
        how = f"its process was ended by signal {-code}" if code < 0 else f"it ended with {code}"
        return f"{how}: {said[-1][:300]}" if said else how


def inputs_file(folder: Path, values: Mapping[str, Any]) -> Path:
    """Inputs as programs read them. Raises TraceaError for what is no tensor."""
    for name, v in values.items():
        if not isinstance(v, np.ndarray) or v.dtype.kind not in "biufcOU":
            raise TraceaError(
                f"input '{name}' is no tensor of plain numbers or strings",
                "bench gives programs no others",
            )
    path = folder / "inputs.npz"
    np.savez(path, *(v.astype(str) if v.dtype == object else v for v in values.values()))
    return path

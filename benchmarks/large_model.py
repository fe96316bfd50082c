"""Peak memory of `tracea-onnx optimize` on a model whose weights lie in external data.

    python -m benchmarks.large_model [--gigabytes 3] [--folder DIR] [-- OPTIONS OF optimize]

Writes a stack of linear layers, optimizes it in a process of its own, reports that process's peak
resident memory over the model's size, and removes both models. Mapped pages of the data files count
as resident, so the figure is an upper bound of what the process itself holds."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

_NARROW, _WIDE = 4096, 8192
_LAYER = 4 * _NARROW * _WIDE


def write(path: Path, layers: int) -> int:
    """A model of `layers` MatMul + Add + Relu with one external file, written layer by layer.

    Returns the bytes of its weights.
    """
    rng = np.random.default_rng(0)
    nodes, tensors, offset = [], [], 0
    with path.with_name(path.name + ".data").open("wb") as data:
        for k in range(layers):
            shape = (_NARROW, _WIDE) if k % 2 == 0 else (_WIDE, _NARROW)
            for name, dims in ((f"w{k}", shape), (f"b{k}", shape[1:])):
                values = rng.standard_normal(dims, dtype=np.float32)
                values *= np.float32(1.4 / np.sqrt(shape[0]))
                data.write(values.tobytes())
                t = TensorProto(
                    name=name,
                    data_type=TensorProto.FLOAT,
                    dims=dims,
                    data_location=TensorProto.EXTERNAL,
                )
                for key, value in (
                    ("location", path.name + ".data"),
                    ("offset", str(offset)),
                    ("length", str(values.nbytes)),
                ):
                    t.external_data.add(key=key, value=value)
                tensors.append(t)
                offset += values.nbytes
            before, after = ("x" if k == 0 else f"v{k - 1}"), ("y" if k == layers - 1 else f"v{k}")
            nodes.append(
                helper.make_node("MatMul", [before, f"w{k}"], [f"p{k}"], name=f"layer{k}/MatMul")
            )
            nodes.append(
                helper.make_node("Add", [f"p{k}", f"b{k}"], [f"s{k}"], name=f"layer{k}/Add")
            )
            nodes.append(helper.make_node("Relu", [f"s{k}"], [after], name=f"layer{k}/Relu"))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", w])
        for n, w in (("x", _NARROW), ("y", _NARROW if layers % 2 == 0 else _WIDE))
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(path),
    )
    return offset


def run(arguments: list[str]) -> tuple[int, int, float]:
    """Exit code, peak resident bytes and seconds of `python -m tracea_onnx ...`."""
    began = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "tracea_onnx", *arguments], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, time.perf_counter() - began


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--gigabytes", type=float, default=3.0)
    p.add_argument(
        "--folder",
        type=Path,
        help="where the models are written for the time being (default: the system's folder for temporary files)",
    )
    p.add_argument("options", nargs="*", help="options handed on to optimize")
    args = p.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        model = Path(folder) / "large.onnx"
        size = write(model, max(1, round(args.gigabytes * 1e9 / _LAYER)))
        code, peak, seconds = run(["optimize", str(model), "--backend", "cpu", *args.options])
    print(
        f"model {size / 2**30:.2f} GiB, peak {peak / 2**30:.2f} GiB = {peak / size:.2f} x its size, {seconds:.1f} s, exit {code}"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())

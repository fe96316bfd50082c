"""Where the time of a model goes: every launch of its Plans, run alone with its own operands,
slowest first.

python -m tools.profile_cpu model.onnx [--dim batch=1] [--top 30] [--isa avx2]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np
import onnx

from tracea_onnx.ir.graph import Array, Graph
from tracea_onnx.pipeline.pack import build_pack
from tracea_onnx.plan.builder import evaluate, read_pack
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime import native_library

_CONV_FLOPS = {"conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="value of a symbolic dim (default 1)",
    )
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--isa", choices=native_library.isas(), help="default: the machine's best")
    args = parser.parse_args()
    given = {k: int(v) for k, v in (d.split("=") for d in args.dim)}
    graph = Graph(onnx.load(args.model, load_external_data=False))
    header, blobs = read_pack(build_pack(args.model))
    rows: list[tuple[float, str, str]] = []
    for entry in header["entries"]:
        rows += _profile(entry["plan"], blobs, graph, given, args.repeat, args.isa)
    total = sum(r[0] for r in rows)
    by_family: dict[str, float] = defaultdict(float)
    for seconds, family, _ in rows:
        by_family[family] += seconds
    print(f"{total * 1e6:.0f} us in {len(rows)} launches")
    for family, seconds in sorted(by_family.items(), key=lambda kv: -kv[1]):
        print(
            f"  {family:16s} {seconds * 1e6:9.0f} us  {100 * seconds / total:5.1f} %  "
            f"{sum(r[1] == family for r in rows)} launches"
        )
    for seconds, family, text in sorted(rows, reverse=True)[: args.top]:
        print(f"{seconds * 1e6:9.1f} us {family:16s} {text}")


def _profile(
    plan: dict[str, Any],
    blobs: list[bytes],
    graph: Graph,
    given: dict[str, int],
    repeat: int,
    isa: str | None,
) -> list[tuple[float, str, str]]:
    dims = []
    for i in plan["inputs"]:
        shape = graph.shape(i["name"]) or (1,) * i["rank"]
        dims.append([d if isinstance(d, int) else given.get(str(d), 1) for d in shape])
    value = evaluate(plan, dims)
    rng = np.random.default_rng(0)
    arrays: list[Array] = []
    for b in plan["buffers"]:
        size = 1 << 16
        found = None
        if b["kind"] == "arena":
            size = value[b["bytes"]]
        elif b["kind"] == "const":
            size = b["bytes"]
        elif b["kind"] == "blob":
            size = len(blobs[b["index"]])
        elif b["kind"] == "input":
            size = int(np.prod(dims[b["index"]], dtype=np.int64)) * 8
        elif b["kind"] == "output":
            size = (
                int(
                    np.prod([value[d] for d in plan["outputs"][b["index"]]["dims"]], dtype=np.int64)
                )
                * 8
            )
        elif b["kind"] == "initializer":
            found = graph.const(b["name"])
            size = found.nbytes if found is not None else 1 << 24
        data = native_library.aligned(size // 4 + 64)
        data[:] = rng.standard_normal(data.size).astype(np.float32)
        if b["kind"] == "blob":
            data.view(np.uint8)[: len(blobs[b["index"]])] = np.frombuffer(
                blobs[b["index"]], np.uint8
            )
        if found is not None:
            data.view(np.uint8)[: found.nbytes] = np.frombuffer(
                np.ascontiguousarray(found).tobytes(), np.uint8
            )
        if b["kind"] == "input" and plan["inputs"][b["index"]]["dtype"] != 1:
            data[:] = 0
        arrays.append(data)
    out = []
    for launch in plan["run"]:
        family = FAMILIES[launch["k"]]
        operands: dict[str, Any] = {}
        for name, ref in zip(family.operands, launch["b"], strict=True):
            operands[name.rstrip("?")] = (
                None if ref is None else (arrays[ref[0]].view(np.uint8), value[ref[1]])
            )
        ints = {n: value[e] for n, e in zip(family.ints, launch["i"], strict=True)}
        floats = dict(zip(family.floats, launch["f"], strict=True))
        seconds = native_library.run_kernel(
            launch["k"], operands, ints, floats, launch["p"], isa=isa, repeat=repeat
        )
        out.append((seconds, launch["k"], _describe(launch["k"], ints, launch["p"], seconds)))
    return out


def _describe(family: str, i: dict[str, int], program: Any, seconds: float) -> str:
    extra = " +program" if program is not None and "act" in i else ""
    if family in _CONV_FLOPS:
        flops = 2 * i["N"] * i["OC"] * i["OH"] * i["OW"] * i["IC"] // i["G"] * i["KH"] * i["KW"]
        act = f" act{i['act']}" + (f" res{i['res_mode']}" if i["res_mode"] else "")
        shapes = (
            f"{i['N']}x{i['IC']}x{i['IH']}x{i['IW']} -> {i['OC']}x{i['OH']}x{i['OW']} "
            f"k{i['KH']}x{i['KW']} s{i['SH']} g{i['G']}"
        )
        return f"{shapes}{act}{extra}  {flops / seconds / 1e9:.1f} GF/s"
    if family in ("gemm", "matmul"):
        batch = i.get("B0", 1) * i.get("B1", 1)
        flops = 2 * batch * i["M"] * i["N"] * i["K"]
        return (
            f"{batch}x {i['M']}x{i['N']}x{i['K']} act{i['act']}{extra}  "
            f"{flops / seconds / 1e9:.1f} GF/s"
        )
    return " ".join(
        f"{k}={v}"
        for k, v in i.items()
        if v not in (0, 1) and not k.startswith(("x0_", "x1_", "x2_", "y_"))
    )[:110]


if __name__ == "__main__":
    main()

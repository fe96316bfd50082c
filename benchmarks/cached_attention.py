"""How long GroupQueryAttention takes over a cache on the CPU, beside ONNX Runtime's own.

    python -m benchmarks.cached_attention [32/8x64 8/1x128 ...] [--keys 1024 ...] [--tokens 1]
        [--threads 1] [--copied] [--json FILE]

HEADS/KV_HEADSxSIZE: sessions of one node with rotary embedding, a row of the batch, whose cache is
written in place, or with --copied made anew by each run. Results are compared first. With one
thread its CPU time counts, else the wall clock. A ratio is ONNX Runtime's time over ours.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks import harness
from tracea_onnx import provider

Array = npt.NDArray[Any]
#: Llama 3.2 1B, Qwen 2.5 0.5B, Gemma 3 1B, Llama 3 8B; every head with keys of its own.
LAYERS = ("32/8x64", "14/2x64", "4/1x256", "32/8x128", "16/16x64", "32/32x128")


def model(heads: int, kv: int, size: int) -> bytes:
    angles = np.outer(np.arange(8192), 10000.0 ** (-np.arange(size // 2) * 2 / size))
    constants = {
        "axis": np.array(1, np.int64), "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }  # fmt: skip
    inputs = ["q", "k", "v", "key", "value", "lens", "total", "cos", "sin"]
    nodes = [
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["wide"], axis=0),
        helper.make_node("Cast", ["wide"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", inputs, ["y", "new_key", "new_value"], num_heads=heads,
            kv_num_heads=kv, do_rotary=1, domain="com.microsoft",
        ),
    ]  # fmt: skip
    f32 = TensorProto.FLOAT
    infos = [
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", "total"]),
        helper.make_tensor_value_info("lens", TensorProto.INT32, ["b"]),
        *(
            helper.make_tensor_value_info(n, f32, ["b", "s", count * size])
            for n, count in (("q", heads), ("k", kv), ("v", kv))
        ),
        *(helper.make_tensor_value_info(n, f32, ["b", kv, "past", size]) for n in ("key", "value")),
    ]
    results = [helper.make_tensor_value_info(n, f32, None) for n in ("y", "new_key", "new_value")]
    stored = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "layer", infos, results, stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(made.SerializeToString())


def bound(session: ort.InferenceSession, feeds: dict[str, Array], copied: bool) -> Any:
    values = {n: ort.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feeds.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    for name in ("key", "value"):
        if copied:
            binding.bind_output(f"new_{name}")
        else:
            binding.bind_ortvalue_output(f"new_{name}", values[name])
    return binding, values


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--keys", type=int, nargs="+", default=[1024])
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--copied", action="store_true")
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    report, ratios = harness.Report("cached_attention", args, device=False), []
    for layer in args.layers:
        heads, kv, size = map(int, layer.replace("/", " ").replace("x", " ").split())
        data, options = model(heads, kv, size), ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = args.threads, 3
        sessions = {
            "ours": provider.create_session(data, {"claim": "all"}, options),
            "onnxruntime": ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]),
        }
        for keys in args.keys:
            rng, room = np.random.default_rng(0), keys - args.tokens if args.copied else keys + 64
            feeds: dict[str, Array] = {
                n: rng.standard_normal(shape, dtype=np.float32)
                for n, shape in (
                    ("q", (1, args.tokens, heads * size)), ("k", (1, args.tokens, kv * size)),
                    ("v", (1, args.tokens, kv * size)), ("key", (1, kv, room, size)),
                    ("value", (1, kv, room, size)),
                )
            }  # fmt: skip
            feeds |= {"mask": np.ones((1, keys), np.int64), "lens": np.array([keys - 1], np.int32)}
            bindings = {n: bound(s, feeds, args.copied) for n, s in sessions.items()}
            for n, s in sessions.items():
                s.run_with_iobinding(bindings[n][0])
            y, want = (bindings[n][0].get_outputs()[0].numpy() for n in sessions)
            name = f"{layer}, {args.tokens} of {keys} keys"
            if not np.allclose(y, want, rtol=1e-3, atol=1e-4):
                report.fail(name, f"{np.abs(y - want).max()} off")
                continue
            samplers = {
                n: harness.run_sampler(
                    lambda s=s, b=bindings[n][0]: s.run_with_iobinding(b),  # type: ignore[misc]
                    least=0.004,
                    alone=args.threads == 1,
                )
                for n, s in sessions.items()
            }
            times = harness.interleaved(samplers, rounds=args.rounds)
            ratios.append(times.ratios["onnxruntime"][0])
            report.row(name, times, times=times)
    print(harness.geometric_mean(ratios))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

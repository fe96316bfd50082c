"""How fast a whole model is, beside its peers.

    python -m benchmarks.models [NAME|FILE.onnx ...] [--threads 1] [--batch 1]      # on the CPU
    python -m benchmarks.models [NAME ...] --backend cuda [--batch 1 32] [--peers ort graph compile]
    python -m benchmarks.models stft:400/160 dft:512 --batch 1 8
    python -m benchmarks.models lstm:100/1/128 gru:100/16/256
    python -m benchmarks.models nbits:2048/8192/4/32 decoder:16/4/32
    python -m benchmarks.models bytes:2048/512 --isa avx2
    python -m benchmarks.models int8:resnet50/qdq int8:minilm/dynamic
    python -m benchmarks.models int8:resnet50/qdq int8:bert_base/mixed --backend cuda
    python -m benchmarks.models loop:50/512 branches:1024/512 --backend cuda
    python -m benchmarks.models bf16:resnet50 bf16:bert_base --threads 1 2
    python -m benchmarks.models further:swin_t --backend cuda --folder DIR --peers graph

Without names: the zoo. stft:FRAME/STEP is an STFT of 10 s of audio at 16 kHz, dft:LENGTH a DFT of
64 real signals, both of one side; lstm:STEPS/BATCH/UNITS, gru:.. and rnn:.. are a layer with as
many inputs as units; loop:STEPS/UNITS is a Loop of such a step, branches:KEYS/UNITS an If with
attention over a cache in one of its branches; nbits:K/N/BITS/BLOCK is a product by weights of so
many bits, and decoder:LAYERS/BITS/BLOCK layers of Llama 3.2 1B (/ROWS and /ACCURACY_LEVEL may
follow); int8:NAME/FORM is a model of the zoo that ONNX Runtime's tool quantised (qdq, operators,
dynamic, mixed: products by weights, in fp16 around them), all of which the provider takes;
bf16:NAME is one after `optimize --precision bf16` (specs=trust), beside the fp32 file with the
provider's option bf16 (`rounded`) and without (`fp32`). On the CPU: the provider, and the optimized
file on stock ONNX Runtime (`optimized`), beside the file on stock ONNX Runtime (`ort`). On a GPU:
fp16 (--single: fp32 without TF32), tensors on the device, each run synchronised; the peers are
those of `gpu_peers`, and of a model in 8 bits the same model in fp16 on the provider (`fp16`).
Results are compared with ONNX Runtime's CPU provider on the fp32 model before anything is timed;
those of a model in 8 bits with that model's on it, or, where fp16 is between its products, must be
as near to the fp32 model's.
Times are medians; a ratio is a peer's time over ours (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort

import tracea_onnx
from benchmarks import further_models, gpu_peers, harness, nbits_models
from tests.support.cuda.models import NVIDIA, Bound, feeds, half, typed
from tests.support.difference import difference, distance
from tests.support.model_inputs import Feeds, feeds_at, first_accepted
from tests.support.quantised_models import Form, quantise
from tests.support.sessions import assigned, left_to_ort, session
from tracea_onnx import provider
from tracea_onnx.bench.batches import batch_symbol
from tracea_onnx.support import discovery

#: Sizes of the zoo's symbols.
ZOO_SIZES = {"batch": 1, "sequence": 128}
ON_GPU = ("resnet50", "mobilenet_v3", "efficientnet_b0", "bert_base", "vit_b16", "gpt2")
#: Operators that are quantised in a static way: of convolutional models, and of others, whose masks
#: are sums with numbers that leave no bits to the rest.
_IMAGES = ["Add", "Clip", "Conv", "Gemm", "GlobalAveragePool", "MaxPool", "Relu"]
_OTHERS = ["Gemm", "MatMul"]
#: Tokens of a prompt, where they are not --sequence.
_SEQUENCE = {"gpt2": 512}
#: Differences beyond these are no rounding: nothing is timed. (Random weights amplify rounding.)
_LARGEST = {"cpu": 5e-3, "int8": 5e-2, "bf16": 0.1, "fp16": 0.1, "fp32": 1e-3}
#: How much farther from the model in fp32 than ONNX Runtime's results ours may be.
_AS_NEAR = 1.1
CUDA = {"backend": "cuda"}


def stft(frame: int, step: int) -> onnx.ModelProto:
    """One STFT of 10 s of audio at 16 kHz, with a Hann window."""
    stored = {"step": np.array(step), "window": np.hanning(frame).astype(np.float32)}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("STFT", ["audio", *stored], ["spectra"])],
        "stft",
        [onnx.helper.make_tensor_value_info("audio", 1, ["batch", 160000, 1])],
        [onnx.helper.make_tensor_value_info("spectra", 1, ["batch", None, None, 2])],
        [onnx.numpy_helper.from_array(v, k) for k, v in stored.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def dft(length: int) -> onnx.ModelProto:
    """One DFT of 64 real signals."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("DFT", ["signals"], ["spectra"], onesided=1)],
        "dft",
        [onnx.helper.make_tensor_value_info("signals", 1, ["batch", 64, length, 1])],
        [onnx.helper.make_tensor_value_info("spectra", 1, ["batch", 64, None, 2])],
    )
    opset = onnx.helper.make_opsetid("", 20)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def recurrent(kind: str, steps: int, batch: int, units: int) -> onnx.ModelProto:
    """One layer forwards, as PyTorch's exporter spells it."""
    rng, rows = np.random.default_rng(0), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * units
    shapes = {"w": (1, rows, units), "r": (1, rows, units), "b": (1, 2 * rows)}
    stored = [
        onnx.numpy_helper.from_array(rng.uniform(-1, 1, s).astype(np.float32) * units**-0.5, k)
        for k, s in shapes.items()
    ]
    reset: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = onnx.helper.make_node(kind, ["x", *shapes], ["y", "last"], hidden_size=units, **reset)
    graph = onnx.helper.make_graph(
        [node],
        kind,
        [onnx.helper.make_tensor_value_info("x", 1, [steps, batch, units])],
        [onnx.helper.make_tensor_value_info(o, 1, None) for o in ("y", "last")],
        stored,
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def of_bytes(positions: int, channels: int) -> onnx.ModelProto:
    """A classifier of bytes of random weights. What its convolution makes reaches tens, as in
    trained ones.
    """
    rng = np.random.default_rng(0)
    stored = {
        "depth": np.array(257, np.int32), "values": np.array([0, 1], np.float32),
        "w": rng.standard_normal((257, 64)), "b": rng.standard_normal(64),
        "rows": np.array([0, positions // 4, 256]), "gamma": rng.standard_normal(256),
        "f": rng.standard_normal((channels, 256, 5)) / 2,
        "c": rng.standard_normal((1, 1, channels)),
        "v": rng.standard_normal((channels, 200)) * channels**-0.5,
        "cubed": np.array(0.044715), "root": np.array((2 / np.pi) ** 0.5),
        "half": np.array(0.5), "one": np.array(1.0),
    }  # fmt: skip

    def gelu(x: str, y: str) -> list[tuple[str, str, str, dict[str, Any]]]:
        steps = ("Mul: x x", "Mul: 0 x", "Mul: 1 cubed", "Add: x 2", "Mul: 3 root", "Tanh: 4",
                 "Add: 5 one", "Mul: x half", "Mul: 7 6")  # fmt: skip
        names = {"x": x} | {str(k): f"{y}{k}" for k in range(len(steps) - 1)}
        return [
            (op, " ".join(names.get(n, n) for n in read.split()), names.get(str(k), y), {})
            for k, (op, _, read) in enumerate(s.partition(": ") for s in steps)
        ]

    nodes = [
        ("OneHot", "bytes depth values", "hot", {}), ("MatMul", "hot w", "p", {}),
        ("Add", "p b", "q", {}), *gelu("q", "r"), ("Reshape", "r rows", "s", {}),
        ("LayerNormalization", "s gamma", "n", {}), ("Transpose", "n", "t", {"perm": [0, 2, 1]}),
        ("Conv", "t f", "i", {}), ("Transpose", "i", "j", {"perm": [0, 2, 1]}),
        ("Add", "j c", "k", {}), *gelu("k", "g"),
        ("ReduceMax", "g", "m", {"axes": [1], "keepdims": 0}), ("MatMul", "m v", "z", {}),
        ("Softmax", "z", "label", {}),
    ]  # fmt: skip
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, read.split(), [y], **more) for op, read, y, more in nodes],
        "bytes",
        [onnx.helper.make_tensor_value_info("bytes", onnx.TensorProto.INT32, ["batch", positions])],
        [onnx.helper.make_tensor_value_info("label", 1, ["batch", 200])],
        [
            onnx.numpy_helper.from_array(v.astype(np.float32) if v.dtype == float else v, k)
            for k, v in stored.items()
        ],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def _of_text(text: str, weights: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A model in ONNX's text format, with random weights of these shapes."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        w = (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, name))
    return model


def loop(steps: int, units: int) -> onnx.ModelProto:
    """A Loop of a recurrent layer of this many steps, which gives the state of each."""
    state = f"float[batch, {units}]"
    return _of_text(
        f"""
        loop ({state} x) => ({state} last, float[{steps}, batch, {units}] all)
        <int64 times = {{{steps}}}, bool go = {{1}}>
        {{
          p = MatMul (x, u)
          last, all = Loop (times, go, x) <body = step (int64 i, bool c, {state} h)
              => (bool d, {state} next, {state} gate) {{
            d = Identity (c)
            m = MatMul (h, w)
            a = Add (m, p)
            next = Tanh (a)
            gate = Sigmoid (a)
          }}>
        }}
        """,
        {"u": (units, units), "w": (units, units)},
    )


def branches(keys: int, units: int) -> onnx.ModelProto:
    """An attention layer with a cache of this many keys in one branch of an If, and without one in
    the other, as decoders that were merged have it.
    """
    heads = units // 64
    present = f"float[batch, {heads}, total, 64]"

    def branch(name: str, past: bool) -> str:
        joined = "Concat <axis = 2> (past_{0}, {0})" if past else "Identity ({0})"
        return f"""
          {name} = {name} () => (float[batch, length, {units}] y{past:d}, {present} k{past:d},
              {present} v{past:d}) {{
            k{past:d} = {joined.format("key")}
            v{past:d} = {joined.format("value")}
            t{past:d} = Transpose <perm = [0, 1, 3, 2]> (k{past:d})
            s{past:d} = MatMul (query, t{past:d})
            p{past:d} = Softmax <axis = -1> (s{past:d})
            o{past:d} = MatMul (p{past:d}, v{past:d})
            r{past:d} = Transpose <perm = [0, 2, 1, 3]> (o{past:d})
            f{past:d} = Reshape (r{past:d}, rows)
            y{past:d} = MatMul (f{past:d}, wo)
          }}"""

    def heads_of(name: str, w: str) -> str:
        return f"""
          {name}_m = MatMul (x, {w})
          {name}_h = Reshape ({name}_m, split)
          {name} = Transpose <perm = [0, 2, 1, 3]> ({name}_h)"""

    return _of_text(
        f"""
        branches (float[batch, 1, {units}] x, float[batch, {heads}, {keys}, 64] past_key,
                  float[batch, {heads}, {keys}, 64] past_value, int64[1] use_cache)
            => (float[batch, length, {units}] y, {present} present_key, {present} present_value)
        <int64[4] split = {{0, 0, {heads}, 64}}, int64[3] rows = {{0, 0, {units}}}>
        {{
          c = Cast <to = 9> (use_cache)
          {heads_of("query", "wq")} {heads_of("key", "wk")} {heads_of("value", "wv")}
          y, present_key, present_value = If (c) <{branch("then_branch", True)},
              {branch("else_branch", False)}>
        }}
        """,
        dict.fromkeys(("wq", "wk", "wv", "wo"), (units, units)),
    )


#: Models by what stands before the sizes in their names.
_BY_SIZES: Mapping[str, Callable[..., onnx.ModelProto]] = {
    "bytes": of_bytes,
    "stft": stft,
    "dft": dft,
    "loop": loop,
    "branches": branches,
    "nbits": nbits_models.gemm,
    "decoder": nbits_models.decoder,
    **{kind.lower(): partial(recurrent, kind) for kind in ("LSTM", "GRU", "RNN")},
}


def sized(name: str) -> onnx.ModelProto:
    """The model of a name with sizes."""
    kind, _, sizes = name.partition(":")
    return _BY_SIZES[kind](*map(int, sizes.split("/")))


def int8(of: str) -> onnx.ModelProto:
    """NAME/FORM: a model of the zoo in 8 bits; in a static form with scales for each channel of a
    weight.
    """
    name, _, form = of.partition("/")
    model = discovery.module("models", name).build()
    fed = [feeds_at(model, None, ZOO_SIZES, seed) for seed in range(2)]
    images = any(n.op_type == "Conv" for n in model.graph.node)
    static = {"per_channel": True, "op_types_to_quantize": _IMAGES if images else _OTHERS}
    return quantise(model, cast(Form, form), fed, **({} if form == "dynamic" else static))


def on_cpu(name: str, args: argparse.Namespace, report: harness.Report) -> None:
    """`ours` is the provider."""
    with tempfile.TemporaryDirectory() as scratch:
        kind, _, sizes_of = name.partition(":")
        built = kind in (*_BY_SIZES, "int8") or name in discovery.names("models")
        source = Path(scratch) / f"{name.replace('/', '-')}.onnx" if built else Path(name)
        if kind == "bf16":
            _bf16(sizes_of, Path(scratch), args, report)
            return
        if kind in _BY_SIZES:
            onnx.save(sized(name), source)
        elif kind == "int8":
            onnx.save(int8(sizes_of), source)
        elif built:
            onnx.save(discovery.module("models", name).build(), source)
        model = onnx.load(source, load_external_data=False)
        optimized = Path(scratch) / "optimized.onnx"
        tracea_onnx.optimize(source, output=optimized, verify=False)
        sizes = dict(ZOO_SIZES)
        if not built:
            probe = session(source)
            sizes = first_accepted(model, source.parent, lambda f: probe.run(None, f))
        for batch in args.batch:
            if (symbol := batch_symbol(model)) is not None:
                sizes[symbol] = batch
            given = [feeds_at(model, source.parent, sizes, seed) for seed in range(4)]
            for threads in args.threads:
                sessions = {
                    harness.OURS: session(
                        source,
                        provider=True,
                        threads=threads,
                        isa=args.isa,
                        everything=kind == "int8",
                    ),
                    "ort": session(source, threads=threads),
                    "optimized": session(optimized, threads=threads),
                }
                if kind == "int8":
                    sessions["exact"] = session(source, threads=threads, exact=True)
                title = f"{source.stem} b{batch} {threads} threads"
                bound = _LARGEST["int8" if kind == "int8" else "cpu"]
                _on_cpu(title, sessions, given, args, report, bound)
                del sessions
                gc.collect()


def _bf16(name: str, scratch: Path, args: argparse.Namespace, report: harness.Report) -> None:
    wide, narrow = scratch / f"{name}.onnx", scratch / f"{name}-bf16.onnx"
    onnx.save(discovery.module("models", name).build(), wide)
    tracea_onnx.optimize(wide, output=narrow, precision="bf16", verify=False)
    model = onnx.load(wide, load_external_data=False)
    for batch in args.batch:
        sizes = {**ZOO_SIZES, "batch": batch, "sequence": args.sequence}
        given = [feeds_at(model, wide.parent, sizes, seed) for seed in range(4)]
        for threads in args.threads:
            ours = partial(session, provider=True, threads=threads, isa=args.isa)
            sessions = {
                harness.OURS: ours(narrow, options_of_provider={"specs": "trust"}),
                "rounded": ours(wide, options_of_provider={"bf16": "1"}),
                "fp32": ours(wide),
                "ort": session(wide, threads=threads),
            }
            title = f"{name} bf16 b{batch} {threads} threads"
            _on_cpu(title, sessions, given, args, report, _LARGEST["bf16"])
            del sessions
            gc.collect()


def _on_cpu(
    name: str, sessions: Mapping[str, Any], given: Sequence[Feeds], args: argparse.Namespace,
    report: harness.Report, bound: float,
) -> None:  # fmt: skip
    # of 8 bits, sums that saturate are no reference
    exact = "exact" in sessions
    want = [sessions["exact" if exact else "ort"].run(None, f) for f in given[:2]]
    worst = max(
        difference(w, s.run(None, f))
        for side, s in sessions.items()
        if not exact or side == harness.OURS
        for f, w in zip(given, want, strict=False)
    )
    if not worst <= bound:
        report.fail(name, f"differs by {worst:.1e}")
        return

    def caller(made: Any) -> Callable[[int], object]:
        return lambda k: made.run(None, given[k % len(given)])

    samplers = {n: harness.host(caller(s), clock=args.clock) for n, s in sessions.items()}
    times = harness.interleaved(samplers, seconds=args.seconds)
    ran, nodes = assigned(sessions[harness.OURS])
    text = f"{times}, {ran} of {nodes} nodes on the provider, difference {worst:.1e}"
    report.row(name, text, times=times, ran=ran, nodes=nodes, difference=worst)


def _as_near(name: str, x: Feeds, got: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether these results of a model in 8 bits are as near to those of the model in fp32 as ONNX
    Runtime's are. (Where a rounding in fp16 moves a value to another of 256 steps, all that follows
    in a deep model of random weights is another.)
    """
    full = discovery.module("models", name).build()
    plain = ort.InferenceSession(full.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds = {i.name: np.float32 if "float" in i.type else np.int64 for i in plain.get_inputs()}
    floats = plain.run(None, {n: v.astype(kinds[n]) for n, v in x.items()})
    return all(
        distance(f, g) <= _AS_NEAR * distance(f, w)
        for f, g, w in zip(floats, got, want, strict=True)
    )


def on_gpu(name: str, args: argparse.Namespace, report: harness.Report) -> None:
    further, bits8 = name.startswith("further:"), name.startswith("int8:")
    wide: ort.InferenceSession | None = None
    if bits8:
        of = name.partition(":")[2]
        name, full = of.partition("/")[0], int8(of)
        wider = half(discovery.module("models", name).build())
        wide = provider.create_session(wider.SerializeToString(), CUDA)
    elif further:
        path = further_models.optimized(name.partition(":")[2], args.folder)
        full = onnx.load(str(path))
    elif name.partition(":")[0] in _BY_SIZES:
        full = sized(name)
    else:
        zoo = name in discovery.names("models")
        full = discovery.module("models", name).build() if zoo else onnx.load(name)
    plain = ort.InferenceSession(full.SerializeToString(), providers=["CPUExecutionProvider"])
    source = (full if further or bits8 or args.single else half(full)).SerializeToString()
    began = time.perf_counter()
    made = provider.create_session(source, CUDA | ({"claim": "all"} if bits8 else {}))
    load = time.perf_counter() - began
    left = left_to_ort(made)
    sequence = _SEQUENCE.get(name) or int(args.sequence)
    prepared: dict[str, bytes] = {}
    for batch in args.batch:
        if batch > 1 and name in _SEQUENCE:  # a prompt
            continue
        x = typed(plain, feeds(plain, batch, sequence, np.random.default_rng(0)))
        want = plain.run(None, x)
        ours = Bound(made, x, [w.shape for w in want], NVIDIA)
        for _ in range(3):  # the third run replays a graph
            ours()
        error, title = ours.error(want), f"{'int8 ' * bits8}{name} b{batch}"
        near = error <= _LARGEST["int8" if bits8 else "fp32" if args.single else "fp16"]
        if not near and bits8:
            near = _as_near(name, x, ours.results(), want)
        if not near:
            report.fail(title, f"differs by {error:.1e}")
            continue
        runs: dict[str, Callable[[], None]] = {harness.OURS: ours}
        if wide is not None:
            runs["fp16"] = Bound(wide, x, [w.shape for w in want], NVIDIA)
        failed = {}
        for kind in args.peers:
            try:
                if kind == "ort":
                    if kind not in prepared:
                        prepared[kind] = source if further else gpu_peers.ort_model(name, full)
                    runs |= gpu_peers.ort_bound(name, prepared[kind], x, want)
                elif kind == "tensorrt":
                    runs |= gpu_peers.tensorrt_bound(full.SerializeToString(), x, want)
                else:
                    runs[kind] = gpu_peers.torch_run(kind, name, batch, sequence, args.single)
            except Exception as e:
                failed[kind] = harness.described(e)
        samplers = {n: harness.run_sampler(run) for n, run in runs.items()}
        times = harness.interleaved(samplers, seconds=args.seconds)
        times.failed = failed
        text = f"{times}, loaded in {load:.1f} s, left to ORT {len(left)}, difference {error:.1e}"
        report.row(title, text, times=times, load=load, left=left, difference=error)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "models", nargs="*", help="names of the zoo, .onnx files, stft:.., lstm:.., further:NAME"
    )
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", nargs="*", type=int, default=[1])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, for each row")
    cpu, cuda = parser.add_argument_group("cpu"), parser.add_argument_group("cuda")
    cpu.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    cpu.add_argument(
        "--clock", choices=tuple(harness.CLOCKS), default="wall",
        help="cpu: the calling thread's time, for one thread on a busy machine",
    )  # fmt: skip
    cpu.add_argument("--isa", default="", help="of the provider's kernels: avx512, avx2, base")
    cuda.add_argument("--peers", nargs="*", default=[], choices=gpu_peers.NAMES)
    cuda.add_argument("--single", action="store_true", help="fp32 rather than fp16")
    cuda.add_argument("--folder", type=Path, default=Path("further"), help="of exported models")
    args = parser.parse_args()
    if args.single and {"ort", "tensorrt"} & set(args.peers):
        parser.error("--single is measured beside PyTorch alone")
    gpu = args.backend == "cuda"
    if gpu:
        gpu_peers.load_libraries()
        args.folder.mkdir(parents=True, exist_ok=True)
    report = harness.Report("models", args, device=gpu)
    zoo = [n for n in discovery.names("models") if n != "demo"]
    for name in args.models or (list(ON_GPU) if gpu else zoo):
        try:
            (on_gpu if gpu else on_cpu)(name, args, report)
        except Exception as e:  # one model that does not run must not hide the others
            report.fail(name, harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

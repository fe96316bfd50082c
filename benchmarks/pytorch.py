"""`torch.compile(model, backend="tracea")` beside PyTorch's eager mode and its inductor.

    python -m benchmarks.pytorch [resnet50 bert_base ...] [--batch 1 8] [--threads 1] [--json F]
    python -m benchmarks.pytorch resnet50 --threads 1 --clock cpu
    python -m benchmarks.pytorch --device cuda --dtype float16 --batch 1 32

Models are PyTorch's own modules with seeded random weights, under inference mode. `ours`,
`inductor` (with freezing, its best for inference) and `eager` are called on the same inputs;
`patched` is eager mode with `patch_conv2d`. The time of each one's first call, which compiles, is a
column of its own. --clock cpu counts the calling thread's time, for one thread on a machine with
other work on it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tracea_onnx.torch as ours
from benchmarks import harness


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: Callable[[Any], Any] = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += self.downsample(x)
        return self.relu(y)


def resnet50(batch: int) -> tuple[nn.Module, list[Any]]:
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for k in range(blocks):
            parts.append(Bottleneck(inputs, width, 2 if stage and not k else 1))
            inputs = 4 * width
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    return model, [torch.randn(batch, 3, 224, 224)]


class Bert(nn.Module):
    """The encoder of BERT-base, with its embeddings and its pooler."""

    def __init__(self, layers: int, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
            for _ in range(layers)
        )
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Any, hidden: Any) -> Any:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(positions))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return x, torch.tanh(self.pooler(x[:, 0]))


def bert_base(batch: int, sequence: int = 128) -> tuple[nn.Module, list[Any]]:
    hidden = torch.zeros(batch, sequence, dtype=torch.bool)
    hidden[:, sequence - 8 :] = True
    return Bert(12), [torch.randint(30522, (batch, sequence)), hidden]


MODELS = {"resnet50": resnet50, "bert_base": bert_base}


def measure(name: str, batch: int, args: argparse.Namespace, report: harness.Report) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name](batch)
    place: dict[str, Any] = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    model.eval().to(**place)
    inputs = [x.to(**place) if x.is_floating_point() else x.to(args.device) for x in inputs]
    torch.compiler.reset()
    variants = {
        harness.OURS: torch.compile(model, backend="tracea", options={"fallback": 0}),
        "eager": model,
        **({"inductor": torch.compile(model)} if "inductor" in args.peers else {}),
    }
    patch = ours.patch_conv2d()
    ours.unpatch()

    def patched(*given: Any) -> Any:
        with patch:
            return model(*given)

    if "patched" in args.peers:
        variants["patched"] = patched
    with torch.inference_mode():
        first, results = {}, {}
        for kind, f in variants.items():
            began = time.perf_counter()
            results[kind] = f(*inputs)
            first[kind] = time.perf_counter() - began
        want = _flat(results["eager"])
        apart = max(
            float((a - b).abs().max() / b.abs().max().float())
            for a, b in zip(_flat(results[harness.OURS]), want, strict=True)
        )
        if apart > (1e-3 if args.dtype == "float32" else 5e-2):
            report.fail(f"{name} batch {batch}", f"results differ by {apart:.1e}")
            return
        for _ in range(8 if "patched" in variants else 0):  # it decides what is faster
            patched(*inputs)
        times = harness.interleaved(
            {
                kind: harness.host(_call(f, inputs), least=0.0, clock=args.clock)
                for kind, f in variants.items()
            },
            rounds=args.rounds,
        )
    (graph,) = ours.report().graphs
    report.row(
        f"{name} batch {batch}", times, batch=batch, times=times, first=first,
        difference=apart, nodes=graph.nodes, provider_nodes=graph.provider_nodes,
    )  # fmt: skip


def _call(f: Callable[..., Any], inputs: list[Any]) -> Callable[[int], Any]:
    def call(_: int) -> None:
        f(*inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()

    return call


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), choices=[*MODELS, []])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--clock", choices=list(harness.CLOCKS), default="wall")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--peers", nargs="*", default=["inductor"], choices=["inductor", "patched"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch._inductor.config.freezing = True
    report = harness.Report("pytorch", args, device=args.device == "cuda")
    report.content["machine"] += f", torch {torch.__version__}"
    for name in args.models or list(MODELS):
        for batch in args.batch:
            try:
                measure(name, batch, args, report)
            except Exception as e:
                report.fail(f"{name} batch {batch}", harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

"""How many nodes of each model of some folders the provider runs, and why the others stay with
ONNX Runtime.

    python -m tools.coverage FOLDER ... [--backend cuda] [--optimized] [--claim all]
        [--json FILE.json]

Nodes are those of the graphs that ONNX Runtime shows the provider when it makes a session on the
CPU: after its own basic optimizations, with the bodies of If, Loop and Scan. The partition compiler
is asked about each graph for the backend; no GPU is needed. A fused op that ONNX Runtime made is
one node. The table goes to a page with `tools.pages`. With `--optimized`, of what
`tracea-onnx optimize` makes of each model. With `--claim all`, also what stays with ONNX Runtime
because that is as fast: what is left then has no kernel.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.isolate import Lost, run_each

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass
class Share:
    """Of a model: its nodes, those on the provider, and the others by (operator, reason)."""

    nodes: int = 0
    ours: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: str = ""

    @property
    def quantized(self) -> bool:
        """Whether the model has nodes of a quantized group: ONNX Runtime's integer kernels run
        those.
        """
        return any(op in ("QuantizeLinear", "DequantizeLinear") for op, _ in self.left)


#: Of If, Loop and Scan.
_CONTROL = "control flow; the nodes of its bodies count by themselves"


def share(path: Path, backend: str, *, optimized: bool = False, everything: bool = False) -> Share:
    """What the provider would run of a model on this backend, or of what `optimize` makes of it.
    everything: as with the provider option `claim=all`.
    """
    import onnx

    from tests.support.sessions import session
    from tracea_onnx import optimize
    from tracea_onnx.codegen import backend as backends
    from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
    from tracea_onnx.explain.coverage import has_kernel
    from tracea_onnx.ir.contracts import DOMAIN
    from tracea_onnx.ir.graph import Graph
    from tracea_onnx.ir.op_traits import Trait, operators

    found = Share()
    try:
        plain = onnx.load(path, load_external_data=False)
        model = optimize(path, verify=False).model if optimized else plain
        source = model.SerializeToString() if optimized else path
        with compile_requests.listening() as requests:
            session(source, provider=True)
    except Exception as e:  # ONNX Runtime does not run it
        found.failed = " ".join(str(e).split())[:200]
        return found
    writer, control = plan_writer.writer(backends.get(backend)), operators(Trait.CONTROL)
    # graphs that get a result from the provider: around these a device's session has a kernel of
    # If, Loop or Scan
    bodies, making = _bodies(model), set[str]()
    for request in {r.SerializeToString(): r for r in requests}.values():
        graph = Graph(request)
        if any(n.proto.domain == DOMAIN for n in graph.nodes):
            continue  # ONNX Runtime inlines fused ops, and asks again
        properties = partition_compiler.properties(request)
        compiled = partition_compiler.compile_for(
            graph, {**properties, "claim": "all"} if everything else properties, writer
        )
        taken = {id(n) for nodes, _, _ in compiled.entries for n in nodes}
        if not writer.on_host:
            taken |= {
                id(n)
                for n in graph.nodes
                if has_kernel(n) and not making.isdisjoint(bodies.get(n.outputs[0], ()))
            }
        if any(map(graph.is_output, (o for n in graph.nodes if id(n) in taken for o in n.outputs))):
            making.add(graph.proto.name)
        said = {id(n): reason for n, reason in compiled.refused}
        found.nodes += len(graph.nodes)
        found.ours += len(taken)
        for n in graph.nodes:
            if id(n) not in taken:
                reason = _CONTROL if n.written in control else said.get(id(n), "")
                found.left[n.written, reason] += 1
    return found


def _bodies(model: ModelProto) -> dict[str, tuple[str, ...]]:
    """Names of the bodies of each control-flow node, by its first output. ONNX Runtime keeps both
    names. Bodies of one name are left out: nobody could tell them apart.
    """
    from tracea_onnx.ir import edit
    from tracea_onnx.ir.graph import subgraphs

    names = Counter(g.name for g in edit.graphs(model))
    return {
        n.output[0]: tuple(b.name for b in subgraphs(n) if names[b.name] == 1)
        for g in edit.graphs(model)
        for n in g.node
        if n.output
    }


#: What is a matter of speed, not of kernels.
_LIGHT = "among light nodes only: ONNX Runtime runs them as fast"
_PARTS = (
    (r"^$|^the provider would take about .*|^they belong to a chain .*", _LIGHT),
    (r"^its operands are quantised.*|^no kernel computes .*uantizeLinear.*", "quantized"),
    (r"^the type or rank of '.*", "what type or rank they read is not known before a run"),
    (
        r"^(the|a) \w+( of Range are)? '?.*computed .*from tensor contents.*|^how large the .*",
        "sizes are computed from what tensors hold",
    ),
    (r"'[^']*'", "'...'"),
    (r"\b\d[\d.]*\b", "N"),
)


def alike(reason: str) -> str:
    """A reason without names and numbers, so that equal ones count together."""
    for pattern, by in _PARTS:
        reason = re.sub(pattern, by, reason)
    return reason


def _row(name: str, shares: Sequence[Share]) -> list[Any]:
    nodes, ours = (sum(getattr(s, k) for s in shares) for k in ("nodes", "ours"))
    left: Counter[str] = Counter()
    for s in shares:
        for (op, _), count in s.left.items():
            left[op] += count
    said = ", ".join(f"{count} {op}" for op, count in left.most_common(6))
    more = f", {len(left) - 6} other operators" if len(left) > 6 else ""
    return [name, nodes, ours, 100 * ours / max(nodes, 1), said + more]


def tables(folders: dict[str, dict[str, Share]]) -> list[dict[str, Any]]:
    """As `tools.pages` shows them: a table for each folder, and what is left in all of them."""
    columns: list[dict[str, str]] = [
        {"name": "model"}, {"name": "nodes"}, {"name": "on the provider"},
        {"name": "share, %", "format": "{:.1f}"}, {"name": "left with ONNX Runtime"},
    ]  # fmt: skip
    made, every = [], [s for shares in folders.values() for s in shares.values() if not s.failed]
    for folder, shares in folders.items():
        known = {name: s for name, s in shares.items() if not s.failed}
        lines = [_row(name, [s]) for name, s in sorted(known.items())]
        lines.append(_row("all", list(known.values())))
        made.append({"title": folder, "columns": columns, "rows": lines})
    whole = [_row(f"all {len(every)} models", every)]
    plain = [s for s in every if not s.quantized]
    if len(plain) < len(every):
        whole.append(_row(f"the {len(plain)} that are not quantized", plain))
    made.insert(0, {"title": "Together", "columns": columns, "rows": whole})
    left: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], set[str]] = {}
    for shares in folders.values():
        for name, s in shares.items():
            for (op, reason), count in s.left.items():
                key = (op, alike(reason))
                left[key] += count
                models.setdefault(key, set()).add(name)
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for key in left:
        by_reason.setdefault(key[1], []).append(key)
    rows: list[list[Any]] = [
        [
            reason,
            ", ".join(op for op, _ in sorted(keys, key=lambda k: -left[k])[:6]),
            sum(left[k] for k in keys),
            len(set().union(*(models[k] for k in keys))),
        ]
        for reason, keys in by_reason.items()
    ]
    rows.sort(key=lambda r: (-r[2], r[0]))
    columns = [{"name": n} for n in ("reason", "operators", "nodes", "models")]
    return [*made, {"title": "What is left, and why", "columns": columns, "rows": rows}]


def measured(files: Iterable[Path], jobs: int, one: Callable[[Path], Share]) -> dict[str, Share]:
    """The shares of models by their names, each in a process of its own."""
    found = {}
    for path, got in run_each(list(files), one, jobs=jobs, timeout=900.0):
        s = Share(failed=got.reason) if isinstance(got, Lost) else got
        found[path.stem] = s
        if s.failed:
            print(f"{path.stem}: {s.failed}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--optimized", action="store_true", help="optimize each model first")
    parser.add_argument("--claim", choices=("all",), help="as the provider option")
    parser.add_argument("--json", type=Path, help="write the tables here")
    args = parser.parse_args()
    for folder in args.folders:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    one = partial(
        share, backend=args.backend, optimized=args.optimized, everything=args.claim == "all"
    )
    found = {
        folder.name: measured(sorted(folder.rglob("*.onnx")), args.jobs, one)
        for folder in args.folders
    }
    # the workers were forked before ONNX Runtime was here
    from tracea_onnx.support.machine import machine

    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "commands": [f"python -m tools.coverage FOLDER ... --backend {args.backend}"],
        "tables": tables(found),
    }
    for table in report["tables"]:
        print(f"\n{table['title']}")
        for row in table["rows"]:
            print(" | ".join(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

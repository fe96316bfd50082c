"""Launches of CPU kernels with changed sizes, or with a result where another operand lies, each
alone between pages that nobody may touch.

    python -m tools.fuzz.launch_sizes [--count 20000] [--seed 0] [--families conv2d matmul ...]
    [--models 400] [--launches 8] [--jobs 2] [--replay 123 ...]

Launches come from Plans of random models and of the zoo. A case sets one integer of one, sometimes
several, to a number that fits nothing, or lays operands over results, and runs it as a Plan of its
own: as a pack could ask for it. In every second case operands have no more room than the launch is
said to touch (`extents.extents`), as a Plan could have them. Right are a run and one line that
refuses it; a crash, ten seconds without an end and a write beside a buffer are findings. Exit
status 1 when there is one.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import mmap
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz import seeds
from tests.session.test_models import small
from tests.support.isolate import Lost, run_each
from tests.support.nbits import weights
from tools.fuzz import operator_draws, operator_fuzz
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan import builder
from tracea_onnx.plan.extents import extents, written
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime.cpu_harness import LoadedPlan
from tracea_onnx.support import discovery

#: Of CPU time, and of the clock, that a case may take.
_SECONDS, _WAIT = 10.0, 120.0
_MEMORY = 4 << 30
#: Bytes behind a buffer that vectors may read.
_SLACK = 256
#: Bytes of all operands of a case with as much room as it touches, at most.
_ROOM = 1 << 28
_POISON = 0xA5
_PAGE = mmap.PAGESIZE
_VALUES = (
    0, 1, -1, 2, 3, 5, 7, 17, 64, 1009, 1 << 16, (1 << 16) + 1, (1 << 31) - 1, 1 << 31,
    (1 << 31) + 1, 1 << 32, 1 << 40, (1 << 60) - 1, 1 << 60, 1 << 62, -(1 << 31), -(1 << 40),
    -(1 << 60),
)  # fmt: skip
_LARGE = (1 << 17, 1 << 31, 1 << 40, 1 << 58)
#: Operands that are indices, or counts, by the first letters of their names.
_INDICES = ("idx", "i0", "i1", "i2", "i3", "lens", "batch", "at")


@dataclass(frozen=True)
class Launch:
    """One of a Plan; rooms: bytes in front of and behind the address of each operand, or None."""

    family: str
    rooms: tuple[tuple[int, int] | None, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    program: Mapping[str, Any] | None

    def plan(self, over: Mapping[int, int]) -> dict[str, Any]:
        """A Plan of this launch alone; its operands are outputs of bytes, but for those that lie
        over another one.
        """
        there = [r for r in self.rooms if r is not None]
        places_of = [before for before, _ in there] + [before + size for before, size in there]
        exprs = [["const", v] for v in (*self.ints, *places_of)]
        at = iter(range(len(there)))
        places = [None if r is None else next(at) for r in self.rooms]
        places = [places[over.get(k, k)] for k in range(len(places))]
        run = {
            "k": self.family,
            "b": [None if p is None else [p, len(self.ints) + p] for p in places],
            "i": [*range(len(self.ints))],
            "f": [*self.floats],
            "p": self.program,
        }
        return {
            "version": 1, "backend": "cpu", "name": "launch", "inputs": [], "symbols": [],
            "outputs": [
                {"name": f"o{k}", "dtype": int(DType.U8), "dims": [len(self.ints) + len(there) + k]}
                for k in range(len(there))
            ],
            "exprs": exprs, "checks": [], "requires": [], "extents": [],
            "buffers": [{"kind": "output", "index": k} for k in range(len(there))],
            "init": [], "run": [run],
        }  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One case; changed: what was set, by the names of the integers; over: operands that lie over
    other ones, by their numbers; exact: with as much room as it touches.
    """

    number: int
    launch: Launch
    changed: Mapping[str, int]
    over: Mapping[int, int]
    threads: int
    exact: bool = False


# --- launches -------------------------------------------------------------------------------------


def _models(count: int, seed: int) -> Iterator[onnx.ModelProto]:
    """The zoo, small; an export of each chain; ONNX's tests of operators; weights of a few bits;
    random ones.
    """
    exports = {path.parent.name: path for path in seeds.exports()}
    yield from (_fixed(small(name)) for name in discovery.names("models"))
    yield from (_fixed(onnx.load(str(path))) for path in exports.values())
    yield from (onnx.ModelProto.FromString(data) for data, _ in seeds.node_tests())
    yield from (_nbits(*how) for how in ((4, "packed", 3), (8, "none", 1), (4, "none", 40)))
    yield from (_table(bits) for bits in (2, 4, 8))
    for number in range(count):
        random = Random(seed + number)
        d = operator_draws.Draw(random, np.random.default_rng(seed + number))
        # kinds take turns
        kinds = sorted(operator_fuzz.KINDS)
        operator_fuzz.KINDS[kinds[number % len(kinds)]](d)
        yield d.model(symbolic=False)


def _fixed(model: onnx.ModelProto) -> onnx.ModelProto:
    """With a number for every size of an input."""
    for value in model.graph.input:
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_value = {"batch": 2}.get(d.dim_param, 6)
    return model


def _nbits(bits: int, zeros: str, rows: int) -> onnx.ModelProto:
    w = weights(bits, 96, 33, bits, 32, zeros)
    stored: dict[str, Any] = {"w": w.blobs, "scale": w.scales, "zero": w.zeros}
    names = [k for k, v in stored.items() if v is not None]
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=w.k, N=w.n, bits=w.bits,
        block_size=w.block,
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, 1, [rows, k]) for n, k in (("x", w.k), ("y", w.n)))
    given = [numpy_helper.from_array(v, k) for k, v in stored.items() if v is not None]
    graph = helper.make_graph([node], "g", [x], [y], given)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _table(bits: int) -> onnx.ModelProto:
    """Rows of blocks with zeros, by indices."""
    rng, columns = np.random.default_rng(bits), 96
    stored = {"w": rng.integers(0, 256, (33, columns * bits // 8)).astype(np.uint8)}
    stored["zero"] = rng.integers(0, 256, (33, -(-3 * bits // 8))).astype(np.uint8)
    given = [numpy_helper.from_array(v, k) for k, v in stored.items()]
    given.append(numpy_helper.from_array(np.ones((33, 3), np.float32), "scale"))
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "scale", "zero"], ["y"], domain="com.microsoft",
        bits=bits, block_size=32,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("i", TensorProto.INT64, [3, 2])],
        [helper.make_tensor_value_info("y", 1, [3, 2, columns])], given,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _bytes_of(dtype: int, dims: Sequence[int]) -> int:
    return DType(dtype).size * math.prod(dims)


#: Of a session whose products of f32 round to bfloat16.
_ROUNDS = {"backend": "cpu", "int8": "", "bf16_isa": "avx512amx", "bf16": "1"}


def _launches(model: onnx.ModelProto, properties: Mapping[str, str]) -> Iterator[Launch]:
    """Those of the Plans whose sizes are known."""
    shown = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = Graph(shown)
    known = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*shown.graph.input, *shown.graph.value_info, *shown.graph.output)
        if all(d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)
    }
    stored = {t.name: numpy_helper.to_array(t).nbytes for t in shown.graph.initializer}
    writer = plan_writer.writer_of(properties)
    compiled = partition_compiler.compile_graph(graph, writer, everything=True)
    for _, plan, blobs in compiled.entries:
        if plan["symbols"]:
            continue
        value = builder.evaluate(plan, [])
        sizes: list[int | None] = []
        for b in plan["buffers"]:
            match b["kind"]:
                case "arena":
                    sizes.append(value[b["bytes"]])
                case "const":
                    sizes.append(b["bytes"])
                case "blob":
                    sizes.append(len(blobs[b["index"]]))
                case "initializer":
                    sizes.append(stored.get(b["name"]))
                case "input":
                    i = plan["inputs"][b["index"]]
                    dims = known.get(i["name"])
                    sizes.append(None if dims is None else _bytes_of(i["dtype"], dims))
                case "output":
                    o = plan["outputs"][b["index"]]
                    sizes.append(_bytes_of(o["dtype"], [value[d] for d in o["dims"]]))
        for row in (*plan["init"], *plan["run"]):
            rooms: list[tuple[int, int] | None] = []
            for operand in row["b"]:
                if operand is None:
                    rooms.append(None)
                    continue
                size, offset = sizes[operand[0]], value[operand[1]]
                if size is None:
                    break
                rooms.append((offset, size - offset) if size else (0, 0))
            else:
                yield Launch(
                    row["k"], tuple(rooms), tuple(value[i] for i in row["i"]),
                    tuple(row["f"]), row["p"],
                )  # fmt: skip


def launches(models: int, each: int, seed: int, families: Sequence[str]) -> list[Launch]:
    """Up to `each` different ones of every family."""
    random, found = Random(seed), dict[str, dict[Launch | tuple[Any, ...], Launch]]()
    for model, properties in product(_models(models, seed), ({}, _ROUNDS)):
        try:
            for launch in _launches(model, properties):
                if not families or launch.family in families:
                    key = (launch.ints, tuple(r is None for r in launch.rooms))
                    found.setdefault(launch.family, {}).setdefault(key, launch)
        except TraceaError:
            continue
    return [
        launch
        for _, of in sorted(found.items())
        for launch in random.sample(list(of.values()), min(each, len(of)))
    ]


# --- cases ----------------------------------------------------------------------------------------


def _values(n: int) -> set[int]:
    return {*_VALUES, n - 1, n + 1, 2 * n, 2 * n + 1, -n, n // 2} - {n}


def _overlaid(launch: Launch, random: Random) -> Iterator[dict[int, int]]:
    """Every result over every other operand, or the other way round; then several of them."""
    names, made = FAMILIES[launch.family].names, written(launch.family)
    there = [k for k, room in enumerate(launch.rooms) if room is not None]
    pairs = [(k, o) for k in there for o in there if k != o and made & {names[k], names[o]}]
    for pair in pairs:
        yield dict([pair])
        yield dict(random.sample(pairs, min(len(pairs), random.randint(2, 4))))


def cases(of: Sequence[Launch], count: int, seed: int) -> list[Item]:
    """Every integer alone, as many of several, and as many that are large while others are 0, and
    operands over others, in an order of their own; `count` of them.
    """
    random = Random(seed)
    drawn: list[tuple[Launch, dict[str, int], dict[int, int]]] = []
    for launch in of:
        names = FAMILIES[launch.family].ints
        other = {n: sorted(_values(v)) for n, v in zip(names, launch.ints, strict=False)}
        one = [{n: v} for n, values in other.items() for v in values]
        several, large = [], []
        for _ in one:
            some = random.sample(names, min(len(names), random.randint(2, 5)))
            several.append({n: random.choice(other[n]) for n in some})
            large.append(dict.fromkeys(some, 0) | {some[0]: random.choice(_LARGE)})
        drawn += [(launch, c, {}) for c in (*one, *several, *large)]
        drawn += [(launch, {}, over) for over in _overlaid(launch, random)]
    random.shuffle(drawn)
    return [
        Item(k, launch, changed, over, 2 if k % 8 == 0 or over else 1, exact=k % 2 == 1)
        for k, (launch, changed, over) in enumerate(drawn[:count])
    ]


class _Guarded:
    """Bytes that end, with their slack, where a page begins that nobody may touch; `first`: that
    begin there.
    """

    def __init__(self, before: int, size: int, *, first: bool = False) -> None:
        whole = -(-(before + size + _SLACK) // 64) * 64
        pages = -(-whole // _PAGE) + 1
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._all = np.frombuffer(self._map, np.uint8)
        for page in (0, pages + 1):
            place = ctypes.c_void_p(int(self._all.ctypes.data) + page * _PAGE)
            if ctypes.CDLL(None).mprotect(place, ctypes.c_size_t(_PAGE), 0):
                raise MemoryError("mprotect")
        at = _PAGE if first else (pages + 1) * _PAGE - whole
        self.data = self._all[at : at + before + size]
        self._beside = (self._all[_PAGE:at], self._all[at + before + size : (pages + 1) * _PAGE])
        for part in self._beside:
            part[:] = _POISON

    def protect(self) -> None:
        """Nothing may be written."""
        place = ctypes.c_void_p(int(self._all.ctypes.data) + _PAGE)
        size = ctypes.c_size_t(self._all.nbytes - 2 * _PAGE)
        if ctypes.CDLL(None).mprotect(place, size, mmap.PROT_READ):
            raise MemoryError("mprotect")

    def spoiled(self) -> bool:
        """Whether something was written in front of the bytes or behind them."""
        return any(bool((part != _POISON).any()) for part in self._beside)


def _joined(*rooms: tuple[int, int] | None) -> tuple[int, int]:
    there = [r for r in rooms if r is not None]
    return max(before for before, _ in there), max(size for _, size in there)


def _touched(launch: Launch) -> list[tuple[int, int] | None] | None:
    """Rooms with the bytes that the launch may touch; None where these are too many, or where an
    operand has no bound.
    """
    family = FAMILIES[launch.family]
    ints = dict(zip(family.ints, launch.ints, strict=False))
    there = {n: int(r is not None) for n, r in zip(family.names, launch.rooms, strict=True)}
    try:
        found = extents(launch.family, ints, there, 4, border=True)
    except (OverflowError, ZeroDivisionError):
        return None
    rooms: list[tuple[int, int] | None] = []
    for name, room in zip(family.names, launch.rooms, strict=True):
        if room is None:
            rooms.append(None)
        elif name not in found:
            return None
        else:
            low, high = (int(v) for v in found[name])
            rooms.append((max(0, -low), max(0, high)))
    return rooms if sum(sum(r) for r in rooms if r) <= _ROOM else None


def run(item: Item) -> tuple[str, str]:
    """How the case ended, and its line."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)  # its signal ends the process
    launch, names = item.launch, FAMILIES[item.launch.family].ints
    ints = list(launch.ints)
    for name, v in item.changed.items():
        ints[names.index(name)] = v
    launch = replace(launch, ints=tuple(ints))
    exact = _touched(launch) if item.exact else None
    rooms = list(exact or launch.rooms)
    for k, other in item.over.items():  # which must have room for both
        rooms[other] = _joined(rooms[k], rooms[other])
    launch = replace(launch, rooms=tuple(rooms))
    rng = np.random.default_rng(item.number)
    guarded = []
    operands = FAMILIES[launch.family].names
    for name, room in zip(operands, launch.rooms, strict=True):
        if room is None:
            continue
        g = _Guarded(*room, first=exact is not None and item.number % 4 == 1)
        if name in _INDICES or name == "state":
            g.data[:] = 0
        else:
            words = rng.standard_normal(g.data.size // 4 + 1, dtype=np.float32)
            g.data[:] = words.view(np.uint8)[: g.data.size]
        guarded.append(g)
        number = operands.index(name)
        users = {o for k, o in enumerate(operands) if item.over.get(k, k) == number}
        if not users & written(launch.family):
            g.protect()
    plan = launch.plan(item.over)
    try:
        with LoadedPlan(plan, [], {}, threads=item.threads) as loaded:
            loaded.run([], places=[g.data for g in guarded])
    except TraceaError as e:
        ended = "refused", str(e)
        if "\n" in str(e):
            return "several lines", str(e)
    else:
        ended = "ran", ""
    if any(g.spoiled() for g in guarded):
        return "wrote beside a buffer", ended[1]
    return ended


def _unchanged(of: Sequence[Launch]) -> list[Launch]:
    """The launches that run as they are."""
    items = [Item(k, launch, {}, {}, 1) for k, launch in enumerate(of)]
    kept = []
    for item, result in run_each(items, run, timeout=_WAIT):
        if isinstance(result, Lost) or result[0] != "ran":
            print(f"as it is, {item.launch.family}: {result}", flush=True)
        else:
            kept.append(item.launch)
    return sorted(kept, key=lambda launch: (launch.family, launch.ints))


def main() -> int:
    """Draw and run the cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="*", default=[], choices=sorted(FAMILIES), metavar="F")
    parser.add_argument("--models", type=int, default=400, help="random models launches come from")
    parser.add_argument("--launches", type=int, default=8, help="of each family")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replay", type=int, nargs="*", default=[], help="cases by their numbers")
    args = parser.parse_args()
    start = time.monotonic()
    of = _unchanged(launches(args.models, args.launches, args.seed, args.families))
    items = cases(of, args.count, args.seed)
    if args.replay:
        items = [items[k] for k in args.replay]
    missing = set(FAMILIES) - {launch.family for launch in of}
    print(
        f"{len(of)} launches of {len({launch.family for launch in of})} families, {len(items)} "
        f"cases ({time.monotonic() - start:.0f} s); none of {', '.join(sorted(missing))}",
        flush=True,
    )
    ended: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for item, result in run_each(items, run, jobs=args.jobs, timeout=_WAIT):
        how, line = ("lost", result.reason) if isinstance(result, Lost) else result
        ended[how] += 1
        if args.replay or how not in ("ran", "refused"):
            names = FAMILIES[item.launch.family].names
            text = ", ".join(
                [f"{n} = {v}" for n, v in item.changed.items()]
                + [f"{names[k]} over {names[o]}" for k, o in item.over.items()]
            )
            print(f"{item.number} {item.launch.family} {text}: {how} {line}", flush=True)
        if how not in ("ran", "refused"):
            found[item.launch.family] += 1
    print(f"{dict(ended)} in {time.monotonic() - start:.0f} s; findings: {dict(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Attention of 16-bit operands on Hopper: tiles of the warp-specialised kernel, and which of them
suits a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, multiple_of

from ...common.launch import clustered, known, overlapped, parameters
from ...common.prelude import prelude
from ...common.templates import template
from .. import problem
from ..decode import simt as decode_simt

#: The most tiles of keys in flight; where two blocks of a multiprocessor do little but read, each
#: with whole heads or with shares of all: more make the memory slower.
_MOST_STAGES, _PAIRED_STAGES, _SPREAD_STAGES = 6, 2, 3
#: Most blocks that share rows, where another kernel joins what they have, and tiles of keys that
#: each has at least.
_MOST_PARTS, _LEAST_STEPS = 128, 2


def copied(request: Request, operand: str) -> bool:
    """Whether tensor copies can read or write an operand: 16-byte units in every direction."""
    strides = (parameters(request)[f"{operand}_{a}"] for a in "bsh")
    return operand not in request.unaligned and all(multiple_of(s) % 8 == 0 for s in strides)


@dataclass(frozen=True)
class HopperTile:
    """groups: consumer warpgroups of 64 query rows; keys: of a tile; last: of the last tile, what
    is computed with; blocks: resident on a multiprocessor; plan: what runs beside what
    (pipeline.cuh); stages: tiles of keys and values in flight; slots: tiles of queries in flight;
    parts: blocks of a cluster that divide the keys (ALONE); spread: as many blocks divide them as
    fill the device, and a second kernel joins what they have (ALONE)."""

    groups: int
    keys: int
    last: int
    blocks: int
    plan: str
    stages: int
    slots: int
    smem: int
    parts: int = 1
    spread: bool = False

    def __str__(self) -> str:
        plan, parts = (
            "" if self.plan == "FREE" else f" {self.plan.lower()}",
            " spread" if self.spread else f"/{self.parts}" if self.parts > 1 else "",
        )
        last = f"+{self.last}" if self.last < self.keys else ""
        return f"{self.groups}x{self.keys}{last}{f'*{self.blocks}' if self.blocks > 1 else ''}{plan}{parts}"

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return _rows(self.groups, self.plan)

    def constants(self) -> str:
        # registers of a thread before they are given from the producer to the others
        launched = 65536 // (128 * (self.groups + 1) * self.blocks) // 8 * 8
        left = 40 if launched > 128 else 32
        registers = min(240, (launched * (self.groups + 1) - left) // self.groups // 8 * 8)
        return (
            f"constexpr int PARTS = {self.parts}, THREADS = 128, GROUPS = {self.groups}, BN = {self.keys}, LAST = {self.last};\n"
            f"constexpr bool SPREAD = {str(self.spread).lower()};\nconstexpr int STAGES = {self.stages}, SLOTS = {self.slots};\n"
            f"constexpr int REGISTERS = {registers}, REGISTERS_LEFT = {left};\n"
            f"enum Plan {{ FREE, OVERLAP, TURNS, ALONE, SPLIT }};\nconstexpr Plan PLAN = {self.plan};\n"
        )


def _rows(groups: int, plan: str) -> int:
    return 64 * (1 if plan == "SPLIT" else groups)


def spread_tile(p: Any) -> HopperTile | None:
    """Of few rows of many keys, which as many blocks divide as fill the device."""
    return hopper_tile(
        p, 1, 64, 2 if p.widest <= 128 else 1, "ALONE", spread=True, most=_SPREAD_STAGES
    )


def paired_tile(p: Any, count: int) -> HopperTile | None:
    """Of few rows of `count` keys, of which a multiprocessor has two."""
    keys = 64 if p.widest <= 112 or p.mask else 32  # as many bytes on their way
    return hopper_tile(
        p, 1, keys, 2, "ALONE", last=(count - 1) % keys // 16 * 16 + 16, most=_PAIRED_STAGES
    )


def divided_tile(p: Any, blocks: int, parts: int) -> HopperTile | None:
    """Of few rows whose keys `parts` blocks of a cluster divide, of which a multiprocessor has two
    or, as far as registers go, three.
    """
    if p.mask or p.widest > (128 if blocks == 2 else 96):
        return None
    return hopper_tile(
        p,
        1,
        64 if blocks == 2 or p.widest <= 64 else 32,
        blocks,
        "ALONE",
        parts,
        most=_PAIRED_STAGES,
    )


def _mask_bytes(p: Any, rows: int, keys: int) -> int:
    """Of a tile of keys: what masks add to them, or what rows have as masks of their own, each at
    an odd number of 16 bytes from the next (masks.cuh)."""
    if not p.mask or (p.rows_masked and not p.mask_step):
        return 0
    units = keys * (2 if p.mask == 1 else 1) // 16
    return rows * 16 * (units + 1 + units % 2) if p.rows_masked else 4 * (keys + 4)


def hopper_tile(
    p: Any, groups: int, keys: int, blocks: int = 1, plan: str = "FREE", parts: int = 1, last: int = 0, spread: bool = False, most: int = _MOST_STAGES,
) -> HopperTile | None:  # fmt: skip
    """With as many stages as shared memory holds, up to `most`, or None when it has no room for
    two.
    """
    panels, panels_v = -(-p.head // 64), -(-p.head_v // 64)
    slot, stage = (
        _rows(groups, plan) * 128 * max(panels, panels_v),
        keys * 128 * (panels + panels_v) + _mask_bytes(p, _rows(groups, plan), keys),
    )
    # alignment and barriers; results to be gathered
    other = 2048 + ((groups - 1) * 512 * (-(-p.head_v // 16) * 8 + 4) if plan == "SPLIT" else 0)
    # without what the device keeps of each block's
    room = (HOPPER_SHARED + 1024) // blocks - 1024 - other
    for slots in (2, 1):
        stages = min(most, (room - slots * slot) // stage)
        if stages >= 2:
            return HopperTile(
                groups,
                keys,
                last or keys,
                blocks,
                plan,
                stages,
                slots,
                slots * slot + stages * stage + other,
                parts,
                spread,
            )
    return None


@dataclass(frozen=True)
class Form:
    """Tiles of `groups` warpgroups, `blocks` of them on a multiprocessor, with 64 to `widest` keys
    (at most `masked` where rows have masks of their own, which need registers), `usual` where T is
    not known. Of a busy multiprocessor 64 rows take `work` clocks: for themselves, for each of
    their tiles of keys and for 16 of its keys. delay: the same clocks on the way through one
    warpgroup, which the others of a multiprocessor hide; without `work`, the form is for
    multiprocessors that have no more tiles than blocks."""

    groups: int
    blocks: int
    plan: str
    usual: int
    widest: int
    masked: int
    work: tuple[int, int, int] | None
    delay: tuple[int, int, int]
    parts: int = 1  # blocks of a cluster that divide the keys


#: Into how many parts keys are divided, and into how many where sizes are not known.
_PARTS, _USUAL_PARTS = (2, 4, 8), 4
#: For heads of up to 64 elements, of up to 128, whose warpgroups need more registers, and for
#: longer ones (whose figures are guessed from those of 128).
_SHORT = (
    Form(4, 1, "FREE", 96, 96, 64, (900, 110, 85), (4000, 64, 96)), Form(1, 4, "FREE", 64, 64, 0, (760, 180, 85), (4000, 64, 96)),
    Form(2, 2, "FREE", 64, 80, 0, (640, 165, 85), (4500, 64, 96)), Form(1, 3, "FREE", 64, 80, 80, (800, 200, 85), (4000, 64, 96)),
    Form(1, 2, "FREE", 128, 128, 128, (900, 110, 120), (4000, 64, 96)),
    Form(1, 1, "ALONE", 128, 208, 128, None, (4000, 64, 60)), Form(2, 1, "SPLIT", 128, 128, 128, None, (4500, 64, 60)),
    *(Form(1, 1, "ALONE", 128, 208, 128, None, (6500, 64, 60), n) for n in _PARTS),
)  # fmt: skip
_LONG = (
    Form(2, 1, "OVERLAP", 128, 128, 128, (900, 180, 145), (4000, 100, 176)), Form(1, 1, "OVERLAP", 128, 128, 128, (900, 180, 145), (4000, 100, 176)),
    Form(2, 1, "TURNS", 128, 128, 128, (640, 220, 145), (3600, 130, 176)), Form(1, 2, "FREE", 64, 64, 64, (900, 180, 145), (3700, 100, 176)),
    Form(1, 1, "ALONE", 128, 128, 128, None, (3800, 64, 130)), *(Form(1, 1, "ALONE", 128, 128, 128, None, (7500, 64, 130), n) for n in _PARTS),
)  # fmt: skip
_WIDE = (
    Form(2, 1, "OVERLAP", 64, 96, 64, (3400, 180, 290), (4000, 100, 352)), Form(1, 1, "OVERLAP", 64, 96, 64, (900, 180, 290), (4000, 100, 352)),
    Form(1, 1, "ALONE", 64, 96, 64, None, (3800, 64, 260)), *(Form(1, 1, "ALONE", 64, 96, 64, None, (9500, 64, 260), n) for n in _PARTS),
)  # fmt: skip
#: Clocks more of 64 causal rows for each 64 rows of a block of several, which see more and fewer
#: keys.
_UNEVEN = 60
#: Clocks more of 64 rows whose last tile of keys is narrower.
_NARROWER = 100
#: Percent of its price that a form of several blocks takes where heads are not whole panels of
#: shared memory.
_SLOWER = 130
#: The price of a form whose delay nothing hides, where a multiprocessor has more than one of its
#: tiles; clocks of a second one, of causal rows: where one tile is long the other is short.
_NEVER, _SECOND = 1 << 40, 1000
#: Clocks of a key and its value on their way to a tile where rows of short heads are no whole
#: sectors of memory.
_FETCHING = 18


def _clocks(
    of: tuple[int, int, int], keys: DimLike, tile: HopperTile, *, seen: bool = False
) -> DimLike:
    """Of 64 rows with so many keys; seen: of which they see half, and half of a tile."""
    each = of[1] + tile.keys // 16 * of[2]
    if seen:
        return D.add(
            of[0], D.floordiv(D.mul(D.ceildiv(D.add(keys, tile.keys), tile.keys), each), 2)
        )
    less = (tile.keys - tile.last) // 16 * of[2] - _NARROWER if tile.last < tile.keys else 0
    return D.add(of[0] - less, D.mul(D.ceildiv(keys, tile.keys), each))


def _delay(form: Form, keys: DimLike, tile: HopperTile) -> DimLike:
    return _clocks(
        form.delay, D.ceildiv(keys, form.groups if form.plan == "SPLIT" else form.parts), tile
    )


def _slower(p: Any, form: Form) -> int:
    """Percent of the clocks of whole long heads that shorter ones take, which come as slowly as
    these: small tiles hide less. And of those of other rows that those with masks of their own
    take: of 256 rows two warps bring too many."""
    if not p.rows_masked:
        ragged = p.head % 16 or p.head_v % 16  # rows of no whole sectors of memory
        return (
            _SLOWER if 64 < p.widest < 128 and form.blocks > 1 and (ragged or not p.causal) else 100
        )
    if not p.mask_step:
        return 111 if form.plan == "OVERLAP" else 100  # reads them beside its own products
    if form.groups == 1:
        return 115 if p.widest > 64 else 112 if form.blocks == 3 else 100
    return 180 if form.groups == 4 else 100


def _cost(request: Request, p: Any, form: Form, tile: HopperTile) -> DimLike:
    """Clocks of the multiprocessor with the most tiles: rounds of as many as it has room for, the
    last of what is left.
    """
    keys, rows = parameters(request)["T"], tile.rows
    count = D.ceildiv(
        D.mul(problem.blocks(request, rows), form.parts), clustered(request.sms, form.parts)
    )
    delay = _delay(form, keys, tile)
    if form.work is None:
        pairs = p.causal and p.widest <= 64 and form.plan in ("ALONE", "SPLIT") and form.parts == 1
        twice = (
            D.mul(D.less(count, 3), D.less(keys, D.add(parameters(request)["S"], 1)))
            if pairs
            else 0
        )
        return D.select(
            D.less(form.blocks, count), D.select(twice, D.add(delay, _SECOND), _NEVER), delay
        )
    work = _clocks(form.work, keys, tile, seen=p.causal)
    if p.causal and rows > 64:
        work = D.add(work, _UNEVEN * rows // 64)
    work = D.mul(work, rows // 64)
    if p.widest <= 64 and (p.head % 16 or p.head_v % 16):
        work = D.maximum(work, D.mul(D.floordiv(keys, 2) if p.causal else keys, _FETCHING))

    def together(tiles: DimLike) -> DimLike:
        return D.maximum(D.mul(tiles, work), delay)

    rest = D.mod(count, form.blocks)
    # Of more than half of its blocks, or of half behind the first round of short heads: somewhere
    # it is all of them.
    half = (
        D.mul(D.less(form.blocks, count), D.less(count, 2 * form.blocks))
        if p.widest <= 64 and not p.causal
        else 0
    )
    last = D.select(
        D.less(form.blocks, D.add(D.mul(rest, 2), half)), together(form.blocks), together(rest)
    )
    cost = D.add(
        D.mul(D.floordiv(count, form.blocks), together(form.blocks)), D.select(rest, last, 0)
    )
    percent = _slower(p, form)
    return D.floordiv(D.mul(cost, percent), 100) if percent != 100 else cost


def _fitted(request: Request, p: Any, form: Form) -> HopperTile | None:
    """The tile of a form with the keys that cost least."""
    i = parameters(request)
    t, widest = known(i["T"]), form.masked if p.rows_masked else form.widest
    widths = (
        range(64, widest + 1, 16) if t is not None else (min(form.usual, widest),) if widest else ()
    )
    exact = t and not p.causal and form.parts == 1 and form.plan in ("FREE", "TURNS", "ALONE")

    def made(keys: int) -> HopperTile | None:
        last = (t - 1) % keys // 16 * 16 + 16 if t and exact else keys
        return hopper_tile(p, form.groups, keys, form.blocks, form.plan, form.parts, last)

    def price(tile: HopperTile) -> int:
        return evaluate(
            _clocks(form.work, t or 0, tile, seen=p.causal)
            if form.work
            else _delay(form, t or 0, tile),
            {},
        )

    return min(filter(None, map(made, widths)), key=price, default=None)


def priced(request: Request, p: Any) -> list[tuple[HopperTile, DimLike]]:
    """A tile of each form, with the clocks that it takes."""
    forms = _SHORT if p.widest <= 64 else _LONG if p.widest <= 128 else _WIDE
    fixed = all(known(parameters(request)[n]) is not None for n in "BHST")
    fitted = (
        (form, _fitted(request, p, form))
        for form in forms
        if (fixed or form.parts in (1, _USUAL_PARTS)) and form.parts <= request.caps.cluster
    )
    return [(tile, _cost(request, p, form, tile)) for form, tile in fitted if tile is not None]


def tiles(request: Request, p: Any) -> list[tuple[HopperTile, DimLike]]:
    """The tiles worth having, and for each whether it is the one for the sizes of a run: the
    cheapest.
    """
    found = priced(request, p)
    exact = {tile: float(cost) for tile, cost in found if isinstance(cost, int)}
    if len(exact) == len(found) and (fastest := kernel_choice.measured(exact)) is not None:
        return [(fastest, 1)]
    chosen: list[tuple[HopperTile, DimLike]] = []
    for n, (tile, cost) in enumerate(found):
        better = [
            D.less(cost, c) if k < n else D.sub(1, D.less(c, cost))
            for k, (_, c) in enumerate(found)
            if k != n
        ]
        chosen.append((tile, D.product(better)))
    return [(tile, use) for tile, use in chosen if use != 0]


def _raw(request: Request, p: Any) -> bool:
    """Whether scores can stay unscaled up to their exponentials: what masks add, divided by the
    scale, must leave room for the scores' digits.
    """
    fill = request.floats.get("fill", 0.0)
    small = p.mask == 0 or (
        request.dtype == DType.F16 if p.mask == 1 else fill == -math.inf or abs(fill) <= 65504
    )
    return small and not p.softcap and 1e-3 < request.floats["scale"] < 0.69


def blocks_of(request: Request, tile: HopperTile) -> DimLike:
    """How many have equal shares of the keys of all tiles of rows (spread): as many as fill the
    device, of few tiles as many for each as do.
    """
    room, count = request.sms * tile.blocks, problem.blocks(request, tile.rows)
    most = D.minimum(
        _MOST_PARTS, D.maximum(D.ceildiv(parameters(request)["T"], _LEAST_STEPS * tile.keys), 1)
    )
    fill = D.floordiv(room, D.maximum(count, 1))
    return D.select(
        D.less(1, fill), D.mul(count, D.minimum(fill, most)), D.minimum(room, D.mul(count, most))
    )


def _held(request: Request, tile: HopperTile) -> int:
    """Rows of what a block has for another kernel to join."""
    return min(tile.rows, known(parameters(request)["S"]) or tile.rows)


def scratch(request: Request, p: Any, tile: HopperTile, use: DimLike) -> DimLike:
    """Bytes of what blocks have that another kernel joins."""
    part = -(-_held(request, tile) * (p.head_v + 2) * 4 // 16) * 16
    return D.product(
        [D.add(problem.blocks(request, tile.rows), blocks_of(request, tile)), part, use]
    )


def kernels(
    request: Request, p: Any, tile: HopperTile, use: DimLike, places: Mapping[str, str], place: str
) -> list[Kernel]:
    """places: where an operand lies that was copied to where tensor copies can read it; place:
    where what blocks have lies until another kernel joins it.
    """
    if not tile.spread:
        return [_kernel(request, p, tile, use, places)]
    blocks, count, i = (
        blocks_of(request, tile),
        problem.blocks(request, tile.rows),
        parameters(request),
    )
    alone = replace(request, ints=dict(request.ints) | {"KVH": i["H"]})  # rows of one head
    most = known(D.ceildiv(blocks, D.maximum(count, 1))) or _MOST_PARTS
    join = decode_simt.joining(
        alone, p, _held(request, tile), D.mul(count, use), blocks, most, place
    )
    return [_kernel(request, p, tile, use, {**places, "y": place}), join]


def _kernel(
    request: Request, p: Any, tile: HopperTile, use: DimLike, places: Mapping[str, str]
) -> Kernel:
    i = parameters(request)
    block = 128 * (tile.groups + 1)
    flags = {
        "RAW": _raw(request, p),
        "MASK_ROWS": p.rows_masked,
        "COPIED_OUT": copied(request, "y") and not tile.spread,
    }
    # at once: a warp's rows or the block's
    stored = (
        16 if tile.plan in ("ALONE", "SPLIT") or (tile.groups > 2 and not p.causal) else tile.rows
    )
    # the same of queries: the block's or a warpgroup's
    asked = tile.rows if tile.plan == "OVERLAP" else 64
    operands = [
        ("q", i["S"], i["H"], asked),
        ("k", i["T"], i["KVH"], tile.keys),
        ("v", i["T"], i["KVH"], tile.keys),
    ]
    if flags["COPIED_OUT"]:
        operands.append(("y", i["S"], i["H"], stored))
    # long heads: their other panel comes next
    together = 256 if tile.plan == "OVERLAP" else 64 if tile.spread else 128
    maps = [
        _heads(request, places.get(o, o), o, p.size(o), rows, heads, box, together)
        for o, rows, heads, box in operands
    ]
    templates = (
        "attention/problem",
        "attention/fa3_sm90/wgmma",
        "attention/fa3_sm90/pipeline",
        "attention/fa3_sm90/masks",
        "attention/splitkv_cluster",
        "attention/fa3_sm90/store",
    )
    products = _products(request.dtype, tile.keys, {tile.keys, tile.last}, -(-p.head_v // 16) * 16)
    source = "".join([
        prelude(request.dtype), p.constants(request.dtype), "".join(f"constexpr bool {k} = {str(v).lower()};\n" for k, v in flags.items()), tile.constants(),
        f"constexpr int ROWS = {_held(request, tile)}, MASK_STEP = {p.mask_step};\n",
        template("common/base", "common/hopper"), products, template(*templates, "attention/fa3_sm90/kernel"),
        problem.entry(block, "".join(o for o, *_ in operands), tile.blocks),
    ])  # fmt: skip
    count = problem.blocks(request, tile.rows)
    columns = (
        count
        if tile.parts > 1
        else blocks_of(request, tile)
        if tile.spread
        else D.minimum(count, request.sms * tile.blocks)
    )
    grid = (D.product([columns, tile.parts, use]), 1, 1)
    arguments = (*maps, *problem.arguments(request, places))
    return Kernel(
        source,
        "attention",
        grid,
        block,
        arguments,
        smem=tile.smem,
        cluster=tile.parts,
        pdl=overlapped(request),
    )


def _heads(
    request: Request,
    place: str,
    operand: str,
    size: int,
    rows: DimLike,
    heads: DimLike,
    box: int,
    together: int,
) -> TensorMap:
    """[batch, head, row, element] of an operand, which lies at `place`, copied by `box` rows of 64
    elements; together: bytes of memory that L2 reads for it (beside those 128 lies what is another
    head's or comes with another copy, and may so come twice)."""
    strides = tuple(D.mul(parameters(request)[f"{operand}_{a}"], 2) for a in "shb")
    return TensorMap(
        Pointer(place),
        request.dtype,
        (size, rows, heads, parameters(request)["B"]),
        strides,
        (64, box, 1, 1),
        together=together,
    )


def _products(dtype: DType, keys: int, counts: set[int], width: int) -> str:
    """`start_scores(Width<n>, s, a, b)`, `add_scores`: s[64 x n] = a b^T, += a b^T from shared
    memory, of n in `counts` of `keys` keys; `multiply_values(out, p, b)`: out[64 x width] += p b, p
    in registers."""
    kind = "f16" if dtype == DType.F16 else "bf16"

    def outputs(count: int) -> tuple[str, str]:
        return ", ".join(f"%{k}" for k in range(count)), ", ".join(
            f'"+f"(d[{k}])' for k in range(count)
        )

    text = "template <int N> struct Width { static constexpr int keys = N; };\n"
    for count in sorted(counts):
        n = count // 2
        registers, out = outputs(n)
        text += "".join(
            f'DEV void {name}(Width<{count}>, float (&d)[{keys // 2}], u64 a, u64 b) {{ asm volatile("{{.reg .pred p; setp.ne.b32 p, {add}, 0; '
            f'wgmma.mma_async.sync.aligned.m64n{count}k16.f32.{kind}.{kind} {{{registers}}}, %{n}, %{n + 1}, p, 1, 1, 0, 0;}}" '
            f': {out if add else out.replace("+f", "=f")} : "l"(a), "l"(b)); }}\n'
            for add, name in enumerate(("start_scores", "add_scores"))
        )
    n = width // 2
    registers, out = outputs(n)
    given = ", ".join(f"%{n + k}" for k in range(4))
    return text + "".join(
        f'DEV void {name}(float (&d)[{n}], const u32* a, u64 b) {{ asm volatile("wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} '
        f'{{{registers}}}, {{{given}}}, %{n + 4}, {add}, 1, 1, 1;" : {out if add else out.replace("+f", "=f")} '
        f': "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); }}\n'
        for add, name in enumerate(("start_values", "multiply_values"))
    )

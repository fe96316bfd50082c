"""FlashAttention-3 on Hopper, 16-bit operands: configurations of the warp-specialised kernel, which
of them suits a problem, and the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ...common.epilogue import Parameter
from ...common.launch import known, parameters, sms_of_clusters
from .. import problem
from ..problem import Problem, quantises

#: The most stages of keys; where two CTAs of an SM do little but read, each with whole heads or
#: with shares of all: more make the memory slower.
_MOST_STAGES, _PAIRED_STAGES, _SPLIT_STAGES = 6, 2, 3
#: split-KV: the most CTAs that share rows, and tiles of keys that each has at least.
_MOST_SHARES, _LEAST_STEPS = 128, 2


def copied(request: Request, operand: str) -> bool:
    """Whether TMA can read or write an operand: 16-byte units in every direction."""
    strides = (parameters(request)[f"{operand}_{a}"] for a in "bsh")
    return operand not in request.unaligned and all(multiple_of(s) % 8 == 0 for s in strides)


@dataclass(frozen=True)
class Fa3Config:
    """groups: consumer warpgroups of 64 query rows; keys: of a tile; last: of the last tile,
    what is computed with; ctas: of an SM; schedule: what overlaps (fa3_sm90/pipeline.cuh);
    stages, slots: tiles of keys and values, and of queries, in flight. SINGLE_WG alone:
    cluster: CTAs of a cluster that divide the keys; split_kv: as many CTAs divide them as fill
    the device, and a second kernel combines what they have.
    """

    groups: int
    keys: int
    last: int
    ctas: int
    schedule: str
    stages: int
    slots: int
    smem: int
    cluster: int = 1
    split_kv: bool = False

    def __str__(self) -> str:
        last = f"+{self.last}" if self.last < self.keys else ""
        ctas = f"*{self.ctas}" if self.ctas > 1 else ""
        divided = " split-KV" if self.split_kv else f"/{self.cluster}" if self.cluster > 1 else ""
        return f"{self.groups}x{self.keys}{last}{ctas} {self.schedule}{divided}"

    @property
    def rows(self) -> int:
        """Query rows of a CTA."""
        return _rows(self.groups, self.schedule)

    def scratch(self, request: Request, p: Problem, use: DimLike) -> DimLike | None:
        """Bytes of partial results, if there are any."""
        if not self.split_kv:
            return None
        parts = D.add(problem.blocks(request, self.rows), ctas(request, self))
        return D.product([parts, problem.part_bytes(p, _held(request, self)), use])

    def kernels(
        self,
        request: Request,
        p: Problem,
        use: DimLike,
        place: str = "",
        places: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        """places: where an operand lies that was copied to where TMA can read it; place: where
        partial results lie.
        """
        if not self.split_kv:
            return [_kernel(request, p, self, use, places or {})]
        blocks, count = ctas(request, self), problem.blocks(request, self.rows)
        i = parameters(request)
        alone = replace(request, ints=dict(request.ints) | {"KVH": i["H"]})  # rows of one head
        most = known(D.ceildiv(blocks, D.maximum(count, 1))) or _MOST_SHARES
        rows = _held(request, self)
        return [
            _kernel(request, p, self, use, {**(places or {}), "y": place}),
            problem.combine(alone, p, rows, D.mul(count, use), blocks, most, place),
        ]


def _rows(groups: int, schedule: str) -> int:
    return 64 * (1 if schedule == "SPLIT_CTA" else groups)


def config(
    p: Problem,
    groups: int,
    keys: int,
    ctas: int = 1,
    schedule: str = "INTER_WG",
    cluster: int = 1,
    last: int = 0,
    split_kv: bool = False,
    most: int = _MOST_STAGES,
) -> Fa3Config | None:
    """With as many stages as shared memory holds, up to `most`, or None when it has no room for
    two.
    """
    rows, panels, panels_v = _rows(groups, schedule), -(-p.head // 64), -(-p.head_v // 64)
    slot = rows * 128 * max(panels, panels_v)
    stage = keys * 128 * (panels + panels_v) + _mask_bytes(p, rows, keys)
    # alignment and barriers; partial results
    other = 2048
    if schedule == "SPLIT_CTA":
        other += (groups - 1) * 512 * (-(-p.head_v // 16) * 8 + 4)
    # without what the device keeps of each CTA's
    room = (HOPPER_SHARED + 1024) // ctas - 1024 - other
    for slots in (2, 1):
        stages = min(most, (room - slots * slot) // stage)
        if stages >= 2:
            smem = slots * slot + stages * stage + other
            last = last or keys
            return Fa3Config(
                groups, keys, last, ctas, schedule, stages, slots, smem, cluster, split_kv
            )
    return None


def _mask_bytes(p: Problem, rows: int, keys: int) -> int:
    """Of a tile of keys: what masks add to them, or what rows have as masks of their own, each at
    an odd number of 16 bytes from the next (masks.cuh).
    """
    if not p.mask or (p.rows_masked and not p.mask_step):
        return 0
    units = keys * (2 if p.mask == 1 else 1) // 16
    return rows * 16 * (units + 1 + units % 2) if p.rows_masked else 4 * (keys + 4)


def split_kv_config(p: Problem) -> Fa3Config | None:
    """For few rows of many keys."""
    ctas = 2 if p.widest <= 128 else 1
    return config(p, 1, 64, ctas, "SINGLE_WG", split_kv=True, most=_SPLIT_STAGES)


def paired_config(p: Problem, count: int) -> Fa3Config | None:
    """For few rows of `count` keys, two CTAs on an SM."""
    keys = 64 if p.widest <= 112 or p.mask else 32  # as many bytes on their way
    return config(p, 1, keys, 2, "SINGLE_WG", last=_last(count, keys), most=_PAIRED_STAGES)


def _last(count: int, keys: int) -> int:
    """Keys of the last of the tiles of `keys` that hold `count`, in units of 16."""
    return (count - 1) % keys // 16 * 16 + 16


Clocks = tuple[int, int, int]


@dataclass(frozen=True)
class Form:
    """Configurations of `groups` warpgroups, `ctas` on an SM, with 64 to `widest` keys (at
    most `masked` where rows have masks of their own, which need registers), `usual` where T is
    not known. On a busy SM 64 rows take `work` clocks: for themselves, for each of their tiles
    of keys and for 16 of its keys; `delay`: the same of one warpgroup alone. Without `work`,
    the form is for SMs that have no more tiles than CTAs.
    """

    groups: int
    ctas: int
    schedule: str
    usual: int
    widest: int
    masked: int
    work: Clocks | None
    delay: Clocks
    cluster: int = 1  # CTAs that divide the keys


#: Sizes of clusters that divide keys; the one where sizes are not known.
_CLUSTERS, _USUAL_CLUSTER = (2, 4, 8), 4
#: By the longest heads, which need more registers (figures of 256 are guessed from those of 128).
_FORMS: dict[int, tuple[Form, ...]] = {
    64: (
        Form(4, 1, "INTER_WG", 96, 96, 64, (900, 110, 85), (4000, 64, 96)),
        Form(1, 4, "INTER_WG", 64, 64, 0, (760, 180, 85), (4000, 64, 96)),
        Form(2, 2, "INTER_WG", 64, 80, 0, (640, 165, 85), (4500, 64, 96)),
        Form(1, 3, "INTER_WG", 64, 80, 80, (800, 200, 85), (4000, 64, 96)),
        Form(1, 2, "INTER_WG", 128, 128, 128, (900, 110, 120), (4000, 64, 96)),
        Form(1, 1, "SINGLE_WG", 128, 208, 128, None, (4000, 64, 60)),
        Form(2, 1, "SPLIT_CTA", 128, 128, 128, None, (4500, 64, 60)),
        *(Form(1, 1, "SINGLE_WG", 128, 208, 128, None, (6500, 64, 60), n) for n in _CLUSTERS),
    ),
    128: (
        Form(2, 1, "INTRA_WG", 128, 128, 128, (900, 180, 145), (4000, 100, 176)),
        Form(1, 1, "INTRA_WG", 128, 128, 128, (900, 180, 145), (4000, 100, 176)),
        Form(2, 1, "PINGPONG", 128, 128, 128, (640, 220, 145), (3600, 130, 176)),
        Form(1, 2, "INTER_WG", 64, 64, 64, (900, 180, 145), (3700, 100, 176)),
        Form(1, 1, "SINGLE_WG", 128, 128, 128, None, (3800, 64, 130)),
        *(Form(1, 1, "SINGLE_WG", 128, 128, 128, None, (7500, 64, 130), n) for n in _CLUSTERS),
    ),
    256: (
        Form(2, 1, "INTRA_WG", 64, 96, 64, (3400, 180, 290), (4000, 100, 352)),
        Form(1, 1, "INTRA_WG", 64, 96, 64, (900, 180, 290), (4000, 100, 352)),
        Form(1, 1, "SINGLE_WG", 64, 96, 64, None, (3800, 64, 260)),
        *(Form(1, 1, "SINGLE_WG", 64, 96, 64, None, (9500, 64, 260), n) for n in _CLUSTERS),
    ),
}
#: Clocks more: of 64 causal rows for each 64 rows of a CTA of several, which see more and fewer
#: keys; of 64 rows whose last tile of keys is narrower; of a second tile of causal rows, of which
#: one is short where the other is long.
_UNEVEN, _NARROWER, _SECOND = 60, 100, 1000
#: The price of a form whose delay nothing hides, where an SM has more than one of its tiles.
_NEVER = 1 << 40
#: Clocks of a key and its value on their way to a tile where rows of short heads are no whole
#: sectors of memory.
_FETCHING = 18


def _clocks(of: Clocks, keys: DimLike, c: Fa3Config, *, seen: bool = False) -> DimLike:
    """Of 64 rows with so many keys; seen: of which they see half, and half of a tile."""
    each = of[1] + c.keys // 16 * of[2]
    if seen:
        tiles = D.ceildiv(D.add(keys, c.keys), c.keys)
        return D.add(of[0], D.floordiv(D.mul(tiles, each), 2))
    less = (c.keys - c.last) // 16 * of[2] - _NARROWER if c.last < c.keys else 0
    return D.add(of[0] - less, D.mul(D.ceildiv(keys, c.keys), each))


def _delay(form: Form, keys: DimLike, c: Fa3Config) -> DimLike:
    shares = form.groups if form.schedule == "SPLIT_CTA" else form.cluster
    return _clocks(form.delay, D.ceildiv(keys, shares), c)


def _slower(p: Problem, form: Form) -> int:
    """Percent of the clocks of whole long heads that shorter ones take, which come as slowly as
    these: small tiles hide less. And of those of other rows that those with masks of their own
    take: of 256 rows two warps bring too many.
    """
    if not p.rows_masked:
        ragged = p.head % 16 or p.head_v % 16  # rows of no whole sectors of memory
        slow = 64 < p.widest < 128 and form.ctas > 1 and (ragged or not p.causal)
        return 130 if slow else 100
    if not p.mask_step:
        return 111 if form.schedule == "INTRA_WG" else 100  # reads them beside its own GEMMs
    if form.groups == 1:
        return 115 if p.widest > 64 else 112 if form.ctas == 3 else 100
    return 180 if form.groups == 4 else 100


def _cost(request: Request, p: Problem, form: Form, c: Fa3Config) -> DimLike:
    """Clocks of the SM with the most tiles: waves of as many as it has room for, the last of what
    is left.
    """
    i, short = parameters(request), p.widest <= 64
    keys, tiles = i["T"], D.mul(problem.blocks(request, c.rows), form.cluster)
    count, delay = (
        D.ceildiv(tiles, sms_of_clusters(request.sms, form.cluster)),
        _delay(form, keys, c),
    )
    if form.work is None:
        pairs = p.causal and short and form.cluster == 1
        twice = D.mul(D.less(count, 3), D.less(keys, D.add(i["S"], 1))) if pairs else 0
        second = D.select(twice, D.add(delay, _SECOND), _NEVER)
        return D.select(D.less(form.ctas, count), second, delay)
    work = _clocks(form.work, keys, c, seen=p.causal)
    if p.causal and c.rows > 64:
        work = D.add(work, _UNEVEN * c.rows // 64)
    work = D.mul(work, c.rows // 64)
    if short and (p.head % 16 or p.head_v % 16):
        work = D.maximum(work, D.mul(D.floordiv(keys, 2) if p.causal else keys, _FETCHING))

    def together(tiles: DimLike) -> DimLike:
        return D.maximum(D.mul(tiles, work), delay)

    rest = D.mod(count, form.ctas)
    # Of more than half of its CTAs, or of half behind the first wave of short heads: somewhere it
    # is all of them.
    half: DimLike = 0
    if short and not p.causal:
        half = D.mul(D.less(form.ctas, count), D.less(count, 2 * form.ctas))
    many = D.less(form.ctas, D.add(D.mul(rest, 2), half))
    last = D.select(rest, D.select(many, together(form.ctas), together(rest)), 0)
    cost = D.add(D.mul(D.floordiv(count, form.ctas), together(form.ctas)), last)
    percent = _slower(p, form)
    return D.floordiv(D.mul(cost, percent), 100) if percent != 100 else cost


def _fitted(request: Request, p: Problem, form: Form) -> Fa3Config | None:
    """The configuration of a form with the keys that cost least."""
    t, widest = known(parameters(request)["T"]), form.masked if p.rows_masked else form.widest
    widths = range(64, widest + 1, 16)
    if t is None:
        widths = range(min(form.usual, widest), widest and widest + 1, 1 << 20)
    exact = not p.causal and form.cluster == 1 and form.schedule not in ("INTRA_WG", "SPLIT_CTA")

    def made(keys: int) -> Fa3Config | None:
        last = _last(t, keys) if t and exact else keys
        return config(p, form.groups, keys, form.ctas, form.schedule, form.cluster, last)

    def price(c: Fa3Config) -> int:
        busy = _clocks(form.work, t or 0, c, seen=p.causal) if form.work else None
        return evaluate(_delay(form, t or 0, c) if busy is None else busy, {})

    return min(filter(None, map(made, widths)), key=price, default=None)


def priced(request: Request, p: Problem) -> list[tuple[Fa3Config, DimLike]]:
    """A configuration of each form, with the clocks that it takes."""
    fixed = all(known(parameters(request)[n]) is not None for n in "BHST")
    fitted = (
        (form, _fitted(request, p, form))
        for form in _FORMS[next(n for n in _FORMS if p.widest <= n)]
        if (fixed or form.cluster in (1, _USUAL_CLUSTER)) and form.cluster <= request.caps.cluster
    )
    return [(c, _cost(request, p, form, c)) for form, c in fitted if c is not None]


def configs(request: Request, p: Problem) -> list[tuple[Fa3Config, DimLike]]:
    """Configurations worth having, each with whether it is the one for the sizes of a run: the
    cheapest.
    """
    found = priced(request, p)
    exact = {c: float(cost) for c, cost in found if isinstance(cost, int)}
    if len(exact) == len(found) and (fastest := kernel_choice.measured(exact)) is not None:
        return [(fastest, 1)]
    chosen: list[tuple[Fa3Config, DimLike]] = []
    for n, (c, cost) in enumerate(found):
        better = [
            D.less(cost, other) if k < n else D.sub(1, D.less(other, cost))
            for k, (_, other) in enumerate(found)
            if k != n
        ]
        chosen.append((c, D.product(better)))
    return [(c, use) for c, use in chosen if use != 0]


def stores_rows(c: object) -> bool:
    """Whether a configuration is one of these whose results warps have whole and may quantise."""
    return isinstance(c, Fa3Config) and c.cluster == 1 and not c.split_kv


def _raw(request: Request, p: Problem) -> bool:
    """Whether scores can stay unscaled up to their exponentials: what masks add, divided by the
    scale, must leave room for the scores' digits.
    """
    fill = request.floats.get("fill", 0.0)
    small = fill == -math.inf or abs(fill) <= 65504
    small = p.mask == 0 or (request.dtype == DType.F16 if p.mask == 1 else small)
    return small and not p.softcap and 1e-3 < request.floats["scale"] < 0.69


def ctas(request: Request, c: Fa3Config) -> DimLike:
    """split-KV: how many have equal shares of the keys of all tiles of rows: as many as fill the
    device, of few tiles as many for each as do.
    """
    room, count = request.sms * c.ctas, problem.blocks(request, c.rows)
    steps = D.maximum(D.ceildiv(parameters(request)["T"], _LEAST_STEPS * c.keys), 1)
    most, fill = D.minimum(_MOST_SHARES, steps), D.floordiv(room, D.maximum(count, 1))
    each = D.mul(count, D.minimum(fill, most))
    return D.select(D.less(1, fill), each, D.minimum(room, D.mul(count, most)))


def _held(request: Request, c: Fa3Config) -> int:
    """Rows of a partial result."""
    return min(c.rows, known(parameters(request)["S"]) or c.rows)


def _kernel(
    request: Request, p: Problem, c: Fa3Config, use: DimLike, places: Mapping[str, str]
) -> Kernel:
    i, threads = parameters(request), 128 * (c.groups + 1)
    tma_store = copied(request, "y") and not (c.split_kv or quantises(request))
    # TMA boxes: of results a warp's rows or the CTA's, of queries the CTA's or a warpgroup's
    by_warps = c.schedule in ("SINGLE_WG", "SPLIT_CTA") or (c.groups > 2 and not p.causal)
    asked = c.rows if c.schedule == "INTRA_WG" else 64
    operands = [("q", i["S"], i["H"], asked)]
    operands += [(o, i["T"], i["KVH"], c.keys) for o in "kv"]
    operands += [("y", i["S"], i["H"], 16 if by_warps else c.rows)] * tma_store
    # long heads: their other panel comes next
    l2 = 256 if c.schedule == "INTRA_WG" else 64 if c.split_kv else 128
    maps = [
        _map(request, places.get(o, o), o, p.size(o), rows, heads, box, l2)
        for o, rows, heads, box in operands
    ]
    # registers of a thread before they are given from the producer to the others
    launched = 65536 // (threads * c.ctas) // 8 * 8
    left = 40 if launched > 128 else 32
    count = problem.blocks(request, c.rows)
    columns = D.minimum(count, request.sms * c.ctas)
    if c.cluster > 1 or c.split_kv:
        columns = ctas(request, c) if c.split_kv else count
    return problem.kernel(
        request,
        p,
        "attention/fa3_sm90/fa3",
        (D.product([columns, c.cluster, use]), 1, 1),
        threads,
        {
            "ROWS": _held(request, c),
            "MASK_ROWS": p.rows_masked,
            "MASK_STEP": p.mask_step,
            "RAW": _raw(request, p),
            "GROUPS": c.groups,
            "BN": c.keys,
            "LAST": c.last,
            "CTAS_PER_SM": c.ctas,
            "STAGES": c.stages,
            "SLOTS": c.slots,
            "CLUSTER": c.cluster,
            "SPLIT_KV": c.split_kv,
            "REGISTERS": min(240, (launched * (c.groups + 1) - left) // c.groups // 8 * 8),
            "REGISTERS_LEFT": left,
        },
        places=places,
        maps=maps,
        macros={"SCHEDULE": c.schedule, "TMA_STORE": tma_store},
        text=_wgmma(request.dtype, c.keys, {c.keys, c.last}, -(-p.head_v // 16) * 16),
        smem=c.smem,
        cluster=c.cluster,
    )


def _map(
    request: Request,
    place: str,
    operand: str,
    size: int,
    rows: DimLike,
    heads: DimLike,
    box: int,
    l2: int,
) -> Parameter:
    """The map of [batch, head, row, element] of an operand, which lies at `place`, copied by `box`
    rows of 64 elements; l2: bytes of memory that L2 reads for it (beside those 128 lies what is
    another head's or comes with another copy, and may so come twice).
    """
    i = parameters(request)
    strides = tuple(D.mul(i[f"{operand}_{a}"], 2) for a in "shb")
    dims = (size, rows, heads, i["B"])
    tensor = TensorMap(
        Pointer(place), request.dtype, dims, strides, (64, box, 1, 1), l2_promotion=l2
    )
    return "const __grid_constant__ TensorMap", f"map_{operand}", tensor


def _wgmma(dtype: DType, keys: int, counts: set[int], width: int) -> str:
    """Text of `fa3.cuh`'s start_scores, add_scores (for tiles of which n in `counts` of `keys` keys
    are computed with) and add_values (`width`: padded columns of v).
    """
    kind = "f16" if dtype == DType.F16 else "bf16"

    def function(name: str, head: str, n: int, a: str, before: str, after: str, mode: str) -> str:
        """d is [64, n]; a: its left operand; before, after: the instruction; mode: of d."""
        count, inputs = n // 2, a.count('"') // 2
        d = ", ".join(f"%{k}" for k in range(count))
        left = ", ".join(f"%{count + k}" for k in range(inputs))
        left = f"{{{left}}}" if inputs > 1 else left
        outputs = ", ".join(f'"{mode}f"(d[{k}])' for k in range(count))
        return (
            f"DEV void {name}({head}, u64 b) {{\n  asm volatile("
            f'"{before}wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{d}}}, {left}, '
            f'%{count + inputs}, {after}"\n      : {outputs}\n      : {a}, "l"(b));\n}}\n'
        )

    text = "template <int N>\nstruct Width;\n"
    for n in sorted(counts):
        for add, name in enumerate(("start_scores", "add_scores")):
            head = f"const Width<{n}>&, float (&d)[{keys // 2}], u64 a"
            predicate = f"{{.reg .pred p; setp.ne.b32 p, {add}, 0; "
            mode = "+" if add else "="
            text += function(name, head, n, '"l"(a)', predicate, "p, 1, 1, 0, 0;}", mode)
    head = f"float (&d)[{width // 2}], const u32* a"
    registers = ", ".join(f'"r"(a[{k}])' for k in range(4))
    return text + function("add_values", head, width, registers, "", "1, 1, 1, 1;", "+")

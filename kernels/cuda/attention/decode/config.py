"""Decoding kernels (few query rows): configurations, what they can run, and their kernels."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ...common.launch import known, parameters, sms_of_clusters
from .. import problem
from ..problem import Problem

#: The most rows that read the same keys; more where a head has no more than so many of them, since
#: tiles of one head would be almost empty.
_MOST_ROWS, _MOST_OF_HEAD = 8, 2
#: Warps of a CTA of simt and mma; keys of a thread and stages that simt has on their way.
_WARPS, _AT_ONCE, _STAGES = 8, 4, 3
#: Split-KV where each CTA of a cluster would read more bytes; the most shares.
_SPLIT_BYTES, _MOST_SHARES = 128 << 10, {"simt": 64, "mma": 128}
#: mma and stream: the widest head that registers hold. mma: rows of a tile, keys of a warp, the
#: most stages, bytes of shared memory beside them; of how few items each CTA has an SM to itself.
_WIDEST, _MMA_ROWS, _MMA_KEYS, _MMA_STAGES, _MMA_OTHER, _FEW = 128, 16, 8, 6, 4096, 4


@dataclass(frozen=True)
class DecodeConfig:
    """compute: simt, mma or stream (decode/work.cuh); rows: of a CTA, which read the same keys;
    cluster: CTAs of a cluster that divide them; split_kv: as many CTAs as fill the device do, and a
    second kernel combines what they have; stream: warps of a CTA, sets of 16 keys that a warp has
    at once, and CTAs of an SM for which registers leave room.
    """

    compute: str
    rows: int
    cluster: int = 1
    split_kv: bool = False
    warps: int = _WARPS
    sets: int = 1
    ctas: int = 2

    def __str__(self) -> str:
        size = (
            f"{16 * self.sets}x{self.warps}*{self.ctas}" if self.compute == "stream" else self.rows
        )
        divided = f"/{self.cluster}" if self.cluster > 1 else " split-KV" if self.split_kv else ""
        return f"{self.compute} {size}{divided}"

    def shares(self, request: Request, p: Problem) -> DimLike:
        """CTAs that divide the keys of an item."""
        if not self.split_kv:
            return self.cluster
        ctas, least = _mma_ctas(request, p)[0], 2 * _MMA_KEYS * _WARPS
        if self.compute == "simt":
            ctas, least = 2, _keys_at_once(request, p)
        fill = D.floordiv(ctas * request.sms, D.maximum(items(request, self.rows), 1))
        most = D.ceildiv(parameters(request)["T"], least)
        if self.compute == "simt":
            return D.minimum(_MOST_SHARES["simt"], D.minimum(fill, D.maximum(most, 1)))
        return D.maximum(D.minimum(_MOST_SHARES["mma"], D.minimum(fill, most)), 1)

    def scratch(self, request: Request, p: Problem, use: DimLike) -> DimLike | None:
        """Bytes of partial results, if there are any."""
        if not self.split_kv:
            return None
        parts = D.add(self.shares(request, p), 1)
        size = problem.part_bytes(p, self.rows)
        return D.product([items(request, self.rows), parts, size, use])

    def kernels(self, request: Request, p: Problem, use: DimLike, place: str = "") -> list[Kernel]:
        """place: where partial results lie."""
        threads, smem = 32 * self.warps, 0
        sizes: dict[str, bool | int | float] = {
            "ROWS": self.rows,
            "CLUSTER": self.cluster,
            "SPLIT_KV": self.split_kv,
            "WARPS": self.warps,
            "CTAS_PER_SM": self.ctas,
        }
        macros = {"COMPUTE": self.compute.upper()}
        if self.compute == "simt":
            lanes, chunks = _lanes(request, p)
            sizes |= {"LANES": lanes, "CHUNKS": chunks, "AT_ONCE": _AT_ONCE // chunks}
            sizes |= {"STAGES": _STAGES, **problem.reads(request, p)}
            # what the warps have fits in it, too
            smem = _STAGES * (_AT_ONCE // chunks) * 2 * chunks * 16 * threads
        elif self.compute == "mma":
            ctas, stages = _mma_ctas(request, p)
            sizes |= {"CTAS_PER_SM": ctas, "STAGES": stages}
            smem = stages * _mma_stage(p)
        else:
            sizes["SETS"] = self.sets
            # The L1 cache keeps what several reads of a row, or rows beside each other, share of a
            # sector of memory.
            whole = all(n % 16 == 0 for n in (p.head, p.head_v))
            macros["CACHING"] = '".L1::no_allocate"' if whole else '""'
        count, shares = D.mul(items(request, self.rows), use), self.shares(request, p)
        main = problem.kernel(
            request,
            p,
            "attention/decode/decode",
            (D.mul(count, self.cluster), shares if self.split_kv else 1, 1),
            threads,
            sizes,
            symbol="attention_decode",
            macros=macros,
            places={"y": place} if self.split_kv else {},
            smem=smem,
            cluster=self.cluster,
        )
        if not self.split_kv:
            return [main]
        most = known(shares) or _MOST_SHARES[self.compute]
        all_shares = D.mul(count, shares)
        return [main, problem.combine(request, p, self.rows, count, all_shares, most, place)]


def rows_of(request: Request) -> DimLike:
    """Query rows that read the same keys: of the heads of a group."""
    i = parameters(request)
    return D.mul(D.floordiv(i["H"], D.maximum(i["KVH"], 1)), i["S"])


def items(request: Request, rows: int) -> DimLike:
    """Tiles of `rows` rows that read the same keys."""
    i = parameters(request)
    return D.product([i["B"], i["KVH"], D.ceildiv(rows_of(request), rows)])


def few_rows(request: Request) -> DimLike:
    """Whether rows are so few that decoding kernels are for them."""
    few = D.less(rows_of(request), _MOST_ROWS + 1)
    return D.maximum(few, D.less(parameters(request)["S"], _MOST_OF_HEAD + 1))


def simt_configs(request: Request, p: Problem) -> list[tuple[DecodeConfig, DimLike]]:
    """Configurations worth having, each with whether it is for the sizes of a run; none is where
    rows are many. Over a cache, of which a tensor says how many keys count, all may.
    """
    exact, keys = known(rows_of(request)), parameters(request)["T"]
    rows = next(n for n in (1, 2, 4) if n >= min(4, exact or 4))
    count = items(request, rows)
    most: tuple[int, ...] = (1,)
    if request.arch >= 90:
        most = (1, 2, 4, 8) if exact is not None or "lens" in request.operands else (1, 8)
    most = tuple(n for n in most if n <= request.caps.cluster)
    fill = D.floordiv(2 * sms_of_clusters(request.sms, most[-1]), D.maximum(count, 1))
    together = D.minimum(most[-1], D.maximum(fill, 1))
    if (n := known(together)) is not None:
        together = max(m for m in most if m <= n)
    long = D.less(D.mul(together, _SPLIT_BYTES // p.row_bytes(request.dtype)), keys)
    split, few = D.mul(D.less(count, request.sms + 1), long), few_rows(request)
    divided = problem.divided(request, count, keys, _keys_at_once(request, p), most)
    found = [
        (DecodeConfig("simt", rows, n), D.product([few, use, D.sub(1, split)]))
        for n, use in divided
    ]
    found.append((DecodeConfig("simt", rows, split_kv=True), D.mul(few, split)))
    return [(config, use) for config, use in found if use != 0]


def mma_config() -> DecodeConfig:
    return DecodeConfig("mma", _MMA_ROWS, split_kv=True)


def mma_fits(request: Request, p: Problem) -> bool:
    """Whether rows are whole aligned vectors of 16-bit heads that are not too wide."""
    return (
        request.arch >= 80
        and request.dtype != DType.F32
        and p.widest <= _WIDEST
        and all(n == 8 for n in problem.reads(request, p).values())
    )


def stream_fits(rows: Request, p: Problem) -> bool:
    """The same of `rows`, where the heads that share keys are rows of one head, at most 16 of them,
    without masks.
    """
    i = parameters(rows)
    count, steps = known(i["S"]), [known(i[n]) for n in ("k_s", "v_s")]
    few = count is not None and 0 < count <= 16
    near = all(n is not None and abs(n) < 1 << 30 for n in steps)
    return rows.arch == 90 and mma_fits(rows, p) and not p.mask and not p.causal and few and near


def _lanes(request: Request, p: Problem) -> tuple[int, int]:
    """simt: threads that have one key, and of how many 16 bytes each."""
    pieces = -(-p.widest * request.dtype.size // 16)
    lanes = next(n for n in (1, 2, 4, 8, 16, 32) if n >= min(pieces, 32))
    return lanes, -(-pieces // lanes)


def _keys_at_once(request: Request, p: Problem) -> int:
    """simt: of a CTA."""
    return _AT_ONCE * _WARPS * 32 // _lanes(request, p)[0]


def _mma_stage(p: Problem) -> int:
    """mma: bytes of a stage."""
    return _WARPS * _MMA_KEYS * sum(-(-n // 16) * 32 + 16 for n in (p.head, p.head_v))


def _mma_ctas(request: Request, p: Problem) -> tuple[int, int]:
    """mma: CTAs of an SM, and the stages that each has: two, which hide each other's waits, where
    they fit and there are many (of few, which come while others leave, some SMs would have two and
    others none).
    """
    count = known(items(request, _MMA_ROWS))
    parts = known(D.ceildiv(parameters(request)["T"], 2 * _MMA_KEYS * _WARPS))
    many = count is not None and parts is not None and count > _FEW and count * parts > request.sms
    stage = _mma_stage(p)
    ctas = 2 if many and request.caps.smem_block // 2 - _MMA_OTHER >= 2 * stage else 1
    return ctas, min(_MMA_STAGES, (request.caps.smem_block // ctas - _MMA_OTHER) // stage)

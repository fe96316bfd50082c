"""GroupNorm and InstanceNorm, plain ([B, C, inner]) and channels-last."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import Dim, DimLike, factor

from ..common import axis_layout
from ..common.epilogue import Parameter
from ..common.instantiate import floats, instance, ints, invoke, longs, pointer
from ..common.launch import known, parameters, static, vector_width
from ..common.prelude import activation_source


def _threads(elements: DimLike, v: int) -> int:
    """Threads of a CTA for a group of `elements`, which are read by vectors of v."""
    n = known(elements)
    wanted = 512 if n is None else n // (4 * v)
    return next((t for t in (32, 64, 128, 256, 512) if t >= wanted), 512)


#: Bytes of a plain group that a thread keeps in registers.
_KEPT = 128
#: (vectors per thread, threads) for plain groups of symbolic size, of a CTA and of a cluster; the
#: first that holds a group in registers is used. 0 vectors: each pass reads the group again.
_SOME, _SOME_OF_CLUSTERS = ((2, 256), (4, 512), (8, 1024), (0, 512)), ((8, 512), (0, 512))


def _shares(request: Request, groups: DimLike, elements: DimLike) -> list[tuple[int, DimLike]]:
    """(CTAs of a cluster that has one group, use). use: whether the sizes of a run get it (0 or 1,
    or symbolic); several choices where the number of groups is symbolic.
    """
    share, many = axis_layout.clusters(request, groups, elements, factor(groups))
    found: list[tuple[int, DimLike]] = [(1, axis_layout.negated(many)), (share, many)]
    if share > 2 and isinstance(groups, Dim) and known(elements) is None:
        half, more = axis_layout.clusters(request, groups, elements, 2 * factor(groups))
        if half < share:
            more = D.mul(more, axis_layout.negated(many))
            found = [
                (1, D.product([axis_layout.negated(many), axis_layout.negated(more)])),
                (share, many),
                (half, more),
            ]
    return [(blocks, use) for blocks, use in found if use != 0]


def _kernel(
    request: Request,
    sizes: list[Parameter],
    call: str,
    groups: DimLike,
    elements: DimLike,
    threads: int,
    blocks: int,
    use: DimLike,
) -> Kernel:
    """call: statements, which may name gamma and beta. blocks: CTAs per group."""
    present = [o for o in ("x", "gamma", "beta", "y") if o in request.operands]
    absent = [o for o in ("gamma", "beta") if o not in present]
    given = [
        *(pointer("T" if o == "y" else "const T", o) for o in present),
        *sizes,
        *floats({k: request.floats.get(k, 0.0) for k in ("eps", "p0", "p1")}),
    ]
    grid = D.select(D.equal(elements, 0), 0, D.mul(D.mul(groups, blocks), use))
    act = activation_source(static(parameters(request)["act"], "activation"))
    body = "".join(f"const T* {o} = nullptr;\n  " for o in absent) + f"pdl_begin();\n  {call}"
    return instance(
        request,
        "groupnorm",
        "norm/groupnorm",
        given,
        grid,
        threads,
        body,
        before=act,
        cluster=blocks,
    )


def _plain_shapes(
    request: Request, groups: DimLike, elements: DimLike
) -> list[tuple[int, int, int, DimLike]]:
    """(vectors per thread, threads, CTAs per group, use) of the kernels for plain groups."""
    v, n = 16 // request.dtype.size, known(elements)
    if n is None:
        shapes = list[tuple[int, int, int, DimLike]]()
        for blocks, rest in _shares(request, groups, elements):
            for k, t in _SOME if blocks == 1 else _SOME_OF_CLUSTERS:
                fits = axis_layout.up_to(elements, k * v * t * blocks) if k else 1
                shapes.append((k, t, blocks, D.mul(fits, rest)))
                rest = D.mul(axis_layout.negated(fits), rest)
        return shapes
    share, many = axis_layout.clusters(request, groups, elements, factor(groups))
    threads = next((t for t in (32, 64, 128, 256, 512) if 2 * t * v >= n), 1024)
    if share == 2 and n * request.dtype.size <= _KEPT * threads:
        share, many = 1, 0  # a cluster's exchange costs what its second CTA saves
    shapes = []
    for t, b, use in ((threads, 1, axis_layout.negated(many)), (512, share, many)):
        k = max(-(-n // (t * b * v)), 1)
        shapes.append((k if k * 16 <= _KEPT else 0, t, b, use))
    return shapes


def groupnorm(request: Request) -> list[Kernel]:
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    groups, elements = D.mul(i["B"], g), D.mul(i["inner"], c // g)
    sizes = ints({"C": c, "G": g, "inner": i["inner"]})
    return [
        _kernel(
            request,
            sizes,
            invoke(
                "group_plain",
                (16 // request.dtype.size, k, threads, blocks),
                "x, gamma, beta, y, C, G, inner, eps, p0, p1",
            ),
            groups,
            elements,
            threads,
            blocks,
            use,
        )
        for k, threads, blocks, use in _plain_shapes(request, groups, elements)
        if use != 0
    ]


def groupnorm_nhwc(request: Request) -> list[Kernel]:
    """A CTA per group, or a cluster where single CTAs would leave most SMs idle."""
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    pitches = [f"{s}_{p}" for s in ("x", "y") for p in ("cs", "rs", "ns")]
    v = vector_width(request.dtype, c // g, *(i[p] for p in pitches if known(i[p]) is not None))
    groups, elements = D.mul(i["N"], g), D.product([i["H"], i["W"], c // g])
    sizes = ints({"C": c, "G": g, "H": i["H"], "W": i["W"]})
    for p in pitches:
        sizes += (ints if p.endswith("cs") else longs)({p: i[p]})
    kernels = []
    for blocks, use in _shares(request, groups, elements):
        threads = _threads(elements, v) if blocks == 1 else 512
        planes = "Plane{W, x_cs, x_rs, x_ns}, Plane{W, y_cs, y_rs, y_ns}"
        given = f"x, gamma, beta, y, C, G, H, {planes}, eps, p0, p1"
        call = invoke("group_nhwc", (v, threads, blocks), given)
        kernels.append(_kernel(request, sizes, call, groups, elements, threads, blocks, use))
    return kernels


FAMILIES = {"groupnorm": groupnorm, "groupnorm_nhwc": groupnorm_nhwc}

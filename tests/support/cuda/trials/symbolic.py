"""Requests whose sizes are known at run time only, as in models exported with a dynamic batch."""

from __future__ import annotations

from dataclasses import replace

from tests.support.cuda import driver as driver
from tests.support.cuda.trials.trial import Trial
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

#: How a family calls its first axis.
_FIRST = {
    **dict.fromkeys(("conv2d", "conv2d_dw", "deconv2d", "pool2d", "resize2d", "resize_cubic",
        "squeeze_excite", "global_pool"), "N"),
    **dict.fromkeys(("softmax", "reduce", "argmax", "topk", "cumsum", "gather", "gather_elements"),
        "outer"),
    "gemm": "M", "attention": "B", "layernorm": "rows", "groupnorm": "B", "copies": "p0_n1",
}  # fmt: skip
#: Axes that are symbolic beside the first: of images their sides, of attention its sequences.
_SIDES = {
    **dict.fromkeys(("conv2d", "conv2d_dw", "deconv2d", "pool2d", "resize2d", "resize_cubic"),
        ("IH", "IW", "OH", "OW")),
    "global_pool": ("H", "W"), "groupnorm": ("inner",), "attention": ("S", "T"),
    "matmul": ("M", "N", "K"), "softmax": ("n",),
}  # fmt: skip
_SIZE, _ROWS = D.symbol("size"), D.symbol("rows")
#: Values of symbols.
Sizes = dict[str, int]


def _axis(request: Request) -> str | None:
    """The parameter that counts the first axis; None where no axis has more than one element."""
    i, family = request.ints, request.family
    if family in _FIRST:
        return _FIRST[family]
    if family == "matmul":
        return "B0" if i["B0"] != 1 else "B1"
    if family == "copy":
        return max(
            (f"n{k}" for k in range(6) if i[f"n{k}"] != 1),
            key=lambda n: int(i[f"x{n[1]}"]),
            default=None,
        )
    if family in ("pointwise", "pad"):
        names = [f"n{k}" for k in range(6) if f"n{k}" in i]
        return next(
            (n for n in names if i[n] != 1 and (family == "pointwise" or i[n] == i[f"m{n[1]}"])),
            None,
        )
    return None


def symbolic(request: Request, several: bool = False) -> tuple[Request, Sizes] | None:
    """The request with a symbol for its first axis, and what number it was. several: for other axes
    as well, and for the first the product of two where nothing else is symbolic.
    """
    axis = _axis(request)
    if axis is None:
        return None
    ints: dict[str, DimLike] = dict(request.ints)
    sizes, first = {"size": int(request.ints[axis])}, _SIZE
    sides = _SIDES.get(request.family, ()) if several else ()
    if several and not sides:
        part = next((b for b in (32, 16, 8, 4, 3, 2, 5, 7) if sizes["size"] % b == 0), 1)
        sizes, first = {"size": part, "rows": sizes["size"] // part}, D.mul(_SIZE, _ROWS)  # type: ignore[assignment]
    ints[axis] = first
    if request.family == "copies":
        ints |= {name: first for name in ints if name.endswith("_n1")}
    elif request.family == "pad":
        ints[f"m{axis[1]}"] = first
    elif request.family == "copy":  # whose result is one run
        run: DimLike = 1
        for k in range(5, -1, -1):
            if request.ints[f"n{k}"] != 1:
                if D.evaluate(run, sizes) != request.ints[f"y{k}"]:
                    return None
                ints[f"y{k}"] = run
            run = D.mul(run, ints[f"n{k}"])
    for name in sides:
        ints[name] = _side(request, ints, name)
        sizes[name] = int(request.ints[name])
    if sides:
        _pitches(ints, sizes)
    return replace(request, ints=ints), sizes


def _side(request: Request, ints: dict[str, DimLike], name: str) -> DimLike:
    """A symbol, or what a window of that stride leaves of one."""
    i = request.ints
    if name in ("OH", "OW") and "KH" in i:
        side, begin = name[1], int(i["PT" if name == "OH" else "PL"])
        span, stride = (int(i["K" + side]) - 1) * int(i["D" + side]) + 1, int(i["S" + side])
        before, after = int(i["I" + side]), int(i[name])
        if not request.family.startswith("deconv"):
            # pads behind, or less than none where the last windows do not fit
            end = (after - 1) * stride + span - begin - before
            return D.add(D.floordiv(D.add(ints["I" + side], begin + max(end, 0) - span), stride), 1)
        return D.add(D.mul(D.sub(ints["I" + side], 1), stride), after - (before - 1) * stride)
    same = {"T": "S", "N": "M", "K": "M"}.get(name)
    if same and i[name] == i[same]:
        return ints[same]
    return ints[name] if same and name != "T" else D.symbol(name)


def _pitches(ints: dict[str, DimLike], sizes: Sizes) -> None:
    """Strides as products of symbols, where they are those of packed rows and images."""
    for outer, inner, n in (
        ("x_rs", "x_cs", "IW"), ("x_ns", "x_rs", "IH"), ("x_rs", "x_cs", "W"),
        ("x_ns", "x_rs", "H"), ("y_rs", "y_cs", "OW"), ("y_ns", "y_rs", "OH"),
        ("y_rs", "y_cs", "W"), ("y_ns", "y_rs", "H"), ("q_b", "q_s", "S"), ("k_b", "k_s", "T"),
        ("v_b", "v_s", "T"), ("y_b", "y_s", "S"), ("m_q", "m_k", "T"),
        ("a_m", "a_k", "K"), ("a_k", "a_m", "M"), ("a_1", "a_m", "M"), ("a_1", "a_k", "K"),
        ("b_k", "b_n", "N"), ("b_n", "b_k", "K"), ("b_1", "b_k", "K"),
        ("b_1", "b_n", "N"),
    ):  # fmt: skip
        if ints.get(outer, 0) not in (0, 1) and inner in ints and n in ints:
            run = D.mul(ints[inner], ints[n])
            if D.evaluate(run, sizes) == D.evaluate(ints[outer], sizes):
                ints[outer] = run


def of_trial(trial: Trial, several: bool = False) -> tuple[list[Request], Sizes] | None:
    """Every request of a trial with the same symbols, and their values."""
    found = [made for r in trial.requests if (made := symbolic(r, several)) is not None]
    if len(found) != len(trial.requests) or any(sizes != found[0][1] for _, sizes in found):
        return None
    return [r for r, _ in found], found[0][1]

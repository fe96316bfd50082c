"""What PyTorch computes in each round: `FUNCTIONS[name](torch.nn.functional, weights)` gives a
function of the round's inputs. The models of `rounds.py` say the same in ONNX. Imports nothing, so
that any Python can load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]


def _conv(f: Any, w: Mapping[str, Any]) -> Function:
    def run(x: Any) -> Any:
        y = f.conv2d(x, w["w"], padding=1)
        return f.relu(f.batch_norm(y, w["mean"], w["var"], w["gamma"], w["beta"]))

    return run


def _odd(f: Any, w: Mapping[str, Any]) -> Function:
    def run(x: Any, r: Any) -> Any:
        y = f.silu(x @ w["w"] + w["b"] + r)
        return (y * w["scale"]).clamp(-1.5, 1.5)

    return run


def _product(f: Any, w: Mapping[str, Any]) -> Function:
    def run(x: Any) -> Any:
        return x @ w["w"]

    return run


def _attention(f: Any, w: Mapping[str, Any]) -> Function:
    def run(q: Any, k: Any, v: Any) -> Any:
        return f.scaled_dot_product_attention(q, k, v)

    return run


def _chain(f: Any, w: Mapping[str, Any]) -> Function:
    def run(x: Any) -> Any:
        y = f.layer_norm(x, w["g"].shape, w["g"], w["b"])
        y = f.gelu(y @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]
        return f.softmax((x + y) * w["scale"], -1)

    return run


FUNCTIONS: dict[str, Callable[[Any, Mapping[str, Any]], Function]] = {
    "conv": _conv,
    "odd": _odd,
    "product": _product,
    "attention": _attention,
    "chain": _chain,
}

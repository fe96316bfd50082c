"""Every model of the zoo: valid ONNX, the same bytes each time, runs on ONNX Runtime at several
batch sizes, activations in range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from tracea_onnx.support import discovery

pytestmark = pytest.mark.once

#: Options that keep each architecture's structure and make it small.
SMALL: dict[str, dict[str, Any]] = {
    "bert_base": {"layers": 2, "hidden": 64, "heads": 4, "inner": 128, "vocab": 500},
    "demo": {"image": 33},
    "efficientnet_b0": {"image": 65,
        "stages": ((1, 3, 1, 16, 1), (6, 5, 2, 24, 2), (6, 3, 2, 40, 2)), "head": 96,
        "classes": 17},
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 500, "positions": 64},
    "minilm": {"layers": 2, "hidden": 48, "heads": 4, "inner": 96, "vocab": 500},
    "mobilenet_v2": {"image": 65, "stages": ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2)),
        "head": 96, "classes": 17},
    "mobilenet_v3": {
        "image": 65, "classes": 17,
        "blocks": ((3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2),
            (5, 72, 40, True, "relu", 2), (5, 120, 40, True, "hardswish", 1)),
    },
    "resnet50": {"image": 65, "layers": (1, 2, 1, 1), "width": 16, "classes": 17},
    "unet": {"image": 32, "width": 8, "levels": 2, "groups": 4},
    "vit_b16": {"image": 48, "layers": 2, "hidden": 64, "heads": 4, "inner": 128, "classes": 17},
    "yolo_nano": {"image": 64, "width": 8, "classes": 5},
}  # fmt: skip


def small(name: str, **options: Any) -> onnx.ModelProto:
    model: onnx.ModelProto = discovery.module("models", name).build(**{**SMALL[name], **options})
    return model


def feeds(model: onnx.ModelProto, batch: int, seq: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    out: dict[str, npt.NDArray[Any]] = {}
    for i in model.graph.input:
        dims = [
            d.dim_value or {"batch": batch, "sequence": seq}[d.dim_param]
            for d in i.type.tensor_type.shape.dim
        ]
        if i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            out[i.name] = rng.standard_normal(dims, dtype=np.float32)
        elif i.name == "attention_mask":
            out[i.name] = (np.arange(dims[1]) < rng.integers(1, dims[1] + 1, (dims[0], 1))).astype(
                np.int64
            )
        else:
            out[i.name] = rng.integers(0, 2 if i.name == "token_type_ids" else 100, dims)
    return out


def test_every_model_is_tested() -> None:
    assert set(SMALL) == set(discovery.names("models"))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_runs_at_any_batch(name: str) -> None:
    model = small(name)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in (1, 2, 7):
        seq = 5 + batch
        first, second = (session.run(None, feeds(model, batch, seq, seed)) for seed in (0, 1))
        for a, b, declared in zip(first, second, model.graph.output, strict=True):
            dims = declared.type.tensor_type.shape.dim
            assert a.shape[0] == batch and len(dims) == a.ndim
            assert all(
                n == d.dim_value
                for n, d in zip(a.shape, dims, strict=True)
                if d.HasField("dim_value")
            )
            assert np.isfinite(a).all()
            assert 1e-4 < a.std() < 1e3, "activations left their range"
            assert np.std(a - b) > 1e-3 * a.std(), "the output hardly depends on the input"


@pytest.mark.parametrize("name", sorted(SMALL))
def test_rows_of_a_batch_are_independent(name: str) -> None:
    model = small(name)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    whole = feeds(model, 3, 6, 2)
    alone = {k: v[1:2] for k, v in whole.items()}
    for a, b in zip(session.run(None, whole), session.run(None, alone), strict=True):
        np.testing.assert_allclose(a[1:2], b, rtol=1e-3, atol=1e-4 * float(np.abs(a).max()))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_same_options_same_bytes(name: str) -> None:
    assert small(name).SerializeToString() == small(name).SerializeToString()
    assert small(name).SerializeToString() != small(name, seed=999).SerializeToString()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_static_shapes(name: str) -> None:
    model = small(name, dynamic=False, batch=2)
    assert all(
        d.HasField("dim_value")
        for v in [*model.graph.input, *model.graph.output]
        for d in v.type.tensor_type.shape.dim
    )
    onnx.checker.check_model(model, full_check=True)

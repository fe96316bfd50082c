"""Optimum, sentence-transformers and fastembed run models on the provider as the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tracea_onnx
from tests.recipes.conftest import NODES, SENTENCES, library, run, stock
from tracea_onnx import provider

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries for one another

Since = Callable[[str], int]
OURS = [provider.PROVIDER_NAME, "CPUExecutionProvider"]


def test_optimum(inside: Path, since: Since) -> None:
    made = run("Optimum")
    assert made["model"].session.get_providers() == OURS
    assert since("claimed_nodes") >= NODES and since("runs") == 1
    x = {k: v.numpy() for k, v in made["inputs"].items()}
    session = stock(inside / "model.onnx")
    (expected,) = session.run(None, {i.name: x[i.name] for i in session.get_inputs()})
    np.testing.assert_allclose(made["vectors"].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_optimum_takes_an_optimized_file_and_options(inside: Path, since: Since) -> None:
    optimum = library("optimum.onnxruntime")
    tracea_onnx.optimize("my-model/model.onnx", output="my-model/model.tracea.onnx", verify=False)
    options = {"num_threads": "1"}
    model = optimum.ORTModelForFeatureExtraction.from_pretrained(
        "my-model",
        file_name="model.tracea.onnx",
        provider=provider.PROVIDER_NAME,
        provider_options=options,
    )
    assert model.path.name == "model.tracea.onnx" and since("claimed_nodes") >= NODES
    assert model.session.get_provider_options()[provider.PROVIDER_NAME] == options
    model.path.unlink()


def test_sentence_transformers(inside: Path, since: Since) -> None:
    their = library("sentence_transformers")
    model = run("sentence-transformers")["model"]
    assert model[0].auto_model.session.get_providers() == OURS
    assert since("claimed_nodes") >= NODES and since("runs") == 1
    plain = their.SentenceTransformer(
        "my-model", backend="onnx", model_kwargs={"provider": "CPUExecutionProvider"}
    )
    got, expected = model.encode(SENTENCES), plain.encode(SENTENCES)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert since("runs") == 2


def test_fastembed(inside: Path, since: Since) -> None:
    their = library("fastembed")
    model = run("fastembed")["model"]
    assert model.model.model.get_providers() == OURS
    assert since("claimed_nodes") >= NODES and since("runs") == 1
    plain = their.TextEmbedding(
        "my-model", specific_model_path="my-model", providers=["CPUExecutionProvider"]
    )
    got, expected = (np.array(list(m.embed(SENTENCES))) for m in (model, plain))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert since("runs") == 2

"""The code of docs/guide/libraries.md, and models with random weights for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from tracea_onnx import provider

# These libraries read them when they are imported.
os.environ.update(HF_HUB_OFFLINE="1", OLIVE_DISABLE_TELEMETRY="1")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "libraries.md"
SENTENCES = ["The cat sat on the mat", "A dog ran", "the tree under the dog ran and ran"]
#: Fewer than `my_model` has, and nearly all of them.
NODES = 100
_WORDS = "the a cat dog sat ran on under mat tree and then slept"


def library(name: str) -> Any:
    """A module of a library; skips where the library is not installed, but not where it is and what
    it needs is missing.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return importlib.import_module(name)


def blocks(heading: str) -> list[str]:
    """Code blocks below a heading of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^ {4}.*\n|(?<=\n)\n(?= {4}))+", text, re.MULTILINE)
    return [textwrap.dedent(block).strip() for block in found]


def run(heading: str) -> dict[str, Any]:
    """What the section's one block in Python leaves behind, from the working directory."""
    (code,) = (b for b in blocks(heading) if "import " in b)
    names: dict[str, Any] = {}
    exec(compile(code, f"{PAGE}: {heading}", "exec"), names)
    return names


def stock(model: Path) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.fixture
def since() -> Callable[[str], int]:
    """How far a counter of the provider has come since the test began."""
    before = provider.stats()
    return lambda name: provider.stats()[name] - before[name]


@pytest.fixture(scope="session")
def my_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT as Optimum exports it, with a tokenizer of a few words."""
    torch = library("torch")
    transformers = library("transformers")
    optimum = library("optimum.onnxruntime")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: k for k, word in enumerate([*special, *_WORDS.split()])}
    words = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(vocabulary), hidden_size=128, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=256, max_position_embeddings=64,
        )
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models")
    bert.save_pretrained(folder / "torch")
    made = optimum.ORTModelForFeatureExtraction.from_pretrained(folder / "torch", export=True)
    made.save_pretrained(folder / "my-model")
    transformers.BertTokenizerFast(tokenizer_object=words, model_max_length=64).save_pretrained(
        folder / "my-model"
    )
    return folder / "my-model"


@pytest.fixture
def inside(my_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, as the working directory's `my-model`."""
    monkeypatch.chdir(my_model.parent)
    return my_model

"""What proposes kernels to measure: the plain ways, hints from elsewhere, and a language model; a
server of the test stands for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tracea_onnx.errors import UsageError
from tracea_onnx.tuning import proposers
from tracea_onnx.tuning.bayesian import Bayesian
from tracea_onnx.tuning.language_model import Endpoint, LanguageModel
from tracea_onnx.tuning.plain_proposers import Grid, Random
from tracea_onnx.tuning.proposer import Hint, Proposer, parameters

PRICES = {f"Tile(bm={m}, bn={n})": 100.0 for m in (32, 64, 128) for n in (32, 64, 128)}


def _all(search: Proposer, ratio: Callable[[str], float] = lambda _: 1.0) -> list[str]:
    tried = []
    while (name := search.suggest()) is not None:
        assert name not in tried
        tried.append(name)
        search.observe(name, ratio(name))
    return tried


def test_grid_tries_all_by_price_and_random_all() -> None:
    prices = {name: 100.0 + k for k, name in enumerate(reversed(PRICES))}
    assert _all(Grid(prices)) == list(prices)
    at_random = _all(Random(prices))
    assert sorted(at_random) == sorted(prices) and at_random != list(prices)
    assert _all(Random(prices)) == at_random


def test_what_was_dropped_or_is_unknown_is_not_proposed() -> None:
    search = Grid(PRICES)
    search.drop("Tile(bm=32, bn=32)")
    search.observe("Tile(bm=7, bn=7)", 0.1)
    assert len(_all(search)) == len(PRICES) - 1 and search.best[1] == 1.0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Tile(bm=128, split=True)", ("Tile", {"bm": 128, "split": True})),
        ("Tile(2, kind='x', f=0.5)", ("Tile", {"0": 2, "kind": "x", "f": 0.5})),
        ("Tile(inner=Part(2))", ("Tile", {"inner": "Part(2)"})),
        ("Tile", ("Tile", {})),
        ("Tile(((", ("Tile(((", {})),
        ("Tile(1)+f(2)", ("Tile(1)+f(2)", {})),
    ],
)
def test_names_are_read(name: str, found: tuple[str, dict[str, object]]) -> None:
    assert parameters(name) == found


def test_neighbours_of_the_fast_are_tried_before_the_others() -> None:
    """bm=128 is fast; what was measured first tells of the rest."""
    search = Bayesian(PRICES)
    for m in (32, 128):
        search.observe(f"Tile(bm={m}, bn=64)", 0.97 if m == 128 else 1.03)
    assert search.suggest() in ("Tile(bm=128, bn=32)", "Tile(bm=128, bn=128)")


def test_hints_of_similar_launches_come_first_and_are_no_measurements() -> None:
    hint = Hint("Tile(bm=64, bn=128)", 0.7, 0.2)
    search = Bayesian(PRICES, [hint, Hint("Other(1)", 0.1, 0.0)])
    assert search.suggest() == hint.name and search.best == (search.first, 1.0)
    far = Bayesian(PRICES, [Hint(hint.name, 1.6, 9.0)])
    assert far.suggest() is not None


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]], list[bytes | int]]]:
    """Its address, requests, and answers: bodies, or statuses of errors; the last one stays."""
    asked: list[dict[str, Any]] = []
    answers: list[bytes | int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            if isinstance(answer, bytes):
                self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/v1/", asked, answers
        http.shutdown()
        thread.join()


Server = tuple[str, list[dict[str, Any]], list[bytes | int]]


def _said(text: object) -> bytes:
    content = text if isinstance(text, str) else json.dumps(text)
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


def _model(server: Server) -> LanguageModel:
    return LanguageModel(
        PRICES, endpoint=Endpoint.of(server[0], "tiny"), launch="gemm F16 M=3", device="H200"
    )


def test_a_language_model_gets_the_facts_and_is_followed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEA_LLM_KEY", "secret")
    _, asked, answers = server
    first, second = "Tile(bm=128, bn=32)", "Tile(bm=64, bn=64)"
    answers += [_said({"kernels": [first, second]}), _said(f"Try\n{json.dumps({'kernels': []})}")]
    search = _model(server)
    assert search.suggest() == first
    search.observe(first, 0.97)
    assert search.suggest() == second
    search.observe(second, 0.99)
    assert search.suggest() not in (first, second, None)  # the search without a model goes on
    assert search.best[0] == first
    facts = [json.loads(a["messages"][1]["content"]) for a in asked]
    assert asked[0]["path"] == "/v1/chat/completions" and asked[0]["key"] == "Bearer secret"
    assert asked[0]["model"] == "tiny" and facts[0]["launch"] == "gemm F16 M=3"
    assert facts[0]["device"] == "H200" and facts[0]["kernels"].keys() == PRICES.keys()
    assert facts[1]["measured"] == {first: 0.97, second: 0.99}
    assert first not in facts[1]["kernels"]


@pytest.mark.parametrize(
    "answer",
    [
        500, 404, b"", b"no JSON", b"[]", b"{}", b'{"choices": [3]}', _said("no JSON"),
        _said("[1]"),
        _said({"kernels": 3}), _said({"kernels": [3, None, "Tile(bm=7)", "rm -rf /"]}),
        _said({"names": []}), b"[" * 100_000, _said("{" * 50_000),
    ],
    ids=range(14),
)  # fmt: skip
def test_bad_answers_cost_nothing_but_themselves(server: Server, answer: bytes | int) -> None:
    url, asked, answers = server
    answers.append(answer)
    search = _model(server)
    tried = _all(search)
    assert tried == _all(Bayesian(PRICES)) and len(asked) == 2
    assert search.complaint.startswith(url.rstrip("/"))


def test_a_server_that_is_not_there_is_not_waited_for() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        gone = f"http://127.0.0.1:{http.server_port}/v1"
    search = LanguageModel(PRICES, endpoint=Endpoint.of(gone, "tiny"))
    assert _all(search) == _all(Bayesian(PRICES)) and search.complaint.startswith(gone)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:8000", "ftp://x"])
def test_only_http_is_asked(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of a language model; give --endpoint"):
        Endpoint.of(url, "tiny")


def test_proposers_have_names(server: Server) -> None:
    for name, kind in proposers.NAMES.items():
        assert type(proposers.make(name)(PRICES, [], "", "")) is kind
    made = proposers.make(proposers.LLM, Endpoint.of(server[0], "tiny"))(PRICES, [], "", "")
    assert isinstance(made, LanguageModel)

"""A language model as a proposer: any server with the chat interface of OpenAI.

It gets what the launch computes, the device, the kernels with their prices and every measurement,
as JSON, and answers with names of kernels. What it answers is data: names that were not offered, or
were tried, are left out, and after some answers without any other the Bayesian search goes on.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx.errors import UsageError
from tracea_onnx.tuning.bayesian import Bayesian
from tracea_onnx.tuning.proposer import Hint

#: Kernels that are asked for at a time, and useless answers after which nothing is asked.
_AT_A_TIME, _PATIENCE = 4, 2
_TIMEOUT, _LONGEST = 60.0, 1 << 20
_TASK = (
    "You tune kernels. Choose those among 'kernels' that are most likely to be faster than all in "
    "'measured' (times over that of the kernel in use; below 1 is faster). Answer with JSON alone: "
    '{"kernels": ["<name as given>", ...]}, at most %d names, the most promising first; an empty '
    "list where nothing promises more."
)


@dataclass(frozen=True)
class Endpoint:
    """Address of a language model. key: "" where the server asks for none."""

    url: str
    model: str
    key: str = ""

    @classmethod
    def of(cls, url: str, model: str) -> Endpoint:
        """The key is that of TRACEA_LLM_KEY. Raises UsageError."""
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"'{url}' is no address of a language model",
                "give --endpoint http://HOST:PORT/v1 or https://...",
            )
        return cls(url.rstrip("/"), model, os.environ.get("TRACEA_LLM_KEY", ""))

    def ask(self, task: str, facts: Mapping[str, Any]) -> str:
        """The text of one answer. Raises OSError, ValueError."""
        body = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": task},
                {"role": "user", "content": json.dumps(facts)},
            ],
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                found = json.loads(answer.read(_LONGEST))
            return str(found["choices"][0]["message"]["content"])
        except (http.client.HTTPException, LookupError, TypeError, RecursionError) as e:
            raise ValueError(str(e)) from None


class LanguageModel(Bayesian):
    """launch, device: in words. `complaint`: what the last useless answer was, "" without one."""

    def __init__(
        self,
        prices: Mapping[str, float],
        hints: Sequence[Hint] = (),
        *,
        endpoint: Endpoint,
        launch: str = "",
        device: str = "",
    ) -> None:
        super().__init__(prices, hints)
        self._endpoint, self._launch, self._device = endpoint, launch, device
        self._queue: list[str] = []
        self._useless = 0
        self.complaint = ""

    def suggest(self) -> str | None:  # noqa: D102 -- as of `Proposer`
        left = set(self.left)
        while left and self._useless < _PATIENCE:
            self._queue = [n for n in self._queue if n in left]
            if self._queue:
                return self._queue.pop(0)
            self._ask(left)
        return super().suggest()

    def _ask(self, left: set[str]) -> None:
        facts = {
            "launch": self._launch,
            "device": self._device,
            "kernels": {n: round(self.prices[n] / self.prices[self.first], 4) for n in self.left},
            "measured": {n: round(math.exp(y), 4) for n, y in self.seen.items()},
            "elsewhere": {h.name: round(h.ratio, 4) for h in self.hints[:_AT_A_TIME]},
        }
        try:
            said = self._endpoint.ask(_TASK % _AT_A_TIME, facts)
            named = json.loads(said[said.find("{") : said.rfind("}") + 1])["kernels"]
            found = [n for n in named if isinstance(n, str) and n in left]
        except urllib.error.HTTPError as e:
            found, self.complaint = [], f"{self._endpoint.url}: {e.code} {e.reason}"
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as e:
            found, self.complaint = [], f"{self._endpoint.url}: {str(e) or type(e).__name__}"
        else:
            self.complaint = "" if found else f"{self._endpoint.url}: no kernel that was offered"
        self._queue = list(dict.fromkeys(found))[:_AT_A_TIME]
        self._useless = 0 if found else self._useless + 1

"""The search for the fastest kernel: finds it, or one as good, by few measurements, whatever the
prices said.
"""

from __future__ import annotations

import math
import random

import pytest

from tracea_onnx.tuning.bayesian import Bayesian as Search


def _drawn(seed: int, count: int = 24) -> tuple[dict[str, float], dict[str, float]]:
    """Prices, and times that they err from: kinds alike, and each kernel by itself."""
    r = random.Random(seed)
    prices = {
        f"{kind}(n={k})": r.uniform(1000, 1350)
        for k in range(count // 2)
        for kind in ("Split", "Whole")
    }
    kinds = {kind: math.exp(r.gauss(0, 0.08)) for kind in ("Split", "Whole")}
    return prices, {
        n: p * kinds[n.partition("(")[0]] * math.exp(r.gauss(0, 0.06)) for n, p in prices.items()
    }


def _run(search: Search, times: dict[str, float], noise: float, r: random.Random) -> int:
    count = 0
    while (name := search.suggest()) is not None:
        assert name not in search.seen
        search.observe(
            name,
            times[name] / times[search.first] * math.exp(r.gauss(0, noise))
            if name != search.first
            else 1.0,
        )
        count += 1
    return count


def test_it_comes_near_the_fastest_by_few_measurements() -> None:
    regrets, counts = [], []
    for seed in range(40):
        prices, times = _drawn(seed)
        search = Search(prices)
        counts.append(_run(search, times, 0.005, random.Random(seed)))
        regrets.append(times[search.best[0]] / min(times.values()))
    assert sum(regrets) / len(regrets) < 1.01 and max(regrets) < 1.06
    assert sum(counts) / len(counts) < 16  # of 23 that could be measured


def test_the_first_is_the_one_with_the_lowest_price() -> None:
    search = Search({"A(n=1)": 11.0, "B(n=1)": 10.0, "C(n=1)": 30.0})
    assert search.first == "B(n=1)" and search.best == ("B(n=1)", 1.0)
    assert search.names == ["B(n=1)", "A(n=1)"]  # nothing is 3 times as fast as its price


def test_a_kind_that_was_slower_than_its_price_is_not_tried_for_long() -> None:
    search = Search({f"{kind}(n={k})": 100.0 + k for kind in "AB" for k in range(8)})
    tried = []
    while (name := search.suggest()) is not None:
        tried.append(name)
        search.observe(name, 1.3 if name.startswith("B") else 1.0)
    assert 1 <= sum(name.startswith("B") for name in tried) <= 2


def test_what_cannot_be_measured_is_not_proposed_again() -> None:
    search = Search({"A(n=1)": 10.0, "A(n=2)": 10.1})
    assert search.suggest() == "A(n=1)"
    search.drop("A(n=1)")
    assert search.suggest() == "A(n=2)"
    search.drop("A(n=2)")
    assert search.suggest() is None and search.best == ("A(n=1)", 1.0)


def test_what_runs_now_may_be_slower_than_all_of_them() -> None:
    """As where it was chosen for other sizes: the first is measured, too, and the others are
    expected to gain as much.
    """
    search = Search({f"A(n={k})": 100.0 + 4 * k for k in range(6)})
    assert search.suggest() == search.first == "A(n=0)"
    search.observe("A(n=0)", 0.8)
    name, ratio = search.best
    assert name == "A(n=0)" and ratio == pytest.approx(0.8) and search.suggest() == "A(n=1)"


@pytest.mark.parametrize("ratio", [0.9, 1.2])
def test_the_best_is_what_was_measured(ratio: float) -> None:
    search = Search({"A(n=1)": 10.0, "A(n=2)": 10.1})
    search.observe("A(n=1)", 1.0)
    search.observe("A(n=2)", ratio)
    assert search.best == (("A(n=2)", pytest.approx(ratio)) if ratio < 1 else ("A(n=1)", 1.0))

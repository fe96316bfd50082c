"""The harness of the benchmarks, and that the commands in the documentation name programs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from benchmarks import harness

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def test_ratios_are_paired_within_a_round() -> None:
    """A machine that becomes slower from round to round changes neither ratio nor interval."""
    calls = 0

    def sampler(us: float) -> harness.Sampler:
        def sample() -> float:
            nonlocal calls
            calls += 1
            return us * ((calls - 1) // 3)

        return sample

    times = harness.interleaved({"ours": sampler(2), "a": sampler(3), "b": sampler(1)}, rounds=40)
    assert times.ratios == {"a": (1.5, 1.5, 1.5), "b": (0.5, 0.5, 0.5)}
    assert times.best == "b"


def test_rounds_are_in_random_order_and_repeatable() -> None:
    def orders(seed: int) -> list[str]:
        called: list[str] = []

        def sampler(name: str) -> harness.Sampler:
            def sample() -> float:
                called.append(name)
                return 1.0

            return sample

        harness.interleaved({n: sampler(n) for n in ("ours", "a", "b")}, rounds=20, seed=seed)
        return called[3:]

    first = orders(1)
    rounds = [tuple(first[k : k + 3]) for k in range(0, len(first), 3)]
    assert len(rounds) == 20
    assert all(set(r) == {"ours", "a", "b"} for r in rounds)
    assert len(set(rounds)) > 2
    assert first == orders(1) != orders(2)


def test_an_interval_holds_the_median() -> None:
    assert harness.median_interval([1.0, 2.0, 9.0]) == (2.0, 1.0, 9.0)
    middle, low, high = harness.median_interval([float(k) for k in range(101)])
    assert (middle, low, high) == (50.0, 40.0, 60.0)


def test_a_report_is_written_after_each_row(tmp_path: Path) -> None:
    args = harness.parser("").parse_args(["--json", str(tmp_path / "rows.json")])
    report = harness.Report("program", args, device=False)
    report.row("x", "text", times=harness.Times({"ours": 1.0}, {}, {"peer": "absent"}))
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["program"] == "program" and "onnxruntime" in written["machine"]
    assert written["rows"][0]["times"]["failed"] == {"peer": "absent"}
    assert report.end() == 0
    report.fail("y", "it differs")
    assert report.end() == 1
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][1]["failed"] == "it differs"


def test_commands_of_the_documentation_exist() -> None:
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(
            r"(?:python -m|`)\s*((?:benchmarks|tools|tests)\.[\w.]*\w)", page.read_text()
        )
    }
    assert len(named) > 10
    missing = [n for n in sorted(named) if importlib.util.find_spec(n[1]) is None]
    assert not missing


def test_paths_of_the_documentation_exist() -> None:
    """But for those in examples, which are indented."""
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(
            r"`((?:benchmarks|examples|fusion_rules|kernels|models|scheduler|tests|tools|tracea_onnx)"
            r"/[\w/]+\.(?:py|cc|h|cuh))\b",
            re.sub(r"^    .*", "", page.read_text(), flags=re.MULTILINE),
        )
    }
    assert len(named) > 60
    assert not [n for n in sorted(named) if not (ROOT / n[1]).is_file()]

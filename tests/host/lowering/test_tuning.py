"""Tuning records on disk: what is kept, for which GPUs, and that a Plan from the cache is not used
when the record has changed.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, StringStringEntryProto, helper

from tests.backend.cuda.cuda_requests import request
from tests.host.pipeline_models import parse
from tracea_onnx._version import __version__
from tracea_onnx.cli import main
from tracea_onnx.codegen import backend, kernel_choice, tuning_records, tuning_store
from tracea_onnx.codegen.kernel_choice import Choices
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.codegen.tuning_records import Measured, Trial, Verdict
from tracea_onnx.compiler import plan_cache
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.runtime import device_caps, host_device, nvrtc
from tracea_onnx.runtime.device_caps import usual
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.tuning import exact, measure, proposers
from tracea_onnx.tuning.search import History, Kind, Search

ONE = Measured("HopperTile(bm=128)", 3.5, 4.0, [{"batch": 8}])
H200 = usual(90, 132)


@pytest.fixture(autouse=True)
def fresh_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_nothing_is_known_at_first() -> None:
    assert (
        tuning_records.load(H200) == {} and tuning_records.choices(H200) == kernel_choice.BY_PRICE
    )
    assert tuning_records.listed() == [] and tuning_records.clear() == 0


def test_records_are_kept_by_kind_of_gpu() -> None:
    tuning_records.add(H200, {"a": ONE})
    assert tuning_records.load(H200) == {"a": ONE}
    assert tuning_records.choices(H200) == Choices(
        {"a": "HopperTile(bm=128)"}, None, ({"batch": 8},)
    )
    named = replace(H200, identity="NVIDIA H200, 150754820096 bytes, driver 13000")
    for other in (
        usual(90, 114),
        usual(80, 132),
        named,
        replace(named, identity="NVIDIA H200, 150754820096 bytes, driver 12080"),
    ):
        assert tuning_records.load(other) == {}


def test_another_version_of_the_kernels_or_of_nvrtc_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning_records.add(H200, {"a": ONE})
    for module, name, value in (
        (tuning_records, "__version__", "999"),
        (nvrtc, "present", lambda: "99.9"),
    ):
        with monkeypatch.context() as m:
            m.setattr(module, name, value)
            assert tuning_records.load(H200) == {}
    assert tuning_records.load(H200) == {"a": ONE}


def test_one_model_never_takes_from_another() -> None:
    """The launches that two models share are theirs at the sizes of both, with the kernel that
    gains more.
    """
    better = Measured("SplitTile(rows=64)", 1.0, 2.0, [{"rows": 3, "sequence": 128}])
    worse = Measured("HopperTile(bm=64)", 1.9, 2.0, [{"n": 1}, {"batch": 8}])
    tuning_records.add(H200, {"a": ONE, "b": ONE, "c": ONE})
    tuning_records.add(H200, {"b": better, "c": worse})
    found = tuning_records.load(H200)
    assert found["a"] == ONE
    assert found["b"] == replace(better, sizes=[{"batch": 8}, {"rows": 3, "sequence": 128}])
    assert found["c"] == replace(ONE, sizes=[{"batch": 8}, {"n": 1}])
    assert tuning_records.choices(H200).sizes == (
        {"batch": 8},
        {"n": 1},
        {"rows": 3, "sequence": 128},
    )


def test_neither_a_full_nor_a_cleared_cache_takes_a_record() -> None:
    tuning_records.add(H200, {"a": ONE})
    cache = Cache(limit=1000)
    assert cache.put("k", bytes(900)) and cache.put("l", bytes(900))
    assert main.main(["cache", "clear"]) == 0 and cache.entries() == []
    assert tuning_records.load(H200) == {"a": ONE}
    assert main.main(["cache", "clear", "--tuning"]) == 0
    assert tuning_records.load(H200) == {} and tuning_records.listed() == []


def test_records_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tuning_records.add(replace(H200, identity="NVIDIA H200, driver 13000"), {"a": ONE, "b": ONE})
    for action, says in (("list", "NVIDIA H200, driver 13000"), ("size", "1 devices, 2 launches")):
        assert main.main(["cache", action, "--tuning"]) == 0
        assert says in capsys.readouterr().err
    assert main.main(["cache", "size", "--tuning", "--folder", "x"]) == UsageError.exit_code


_ADDER = """
import sys
from tests.host.lowering.test_tuning import H200, ONE
from tracea_onnx.codegen import tuning_records
for k in range(25):
    tuning_records.add(H200, {f"{sys.argv[1]} {k}": ONE})
"""


def test_two_processes_that_tune_at_once_lose_nothing() -> None:
    root = Path(__file__).resolve().parents[3]
    adders = [subprocess.Popen([sys.executable, "-c", _ADDER, str(k)], cwd=root) for k in range(2)]
    assert [p.wait() for p in adders] == [0, 0]
    assert len(tuning_records.load(H200)) == 50


def _changed(statement: str, *values: object) -> None:
    folder = tuning_records.default_folder()
    assert folder is not None
    with closing(sqlite3.connect(folder / tuning_store.NAME, isolation_level=None)) as db:
        db.execute(statement, values)


@pytest.mark.parametrize("data", [b"", b"nothing" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_record_that_cannot_be_read_is_none(data: bytes) -> None:
    path = tuning_records.add(H200, {"b": ONE})
    path.write_bytes(data)
    assert (
        tuning_records.load(H200) == {}
        and tuning_records.choices(H200) == kernel_choice.BY_PRICE
        and tuning_records.trials(H200) == []
        and tuning_records.similar(H200) == []
    )
    tuning_records.add(H200, {"a": ONE})
    assert tuning_records.load(H200) == {"a": ONE}
    aside = path.with_name(f"{path.name}.damaged")
    assert aside.exists() == bool(data)


@pytest.mark.parametrize(
    "statement",
    ["DROP TABLE kept", "ALTER TABLE kept RENAME COLUMN us TO them", "DROP TABLE trials"],
)
def test_a_database_of_another_kind_is_set_aside(statement: str) -> None:
    tuning_records.add(H200, {"b": ONE})
    _changed(statement)
    tuning_records.load(H200)
    tuning_records.add(H200, {"a": ONE})
    assert tuning_records.load(H200) == {"a": ONE}


def test_a_database_with_a_damaged_page_is_read_or_set_aside() -> None:
    """In the header, in a table, in an index."""
    path = tuning_records.add(H200, {"a": ONE})
    tried = tuning_records.Trial("a", "k", tuning_records.Verdict.OK, 1.0, 2.0)
    tuning_records.note(H200, [tried], {})
    whole = path.read_bytes()
    used = [at for at in range(len(whole)) if whole[at]]
    for k, at in enumerate(used[:: max(len(used) // 50, 1)]):
        other = whole[at] ^ (0x55, 0xA5)[k % 2]
        path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
        tuning_records.trials(H200)
        tuning_records.similar(H200)
        tuning_records.history()
        tuning_records.exported()
        tuning_records.add(H200, {"b": ONE})
        assert tuning_records.load(H200)["b"] == ONE


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        ("kernel", 3), ("kernel", "no name"), ("kernel", b"\xff("), ("us", "four"), ("us", -1.0),
        ("us", 1e300), ("usual_us", 0), ("sizes", "[3]"), ("sizes", "{}"), ("sizes", "[" * 100_000),
        ("sizes", '[{"n": -1}]'), ("sizes", f'[{{"n": {10**30}}}]'), ("sizes", b"\xff"),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_entry_takes_no_other_with_it(column: str, odd: object) -> None:
    tuning_records.add(H200, {"a": ONE, "b": ONE})
    _changed(f"UPDATE kept SET {column} = ? WHERE launch = 'b'", odd)
    assert tuning_records.load(H200) == {"a": ONE}
    tuning_records.add(H200, {"b": ONE})
    assert tuning_records.load(H200) == {"a": ONE, "b": ONE}


def test_a_process_that_holds_the_database_is_waited_for_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning_store, "_PATIENCE", 0.1)
    path = tuning_records.add(H200, {"a": ONE})
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(TraceaError, match=r"the tuning record cannot be kept: .* is locked"):
            tuning_records.add(H200, {"b": ONE})
        assert tuning_records.load(H200) == {"a": ONE}
        db.execute("ROLLBACK")
    tuning_records.add(H200, {"b": ONE})
    assert tuning_records.load(H200) == {"a": ONE, "b": ONE}


def test_what_an_earlier_version_left_is_taken_over_once() -> None:
    folder = tuning_records.default_folder()
    assert folder is not None
    folder.mkdir(parents=True, mode=0o700)
    head = {"device": "NVIDIA H200, driver 13000", "nvrtc": nvrtc.present(), "version": __version__}
    whole = {"kernel": "Tile(2)", "us": 1.0, "usual_us": 2.0, "sizes": [{"n": 3}]}
    odd = ({"kernel": "Tile(2)"}, 3, {**whole, "us": 10**400}, {**whole, "us": "x"})
    launches = {"a": whole, **{f"odd {k}": one for k, one in enumerate(odd)}}
    (folder / "0.json").write_text(json.dumps({**head, "launches": launches}))
    (folder / "1.json").write_bytes(b"[" * 100_000)
    device = replace(H200, identity="NVIDIA H200, driver 13000")
    assert tuning_records.load(device) == {"a": Measured("Tile(2)", 1.0, 2.0, [{"n": 3}])}
    assert not list(folder.glob("*.json"))
    (record,) = tuning_records.listed()
    assert (record.device, record.launches) == ("NVIDIA H200, driver 13000", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_read() -> None:
    path = tuning_records.add(H200, {"a": ONE})
    path.parent.chmod(0o500)
    try:
        assert tuning_records.load(H200) == {"a": ONE}
        with pytest.raises(TraceaError, match="cannot be written"):
            tuning_records.add(H200, {"b": ONE})
    finally:
        path.parent.chmod(0o700)


def test_a_database_on_read_only_media_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `immutable`, which takes no file beside it."""
    path = tuning_records.add(H200, {"a": ONE})
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda p, mode, **kw: not mode & os.W_OK and real(p, mode, **kw)
    )
    assert tuning_records.load(H200) == {"a": ONE}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


_TRIALS = [
    Trial("a", "Tile(1)", Verdict.OK, 1.0, 2.0, 1.0),
    Trial("a", "Tile(2)", Verdict.CRASH, at=2.0),
    Trial("b", "Tile(1)", Verdict.PRUNED, 5.0, 2.0, 3.0),
]
_WHAT = {"a": {"family": "gemm", "dtype": "F16", "ints": {"M": 3}}}


def test_every_trial_is_kept_and_found_by_other_devices() -> None:
    tuning_records.note(H200, _TRIALS, _WHAT)
    assert tuning_records.trials(H200) == _TRIALS
    assert tuning_records.trials(usual(80)) == []
    assert tuning_records.similar(usual(80)) == [(_WHAT["a"], _TRIALS[0])]
    assert tuning_records.load(H200) == {}  # a trial is no choice


def test_records_go_to_another_machine_and_are_merged_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    better = Measured("SplitTile(rows=64)", 1.0, 2.0, [{"rows": 3}])
    tuning_records.add(H200, {"a": better, "b": ONE})
    tuning_records.note(H200, _TRIALS, _WHAT)
    sent = json.loads(json.dumps(tuning_records.exported()))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    tuning_records.add(H200, {"a": ONE, "c": ONE})
    for _ in range(2):  # what is there already is not added again
        assert tuning_records.imported(sent, "x") == 2
        found = tuning_records.load(H200)
        assert found["a"] == replace(better, sizes=[*ONE.sizes, *better.sizes])
        assert found.keys() == {"a", "b", "c"} and tuning_records.trials(H200) == _TRIALS


def test_records_are_carried_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{k}.json") for k in range(3)]
    for k, device in enumerate((H200, usual(80))):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / str(k)))
        tuning_records.add(device, {"a": ONE})
        tuning_records.note(device, _TRIALS, _WHAT)
        assert main.main(["tune", "export", files[k]]) == 0
    assert main.main(["tune", "merge", files[2], *files[:2]]) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "fleet"))
    capsys.readouterr()
    assert main.main(["tune", "history"]) == 0
    assert "nothing was tried yet" in capsys.readouterr().err
    assert main.main(["tune", "import", files[2]]) == 0
    assert tuning_records.load(H200) == tuning_records.load(usual(80)) == {"a": ONE}
    assert main.main(["tune", "history", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "gemm F16 M=3" in err and "crash" in err
    assert [t["verdict"] for t in json.loads(out)] == 2 * ["ok", "crash", "pruned"]


def test_reports_have_every_trial_and_run_no_name_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tune", "report", str(tmp_path / "empty.html")]) == 0
    assert "Nothing was tried yet." in (tmp_path / "empty.html").read_text()
    odd = Trial("b", "Tile('<script>alert(1)</script>')", Verdict.OK, 3.0, 2.0, 4.0)
    tuning_records.note(H200, [*_TRIALS, odd], _WHAT)
    for suffix in ("html", "csv", "json"):
        assert main.main(["tune", "report", str(tmp_path / f"r.{suffix}")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page and "://" not in page
    assert "gemm F16 M=3" in page and "1 ok, 1 crash" in page and page.count("<svg") == 2
    assert "<code>Tile(1)</code> takes 0.500 of the time" in page
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert [(r["kernel"], r["verdict"], r["us"]) for r in rows] == [
        ("Tile(1)", "ok", "1.0"), ("Tile(2)", "crash", ""), ("Tile(1)", "pruned", "5.0"),
        (odd.kernel, "ok", "3.0"),
    ]  # fmt: skip
    best = json.loads((tmp_path / "r.json").read_text())
    assert [(b["what"], b["kernel"], b["ratio"]) for b in best] == [
        ("gemm F16 M=3", "Tile(1)", 0.5), ("", odd.kernel, 1.5),
    ]  # fmt: skip
    capsys.readouterr()
    assert main.main(["tune", "report", str(tmp_path / "r.pdf")]) == 2
    assert "r.pdf would be of no known form; end it with .html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export"], "0 files were given; write tracea-onnx tune export FILE"),
        (["history", "x"], "1 files were given; write tracea-onnx tune history"),
        (["merge", "x"], "1 files were given; write tracea-onnx tune merge INTO FILE"),
        (["import", "/nowhere/x"], "/nowhere/x cannot be read (No such file or directory)"),
        (["export", "/nowhere/x"], "/nowhere/x cannot be written (No such file or directory)"),
        (["x.onnx", "y.onnx"], "'y.onnx' follows a model; tune one model at a time"),
    ],
)
def test_what_tune_cannot_do_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tune", *arguments]) != 0
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("data", [3, [], {}, {"format": "of others"}], ids=str)
def test_what_is_no_export_is_one_line(data: object) -> None:
    with pytest.raises(UsageError, match=r"^x.json holds no tuning records; make it with"):
        tuning_records.imported(data, "x.json")


def test_odd_entries_of_an_export_are_left_out() -> None:
    tuning_records.add(H200, {"a": ONE})
    sent = tuning_records.exported()
    (part,) = sent["devices"]
    part["kept"] |= {"odd": {"kernel": "rm -rf /", "us": 1, "usual_us": 2, "sizes": []}, "b": 3}
    part["trials"] = [3, {"launch": "a"}, {**vars(_TRIALS[0]), "verdict": "fine"}]
    sent["launches"] = {"a": 3, "b": {"family": "gemm", "dtype": "F16", "ints": {"M": "x"}}}
    sent["devices"] += [3, {"device": ["a"]}, {"device": [1] * 5}, {"device": ["x"] * 5, "kept": 3}]
    assert tuning_records.imported(sent, "x") == 1
    assert tuning_records.load(H200) == {"a": ONE} and tuning_records.trials(H200) == []


def test_a_folder_of_others_is_not_used(tmp_path: Path) -> None:
    path = tuning_records.add(H200, {"a": ONE})
    path.parent.chmod(0o777)
    assert tuning_records.load(H200) == {}
    with pytest.raises(TraceaError, match="open to other users"):
        tuning_records.add(H200, {"b": ONE})
    with pytest.raises(TraceaError, match="open to other users"):
        tuning_records.require()


def test_a_cached_plan_is_not_used_with_another_record() -> None:
    model = parse("agraph (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    props = {"backend": "cuda", "arch": "90", "sms": "132"}
    helper.set_model_props(model, {**props, "digest": "of its nodes"})
    request = model.SerializeToString()
    plan_cache.Slot(request).put([], b"pack")
    assert plan_cache.Slot(request).get() == b"pack"
    device = device_caps.of_request(props)
    tuning_records.add(device, {"a": ONE})
    assert plan_cache.Slot(request).get() is None
    tuning_records.clear()
    assert plan_cache.Slot(request).get() == b"pack"


def test_on_the_cpu_threads_matter_to_a_cached_plan_only_where_there_are_records() -> None:
    model = parse("agraph (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")

    def slot(threads: str) -> plan_cache.Slot:
        props = {"backend": "cpu", "isa": "base", "threads": threads, "digest": "of its nodes"}
        helper.set_model_props(model, props)
        return plan_cache.Slot(model.SerializeToString())

    slot("1").put([], b"pack")
    assert slot("2").get() == b"pack"
    tuning_records.add(host_device.device("base", 1), {"a": ONE})
    assert slot("1").get() is None
    slot("1").put([], b"tuned")
    assert slot("1").get() == b"tuned" and slot("2").get() is None


@pytest.mark.parametrize("head", [b"{", b"[[" * 100_000, b"\xff", b"[]", b"1"])
def test_a_cached_plan_with_a_damaged_head_is_not_used(tmp_path: Path, head: bytes) -> None:
    """Whoever damages an entry can also write its checksum."""
    model = parse("agraph (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    helper.set_model_props(model, {"digest": "of its nodes", "cache_dir": str(tmp_path)})
    slot = plan_cache.Slot(model.SerializeToString())
    slot.put([], b"pack")
    slot._cache.put(slot._key or "", head + b"\npack")
    assert slot.get() is None


def _graph() -> Graph:
    model: ModelProto = parse(
        (
            "agraph (float[batch, 3, h, 8] x, float[batch, 'n'] u) => (float[batch, 3, h, 8] y) { "
            "y = Relu(x) }"
        ).replace("'n'", "n")
    )
    model.metadata_props.append(StringStringEntryProto(key="backend", value="cuda"))
    return Graph(model)


def test_sizes_of_symbols_follow_from_shapes() -> None:
    assert measure.sizes_of(_graph(), {"x": (2, 3, 5, 8), "u": (2, 7)}) == {
        "batch": 2,
        "h": 5,
        "n": 7,
    }


@pytest.mark.parametrize(
    ("shapes", "line"),
    [
        ({}, "the size of axis 0 of input 'x' is not known; give it as --input-shape x:1,3,1,8"),
        (
            {"x": (2, 3, 5, 8)},
            "the size of axis 1 of input 'u' is not known; give it as --input-shape u:1,1",
        ),
        ({"v": (1,)}, "the model has no input called 'v'; its inputs are x, u"),
        ({"x": (2, 3, 5)}, "input 'x' has rank 4, not 3; correct --input-shape"),
        ({"x": (2, 4, 5, 8)}, "input 'x' has a fixed dimension 3, not 4; correct --input-shape"),
        (
            {"x": (2, 3, 5, 8), "u": (3, 7)},
            "dimension 'batch' would be both 2 and 3; correct --input-shape",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_one_line(shapes: dict[str, tuple[int, ...]], line: str) -> None:
    with pytest.raises(UsageError) as e:
        measure.sizes_of(_graph(), shapes)
    assert str(e.value) == line


_PRODUCT = request(
    "gemm", DType.F16, {"M": 5, "N": 8, "K": 16, "ldx": 16, "ldy": 8}, operands=("x", "w", "y")
)


def _subject(keys: str, sizes: dict[str, int]) -> measure._Subject:
    part = measure.Part({}, [], {}, [], sizes, list(keys), dict.fromkeys(keys, _PRODUCT))
    return measure._Subject(backend.get("cuda"), ModelProto(), sizes, [part], 0, H200)


def _keep(subject: measure._Subject, chosen: dict[str, str], result: measure.Tuned) -> None:
    """The last measurement of these kernels."""
    prices = {"Tile(1)": 1.0, "Tile(2)": 1.0}
    kinds = [Kind(key, "", _WHAT["a"], 1, prices) for key in subject.asked]
    search = Search(H200, kinds, proposers.make("grid"))
    measure.keep(measure.decision(subject, chosen, list(subject.asked)), search, result)


@pytest.mark.parametrize(("slower", "kept"), [("", {"a", "b"}), ("a", {"b"}), ("ab", set())])
def test_kernels_that_make_the_whole_slower_are_left_out(
    monkeypatch: pytest.MonkeyPatch, slower: str, kept: set[str]
) -> None:
    """Each is faster by itself, but those in `slower` let the next launch begin later."""

    def compared(_: measure._Subject, records: kernel_choice.Records, __: int) -> measure._Compared:
        total = 100.0 + sum(10.0 if key in slower else -2.0 for key in records)
        return measure._Compared(
            {"a": 9.0, "b": 18.0},
            {key: us * (0.5 if key in records else 1.0) for key, us in (("a", 9.0), ("b", 18.0))},
            [(100.0, total)] * 3,
        )

    monkeypatch.setattr(measure._Subject, "compared", compared)
    result = measure.Tuned(usual(90, 132))
    subject = _subject("abb", {"rows": 5})
    _keep(subject, {"a": "Tile(2)", "b": "Tile(2)"}, result)
    assert tuning_records.load(H200) == {
        key: Measured("Tile(2)", 4.5, 9.0, [{"rows": 5}]) for key in kept
    }
    assert result.kept == len(kept) and result.after == 100.0 - 2.0 * len(kept)
    assert [(x.what, x.count, x.kernel) for x in result.launches] == [
        ("gemm F16 M=5 N=8 K=16", count, "Tile(2)" if key in kept else "")
        for key, count in (("a", 1), ("b", 2))
    ]


def test_tuning_that_finds_nothing_erases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time was left, or the whole was not faster this time."""
    tuning_records.add(H200, {"a": ONE})
    monkeypatch.setattr(
        measure._Subject,
        "compared",
        lambda *_: measure._Compared({"a": 9.0}, {"a": 9.0}, [(9.0, 9.0)]),
    )
    for chosen in ({}, {"a": "Tile(2)"}):
        _keep(_subject("a", {}), chosen, measure.Tuned(H200))
        assert tuning_records.load(H200) == {"a": ONE}


@pytest.mark.parametrize(("noise", "kept"), [(0.0, 1), (0.04, 1), (0.06, 0)])
def test_a_gain_that_is_no_larger_than_the_noise_is_none(
    monkeypatch: pytest.MonkeyPatch, noise: float, kept: int
) -> None:
    """On a machine that does other work, too."""
    monkeypatch.setattr(
        measure._Subject,
        "compared",
        lambda *_: measure._Compared({"a": 9.0}, {"a": 8.0}, [(100.0, 90.0)], noise),
    )
    result = measure.Tuned(H200)
    _keep(_subject("a", {}), {"a": "Tile(2)"}, result)
    assert result.kept == len(tuning_records.load(H200)) == kept


def test_a_kernel_that_takes_longer_at_last_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster when it was tried, and the whole seemed faster with it."""
    later = iter([9.0, 12.0, 12.0, 12.0])

    def compared(_: measure._Subject, records: kernel_choice.Records, __: int) -> measure._Compared:
        us = 8.0 if next(later) == 9.0 else 12.0
        return measure._Compared({"a": 9.0}, {"a": us}, [(100.0, 100.0 if us == 8.0 else 90.0)])

    monkeypatch.setattr(measure._Subject, "compared", compared)
    result = measure.Tuned(H200)
    _keep(_subject("a", {}), {"a": "Tile(2)"}, result)
    assert result.kept == 0 and tuning_records.load(H200) == {}


def test_results_that_differ_keep_the_record_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(
        _: measure._Subject, records: kernel_choice.Records, __: int
    ) -> measure._Compared | Verdict:
        return Verdict.WRONG if records else measure._Compared({"a": 9.0}, {}, [(9.0, 9.0)])

    monkeypatch.setattr(measure._Subject, "compared", compared)
    result = measure.Tuned(usual(90, 132))
    _keep(_subject("a", {}), {"a": "Tile(2)"}, result)
    assert (
        tuning_records.load(H200) == {}
        and result.kept == 0
        and result.before == result.after == 9.0
    )


class _Fake(measure._Subject):
    """Kernels T(1) to T(6) for each launch: T(3) crashes, T(4) is wrong, the others take their
    number of tenths of the usual one's time.
    """

    def start(self) -> None:
        pass

    def kernels(self, request: Request) -> dict[str, float]:
        return {f"T({k})": 10.0 + 0.1 * k for k in range(1, 7)}

    def differs(self, key: str, request: Request, name: str) -> bool:
        return name != "T(1)"

    def compared(self, records: kernel_choice.Records, turns: int) -> measure._Compared | Verdict:
        for name, verdict in (("T(3)", Verdict.CRASH), ("T(4)", Verdict.WRONG)):
            if name in records.values():
                return verdict
        us = {key: 10.0 * float(name[2:-1]) / 10 for key, name in records.items()}
        other = {"a": 10.0, "b": 10.0} | us
        return measure._Compared(
            {"a": 10.0, "b": 10.0}, other, [(20.0, sum(other.values()))] * turns
        )


def _tuned(limit: float, resume: bool = False) -> measure.Tuned:
    result, part = measure.Tuned(H200), _subject("ab", {"rows": 5}).usual
    subject = _Fake(backend.get("cuda"), ModelProto(), {"rows": 5}, part, 0, H200)
    limits = measure._Limit(math.inf, limit)
    measure._tune(subject, proposers.make("grid"), resume, limits, result, lambda _: None)
    return result


def test_every_trial_has_its_verdict_and_is_not_made_again() -> None:
    first = _tuned(math.inf)
    assert first.measured == 10 and first.known == 0
    made = {(t.launch, t.kernel): t.verdict for t in tuning_records.trials(H200)}
    ends = {2: "ok", 3: "crash", 4: "wrong", 5: "ok", 6: "ok"}
    assert made == {(key, f"T({k})"): end for key in "ab" for k, end in ends.items()}
    assert {m.kernel for m in tuning_records.load(H200).values()} == {"T(2)"}
    again = _tuned(math.inf, resume=True)
    assert again.measured == again.kept == 0 and again.known == 12
    assert [(x.kernel, x.after) for x in again.launches] == [("T(2)", 2.0)] * 2
    assert len(tuning_records.trials(H200)) == 12  # with the last ones, of what was chosen


def test_a_search_that_was_killed_before_its_last_measurement_is_settled_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as m:
        m.setattr(measure, "decision", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _tuned(math.inf)
    assert tuning_records.load(H200) == {}
    again = _tuned(math.inf, resume=True)
    assert again.measured == 0 and again.kept == 2
    assert {m.kernel for m in tuning_records.load(H200).values()} == {"T(2)"}


def test_a_search_goes_on_where_its_budget_ended() -> None:
    assert _tuned(2).measured == 2
    later = _tuned(6, resume=True)
    assert later.known == 4 and later.measured == 6  # the first two were measured twice
    assert len({(t.launch, t.kernel) for t in tuning_records.trials(H200)}) == 8


def test_similar_launches_give_hints() -> None:
    what = kernel_choice.described(_PRODUCT) | {"ints": {**_PRODUCT.ints, "M": 10, "N": 16}}
    trial = Trial("other", "T(2)", Verdict.OK, 1.0, 2.0, 1.0)
    tuning_records.note(usual(80), [trial], {"other": what})
    (hint,) = History(H200).hints("a", kernel_choice.described(_PRODUCT))
    assert (hint.name, hint.ratio) == ("T(2)", 0.5) and 0 < hint.distance < 1
    own = Trial("a", "T(3)", Verdict.OK, 1.0, 2.0, 2.0)  # what others found later opens nothing
    tuning_records.note(H200, [own, replace(trial, kernel="T(4)", at=3.0)], {"a": what})
    (hint,) = History(H200).hints("a", kernel_choice.described(_PRODUCT))
    assert hint.name == "T(2)"


@pytest.mark.parametrize(
    ("dtype", "y", "same"),
    [
        (DType.F32, [1.0, -4.0, np.inf], True), (DType.F32, [1.0, -4.05, np.inf], True),
        (DType.F32, [1.0, -4.1, np.inf], False),
        (DType.F32, [1.0, -4.0, 3.0], False), (DType.F32, [1.0, np.nan, np.inf], False),
        (DType.F16, [1.9, -4.0, np.inf], True), (DType.I64, [1, 2, 3], True),
    ],
)  # fmt: skip
def test_results_are_the_same_but_for_rounding(dtype: DType, y: list[float], same: bool) -> None:
    kind = {DType.F32: np.float32, DType.F16: np.float16, DType.I64: np.int64}[dtype]
    x = np.array([1.0, -4.0, np.inf], np.float64) if dtype != DType.I64 else np.array([1, 5, 3])
    assert exact.same(dtype, x.astype(kind), np.array(y).astype(kind)) == same

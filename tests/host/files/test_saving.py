"""Writing models: nothing that is read is destroyed, and several files change together, whatever
happens between.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, numpy_helper

from tests.host.files.test_io import big, saved
from tests.host.pipeline_models import normal, run, same_bits, small_cnn
from tracea_onnx.cli.main import main
from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import external, model_file
from tracea_onnx.pipeline import optimizer


def test_files_to_be_written_are_apart(tmp_path: Path) -> None:
    path = saved(tmp_path)
    source = model_file.load(path)
    data, other = tmp_path / "m.onnx.data", tmp_path / "o.onnx"
    model_file.check_apart(source, path, [tmp_path / "m.pack"])
    model_file.check_apart(source, other, [tmp_path / "o.pack"])
    (tmp_path / "link").symlink_to(path)
    for model, others, says in (
        (data, [], "holds weights of the model that is read"),
        (None, [path], "is the model that is read"),
        (other, [tmp_path / "link"], "is the model that is read"),
        (other, [tmp_path / "." / "o.onnx"], "would be written twice"),
        (other, [tmp_path / "o.onnx.data"], "is to hold the weights of the model that is written"),
        (None, [other, other], "would be written twice"),
    ):
        with pytest.raises(UsageError, match=says):
            model_file.check_apart(source, model, others)


@pytest.mark.parametrize(
    "line",
    [
        "optimize m.onnx --pack m.onnx",
        "optimize m.onnx -o q --pack q",
        "explain m.onnx --html m.onnx",
        "optimize m.onnx -o m.onnx.data",
        "inline m.onnx -o m.onnx.data",
        "verify m.onnx m.onnx --bisect -o m.onnx",
    ],
)
def test_no_command_writes_over_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = saved(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.chdir(path.parent)
    assert main(line.split()) == UsageError.exit_code
    assert "choose another name" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_data_file_of_nobody_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m.onnx.data").write_bytes(b"somebody else's weights")
    with pytest.raises(UsageError, match="may belong to another one"):
        saved(tmp_path)
    (tmp_path / "m.onnx").write_bytes(model_file.serialize(small_cnn()))
    with pytest.raises(UsageError, match="may belong to another one"):
        saved(tmp_path)
    assert (tmp_path / "m.onnx.data").read_bytes() == b"somebody else's weights"


def test_a_model_replaced_with_its_weights_is_the_new_one_in_memory_too(tmp_path: Path) -> None:
    path = saved(tmp_path)
    result = optimizer.optimize(path, output=path, backend="cpu")
    expected = onnx.load(str(path))
    external.load_into_memory(model_file.Source(result.model, result.folder, path), lambda t: True)
    assert [numpy_helper.to_array(t).tobytes() for t in result.model.graph.initializer] == [
        numpy_helper.to_array(t).tobytes() for t in expected.graph.initializer
    ]


def _steps(monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """The process ends before the step number `stop` of those that give files their names."""
    left = [stop]

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def step(*args: object, **kwargs: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            real(*args, **kwargs)

        return step

    for name in ("link", "replace", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_weights_and_model_change_together_wherever_a_kill_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, nameless: bool, fresh: bool
) -> None:
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    old, new = big(), big()
    new.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(
            -numpy_helper.to_array(new.graph.initializer[0]), new.graph.initializer[0].name
        )
    )
    feeds = {"x": normal(2, 64)}
    results = [run(m, feeds) for m in (old, new)]
    seen, reference, code, stop = set(), {}, -1, 0
    for stop in range(20):
        folder = tmp_path / str(stop)
        folder.mkdir()
        path = folder / "m.onnx"
        if not fresh:
            model_file.save(model_file.Source(old), path, external_data="always")
        child = os.fork()
        if child == 0:
            with monkeypatch.context() as m:
                _steps(m, stop)
                model_file.save(model_file.Source(new), path, external_data="always")
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if path.exists():
            model_file.load(path)
            got = run(onnx.load(str(path)), feeds)
            seen.add([same_bits(got, r) for r in results].index(True))
        else:
            assert fresh
        model_file.save(model_file.Source(new), path, external_data="always")  # the next run
        assert sorted(p.name for p in folder.iterdir()) == ["m.onnx", "m.onnx.data"]
        reference = {p.name: p.read_bytes() for p in folder.iterdir()}
        if code == 0:
            break
    assert code == 0 and stop >= 2 and seen == ({1} if fresh else {0, 1})
    model_file.save(model_file.Source(new), tmp_path / "m.onnx", external_data="always")
    assert reference == {name: (tmp_path / name).read_bytes() for name in reference}


_SAVER = """
import sys
from pathlib import Path
import tracea_onnx.model_io.model_file as io
from tests.host.files.test_saving import scaled
for k in range(20):
    io.save(io.Source(scaled(int(sys.argv[2]))), Path(sys.argv[1]), external_data="always")
"""


def scaled(by: int) -> ModelProto:
    m = big()
    for t in m.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(by * numpy_helper.to_array(t), t.name))
    return m


@pytest.mark.skipif(os.name != "posix", reason="locks")
def test_two_writers_of_one_model_leave_one_of_the_two(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    path = tmp_path / "m.onnx"
    writers = [
        subprocess.Popen([sys.executable, "-c", _SAVER, str(path), str(by)], cwd=root)
        for by in (1, 2)
    ]
    assert [w.wait() for w in writers] == [0, 0]
    got = run(onnx.load(str(path)), {"x": normal(2, 64)})
    assert any(same_bits(got, run(scaled(by), {"x": normal(2, 64)})) for by in (1, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_the_umask_is_read_and_never_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not show the umask")

    def changed(mask: int) -> int:
        raise AssertionError

    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", changed)
        model_file.save(model_file.Source(big()), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o640
    finally:
        monkeypatch.undo()
        os.umask(before)

"""`torch.compile(model, backend="tracea")`: results, strides, aliases and effects are eager mode's,
and the report says what ran where.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from onnx import helper

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
tracea = pytest.importorskip("tracea_onnx.torch")
nn: Any = torch.nn

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    # PyTorch's own, of its parts for one another
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Block(nn.Module):
    """A residual block as torchvision has it, with a projection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2.0)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return self.relu(y)


def compiled(f: Any, **options: Any) -> Any:
    """With a fallback only where a test asks for it."""
    return torch.compile(f, backend="tracea", options={"fallback": 0, "claim": "all", **options})


def same(got: Any, want: Any) -> None:
    """Values within fp32's rounding, types, and strides where the memory has no gaps."""
    if isinstance(want, tuple | list):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        dense = want.numel() == want.untyped_storage().nbytes() // want.element_size()
        assert got.stride() == want.stride() or not dense
        assert got.is_inference() == want.is_inference()
    else:
        assert got == want and type(got) is type(want)


def check(f: Any, *inputs: Any, g: Any = None, **options: Any) -> tuple[Any, Any]:
    """Calls the compiled function (`g`, if it is there) and `f`, each with inputs of its own, which
    are the same afterwards, too.
    """
    ours, theirs = ([_clone(x) for x in inputs] for _ in range(2))
    got = (compiled(f, **options) if g is None else g)(*ours)
    want = f(*theirs)
    same(got, want)
    same(ours, theirs)
    return got, ours


def _clone(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def all_on_provider(graphs: int = 1) -> None:
    report = tracea.report()
    assert len(report.graphs) == len(report.compiled) == graphs, report
    assert all(g.nodes == g.provider_nodes > 0 for g in report.compiled), report


def test_a_cnn() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 32, 1), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    with torch.no_grad():
        check(model, torch.randn(2, 3, 32, 32))
    all_on_provider()


def test_one_session_takes_every_size_of_a_dynamic_batch() -> None:
    model = Block(8, 16, 2).eval()
    g = compiled(model)
    with torch.inference_mode():
        for batch in (3, 2, 7):
            x = torch.randn(batch, 8, 14, 14)
            torch._dynamo.mark_dynamic(x, 0)
            same(g(x), model(x))
    all_on_provider()
    (graph,) = tracea.report().graphs
    assert "any l_x_.shape[0]" in str(graph)
    assert graph.dynamic == ["l_x_.shape[0]"] and graph.calls == 3


def test_every_size_is_dynamic_that_can_be() -> None:
    model = Block(8, 16, 2).eval()
    g = torch.compile(model, backend="tracea", dynamic=True, options={"fallback": 0})
    with torch.no_grad():
        for shape in ((2, 8, 14, 13), (3, 8, 9, 20), (5, 8, 31, 7)):
            check(model, torch.randn(shape), g=g)
    all_on_provider()
    assert len(tracea.report().graphs[0].dynamic) == 3


def test_sizes_become_dynamic_by_themselves() -> None:
    def f(x: Any, y: Any, n: int) -> Any:
        return (x @ y).relu() * n, x.shape[0] * 2, x.flatten() + n

    g = compiled(f)
    with torch.no_grad():
        for rows, n in ((2, 3), (4, 5), (9, 7), (6, 2)):
            check(f, torch.randn(rows, 5), torch.randn(5, 3), n, g=g)
    assert [len(x.dynamic) for x in tracea.report().graphs] == [0, 1]


def test_a_transformer_encoder_layer_with_a_mask() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True).eval()
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 5:] = True
    with torch.inference_mode():
        check(lambda x, m: layer(x, src_key_padding_mask=m), torch.randn(2, 9, 32), mask)
    all_on_provider()


def test_a_graph_break_makes_two_graphs_and_is_reported() -> None:
    def f(x: Any) -> Any:
        y = (x * 2).relu()
        torch._dynamo.graph_break()
        return y.sum(1) + 1

    with torch.no_grad():
        check(f, torch.randn(4, 5))
    all_on_provider(graphs=2)
    assert sum(tracea.report().breaks.values()) == 1
    assert "graph break (1x)" in str(tracea.report())


def test_autograd_runs_in_pytorch_with_a_sentence(said: list[str]) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2))
    g = torch.compile(model, backend="tracea")
    x = torch.randn(3, 5)
    got = g(x)
    got.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    want = model(x)
    want.sum().backward()
    same([got.detach(), *grads], [want.detach(), *(p.grad for p in model.parameters())])
    (graph,) = tracea.report().eager
    assert "autograd records it" in graph.reason
    g(x)
    assert sum("autograd records it" in line for line in said) == 1
    with torch.no_grad():
        same(g(x), model(x))
    assert len(tracea.report().compiled) == 1


def test_no_grad_inside_a_model_is_enough() -> None:
    layer = nn.Linear(5, 3)

    def f(x: Any) -> Any:
        with torch.no_grad():
            return layer(x).relu()

    check(f, torch.randn(2, 5))
    all_on_provider()


@pytest.mark.parametrize(
    ("f", "operator"),
    [
        (lambda x: torch.linalg.eigvalsh(x) + 1, "aten._linalg_eigh.default"),
        (lambda x: torch.special.i0(x) + 1, "prims.bessel_i0.default"),
    ],
)
def test_an_operator_without_a_conversion_is_named(
    f: Callable[..., Any], operator: str, said: list[str]
) -> None:
    with torch.no_grad():
        check(f, torch.eye(4), fallback=1)
    (graph,) = tracea.report().eager
    assert graph.reason == f"torch.onnx has no conversion of the operator {operator}"
    assert sum(operator in line for line in said) == 1


def test_outputs_alias_what_they_alias_in_eager_mode() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x + y
        a, b = z.chunk(2, 1)
        return x, x[1:].t(), a, b, z.view(-1), (x * 2).t(), z.softmax(1)[:, 0], x.sum().expand(3)

    with torch.no_grad():
        got, (x, _) = check(f, torch.randn(4, 6), torch.randn(6))
        assert got[0] is x and got[1].data_ptr() == x[1:].data_ptr()
        got[4].zero_()
        assert not got[2].any() and not got[3].any() and got[5].any()
    all_on_provider()


def test_a_function_that_only_returns_views_of_its_input() -> None:
    with torch.no_grad():
        (got,), (x,) = check(lambda x: (x.view(2, -1)[1],), torch.randn(4, 6))
    assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_images_with_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).eval()
    model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        check(model, x)
    all_on_provider()


def test_operators_in_place() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        z = y.exp()
        v = z[0]
        z.add_(1)
        v.mul_(3)
        x[:, 0] = 5
        return z, x.sum(), x[1]

    with torch.no_grad():
        got, (x, _) = check(f, torch.randn(3, 4), torch.randn(3, 4))
        assert got[2].data_ptr() == x[1].data_ptr()


def test_arguments_that_overlap_are_written_as_in_eager_mode(said: list[str]) -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    g, base = compiled(f), torch.arange(6.0)
    with torch.no_grad():
        assert g(base[:4], base[2:]).tolist() == [6, 8, 8, 10]
        array = base[:4].numpy()
        assert g(torch.from_numpy(array), torch.from_numpy(array)).tolist() == [4, 6, 8, 10]
    assert any("share memory" in line for line in said)


def test_batch_normalization_in_training_mode_is_pytorchs(said: list[str]) -> None:
    ours, theirs, x = nn.BatchNorm1d(3), nn.BatchNorm1d(3), torch.randn(8, 3)
    with torch.no_grad():
        for _ in range(2):
            same(torch.compile(ours, backend="tracea")(x), theirs(x))
    same(list(ours.buffers()), list(theirs.buffers()))
    assert any("training mode; call model.eval()" in line for line in said)


def test_a_wrong_conversion_is_noticed(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tracea_onnx.torch import fast_paths

    monkeypatch.setitem(fast_paths.FAST_PATHS, torch.neg, torch.relu)

    def f(x: Any) -> Any:
        return x.add_(torch.neg(x)), torch.neg(x) + 1

    with torch.no_grad():
        for fallback, verify in ((1, 1), (0, 1), (0, 0)):
            torch.compiler.reset()
            g = compiled(f, fallback=fallback, verify=verify)
            if fallback:
                for _ in range(2):
                    check(f, torch.randn(5), g=g)
                assert "results are not PyTorch's" in tracea.report().eager[0].reason
            elif verify:
                with pytest.raises(Exception, match="results are not PyTorch's"):
                    g(torch.ones(5))
            else:
                assert g(torch.ones(5))[0].tolist() == [2] * 5


def test_weights_that_change_are_noticed(said: list[str]) -> None:
    model = nn.Linear(6, 4)
    g, x = compiled(model), torch.randn(2, 6)
    with torch.no_grad():
        for _ in range(2):
            same(g(x), model(x))
        model.weight.mul_(2)
        for _ in range(2):
            same(g(x), model(x))
        model.load_state_dict(nn.Linear(6, 4).state_dict())
        for _ in range(2):
            same(g(x), model(x))
        model.bias.data = torch.randn(4)
        for _ in range(2):
            same(g(x), model(x))
        assert not list(said)
        for _ in range(5):
            model.bias.add_(1)
            same(g(x), model(x))
    assert any("weights change" in line for line in said)
    all_on_provider()


def test_weights_are_not_copied() -> None:
    from tracea_onnx.torch.session import _value

    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        weight = torch.ones(100, 100).to(dtype)
        value = _value(weight)
        assert value._ortvalue.data_ptr() == weight.data_ptr()
        assert value.element_type() == tracea.devices.ELEMENT_TYPES[dtype]


def test_random_numbers_are_pytorchs(said: list[str]) -> None:
    with torch.no_grad():
        torch.manual_seed(3)
        got = torch.compile(nn.Dropout(0.5), backend="tracea")(torch.ones(50))
        torch.manual_seed(3)
        same(got, nn.Dropout(0.5)(torch.ones(50)))
    assert any("draws random numbers (aten." in line for line in said)


def test_sizes_that_depend_on_data() -> None:
    def f(x: Any) -> Any:
        return x.nonzero(), x[x > 0] * 2, x > 0

    g = compiled(f)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(3):
            x = torch.randn(4, 5)
            for got, want in zip(g(x), f(x), strict=True):
                torch.testing.assert_close(got, want)
    assert len(tracea.report().compiled) == 1


def test_a_graph_that_the_provider_would_gain_nothing_in(said: list[str]) -> None:
    with torch.no_grad():
        same(torch.compile(torch.topk, backend="tracea")(torch.arange(4.0), 2)[1].tolist(), [3, 2])
    assert any("the provider takes none of its" in line for line in said)


def test_tensors_without_elements() -> None:
    with torch.no_grad():
        check(lambda x, y: (x + 1, (x + 1) @ y), torch.zeros(0, 3), torch.randn(3, 2))
        check(lambda x: (x[:, :0] + 1).sum(1), torch.randn(4, 5))


def test_other_types() -> None:
    def f(*xs: Any) -> Any:
        return *(x + x for x in xs), xs[0] > 3, xs[1].reshape(3, 8), xs[2][:0], xs[3].double()

    xs = [(torch.randn(4, 6) * 5).abs().to(t) for t in tracea.devices.ELEMENT_TYPES]
    with torch.no_grad():
        check(f, *(x for x in xs if x.dtype not in (torch.bfloat16, torch.bool)))


def test_a_type_that_onnx_runtime_has_no_kernel_for(said: list[str]) -> None:
    """A light bfloat16 node is left to ONNX Runtime, which has no kernel for it."""

    def f(x: Any) -> Any:
        return x + x

    with torch.no_grad():
        x = torch.randn(5).bfloat16()
        check(f, x, g=torch.compile(f, backend="tracea", options={"fallback": 1}))
        assert any("no session: " in line and "Add" in line for line in said)
        check(f, x)  # with claim=all the provider takes it
    assert [g.provider_nodes for g in tracea.report().compiled] == [1]


def test_threads_share_a_session() -> None:
    model = Block(4, 8, 1).eval()
    g, xs = compiled(model), [torch.randn(2, 4, 9, 9) for _ in range(4)]
    with torch.no_grad():
        wants = [model(x) for x in xs]
        g(xs[0])
    wrong: list[Any] = []

    def work(x: Any, want: Any) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    same(g(x), want)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=p) for p in zip(xs, wants, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    all_on_provider()


def test_a_bad_option_is_one_line() -> None:
    for options, line in (
        ({"speed": 9}, "the backend has no option 'speed'; it has fallback, verify, weights"),
        ({"weights": "gone"}, "option weights='gone' of the backend is not one of: constant"),
        ({"num_threads": "many"}, "num_threads='many' is not a number"),
    ):
        torch.compiler.reset()
        with torch.no_grad(), pytest.raises(Exception, match=line):
            compiled(lambda x: x + 1, **options)(torch.ones(3))


def test_without_a_fallback_a_graph_for_pytorch_is_an_error() -> None:
    with (
        torch.no_grad(),
        pytest.raises(Exception, match=r"would run in PyTorch: .*prims\.bessel_i0"),
    ):
        compiled(torch.special.i0)(torch.ones(3))


NAMED = """
import sys, torch
with torch.no_grad():
    options = {"fallback": 0, "claim": "all"}
    f = torch.compile(lambda x: x.relu() + 1, backend="tracea", options=options)
    y = f(torch.ones(3))
assert y.tolist() == [2, 2, 2]
import tracea_onnx.torch
assert len(tracea_onnx.torch.report().compiled) == 1
"""


def test_the_backend_is_found_by_its_entry_point(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    lines = [f"{k} = {v}\n" for k, v in project["entry-points"]["torch_dynamo_backends"].items()]
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "".join(lines))
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", NAMED], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_sentence_is_printed_where_nobody_listens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracea_onnx.torch import reasons

    monkeypatch.setattr(logging.getLogger("tracea_onnx"), "handlers", [logging.NullHandler()])
    reasons.once("it is heard by some")
    assert not capsys.readouterr().err
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for _ in range(2):
        reasons.once("it is heard by nobody")
    assert capsys.readouterr().err == "it is heard by nobody\n"


def test_memory_of_old_weights_is_not_mistaken_for_theirs() -> None:
    model = nn.Linear(300, 200)
    g, x = compiled(model), torch.randn(2, 300)
    with torch.no_grad():
        for _ in range(4):
            same(g(x), model(x))
            # its memory would be free for the next one
            model.weight = nn.Parameter(torch.randn(200, 300))


def test_other_sessions_of_the_process_are_left_alone() -> None:
    """They may have threads of their own."""
    with torch.no_grad():
        check(Block(4, 8, 1).eval(), torch.randn(2, 4, 9, 9))
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_convolutions_of_bfloat16_are_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a kernel is the device's affair."""
    from tracea_onnx.torch.exported import export

    made = list[Any]()

    def kept(*args: Any) -> Any:
        made.append(export(*args))
        return made[-1]

    monkeypatch.setattr("tracea_onnx.torch.compiled.export", kept)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval().bfloat16()
    with torch.no_grad():
        compiled(model, fallback=1)(torch.randn(2, 3, 16, 16).bfloat16())
    (one,) = made
    onnx.shape_inference.infer_shapes(one.model, check_type=True, strict_mode=True)

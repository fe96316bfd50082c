"""CUDA Plans run without ONNX Runtime on the stand-in of the driver. Run by test_cuda_native.py."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.fake.driver import Log
from tests.fake.plans import HandPlan
from tracea_onnx.codegen.kernel_request import Float32, Int32, Int64, Pointer, TensorMap, Words
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime import cuda_harness
from tracea_onnx.runtime.cuda_harness import LoadedPlan, run_plan

F32 = DType.F32
log = Log()


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + n).standard_normal(n).astype(np.float32)


def chain(n: D.DimLike | None = None) -> HandPlan:
    """y = 3 * (x + x) * x over [n] through two arena buffers."""
    b = HandPlan("chain")
    x, y = b.add_input("x", F32, 1), b.add_output("y")
    b.define_symbol("n", 0, 0)
    size = D.symbol("n")
    s, t = b.arena(4 * size), b.arena(4 * size)
    count = Int32(size)
    blocks = D.ceildiv(size, 32)
    b.kernel("add", [x, x, s, count], blocks)
    b.kernel("mul", [s, x, t, count], blocks, pdl=True)
    b.kernel("scale", [t, y, count, Float32(3.0)], blocks, pdl=True)
    b.finish_output("y", F32, [size])
    return b


def case_device_facts() -> None:
    d = cuda_harness.device(0)
    assert (d.name, d.arch, d.sms) == ("Fake GPU 0", 90, 132)
    with pytest.raises(TraceaError, match=r"^there is no CUDA device 7; this machine has 1$"):
        cuda_harness.device(7)


def case_chain_of_dynamic_shapes() -> None:
    b = chain()
    with LoadedPlan(b.to_json(), b.blobs) as plan:
        for n in (1, 31, 32, 33, 1000, 7, 1, 1000):
            x = vector(n)
            (y,) = plan.run([x])
            np.testing.assert_allclose(y, 6 * x * x, rtol=1e-6)
    b = chain()
    log.take()
    run_plan(b.to_json(), b.blobs, [vector(100)])
    launches = [line for line in log.take() if line.startswith("launch")]
    assert launches == [
        "launch add grid=4,1,1 block=32 smem=0 cluster=1 pdl=0",
        "launch mul grid=4,1,1 block=32 smem=0 cluster=1 pdl=1",
        "launch scale grid=4,1,1 block=32 smem=0 cluster=1 pdl=1",
    ]


def case_empty_grids_are_not_launched() -> None:
    b = chain()
    log.take()
    (y,) = run_plan(b.to_json(), b.blobs, [vector(0)])
    assert y.shape == (0,)
    assert not [line for line in log.take() if line.startswith(("launch", "copy 0"))]
    # One of two kernels of which a run needs one: its other axes may have any size.
    whole = chain()
    plan = whole.to_json()
    plan["run"].append(
        {**plan["run"][0], "grid": [whole.expr(0), whole.expr(70_000), whole.expr(1)]}
    )
    plan["exprs"] = whole.to_json()["exprs"]
    log.take()
    run_plan(plan, whole.blobs, [vector(100)])
    assert len([line for line in log.take() if line.startswith("launch")]) == len(plan["run"]) - 1
    plan["run"][-1]["grid"][0] = whole.expr(1)
    plan["exprs"] = whole.to_json()["exprs"]
    with pytest.raises(
        TraceaError, match="a grid of 70000 blocks along axis 1, of which a GPU has 65535"
    ):
        run_plan(plan, whole.blobs, [vector(100)])


def case_constants_are_prepared_once() -> None:
    """const = 2 * w by an init launch through scratch, read by every run beside a blob and another
    initializer.
    """
    w, c, d = vector(64, 1), vector(64, 2), vector(64, 3)
    b = HandPlan("constants")
    x, y = b.add_input("x", F32, 1), b.add_output("y")
    scratch, prepared = b.arena(4 * 64), b.const(4 * 64)
    n = Int32(64)
    b.kernel("scale", [b.initializer("w"), scratch, n, Float32(2.0)], init=True)
    b.kernel("meet", [scratch, prepared, n, Words(3), Int32(3)], init=True)
    b.kernel("mul", [x, prepared, y, n])
    b.kernel("add", [y, b.initializer("c"), y, n])
    b.kernel("add", [y, b.blob(d), y, n])
    b.finish_output("y", F32, [64])
    log.take()
    with LoadedPlan(b.to_json(), b.blobs, {"w": w, "c": c}) as plan:
        assert sum(line.startswith("launch") for line in log.take()) == 2
        w[:] = 0  # copied already
        for seed in (4, 5):
            v = vector(64, seed)
            np.testing.assert_allclose(
                plan.run([v])[0], v * 2 * vector(64, 1) + c + d, rtol=1e-5, atol=1e-6
            )
        assert sum(line.startswith("launch") for line in log.take()) == 6
    with pytest.raises(TraceaError, match="initializer 'w' was not given"):
        LoadedPlan(b.to_json(), b.blobs, {"c": c})


def case_unwritten_constants_are_zero() -> None:
    b = HandPlan("zero")
    x, y, zero = b.add_input("x", F32, 1), b.add_output("y"), b.const(4 * 16)
    b.kernel("add", [x, zero, y, Int32(16)])
    b.finish_output("y", F32, [16])
    x_ = vector(16)
    np.testing.assert_array_equal(run_plan(b.to_json(), b.blobs, [x_])[0], x_)


def case_arguments_of_every_kind() -> None:
    b = HandPlan("arguments")
    x, y, z = b.add_input("x", F32, 1), b.add_output("y"), b.add_output("z")
    b.define_symbol("n", 0, 0)
    b.kernel("write_long", [y, Int64(D.mul(D.symbol("n"), 2**40))])
    b.kernel("add", [x, None, z, Int32(D.symbol("n"))], smem=100_000, cluster=16, block=1024)
    b.finish_output("y", DType.I64, [1])
    b.finish_output("z", F32, [D.symbol("n")])
    plan = b.to_json()
    plan["run"][1]["grid"][0] = b.expr(32)
    plan["exprs"] = b.to_json()["exprs"]
    log.take()
    y_, z_ = run_plan(plan, b.blobs, [vector(3)])
    assert y_[0] == 3 * 2**40
    np.testing.assert_array_equal(z_, vector(3))
    lines = log.take()
    assert "launch add grid=32,1,1 block=1024 smem=100000 cluster=16 pdl=0" in lines
    assert [line for line in lines if line.startswith("attribute")] == [
        "attribute add 8=100000",
        "attribute add 14=1",
    ]


def tensor_map(im2col: bool = False) -> HandPlan:
    b = HandPlan("map")
    x, y = b.add_input("x", F32, 2), b.add_output("y")
    b.define_symbol("rows", 0, 0)
    b.check(0, 1, 8)
    rows = D.symbol("rows")
    b.named = {"x": x}
    if im2col:
        window = ((-1, -1), (-1, -1), 8, 4)
        argument = TensorMap(
            Pointer("x"), F32, (8, 1, 1, rows), (32, 32, 32), (), 128, window, (1, 2, 2, 1)
        )
    else:
        argument = TensorMap(Pointer("x"), F32, (8, rows), (32,), (8, 4), 32, l2_promotion=256)
    b.kernel("from_map", [argument, y, Int32(D.mul(rows, 8))], rows)
    b.finish_output("y", F32, [rows, 8])
    return b


def case_tensor_maps() -> None:
    for im2col in (False, True):
        b = tensor_map(im2col)
        with LoadedPlan(b.to_json(), b.blobs) as plan:
            log.take()
            for rows in (5, 5, 3, 5):
                x = vector(8 * rows).reshape(rows, 8)
                np.testing.assert_array_equal(plan.run([x])[0], x)
            lines = [line for line in log.take() if line.startswith(("encode", "box", "window"))]
            if im2col:
                encoded = [
                    "encode im2col type=7 swizzle=3 together=2 dims=8,1,1,{} strides=32,32,32",
                    "window=8x4 -1:-1 -1:-1 steps=1,2,2,1",
                ]
            else:
                encoded = [
                    "encode tiled type=7 swizzle=1 together=3 dims=8,{} strides=32",
                    "box=8/1,4/1",
                ]
            # Encoded once for each set of shapes while the arena stays where it is: [5, 8] is
            # largest and came first.
            assert lines == [line.format(rows) for rows in (5, 3) for line in encoded]
        assert run_plan(b.to_json(), b.blobs, [np.zeros((0, 8), np.float32)])[0].shape == (0, 8)


def case_bad_plans_are_one_line() -> None:
    def refused(message: str, change: object, inputs: list[np.ndarray] | None = None) -> None:
        b = chain()
        plan = b.to_json()
        change(plan)  # type: ignore[operator]
        with pytest.raises(TraceaError, match=message) as e:
            run_plan(plan, b.blobs, inputs or [vector(5)])
        assert "\n" not in str(e.value)

    refused(
        "finding kernel 'nothing': named symbol not found",
        lambda p: p["run"][0].update(symbol="nothing"),
    )
    refused("blob 9 does not exist", lambda p: p["run"][0].update(cubin=9))
    refused("buffer 99 does not exist", lambda p: p["run"][0]["args"].__setitem__(0, ["p", 99, 0]))
    refused("unknown kind of argument 'q'", lambda p: p["run"][0]["args"].__setitem__(0, ["q"]))
    for words in (0, 2**20):
        refused(
            f"number of words {words} is out of range",
            lambda p, n=words: p["run"][0]["args"].__setitem__(0, ["w", n]),
        )
    refused("two arguments 'w'", lambda p: p["run"][0].update(args=[["w", 1], ["w", 1]]))
    refused("block 4096 is out of range", lambda p: p["run"][0].update(block=4096))
    refused(
        "its grid of 1 is not a multiple of its cluster of 2",
        lambda p: p["run"][0].update(cluster=2),
    )
    refused("a CUDA plan launches 'gemm'", lambda p: p["run"][0].update(k="gemm"))
    refused("the plan is for backend 'cpu'", lambda p: p.update(backend="cpu", run=[]))
    refused(
        "an init launch may not depend on input shapes", lambda p: p["init"].append(p["run"][0])
    )
    refused(
        "malformed tensor map",
        lambda p: p["run"][0]["args"].__setitem__(
            0,
            [
                "t",
                {
                    "buffer": 0,
                    "offset": 0,
                    "dtype": 1,
                    "dims": [0, 0],
                    "strides": [],
                    "box": [1, 1],
                    "swizzle": 0,
                    "im2col": None,
                    "steps": [],
                    "together": 256,
                },
            ],
        ),
    )


def case_cubin_of_another_gpu_is_one_line() -> None:
    b = chain()
    with pytest.raises(
        TraceaError, match="loading a kernel; the plan may be for another GPU: no kernel image"
    ) as e:
        run_plan(b.to_json(), [b"\x7fELF something else\0"] * len(b.blobs), [vector(3)])
    assert "\n" not in str(e.value)


def case_tensor_map_failure_names_the_kernel() -> None:
    b = tensor_map()
    plan = b.to_json()
    plan["run"][0]["args"][0][1]["strides"] = [b.expr(20)]
    plan["exprs"] = b.to_json()["exprs"]
    with pytest.raises(
        TraceaError, match="a tensor map of kernel 'from_map' over 8x2/20: invalid argument"
    ):
        run_plan(plan, b.blobs, [np.zeros((2, 8), np.float32)])


def case_out_of_memory_is_one_line() -> None:
    b = HandPlan("large")
    x, y = b.add_input("x", F32, 1), b.add_output("y")
    b.define_symbol("n", 0, 0)
    b.kernel("add", [x, None, b.arena(D.mul(D.symbol("n"), 2**30)), Int32(0)])
    b.kernel("add", [x, None, y, Int32(D.symbol("n"))])
    b.finish_output("y", F32, [D.symbol("n")])
    with LoadedPlan(b.to_json(), b.blobs) as plan:
        with pytest.raises(
            TraceaError,
            match=r"^out of GPU memory: \d+ bytes were asked for, \d+ of 1073741824 are free$",
        ):
            plan.run([vector(3)])
        with pytest.raises(TraceaError, match="out of GPU memory"):
            plan.run([vector(3)])


def case_modules_are_shared_and_unloaded() -> None:
    b = chain()
    log.take()
    first = LoadedPlan(b.to_json(), b.blobs)
    second = LoadedPlan(b.to_json(), b.blobs)
    assert log.take().count("load module") == 1
    first.__exit__()
    assert "unload module" not in log.take()
    np.testing.assert_allclose(second.run([vector(9)])[0], 6 * vector(9) ** 2, rtol=1e-6)
    second.__exit__()
    assert "unload module" in log.take()


def case_memory_is_reused() -> None:
    b = chain()
    run_plan(b.to_json(), b.blobs, [vector(50_000)])
    gc.collect()
    before = log.used()
    for _ in range(5):
        run_plan(b.to_json(), b.blobs, [vector(50_000)])
    assert log.used() == before


def case_graphs_follow_addresses_and_shapes() -> None:
    b = chain()
    with LoadedPlan(b.to_json(), b.blobs, graphs=True) as plan:
        log.take()
        for n in (40, 40, 40, 7, 7, 40):
            np.testing.assert_allclose(plan.run([vector(n)])[0], 6 * vector(n) ** 2, rtol=1e-6)
        lines = log.take()
        assert lines.count("instantiate 3") == 2  # one for each shape, from its second run on
        assert lines.count("replay") == 4
        # the first run of each shape
        assert (
            sum(line.startswith("launch") and not line.endswith("recorded") for line in lines) == 6
        )
        x = vector(4000)
        for _ in range(3):  # a larger arena moves: what was recorded on the old one is dropped
            np.testing.assert_allclose(plan.run([x])[0], 6 * x * x, rtol=1e-6)
        np.testing.assert_allclose(plan.run([vector(7)])[0], 6 * vector(7) ** 2, rtol=1e-6)
        assert "destroy graph" in log.take()


def case_times() -> None:
    b = chain()
    times = cuda_harness.time_plan(b.to_json(), b.blobs, [vector(10)], replays=5)
    assert times.total == pytest.approx(3)  # the stand-in takes a microsecond per kernel
    assert [symbol for symbol, _ in times.launches] == ["add", "mul", "scale"]
    assert [time for _, time in times.launches] == pytest.approx([1, 1, 1])
    with LoadedPlan(b.to_json(), b.blobs) as plan:
        log.take()
        times = plan.time([vector(10)], 5, within=True)
        lines = log.take()
    assert times.total == pytest.approx(3) and [
        time for _, time in times.launches
    ] == pytest.approx([1, 1, 1])
    assert "instantiate 7" in lines  # three launches and what is before, between and behind them
    recorded = [line for line in lines if line.startswith("launch") and line.endswith(" recorded")]
    # as one graph, and with events between
    assert ["pdl=1" in line for line in recorded] == [False, True, True, False, False, False]


def case_inputs_are_checked() -> None:
    b = chain()
    for bad in ([], [vector(3), vector(3)], [vector(3).astype(np.float64)]):
        with pytest.raises(TraceaError):
            run_plan(b.to_json(), b.blobs, bad)
    with pytest.raises(TraceaError, match=r"has shape \[3,1\], the plan needs rank 1"):
        run_plan(b.to_json(), b.blobs, [vector(3).reshape(3, 1)])

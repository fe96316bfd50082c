"""The native side of a Plan against Python references: expressions, arena layout, and the ABI
header against recorded facts.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.expr_program import MAX_REGISTERS
from tracea_onnx.plan.builder import PACK_VERSION, PlanBuilder, read_pack, write_pack
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime import native_library
from tracea_onnx.runtime.cpu_harness import LoadedPlan
from tracea_onnx.support.library import library_path

HEADER = Path(__file__).resolve().parents[3] / "tracea_onnx" / "ep" / "ort" / "ort_abi.h"
ALIGN, SLACK = 64, 256


@cache
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library_path()))
    lib.tracea_evaluate.restype = lib.tracea_lay_out.restype = ctypes.c_int64
    return lib


def evaluate(pack: bytes, symbols: list[int], entry: int = 0) -> list[int]:
    out, message = np.zeros(4096, np.int64), ctypes.create_string_buffer(512)
    values = (ctypes.c_int64 * max(len(symbols), 1))(*symbols)
    size = ctypes.c_size_t
    n = library().tracea_evaluate(
        pack,
        size(len(pack)),
        size(entry),
        values,
        size(len(symbols)),
        out.ctypes.data_as(ctypes.c_void_p),
        size(out.size),
        message,
        size(512),
    )
    if n < 0:
        raise ValueError(message.value.decode())
    return [int(v) for v in out[:n]]


def pack_of(plan: dict[str, Any]) -> bytes:
    return write_pack([(["0" * 64], plan, [])], "test")


SYMBOLS = ("a", "b", "c")


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> D.DimLike:
    if depth == 0 or draw(st.booleans()):
        return draw(
            st.one_of(st.integers(-50, 50), st.sampled_from([D.symbol(s) for s in SYMBOLS]))
        )
    x, y = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    op = draw(
        st.sampled_from(
            [
                "add",
                "sub",
                "mul",
                "floordiv",
                "mod",
                "maximum",
                "minimum",
                "equal",
                "less",
                "select",
            ]
        )
    )
    if op == "select":
        return D.select(D.less(x, y), x, y)
    if op in ("floordiv", "mod"):
        y = draw(st.integers(1, 12))
    result: D.DimLike = getattr(D, op)(x, y)
    return result


def build(wanted: list[D.DimLike]) -> tuple[dict[str, Any], list[int]]:
    b = PlanBuilder("expressions", "cpu")
    b.add_input("x", 1, 3)
    for k, s in enumerate(SYMBOLS):
        b.define_symbol(s, 0, k)
    places = [b.expr(e) for e in wanted]
    return b.to_json(), places


@settings(max_examples=150)
@given(st.lists(expressions(), min_size=1, max_size=4), st.tuples(*[st.integers(0, 100)] * 3))
def test_expressions_evaluate_as_in_python(
    wanted: list[D.DimLike], values: tuple[int, int, int]
) -> None:
    plan, places = build(wanted)
    got = evaluate(pack_of(plan), list(values))
    env: dict[str, int] = dict(zip(SYMBOLS, values, strict=True))
    assert [got[p] for p in places] == [D.evaluate(e, env) for e in wanted]


def test_division_by_an_empty_dimension_is_zero() -> None:
    plan, places = build([D.floordiv(7, D.symbol("a")), D.mod(7, D.symbol("a"))])
    got = evaluate(pack_of(plan), [0, 1, 1])
    assert [got[p] for p in places] == [0, 0]


def test_overflow_is_an_error() -> None:
    plan, _ = build([D.mul(D.mul(D.symbol("a"), D.symbol("b")), D.symbol("c"))])
    with pytest.raises(ValueError, match="overflows 64 bits"):
        evaluate(pack_of(plan), [2**31, 2**31, 2**31])


def test_large_integers_and_special_floats_survive_the_header() -> None:
    b = PlanBuilder('numbers \u00e9\U0001f600 "quoted"\n', "cpu")
    x = b.add_input("x", 1, 1)
    b.define_symbol("n", 0, 0)
    big = b.expr(2**63 - 1), b.expr(-(2**63))
    program = {"type": 0, "n_in": 1, "regs": 2, "out": 1, "code": [[0, 1, 0, 0, 0, float("-inf")]]}
    b.launch("pointwise", {"x0": x}, {"y": b.arena(64)}, {}, program=program)
    got = evaluate(pack_of(b.to_json()), [1])
    assert (got[big[0]], got[big[1]]) == (2**63 - 1, -(2**63))


def _filled(kind: str) -> tuple[dict[str, Any], list[bytes]]:
    """A CPU Plan that fills a buffer of this kind, in a run or, where it is a word of two, before
    all runs.
    """
    b = PlanBuilder("filled", "cpu")
    x = b.add_input("x", 1, 1)
    init, _, name = kind.rpartition(" ")
    made = {
        "input": lambda: x,
        "const": lambda: b.arena(64),
        "initializer": lambda: b.initializer("w"),
        "blob": lambda: b.blob(np.zeros(16, np.float32)),
    }[name]()
    if name == "const":
        b.buffers[made.buffer] = {"kind": "const", "bytes": 64}
    b.launch("fill", {}, {"y": made}, {"elem": 4, "count": 16, "value": 7}, whole=False)
    plan = b.to_json()
    if init:
        plan["init"], plan["run"] = plan["run"], []
    return plan, b.blobs


@pytest.mark.parametrize("kind", ["input", "const", "initializer", "init initializer", "init blob"])
def test_a_plan_writes_nothing_that_others_read(kind: str) -> None:
    """What the caller gives, weights of the model and constants, which several runs share."""
    plan, blobs = _filled(kind)
    x, w = np.zeros(16, np.float32), np.zeros(16, np.float32)
    with (
        pytest.raises(TraceaError, match="would write operand 0 to an input or a constant"),
        LoadedPlan(plan, blobs, {"w": w}) as loaded,
    ):
        loaded.run([x])
    assert not x.any() and not w.any()


@pytest.mark.parametrize("changed", ["G", "KH", "KW", "SH", "SW", "DH", "DW"])
def test_a_kernel_of_one_window_takes_no_other(changed: str) -> None:
    """Its extents follow from the window that it is told: it would touch more."""
    b = PlanBuilder("winograd", "cpu")
    b.add_input("x", 1, 1)
    ints = dict.fromkeys(("N", "G", "SH", "SW", "DH", "DW"), 1) | {"KH": 3, "KW": 3}
    ints |= dict.fromkeys(("IC", "OC"), 32) | dict.fromkeys(("IH", "IW", "OH", "OW"), 4)
    places = {k: b.arena(1 << 20) for k in ("x", "w", "bias", "y")}
    y = {"y": places.pop("y")}
    b.launch("conv2d_wino", places, y, ints | {changed: 2}, whole=False)
    with (
        pytest.raises(TraceaError, match=f"'conv2d_wino' takes no {changed} of this size"),
        LoadedPlan(b.to_json(), b.blobs, {}) as loaded,
    ):
        loaded.run([np.zeros(1, np.float32)])


@pytest.mark.parametrize(("operand", "byte"), [("x", 2), ("y", 1)])
def test_a_kernel_takes_elements_only_where_one_starts(operand: str, byte: int) -> None:
    b = PlanBuilder("between", "cpu")
    b.add_input("x", 1, 1)
    places = {k: b.arena(64) for k in ("x", "y")}
    places[operand] = places[operand].at(byte)
    b.launch("ends", {"x": places["x"]}, {"y": places["y"]}, {"n": 4, "pieces": 1}, whole=False)
    with (
        pytest.raises(TraceaError, match=f"at byte {byte} of its buffer, where no element starts"),
        LoadedPlan(b.to_json(), b.blobs, {}) as loaded,
    ):
        loaded.run([np.zeros(1, np.float32)])


@pytest.mark.parametrize(("size", "byte"), [(8, 4), (4, 2), (4, 8), (2, 1), (2, 6), (1, 3)])
def test_a_type_that_is_a_parameter_says_where_one_starts(size: int, byte: int) -> None:
    b = PlanBuilder("between", "cpu")
    b.add_input("x", 1, 1)
    place = b.arena(64).at(byte)
    b.launch("fill", {}, {"y": place}, {"elem": size, "count": 4, "value": 0}, whole=False)
    wrong = f"at byte {byte} of its buffer, where no element starts"
    with (
        pytest.raises(TraceaError, match=wrong) if byte % size else nullcontext(),
        LoadedPlan(b.to_json(), b.blobs, {}) as loaded,
    ):
        loaded.run([np.zeros(1, np.float32)])


def test_before_all_runs_constants_are_written() -> None:
    plan, blobs = _filled("init const")
    with LoadedPlan(plan, blobs, {}) as loaded:
        loaded.run([np.zeros(16, np.float32)])


@pytest.mark.parametrize(
    "sizes", [[2**62], [2**63 - 256, 2**63 - 256], [2**60] * 3, [2**61 - 1] * 8]
)
def test_constants_whose_sizes_would_wrap_are_refused(sizes: list[int]) -> None:
    plan, _ = build([1])
    plan["buffers"] += [{"kind": "const", "bytes": size} for size in sizes]
    with pytest.raises(ValueError, match=r"of \d+ bytes: no machine has as many"):
        evaluate(pack_of(plan), [1, 1, 1])


def test_a_program_may_have_as_many_registers_as_the_compiler_gives_it() -> None:
    for regs in (MAX_REGISTERS, MAX_REGISTERS + 1):
        b = PlanBuilder("registers", "cpu")
        x = b.add_input("x", 1, 1)
        program = {"type": 0, "n_in": 1, "regs": regs, "out": 0, "code": []}
        b.launch("pointwise", {"x0": x}, {"y": b.arena(64)}, {}, program=program)
        if regs == MAX_REGISTERS:
            evaluate(pack_of(b.to_json()), [])
        else:
            with pytest.raises(ValueError, match="a malformed program"):
                evaluate(pack_of(b.to_json()), [])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":}',
        b"[1,]",
        b'{"entries": [}',
        b"[" * 100,
        b'{"entries":[],"blobs":[]} x',
        b'"\\u12"',
        b"01x",
        b"99999999999999999999",
    ],
)
def test_malformed_header_is_one_line(text: bytes) -> None:
    import hashlib
    import struct

    pack = (
        struct.pack(
            "<8sIIQQ32s", b"TRACEAPK", PACK_VERSION, 0, len(text), 0, hashlib.sha256(text).digest()
        )
        + text
    )
    with pytest.raises(ValueError, match=r"malformed JSON at byte \d+"):
        evaluate(pack, [])


@pytest.mark.parametrize("version", [0, 1, PACK_VERSION + 1])
def test_a_pack_of_another_version_is_refused(version: int) -> None:
    """In version 1 a number of attention meant something else."""
    pack = bytearray(pack_of(build([1])[0]))
    pack[8:12] = version.to_bytes(4, "little")
    line = f"pack version {version} is not version {PACK_VERSION}; make the pack again with this"
    with pytest.raises(ValueError, match=line):
        evaluate(bytes(pack), [1, 1, 1])
    with pytest.raises(TraceaError, match=line):
        read_pack(bytes(pack))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10)), max_size=40)
)
def test_arena_never_overlaps_what_lives_together(rows: list[tuple[int, int, int]]) -> None:
    n = len(rows)
    size, first = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.int32)
    last = first + np.array([r[2] for r in rows], np.int32)
    offset = np.zeros(n, np.int64)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (size, first, last)]
    total = library().tracea_lay_out(
        *pointers, ctypes.c_size_t(n), offset.ctypes.data_as(ctypes.c_void_p)
    )
    need = [-(-(int(s) + SLACK) // ALIGN) * ALIGN for s in size]
    for i in range(n):
        assert offset[i] % ALIGN == 0 and offset[i] >= 0 and offset[i] + need[i] <= total
        for j in range(i):
            if first[i] <= last[j] and first[j] <= last[i]:
                assert offset[i] + need[i] <= offset[j] or offset[j] + need[j] <= offset[i]
    busiest = max(
        (sum(need[k] for k in range(n) if first[k] <= t <= last[k]) for t in range(42)), default=0
    )
    assert busiest <= total <= sum(need)


def test_arena_of_a_chain_reuses_two_buffers() -> None:
    n = 20
    size, first, offset = (
        np.full(n, 1000, np.int64),
        np.arange(n, dtype=np.int32),
        np.zeros(n, np.int64),
    )
    last = first + 1
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (size, first, last)]
    assert (
        library().tracea_lay_out(
            *pointers, ctypes.c_size_t(n), offset.ctypes.data_as(ctypes.c_void_p)
        )
        == 2 * 1280
    )


# Facts of ONNX Runtime's C API, recorded from its header at API version 30 (tables are append-only,
# so a slot never changes).
SLOTS = {
    "TRACEA_ORT_FUNCTIONS": {
        "CreateStatus": 0, "GetErrorMessage": 2, "GetTensorMutableData": 51,
        "CastTypeInfoToTensorInfo": 55, "GetTensorElementType": 60,
        "GetDimensionsCount": 61, "GetDimensions": 62, "GetSymbolicDimensions": 63,
        "MemoryInfoGetId": 72, "KernelContext_GetInput": 90,
        "KernelContext_GetOutput": 91, "ReleaseStatus": 93, "ReleaseMemoryInfo": 94,
        "ReleaseValue": 96,
        "KernelContext_GetGPUComputeStream": 193, "CreateOpAttr": 211, "ReleaseOpAttr": 212,
        "GetSessionConfigEntry": 238,
        "Logger_LogMessage": 247, "ReadOpAttr": 272, "KernelContext_ParallelFor": 274,
        "GetValueInfoName": 289, "GetValueInfoTypeInfo": 290,
        "GetModelEditorApi": 291, "CreateKeyValuePairs": 295, "AddKeyValuePair": 296,
        "GetKeyValue": 297, "ReleaseKeyValuePairs": 300, "HardwareDevice_Type": 307,
        "HardwareDevice_VendorId": 308, "HardwareDevice_Metadata": 311, "GetEpApi": 317,
        "GetTensorSizeInBytes": 318, "CreateMemoryInfo_V2": 320,
        "MemoryInfoGetDeviceMemType": 321, "ValueInfo_GetInitializerValue": 326,
        "ValueInfo_IsConstantInitializer": 331,
        "Graph_GetName": 333, "Graph_GetModelPath": 334,
        "Graph_GetOnnxIRVersion": 335, "Graph_GetNumOperatorSets": 336,
        "Graph_GetOperatorSets": 337, "Graph_GetNumInputs": 338,
        "Graph_GetInputs": 339, "Graph_GetNumOutputs": 340, "Graph_GetOutputs": 341,
        "Graph_GetNumNodes": 344, "Graph_GetNodes": 345, "Graph_GetParentNode": 346,
        "Node_GetName": 349, "Node_GetOperatorType": 350, "Node_GetDomain": 351,
        "Node_GetNumInputs": 353, "Node_GetInputs": 354,
        "Node_GetNumOutputs": 355, "Node_GetOutputs": 356, "Node_GetNumImplicitInputs": 357,
        "Node_GetImplicitInputs": 358,
        "Node_GetNumAttributes": 359, "Node_GetAttributes": 360,
        "OpAttr_GetTensorAttributeAsOrtValue": 362, "OpAttr_GetType": 363,
        "OpAttr_GetName": 364, "Node_GetNumSubgraphs": 365, "Node_GetSubgraphs": 366,
        "Node_GetEpName": 368, "GetRunConfigEntry": 373,
        "GetTensorData": 378, "SyncStream_GetHandle": 384,
        "TensorTypeAndShape_HasShape": 390, "GetTensorElementTypeAndShapeDataReference": 414,
    },
    "TRACEA_ORT_27_FUNCTIONS": {"GetSessionExecutionMode": 420},
    "TRACEA_ORT_EP_FUNCTIONS": {
        "CreateEpDevice": 0, "EpGraphSupportInfo_AddNodesToFuse": 2,
        "EpGraphSupportInfo_AddSingleNode": 3, "EpDevice_AddAllocatorInfo": 5,
        "Value_GetMemoryDevice": 7,
        "MemoryDevice_GetDeviceType": 9, "MemoryDevice_GetMemoryType": 10,
        "MemoryDevice_GetVendorId": 11, "MemoryDevice_GetDeviceId": 12,
        "CreateHardwareDevice": 16, "ReleaseHardwareDevice": 17, "CreateKernelRegistry": 18,
        "ReleaseKernelRegistry": 19,
        "KernelRegistry_AddKernel": 20, "CreateKernelDefBuilder": 21, "ReleaseKernelDefBuilder": 22,
        "KernelDefBuilder_SetOperatorType": 23,
        "KernelDefBuilder_SetDomain": 24, "KernelDefBuilder_SetSinceVersion": 25,
        "KernelDefBuilder_SetExecutionProvider": 26,
        "KernelDefBuilder_SetInputMemType": 27, "KernelDefBuilder_SetOutputMemType": 28,
        "KernelDefBuilder_AddTypeConstraint": 29,
        "KernelDefBuilder_Build": 32, "ReleaseKernelDef": 33, "GetTensorDataType": 40,
        "EpGraphSupportInfo_LookUpKernel": 41, "CreateIfKernel": 45, "CreateLoopKernel": 46,
        "CreateScanKernel": 47,
    },
    "TRACEA_ORT_EDITOR_FUNCTIONS": {"CreateNode": 6},
}  # fmt: skip
#: Members after `ort_version_supported`, 8 bytes each from offset 8.
MEMBERS = {
    "OrtNodeComputeInfo": [
        "CreateState", "Compute", "ReleaseState",
    ],
    "OrtDataTransferImpl": ["Release", "CanCopy", "CopyTensors"],
    "OrtSyncNotificationImpl": ["Release", "Activate", "WaitOnDevice", "WaitOnHost"],
    "OrtSyncStreamImpl": ["Release", "GetHandle", "CreateNotification", "Flush", "OnSessionRunEnd"],
    "OrtKernelImpl": ["Compute", "Release", "PrePackWeight", "SetSharedPrePackedWeight"],
    "OrtLoopKernelHelper": ["Release", "ConcatOutput"],
    "OrtScanKernelHelper": ["Release", "Transpose"],
    "OrtEp": [
        "GetName", "GetCapability", "Compile", "ReleaseNodeComputeInfos", "GetPreferredDataLayout",
        "ShouldConvertDataLayoutForOp",
        "SetDynamicOptions", "OnRunStart", "OnRunEnd", "CreateAllocator",
        "CreateSyncStreamForDevice", "GetCompiledModelCompatibilityInfo",
        "GetKernelRegistry", "IsConcurrentRunSupported", "Sync", "CreateProfiler",
        "IsGraphCaptureEnabled", "IsGraphCaptured", "ReplayGraph",
        "GetGraphCaptureNodeAssignmentPolicy", "GetAvailableResource", "OnSessionInitializationEnd",
        "GetDefaultMemoryDevice", "ReleaseCapturedGraph",
        "GetWeightlessSupport",
    ],
    "OrtEpFactory": [
        "GetName", "GetVendor", "GetSupportedDevices", "CreateEp", "ReleaseEp", "GetVendorId",
        "GetVersion", "ValidateCompiledModelCompatibilityInfo",
        "CreateAllocator", "ReleaseAllocator", "CreateDataTransfer", "IsStreamAware",
        "CreateSyncStreamForDevice",
        "GetHardwareDeviceIncompatibilityDetails", "CreateExternalResourceImporterForDevice",
        "GetNumCustomOpDomains", "GetCustomOpDomains",
        "InitGraphicsInterop", "DeinitGraphicsInterop", "SelectBestModelCandidate",
    ],
}  # fmt: skip


@pytest.mark.skipif(not HEADER.is_file(), reason="an installed package has no C++ sources")
def test_abi_header_agrees_with_the_recorded_facts() -> None:
    text = HEADER.read_text()
    for macro, slots in SLOTS.items():
        body = text.split(f"#define {macro}(X)")[1].split("\n\n")[0]
        assert {
            name: int(slot) for slot, name in re.findall(r"X\(\s*(\d+),\s*(\w+),", body)
        } == slots
    for struct, members in MEMBERS.items():
        body = re.sub(r"//.*", "", text.split(f"struct {struct} {{")[1].split("\n};")[0])
        assert "uint32_t ort_version_supported" in body
        assert re.findall(r"^ *tracea::Callback<[^;]*>\s*(\w+);", body, re.MULTILINE) == members


#: Functions of others that keep or call a function of ours.
TAKERS = (
    "KernelContext_ParallelFor",
    "KernelRegistry_AddKernel",
    "pthread_atfork",
    "cuLaunchHostFunc",
    "cuStreamAddCallback",
)

#: Exported functions that neither allocate nor call what throws; destructors throw nothing.
NEVER_THROW = {
    "tracea_version", "tracea_best_isa", "tracea_has_isa", "tracea_has_kernel",
    "tracea_set_compiler", "tracea_stats", "tracea_kernel_tasks",
    "tracea_cpu_close", "tracea_cuda_close",
}  # fmt: skip


@pytest.mark.skipif(not HEADER.is_file(), reason="an installed package has no C++ sources")
def test_no_exception_crosses_the_c_abi() -> None:
    """Callbacks are `Callback`s, which contain exceptions; exported functions are noexcept and
    contain theirs; threads and other C libraries get Callbacks, too.
    """
    abi = re.sub(r"//.*", "", HEADER.read_text())
    structs = abi[
        abi.index("struct OrtNodeComputeInfo") : abi.index("#define TRACEA_ORT_FUNCTIONS")
    ]
    assert not re.findall(r"\(\*\w+\)\(", structs), "ORT would call a plain function pointer"
    exported = 0
    for source in sorted(HEADER.parents[1].glob("*/*.cc")):
        text = re.sub(r"//.*", "", source.read_text())
        declarations = r'extern "C" \{[^{}]*\}'
        assert 'extern "C"' not in re.sub(declarations, "", text), (
            f"{source.name}: export with TRACEA_EXPORT"
        )
        for head, body in re.findall(
            r"^TRACEA_EXPORT ([^{;]*)\{((?:[^\n]*\}$)|(?:.*?^\}))", text, re.MULTILINE | re.DOTALL
        ):
            exported += 1
            assert re.search(r"\bnoexcept\s*$", head), f"{source.name}: {head}"
            name = re.findall(r"(\w+)\(", head)[0]
            assert re.search(r"\b(guarded|answered|reported)[(<]", body) or name in NEVER_THROW, (
                f"{source.name}: an exception in {name} would end the process"
            )
        for taker in TAKERS:
            for call in re.findall(rf"(?:ort\.|driver\(\)\.|\b){taker}\((.*)\);", text):
                assert "[" not in call or "Callback" in call, (
                    f"{source.name}: {taker} gets a lambda that is no Callback"
                )
        for threads in re.findall(r"std::thread\b(?!::|>)[^;]*;", text):
            assert source.name == "harness.cc", f"{source.name}: a thread of its own: {threads}"
    assert exported >= 15


def test_the_cpu_has_the_kernels_that_it_names() -> None:
    has = library().tracea_has_kernel
    found = {f for f in FAMILIES if has(native_library.best_isa().encode(), f.encode())}
    assert backends.get("cpu").families == found

"""What counts as a finding of a sanitizer."""

from __future__ import annotations

from pathlib import Path

from tests import sanitize

_REPORT = """==7==ERROR: AddressSanitizer: allocator is out of memory trying to allocate 0x8 bytes
    #0 0x1 in operator new(unsigned long, std::align_val_t) asan_new_delete.cpp:107
    #1 0x2  (/lib/{library}+0x12426bb)
SUMMARY: AddressSanitizer: out-of-memory asan_new_delete.cpp:107 in operator new(unsigned long)
"""


def test_a_request_of_onnx_runtime_for_too_much_memory_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "address.7").write_text(_REPORT.format(library="onnxruntime_pybind11_state.so"))
    assert sanitize.findings(tmp_path) == []
    (tmp_path / "address.8").write_text(_REPORT.format(library="libtracea_onnx.so"))
    (tmp_path / "address.9").write_text("SUMMARY: AddressSanitizer: heap-buffer-overflow a.cc:1")
    found = sanitize.findings(tmp_path)
    assert ["out-of-memory" in found[0], "heap-buffer-overflow" in found[1]] == [True, True]
    assert len(found) == 2

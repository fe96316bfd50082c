"""The software bill of materials of a wheel, in CycloneDX 1.6: the packages that it asks for, and
what is linked into its library. The build puts it into the wheel, in `*.dist-info/sboms`.

    python tools/sbom.py --out FILE [--zig-clang 22.1.8] [--target aarch64-linux-gnu.2.28]
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SPEC = "1.6"
#: What zig links statically, by a part of the target's name.
_LINKED = {"": ("libc++", "libc++abi", "libunwind", "compiler-rt"), "windows": ("mingw-w64",)}
_LLVM = "Apache-2.0 WITH LLVM-exception"


def _component(name: str, purl: str, license_: str = "", **more: Any) -> dict[str, Any]:
    found = {"type": "library", "bom-ref": purl, "name": name, "purl": purl, **more}
    return found | ({"licenses": [{"expression": license_}]} if license_ else {})


def _package(requirement: str, scope: str) -> dict[str, Any]:
    """A requirement of the project, such as `onnx>=1.21`."""
    matched = re.match(r"[\w.-]+", requirement)
    assert matched is not None
    name = re.sub(r"[-_.]+", "-", matched[0]).lower()
    versions = {"name": "requires", "value": requirement[matched.end() :]}
    return _component(name, f"pkg:pypi/{name}", scope=scope, properties=[versions])


def bom(zig_clang: str = "", target: str = "") -> dict[str, Any]:
    """The bill of a library that zig compiled with a clang of that version, or, without one, that
    another compiler did and that links nothing statically.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version_file = (ROOT / "tracea_onnx" / "_version.py").read_text("utf-8")
    version = re.findall(r'^__version__ = "(.*)"', version_file, re.MULTILINE)[0]
    own = f"pkg:pypi/tracea-onnx@{version}"
    packages = [_package(r, "required") for r in project["dependencies"]]
    extras = project["optional-dependencies"]
    optional = {r for extra in ("cpu", "gpu", "gpu13") for r in extras[extra]}
    packages += [_package(r, "optional") for r in sorted(optional)]
    linked = []
    if zig_clang:
        for part, names in _LINKED.items():
            linked += [n for n in names if part in target]
    parts = [
        _component(n, "pkg:generic/mingw-w64", "ZPL-2.1")
        if n == "mingw-w64"
        else _component(
            n, f"pkg:generic/llvm-{n.replace('+', 'x')}@{zig_clang}", _LLVM, version=zig_clang
        )
        for n in linked
    ]
    components = packages + parts
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": _SPEC,
        "version": 1,
        "metadata": {
            "component": _component(
                "tracea-onnx", own, project["license"],
                version=version, description=project["description"],
            )
        },
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": sorted(c["bom-ref"] for c in components)},
            *({"ref": c["bom-ref"]} for c in components),
        ],
    }  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True) + target)
    return made | {"serialNumber": f"urn:uuid:{serial}"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--zig-clang", default="", help="version of the clang in zig")
    parser.add_argument("--target", default="", help="zig's name of the target")
    given = parser.parse_args()
    given.out.write_text(json.dumps(bom(given.zig_clang, given.target), indent=1) + "\n", "utf-8")

"""Finds rules, scheduling policies, backends and model builders by file name.

The four folders install as `tracea_onnx.fusion_rules` and so on; in a checkout they lie beside the
package. Either way a file `conv.py` becomes the module `tracea_onnx.fusion_rules.conv`, and adding
a file is all it takes to add a rule. What takes more than a file is a package:
`kernels/cuda/__init__.py`.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

import tracea_onnx

_PACKAGE = Path(__file__).resolve().parents[1]
if not (_PACKAGE / "fusion_rules").is_dir():
    tracea_onnx.__path__.append(str(_PACKAGE.parent))


def folder(kind: str) -> Path:
    """Folder of `fusion_rules`, `scheduler`, `kernels` or `models`: inside the installed package,
    or beside it in a checkout.
    """
    for base in (_PACKAGE, _PACKAGE.parent):
        if (base / kind).is_dir():
            return base / kind
    raise FileNotFoundError(f"the {kind} folder is missing from the installation of tracea-onnx")


def module(kind: str, name: str) -> ModuleType:
    """The module `tracea_onnx.<kind>.<name>`; a part of a package has a dotted name
    (`cuda.gemm.select`).

    Threads that ask for it at once all get it whole: Python locks each module while it is
    imported.
    """
    full = f"tracea_onnx.{kind}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as e:
        if e.name != full:
            raise
        raise ModuleNotFoundError(
            f"no {kind} called '{name}'; there are: {', '.join(names(kind))}"
        ) from None


@cache
def names(kind: str) -> tuple[str, ...]:
    """Names of everything in the folder, modules and packages, sorted."""
    found = [
        p.stem for p in folder(kind).iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    ]
    return tuple(sorted(name for name in found if not name.startswith("_")))

"""What an installation has too much of: packages that overwrite each other, libraries of another
version, more threads than cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from tracea_onnx._version import __version__
from tracea_onnx.support import machine
from tracea_onnx.support.check import Check

#: Variables by which libraries of this process take more threads than the machine has cores.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Other packages that carry the provider's library.
_LIBRARIES = ("onnxruntime-ep-tracea",)


def checks() -> Iterator[Check]:
    """A line for each kind of conflict."""
    yield wheels()
    yield libraries(metadata.version)
    yield threads(os.environ, machine.cores(), machine.physical_cores(), machine.quota())


def runtimes() -> dict[str, str]:
    """Versions of the packages that install `onnxruntime`, by name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(("onnxruntime", "ort-")) and any(
            file.parts[:2] == ("onnxruntime", "__init__.py") for file in distribution.files or ()
        ):
            found.setdefault(name, distribution.version)
    return found


def wheels() -> Check:
    """Packages that overwrite each other's files."""
    found = runtimes()
    named = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    return Check(
        "ONNX Runtime packages",
        len(found) < 2,
        f"{named} overwrite each other" if len(found) > 1 else named or "none",
        f"python -m pip uninstall -y {' '.join(sorted(found))}, then install one of them",
    )


def libraries(version: Callable[[str], str]) -> Check:
    """Packages with a provider's library of another version."""
    stale = []
    for name in _LIBRARIES:
        try:
            found = version(name)
        except metadata.PackageNotFoundError:
            continue
        if found != __version__:
            stale.append(f"{name} {found}")
    return Check(
        "provider packages",
        not stale,
        f"{', '.join(stale)} beside tracea-onnx {__version__}"
        if stale
        else f"tracea-onnx {__version__}",
        f"python -m pip install -U {' '.join(n.split()[0] for n in stale) or 'tracea-onnx'}",
    )


def threads(
    environment: Mapping[str, str], cores: int, physical: int, quota: float | None
) -> Check:
    """More threads than run at once: each waits for the others, who wait for a core."""
    usable = max(1, min(cores, int(quota or cores)))
    faults, fixes = [], []
    for name in _THREADS:
        text = environment.get(name, "").split(",")[0].strip()
        if text.isdigit() and int(text) > usable:
            faults.append(f"{name} is {text}")
            fixes.append(f"export {name}={usable}")
    if physical > usable:  # what ONNX Runtime counts
        faults.append(f"ONNX Runtime makes {physical} threads for a session")
        fixes.append(f"set intra_op_num_threads={usable} in its options")
    has = f"{usable} core{'s' if usable > 1 else ''} can be used at once"
    if quota is not None:
        has += f" (the control group has {quota:g})"
    return Check(
        "threads",
        not faults,
        f"{'; '.join(faults)}, where {has}" if faults else has,
        "; ".join(fixes) or "export OMP_NUM_THREADS=1",
        required=False,
    )

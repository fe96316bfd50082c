"""How kernels are chosen for a device by what was measured on it, for sessions: whoever never tuned
anything does not wait for SQLite to be imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracea_onnx.codegen.kernel_choice import BY_PRICE, Choices
from tracea_onnx.support import files

if TYPE_CHECKING:
    from tracea_onnx.runtime.device_caps import DeviceCaps


def choices(device: DeviceCaps) -> Choices:
    """As the tuning record of this kind of device says; by price without one."""
    base = files.user_folder("data")
    if base is None or not os.path.isdir(base / "tuning"):  # noqa: PTH112 -- raises nothing
        return BY_PRICE
    from tracea_onnx.codegen import tuning_records

    return tuning_records.choices(device)

"""Sessions over a model file whose weights are mapped, not copied. ONNX Runtime reads a model's
bytes, copies each weight out of them and copies it once more; of a model without weights
(`stripped_model.py`) it maps them from the file, and the provider packs them from there.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

from tracea_onnx.model_io.stripped_model import strip_weights

#: Weights from this many bytes on are mapped, of files from this many bytes on.
_TENSOR, _FILE = 1 << 14, 1 << 20
#: How a model names the file of a tensor: the key of an entry of external_data.
_PLACE = b"\x0a\x08location"


class MappedModel(NamedTuple):
    """A model without its weights, and the file that has them."""

    data: bytes
    file: Path
    state: tuple[int, ...]

    def unchanged(self) -> bool:
        """Whether the file is the one that was read, and nothing was written to it since."""
        try:
            return _state(self.file.stat()) == self.state
        except OSError:
            return False


def mapped_model(path: Path) -> MappedModel | None:
    """The model in the file; None for a small one, one that has weights in other files, too, or one
    that is not well-formed.
    """
    try:
        file = path.resolve(strict=True)
        with file.open("rb") as f:
            about = os.fstat(f.fileno())
            if about.st_size < _FILE:
                return None
            with (
                mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                stripped = strip_weights(view, file.name, _TENSOR)
    except (OSError, ValueError):
        return None
    if stripped is None or not 0 < stripped.left_out == stripped.data.count(_PLACE):
        return None
    return MappedModel(stripped.data, file, _state(about))


def _state(s: os.stat_result) -> tuple[int, ...]:
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns

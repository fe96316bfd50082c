"""Opens files of external data so that the checked file is the one that is read, even if somebody
replaces files in the model's folder in between.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from tracea_onnx.errors import ModelError

if sys.platform == "win32":
    from pathlib import WindowsPath as _Path
else:
    from pathlib import PosixPath as _Path

_WALKS = os.open in os.supports_dir_fd
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)


class ModelFolder(_Path):
    """The folder of a model file, which external data is read from."""

    #: The model file. A Hugging Face cache links it and its data into one folder of blobs, so its
    #: real folder counts as well.
    model: Path | None = None

    @classmethod
    def of(cls, model: Path) -> ModelFolder:
        """The folder of a model file."""
        made = cls(model.parent)
        made.model = model
        return made


def open_data(folder: Path, location: str) -> BinaryIO:
    """The regular file at `location` within a model's folder, for reading.

    No part of its real path is followed as a link, and its kind and its names are those of the open
    file. Raises ModelError with one line.
    """
    file, model = folder / location, getattr(folder, "model", None)
    try:
        real, model = file.resolve(strict=True), None if model is None else model.resolve()
        roots = (folder.resolve(), *([] if model is None else [model.parent]))
        root = next((r for r in roots if real.is_relative_to(r)), None)
        if root is None:
            raise ModelError(
                f"the external data file {file} leads outside the model's folder",
                "put the file itself beside the model",
            )
        fd = _descend(root, real)
    except (OSError, ValueError):
        raise ModelError(
            f"the external data file {file} is missing or unreadable", "put it beside the model"
        ) from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise ModelError(
                f"the external data file {file} is not a regular file",
                "put the file itself beside the model",
            )
        # as onnx itself: a hard link leads out of the folder unseen
        if about.st_nlink > 1 and real != model:
            hint = "make it a file of its own: copy it, and rename the copy over it"
            raise ModelError(
                f"the external data file {file} has {about.st_nlink} names (hard links), which "
                "may lie outside the model's folder",
                hint,
            )
    except ModelError:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def _descend(root: Path, real: Path) -> int:
    """A descriptor of `real`, by way of the folders below `root`."""
    if not _WALKS:
        return os.open(real, _FLAGS)
    fd = os.open(root, _FLAGS)
    for name in real.relative_to(root).parts:
        try:
            below = os.open(name, _FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd

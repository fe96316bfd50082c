"""`python -m tracea_onnx` is `tracea-onnx`."""

from __future__ import annotations

import sys

from tracea_onnx.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

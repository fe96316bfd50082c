"""The sub-commands of `tracea-onnx`, one per file: `add(subparsers)` declares the options, `run(args)` returns the exit code."""

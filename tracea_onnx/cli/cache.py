"""tracea-onnx cache: list, measure or clear what was compiled; with --tuning, what `tracea-onnx
tune` measured, which is kept apart.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.codegen import tuning_records
from tracea_onnx.errors import UsageError
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.tables import table


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "cache", help="list, measure or clear the cache of compiled code", description=__doc__
    )
    p.add_argument("action", choices=("list", "size", "clear"), help="what to do")
    p.add_argument(
        "--folder", type=Path, help="the cache's folder (default: the one that `size` names)"
    )
    p.add_argument(
        "--tuning",
        action="store_true",
        help="act on the tuning records instead, which no other command removes",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.tuning:
        return _tuning(args)
    cache = Cache(args.folder) if args.folder is not None else Cache()
    fault = cache.fault()
    if fault:
        raise UsageError(
            fault, "remove it or make it your own (mode 0700), or give another one with --folder"
        )
    entries, size = cache.entries(), cache.size()
    if args.action == "clear":
        cache.clear()
        options.say([f"removed {len(entries)} entries, {size / 2**20:.1f} MiB"])
    elif args.action == "size":
        options.say([f"{len(entries)} entries, {size / 2**20:.1f} MiB in {cache.folder}"])
    else:
        rows = [
            ("entry", "bytes", "last used"),
            *(
                (e.name[:16], str(e.size), f"{datetime.fromtimestamp(e.used):%Y-%m-%d %H:%M}")
                for e in entries
            ),
        ]
        options.say(table(rows) if entries else [f"{cache.folder} is empty"])
    if args.json:
        options.emit(
            {
                "folder": str(cache.folder),
                "entries": [asdict(e) for e in entries],
                "bytes": size,
                "cleared": args.action == "clear",
            }
        )
    return 0


def _tuning(args: argparse.Namespace) -> int:
    if args.folder is not None:
        raise UsageError(
            "--folder is for the cache of compiled code", "set XDG_DATA_HOME for tuning records"
        )
    found = tuning_records.listed()
    if args.action == "clear":
        options.say([f"removed the records of {tuning_records.clear()} devices"])
    elif args.action == "size":
        options.say(
            [
                (
                    f"{len(found)} devices, {sum(r.launches for r in found)} launches in "
                    f"{tuning_records.default_folder()}"
                )
            ]
        )
    else:
        rows = [
            ("device", "NVRTC", "version", "launches", "trials"),
            *((r.device, r.nvrtc, r.version, str(r.launches), str(r.trials)) for r in found),
        ]
        options.say(table(rows) if found else [f"{tuning_records.default_folder()} is empty"])
    if args.json:
        options.emit(
            {
                "folder": str(tuning_records.default_folder()),
                "records": [asdict(r) for r in found],
                "cleared": args.action == "clear",
            }
        )
    return 0

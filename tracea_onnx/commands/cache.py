"""tracea-onnx cache: list, measure or clear what was compiled."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from tracea_onnx.cache import Cache
from tracea_onnx.commands import options
from tracea_onnx.errors import UsageError
from tracea_onnx.report import table


def add(subparsers: options.Subparsers) -> None:
    p = subparsers.add_parser("cache", help="list, measure or clear the cache of compiled code", description=__doc__)
    p.add_argument("action", choices=("list", "size", "clear"))
    p.add_argument("--folder", type=Path, help="the cache's folder (default: the one that `size` names)")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    cache = Cache(args.folder) if args.folder is not None else Cache()
    fault = cache.fault()
    if fault:
        raise UsageError(fault, "remove it or make it your own (mode 0700), or give another one with --folder")
    entries, size = cache.entries(), cache.size()
    if args.action == "clear":
        cache.clear()
        options.say([f"removed {len(entries)} entries, {size / 2**20:.1f} MiB"])
    elif args.action == "size":
        options.say([f"{len(entries)} entries, {size / 2**20:.1f} MiB in {cache.folder}"])
    else:
        rows = [("entry", "bytes", "last used"), *((e.name[:16], str(e.size), f"{datetime.fromtimestamp(e.used):%Y-%m-%d %H:%M}") for e in entries)]
        options.say(table(rows) if entries else [f"{cache.folder} is empty"])
    if args.json:
        options.emit({"folder": str(cache.folder), "entries": [asdict(e) for e in entries], "bytes": size, "cleared": args.action == "clear"})
    return 0

"""tracea-onnx tune: measure which kernels are the fastest for a model on this device.

Sessions on this kind of device use what was found from then on. `tune history` shows every trial,
`tune report FILE.html` (or .csv, .json) writes them, `tune report FILE.html MODEL` with a roofline
of a model and what its fusions gain; `tune export FILE`, `tune import FILE ...` and
`tune merge INTO FILE ...` carry records to other machines.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracea_onnx.bench import advantage, plot, roofline
from tracea_onnx.bench.model_report import ModelReport
from tracea_onnx.cli import options
from tracea_onnx.codegen import backend, tuning_records
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.support import files
from tracea_onnx.support.tables import table
from tracea_onnx.tuning import crew, fleet, measure, proposers, report
from tracea_onnx.tuning.language_model import Endpoint
from tracea_onnx.tuning.objective import SLACK, Objective

#: The exit status of a program that Ctrl-C ended.
_INTERRUPTED = 130


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "tune",
        help="measure which kernels are the fastest for a model on this device, and remember",
        description=__doc__,
    )
    p.add_argument("model", help="an ONNX file; or history, report, export, import, merge")
    p.add_argument("files", nargs="*", type=Path, help="of report, export, import and merge")
    options.add_input_shapes(p)
    options.add_backend(p, "whose kernels are measured (default: the fastest device's)")
    p.add_argument("--device-id", type=int, default=0, metavar="N", help="the GPU (default: 0)")
    p.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="of the sessions that are tuned for, on the CPU (default: as many as processors)",
    )
    p.add_argument(
        "--budget",
        default="120s",
        metavar="60s|200",
        help="seconds, or kernels, after which no more are tried (default: 120s)",
    )
    p.add_argument("--seconds", type=float, help="deprecated: --budget SECONDSs")
    p.add_argument(
        "--proposer",
        choices=(*proposers.NAMES, proposers.LLM),
        default="bayesian",
        help="what names the kernels to try (default: bayesian)",
    )
    p.add_argument(
        "--endpoint",
        default="",
        metavar="URL",
        help="of --proposer llm: a server with OpenAI's chat interface, as http://HOST:PORT/v1",
    )
    p.add_argument(
        "--endpoint-model", default="default", metavar="NAME", help="the model of the endpoint"
    )
    p.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="do not measure again what was measured before (default: yes)",
    )
    p.add_argument(
        "--executor",
        default="",
        metavar="ADDRESS",
        help="workers that measure at the same time: processes://COUNT, dask://HOST:PORT or "
        "ray://HOST:PORT (default: this process)",
    )
    add_objective(p, "--objective")
    p.add_argument(
        "--slack",
        type=float,
        default=SLACK,
        metavar="SHARE",
        help="of --objective memory: how much longer a kernel may take that needs less "
        f"(default: {SLACK:g})",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def add_objective(p: argparse.ArgumentParser, name: str) -> None:
    """Add the option."""
    p.add_argument(
        name,
        type=Objective,
        choices=[*Objective],
        default=Objective.LATENCY,
        metavar="|".join(Objective),
        help="what kernels are chosen for: the time of a run, how many end in a second with as "
        "many sessions at once as there are threads for, or the memory that they need (default: "
        "latency)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    actions = {
        "history": _history, "report": _report, "export": _export, "import": _import,
        "merge": _merge,
    }  # fmt: skip
    act = actions.get(args.model)
    if act is not None:
        act(args.files, args)
        return 0
    if args.files:
        raise UsageError(f"'{args.files[0]}' follows a model", "tune one model at a time")
    return _tune(args)


def _tune(args: argparse.Namespace) -> int:
    if args.threads < 0:
        raise UsageError(f"--threads {args.threads} is no number of threads", "give 0 or more")
    if not 0 <= args.slack < math.inf:
        raise UsageError(f"--slack is {args.slack}", "give a number from 0 on, as 0.1")
    text = args.budget
    if args.seconds is not None:
        options.say([f"--seconds is deprecated: write --budget {args.seconds:g}s"])
        text = f"{args.seconds}s"
    more = {
        "device": args.device_id, "threads": args.threads, "proposer": _proposer(args),
        "resume": args.resume,
    }  # fmt: skip
    if args.executor:
        return _tune_fleet(args, budget(text), more)
    found = tune(
        Path(args.model), options.shapes(args), args.backend, budget(text),
        objective=args.objective, slack=args.slack, **more,
    )  # fmt: skip
    if args.json:
        options.emit(asdict(found))
    return _INTERRUPTED if found.interrupted else 0


def _tune_fleet(args: argparse.Namespace, limit: measure.Budget, more: Mapping[str, Any]) -> int:
    if args.objective != Objective.LATENCY:
        raise UsageError(
            f"workers measure the latency, not the {args.objective}",
            "leave out --executor, or --objective",
        )
    if args.backend == "auto":
        raise UsageError(
            "workers do not say by themselves which of their devices they measure",
            f"give --backend {' or '.join(backend.names())}",
        )
    gpus = not backend.get(args.backend).host
    with crew.open_crew(args.executor, gpus=gpus, threads=args.threads) as workers:
        found = fleet.tune(
            args.model, options.shapes(args), workers, backend=args.backend, budget=limit,
            on_progress=lambda line: options.say([line]), **more,
        )  # fmt: skip
    for one in found:
        _say(one)
    if args.json:
        options.emit([asdict(one) for one in found])
    return _INTERRUPTED if any(one.interrupted for one in found) else 0


def tune(
    model: Path,
    shapes: Mapping[str, Sequence[int]],
    backend_name: str,
    limit: measure.Budget,
    **more: Any,
) -> measure.Tuned:
    """Tune a model and say what was found. backend_name: of an option; more: of `measure.tune`."""
    model_file.load(model)  # what is wrong with the model, in this tool's words
    found = measure.tune(
        model,
        shapes,
        backend=backend.fastest() if backend_name == "auto" else backend_name,
        budget=limit,
        on_progress=lambda line: options.say([line]),
        **more,
    )
    _say(found)
    return found


def _say(found: measure.Tuned) -> None:
    changed = [x for x in found.launches if x.kernel]
    rows = [
        ("launch", "times", "us before", "us after", "kernel"),
        *((x.what, str(x.count), f"{x.before:.2f}", f"{x.after:.2f}", x.kernel) for x in changed),
    ]
    options.say(
        [
            *(table(rows) if changed else []),
            (
                f"{found.device.name}: measured {found.measured} kernels for {len(found.launches)} "
                f"kinds of launch ({found.alone} launches have one alone; {found.known} trials are "
                "known)"
            ),
            *(
                f"float64 results of a Plan are not known ({why}): kernels were compared with the "
                "usual ones"
                for why in found.unchecked
            ),
            *_outcome(found),
        ]
    )


def _outcome(found: measure.Tuned) -> list[str]:
    left = (
        "the budget ended before the search: tune again to go on"
        if found.ended
        else "nothing is left to try"
    )
    if not found.measured:
        kept = sum(bool(x.kernel) for x in found.launches)
        return [f"{left}; {kept} kinds of launch have a kernel from the record"]
    rates = [1e6 / us for us in (found.before, found.after) if us]
    return [
        f"whole run: {found.before:.1f} -> {found.after:.1f} us"
        if found.sessions == 1
        else f"{found.sessions} sessions at once: {' -> '.join(f'{r:.1f}' for r in rates)} runs/s",
        *([f"{found.saved / 1e6:.1f} MB less"] if found.saved else []),
        f"kept {found.kept} in {found.record}; sessions on this kind of device use them"
        if found.kept
        else "the kernels by price stay: none was worth a change",
        *([] if found.interrupted else [left]),
    ]


def budget(text: str) -> measure.Budget:
    """Of an option: seconds (`60s`) or kernels (`200`). Raises UsageError."""
    try:
        number = float(text.removesuffix("s"))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"a budget of '{text}' leaves nothing to measure",
            "give seconds as 60s, or a number of kernels as 200",
        )
    return measure.Budget(number) if text.endswith("s") else measure.Budget(math.inf, trials=number)


def _proposer(args: argparse.Namespace) -> proposers.Make:
    if args.proposer != proposers.LLM:
        return proposers.make(args.proposer)
    if not args.endpoint:
        raise UsageError("--proposer llm asks nobody", "give --endpoint http://HOST:PORT/v1")
    return proposers.make(args.proposer, Endpoint.of(args.endpoint, args.endpoint_model))


# --- records --------------------------------------------------------------------------------------
def _history(given: Sequence[Path], args: argparse.Namespace) -> None:
    _count(given, 0, 0, "history")
    found = tuning_records.history()
    rows = [
        ("device", "launch", "kernel", "verdict", "us", "us by price"),
        *(
            (device, what, t.kernel, str(t.verdict), _us(t.us), _us(t.usual_us))
            for device, what, t in found
        ),
    ]
    options.say(table(rows) if found else ["nothing was tried yet"])
    if args.json:
        options.emit([{"device": device, "what": what, **vars(t)} for device, what, t in found])


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:.2f}"


def _report(given: Sequence[Path], args: argparse.Namespace) -> None:
    _count(given, 1, 2, "report FILE.html [MODEL]")
    path, *models = given
    made = report.FORMATS.get(path.suffix)
    if made is None:
        raise UsageError(
            f"{path} would be of no known form", f"end it with {' or '.join(report.FORMATS)}"
        )
    found = report.kinds()
    if not models:
        _write(path, made(found))
        options.say([f"{len(found)} kinds of launch in {path}"])
        return
    of_model = _model_report(models[0], args, path.suffix == ".html")
    if path.suffix == ".html":
        _write(path, report.as_html(found, of_model.html()))
    elif path.suffix == ".json":
        text = json.dumps({"best": json.loads(made(found)), **of_model.to_json()}, indent=1)
        _write(path, text)
    else:
        fusions = path.with_stem(f"{path.stem}-fusions")
        for file, text in zip((path, fusions), of_model.csv(), strict=True):
            _write(file, text)
    points, gains = of_model.roofline.points, of_model.advantage.gains
    options.say([f"{len(points)} kinds of launch and {len(gains)} of fusions in {path}"])


def _model_report(model: Path, args: argparse.Namespace, drawn: bool) -> ModelReport:
    if drawn:
        plot.library()
    limit = budget(args.budget)
    if limit.trials < math.inf:
        raise UsageError("a report measures no candidates", "give --budget in seconds, as 60s")
    model_file.load(model)
    name = backend.fastest() if args.backend == "auto" else args.backend
    given = name, options.shapes(args), args.threads

    def progress(line: str) -> None:
        options.say([line])

    found = roofline.measured(model, *given, progress)
    return ModelReport(
        model.name, found, advantage.measured(model, *given, limit.seconds / 2, progress)
    )


def _export(given: Sequence[Path], _: argparse.Namespace) -> None:
    _count(given, 1, 1, "export FILE")
    found = tuning_records.exported()
    _write(given[0], json.dumps(found, sort_keys=True))
    options.say([f"{len(found['devices'])} devices in {given[0]}"])


def _import(given: Sequence[Path], _: argparse.Namespace) -> None:
    _count(given, 1, None, "import FILE ...")
    count = sum(tuning_records.imported(_read(path), str(path)) for path in given)
    options.say([f"{count} kernels from {len(given)} files"])


def _merge(given: Sequence[Path], _: argparse.Namespace) -> None:
    _count(given, 2, None, "merge INTO FILE ...")
    found = tuning_records.merged((_read(path), str(path)) for path in given[1:])
    _write(given[0], json.dumps(found, sort_keys=True))
    options.say([f"{len(found['devices'])} devices in {given[0]}"])


def _count(given: Sequence[Path], least: int, most: int | None, usage: str) -> None:
    if len(given) < least or (most is not None and len(given) > most):
        raise UsageError(f"{len(given)} files were given", f"write tracea-onnx tune {usage}")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as e:
        raise UsageError(f"{path} cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError):
        return None


def _write(path: Path, text: str) -> None:
    try:
        with files.folder(path.absolute().parent) as folder, folder.new(path.name) as f:
            f.write(text.encode())
            f.mode(0o666 & ~files.umask())
            f.place()
    except OSError as e:
        raise TraceaError(f"{path} cannot be written ({e.strerror})") from None

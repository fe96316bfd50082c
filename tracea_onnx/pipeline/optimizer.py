"""The main job: load, canonicalise, match, price, schedule, rewrite, verify, save."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from tracea_onnx.canonicalize import canonical_form, constant_folding
from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import (
    MissingFusionError,
    ModelError,
    TraceaError,
    UsageError,
    VerificationError,
)
from tracea_onnx.ir import edit, narrow_floats
from tracea_onnx.ir.contracts import DOMAIN, Rule
from tracea_onnx.ir.graph import opset_versions
from tracea_onnx.model_io import external, model_file
from tracea_onnx.pipeline.fusion_loop import (
    Fusion,
    FusionOptions,
    Progress,
    count_nodes,
    silent,
    transform,
)
from tracea_onnx.pipeline.pack import build_pack
from tracea_onnx.pipeline.report import Report
from tracea_onnx.rewrite import fused_calls, weight_only
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.verify import delta_debugging, integer_drift, narrow_errors, weight_drift
from tracea_onnx.verify import verification as verification

PRECISIONS = ("keep", "bf16", "fp16")
_OBJECTION = "ONNX Runtime takes this model, but ONNX's checker does not"
#: How often fusions at fault are searched for: those that come up in place of others may be wrong,
#: too.
_BISECTIONS = 4


@dataclass(frozen=True)
class OptimizeResult:
    """The optimized model and the report.

    `folder` is where the model's external data still lies (None without any).
    """

    model: ModelProto
    report: Report
    folder: Path | None = None

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def optimize(
    model: ModelProto | str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    precision: str = "keep",
    weights: str = "keep",
    block: int | None = None,
    quantise: Mapping[str, Any] | None = None,
    calibration: str = "percentile",
    drift: float | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    dry_run: bool = False,
    verify: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    time_limit: float = verification.TIME_LIMIT,
    external_data: str = "auto",
    keep_initializer_inputs: bool = False,
    pack: str | os.PathLike[str] | None = None,
    rules: Sequence[Rule] | None = None,
    scheduler: str = "priority",
    providers: Sequence[str] = ("CPUExecutionProvider",),
    progress: Progress | None = None,
) -> OptimizeResult:
    """Fuse what the rules find in `model`, verify the result against the original, and write it.

    - `model`: a ModelProto, or the path of an ONNX file.
    - `output`: where to write; None: nowhere.
    - `backend`: what fusions are priced for, or "auto".
    - `precision`: "keep", "fp16" or "bf16".
    - `weights`: "keep", "int8" or "int4": what constant weights are quantised to; `block`: terms of
      a column that share a scale, 0 for all (None: 0 for int8, 32 for int4).
    - `quantise`: typical inputs by name, one set or many (`integer_drift.samples`): makes a static
      int8 model of ranges that `calibration` finds: "percentile", "entropy" or "minmax".
    - `drift`: how far an output of quantised weights or layers may be from the original's, as root
      mean squares (None: 0.02 for int8 weights, 0.1 for int4 ones and for `quantise`).
    - `only`, `skip`: names of rules to use alone, or to do without.
    - `dry_run`: rewrite nothing; the report has the fusions of the first round with their prices.
    - `verify`: whether to compare. `rtol`, `atol`: the bounds; None: from types and reductions.
    - `seed`, `input_shapes`: of the inputs that are made. `inputs`: arrays in place of these.
    - `time_limit`: seconds that one run of a model may take.
    - `external_data`: "auto" (as the model has its weights), "always" or "never".
    - `keep_initializer_inputs`: leave initializers that are also inputs as they are.
    - `pack`: where to write the compiled Plans; None: nowhere.
    - `rules`, `scheduler`: in place of those of the installation.
    - `providers`: what runs the result while it is verified.
    - `progress`: called with a stage, how much of it is done, and how much there is.

    When the result leaves its bounds, the smallest set of fusions at fault is turned back and
    refused. Raises ModelError (unreadable model), UsageError (options), VerificationError (results
    differ, or ONNX Runtime no longer loads the model; nothing is written; its `report` attribute
    says by how much), MissingFusionError (a rule named by `only` fused nothing).
    """
    started = time.perf_counter()
    on_progress = progress or silent
    backend = choose_backend(backend)
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision '{precision}' is unknown", f"choose from {', '.join(PRECISIONS)}"
        )
    form = None if weights == "keep" else weight_only.format_of(weights, block)
    if form is None and block is not None:
        raise UsageError("a block of weights that are kept", "give --weights int8 or int4, too")
    if quantise is not None and (form is not None or precision != "keep"):
        raise UsageError(
            "a model is quantised in one way",
            "leave out --weights and --precision beside --quantize",
        )
    if drift is not None and not drift > 0:
        raise UsageError(f"a drift of {drift}", "give a positive number, such as 0.1")
    for target in (output, pack):
        if target is not None:
            model_file.check_output(Path(target))
    on_progress("load", 0, 0)
    source, where, note = open_model(model)
    model_file.check_apart(
        source, None if output is None else Path(output), [] if pack is None else [Path(pack)]
    )
    original = model_file.Source(ModelProto(), source.folder, source.path)
    # by whom, and whether their specs say what they do, is not known
    fused_before = any(f.domain == DOMAIN for f in source.model.functions)
    if not dry_run:
        original.model.CopyFrom(source.model)
    report = Report(
        where, opset(source.model), backend, count_nodes(source.model), notes=[note] if note else []
    )
    if (form is not None or quantise is not None) and not dry_run:
        on_progress("weights" if quantise is None else "calibrate", 0, 0)
        canonical_form.canonicalise(
            source.model,
            folder=source.folder,
            keep_initializer_inputs=keep_initializer_inputs,
            notes=report.notes,
        )
        if quantise is not None:
            report.quantised = integer_drift.quantise(
                source, quantise, calibration=calibration, tolerated=drift, measured=verify,
                time_limit=time_limit,
            )  # fmt: skip
        if form is not None:

            def true_original() -> verification.Reference:
                return verification.measure(
                    original, seed=seed, values=inputs, shapes=input_shapes, time_limit=time_limit
                )

            measured = true_original if verify else None
            report.weights = weight_drift.shrink(source, form, measured, drift)
        # what is fused is compared with the quantised model
        original = model_file.Source(ModelProto(), source.folder, source.path)
        original.model.CopyFrom(source.model)
    options = FusionOptions(
        backend,
        tuple(only),
        tuple(skip),
        rules,
        scheduler,
        keep_initializer_inputs,
        dry_run,
        precision=precision,
        on_progress=on_progress,
    )
    transform(source, options, report)
    loaded = dry_run or _loads_as_before(original, source)
    if not loaded:
        # Constants can make ONNX Runtime check more strictly than it would have run the nodes that
        # made them.
        options = replace(options, budget=constant_folding.NOTHING)
        source = _again(
            original,
            options,
            report,
            "constants were not folded: ONNX Runtime would not load the result",
        )
    _check_present(source.model, report, only, where)
    if not dry_run:
        if not note:
            _check_result(source.model)
        if verify:
            on_progress("verify", 0, 0)
            kind = narrow_floats.FORMATS.get(precision)
            reference = verification.measure(
                original,
                rtol=rtol,
                atol=atol,
                seed=seed,
                values=inputs,
                shapes=input_shapes,
                kind=kind,
                time_limit=time_limit,
            )
            source = _verified(reference, source, options, report, providers)
            _check_present(source.model, report, only, where)
        if not loaded and not _loads_as_before(original, source):
            # Nodes that nobody reads can be what keeps a fault of its own passes from a model.
            raise FailedVerification(
                "with its own optimizations ONNX Runtime loads the original but not the result",
                "nothing was written; use the original, and report this with the model",
                report,
            )
        in_place = (
            output is not None
            and source.path is not None
            and model_file.same_file(Path(output), source.path)
        )
        if output is None or in_place:
            _bring_in(source)
        if output is not None:
            on_progress("save", 0, 0)
            report.files += [
                str(f) for f in model_file.save(source, Path(output), external_data=external_data)
            ]
            if in_place:
                source = model_file.load(output)  # what the model referred to is gone
        if pack is not None:
            on_progress("compile", 0, 0)
            report.files.append(
                str(
                    _pack(
                        source,
                        None if output is None else Path(output),
                        Path(pack),
                        trust=not fused_before,
                    )
                )
            )
    _bring_in(source)
    report.seconds = time.perf_counter() - started
    return OptimizeResult(source.model, report, source.folder)


def open_model(model: ModelProto | str | os.PathLike[str]) -> tuple[model_file.Source, str, str]:
    """Load and check a model: the source, what to call it, and what is odd about it ("" when
    nothing is). Raises ModelError.
    """
    source = model_file.load(model)
    where = str(source.path) if source.path is not None else source.model.graph.name or "the model"
    for g in edit.graphs(source.model):
        edit.sort_nodes(g, where)
    return source, where, check_input(source, where)


def choose_backend(name: str) -> str:
    """`auto` is the fastest that has a device on this machine. Raises UsageError."""
    if name == "auto":
        return backends.fastest()
    if name not in backends.names():
        known = ", ".join(("auto", *backends.names()))
        raise UsageError(f"backend '{name}' is unknown", f"choose from {known}")
    return name


def _loads_as_before(original: model_file.Source, result: model_file.Source) -> bool:
    """Whether stock ONNX Runtime, with its own optimisations, loads the result or did not load the
    original either.
    """
    return verification.loads(result) or not verification.loads(original)


def _again(
    original: model_file.Source, options: FusionOptions, report: Report, note: str
) -> model_file.Source:
    """The transformation from the original once more, in another way; `note` says why."""
    source = model_file.Source(ModelProto(), original.folder, original.path)
    source.model.CopyFrom(original.model)
    report.notes = [n for n in report.notes if n.startswith(_OBJECTION)]
    transform(source, options, report)
    report.notes += [note] if note else []
    return source


def _verified(
    reference: verification.Reference,
    source: model_file.Source,
    options: FusionOptions,
    report: Report,
    providers: Sequence[str],
) -> model_file.Source:
    """The result within its bounds: fusions that leave them are avoided, and refused.

    Raises FailedVerification when that does not help.
    """
    original = reference.source
    report.verify, wrong = delta_debugging.judge(reference, source, providers)
    if wrong and report.precision is not None:
        options.on_progress("bisect", 0, 0)
        widened = _widened(reference, options, report, providers)
        if widened is not None:
            return widened
    for _ in range(_BISECTIONS if wrong else 0):
        options.on_progress("bisect", 0, 0)
        made = [(f.rule, f.outputs) for f in report.fused]

        def fails(
            kept: list[Fusion], options: FusionOptions = options, made: Sequence[Fusion] = made
        ) -> bool:
            trial = replace(
                options, avoid={**options.avoid, **dict.fromkeys(set(made) - set(kept), "")}
            )
            return bool(
                delta_debugging.judge(
                    reference, _again(original, trial, replace(report), ""), providers
                )[1]
            )

        guilty = delta_debugging.at_fault(made, fails)
        if guilty:
            together = "it" if len(guilty) == 1 else f"{len(guilty)} fusions together"
            options = replace(
                options, avoid={**options.avoid, **dict.fromkeys(guilty, f"{together} {wrong}")}
            )
            note = (
                f"{len(options.avoid)} fusions were turned back, because the result left its bounds"
                " with them"
            )
        elif options.budget != constant_folding.NOTHING:
            options, note = (
                replace(options, budget=constant_folding.NOTHING),
                f"constants were not folded: with them folded {wrong}",
            )
        else:
            break
        source = _again(original, options, report, note)
        report.verify, wrong = delta_debugging.judge(reference, source, providers)
        if not wrong:
            return source
    if wrong:
        raise FailedVerification(
            f"the optimized model is wrong: {wrong}",
            "nothing was written; report this with the model",
            report,
        )
    return source


def _widened(
    reference: verification.Reference,
    options: FusionOptions,
    report: Report,
    providers: Sequence[str],
) -> model_file.Source | None:
    """The result within its bounds with some nodes in fp32; `report` becomes that of the result.
    None where the narrower type is not at fault.

    One run tells what each node loses, and so in which order they become fp32. How many do follows
    from how far the result is beyond its bounds, as if errors added up as independent ones.
    """
    original = reference.source
    assert report.precision is not None
    kind, names = report.precision.kind, list(report.precision.nodes)
    copied = replace(report)
    beside = _again(original, replace(options, beside=True), copied, "")
    assert copied.precision is not None
    errors = narrow_errors.measure(reference, beside, copied.precision.copies)
    unknown = max(filter(math.isfinite, errors.values()), default=1.0)
    order = sorted(names, key=lambda n: -errors.get(n, unknown))
    squares = [errors.get(n, unknown) ** 2 for n in order]
    kept, found = 0, report.verify  # which is None where the result does not run
    for trial in range(1, _TRIALS + 1):
        excess = math.inf if found is None else verification.excess(reference, found)
        kept = narrow_errors.enough(squares, kept, excess) if trial < _TRIALS else len(order)
        note = (
            f"{kept} of {len(names)} nodes stay fp32, because the result left its bounds with"
            f" them in {kind.name} (typical inputs: --load-inputs)"
        )
        made = replace(report)
        source = _again(original, replace(options, wide=frozenset(order[:kept])), made, note)
        found, wrong = delta_debugging.judge(reference, source, providers)
        if not wrong:
            vars(report).update(vars(replace(made, verify=found)))
            return source
        if kept == len(order):
            break
    return None


#: Sets of nodes that are tried; the last one is all of them.
_TRIALS = 6


def _check_present(model: ModelProto, report: Report, only: Collection[str], where: str) -> None:
    missing = sorted(set(only) - {f.rule for f in report.fused} - _present(model))
    if missing:
        raise MissingFusionError(
            f"rule '{missing[0]}' fused nothing in {where}",
            f"see why: tracea-onnx explain {where} --only {missing[0]}",
        )


class FailedVerification(VerificationError):
    """Carries the report with the measured differences."""

    def __init__(self, what: str, fix: str, report: Report) -> None:
        super().__init__(what, fix)
        self.report = report


def check_input(source: model_file.Source, where: str) -> str:
    """Raise ModelError unless the model is valid.

    Where ONNX's checker objects but ONNX Runtime takes the model, return the objection as a note.
    """
    # Fused ops are functions, which the checker looks at from IR version 8 on: what it says then of
    # the model's own ones is no fault of the result.
    version = source.model.ir_version
    try:
        if source.model.functions:
            source.model.ir_version = max(version, 8)
        onnx_inference.check(source.model, where)
    except ModelError as e:
        source.model.ir_version = version
        try:
            verification.session(source)
        except Exception:
            raise e from None
        return f"{_OBJECTION}: {e.what}"
    finally:
        source.model.ir_version = version
    return ""


def _check_result(model: ModelProto) -> None:
    try:
        onnx_inference.check(model, "the optimized model")
    except ModelError as e:
        raise TraceaError(e.what, "report this with the model") from e


def _bring_in(source: model_file.Source) -> None:
    """A model that came without external data goes without: weights still in its file are read."""
    external.load_into_memory(source, lambda t: external.in_own_file(t, source))


def _pack(result: model_file.Source, written: Path | None, pack: Path, *, trust: bool) -> Path:
    """Compile the optimized model and write the pack file."""
    if (
        written is None
        and result.folder is not None
        and any(t.data_location == TensorProto.EXTERNAL for t in model_file.tensors(result.model))
    ):
        raise UsageError(
            "a model with external data is compiled from the file written",
            "give an output file beside --pack",
        )
    model_file.write_bytes(
        pack,
        build_pack(
            str(written) if written is not None else model_file.serialize(result.model), trust=trust
        ),
    )
    return pack


def opset(model: ModelProto) -> int:
    """Version of ONNX's own operator set the model imports (0 for none)."""
    return opset_versions(model.opset_import).get("", 0)


def _present(model: ModelProto) -> set[str]:
    """Rules whose fusions the model holds, from this run or an earlier one."""
    calls = [n for g in edit.graphs(model) for n in g.node if n.domain == DOMAIN]
    return {e.value for n in calls for e in n.metadata_props if e.key == fused_calls.METADATA_RULE}

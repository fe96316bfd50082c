"""Requests to the compiler of partitions, and tuning records."""

from __future__ import annotations

import contextlib
import json
import os
import warnings

from onnx import ModelProto

from tests.fuzz import mutations
from tests.fuzz.cases import OK, REFUSED, Case, failure
from tests.fuzz.commands import command
from tests.fuzz.plans import packed_model
from tests.fuzz.seeds import kept, seed_model
from tests.fuzz.workers import Verdict
from tests.support import sessions
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.plan import builder
from tracea_onnx.runtime import device_caps
from tracea_onnx.shapes import onnx_inference


def changed_tuning(c: Case) -> Verdict:
    """A tuning record with other contents."""
    from unittest import mock

    _, _, _, requests = packed_model(c)
    if not requests:
        return Verdict(REFUSED, "no request")
    model = ModelProto.FromString(c.random.choice(requests))
    folder = c.folder / "records"
    with mock.patch.dict(os.environ, {"XDG_DATA_HOME": str(folder)}):
        try:
            offers = json.loads(_offers(bytes(model.SerializeToString())))
            found = {
                k: tuning_records.Measured(c.random.choice(v), 1.0, 2.0, [{}])
                for k, v in offers.items()
            }
            device = device_caps.usual(90, 132)
            path = tuning_records.add(device, found)
            if c.random.random() < 0.7:
                value: object = tuning_records.exported()
                for _ in range(c.random.choice((1, 2, 4))):
                    value = mutations.tree(value, c.random)
                data = json.dumps(value).encode()
                data = mutations.damage(data, c.random) if c.random.random() < 0.1 else data
                tuning_records.clear()
                given = str(c.write(data, "records.json"))
                for argv in (["import", given], ["merge", f"{given}.merged", given], ["history"]):
                    ended = command(["tune", *argv])
                    if ended.status not in (OK, REFUSED):
                        return ended
            else:
                path.write_bytes(mutations.damage(path.read_bytes(), c.random))
                tuning_records.trials(device)
                tuning_records.similar(device)
            _compile_cuda(model, tuning_records.choices(device))
        except TraceaError as e:
            return Verdict(REFUSED, str(e))
        except Exception as e:
            return failure("internal", e)
        finally:
            tuning_records.clear()
    return Verdict(OK)


@kept
def _offers(request: bytes) -> bytes:
    """Which kernels each launch of a request may be, as JSON."""
    offers: kernel_choice.Offers = {}
    _compile_cuda(ModelProto.FromString(request), kernel_choice.Choices(offers=offers))
    return json.dumps({k: sorted(v) for k, v in offers.items()}).encode()


def _compile_cuda(model: ModelProto, choices: kernel_choice.Choices) -> None:
    backend = plan_writer.writer(backends.get("cuda"), None, choices)
    partition_compiler.compile_graph(
        Graph(model),
        plan_writer.Writer(backend.target, lambda name, probe: backend.plan(name, True)),
        everything=True,
    )


def changed_request(c: Case) -> Verdict:
    """A request to the compiler of partitions that ONNX Runtime might never make."""
    r = c.random
    _, _, _, requests = packed_model(c)
    if not requests or r.random() < 0.5:
        model = seed_model(c)
        for n in model.graph.node:
            n.doc_string = f"{r.getrandbits(256):064x}"
        model.metadata_props.add(key="claim", value="all")
    else:
        model = ModelProto.FromString(r.choice(requests))
    # Constants are ONNX Runtime's own, so they are what they say.
    c.mutate(
        model, [m for m in mutations.MUTATIONS if m not in (mutations.tensor, mutations.external)]
    )
    if r.random() < 0.1:
        for p in model.metadata_props:
            if p.key == "backend":  # kernels for a GPU would be compiled, for minutes
                continue
            p.value = r.choice((p.value, "", "x", "all", "cpu"))
    if r.random() < 0.6:  # as ONNX Runtime, which tells types and shapes
        with contextlib.suppress(Exception):
            checked = model_file.load(model).model
            onnx_inference.check(checked, "the model")  # else onnx's inference may crash
            onnx_inference.infer(checked, onnx_inference.user_types(checked))
            model = checked
    data = bytes(model.SerializeToString())
    if r.random() < 0.1:
        data = mutations.damage(data, r)
    c.write(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", partition_compiler.Fault)
            pack = compile_requests.compile_request(data)
        header, _ = builder.read_pack(pack)
        for entry in header["entries"]:
            json.dumps(entry)
    except TraceaError as e:
        return Verdict(REFUSED, str(e)[:300])
    except Exception as e:
        try:
            sessions.session(data, optimize=False)
        except Exception:  # ONNX Runtime would never have asked
            return Verdict(REFUSED, str(e)[:100])
        return failure("internal", e)
    return Verdict(OK)

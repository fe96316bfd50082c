"""The optimizer as a pass of Olive (`olive-ai`), `TraceaOptimize`:

    python -m tracea_onnx.olive > passes.json
    olive run --config workflow.json --package-config passes.json

Olive finds passes in such a file alone. This one has Olive's own passes and `TraceaOptimize`.
"""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

from olive.hardware import AcceleratorSpec
from olive.hardware.accelerator import Device
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from tracea_onnx.codegen import backend as backends
from tracea_onnx.pipeline import report
from tracea_onnx.pipeline.optimizer import optimize

#: Options of `tracea_onnx.optimize` that a workflow can give, with the types of their JSON values.
OPTIONS: dict[str, Any] = {
    "backend": str, "precision": str, "weights": str, "only": list[str], "skip": list[str],
    "verify": bool, "rtol": float, "atol": float, "seed": int,
    "input_shapes": dict[str, tuple[int, ...]], "time_limit": float,
    "external_data": str, "keep_initializer_inputs": bool, "scheduler": str,
}  # fmt: skip

_log = logging.getLogger(f"olive.{__name__}")  # Olive shows what is under its own logger


class TraceaOptimize(Pass):
    """Fuses an ONNX model and verifies the result against the original."""

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """Fusions are priced for the accelerator."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        usual = {k: p.default for k, p in inspect.signature(optimize).parameters.items()}
        host = accelerator_spec.accelerator_type != Device.GPU
        usual["backend"] = next(n for n in backends.names() if backends.get(n).host == host)
        return {
            name: PassConfigParam(
                type_=kind,
                default_value=list(usual[name]) if isinstance(usual[name], tuple) else usual[name],
                description="As of tracea_onnx.optimize",
            )
            for name, kind in OPTIONS.items()
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        target = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        target.parent.mkdir(parents=True, exist_ok=True)
        made = optimize(
            model.model_path, output=target, **{name: getattr(config, name) for name in OPTIONS}
        )
        _log.info("%s", "\n".join(report.text(made.report)))
        folder = len(made.report.files) > 1  # the weights are in a file beside it
        return ONNXModelHandler(
            model_path=str(target.parent if folder else target),
            onnx_file_name=target.name if folder else None,
        )


def package_config() -> dict[str, Any]:
    """Olive's own list of passes with `TraceaOptimize`: `package_config` of `olive.workflows.run`,
    and what `olive run --package-config` reads.
    """
    listed = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8"))
    listed["passes"]["TraceaOptimize"] = {
        "module_path": "tracea_onnx.olive.TraceaOptimize",
        "supported_providers": ["*"],
        "supported_accelerators": [Device.CPU, Device.GPU],
        "supported_precisions": ["*"],
    }
    return dict(listed)


if __name__ == "__main__":
    print(json.dumps(package_config(), indent=1))

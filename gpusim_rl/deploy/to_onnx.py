"""A torch module as an ONNX model, or one line that says why not."""

import copy
import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from gpusim_rl.deploy.onboard.verdict import Json

OPSET = 18
KEY = "gpusim_rl"  # of the description in the file's metadata
SEAL = "sha256 of the first {:09} bytes: {}"  # of a file, the digest as zeros


def to_onnx(
    module: nn.Module,
    sample: dict[str, Tensor],
    outputs: list[str],
    user: Callable[[str], str] = lambda operator: "",
) -> onnx.ModelProto:
    """A module as ONNX, with inputs and outputs of these names and a batch of any size.

    Args:
        module: its arguments are those of `sample`, in order.
        sample: input → two rows of it.
        user: says where an operator of torch is used.

    ValueError, in one line, if torch cannot trace the module, or ONNX lacks one of its operators.
    """
    # at its usual level the exporter reports every optional package that is not installed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # torch.export 2.13 uses a deprecated function of torch itself
        warnings.filterwarnings(
            "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning
        )
        traced = trace(module, sample)
        try:
            program = torch.onnx.export(
                traced,
                input_names=list(sample),
                output_names=outputs,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ValueError(f"export: {missing_operator(traced, error, user)}") from error
    assert program is not None
    model = program.model_proto
    for thing in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del thing.metadata_props[:]  # stack traces: half of the file, with paths of this machine
    return model


@torch.no_grad()  # as the policy acts: with gradients on, networks take other operations
def trace(module: nn.Module, sample: dict[str, Tensor]) -> torch.export.ExportedProgram:
    """A module's operators, for a batch of any size; ValueError in one line if torch cannot."""
    twin, batch = copy.deepcopy(module).cpu().eval(), torch.export.Dim("batch")
    try:
        return torch.export.export(
            Arguments(twin),
            tuple(x.cpu() for x in sample.values()),
            dynamic_shapes={"args": tuple({0: batch} for _ in sample)},
            strict=False,
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"export: torch cannot trace the controller: {reason}") from error


class Arguments(nn.Module):
    """A module whose arguments have no names of their own."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args: Tensor) -> Any:
        return self.module(*args)


def missing_operator(
    traced: torch.export.ExportedProgram, error: BaseException, user: Callable[[str], str]
) -> str:
    """One line that names the operator that ONNX lacks, and who uses it."""
    reason = " ".join(str(error).split())[:200]
    while error.__cause__:
        error = error.__cause__
    missing = re.search(r"No ONNX function found for <OpOverload\(op='(\w+\.(\w+))'", str(error))
    if not missing:
        return f"ONNX cannot hold the controller: {reason}"
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    name = next((x for x in called if missing[2] in x), missing[1])
    where = user(name.split(".")[1])
    return f"ONNX has no operator for {name}" + (f": {where}" if where else "")


def finished(
    model: onnx.ModelProto, description: Json, mjcf: str, further: dict[str, str] | None = None
) -> bytes:
    """The bytes of a model with its description and further metadata, after ONNX's own checks."""
    text = json.dumps(description, ensure_ascii=False)
    onnx.helper.set_model_props(model, (further or {}) | {KEY: text, "mjcf": mjcf})
    onnx.checker.check_model(model, full_check=True)
    return sealed(model)


def sealed(model: onnx.ModelProto) -> bytes:
    """The bytes of a model, with their SHA-256 in its metadata, where it counts as 64 zeros.

    So the runtime notices a file that was changed after its export. Whoever changes one on purpose
    seals it again. Only a verdict may be appended to these bytes, which is not covered.
    """
    notes = {note.key: note.value for note in model.metadata_props}
    size, blank = 0, ""
    for _ in range(2):  # first without the size; the text is as long with it
        blank = SEAL.format(size, "0" * 64)
        onnx.helper.set_model_props(model, notes | {"seal": blank})
        size = model.ByteSize()
    data = model.SerializeToString()
    seal = SEAL.format(size, hashlib.sha256(data).hexdigest())
    return data.replace(blank.encode(), seal.encode())

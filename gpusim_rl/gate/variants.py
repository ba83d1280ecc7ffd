"""Smaller files of a policy: the network in half precision or in bytes, judged by the gate.

The nodes of the network alone are converted. All else of the controller stays float32: history,
clock, memory and the targets.
"""

import copy
import logging
import tempfile
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpusim_rl.core.files import write_whole
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.gate.drive import drive
from gpusim_rl.gate.judge import evaluate_policy, write_verdict
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan, Settings

NETWORK = ("Gemm", "MatMul")  # operators of its layers
ROBOTS, SECONDS = 16, 5  # whose inputs calibrate a variant of bytes
CHECKSUMS = ("gate", "seal")  # keys of the metadata that are of one file alone
CALLS, WARM = 2000, 200  # of one robot, that are timed; and those before them


def make(
    path: Path, judged: bytes, names: list[str], report: Json, settings: Settings, seed: int
) -> list[Json]:
    """Write the variants of a file beside it, such as policy.int8.onnx, each with its verdict.

    A variant is refused if it fails the gate, or succeeds less often than the file by more than
    `settings` allow. Then it is not written, and an older file of its name stays as it was.

    Returns one row for the file, and one for each variant. `report` is of the bytes `judged`.
    """
    whole = onnx.load_model_from_string(judged)
    layers = network(whole, path)
    makers = {"fp16": lambda: half(whole, layers), "int8": lambda: bytes_of(whole, layers, feeds)}
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_bytes(judged)
        rows = [summary_row("float32", draft, report)]
        feeds = recorded(Policy(draft), settings, seed) if "int8" in names else []
        for name in names:
            out = path.with_suffix(f".{name}.onnx")
            draft.write_bytes(made := sealed(makers[name]()))
            result = evaluate_policy(Policy(draft), settings, seed, str(out))
            row = summary_row(name, draft, result)
            lost = rows[0]["success"] - row["success"]
            row["refused"] = result["verdict"] != "pass" or lost > settings["variant"]
            if not row["refused"]:
                write_verdict(draft, result, settings, made)
                write_whole(out, draft.read_bytes())
            rows.append(row)
    return rows


def network(model: onnx.ModelProto, path: Path) -> list[onnx.NodeProto]:
    """The layers of the network: products with weights that the file holds; ValueError if none."""
    held = {x.name for x in model.graph.initializer if x.data_type == TensorProto.FLOAT}
    layers = [x for x in model.graph.node if x.op_type in NETWORK and x.input[1] in held]
    if not layers:
        raise ValueError(f"{path} has no network in float32: variants are made of such a file")
    return layers


# Why: docs/decisions/gate.md
def half(model: onnx.ModelProto, layers: list[onnx.NodeProto]) -> onnx.ModelProto:
    """The layers in half precision: weights, products and sums; inputs and results are cast."""
    out, names = without_checksums(model), {x.name for x in layers}
    weights = {name for x in layers for name in x.input[1:]}
    for tensor in out.graph.initializer:
        if tensor.name in weights:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes = []
    for node in out.graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        source, result = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{node.name}.source", f"{node.name}.half"
        nodes.append(cast(source, node.input[0], TensorProto.FLOAT16))
        nodes += [node, cast(node.output[0], result, TensorProto.FLOAT)]
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    del out.graph.value_info[:]  # types of values between the nodes, which have changed
    onnx.checker.check_model(out, full_check=True)
    return out


def cast(source: str, result: str, to: int) -> onnx.NodeProto:
    """A node that changes the type of a value."""
    return helper.make_node("Cast", [source], [result], name=f"{result}.cast", to=to)


def bytes_of(
    model: onnx.ModelProto, layers: list[onnx.NodeProto], feeds: list[dict[str, np.ndarray]]
) -> onnx.ModelProto:
    """The layers in 8-bit integers, by onnxruntime's static quantization.

    feeds: inputs of the whole model, which show how large the values of each layer are.
    """
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """Hands out the inputs, one after another."""

        left = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    logging.getLogger().setLevel(logging.ERROR)  # it advises a step that changes nothing here
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        options: Any = dict(per_channel=True, nodes_to_quantize=[x.name for x in layers])
        quantization.quantize_static(without_checksums(model), file, Reader(), **options)
        out = onnx.load(file)
    del out.metadata_props[:]
    out.metadata_props.extend(without_checksums(model).metadata_props)
    onnx.checker.check_model(out, full_check=True)
    return out


def without_checksums(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model without its verdict and seal, which are not those of its variants."""
    out = copy.deepcopy(model)
    entries = [x for x in model.metadata_props if x.key not in CHECKSUMS]
    del out.metadata_props[:]
    out.metadata_props.extend(entries)
    return out


def recorded(policy: Policy, settings: Settings, seed: int) -> list[dict[str, np.ndarray]]:
    """All inputs of a policy in every step of robots that follow commands."""
    feeds, run = [], policy.session.run

    def recording(names: Any, feed: dict[str, np.ndarray]) -> Any:
        feeds.append({name: x.copy() for name, x in feed.items()})
        return run(names, feed)

    policy.session = SimpleNamespace(run=recording)  # pyright: ignore
    drive([Plan(make_robot(policy), "normal", ROBOTS, SECONDS, settings, seed)])
    return feeds


def summary_row(name: str, path: Path, report: Json) -> Json:
    """A row on a file: its size, how long a step of one robot takes, its success."""
    median, slow = latency(Policy(path))
    won = report["success"]
    return {
        "variant": name,
        "bytes": path.stat().st_size,
        "p50_ms": median,
        "p99_ms": slow,
        "success": won["value"],
        "success_interval": won["interval"],
        "verdict": report["verdict"],
        "complaints": report["complaints"],
        "refused": False,
    }


def latency(policy: Policy) -> tuple[float, float]:
    """The 50th and 99th percentile of the time of a step of one robot [ms], on this machine."""
    policy.reset()
    readings = {name: np.ones(width, np.float32) for name, width in policy.needs.items()}
    command = np.zeros(len(policy.command["names"])) if policy.command else None
    times = []
    for _ in range(WARM + CALLS):
        begun = perf_counter()
        policy.act(readings, command)
        times.append(1e3 * (perf_counter() - begun))
    median, slow = np.percentile(times[WARM:], (50, 99))
    return float(median), float(slow)


def table(rows: list[Json]) -> str:
    """The variants as a table for people."""
    lines = ["variant    kB   p50 ms   p99 ms   success"]
    for x in rows:
        low, high = x["success_interval"]
        end = ": refused" if x["refused"] else ""
        cost = f"{x['bytes'] / 1000:5.0f}{x['p50_ms']:9.3f}{x['p99_ms']:9.3f}"
        result = f"{x['success']:10.3f} ({low:.3f} to {high:.3f}), {x['verdict']}{end}"
        lines.append(f"{x['variant']:8}{cost}{result}")
    return "\n".join(lines)

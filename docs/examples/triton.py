"""Write an exported file as a model repository of NVIDIA's Triton server:

    python triton.py policy.onnx models

Triton keeps what a policy remembers, one sequence for each robot: what it calls implicit state. The
names are those of `model_config.proto` in triton-inference-server/common.
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from gpusim_rl.deploy.controller import RESTART
from gpusim_rl.deploy.runtime import Policy

ROBOTS = 256  # of a batch at most, and of those that wait
IDLE = 5_000_000  # µs without a request after which a robot is forgotten
DELAY = 1000  # µs that a batch waits for more requests
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a task or a tensor, which names a file, too
Entry = dict[str, Any]  # a tensor of a policy's description
TYPES = {
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}
CONFIG = """name: "{name}"
backend: "onnxruntime"
max_batch_size: {robots}
input [
{inputs}
]
output [
{outputs}
]
sequence_batching {{
  max_sequence_idle_microseconds: {idle}
  oldest {{ max_candidate_sequences: {robots} max_queue_delay_microseconds: {delay} }}
  control_input [
    {{
      name: "{restart}"
      control [ {{ kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }} ]
    }}
  ]
{states}}}
"""
STATE = """    {{
      input_name: "{input}"
      output_name: "{output}"
      {kind}
      initial_state: {{ name: "{name}" {kind} data_file: "{name}.bin" }}
    }}"""


def write_repository(policy: Policy, folder: Path) -> None:
    """Write a policy to a directory, which may have models of other tasks.

    ValueError or OSError if it has a model of this name, or cannot be written.
    """
    name = str(policy.description["task"])
    files = {"config.pbtxt": config(policy, name).encode()}
    files["1/model.onnx"] = widen(policy.data).SerializeToString()
    files |= {f"initial_state/{key}.bin": x.tobytes() for key, x in policy.start.items()}
    if (folder / name).exists():
        raise ValueError(f"{folder} has a model {name} already: remove {folder / name} first")
    for file, data in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def config(policy: Policy, name: str) -> str:
    """The text of config.pbtxt; ValueError for a name that is no word."""
    description = policy.description
    memory = [entry[key] for entry in description["memory"] for key in ("name", "input", "output")]
    for word in (
        name,
        *(x["name"] for x in (*description["inputs"], *description["outputs"])),
        *memory,
    ):
        if not NAME.fullmatch(word):
            raise ValueError(f"{word!r} is no name of a model or a tensor of Triton")
    inputs = [x for x in description["inputs"] if x["name"] != RESTART]
    states = ",\n".join(STATE.format(**x, kind=kind_of(x)) for x in description["memory"])
    return CONFIG.format(
        name=name,
        robots=ROBOTS,
        idle=IDLE,
        delay=DELAY,
        restart=RESTART,
        inputs=",\n".join(map(tensor, inputs)),
        outputs=",\n".join(map(tensor, description["outputs"])),
        states=f"  state [\n{states}\n  ]\n" if states else "",
    )


def tensor(entry: Entry) -> str:
    """An input or an output."""
    return f'  {{ name: "{entry["name"]}" {kind_of(entry)} }}'


def kind_of(entry: Entry) -> str:
    """The type and the shape of a tensor for one robot."""
    shape = ", ".join(map(str, entry["shape"] or [1]))
    return f"data_type: {TYPES[entry['type']]} dims: [ {shape} ]"


def widen(data: bytes) -> onnx.ModelProto:
    """The model, in which a tensor that has one number for each robot is (B, 1), and not (B,).

    Triton knows no shape without an axis beside that of the batch.
    """
    model = onnx.load_model_from_string(data)
    graph, axis = model.graph, onnx.numpy_helper.from_array(np.array([1]), "triton.axis")
    graph.initializer.append(axis)
    for values, operator in ((graph.input, "Squeeze"), (graph.output, "Unsqueeze")):
        for value in values:
            shape = value.type.tensor_type.shape
            if len(shape.dim) > 1:
                continue
            shape.dim.add().dim_value = 1
            inner = f"triton.{value.name}"
            for node in graph.node:
                for names in (node.input, node.output):
                    names[:] = [inner if x == value.name else x for x in names]
            ends = [value.name, inner] if operator == "Squeeze" else [inner, value.name]
            node = onnx.helper.make_node(operator, [ends[0], axis.name], ends[1:])
            graph.node.insert(0 if operator == "Squeeze" else len(graph.node), node)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        write_repository(Policy(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {sys.argv[2]}: tritonserver --model-repository={Path(sys.argv[2]).resolve()}")

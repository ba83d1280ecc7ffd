"""The example that writes a model repository of Triton: read back, it is the policy, bit by bit."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.deploy.runtime import Policy
from tests.worlds import ROOT

PROGRAM = ROOT / "docs" / "examples" / "triton.py"
TYPES = {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32, "TYPE_BOOL": np.bool_}
TOKEN = re.compile(r'"[^"]*"|[{}\[\],:]|[^\s{}\[\],:]+')
ROBOTS = 4  # so many rows are computed as `Policy.act` computes them


def parse(tokens: list[str]) -> dict[str, list[Any]]:
    """A message in protobuf's text format: field → its values."""
    message: dict[str, list[Any]] = {}
    while tokens and (field := tokens.pop(0)) != "}":
        if field == ",":
            continue
        if tokens[0] == ":":
            tokens.pop(0)
        several = tokens[0] == "[" and bool(tokens.pop(0))
        values = message.setdefault(field, [])
        while True:
            value = tokens.pop(0)
            if value not in ("]", ","):
                values.append(parse(tokens) if value == "{" else value.strip('"'))
            if value == "]" or not several:
                break
    return message


class Triton:
    """What Triton does with a repository of one model: it keeps the state of each sequence."""

    def __init__(self, folder: Path):
        (self.folder,) = folder.iterdir()
        self.config = parse(TOKEN.findall((self.folder / "config.pbtxt").read_text()))
        self.session = onnxruntime.InferenceSession(self.folder / "1" / "model.onnx")
        (self.sequences,) = self.config["sequence_batching"]
        (control,) = self.sequences["control_input"]
        (self.start,) = control["name"]
        self.state: dict[str, np.ndarray] = {}

    def shape(self, entry: dict[str, Any]) -> tuple[int, ...]:
        """The shape of a tensor for all robots."""
        return (ROBOTS, *map(int, entry["dims"]))

    def infer(self, values: dict[str, np.ndarray], start: bool) -> dict[str, np.ndarray]:
        """The outputs of a request of each robot."""
        states = self.sequences["state"]
        for state in states if start else ():
            (first,) = state["initial_state"]
            data = (self.folder / "initial_state" / first["data_file"][0]).read_bytes()
            row = np.frombuffer(data, TYPES[first["data_type"][0]])
            rows = np.broadcast_to(row, (ROBOTS, row.size))
            self.state[state["input_name"][0]] = rows.reshape(self.shape(first))
        names = [x["name"][0] for x in self.config["output"]]
        inputs = {x["name"][0]: x for x in self.config["input"]}
        assert values.keys() == inputs.keys()
        inputs = {name: values[name].reshape(self.shape(x)) for name, x in inputs.items()}
        inputs |= self.state | {self.start: np.full((ROBOTS, 1), start)}
        results = [*names, *(x["output_name"][0] for x in states)]
        arrays = map(np.asarray, self.session.run(results, inputs))
        outputs = dict(zip(results, arrays, strict=True))
        self.state = {x["input_name"][0]: outputs[x["output_name"][0]] for x in states}
        for entry in self.config["output"]:
            assert outputs[entry["name"][0]].shape == self.shape(entry)
        return outputs


@pytest.fixture
def write_models(monkeypatch) -> Callable[[Path], object]:
    """Runs the program with the demo's policy."""

    def run(folder: Path) -> object:
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), str(DEMO), str(folder)])
        return runpy.run_path(str(PROGRAM), run_name="__main__")

    return run


def test_a_repository_is_the_policy(write_models, tmp_path, capsys):
    """Over eight steps it has the targets of `Policy.act`, also begun anew."""
    models = tmp_path / "models"
    write_models(models)
    said = capsys.readouterr().out
    assert said == f"wrote {models}: tritonserver --model-repository={models}\n"
    server, policy, rng = Triton(models), Policy(DEMO), np.random.default_rng(0)
    assert server.config["name"] == ["quadruped"] == [server.folder.name]
    assert {file.stem for file in (server.folder / "initial_state").iterdir()} == {*policy.start}
    for _ in range(2):
        policy.reset(ROBOTS)
        for step in range(8):
            values = {
                name: rng.uniform(0.1, 1, (ROBOTS, width)).astype(np.float32)
                for name, width in policy.needs.items()
            }
            command = rng.uniform(-0.3, 0.3, (ROBOTS, 3)).astype(np.float32)
            answer = server.infer(values | {"command": command}, start=step == 0)
            assert (answer["targets"] == policy.act(values, command)).all()
            assert not answer["fault"].any()


def test_a_repository_has_several_models(write_models, tmp_path):
    """A directory that exists is taken, and a model that is there is not replaced."""
    (tmp_path / "getup").mkdir()
    write_models(tmp_path)
    assert {x.name for x in tmp_path.iterdir()} == {"getup", "quadruped"}
    with pytest.raises(SystemExit) as end:
        write_models(tmp_path)
    line = f"error: {tmp_path} has a model quadruped already: remove {tmp_path}/quadruped first"
    assert end.value.code == line


def test_names_of_a_stranger():
    """A task that is a path, or closes the quotes, is refused."""
    config = runpy.run_path(str(PROGRAM))["config"]
    for name in ("../up", 'a"', "", ".hidden"):
        with pytest.raises(ValueError, match="is no name of a model"):
            config(Policy(DEMO), name)

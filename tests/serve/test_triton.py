"""A model repository of Triton: read back, it is the policy, bit by bit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from gpusim_rl.commands.play_mode import DEMO, choose_mode
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.serve import triton

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


def test_a_repository_is_the_policy(tmp_path, capsys):
    """Robots over eight steps have the targets of `Policy.act`, and so they have after they
    begin anew."""
    triton.write_repository({"onnx": str(DEMO), "out": str(tmp_path / "models")})
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path}/models: tritonserver ")
    server, policy, rng = Triton(tmp_path / "models"), Policy(DEMO), np.random.default_rng(0)
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


def test_a_repository_has_several_models(tmp_path, monkeypatch):
    """A directory that exists is taken, and a model that is there is not replaced."""
    (tmp_path / "getup").mkdir()
    words = compose_plain("play", f"mode=triton onnx={DEMO} out={tmp_path}".split())
    assert choose_mode(words) == "triton"
    monkeypatch.setattr(triton, "widen", lambda data: onnx.ModelProto())
    triton.write_repository(words)
    assert {x.name for x in tmp_path.iterdir()} == {"getup", "quadruped"}
    with pytest.raises(ValueError, match=f"out={tmp_path} has a model quadruped already: remove"):
        triton.write_repository(words)


def test_a_run_is_no_repository(tmp_path):
    """Nor are its checkpoints; a directory of the user's own beside them is taken."""
    run = tmp_path / "run"
    for folder in ("checkpoints", "models"):
        (run / folder).mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1")
    (tmp_path / "link").symlink_to(run)
    for out in (run, run / "checkpoints", tmp_path / "link", tmp_path / "link" / "checkpoints"):
        with pytest.raises(ValueError, match="belongs to the run run: choose another directory"):
            choose_mode(compose_plain("play", f"mode=triton onnx={DEMO} out={out}".split()))
    choose_mode(compose_plain("play", f"mode=triton onnx={DEMO} out={run / 'models'}".split()))


def test_names_of_a_stranger(tmp_path):
    """A task that is a path, or closes the quotes, is refused."""
    policy = Policy(DEMO)
    for name in ("../up", 'a"', "", ".hidden"):
        with pytest.raises(ValueError, match="is no name of a model"):
            triton.config(policy, name)

"""The verdict in an exported file: written, read, and worth nothing once the file is edited."""

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from gpusim_rl.deploy.onboard.verdict import cut, digest, read_verdict, with_verdict
from gpusim_rl.deploy.to_onnx import sealed

VERDICT = {"verdict": "pass", "date": "2026-11-25", "success": 0.98}


@pytest.fixture
def data() -> bytes:
    """A small ONNX file."""
    return file_bytes()


def file_bytes(scale: float = 2.0) -> bytes:
    """A small sealed ONNX file with metadata."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [scale])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"gpusim_rl": "{}", "mjcf": "<mujoco/>"})
    return sealed(model)


def test_a_verdict_is_written_and_read_and_the_file_still_loads(data):
    """The verdict comes back, the digest does not count it, and ONNX reads it as metadata."""
    judged = with_verdict(data, VERDICT)
    assert read_verdict(data) is None
    verdict = read_verdict(judged)
    assert verdict and VERDICT.items() <= verdict.items() and verdict["file"] == digest(data)
    assert digest(judged) == digest(data) != digest(file_bytes(2.5))
    held = onnxruntime.InferenceSession(judged).get_modelmeta().custom_metadata_map
    assert {*held} - {"seal"} == {"gpusim_rl", "mjcf", "gate"}
    onnx.checker.check_model(onnx.load_model_from_string(judged))
    again = with_verdict(judged, {"verdict": "fail"})  # replaces the first one
    assert read_verdict(again)["verdict"] == "fail"  # pyright: ignore
    assert len(again) < len(judged)


@pytest.mark.parametrize(
    "edit",
    [
        lambda judged: judged.replace(b'"pass"', b'"fail"'),
        lambda judged: judged.replace(b'"pass"', b'"Pass"'),
        lambda judged: judged.replace(b"0.98", b"0.99"),
        lambda judged: judged.replace(b"<mujoco/>", b"<Mujoco/>"),
        lambda judged: judged.replace(b"\x00\x00\x00\x40", b"\x00\x00\x20\x40"),  # the weight
        lambda judged: judged.replace(b'"sha256"', b'"sha257"'),
        lambda judged: judged + judged[len(cut(judged)[0]) :],  # twice
        lambda judged: judged + b"\x0a\x02hi",  # one more field
    ],
)
def test_an_edited_file_is_seen(edit, data):
    """One changed byte of weights, description or verdict, a second verdict, another field."""
    judged = with_verdict(data, VERDICT)
    edited = edit(judged)
    assert edited != judged
    with pytest.raises(ValueError, match="edited after the gate judged it"):
        read_verdict(edited)


def test_every_flipped_bit_is_seen(data):
    """A flipped bit anywhere leaves no verdict that is believed."""
    judged = with_verdict(data, VERDICT)
    for i in range(len(judged)):
        for bit in (1, 128):
            edited = judged[:i] + bytes([judged[i] ^ bit]) + judged[i + 1 :]
            try:
                assert read_verdict(edited) is None  # its key is another one
            except ValueError:
                pass

"""The computer of a batch of robots: it runs an exported policy with numpy and onnxruntime alone.

    python -I tests/robot_computer.py RUNTIME_PY POLICY_ONNX

It talks over stdin and stdout, in pickled objects. It first says what the policy needs; then it
gets `{"worlds": B, "memory": {…}}`; then, for each step, `{"readings", "command", "restart"}`, and
answers with the targets (B, nu). It ends with its input.
"""

import importlib.abc
import importlib.util
import pickle
import sys

BANNED = ("torch", "mujoco", "gpusim_rl", "tasks", "warp", "mujoco_warp", "onnx")


class Ban(importlib.abc.MetaPathFinder):
    """Makes the import of what a robot's computer does not have fail."""

    def __init__(self, names: tuple[str, ...] = BANNED):
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in self.names:
            raise ImportError(f"{fullname} is not installed on a robot")
        return None


def load(file: str):
    """The runtime module from its file, without its package."""
    spec = importlib.util.spec_from_file_location("runtime", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say(value: object) -> None:
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def main() -> None:
    sys.meta_path.insert(0, Ban())
    runtime_file, onnx_file = sys.argv[1:]
    policy = load(runtime_file).Policy(onnx_file)
    say({"needs": policy.needs, "reads": policy.reads, "mjcf": policy.mjcf})
    begin = pickle.load(sys.stdin.buffer)
    policy.reset(begin["worlds"])
    policy.memory |= begin["memory"]
    try:
        while True:
            given = pickle.load(sys.stdin.buffer)
            if given["restart"] is not None:
                policy.restart(given["restart"])
            say(policy.act(given["readings"], given["command"]))
    except EOFError:
        pass
    loaded = [name for name in BANNED if name in sys.modules]
    if loaded:
        raise SystemExit(f"this process has imported {', '.join(loaded)}")


if __name__ == "__main__":
    main()

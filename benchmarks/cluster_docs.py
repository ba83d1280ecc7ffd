"""What docs/cluster.md says of several machines, tried on this one.

    python -m benchmarks.cluster_docs

It works in a PID namespace of its own, since the Slurm script ends every Ray that it sees: this
needs root. The Slurm script runs with a stub of srun, and trains a tiny cartpole. Then `ray start`
asks for a token: a training without one, one with another and one with the right one are started.
At last two machines of one Ray have different labels, and actors ask for those of the second.
Exits with 1 unless the first two are refused in one line, the others end well, and the actors are
where their labels are.
"""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import program
from gpusim_rl.cluster.engine import LOOPBACK, SETTINGS
from gpusim_rl.cluster.iteration import make_iteration
from tests.command_lines import TINY, environment
from tests.worlds import ROOT, make_config

STUBS = {
    "srun": 'while [[ "$1" == -* ]]; do shift; done; exec "$@"',
    "scontrol": "echo 127.0.0.1",
    "ray": f'exec {sys.executable} -m ray.scripts.scripts "$@"',
    "python": f'exec {sys.executable} "$@"',
}
WORDS = ("task=cartpole", *TINY, "iterations=3", "log=none", "cluster=ray", "cluster.actors=2")
START = ("--head", "--node-ip-address=127.0.0.1", "--num-cpus=3", "--include-dashboard=false")


def free_port() -> str:
    """A port that nobody listens at."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def slurm_script() -> str:
    """The script of the page, for a tiny training and another port."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    (script,) = re.findall(r"```slurm\n(.*?)```", text, re.S)
    words = {"task=quadruped cluster=ray cluster.actors=120": " ".join(WORDS)}
    words |= {"run_dir=/shared/runs/walk": "run_dir=slurm", ":6379": f":{free_port()}"}
    words |= {"train.py": str(ROOT / "train.py")}
    for old, new in words.items():
        assert old in script, old
        script = script.replace(old, new)
    return script


def tokens(env: dict[str, str], auth: dict[str, str], how: dict[str, Any]) -> bool:
    """Whether `ray start` asks for a token, and trains with the right one alone."""
    port, right = free_port(), True
    started = subprocess.run(["ray", "start", *START, f"--port={port}"], env=env | auth, **how)
    print(f"ray start: exit code {started.returncode}", flush=True)
    line = ["python", str(ROOT / "train.py"), *WORDS, f"cluster.address=127.0.0.1:{port}"]
    for name, more, code in (
        ("without a token", {}, 2),
        ("with another token", auth | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}, 2),
        ("with the token", auth, 0),
    ):
        done = subprocess.run([*line, f"run_dir={name}"], env=env | more, **how)
        said = done.stderr.strip().splitlines()
        print(f"{name}: exit code {done.returncode}, {said[:3]}", flush=True)
        right &= done.returncode == code and len(said) == (code != 0)
    return right


def labels() -> bool:
    """Whether actors are on the machine whose labels they ask for, of two."""
    import ray
    from ray._private.state import actors
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"num_cpus": 4, "labels": {"market": "owned"}})
    node = cluster.add_node(num_cpus=2, labels={"market": "spot"})
    many = make_iteration(
        make_config(*WORDS, f"cluster.address={cluster.address}", "cluster.labels={market: spot}")
    )
    many.iteration()
    places = [x["Address"]["NodeID"] for x in actors().values()]
    many.close()
    ray.shutdown()
    cluster.shutdown()
    print(
        f"labels: {places.count(node.node_id)} of {len(places)} actors on the machine that has them"
    )
    return places == [node.node_id] * 2


def main(words: list[str]) -> None:
    """Run all."""
    _, words = program.split_words(__doc__, words)
    if "inside" not in words:
        line = [sys.executable, "-m", "benchmarks.cluster_docs", "inside"]
        raise SystemExit(subprocess.call(["unshare", "--pid", "--fork", "--mount-proc", *line]))
    with tempfile.TemporaryDirectory(prefix="accept-") as name:  # short: it holds Ray's sockets
        folder = Path(name)
        (folder / "t").mkdir()
        env = environment(folder / "home", **SETTINGS, **LOOPBACK)
        env |= {"PATH": f"{folder}:{env['PATH']}", "RAY_TMPDIR": f"{name}/t"}
        for stub, text in STUBS.items():
            (folder / stub).write_text(f"#!/bin/bash\n{text}\n")
            (folder / stub).chmod(0o755)
        how = {"cwd": folder, "capture_output": True, "text": True, "check": False}
        job = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "3"}
        done = subprocess.run(["bash", "-c", slurm_script()], env=env | job, **how)
        saved = [*folder.glob("slurm/checkpoints/*")]
        print(f"slurm: exit code {done.returncode}, {len(saved)} files of checkpoints", flush=True)
        right = done.returncode == 0 and bool(saved)
        if not right:
            print(done.stdout[-3000:], done.stderr[-3000:])
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        right &= tokens(env, auth, how)
        subprocess.run(["ray", "stop", "--force"], env=env, **how)
        os.environ.update(env | auth)
        right &= labels()
    raise SystemExit(not right)


if __name__ == "__main__":
    main(sys.argv[1:])

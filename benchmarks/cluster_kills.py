"""Actors, the evaluator and the learner of a cluster are killed while it trains.

    python -m benchmarks.cluster_kills [PART …] [kills=20] [seed=1]

Parts, all unless given:
    actors     SIGKILL of actors at drawn moments of a training of cartpole, and the same without
    server     the same with cluster.inference=central: SIGKILL of its server, too
    evaluator  SIGKILL of the evaluator, in trainings of cartpole that an evaluation ends
    notice     SIGTERM of actors: each hands in its packet before it ends
    learner    SIGKILL of train.py with cluster.sync=true and auto_resume=true; its last checkpoint
               must be that of one process, bit by bit
Prints the ledger of each part. Exits with 1 if a packet is learned from twice, or one that came is
in no account, or a part does not go on.
"""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from math import inf
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks import program
from benchmarks.lag import EVERY, GOAL
from benchmarks.lag import WORDS as CARTPOLE
from gpusim_rl.cluster.engine import LOOPBACK, SETTINGS, Engine
from gpusim_rl.cluster.guard import processes_of
from gpusim_rl.cluster.iteration import ClusterIteration, make_iteration
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from gpusim_rl.training.trainer import Trainer, success
from tests.cluster.planted import training
from tests.command_lines import TINY, environment
from tests.worlds import ROOT, differing, make_config

LIMIT = 409_600  # control steps
CLUSTER = ("cluster=ray", "cluster.actors=2")


def cpu_seconds(pid: int) -> float:
    """That a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def ledger(made: Any, name: str) -> bool:
    """Print the ledger of a training. Returns whether it is exact."""
    source = made.source
    accounts, slots = source.ledger.accounts, len(source.slots)
    learned = sum(x["learned"] for x in accounts.values())
    exact = learned == slots * made.iterations and source.ledger.lost() >= 0
    print(
        f"{name}: {made.iterations} iterations, {source.deaths} deaths, {learned} packets learned "
        f"from, {source.ledger.lost()} lost, refused {dict(source.ledger.refusals)}; "
        f"lag {made.report()()['cluster/lag_max']:.0f} at most: {'exact' if exact else 'WRONG'}",
        flush=True,
    )
    return exact


def learn(kills: int, seed: int, *words: str) -> bool:
    """Train cartpole to its goal, and kill actors at drawn moments meanwhile, and a server."""
    cfg, rng = make_config(*CARTPOLE, *CLUSTER, f"seed={seed}", *words), random.Random(seed)
    made: Any = make_iteration(cfg)
    steps, best, due, starts, lives = 0, 0.0, rng.uniform(0, 2), [], [0, 0]
    last = time.monotonic()
    while steps < LIMIT and best < GOAL:
        made.iteration()
        steps += made.size
        for i, slot in enumerate(made.source.slots):
            life = made.source.ledger.lives[i]
            if life > lives[i] and made.source.ledger.accounts.get((i, life)):
                lives[i] = life
                with suppress(OSError):  # it has ended again
                    starts.append(cpu_seconds(slot.pid))
        if kills and time.monotonic() - last > due:
            source = made.source
            server = [source.server] * bool(source.exchange)
            slot = rng.choice([x for x in [*source.slots, *server] if not x.starting] or [None])
            if slot:
                os.kill(slot.pid, signal.SIGKILL)
                kills -= 1
            last, due = time.monotonic(), rng.uniform(1, 6)
        if made.iterations % EVERY == 0:
            best = max(best, success(cfg, made))
    exact = ledger(made, "actors")
    cpu = f"{max(starts):.1f} CPU s at most" if starts else "none"
    print(f"  {steps:,} control steps to {best:.3f}; first packet of a replacement: {cpu}")
    made.close()
    return exact


def actors(kills: int, seed: int) -> bool:
    """With kills and without."""
    return all([learn(0, seed), learn(kills, seed)])


def server(kills: int, seed: int) -> bool:
    """With kills and without, where a server computes the network."""
    central = "cluster.inference=central"
    return all([learn(0, seed, central), learn(kills, seed, central)])


def train(kills: int, seed: int, rng: random.Random) -> tuple[int, bool]:
    """Train cartpole until an evaluation ends it, and kill the evaluator at drawn moments.

    Returns the kills that are left, and whether each evaluation that was begun has its result.
    """
    folder, asked, rows, pid, due = tempfile.mkdtemp(prefix="accept-kill-"), [], [], 0, 0.0
    words = (*CARTPOLE, *CLUSTER, f"seed={seed}", f"eval_every={EVERY}", f"stop_at={GOAL}")
    words += (f"iterations={40 * EVERY}", "report=false", f"run_dir={folder}/run")
    trainer, left = Trainer(make_config(*words), make_iteration), kills
    loop, source = trainer.loop, cast(ClusterIteration, trainer.loop.iteration).source
    begin = loop.begin_evaluation
    loop.begin_evaluation = lambda i: (asked.append(i), begin(i))[1]
    with redirect_stdout(io.StringIO()):
        for row in trainer.steps():
            rows += [row] if "success" in row else []
            if source.evaluator.slot.pid != pid:
                pid, due = source.evaluator.slot.pid, time.monotonic() + rng.uniform(0.2, 4)
            # a training ends at five deaths in a row
            if left and pid and time.monotonic() > due and source.evaluator.slot.deaths < 3:
                os.kill(pid, signal.SIGKILL)
                left, due = left - 1, inf
    trainer.close()
    shutil.rmtree(folder)
    judged, last = [int(x.get("success_of", x["iteration"])) for x in rows], rows[-1]
    exact = judged == asked
    print(
        f"evaluator: {kills - left} kills, {source.deaths} deaths, {len(asked)} evaluations begun, "
        f"{len(rows)} in the log; {last['success']:.3f} of the policy after "
        f"{judged[-1] * loop.iteration.size:,} control steps, seen at {last['env_steps']:,}: "
        f"{'exact' if exact else 'WRONG'}",
        flush=True,
    )
    return left, exact


def evaluator(kills: int, seed: int) -> bool:
    """Without kills, and trainings with them until all are done."""
    rng, (_, right) = random.Random(seed), train(0, seed, random.Random(seed))
    while kills:
        kills, exact = train(kills, seed, rng)
        right, seed = right and exact, seed + 1
    return right


def notice(kills: int, seed: int) -> bool:
    """SIGTERM of actors that work."""
    with training([{"collect": 0.3}], "cluster.actors=3") as made:
        for _ in range(kills):
            made.iteration()
            slot = random.choice(
                [x for x in made.source.slots if x.asked and not x.starting] or [None]
            )
            if slot:
                os.kill(slot.pid, signal.SIGTERM)
        for _ in range(5):
            made.iteration()
        return ledger(made, "notice") and made.source.ledger.lost() == 0


def learner(kills: int, seed: int) -> bool:
    """SIGKILL of the driver, which nothing of it outlives."""
    folder, rng = Path(tempfile.mkdtemp(prefix="accept-kill-")), random.Random(seed)
    length = 40 * kills  # iterations: longer than what is done between the kills
    words = ["task=cartpole", *TINY, "save_every=1", "log=none", f"seed={seed}"]
    words += [f"iterations={length}"]
    line = [sys.executable, str(ROOT / "train.py"), *words]
    many = [*line, *CLUSTER, "cluster.sync=true", "auto_resume=true", f"run_dir={folder}/many"]
    how: dict[str, Any] = {"env": environment(folder / "home"), "stdout": subprocess.DEVNULL}
    subprocess.run([*line, f"run_dir={folder}/one"], check=True, **how)
    worst = 0.0
    for _ in range(kills):
        before = len(Run(folder / "many").rows())
        with subprocess.Popen(many, **how) as process:
            while process.poll() is None and len(Run(folder / "many").rows()) == before:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 1))
            if process.poll() is not None:
                raise SystemExit(f"learner: it ended by itself, with {process.returncode}")
            rays = guarded(process.pid)
            process.kill()
        begun = time.monotonic()
        while any(processes_of(ray) for ray in rays) and time.monotonic() - begun < 60:
            time.sleep(0.1)
        worst = max(worst, time.monotonic() - begun)
        print(f"learner: killed after row {len(Run(folder / 'many').rows())}", flush=True)
    subprocess.run(many, check=True, **how)
    (one, _), (other, _) = (load(Run(folder / x).checkpoints.latest()) for x in ("one", "many"))
    differ = {*differing(one, other)} - {"env/sums", "env/term_sums"}  # they are added otherwise
    rows = len(Run(folder / "many").rows())
    print(f"learner: {rows} rows, {len(differ)} of {len(one)} tensors differ, {worst:.1f} s to end")
    shutil.rmtree(folder)
    return not differ and rows == length and worst < 30


def guarded(driver: int) -> list[str]:
    """The folders of Ray that the guards of a driver wait for."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children]
    return [line[-2] for line in lines if "gpusim_rl.cluster.guard" in line]


PARTS = {x.__name__: x for x in (actors, server, evaluator, notice, learner)}


def main(words: list[str]) -> None:
    """Run the parts."""
    own, names = program.split_words(__doc__, words, kills=20, seed=1)
    os.environ.update(SETTINGS | LOOPBACK)
    torch.set_num_threads(1)
    right = True
    for name in program.choose(names, PARTS):
        ray = Engine(6, None) if name != "learner" else None
        right &= PARTS[name](**vars(own))
        if ray:
            ray.close()
    raise SystemExit(not right)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Command lines of train.py and play.py: right ones, and ones with mistakes of every kind.

Each must end within 60 s with 0 and nothing on stderr, or with 2 and one line `error: …` on stderr
and nothing left behind. A line with a mistake of key or value must end so before torch is loaded.
What is wrong within the files of a run is drawn by `files.py`.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.command_lines import command

LIMIT = 60  # s a line may take
TRAIN = (
    *"num_envs=4 num_steps=4 episodes=2 iterations=1 task.episode=0.5".split(),
    *"algo.hidden=[8] algo.update_epochs=1 device=cpu sim.threads=1 log=none export=none".split(),
    "report=false",
)
GROUPS = ("task=cartpole", "sim=native")
PLAY = ("mode=evaluate", "run=run", "episodes=2")
# The least that a run directory holds once it trains.
FILES = {"config.yaml", "versions.json", "checkpoints", "metrics.jsonl"}
NUMBERS = (*"0 -1 -0.0 1e308 -1e308 1e-308 nan inf -inf 1000000000".split(), "9" * 5000)
PLAIN = "ünï 机器人 🤖 a/b \\ %s {} [] $HOME a:b #".split()
WORDS = ("", "a b", "a\nb", "\udcff", "x" * 5000, *PLAIN)


class Line(NamedTuple):
    """A command line and what it deserves."""

    kind: str
    script: str
    words: tuple[str, ...]
    right: bool | None = None  # True: it must succeed; False: it must be refused; None: either
    early: bool = False  # it must be refused before torch is loaded


# A row: kind, what its lines deserve, script, and the lines; `;` stands between words of a line.
TEXTS = """
misspelt wrong train: nun_envs=4 seedd=1 sed=1 num-envs=4 algo.gama=0.9 algo.gаmma=0.9 SEED=1
  algo.gamma.=1 x.seed=1 gamma_=1 seeds=1 seed.x=1 seed.0=1 seed[0]=1 seed@x=1 seed/x=1 seedé=1
misspelt wrong play: mod=evaluate run.=run gate.robot=3 gate.limits.fals=1 SECONDS=3
int wrong train: seed=1.5 seed=abc seed=true seed=[1] seed={a:1} seed='3' seed=null seed=½ seed=''
float wrong train: algo.gamma=abc algo.gamma=true algo.gamma=[1.0] algo.gamma=null algo.gamma='0.5'
  algo.gamma={} algo.gamma=1,5.0.0 algo.gamma=0.5m algo.gamma=''
bool wrong train: algo.fused=1 algo.fused='true' algo.fused=null algo.fused=[] algo.fused=maybe
list wrong train: algo.hidden=5 algo.hidden=a algo.hidden=[a] algo.hidden=[null] algo.hidden=[{}]
  algo.hidden=[true] algo.hidden=[1e400] algo.hidden=''
str wrong train: algo.activation=5 algo.activation=true algo.activation=[a] algo.activation={a:b}
type wrong play: episodes=many seconds=true gate.robots=1.5 gate.friction=5
choice wrong train: task=walk sim=bullet log=disk stop_at=95 stop_at=true
choice wrong play: mode=fly mode=viewer mode=new-task name=my_arm command=[fast] command={a:1}
  out=no/x checkpoint=5 onnx=[a] episodes=1,2 seconds=range(0,1000000000)
choice late train: graph=some device=tpu:0 algo.activation=swish algo.amp=fp8 task.mjcf=none.xml
  device=cuda:99999999999
unicode wrong train: ключ=1 任务=1 tâche=1 🤖=1 task.🤖=1 num_envs\u200b=1 \ufeffseed=1 \udcff=1
nested any train: task={name:cartpole} task={} algo={gamma:0.9} algo={} sim={} task.noise={}
  task.weights={upright:1} task=[cartpole] task.weights.upright={a:1} algo.hidden=[[8]] seed={a:1}
  algo.hidden=[8,[8]] algo={gamma:{a:{b:1}}} task.weights=[1,2] algo.gamma.x=1 seed=[1,2,3]
  task.fastest=[[0,1],[0,1]] log={name:none} sim={threads:1} task.weights={upright:[1,{b:2}]}
curriculum any train: curriculum={algo.learning_rate:{from:1e-3,to:1e-4,by:iteration,stop:5}}
  curriculum={task.weights.upright:{from:1,to:nan,by:success,start:0,stop:0.5}} curriculum={5:{}}
  curriculum={seed:{from:0,to:1,by:iteration,stop:1}} curriculum={task.x:{to:1,start:null,stop:{}}}
prefix wrong train: +seed=1 ~seed=1 ++seed=1 +++seed=1 ~~seed ~task +new=1 ~task.weights.joy +~task
quotes wrong train: seed=' seed=" seed='a seed="a seed=a' seed=[ seed=] seed=[1 seed={ seed={a
  seed={a: seed=( seed=) seed=a'b' seed=[1, seed='a'' seed=f( seed=f(1
variable any train: num_envs=${seed} num_envs=${nope} num_envs=${ num_envs=$ num_envs=${oc.env:HOME}
  num_envs=${oc.decode:1} num_envs=${.x} num_envs=${hydra:run.dir} seed=${now:%Y} seed=${${seed}}
path any train: run_dir=. run_dir=.. run_dir=/proc/x run_dir=/dev/null run_dir=file run_dir=file/x
  run_dir=~/x run_dir=run
path any play: out=folder run=/dev/zero run=file run=folder run=run/config.yaml run=a/../../b
  run=././run out=/sys/x out=../x mode=video;video=file
  mode=video;size=[48,32];seconds=0.2;video=run/x.mp4
model late train: task.mjcf=. task.mjcf=/ task.mjcf=file task.mjcf=folder task.mjcf=/dev/zero
sweep wrong train: num_envs=1,2 num_envs=1,x num_envs=range(1,3) num_envs=choice(1,2) num_envs=1,
  num_envs=glob(*) num_envs=interval(0,1) num_envs=, num_envs=sort(2,1)
multirun late train: -m;seed=1,x -m;seed=1,-1 -m;seed=range(0,1000000000) -m;seed=interval(0,1)
  run_dir=a,a;--multirun -m;seed=1,2;run_dir=x -m;task=cartpole,walk -m;task=glob(*) -m;nun_envs=1,2
  -m;resume=run,nowhere -m;run_dir=a,b;seed=1,2 -m;seed=1;algo.gamma=0.9,3
option wrong train: --hepl --mult -x -- - --config-dir=x --config-name -cd -cn=x --package=x -p
  --seed=1 -seed --cfg=nope --cfg -c=x --info=nope --experimental-rerun=x --run -r -sc —multirun
  -h= --shell-completion --resolve --cfg=job;--info -m;-m;--info
help right train: --help -h --cfg;job --cfg=job --info --info;config --version --hydra-help -c;all
  --info;defaults-tree --cfg=hydra
help right play: --help --cfg;job --version
bare wrong train: fast = =1 == seed seed:1 .=1 task. @ task= seed=1=2 ü ../conf=1 \udcff
repeated any train: seed=1;seed=x seed=1;seed=2 task=cartpole;task=quadruped sim=native;sim=native
  algo=ppo;algo=ppo seed=x;seed=1 algo.gamma=0.9;algo.gamma=nan task=walk;task=cartpole
  algo.hidden=[4];algo={hidden:[4]}
hydra wrong train: hydra.run.dir=x hydra.job.chdir=true hydra.foo=1 hydra.output_subdir=.hydra
  hydra.mode=MULTIRUN hydra.verbose=true hydra={} hydra=null hydra/launcher=joblib hydra.run=1
  hydra.sweep.dir=x hydra.job.name=a hydra.searchpath=[x]
resume late train: resume=nowhere resume=file resume=folder resume=run/config.yaml
trains right train: seed=0 num_steps=8;num_envs=8;algo.hidden=[4,4] algo.hidden=[];graph=off
  graph=whole;stop_at=0.5;eval_every=1;log_every=3 algo.gamma=0;algo.fused=false;algo.std=2
  algo.gamma=1;algo.learning_rate=1e-3 algo.amp=bf16;algo.activation=tanh;task.clip=2 plan=true
  algo.num_minibatches=1;task.episode=1 save_every=1;device=auto;sim.threads=0 run_dir=a/b
  run_dir='ünï/机' task=cartpole,quadruped;--multirun
plays right play: seed=3 mode=export;out=p.onnx out=scores.json run=./run mode=new-task;name=my_arm
"""
ODD = {  # kind → words with blanks, or too long for a row
    "extreme": [f"{key}={x}" for key in ("num_envs", "algo.gamma") for x in NUMBERS],
    "entries": [f"algo.hidden=[{x}]" for x in (*NUMBERS, "", "4," * 99 + "4")],
    "word": [f"{key}={x}" for key in ("task.mjcf", "run_dir") for x in WORDS],
    "deep": [f"algo={'{a:' * n}1{'}' * n}" for n in (3, 60, 400)],
    "deep list": [f"algo.hidden={'[' * n}8{']' * n}" for n in (3, 60, 400, 3000)],
    "blank": ["seed 1", " ", "x" * 9000, "se ed=1", "seed\t=1"],
}
DESERVES = {"right": (True, False), "wrong": (False, True), "late": (False, False)}


def make_line(kind: str, deserves: str, script: str, *words: str) -> Line:
    """A line, after words with which what is right ends soon; a later word wins."""
    own = any(word.startswith(("task=", "sim=")) for word in words)
    start = (*GROUPS[2 * own :], *TRAIN) if script == "train" else PLAY
    start = ("iterations=2", "log=none") if kind == "resume" else start
    return Line(kind, f"{script}.py", (*start, *words), *DESERVES.get(deserves, (None, False)))


def all_lines() -> list[Line]:
    """The lines of both tables."""
    lines = []
    for row in TEXTS.strip().replace("\n  ", " ").splitlines():
        head, _, texts = row.partition(": ")
        lines += [make_line(*head.split(), *text.split(";")) for text in texts.split()]
    for kind, texts in ODD.items():
        deserves = "wrong" if kind == "blank" else "any"
        lines += [make_line(kind, deserves, "train", text) for text in texts]
    return lines


# -- running a line, and judging it ----------------------------------------------------------------


def prepare(line: Line, here: Path, trained: Path) -> None:
    """What the line may find in its directory."""
    text = " ".join(line.words)
    if "=run" in text:
        shutil.copytree(trained, here / "run")
    if "=file" in text:
        (here / "file").write_text("x")
    if "=folder" in text:
        (here / "folder").mkdir()


def contents(here: Path) -> dict[str, bytes | None]:
    """Every file below a directory, and the directories."""
    return {
        str(p.relative_to(here)): p.read_bytes() if p.is_file() else None for p in here.rglob("*")
    }


def run(line: Line, here: Path) -> tuple[int | None, str]:
    """(exit status, stderr) of a line; what must be refused early cannot import torch."""
    settings = {"block": "torch mujoco warp"} if line.early else {}
    try:
        done = command(line.script, *line.words, cwd=here, timeout=LIMIT, **settings)
    except subprocess.TimeoutExpired:
        return None, f"not done after {LIMIT} s"
    return done.returncode, done.stderr


def judge(line: Line, run: Callable[[Line, Path], tuple[int | None, str]], trained: Path) -> str:
    """What was wrong with how a line ended, in a directory of its own, or ""."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        here = Path(folder) / "here"
        here.mkdir()
        prepare(line, here, trained)
        before = contents(here)
        status, error = run(line, here)
        after = contents(here)
        if status == 0 and line.right is False:
            return "it succeeded"
        if status == 0:
            return f"it succeeded, but said: {error}" if error else ""
        if status != 2 or "Traceback" in error:
            return f"it ended with {status}: {error[-1500:]}"
        if not re.fullmatch("error: .{5,}\n", error):
            return f"not one line: {error[-1500:]!r}"
        if line.right:
            return f"it was refused: {error}"
        runs = {p.parent for p in here.rglob("config.yaml")}
        whole = [p for p in runs if {q.name for q in p.iterdir()} >= FILES]
        left = [name for name in after.keys() ^ before.keys() if not accounted(here / name, whole)]
        left += [name for name in after.keys() & before.keys() if after[name] != before[name]]
        return f"left behind {left}: {error}" if left else ""


def accounted(path: Path, whole: list[Path]) -> bool:
    """Whether a file or directory belongs to a run that is whole."""
    inside = any(path.is_relative_to(run) or run.is_relative_to(path) for run in whole)
    return inside or (bool(whole) and path.name in ("search.yaml", "MUJOCO_LOG.TXT"))

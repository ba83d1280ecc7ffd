"""Command lines of train.py and play.py that are drawn from a seed: right ones, and ones with
mistakes of every kind.

Each must end within 60 s with 0 and nothing on stderr, or with 2 and one line `error: …` on stderr
and nothing left behind. A line with a mistake of key or value must end so before torch is loaded.
What is wrong within the files of a run is drawn by `files.py`.
"""

import random
import re
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.config import compose, nested_dict
from gpusim_rl.core.seeds import EVALUATION_SEEDS
from tests.command_lines import command

LIMIT = 60  # s a line may take
SCRIPTS = {"train.py": "config", "play.py": "play"}
BASE = (
    *"num_envs=4 num_steps=4 episodes=2 iterations=1 task.episode=0.5".split(),
    *"algo.hidden=[8] algo.update_epochs=1 device=cpu sim.threads=1 log=none export=none".split(),
    "report=false",
)
SHORT = {  # before the words that are drawn, so that what is right ends soon; a later word wins
    "train.py": BASE,
    "play.py": ("mode=evaluate", "run=run", "episodes=2"),
}
# The least that a run directory holds once it trains.
FILES = {"config.yaml", "versions.json", "checkpoints", "metrics.jsonl"}
LARGE = (str(10**9), str(2**63), str(10**30), "9" * 5000)
NUMBERS = (*"0 -1 -0.0 1e308 -1e308 1e-308 nan inf -inf".split(), *LARGE)
ODD = ("", "''", "a b", "a\nb", "\udcff", "x" * 5000)
WORDS = (*ODD, *"ünï 机器人 🤖 '机器人' a/b - \\ %s {} [] $HOME a:b #".split())
SWAPS = {"e": "е", "o": "о", "a": "а", "_": "-", "i": "ı"}  # their doubles in other alphabets


Drawn = tuple[list[str], bool | None, bool]  # words, right, early


class Line(NamedTuple):
    """A command line and what it deserves."""

    kind: str
    script: str
    words: tuple[str, ...]
    right: bool | None = None  # True: it must succeed; False: it must be refused; None: either
    early: bool = False  # it must be refused before torch is loaded


# -- the generator ---------------------------------------------------------------------------------


def one_of(text: str, right: bool | None = False, early: bool = True) -> Callable[["Draw"], Drawn]:
    """A kind of lines: one of these texts, in which `;` stands between words."""
    return lambda draw: (draw.one(text).split(";"), right, early)


class Draw:
    """Draws command lines. The same seed gives the same lines."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.trees = {
            (script, task): compose.build(name, [f"task={task}"] if name != "play" else [])
            for script, name in SCRIPTS.items()
            for task in ("cartpole", "quadruped")
        }
        self.kinds = {
            name[5:]: getattr(self, name) for name in dir(self) if name.startswith("draw_")
        }

    def line(self, kind: str) -> Line:
        """One line of a kind."""
        pick = self.random
        self.script = pick.choices([*SCRIPTS], [7, 2])[0]
        self.task = pick.choice(["cartpole", "cartpole", "quadruped"])
        tree = self.trees[self.script, self.task]
        self.flat = {
            key: value
            for key, value in nested_dict.flatten(tree).items()
            if not key.startswith("hydra")
        }
        self.leaves = [
            k for k, v in self.flat.items() if not isinstance(v, dict) and not k.endswith(".name")
        ]
        self.bare = False
        words, right, early = self.kinds[kind]()
        groups = self.script != "play.py" and self.pure(words)
        start = (f"task={self.task}", "sim=native") if groups else ()
        start = () if self.bare else (*start, *SHORT[self.script])
        return Line(kind, self.script, (*start, *words), right, early)

    def pure(self, words: list[str]) -> bool:
        """Whether the words leave the groups as they are."""
        return not any(word.startswith(("task=", "sim=", "sim.n", "sim.c")) for word in words)

    def leaf(self, *kinds: type) -> str:
        """A key whose value is of one of the kinds."""
        keys = [key for key in self.leaves if type(self.flat[key]) in kinds]
        return self.random.choice(keys or self.leaves)

    def misspell(self, key: str) -> str:
        """The key with a slip of the finger."""
        pick, at = self.random, self.random.randrange(len(key))
        letter = key[at]
        return pick.choice(
            [
                key[:at] + key[at + 1 :],
                key[:at] + letter + key[at:],
                key[:at] + pick.choice(string.ascii_lowercase) + key[at:],
                key[:at] + key[at + 1 : at + 2] + letter + key[at + 2 :],
                key[:at] + SWAPS.get(letter, letter.upper()) + key[at + 1 :],
                key + pick.choice([".", ".x", "s", " ", ".0", "[0]", "@x", "/x", "é"]),
                key.rpartition(".")[2] + "_",
                f"x.{key}",
                key.upper(),
            ]
        )

    def word(self) -> str:
        """Any value."""
        return self.random.choice(
            [*NUMBERS, *WORDS, "true", "null", "1", "0.5", "[1,2]", "{a:1}", "auto"]
        )

    def one(self, text: str) -> str:
        """One word of a text."""
        return self.random.choice(text.split())

    def draw_misspelt(self) -> Drawn:
        key = self.misspell(self.random.choice(list(self.flat)))
        while key in self.flat:
            key = self.misspell(key)
        return [f"{key}={self.word()}"], False, True

    def draw_type(self):
        key = self.leaf(int, float, bool, list, str)
        wrong = {
            int: "1.5 abc true [1] {a:1} '3' null 1e3 nan ½ 0x10 ''",
            float: "abc true [1.0] null '0.5' {} 1,5.0.0 0.5m ''",
            bool: "1 0 'true' null [] maybe 1.0 ''",
            list: "5 a {} null [a] [null] [[1]] [true] [{}] [1e400] ''",
            str: "5 true [a] {a:b} null 1.5",
        }
        return [f"{key}={self.one(wrong[type(self.flat[key])])}"], False, True

    def draw_choice(self):
        late = (
            "graph=some device=tpu:0 algo.activation=swish algo.amp=fp8 "
            "device=cuda:99999999999 task.mjcf=none.xml"
        )
        soon = "task=walk sim=bullet log=disk algo=sac stop_at=95 stop_at=true"
        play = (
            "mode=fly mode=viewer mode=new-task name=my_arm command=[fast] command={a:1} "
            "out=no/x checkpoint=5 onnx=[a]"
        )
        early = self.script == "play.py" or self.random.random() < 0.5
        text = play if self.script == "play.py" else soon if early else late
        return [self.one(text)], False, early

    def draw_extreme(self):
        return [f"{self.leaf(int, float)}={self.random.choice(NUMBERS)}"], None, False

    def draw_entries(self):
        key = self.leaf(list)
        n = len(self.flat[key]) if isinstance(self.flat[key], list) else 3
        entries = self.random.choices(NUMBERS, k=self.random.choice([n, n, 0, 1, 100]))
        return [f"{key}=[{','.join(entries)}]"], None, False

    def draw_null(self):
        return [f"{self.leaf(type(None))}={self.word()}"], None, False

    def draw_word(self):
        return [f"{self.leaf(str, type(None))}={self.random.choice(WORDS)}"], None, False

    def draw_unicode(self):
        keys = "ключ 任务 tâche 🤖 task.🤖 num_envs\u200b \ufeffseed \udcff".split()
        keys += ["se ed", "seed\t"]
        return [f"{self.random.choice(keys)}={self.word()}"], False, True

    def draw_nested(self):
        text = """task={name:cartpole} task={} algo={gamma:0.9} algo={} task.weights={upright:1}
            task.noise={} task=[cartpole] task.weights.upright={a:1} algo.hidden=[[8]] sim={}
            algo.hidden=[8,[8]] algo={gamma:{a:{b:1}}} task.weights=[1,2] algo.gamma.x=1
            task.fastest=[[0,1],[0,1]] log={name:none} sim={threads:1} seed={a:1,a:2} seed=[1,2,3]
            task.weights.a.b.c=1 task.weights={upright:[1,{b:2}]}"""
        deep = [f"algo.hidden={'[' * n}8{']' * n}" for n in (3, 60, 400, 3000)]
        deep += [f"algo={'{a:' * n}1{'}' * n}" for n in (3, 60, 400)]
        return [self.random.choice([*text.split(), *deep])], None, False

    def draw_curriculum(self):
        self.script, pick = "train.py", self.random

        def entry(key: str) -> str:
            own = str(self.flat.get(key)).replace(" ", "").replace("'", "")
            odd = [*NUMBERS, "x", "null", "{}", "[1,2]", "true"]
            said = {"from": own, "to": own, "by": self.one("iteration success"), "start": "0"}
            said["stop"] = self.one("1 5 0.5")
            for name in pick.sample(list(said), k=pick.choice([0, 0, 0, 1, 2])):
                said[name] = pick.choice(odd)
            if pick.random() < 0.1:
                del said[pick.choice(list(said))]
            return f"{key}:{{{','.join(f'{name}:{value}' for name, value in said.items())}}}"

        moved = ("fastest", "lift", "sigma", "still", "sigma_speed", "weights.", "noise.")
        plain = [key for key in self.leaves if key.startswith(tuple(f"task.{x}" for x in moved))]
        moving = [*plain, *(f"algo.{name}" for name in PPO.changeable)]
        keys = {
            pick.choice([*(moving * 9), *self.leaves, "5", "task.x"])
            for _ in range(pick.choice([1, 1, 2, 4]))
        }
        return [f"curriculum={{{','.join(entry(key) for key in sorted(keys))}}}"], None, False

    def draw_prefix(self):
        key = self.random.choice([*self.leaves, "new", "task", "task.weights.joy", "hydra.x"])
        value = self.random.choice(["", "=1", "=" + self.word()])
        return [self.one("+ ~ ++ +++ ~~ +~") + key + value], False, True

    def draw_quotes(self):
        value = self.one("""' " 'a "a a' [ ] [1 { {a {a: ( ) a'b' [1, 'a'' f( f(1""")
        return [f"{self.random.choice(self.leaves)}={value}"], False, True

    def draw_variable(self):
        text = """${seed} ${nope} ${ $ ${} ${oc.env:HOME} ${oc.env:NOPE} ${oc.decode:1}
            ${num_envs} ${.x} ${..seed} ${hydra:run.dir} ${now:%Y} ${task} ${task.weights}
            ${oc.env:} ${a:b:c} ${${seed}}"""
        key = self.random.choice(self.leaves)
        more = [f"seed=${{{key}}}"] if self.random.random() < 0.2 else []
        return [f"{key}={self.one(text)}", *more], None, False

    def draw_path(self):
        keys = {
            "train.py": "run_dir resume",
            "play.py": "run checkpoint onnx out video report",
        }
        key = self.one(keys[self.script])
        paths = f"""/ .. . ../x /proc/x /sys/x /dev/null /dev/zero /dev/stdin file file/x folder ~/x
            run run/config.yaml runs run/checkpoints /etc/passwd a/../../b ./././x //
            {"x/" * 2000}"""
        more = ["mode=video"] if key == "video" else []
        return [f"{key}={self.random.choice([*WORDS, *paths.split()])}", *more], None, False

    def draw_model(self):
        self.script = "train.py"
        paths = ". / file folder /dev/zero /etc/passwd".split()
        return [f"task.mjcf={self.random.choice([*WORDS, *paths])}"], False, False

    def draw_sweep(self):
        keys = self.leaves
        if self.script == "train.py":
            keys = "seed num_envs algo.gamma task run_dir".split()
        key = self.random.choice(keys)
        values = (
            "1,2 1,x x,y range(1,3) choice(1,2) range(0,1000000000) glob(*) interval(0,1) 1, , "
            "sort(2,1)"
        )
        return [f"{key}={self.one(values)}"], False, True

    def draw_multirun(self):
        self.script = "train.py"
        right = """seed=1,2 task=cartpole,quadruped seed=range(1,3) seed=choice(1,2) seed=1
            algo.hidden=[8],[4]"""
        wrong = """seed=1,x seed=1,-1 seed=range(0,1000000000) seed=interval(0,1) run_dir=a,a
            seed=1,2;run_dir=x task=cartpole,walk task=glob(*) nun_envs=1,2 resume=run,nowhere
            num_envs=4,1000000000 run_dir=a,b;seed=1,2 seed=1,2;algo.gamma=0.9,3"""
        is_right = self.random.random() < 0.3
        words = self.one(right if is_right else wrong).split(";")
        option = self.one("-m --multirun")
        return [option, *words] if self.random.random() < 0.5 else [*words, option], is_right, False

    draw_option = one_of(
        """--hepl --mult -x -- - --config-dir=x --config-name -cd -cn=x --package=x -p --seed=1
        -seed --cfg=nope --cfg -c=x --info=nope --experimental-rerun=x --run -r -sc —multirun -h=
        --shell-completion --resolve --cfg=job;--info -m;-m;--info"""
    )

    draw_help = one_of(
        """--help -h --cfg;job --cfg=job --info --info;config --version --hydra-help -c;all
        --info;defaults-tree --cfg=hydra""",
        right=True,
        early=False,
    )

    def draw_bare(self):
        words = ["", " ", "seed 1", "x" * 9000, "\udcff"]
        words += "fast = =1 == seed seed:1 .=1 task. @ task= seed=1=2 ü ../conf=1".split()
        return [self.random.choice(words)], False, True

    draw_repeated = one_of(
        """seed=1;seed=2 seed=1;seed=x task=cartpole;task=quadruped sim=native;sim=native
        algo=ppo;algo=ppo seed=x;seed=1 algo.gamma=0.9;algo.gamma=nan task=walk;task=cartpole
        algo.hidden=[4];algo={hidden:[4]}""",
        right=None,
        early=False,
    )

    draw_hydra = one_of(
        """hydra.run.dir=x hydra.job.chdir=true hydra.foo=1 hydra.output_subdir=.hydra
        hydra.mode=MULTIRUN hydra.verbose=true hydra={} hydra=null hydra/launcher=joblib
        hydra.sweep.dir=x hydra.job.name=a hydra.searchpath=[x] hydra.run=1"""
    )

    def draw_resume(self):
        self.script = self.one("train.py play.py")
        key = {"train.py": "resume", "play.py": "run"}[self.script]
        where = self.one("nowhere file folder run/config.yaml run run run/.")
        self.bare = self.script == "train.py"
        more = ["iterations=2", "log=none"] if self.bare else []
        return [f"{key}={where}", *more], None if where in ("run", "run/.") else False, False

    def draw_right(self):
        if self.script == "play.py":
            text = """seed=3 mode=export;out=p.onnx out=scores.json episodes=3 run=./run
                mode=new-task;name=my_arm"""
            return self.one(text).split(";"), True, False
        text = f"""seed=0 seed={EVALUATION_SEEDS - 1} num_steps=8 num_envs=8 algo.hidden=[4,4]
            algo.hidden=[] graph=off graph=whole stop_at=1 stop_at=0.5 eval_every=1 log_every=3
            algo.gamma=0 algo.gamma=1 algo.fused=false algo.learning_rate=1e-3 algo.std=2
            algo.amp=bf16 algo.activation=tanh task.clip=2 algo.num_minibatches=1 task.episode=1
            plan=true save_every=1 device=auto sim.threads=0
            run_dir=a/b run_dir='ünï/机'"""
        return self.random.sample(text.split(), k=self.random.randrange(1, 4)), True, False


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
    """(exit status, stderr) of a line as a user runs it; where it must be refused early, torch
    cannot be imported."""
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
    return inside or (bool(whole) and path.name in ("multirun.yaml", "MUJOCO_LOG.TXT"))

"""A search: its members and their numbers, from a command line or from its folder.

    train.py task=cartpole search=asha search.space='{algo.target_kl: {log: [0.005, 0.05]}}'

The folder has search.yaml and a run directory for each member. Whoever has it has the search.
"""

import fcntl
import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.config.command_line import (
    LAUNCHER,
    Sweep,
    check_multirun,
    split,
    take_launcher,
)
from gpusim_rl.config.compose import compose_plain, parse
from gpusim_rl.config.resume import check_training
from gpusim_rl.config.sections import Config, SearchSection
from gpusim_rl.config.validate import check_extras
from gpusim_rl.core.errors import one_line_errors, warn
from gpusim_rl.core.files import Plain, new_directory, read_text, write_whole
from gpusim_rl.core.paths import quoted
from gpusim_rl.core.sections import make
from gpusim_rl.envs import curriculum
from gpusim_rl.population.rules import AHEAD, first_numbers, rounds
from gpusim_rl.runs.rows import Rows
from gpusim_rl.runs.run import SEARCH

ROWS = "search.jsonl"  # of a member: its scores and decisions
KINDS = ("log", "uniform", "whole")
OF_ALL = ("search", "jobs", "run_dir", "resume")  # words that no member gets
OWN = ("seed", "iterations", "num_envs", "num_steps")  # of all members: they are compared by these
NOT_HERE = dict.fromkeys(  # word of a single training → why it is none of a search
    ("gate", "export", "film_every", "log", "save_every"),
    "members save at decisions, and the best is exported",
) | dict.fromkeys(
    ("plan", "start", "demos", "auto_resume", "cluster", "stop_when"),
    "members begin anew, each in one process, and end by its decisions",
)
FEWEST = {"asha": 2, "optuna": AHEAD + 1, "pbt": 3, "random": 1}  # members


@dataclass(frozen=True)
class Search:
    """A search of members that train in places, each a process that hosts some of them.

    Args:
        base: words of all members. numbers: name of a member → key → its first value;
            empty where optuna draws it later.
        every: iterations before the first decision.
    """

    home: Path
    words: list[str]  # of its command line
    base: list[str]
    section: SearchSection
    numbers: dict[str, Plain]
    seed: int
    every: int

    @cached_property
    def cfg(self) -> Config:
        """The configuration that members have in common."""
        return check_training(compose_plain("config", self.base), self.base)

    @cached_property
    def rounds(self) -> list[int]:
        """The iterations after which members decide."""
        return rounds(self.section, self.every, self.cfg.iterations)

    def line(self, name: str, numbers: Plain) -> list[str]:
        """The words of train.py that train a member, if it decided nothing."""
        own = [f"{key}={json.dumps(x)}" for key, x in numbers.items()]
        return [*self.base, *own, f"seed={self.seed + [*self.numbers].index(name)}"]

    def configure(self, name: str, numbers: Plain) -> Config:
        """The configuration of a member with its first numbers, which goes on where it is."""
        words = [*self.line(name, numbers), quoted("run_dir", self.home / name), "auto_resume=true"]
        # a row comes at once where a checkpoint is due, also on a GPU
        words += ["export=none", "report=false", "log=none", f"save_every={self.every}"]
        return check_training(compose_plain("config", words), words)

    def write(self) -> None:
        """Write search.yaml."""
        values = {key: getattr(self, key) for key in ("words", "base", "numbers", "seed", "every")}
        text = yaml.safe_dump(values | {"search": asdict(self.section)}, sort_keys=False)
        write_whole(self.home / SEARCH, text.encode())


def read_search(home: Path) -> Search:
    """The search in a folder; ValueError in one line if search.yaml is damaged."""
    file = home / SEARCH
    try:
        values = yaml.safe_load(read_text(file))
        if "swept" in values:
            raise ValueError(f"{home} is a multirun: name one of its runs")
        section = make(SearchSection, values.pop("search"), "search", "search/none")
        return Search(home=home, section=section, **values)
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {' '.join(str(error).split())}") from None


@one_line_errors()
def check_search(argv: list[str]) -> tuple[Sweep, Search | None]:
    """What is for all members of a command line's search, and the search; every value is checked.

    search=grid is a multirun alone. Exits in one line at a mistake.
    """
    words, options = split(argv)
    if options:
        raise ValueError(f"{options[0]}: a search has its lists in search.space")
    launcher, resources, parsed = take_launcher(parse(words))
    given = {x.key_or_group: str(x.input_line) for x in parsed}
    lines = [*given.values()]
    if "resume" in given:
        return continue_search(words, given, launcher, resources)
    plain = compose_plain("config", lines)
    section = make(SearchSection, plain["search"], "search", "search/none")
    base = [x for key, x in given.items() if key.partition(".")[0] not in OF_ALL]
    space = check_space(section, plain, given)
    if section.name == "grid":
        for key in [x for x in given if x.startswith("search.") and x != "search.space"]:
            raise ValueError(f"{given[key]}: search=grid has search.space alone")
        lists = [f"{key}={','.join(map(json.dumps, x))}" for key, x in space.items()]
        others = [x for x in words if x.startswith(("jobs=", "run_dir=", *LAUNCHER))]
        return check_multirun(["-m", *base, *lists, *others]), None
    check_words(section, plain, given)
    numbers = first_numbers(space, section.trials, plain["seed"])
    names = [f"member_{i:0{len(str(section.trials - 1))}}" for i in range(section.trials)]
    cfg = check_training(compose_plain("config", base), base)
    home = Path(plain["run_dir"] or f"runs/search/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    every = first_round(section, cfg)
    numbers = dict(zip(names, numbers, strict=True))
    if section.name == "optuna":
        numbers |= {x: {} for x in names[max(AHEAD, section.trials // 3) :]}
    search = Search(home, words, base, section, numbers, plain["seed"], every)
    for ends in corners(space):
        check_member(base, ends, cfg)
    if section.name == "pbt":
        check_live(space, cfg)
    if plain["run_dir"] and home.is_dir() and any(home.iterdir()):
        raise ValueError(f"run_dir={home} is not empty: name another, or continue resume={home}")
    cfg = cfg.replace({key: plain[key] for key in ("jobs", "report")})
    return Sweep(words, {}, [], cfg, launcher, resources), search


def continue_search(
    words: list[str], given: dict[str, str], launcher: str, resources: Plain
) -> tuple[Sweep, Search]:
    """The search of resume=, with the number of processes of this command line."""
    if wrong := sorted(given.keys() - {"resume", "jobs", "report"}):
        raise ValueError(f"{wrong[0]}: resume= continues a search as it was, with jobs= alone")
    plain = compose_plain("config", [x for key, x in given.items() if key != "resume"])
    search = read_search(Path(str(parse([given["resume"]])[0].value())))
    cfg = search.cfg.replace({key: plain[key] for key in ("jobs", "report")})
    return Sweep(words, {}, [], cfg, launcher, resources), search


def open_home(search: Search) -> Search:
    """The search in a new folder, which has its search.yaml."""
    if (search.home / SEARCH).is_file():
        return search
    named = any(word.startswith("run_dir=") for word in search.words)
    if named:
        search.home.mkdir(parents=True, exist_ok=True)
    home = search.home if named else new_directory(search.home)
    search = replace(search, home=home)
    search.write()
    return search


@one_line_errors()
def forget_failures(search: Search) -> None:
    """Let members that have failed go on from their checkpoints: the cause may have passed."""
    for name in search.numbers:
        rows = Rows(search.home / name / ROWS)
        if ending(found := rows.read()) == "failed":
            lines = [json.dumps(x) + "\n" for x in found if "ended" not in x]
            write_whole(rows.path, "".join(lines).encode())


@contextmanager
def hold(home: Path, alone: bool = False) -> Generator[None]:
    """A context in which this process writes to a search, beside others that do.

    alone: first wait for all others to end, such as those of a command that was killed.
    """
    with open(home / SEARCH) as file:
        if alone:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                warn(f"other processes still write to {home}: waiting until they have ended")
                fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def lineage(rows: dict[str, list[Plain]], name: str) -> list[tuple[int, Plain]]:
    """The numbers with which what a member has learned was learned: (since iteration, numbers).

    rows: of all members by name. Before a copy they are those of the member that was copied.
    """
    found, until = [], math.inf
    while name:
        source = ""
        for row in reversed(rows[name]):
            if row["iteration"] < until and "numbers" in row:
                found.append((row["iteration"], row["numbers"]))
                if source := row.get("copied", ""):
                    until = row["iteration"]
                    break
        name = source
    return found[::-1]


def schedule(found: list[tuple[int, Plain]]) -> Plain:
    """The curriculum that repeats a lineage; a number that never changed is left out."""
    plan = {}
    for key, first in found[0][1].items():
        steps = [[since, numbers[key]] for since, numbers in found[1:]]
        steps = [x for x, before in zip(steps, [first, *(y for _, y in steps)], strict=False)
                 if x[1] != before]  # fmt: skip
        if steps:
            ends = {"start": steps[0][0] - 1, "stop": steps[-1][0]}
            plan[key] = {"from": first, "to": steps[-1][1], "by": "iteration"} | ends
            plan[key] |= {"steps": steps[:-1]} if len(steps) > 1 else {}
    return plan


def ending(rows: list[Plain]) -> str:
    """How a member has ended: stopped, done or failed; empty while it has not."""
    for row in rows:
        if "stopped" in row:
            return "stopped"
        if "ended" in row:
            return str(row["ended"])
    return ""


def check_space(section: SearchSection, plain: Plain, given: dict[str, str]) -> Plain:
    """Key → where its number is searched; ValueError in one line if an entry is wrong."""
    if not section.space:
        raise ValueError(
            f"search={section.name} needs search.space, such as "
            "{algo.target_kl: {log: [0.005, 0.05]}}"
        )
    if not isinstance(section.space, dict) or not all(isinstance(x, str) for x in section.space):
        raise ValueError(f"search.space={section.space}: expected {{key: where}}, keys in letters")
    for key, entry in section.space.items():
        where = f"search.space: {key}"
        if key in given:
            raise ValueError(f"{where} is searched, and given by {given[key]}: leave one out")
        if key in OWN and section.name != "grid":
            raise ValueError(f"{where} is the same for all members: they are compared by it")
        if key.partition(".")[0] in (*OF_ALL, *NOT_HERE):
            raise ValueError(f"{where} is no number of a training")
        if key in (plain["curriculum"] or {}):
            raise ValueError(f"{where} is searched, and scheduled by curriculum: leave one out")
        check_entry(where, entry, section.name)
    return section.space


def check_entry(where: str, entry: Any, name: str) -> None:
    """ValueError unless an entry of a space is a range, or a list of values."""
    kinds = "{log: [low, high]}, {uniform: [low, high]}, {whole: [low, high]} or a list of values"
    if isinstance(entry, list):
        if len({*map(json.dumps, entry)}) < max(2, len(entry)):
            raise ValueError(f"{where}: {entry}: expected at least two values, and each once")
        if name == "pbt" and not all(type(x) in (int, float) for x in entry):
            raise ValueError(f"{where}: {entry}: pbt changes numbers alone")
        return
    if name == "grid":
        raise ValueError(f"{where}: search=grid takes lists of values alone")
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"{where}: {entry}: expected {kinds}")
    ((kind, ends),) = entry.items()
    if kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(KINDS)}"
        raise ValueError(f"{where}: unknown {kind!r}: {hint}")
    numbers = isinstance(ends, list) and [type(x) in (int, float) for x in ends] == [True, True]
    if not numbers or not all(map(math.isfinite, ends)) or not ends[0] < ends[1]:
        raise ValueError(f"{where}: {kind}: {ends}: expected two numbers, the lower one first")
    if kind == "log" and ends[0] <= 0:
        raise ValueError(f"{where}: log: {ends}: expected numbers above 0")
    if kind == "whole" and {*map(type, ends)} != {int}:
        raise ValueError(f"{where}: whole: {ends}: expected whole numbers")


def check_words(section: SearchSection, plain: Plain, given: dict[str, str]) -> None:
    """ValueError if there are too few members, or a word is for a single training."""
    check_extras(f"search={section.name}")
    fewest = max(FEWEST[section.name], section.eta if section.name == "asha" else 0)
    if section.trials < fewest:
        raise ValueError(
            f"search.trials={section.trials}: search={section.name} needs {fewest} members at least"
        )
    for key, why in NOT_HERE.items():
        value = plain[key]["name"] if isinstance(plain[key], dict) else plain[key]
        if key in given and value not in (None, False, "none"):
            raise ValueError(f"{given[key]}: not with search={section.name}, whose {why}")


def first_round(section: SearchSection, cfg: Config) -> int:
    """Iterations before the first decision; ValueError unless an episode has ended by then."""
    task = cfg.plain["task"]
    # the first episodes begin at staggered times: before one is whole, returns order nothing
    episode = math.ceil(round(task["episode"] / task["dt"]) / cfg.num_steps)
    every = section.every or max(episode, cfg.iterations // 8)
    decides = section.name in ("asha", "pbt")
    if decides and every < episode:
        raise ValueError(
            f"search.every={every}: an episode lasts {episode} iterations, before which "
            "scores order nothing"
        )
    if decides and every >= cfg.iterations:
        raise ValueError(f"search.every={every}: no decision before iterations={cfg.iterations}")
    return every


def corners(space: Plain) -> list[Plain]:
    """Numbers in which each end of each range, and each value of a list, is once."""
    values = {
        key: x if isinstance(x, list) else [*next(iter(x.values()))] for key, x in space.items()
    }
    longest = max(map(len, values.values()))
    return [{key: x[min(i, len(x) - 1)] for key, x in values.items()} for i in range(longest)]


def check_member(base: list[str], numbers: Plain, cfg: Config) -> None:
    """ValueError, which begins with search.space, if a training cannot have such numbers.

    cfg: of all members; one of these must have as many samples.
    """
    line = [*base, *(f"{key}={json.dumps(x)}" for key, x in numbers.items())]
    try:
        own = check_training(compose_plain("config", line), line)
    except ValueError as error:
        raise ValueError(f"search.space: {error}") from None
    for key in OWN[1:]:
        if (x := getattr(own, key)) != (y := getattr(cfg, key)):
            raise ValueError(
                f"search.space: {' '.join(line[len(base) :])} has {key}={x}, not {y}: members are "
                f"compared at equal samples, give {key}="
            )


def check_live(space: Plain, cfg: Config) -> None:
    """ValueError unless every key of a space may change while a policy is trained."""
    from gpusim_rl.assembly.learners import algorithm_of, load_reward  # they load torch

    learners: dict[str, Any] = {"algo": algorithm_of(cfg)[0]}
    if cfg.reward.name != "none":
        learners["reward"] = load_reward(cfg.reward.name)
    for key in space:
        section, _, name = key.partition(".")
        can = getattr(learners.get(section), "changeable", ())
        if section in ("algo", "reward") and name not in can:
            choices = ", ".join(f"{section}.{x}" for x in can) or "none"
            raise ValueError(f"search.space: {key} cannot change in training: choose of {choices}")
        if key == "algo.learning_rate" and "lr_min" in cfg.plain["algo"]:
            raise ValueError(f"search.space: {key} follows the KL divergence: search algo.lr_max")
        try:
            curriculum.value_of(key, cfg.plain)
        except ValueError as error:
            raise ValueError(str(error).replace("curriculum", "search.space", 1)) from None

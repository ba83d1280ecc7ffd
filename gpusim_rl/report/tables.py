"""What a report says in words: how runs ended, what to do next, what was swept and what differs."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gpusim_rl.config import resume
from gpusim_rl.config.compose import build_base, choices
from gpusim_rl.config.nested_dict import is_below, leaves
from gpusim_rl.config.recipe import FAST, apply_recipe
from gpusim_rl.config.validate import code_words
from gpusim_rl.core.files import read_text
from gpusim_rl.core.paths import program, quoted
from gpusim_rl.report import drives, page, scores
from gpusim_rl.report.members import read_members
from gpusim_rl.report.scores import number_text
from gpusim_rl.runs.summary import Summary, number, summarize, word

GROUPS = ("task", "sim", "algo", "reward", "log", "robot", "terrain")
SILENT = (*resume.SILENT, "gpu", "threads")  # `threads` is this machine's number
# What a command of a training leaves out: `code_words` are added, and the others are of one run
UNTOLD = ("resume", "run_dir", "auto_resume", "plan", "task_code", "algo_code", "gpu", "threads")
COLUMNS, LABELLED = 12, 3  # swept keys in a table, and in a label, at most
FIRST = ("success", "return", "time_s")  # scores that the table of runs begins with


def render(paths: list[Path], out: Path) -> str:
    """The page of runs, to be written to `out`. ValueError if one is damaged."""
    runs = sorted(map(summarize, paths), key=rank, reverse=True)
    flat = [plain(run.config) for run in runs]
    keys = list(dict.fromkeys(key for values in flat for key in values))
    swept = [key for key in keys if len({repr(values.get(key)) for values in flat}) > 1]
    swept.sort(key=lambda key: key not in ("task.name", "seed"))  # these first
    settings = by_setting(runs, flat, swept)
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    first = first_screen(runs[0], alone=len(runs) == 1)
    return page.page(
        settings,
        bool(first["film"]),
        title=title(runs),
        first=first,
        counts=counts(runs) if len(runs) > 1 else "",
        one=details(runs[0]) if len(runs) == 1 else None,
        search=read_members(runs) if len(runs) > 1 else None,
        swept={key: values_of(key, flat) for key in swept[:COLUMNS]},
        names=names,
        rows=[row(*pair, swept[:COLUMNS], names, out) for pair in zip(runs, flat, strict=True)],
        means=[means(label, group, names) for label, group in settings.items()],
        differences=differences(runs, set(swept)),
    )


def rank(run: Summary) -> tuple[bool, float, float]:
    """What the best run has most of."""
    return bool(run.scores), run.scores.get("success", -1.0), run.scores.get("return", 0.0)


def counts(runs: list[Summary]) -> str:
    endings = [run.ending for run in runs]
    return ", ".join(f"{endings.count(ending)} {ending}" for ending in dict.fromkeys(endings))


def first_screen(run: Summary, alone: bool) -> dict[str, Any]:
    """What the page begins with: how the best run ended, how good it is, and what to do next."""
    success = run.scores.get("success")
    return {
        "name": run.run.path.resolve().name,
        "ending": run.ending,
        "told": ending(run),
        "success": "" if success is None else f"{success:.3f}",
        "ends": scores.interval(run.scores),
        "interval": scores.interval_text(run.scores),
        "episodes": scores.episodes_of(run.scores),
        "driven": "episodes_passed" in run.scores,
        "facts": facts(run),
        "commands": next_commands(run, alone),
        "film": page.film_address(run),
    }


def details(run: Summary) -> dict[str, Any]:
    return {
        "evaluation": scores.evaluation(run, drives.axes(run)),
        "failures": failures(run),
        "axes": [f"{name} [{unit}]" for name, unit in drives.axes(run).items()],
        "bounds": ", ".join(f"{key} {x:g}" for key, x in drives.bounds(run).items()),
        "drives": drives.table(run) if drives.rows(run) else {},
        "charts": drives.charts(run),
        "shares": page.shares(run),
        "versions": list(run.versions.items()),
        "diff": run.diff,
        "config": read_text(run.run.path / "config.yaml"),
    }


def facts(run: Summary) -> list[tuple[str, str]]:
    """(what, value) of how a run was made: command, time, machine and commit."""
    steps, seconds = (page.last_value(run, name) for name in ("env_steps", "time_s"))
    time = [] if seconds is None else [f"{duration(seconds)} of training"]
    time += [f"{steps / 1e6:.3g} M env steps"] if steps else []
    time += [f"{steps / seconds:,.0f} steps/s"] if steps and seconds else []
    versions = run.versions
    gpu = versions.get("gpu", "none")
    parts = [gpu if gpu != "none" else "", versions.get("processor", versions.get("machine", ""))]
    parts += [f"{versions['cores']} cores"] if "cores" in versions else []
    commit = versions.get("commit", "")[:12]
    rows = {
        "command": training_command(run),
        "time": ", ".join(time),
        "machine": ", ".join(filter(None, parts)),
        "commit": f"{commit}, and changes that it lacks" if commit and run.diff else commit,
    }
    return [(what, value) for what, value in rows.items() if value]


def duration(seconds: float) -> str:
    """A time in words, such as 2 min 14 s."""
    minutes, rest = divmod(round(min(seconds, 1e9)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def next_commands(run: Summary, alone: bool = True) -> list[tuple[str, str]]:
    """(what for, command) of what can be done with a run."""
    path, train, code = run.run.path, program("train"), code_words(run.config)
    if run.ending != "finished":
        commands = [("Continue it", command(train, argument("resume", path), *code))]
        if (repro := path / "repro.safetensors").is_file():
            repeat = command(program("play"), argument("repro", repro), *code)
            return [("Repeat the step that went wrong", repeat), *commands]
        return commands
    policy = path / "policy.onnx"
    film = play_command(run, "mode=video", "seconds=10")
    again = command(program("report"), str(path))
    no_film = alone and film and not run.run.films()
    longer = [f"iterations={2 * run.planned}"]
    if run.config.get("export") == "none" and policy.is_file():  # the best run of a multirun
        longer.append("export=controller")
    gate = command(program("play"), argument("onnx", policy), "mode=gate")
    return [
        ("Watch it", play_command(run)),
        ("Steer it in a browser", play_command(run, "mode=web")),
        *([("Put a film into this page", f"{film} && {again}")] if no_film else []),
        *([("Judge the policy for a robot", gate)] if policy.is_file() else []),
        ("Export the policy", play_command(run, "mode=export", "out=policy.onnx")),
        ("Train it for longer", command(train, argument("resume", path), *longer, *code)),
    ]


def play_command(run: Summary, *words: str) -> str:
    return command(program("play"), argument("run", run.run.path), *words, *code_words(run.config))


def argument(key: str, path: Path) -> str:
    """A word of a command line that names a path."""
    return f"{key}={path}" if re.fullmatch(r"[\w./+-]+", str(path)) else quoted(key, path)


def command(start: str, *words: str) -> str:
    """A line for a shell that can be copied; empty if a word has characters that cannot be."""
    return f"{start} {shlex.join(words)}" if all(map(str.isprintable, words)) else ""


def training_command(run: Summary) -> str:
    """The command that trains as a run does; empty if its task is not known here."""
    config = run.config
    if not defaults(config):
        return ""
    words = [f"task={config['task']['name']}"]
    words += [f"recipe={name}"] if (name := recipe_of(config)) != FAST else []
    base = build_base("config", tuple(words[:1]))
    for group in GROUPS[1:]:
        name = config[group].get("name") if isinstance(config.get(group), dict) else None
        if isinstance(name, str) and name != base[group].get("name") and name in choices(group):
            words.append(f"{group}={name}")
    told = changes(config, UNTOLD)
    values = {key: x for key, (_, x) in told.items() if not key.endswith(".name")}
    threads = config.get("threads")  # of the update; all cores unless they were given
    if threads and str(threads) != run.versions.get("cores", str(threads)):
        values["threads"] = threads
    values["seed"] = config.get("seed")
    for key, x in values.items():
        if isinstance(x, str) and x.startswith("model/"):  # the run's copy of a file
            words.append(argument(key, run.run.path / x))
        else:
            words.append(f"{key}={x if isinstance(x, str) else json.dumps(x)}")
    return command(program("train"), *words)


def recipe_of(config: dict[str, Any]) -> str:
    """The name of a run's recipe, or `fast`: a stranger's may have none."""
    section = config.get("recipe")
    return word(section.get("name", FAST)) if isinstance(section, dict) else FAST


def values_of(key: str, flat: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(text(values.get(key)) for values in flat))[:400]


def by_setting(
    runs: list[Summary], flat: list[dict[str, Any]], swept: list[str]
) -> dict[str, list[Summary]]:
    """Label → the runs that differ in their seeds alone. A label says a few of the swept keys."""
    keys, groups = [key for key in swept if key != "seed"], {}
    for run, values in zip(runs, flat, strict=True):
        groups.setdefault(tuple(text(values.get(key)) for key in keys), []).append(run)
    settings: dict[str, list[Summary]] = {}
    for values, group in groups.items():
        words = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        label = ", ".join(words[:LABELLED]) or "all"
        settings[label if label not in settings else f"{label} ({len(settings) + 1})"] = group
    return settings


def title(runs: list[Summary]) -> str:
    """The title of the page: tasks, and the run or how many."""
    tasks = dict.fromkeys(word(run.config["task"].get("name")) for run in runs)
    name = runs[0].run.path.resolve().name if len(runs) == 1 else f"{len(runs)} runs"
    return f"{', '.join(tasks)} · {name}"


def plain(config: dict[str, Any], silent: tuple[str, ...] = SILENT) -> dict[str, Any]:
    """Dotted key → value, of all that says how a run trains, or that is not `silent`."""
    return {key: value for key, value in leaves(config).items() if not is_below(key, silent)}


def text(value: Any) -> str:
    """A value of a configuration, short."""
    return word(value if isinstance(value, str) else json.dumps(value))[:200]


def ending(run: Summary) -> str:
    """How a training ended, in a sentence."""
    done = f"{run.iteration} of {run.planned} iterations"
    if run.ending == "finished":
        return f"Finished: {done}."
    if run.ending == "failed":
        return f"Failed after {done}: {lost(run)}."
    return f"Not finished: {done}, and no evaluation."


def lost(run: Summary) -> str:
    """Where and why a training went wrong, from report.json."""
    where = ", ".join(f"{key} {word(run.failure.get(key))}" for key in ("world", "step"))
    why = run.failure.get("why")
    why = " and ".join(map(word, why)) if isinstance(why, list) and why else "no step was lost"
    term, terms = run.failure.get("term"), run.failure.get("terms")
    worst = number(terms.get(term)) if isinstance(term, str) and isinstance(terms, dict) else None
    value = "not finite" if worst is None else number_text(worst)
    return f"{where}: {why}; largest reward term {word(term)} = {value}"


def row(
    run: Summary, values: dict[str, Any], swept: list[str], names: list[str], out: Path
) -> dict[str, Any]:
    """The row of a run in the table of several."""
    file = run.run.path / "report.html"
    link = os.path.relpath(file.resolve(), out.resolve().parent) if file.is_file() else ""
    return {
        "name": run.run.path.resolve().name,
        "link": Path(link).as_posix() if link else "",
        "ending": run.ending,
        "done": f"{run.iteration} / {run.planned}",
        "swept": [text(values.get(key)) for key in swept],
        "interval": scores.interval_text(run.scores),
        "scores": [number_text(run.scores[x]) if x in run.scores else "" for x in names],
    }


def means(label: str, runs: list[Summary], names: list[str]) -> dict[str, Any]:
    """The scores of one setting over its seeds, and where each seed's success lies."""
    values = [[run.scores[name] for run in runs if name in run.scores] for name in names]
    ends = [(run.scores["success"], *x) for run in runs if (x := scores.interval(run.scores))]
    return {
        "label": label,
        "seeds": len(runs),
        "scores": [page.range_over_seeds(x) if x else "" for x in values],
        "intervals": ends,
    }


def failures(run: Summary) -> list[tuple[str, str]]:
    """(cause, how often), of the evaluation and of the end of the training."""
    rows = scores.failures(run)
    if run.failure:
        rows.append(("training: the worst step", lost(run)))
    for name in page.ENDINGS:
        if mean := page.last_mean(run, name):
            what = f"training: {page.label([run], name)}"
            rows.append((what, f"{number_text(mean)}, mean of the last rows"))
    return rows


def changes(config: dict[str, Any], silent: tuple[str, ...] = SILENT) -> dict[str, tuple[Any, Any]]:
    """Key → default and value of what the defaults do not say, no curriculum writes, and is not
    `silent`.
    """
    default, plan = defaults(config), config.get("curriculum")
    written = plan if isinstance(plan, dict) else {}
    return {
        key: (default.get(key), value)
        for key, value in plain(config, silent).items()
        if default and key != "seed" and default.get(key) != value and key not in written
    }


def differences(runs: list[Summary], swept: set[str]) -> list[tuple[str, str, str]]:
    """(key, default, value) of what the runs have in common and the defaults do not say."""
    pairs = changes(runs[0].config).items()
    return [(key, text(old), text(new)) for key, (old, new) in pairs if key not in swept]


def defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The values of conf/ for a run's task, robot and so on; empty if a file is absent."""
    builtin = config.get("task_code") is None
    chosen = {x: config[x].get("name") for x in GROUPS if isinstance(config.get(x), dict)}
    if chosen.get("task") not in choices("task", builtin):
        return {}
    our_algo = builtin and config.get("algo_code") is None
    words = [
        f"{x}={name}"
        for x, name in chosen.items()
        if name in choices(x, our_algo if x == "algo" else builtin)
    ]
    try:
        base = build_base("config", tuple(words))
        recipe = {**base["recipe"], "name": recipe_of(config)}
        return leaves(apply_recipe({**base, "recipe": recipe}, []))
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, OSError):
        return {}

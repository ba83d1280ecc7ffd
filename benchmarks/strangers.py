"""Policies that others trained, in the gate: `python -m benchmarks.strangers FOLDER [KEY=VALUE …]`.

Judges the demo and each .onnx file of a folder, as `mode=adopt` wrote them, in all scenarios: 40
robots for 10 s each, and two for half a minute of endurance, which is reported. No file is changed.
A file that cannot be judged has a line, and the others go on. Keys:

    out=FILE         strangers.json by default; a table lies beside it, strangers.md
    gate.….=VALUE    settings of the gate that differ, such as gate.robots=128

Exits with 1 if a file could not be judged. The verdict is none: other limits may be right for them.
"""

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import program
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.errors import exit_with_error, one_line_errors, printable, warn
from gpusim_rl.core.files import write_whole
from gpusim_rl.deploy.exported import open_onnx
from gpusim_rl.gate.command import report_of
from gpusim_rl.gate.settings import check_settings

FEW = (
    *("gate.robots=40", "gate.seconds=10", "gate.endurance.robots=2"),
    *("gate.endurance.minutes=0.5", "gate.reported=[contact,endurance]"),
)
Row = dict[str, Any]


def judge_file(path: Path, cfg: Row, say: Any) -> Row:
    """The report of a file, with its commands and the processor time [s] of all threads."""
    begun = time.process_time()
    report = report_of(path, cfg["gate"], cfg["seed"], path.stem, say)
    command = open_onnx(path)[0].command
    ranges = {}
    if command:
        ends = (command["trained"][end] for end in ("low", "high"))
        units = command["units"]
        ranges = {x: [*of] for x, *of in zip(command["names"], units, *ends, strict=True)}
    return report | {"file": path.stem, "commands": ranges, "cpu_s": time.process_time() - begun}


def cells(report: Row, names: list[str]) -> list[str]:
    """The cells of a policy's row in the table."""
    rows = {x["scenario"]: x for x in report["rows"]}
    success = [f"{rows[x]['success']['value']:.2f}" if x in rows else "–" for x in names]
    tracking = rows.get("constant", {}).get("tracking")
    worst = max(report["chatter"], key=lambda x: x["rms"])
    about = report["adopted"] or {"source": "gpusim_rl", "licence": "", "reads_unmeasured": []}
    commands = ", ".join(f"{x} {a:g} to {b:g} {u}" for x, (u, a, b) in report["commands"].items())
    return [
        report["file"],
        *success,
        f"{tracking['value']:.2f}" if tracking else "–",
        f"{worst['rms']:.3f} {worst['unit']}, {worst['hz']:.0f} Hz",
        f"{report['success']['value']:.2f}",
        commands or "–",
        ", ".join(about["reads_unmeasured"]) or "–",
        ", ".join(filter(None, (f"{about['source']}", f"{about['licence']}"))),
        f"{report['cpu_s']:.0f}",
    ]


def markdown(reports: list[Row], failed: dict[str, str], line: str) -> str:
    """The table of all policies, with the command that made it."""
    every = {x["scenario"]: None for report in reports for x in report["rows"]}
    names = [*every]
    heads = ["policy", *names, "tracking", "chatter", "all judged", "commands", "not measured"]
    heads += ["source, licence", "CPU s"]
    table = [heads, ["---"] * len(heads), *(cells(x, names) for x in reports)]
    rows = [f"| {' | '.join(x.replace('|', '/') for x in row)} |" for row in table]
    errors = [f"- {name} cannot be judged: {why}" for name, why in failed.items()]
    date = time.strftime("%Y-%m-%d")
    return "\n".join([f"`{line}`, {date}. Numbers are success.", "", *rows, "", *errors, ""])


def main(words: list[str]) -> None:
    """Judge the files, one after another; both files are written after each."""
    own, words = program.split_words(__doc__, words, out=None)
    folder = program.one_file([x for x in words if "=" not in x], "folder")
    with one_line_errors():
        cfg = compose_plain("play", [*FEW, *(x for x in words if "=" in x)])
        check_settings(cfg)
    if not (files := sorted(folder.glob("*.onnx"))):
        exit_with_error(f"{folder} has no .onnx file: write one with mode=adopt")
    console, line = program.make_console(), program.command_line("strangers")
    out = Path(own.out or "strangers.json")
    reports, failed = list[Row](), dict[str, str]()
    for path in [DEMO, *files]:
        try:
            reports.append(judge_file(path, cfg, lambda said: program.say(console, [said])))
        except (ValueError, OSError) as error:  # the others go on
            failed[path.stem] = printable(str(error))
            warn(f"error: {failed[path.stem]}")
        program.write_json(out, {"command": line, "policies": reports, "failed": failed})
        text = markdown(reports, failed, line)
        write_whole(out.with_suffix(".md"), text.encode())
    program.say(console, [f"wrote {out} and {out.with_suffix('.md')}"])
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])

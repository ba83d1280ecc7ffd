"""The live table of a training, in a terminal."""

from collections.abc import Iterable
from contextlib import ExitStack

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gpusim_rl.core.errors import printable
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.waiting import clock, waiting
from gpusim_rl.training.bottleneck import pages_read, verdict

FIRST = "the first iteration, which compiles what is new"
BARS = " ▁▂▃▄▅▆▇█"
Row = dict[str, float]


class Dashboard:
    """The live table of a training, or plain lines where there is no terminal.

    Args:
        title: shown above the table.
        iterations: in all.
        done: of them, before this process.
        metrics: names in the table, and formats. Those of the learner come last.
        quiet: print nothing.
    """

    def __init__(
        self,
        title: str,
        iterations: int,
        done: int = 0,
        *,
        metrics: Iterable[Metric] = (),
        quiet: bool = False,
    ):
        self.title, self.iterations, self.done = title, iterations, done
        self.metrics = [x for x in metrics if x.table]
        self.console = Console(stderr=False, quiet=quiet)
        self.live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        )
        self.success: dict[str, float] = {}  # of the last evaluation
        self.quiet_until = 0.0  # s of training before the next plain line
        self.pages, self.bound = pages_read(), ""
        self.first = ExitStack()  # ends with the first row

    def __enter__(self) -> "Dashboard":
        if self.live:
            self.live.update(Group(Text(self.title, "bold"), Spinner("dots", FIRST)))
            self.live.start()
        else:
            self.first.enter_context(waiting(FIRST, self.say))
        return self

    def __exit__(self, *_: object) -> None:
        self.first.close()
        if self.live:
            self.live.stop()

    def say(self, message: str) -> None:
        """Print a line above the table."""
        self.console.print(printable(message), highlight=False, markup=False, soft_wrap=True)

    def show(self, row: Row, trained_s: float) -> None:
        """Show a row of metrics after `trained_s` seconds of training in this process."""
        self.first.close()
        i = int(row["iteration"])
        self.success = {"success": row["success"]} if "success" in row else self.success
        row = self.success | row
        left = trained_s / max(i - self.done, 1) * (self.iterations - i)
        shares = {key[6:]: value for key, value in row.items() if key.startswith("share/")}
        pages = (pages_read() - self.pages) / max(trained_s, 1.0)
        self.bound = verdict(shares, cores=row.get("cores"), pages=pages).line
        if self.live:
            self.live.update(self.table(row, left))
        elif trained_s >= self.quiet_until or i == self.iterations:
            self.quiet_until = trained_s + 5.0
            success = f"  success {row['success']:.3f}" if "success" in row else ""
            env_steps, speed = row["env_steps"] / 1e6, row["steps_per_s"]
            self.say(
                f"iteration {i}/{self.iterations}  {env_steps:.2f} M steps  {speed:,.0f} steps/s"
                f"  return {row['return']:.2f}{success}"
                f"  time {clock(row['time_s'])}  left {clock(left)}"
            )
            if i == self.iterations and self.bound:
                self.say(self.bound)

    def table(self, row: Row, left: float) -> Group:
        """The table: all that matters on one screen."""
        grid = Table.grid(padding=(0, 3))
        i = int(row["iteration"])
        head = [
            ("iteration", f"{i} / {self.iterations}"),
            ("steps", f"{row['env_steps'] / 1e6:.2f} M"),
            ("steps/s", f"{row['steps_per_s']:,.0f}"),
            ("time", f"{clock(row['time_s'])}, {clock(left)} left"),
            ("physics", f"{row['share/physics']:.0%}"),
            ("environment", f"{row['share/environment']:.0%}"),
            ("policy", f"{row['share/policy']:.0%}"),
            ("update", f"{row['share/update']:.0%}"),
            ("success", f"{row['success']:.3f}" if "success" in row else "at the end"),
        ]
        head += [(x.table, format(row[x.key], x.format)) for x in self.metrics if x.key in row]
        terms = [(k[7:], f"{v:+.3f}") for k, v in row.items() if k.startswith("reward/")]
        measures = {k[8:]: v for k, v in row.items() if k.startswith("measure/")}
        errors = [(k, f"{v:.3f}") for k, v in measures.items() if "/" not in k]
        plan = [f"{k[9:]} {v:.4g}" for k, v in row.items() if k.startswith("schedule/")]
        for line in range(max(map(len, (head, terms, errors)))):
            cells: list[str] = []
            for column, style in ((head, "bold"), (terms, "cyan"), (errors, "green")):
                name, value = column[line] if line < len(column) else ("", "")
                cells += [f"[dim]{name}[/]", f"[{style}]{value}[/]"]
            grid.add_row(*cells)
        return Group(
            Text(self.title, "bold"),
            Padding(ProgressBar(self.iterations, i, width=72), (0, 0, 1, 0)),
            grid,
            *(Text(line, "green") for line in groups(measures)),
            *([Text("\n".join(plan), "yellow")] if plan else []),
            Text(self.bound, "dim"),
        )


def groups(measures: Row) -> list[str]:
    """A line for the measures that share a name before a slash: level/0, level/1, level/slope …

    Numbered ones are shares of the worlds, and become a histogram.
    """
    lines = []
    for name in dict.fromkeys(key.partition("/")[0] for key in measures if "/" in key):
        group = {k.partition("/")[2]: v for k, v in measures.items() if k.startswith(f"{name}/")}
        shares = [value for key, value in group.items() if key.isdigit()]
        if shares:
            height = max(*shares, 1e-9)
            bars = "".join(BARS[round(share / height * (len(BARS) - 1))] for share in shares)
            lines.append(f"{name} 0 {bars} {len(shares) - 1}")
        others = [f"{key} {value:.2f}" for key, value in group.items() if not key.isdigit()]
        lines += [f"{name}: {', '.join(others)}"] if others else []
    return lines

"""mode=web of play.py: policies on a web page, in real time."""

import gc
import os
import signal
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from gpusim_rl.core import errors
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.viewer.target import fixed_command
from gpusim_rl.web.controls import SPEEDS, Controls, Request, Sliders
from gpusim_rl.web.pace import Every, Pace
from gpusim_rl.web.policy_panel import Shown, known_runs
from gpusim_rl.web.requirements import check_versions
from gpusim_rl.web.server import LOOPBACK, PORT, is_loopback, open_server, quiet

PICTURE, READ, LOOK = 1 / 30, 0.25, 2.0  # s between pictures, numbers, and looks for checkpoints
SELDOM = 0.2  # s between pictures of a simulation that is behind real time
IDLE = 1.0  # s between two looks for the parent process while nothing moves


def serve(cfg: dict[str, Any], words: list[str], parent: int) -> None:
    """Show policies on a page until Ctrl-C, or until the parent process has ended.

    Args:
        cfg: of play.py.
        words: run directories or .onnx files, one or two.
        parent: id of the parent process when this one began.
    """
    host = cfg["host"] or LOOPBACK
    with errors.one_line_errors(), check_versions():
        server, address = open_server(host, PORT if cfg["port"] is None else cfg["port"])
    try:
        with errors.one_line_errors():
            web = Web(cfg, words, server)
        if not is_loopback(host):
            errors.warn(f"warning: whoever reaches {host} can open this page and steer")
        shown = errors.printable(" and ".join(words))
        print(f"open {address} (Ctrl-C ends it): {shown}", flush=True)
        web.loop(parent)
        print("ended with the process that started it")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(f"ended: {address} is closed")
    finally:
        with quiet():
            server.stop()


class Web:
    """The page, and the loop that steps what it shows. The arguments are those of `serve`."""

    def __init__(self, cfg: dict[str, Any], words: list[str], server: Any):
        self.requests: SimpleQueue[Request] = SimpleQueue()
        self.server, self.pace = server, Pace()
        self.policies = [
            Shown(word, cfg, server, name) for name, word in zip("ab", words, strict=False)
        ]
        command = cfg["command"] or []
        for shown in self.policies:
            fixed_command(shown.rollout.about, command)
        self.sliders = Sliders(server, self.requests, command, cfg["seconds"])
        worlds = max(shown.rollout.worlds for shown in self.policies)
        self.controls = Controls(server, self.requests, worlds, self.restart, self.push)
        choices, compares = known_runs(words), len(words) > 1
        for shown in self.policies:
            shown.add_controls(f"Policy {shown.name}" if compares else "Policy", choices)
            self.on_choice(shown)
        self.arrange()
        # wakes the loop
        server.on_client_connect(lambda _: self.requests.put(lambda: None))

    def on_choice(self, shown: Shown) -> None:
        """Let the choice of a run and of a checkpoint be requests."""
        put = self.requests.put
        shown.pick.on_update(lambda _: put(lambda: self.change_run(shown)))
        shown.iteration.on_update(lambda _: put(lambda: self.change_checkpoint(shown)))

    def arrange(self) -> None:
        """Put robots side by side, have their sliders, and set the camera of a new page."""
        if len(self.policies) > 1:
            first, second = (shown.scene.reach for shown in self.policies)
            self.policies[1].move(np.array([0.0, 1.6 * (first + second)]))
        self.sliders.rebuild([shown.rollout.about for shown in self.policies])
        scenes = [shown.scene for shown in self.policies]
        places = np.concatenate([scene.places for scene in scenes])
        wide = float(np.ptp(places, axis=0).max()) + 3.0 * max(scene.reach for scene in scenes)
        middle = places.mean(0) - places[self.controls.followed or 0]
        camera = self.server.initial_camera
        camera.look_at, camera.position = middle, middle + wide * np.array([0.75, -0.75, 0.5])

    # -- what pages ask for ------------------------------------------------------------------------

    def restart(self) -> None:
        """Begin new episodes."""
        for shown in self.policies:
            shown.rollout.restart()
            shown.begin()

    def push(self, velocity: np.ndarray) -> None:
        """Push all robots."""
        for shown in self.policies:
            shown.rollout.push(velocity)

    def change_run(self, shown: Shown) -> None:
        """Show the run that was chosen; if that fails, say why, and go on with the old one."""
        word = shown.words[shown.pick.value]
        if word == shown.word:
            return
        shown.note.value = "loading"
        try:
            shown.open(word)
        except (ValueError, OSError) as error:
            shown.say(str(error))
            shown.pick.value = shown.label
            return
        finally:
            gc.collect()  # an environment refers to itself, and keeps memory and threads
        shown.iteration.options = shown.checkpoints()
        shown.show_checkpoint()
        shown.note.value = ""
        self.restart_time()
        self.arrange()

    def restart_time(self) -> None:
        """Let all policies go on from the same time."""
        for shown in self.policies:
            shown.begin()

    def change_checkpoint(self, shown: Shown) -> None:
        """Let the policy of the chosen checkpoint act; if that fails, say why, and go on."""
        if shown.iteration.value == shown.acting:
            return
        try:
            shown.load_checkpoint(shown.iteration.value)
            if shown.ppo:
                shown.note.value = f"after {shown.ppo.iterations} iterations"
        except (ValueError, OSError) as error:
            shown.say(str(error))
            shown.show_checkpoint()

    # -- the loop ----------------------------------------------------------------------------------

    @torch_threads(1)
    def loop(self, parent: int) -> None:
        """Step in real time while a page is open, until the parent process has ended."""
        picture, seldom, read, look = map(Every, (PICTURE, SELDOM, READ, LOOK))
        while os.getppid() == parent:
            if look.passed():
                for shown in self.policies:
                    shown.look_for_checkpoints()
            wait = 0.0 if self.controls.steps else self.pace.wait() if self.going() else IDLE
            asked = self.answer(wait)
            stepped = self.controls.steps > 0 or (self.going() and self.pace.wait() <= 0)
            if stepped:
                self.step()
            elif not self.going():
                self.pace = Pace()
            if not (asked or stepped):
                continue
            drawn = seldom if self.pace.late() else picture
            now = not self.going()  # nothing is drawn after this
            if drawn.passed() or now:
                self.draw()
            if read.passed() or now:
                self.show_numbers()

    def going(self) -> bool:
        """Whether time passes: a page is open, and it is not paused."""
        return bool(self.server.get_clients()) and not self.controls.paused

    def answer(self, wait: float) -> bool:
        """Do all that pages ask for, if they do within this time [s]. Returns whether they did."""
        try:
            self.requests.get(block=wait > 0, timeout=max(wait, 0.0))()
        except Empty:
            return False
        for _ in range(self.requests.qsize()):  # a slider that is dragged asks a hundred times
            self.requests.get()()
        return True

    def step(self) -> None:
        """One control step of the policies whose time it is."""
        before = min(shown.time for shown in self.policies)
        for shown in self.policies:
            if shown.time > before + 1e-9:
                continue
            try:
                shown.step(self.sliders.command(shown.rollout.about, shown.time))
            except ValueError as error:  # of a stranger's file
                shown.say(str(error))
                shown.rollout.restart()
                if not self.controls.paused:
                    self.controls.toggle()
                break
        self.controls.steps = max(0, self.controls.steps - 1)
        after = min(shown.time for shown in self.policies)
        self.pace.stepped(after - before, SPEEDS[self.controls.speed.value])

    def draw(self) -> None:
        """Draw all robots."""
        followed, first = self.controls.followed, self.policies[0].scene
        for shown in self.policies:
            command = self.sliders.command(shown.rollout.about, shown.time)
            shown.scene.draw(min(followed or 0, shown.rollout.worlds - 1), command)
        first.follow(None if followed is None else min(followed, len(first.places) - 1))
        for shown in self.policies[1:]:
            shown.scene.move(first.offset)

    def show_numbers(self) -> None:
        """Write times and poses, and draw the plots."""
        paused, speed = self.controls.paused, f"{self.pace.rate():.2f} × real time"
        at = min(shown.time for shown in self.policies)
        self.controls.state.value = f"{at:.2f} s, {'paused' if paused else speed}"
        for shown in self.policies:
            shown.show_numbers(self.controls.followed or 0)

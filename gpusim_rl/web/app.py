"""mode=web of play.py: policies on a web page, in real time."""

import gc
import os
import signal
from contextlib import ExitStack
from functools import partial
from queue import Empty
from typing import Any

import numpy as np
import viser

from gpusim_rl.core import errors
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.command_columns import fixed_command
from gpusim_rl.viewer.gamepad import Change
from gpusim_rl.web.controls import SPEEDS, Controls, Requests, Sliders
from gpusim_rl.web.pace import Every, Pace
from gpusim_rl.web.policy_panel import PolicyPanel, run_choices
from gpusim_rl.web.requirements import check_versions
from gpusim_rl.web.server import PORT, open_server, quiet
from gpusim_rl.web.share import sender

PICTURE, READ, LOOK = 1 / 30, 0.25, 2.0  # s between pictures, numbers, and looks for checkpoints
SELDOM = 0.2  # s between pictures of a simulation that is behind real time
IDLE = 1.0  # s between two looks for the parent process while nothing moves


def serve(cfg: dict[str, Any], words: list[str], parent: int) -> None:
    """Show policies on a page until Ctrl-C, or until the parent process has ended.

    words: run directories or .onnx files, one or two.
    """
    with errors.one_line_errors(), check_versions():
        server, address, access = open_server(PORT if cfg["port"] is None else cfg["port"])
    ends = ExitStack()
    try:
        with errors.one_line_errors():
            web = Web(cfg, words, server)
        access.gamepad = lambda change: web.requests.put(partial(web.follow_gamepad, change))
        ends.callback(web.stop)
        policies = errors.printable(" and ".join(words))
        print(f"open {address} (Ctrl-C ends it): {policies}", flush=True)
        web.loop(parent)
        print("ended with the process that started it")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(f"ended: {address} is closed")
    finally:
        ends.close()
        with quiet():
            server.stop()


class Web:
    """The page, and the loop that steps what it shows. The arguments are those of `serve`."""

    def __init__(self, cfg: dict[str, Any], words: list[str], server: viser.ViserServer):
        self.requests = Requests()
        self.server, self.pace = server, Pace()
        self.policies = [
            PolicyPanel(word, cfg, server, name) for name, word in zip("ab", words, strict=False)
        ]
        command = cfg["command"] or []
        for panel in self.policies:
            fixed_command(panel.rollout.description, command)
        self.sliders = Sliders(server, self.requests, command, cfg["seconds"])
        worlds = max(panel.rollout.worlds for panel in self.policies)
        self.controls = Controls(server, self.requests, worlds, self.restart, self.push)
        choices = run_choices(words)
        for panel in self.policies:
            panel.add_controls(f"Policy {panel.name}" if len(words) > 1 else "Policy", choices)
            self.listen(panel)
        self.arrange()
        server.on_client_connect(lambda _: self.requests.put(lambda: None))  # wakes the loop

    def listen(self, panel: PolicyPanel) -> None:
        """Put what pages ask of a policy into the queue."""
        put = self.requests.put
        panel.pick.on_update(lambda _: put(lambda: self.change_run(panel)))
        panel.iteration.on_update(lambda _: put(lambda: self.change_checkpoint(panel)))
        panel.share.on_click(lambda x: put(partial(self.share, panel, x.target.value, x.client)))

    def arrange(self) -> None:
        """Put robots side by side, have their sliders, and set the camera of a new page."""
        scenes = [panel.scene for panel in self.policies]
        if len(scenes) > 1:
            scenes[1].place(np.array([0.0, 1.6 * sum(scene.reach for scene in scenes)]))
        self.sliders.rebuild([panel.rollout.description for panel in self.policies])
        places = np.concatenate([scene.places for scene in scenes])
        width = float(np.ptp(places, axis=0).max()) + 3.0 * max(scene.reach for scene in scenes)
        center = places.mean(0) - places[self.controls.followed or 0]
        camera = self.server.initial_camera
        camera.look_at, camera.position = center, center + width * np.array([0.75, -0.75, 0.5])

    # -- what pages ask for ------------------------------------------------------------------------

    def restart(self) -> None:
        """Begin new episodes."""
        for panel in self.policies:
            panel.rollout.restart()
        self.restart_time()

    def restart_time(self) -> None:
        """Let all policies go on from the same time."""
        for panel in self.policies:
            panel.begin()

    def push(self, velocity: np.ndarray) -> None:
        """Push all robots."""
        for panel in self.policies:
            panel.rollout.push(velocity)

    def follow_gamepad(self, change: Change) -> None:
        """Move the sliders as its sticks say, pause, and begin anew."""
        if change.sticks is not None:
            self.sliders.follow_sticks(change.sticks)
        if change.pause:
            self.controls.toggle()
        if change.restart:
            self.restart()

    def change_run(self, panel: PolicyPanel) -> None:
        """Show the run that was chosen; if that fails, say why, and go on with the old one."""
        word = panel.words[panel.pick.value]
        if word == panel.word:
            return
        panel.tell("loading")
        try:
            panel.open(word)
        except (ValueError, OSError) as error:
            panel.say(str(error))
            panel.pick.value = panel.label
            return
        finally:
            gc.collect()  # an environment refers to itself, and keeps memory and threads
        panel.iteration.options = panel.checkpoints()
        panel.show_checkpoint()
        panel.tell("")
        self.restart_time()
        self.arrange()

    def change_checkpoint(self, panel: PolicyPanel) -> None:
        """Let the policy of the chosen checkpoint act; if that fails, say why, and go on."""
        if panel.iteration.value == panel.acting:
            return
        try:
            panel.load_checkpoint(panel.iteration.value)
            if panel.trained:
                panel.tell(f"after {panel.trained.iterations} iterations")
        except (ValueError, OSError) as error:
            panel.say(str(error))
            panel.show_checkpoint()

    def share(self, panel: PolicyPanel, kind: str, client: viser.ClientHandle | None) -> None:
        """Send a page the film or the file that it asked for."""
        touring = self.sliders.touring.value
        command = None if touring else self.sliders.command(panel.rollout.description, panel.time)
        panel.share_file(kind, sender(client), command)

    def stop(self) -> None:
        """End what is being made for a page."""
        for panel in self.policies:
            panel.files.stop()

    # -- the loop ----------------------------------------------------------------------------------

    @torch_threads(1)
    def loop(self, parent: int) -> None:
        """Step in real time while a page is open, until the parent process has ended."""
        picture, seldom, read, look = map(Every, (PICTURE, SELDOM, READ, LOOK))
        while os.getppid() == parent:
            if look.passed():
                for panel in self.policies:
                    panel.look_for_checkpoints()
                    panel.files.look()
            wait = 0.0 if self.controls.steps else self.pace.wait() if self.going() else IDLE
            answered = self.answer(wait)
            stepped = self.controls.steps > 0 or (self.going() and self.pace.wait() <= 0)
            if stepped:
                self.step()
            elif not self.going():
                self.pace = Pace()
            if not (answered or stepped):
                continue
            last = not self.going()  # nothing is drawn after this
            if (seldom if self.pace.late() else picture).passed() or last:
                self.draw()
            if read.passed() or last:
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

    @property
    def time(self) -> float:
        """Simulated time [s] of the policy that is behind."""
        return min(panel.time for panel in self.policies)

    def step(self) -> None:
        """One control step of the policies whose time it is."""
        before = self.time
        for panel in self.policies:
            if panel.time > before + 1e-9:
                continue
            try:
                panel.step(self.sliders.command(panel.rollout.description, panel.time))
            except ValueError as error:  # of a stranger's file
                panel.say(str(error))
                panel.rollout.restart()
                if not self.controls.paused:
                    self.controls.toggle()
                break
        self.controls.steps = max(0, self.controls.steps - 1)
        self.pace.stepped(self.time - before, SPEEDS[self.controls.speed.value])

    def draw(self) -> None:
        """Draw all robots."""
        followed, first = self.controls.followed, self.policies[0].scene
        for panel in self.policies:
            command = self.sliders.command(panel.rollout.description, panel.time)
            panel.scene.draw(min(followed or 0, panel.rollout.worlds - 1), command)
        first.follow(None if followed is None else min(followed, len(first.places) - 1))
        for panel in self.policies[1:]:
            panel.scene.move(first.offset)

    def show_numbers(self) -> None:
        """Write times and poses, and draw the plots."""
        state = "paused" if self.controls.paused else f"{self.pace.rate():.2f} × real time"
        self.controls.state.value = f"{self.time:.2f} s, {state}"
        description = self.policies[0].rollout.description
        self.sliders.follow(description, self.sliders.command(description, self.time))
        for panel in self.policies:
            panel.show_numbers(self.controls.followed or 0)

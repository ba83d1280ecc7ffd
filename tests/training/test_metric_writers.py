"""W&B, TensorBoard and MLflow: names that people know, and what each of them keeps of a run."""

import hashlib
import http.server
import importlib
import json
import os
import re
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import imageio
import pytest

from gpusim_rl.algorithms.distill.distill import Distill
from gpusim_rl.algorithms.iteration import SHARES
from gpusim_rl.algorithms.rewards.amp.amp import AMP
from gpusim_rl.algorithms.rewards.preference.preference import Preference
from gpusim_rl.algorithms.rewards.rnd.rnd import RND
from gpusim_rl.algorithms.sac.sac import SAC
from gpusim_rl.config import validate
from gpusim_rl.config.sections import LogSection
from gpusim_rl.core import waiting
from gpusim_rl.core.metrics import public_name
from gpusim_rl.core.ring import Ring
from gpusim_rl.runs.run import Run
from gpusim_rl.training import metric_writers
from gpusim_rl.training.metric_writers import logged_in, sink
from tests.command_lines import environment, run_process
from tests.films import gray_film
from tests.reports import METRICS
from tests.wandb_file import read_wandb, records
from tests.worlds import ROOT

NAMES = {x.key: x.public for x in METRICS}
ROW = {"iteration": 3, "return": 12.345, "reward/action_rate": -0.01, "share/physics": 0.6}
PUBLIC = {"train/return": 12.345, "reward/action_rate": -0.01, "perf/share/physics": 0.6}
LOG = {"project": "p", "run": None, "group": None, "tags": [], "registry": None}
CONFIG = {"task": {"name": "quadruped"}, "log": LOG}


@pytest.fixture
def policy(tmp_path) -> Path:
    """A file of that name."""
    file = tmp_path / "policy.onnx"
    file.write_bytes(bytes(range(256)) * 40)
    return file


def test_logged_in(tmp_path, monkeypatch):
    """A key, or a host of W&B in netrc, is a login; a default entry or another host is none."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert not logged_in()
    hosts = ("machine api.wandb.ai", "machine api.forge.coreweave.com")
    for machine in (*hosts, "machine github.com", "default", "nonsense"):
        file.write_text(f"{machine} login user password nothing\n")
        file.chmod(0o600)
        assert logged_in() == (machine in hosts), machine
    file.write_text("machine wandb.my.org login user password nothing\n")
    assert not logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.my.org")
    assert logged_in()
    file.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert logged_in()


def test_every_metric_has_a_public_name(trained):
    """Each metric of a training, and of its table, is renamed by the table, and no two alike."""
    names = {name for row in Run(trained).rows() for name in row} - {"iteration"}
    names |= {"success", "cores", *(f"share/{part}" for part in SHARES)}
    for name in names:
        group, slash, _ = name.partition("/")
        assert (f"{group}/*" if slash else name) in NAMES, name
    public = [public_name(name, METRICS) for name in names]
    assert len(set(public)) == len(public)
    assert all("/" in name for name in public)
    assert [public_name(x, METRICS) for x in ("mine", "mine/x")] == ["mine", "mine/x"]


def test_the_docs_have_the_table():
    """The table of docs/logging.md is that of the code, row by row."""
    text = (ROOT / "docs" / "logging.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", text, re.MULTILINE)
    parts = (*SAC.metrics, *Ring.metrics, *Distill.metrics, *RND.metrics, *AMP.metrics)
    parts += (*Preference.metrics,)
    names = NAMES | {x.key: x.public for x in parts} | {"clone_error": "loss/clone_error"}
    names |= {"model_error": "loss/model", "model/*": "model/*"}
    assert dict(rows) == names and len(rows) == len(names)


def read_events(folder: Path) -> Any:
    """What TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard")).Reload()


def test_tensorboard(policy, tmp_path):
    """It keeps numbers at their iterations, the film as moving pictures, the policy's bytes."""
    to = sink("tensorboard", tmp_path, CONFIG, metrics=METRICS)
    assert to.where == f"TensorBoard: tensorboard --logdir {tmp_path}/tensorboard"
    to.write(ROW)
    to.write(ROW | {"iteration": 7, "return": 2.5, "eval/success": 0.5})
    to.add(gray_film(tmp_path / "play.mp4"))
    to.add(policy)
    to.close()
    events = read_events(tmp_path)
    assert set(events.Tags()["scalars"]) == {*PUBLIC, "eval/success"}
    points = [(e.step, e.value) for e in events.Scalars("train/return")]
    assert points == [(3, pytest.approx(12.345)), (7, 2.5)]
    (picture,) = events.Images("eval/film")
    frames = imageio.mimread(picture.encoded_image_string, format="GIF")
    assert picture.step == 7 and frames[0].shape[:2] == (24, 32) and len(frames) == 12  # of 1.2 s
    (onnx,) = events.Tensors("policy.onnx")
    assert onnx.step == 7 and onnx.tensor_proto.string_val[0] == policy.read_bytes()
    (text,) = events.Tensors("policy/text_summary")
    digest = hashlib.sha256(policy.read_bytes()).hexdigest()
    assert digest in text.tensor_proto.string_val[0].decode()


def test_tensorboard_has_each_iteration_once(tmp_path, monkeypatch):
    """Iterations done again replace the earlier ones: after resume=, and after a roll-back."""
    monkeypatch.setattr(time, "time", count(10**9).__next__)  # an event file is named by it
    for done, iterations, value in ((0, (1, 2, 3, 4, 2, 3, 4, 4), 0.5), (3, (4, 5), 0.25)):
        to = sink("tensorboard", tmp_path, CONFIG, done, METRICS)
        for i in iterations:
            value += 1
            to.write({"iteration": i, "env_steps": i, "return": value})
        to.write({"iteration": iterations[-1], "eval/success": 0.5})
        to.close()
    events = read_events(tmp_path)
    points = [(e.step, e.value) for e in events.Scalars("train/return")]
    assert points == [(1, 1.5), (2, 5.5), (3, 6.5), (4, 1.25), (5, 2.25)]
    assert [e.step for e in events.Scalars("eval/success")] == [5]


def test_what_a_logger_does_not_take(tmp_path, capsys):
    """A file that is no film, or any other failure, is one line on stderr, and no exception."""
    (tmp_path / "play.mp4").write_bytes(b"no film")
    to = sink("tensorboard", tmp_path, CONFIG, metrics=METRICS)
    to.add(tmp_path / "play.mp4")
    to.close()
    error = capsys.readouterr().err
    assert error.startswith(f"not logged: {tmp_path}/play.mp4: ") and "is not a film" in error
    assert error.count("\n") == 1 and "\\n" not in error


def test_a_full_disk_ends_the_log_of_tensorboard_alone(tmp_path, capfd):
    """A row that cannot be written is one line, and nothing is written from then on."""
    to = sink("tensorboard", tmp_path, CONFIG, metrics=METRICS)
    to.write(ROW)
    to.to.writer.flush()
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    for _ in range(100):  # a thread writes a few at a time
        to.write(ROW)
    to.close()
    out, error = capfd.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("TensorBoard is off from now on: [Errno 28] No space left")


def test_wandb_without_its_service_is_off(tmp_path):
    """A killed service is one line; another run of the multirun has a W&B again."""
    code = f"""
import os, signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from gpusim_rl.training.metric_writers import sink
for name in ("a", "b"):
    path = Path({str(tmp_path)!r}, name)
    path.mkdir()
    to = sink("wandb", path, {CONFIG!r})
    to.write({ROW!r})
    if name == "a":
        (child,) = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        while (Path("/proc") / child / "cmdline").read_bytes():  # it is still there
            pass
        for _ in range(100):
            to.write({ROW!r})
    to.close()
print(len(list(Path({str(tmp_path)!r}).glob("b/wandb/offline-run-*/run-*.wandb"))))
"""
    done = run_process(sys.executable, "-c", code, env=environment(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert done.stderr.startswith("W&B is off from now on: ") and done.stderr.count("\n") == 1


@pytest.fixture
def wandb(monkeypatch) -> Any:
    """The package, with a login."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    return importlib.import_module("wandb")


def wandb_run(folder: Path, **given: Any) -> SimpleNamespace:
    """What stands in for a run of W&B, online unless it is said otherwise."""
    own = dict(offline=False, disabled=False, url="https://wandb.ai/me", dir=str(folder))
    return SimpleNamespace(**own | {"define_metric": lambda *_, **__: None} | given)


def test_wandb_does_not_wait_for_ever(tmp_path, monkeypatch, capsys, wandb):
    """Without a network it gives up after a while, unless WANDB_FINISH_TIMEOUT says otherwise."""
    for name in ("WANDB_FINISH_TIMEOUT", "WANDB_FINISH_TIMEOUT_RAISES"):
        monkeypatch.delenv(name, raising=False)
    settings = wandb.Settings()

    def finish(exit_code: int) -> None:
        settings.update_from_env_vars(dict(os.environ))
        raise TimeoutError(f"not finished after {settings.finish_timeout} s")

    online = wandb_run(tmp_path, finish=finish)
    monkeypatch.setattr(wandb, "init", lambda **_: online)
    sink("wandb", tmp_path, CONFIG).close()
    said = "W&B is off from now on: not finished after 300.0 s\n"
    assert capsys.readouterr().err == said and settings.finish_timeout_raises
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "7")
    sink("wandb", tmp_path, CONFIG).close()
    assert "after 7.0 s" in capsys.readouterr().err


def test_nothing_and_unknown(tmp_path):
    """log=none writes nothing, and a name that is none is refused with the choices."""
    to = sink("none", tmp_path, CONFIG)
    to.write(ROW)
    to.add(tmp_path / "policy.onnx")
    to.close()
    assert not list(tmp_path.iterdir()) and to.where == ""
    says = "unknown log 'w&b': choose one of auto, wandb, tensorboard, mlflow, none"
    with pytest.raises(ValueError, match=says):
        sink("w&b", tmp_path, CONFIG)


def test_offline_where_wandb_does_not_answer(policy, tmp_path, monkeypatch, capsys):
    """A line says how to send the run later; its file holds all that was logged."""
    monkeypatch.setattr(metric_writers, "PATIENCE", 1.0)
    monkeypatch.setattr(waiting, "EVERY", 0.1)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_MODE", raising=False)  # a run without a login sets it
    log = LOG | {"run": "walk", "group": "sweep", "tags": ["a", "b"]}
    to = sink("auto", tmp_path, CONFIG | {"log": log}, metrics=METRICS)
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    says = f"W&B cannot be used: .*timed out.*; `wandb sync {folder}` sends the run later"
    assert re.fullmatch(says, to.where, re.IGNORECASE)
    assert "waiting for W&B: 0:0" in capsys.readouterr().out
    to.write(ROW | {"iteration": 5, "return": 1.0})  # before a roll-back
    to.write(ROW | {"eval/success": 0.5})
    to.add(gray_film(tmp_path / "play.mp4"))
    to.add(policy)
    to.close(failed=True)
    values, artifact = read_wandb(folder)
    assert values["iteration"] == 3
    assert values["train/return"] == 12.345 and values["eval/success"] == 0.5
    (video,) = (folder / "files" / "media" / "videos" / "eval").glob("film_*.mp4")
    assert values["eval/film/path"] == str(video.relative_to(folder / "files"))
    (entry,) = artifact.manifest.contents
    assert (artifact.name, artifact.type, entry.path) == ("quadruped-policy", "model", policy.name)
    assert Path(entry.local_path) == policy and entry.size == policy.stat().st_size
    (file,) = folder.glob("run-*.wandb")
    kinds = {record.WhichOneof("record_type"): record for record in records(file)}
    run = kinds["run"].run
    assert (run.project, run.display_name, run.run_group) == ("p", "walk", "sweep")
    assert [*run.tags] == ["a", "b"] and kinds["exit"].exit.exit_code == 1


def test_auto_says_that_it_uploads(tmp_path, monkeypatch, wandb):
    """With a login, log=auto says in one line where everything goes, and how to keep it here."""
    request, online = {}, wandb_run(tmp_path)
    monkeypatch.setattr(wandb, "init", lambda **words: request.update(words) or online)
    where = sink("auto", tmp_path, CONFIG).where
    assert where.startswith("log=auto: logged in to W&B, so metrics, film and policy are uploaded")
    assert where.endswith(f"to {online.url}; log=none keeps them here") and "\n" not in where
    assert sink("wandb", tmp_path, CONFIG).where == f"W&B: {online.url}"
    assert (request["name"], request["group"], request["tags"]) == (tmp_path.name, None, [])
    online.disabled, online.url = True, None
    assert sink("wandb", tmp_path, CONFIG).where == "W&B is off: WANDB_MODE=disabled"


def test_a_wrong_key_is_named(tmp_path, monkeypatch, capsys, wandb):
    """W&B's answer is in the line, the run is kept offline, and a slow end is said."""

    def init(mode: str = "", **_: object) -> SimpleNamespace:
        if mode == "offline":
            return wandb_run(tmp_path / "files", offline=True, finish=lambda **_: time.sleep(0.5))
        raise wandb.errors.AuthenticationError("the key \x1b[2J is unknown\nat line 7")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(waiting, "EVERY", 0.05)
    to = sink("auto", tmp_path, CONFIG)
    assert to.where.startswith(r"W&B cannot be used: the key \x1b[2J is unknown; `wandb sync ")
    to.close()
    assert "finishing the run of W&B: 0:0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "log, says",
    [
        ({"run": 3}, "log.run: 3: expected a word of at most 128 characters"),
        ({"run": "x" * 129}, "expected a word of at most 128"),
        ({"group": ["a"]}, "log.group: ['a']: expected a word"),
        ({"project": " "}, "log.project: ' ': expected a word"),
        ({"project": "a/b"}, r"log.project='a/b': expected none of /\#?%:"),
        ({"tags": [1]}, "log.tags: 1: expected a word of at most 64"),
        ({"tags": ["a", ""]}, "log.tags: '': expected a word"),
        ({"tags": ["x" * 65]}, "expected a word of at most 64"),
    ],
)
def test_names_that_wandb_does_not_take(log, says):
    """Each is refused before a training begins, with what is expected."""
    LogSection(name="wandb", **LOG)
    with pytest.raises(ValueError, match=re.escape(says)):
        LogSection(name="wandb", **LOG | log)


# -- MLflow ----------------------------------------------------------------------------------------


class MLflowServer(http.server.ThreadingHTTPServer):
    """The few requests of an MLflow server that a run makes, and what they said."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), MLflowRequest)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def bodies(self, name: str) -> list[dict[str, Any]]:
        """What requests to an address that ends so said."""
        return [body for path, body in self.requests if path.endswith(name)]

    def stop(self) -> None:
        """Refuse connections from now on."""
        self.shutdown()
        self.server_close()


class MLflowRequest(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: MLflowServer
    RUN: ClassVar = {"info": {"run_id": "r1", "artifact_uri": "mlflow-artifacts:/1/r1/artifacts"}}
    ANSWERS: ClassVar[dict[str, Any]] = {
        "experiments/create": {"experiment_id": "1"},
        "runs/create": {"run": RUN},
        "runs/get": {"run": RUN},
        "model-versions/create": {"model_version": {"name": "m", "version": "1"}},
    }

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            self.server.files[path.rpartition("/")[2]] = data
        else:
            self.server.requests.append((path, json.loads(data or b"{}")))
        ours = next((x for name, x in self.ANSWERS.items() if path.endswith(name)), {})
        code = 404 if path.endswith("get-by-name") else 200
        body = json.dumps(
            {"error_code": "RESOURCE_DOES_NOT_EXIST"} if code == 404 else ours
        ).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_PUT = answer

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def mlflow_server(monkeypatch):
    """A server, and an environment that names it."""
    server = MLflowServer()
    monkeypatch.setattr(metric_writers, "EVERY", 0.05)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    for name in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES", "HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(f"MLFLOW_{name}", "1")
    yield server
    server.stop()


def test_mlflow(policy, tmp_path, monkeypatch, mlflow_server, capfd):
    """Keys by the hundred, rows in few messages, files, a model version; nothing is printed."""
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", mlflow_server.uri)
    log = LOG | {"run": "walk", "group": "sweep", "tags": ["a"]}
    config = CONFIG | {"log": log, "many": {f"key{i}": i for i in range(150)}}
    to = sink("mlflow", tmp_path, config, metrics=METRICS)
    assert to.where == f"MLflow: {mlflow_server.uri}, run r1"
    for i in range(1, 4):
        to.write(ROW | {"iteration": i, "reward/ (x)": float("nan")})
    to.write({"iteration": 3, "eval/success": 0.5})
    to.add(policy)
    to.close()
    to.close()
    sent = mlflow_server.bodies("runs/log-batch")
    counts = [len(x["params"]) for x in sent if x.get("params")]
    names = {x["key"] for body in sent for x in body.get("params", ())}
    assert counts == [100, 56] and {"task.name", "many.key149"} <= names
    numbers = [x for body in sent for x in body.get("metrics", ())]
    values = {(x["key"], x["step"]): x["value"] for x in numbers}
    assert values["train/return", 2] == 12.345 and values["eval/success", 3] == 0.5
    assert ("reward/ _x_", 1) in values and len(values) == 13
    (run,) = mlflow_server.bodies("runs/create")
    assert run["run_name"] == "walk"
    assert {x["key"]: x["value"] for x in run["tags"]}.items() >= {
        "group": "sweep",
        "a": "true",
    }.items()
    assert mlflow_server.files == {"policy.onnx": policy.read_bytes()}
    (version,) = mlflow_server.bodies("model-versions/create")
    assert version["name"] == "quadruped-policy" and version["source"].endswith("/policy.onnx")
    tags = {x["key"]: x["value"] for x in version["tags"]}
    assert tags["sha256"] == hashlib.sha256(policy.read_bytes()).hexdigest()
    (end,) = mlflow_server.bodies("runs/update")
    assert end["status"] == "FINISHED" and capfd.readouterr() == ("", "")


def test_a_server_of_mlflow_that_dies(tmp_path, monkeypatch, mlflow_server, capfd):
    """It is one line, whether it is dead at the beginning or later, and the training goes on."""
    to = sink("mlflow", tmp_path, CONFIG, metrics=METRICS)
    to.write(ROW)
    mlflow_server.stop()
    deadline = time.monotonic() + 60
    while to.to.where and time.monotonic() < deadline:
        to.write(ROW)
        time.sleep(0.02)
    to.close()
    error = capfd.readouterr().err
    says = f"MLflow is off from now on: {mlflow_server.uri} does not take the run: "
    assert error.startswith(says) and error.count("\n") == 1 and len(error) < 400
    for uri in (mlflow_server.uri, "nonsense://x"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        to = sink("mlflow", tmp_path, CONFIG)
        to.write(ROW)
        error = capfd.readouterr().err
        assert error.startswith(f"MLflow is off: {uri} does not") and to.where == ""
        assert error.count("\n") == 1


def test_mlflow_needs_a_server(monkeypatch):
    """Without an address, or without the client, a training is refused before it begins."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match="log=mlflow: set MLFLOW_TRACKING_URI, such as to http"):
        validate.check_extras("log=mlflow")
    for uri in ("/tmp/x", "nonsense://x"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(ValueError, match=f"MLFLOW_TRACKING_URI={uri}: expected an address"):
            validate.check_extras("log=mlflow")
    monkeypatch.setattr(validate, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="log=mlflow needs mlflow-skinny: "):
        validate.check_extras("log=mlflow")


def test_wandb_links_its_policy(policy, tmp_path, monkeypatch, wandb):
    """With log.registry= the policy of a run that is online is linked there, and else nowhere."""
    linked = []
    keys = dict(log_artifact=lambda _: None, link_artifact=lambda _, to: linked.append(to))
    online = wandb_run(tmp_path, **keys)
    monkeypatch.setattr(wandb, "init", lambda **_: online)
    for offline, registry in ((False, None), (True, "w/quadruped"), (False, "w/quadruped")):
        online.offline = offline
        sink("wandb", tmp_path, CONFIG | {"log": LOG | {"registry": registry}}).add(policy)
    assert linked == ["w/quadruped"]

"""Mistakes in the words of mode=serve are answered in one line."""

import socket
from pathlib import Path
from typing import Any

import pytest

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.commands.play_mode import choose_mode
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.serve import settings
from gpusim_rl.serve.follow import alias_file
from gpusim_rl.serve.server import allow_files, open_listener, read_token, run_server
from gpusim_rl.serve.settings import is_loopback

WRONG = {
    "": "mode=serve needs onnx=FILE, or registry=DIR",
    "onnx=a.onnx registry=r": "mode=serve needs onnx=FILE, or registry=DIR",
    "run=runs/a": "mode=serve serves an exported file: not with run=",
    "onnx=missing.onnx": "no ONNX file missing.onnx",
    "onnx=a.onnx serve.batch_ms=-1": "serve.batch_ms=-1: expected a number from 0 to 1000",
    "onnx=a.onnx serve.sessions=0": "serve.sessions=0: expected a whole number from 1 to 65536",
    "onnx=a.onnx serve.swap=hard": "serve.swap=hard: choose one of reset, drain",
    "onnx=a.onnx serve.host=5": "serve.host=5: expected a word",
    "mode=video registry=r": "registry=r needs mode=serve",
    "onnx=a.onnx out=b.json": "out=b.json needs mode=",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_named(words):
    """A word that does not fit is refused in one line that names it."""
    with pytest.raises((ValueError, OSError)) as refused:
        choose_mode(compose_plain("play", ["mode=serve", *words.split()]))
    assert str(refused.value).startswith(WRONG[words]) and "\n" not in str(refused.value)


def test_packages_are_named(monkeypatch):
    """Without the extra the command that installs it is said."""
    monkeypatch.setattr(settings, "find_spec", lambda name: name != "msgpack")
    with pytest.raises(ValueError, match=r"mode=serve needs msgpack: .*\[serve\]"):
        choose_mode(compose_plain("play", ["mode=serve", f"onnx={DEMO}"]))


def test_an_open_address_needs_a_token(tmp_path):
    """Only this machine's own address goes without; a short token is none."""
    assert read_token(None, "127.0.0.1") == read_token(None, "::1") == ""
    with pytest.raises(ValueError, match=r"serve\.host=0\.0\.0\.0 lets others in"):
        read_token(None, "0.0.0.0")
    file = tmp_path / "token"
    for text in ("", "short", "two words of some length", "ü" * 20):
        file.write_text(text)
        with pytest.raises(ValueError, match="holds no token"):
            read_token(str(file), "0.0.0.0")
    file.write_text("long-enough-to-be-one\n")
    assert read_token(str(file), "0.0.0.0") == "long-enough-to-be-one"


@pytest.mark.parametrize(
    "host, own",
    [
        *[(x, True) for x in ("localhost", "localhost:80", "127.0.0.1:8000", "[::1]:80", "::1")],
        *[(x, False) for x in ("", "0.0.0.0", "evil.com", "127.0.0.1.evil.com", "[::1", "[]")],
    ],
)
def test_this_machine_is_told_from_others(host, own):
    """Names and addresses with a port, and what is none."""
    assert is_loopback(host) == own


def test_the_alias_is_found(tmp_path):
    """By its name where there is one policy of it; else both names are asked for."""
    for name in ("quadruped.released", "drone.released", "drone.candidate"):
        (tmp_path / f"{name}.json").write_text("{}")
    registry = str(tmp_path)
    assert alias_file(registry, "candidate") == tmp_path / "drone.candidate.json"
    assert alias_file(registry, "drone.released") == tmp_path / "drone.released.json"
    assert alias_file(None, "some/file.json") == Path("some/file.json")
    with pytest.raises(ValueError, match=r"say alias=drone\.released or quadruped\.released"):
        alias_file(registry, "released")
    with pytest.raises(ValueError, match=r"say alias=NAME\.other"):
        alias_file(registry, "other")
    with pytest.raises(FileNotFoundError, match="there is no such directory"):
        alias_file(f"{registry}/none", "released")


def test_what_cannot_be_had_is_said(capsys):
    """A port that is taken, and more sessions than files may be open, are one line each."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cfg: dict[str, Any] = compose_plain("play", [f"onnx={DEMO}", f"port={port}"])
        with pytest.raises(SystemExit):
            run_server(cfg)
    error = capsys.readouterr().err
    assert error.startswith(f"error: serve.host=127.0.0.1 port={port}: ") and error.count("\n") == 1
    with pytest.raises(ValueError, match=r"serve\.sessions=1000000000 needs .* open files"):
        allow_files(10**9)
    with pytest.raises(OSError, match=r"serve\.host=nowhere\.invalid port=0"):
        open_listener("nowhere.invalid", 0)

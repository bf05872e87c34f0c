"""The programs of `bench` run on the CPU, and see what is wrong."""

import pathlib
import runpy
import sys

import pytest

import flashtile

BENCH = pathlib.Path(__file__).parents[1] / "bench"


def run(monkeypatch, capsys, name, *args):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(BENCH / name), run_name="__main__")
    return capsys.readouterr().out


def test_functions_of_flex_attention(monkeypatch, capsys):
    found = run(monkeypatch, capsys, "flex.py", "--device", "cpu")
    for name in ("NATTEN", "dilated", "document", "relative table", "tanh softcap", "learned bias of keys"):
        assert name in found
    flex = flashtile.flex
    monkeypatch.setattr(flashtile, "flex", lambda *args, **named: flex(*args, **named) * 1.001)
    with pytest.raises(SystemExit, match="wrong: causal"):
        run(monkeypatch, capsys, "flex.py", "--device", "cpu", "--only", "causal")


def test_training(monkeypatch, capsys):
    found = run(monkeypatch, capsys, "gpt.py", "--device", "cpu", "--steps", "5", "--most", "1e-4")
    assert "largest difference of a loss" in found and len(found.splitlines()) == 8
    sdpa = flashtile.sdpa
    monkeypatch.setattr(flashtile, "sdpa", lambda q, k, v, **named: sdpa(q, k, v))
    with pytest.raises(SystemExit, match="losses differ"):
        run(monkeypatch, capsys, "gpt.py", "--device", "cpu", "--steps", "5", "--most", "1e-4")


def test_overhead(monkeypatch, capsys):
    found = run(monkeypatch, capsys, "overhead.py", "--device", "cpu", "--seconds", "0.01")
    assert "flashtile.sdpa, forward and backward" in found and "layers" in found

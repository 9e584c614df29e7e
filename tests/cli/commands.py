"""Calls the command line inside this process and gives back what a shell would see."""

import sys
from dataclasses import dataclass

from posttrain.cli.main import main


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


def caller(monkeypatch, capsys):
    """A function that runs ``posttrain`` with words and returns what it did."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["posttrain", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Done(code=code, out=captured.out, err=captured.err)

    return call

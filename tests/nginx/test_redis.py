# tiers: full
"""A store in Redis inside nginx."""

from __future__ import annotations

import subprocess
from pathlib import Path

from server import Server, check_late_server, check_orders, check_outage, check_refusing_server


def test_each_order_runs_once(tmp_path: Path) -> None:
    check_orders("redis", tmp_path)


def test_the_server_dies_and_comes_back(tmp_path: Path) -> None:
    check_outage("redis", tmp_path)


def test_workers_serve_before_the_server_does(tmp_path: Path) -> None:
    check_late_server("redis", tmp_path)


def cli(server: Server, *words: str) -> None:
    command = ["redis-cli", "-u", server.url, "--no-auth-warning", *words]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert answer.strip() == "OK", answer


def test_the_server_asks_for_a_password_at_first(tmp_path: Path) -> None:
    check_refusing_server(
        "redis", tmp_path,
        refuse=lambda server: cli(server, "config", "set", "requirepass", "secret"),
        accept=lambda server: cli(server, "-a", "secret", "config", "set", "requirepass", ""),
    )  # fmt: skip

# tiers: full
"""A store in Redis inside nginx."""

from __future__ import annotations

from pathlib import Path

from server import check_late_server, check_orders, check_outage


def test_each_order_runs_once(tmp_path: Path) -> None:
    check_orders("redis", tmp_path)


def test_the_server_dies_and_comes_back(tmp_path: Path) -> None:
    check_outage("redis", tmp_path)


def test_workers_serve_before_the_server_does(tmp_path: Path) -> None:
    check_late_server("redis", tmp_path)

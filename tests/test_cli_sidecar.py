"""serve, status, stop: against a real sidecar, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli_tools import data_dir, ended, environment, kalos, kalos_command, needs_kalosd, process_is_there, wait_until
from typer.testing import CliRunner

import kalos_memory
from kalos_memory import _sidecar
from kalos_memory.cli import _session
from kalos_memory.cli._app import app
from kalos_memory.cli._exit_codes import ExitCode

pytestmark = needs_kalosd
__all__ = ["data_dir"]


def test_status_and_stop_start_nothing_and_say_so(data_dir: Path) -> None:
    """Where no sidecar runs status is code 3, stop is fine, and afterwards there is still none."""
    status = kalos("status")
    assert status.returncode == ExitCode.NO_SIDECAR
    assert status.stdout == ""
    assert f"no sidecar runs in {data_dir}" in status.stderr
    assert kalos("status", "--ready").returncode == ExitCode.NO_SIDECAR
    stop = kalos("stop")
    assert stop.returncode == 0
    assert "nothing to stop" in stop.stdout
    assert not _sidecar.is_locked(str(data_dir))


def test_status_as_json_without_a_sidecar_is_whole(data_dir: Path) -> None:
    """--json says that nothing runs, in the same shape."""
    status = kalos("status", "--json")
    assert status.returncode == ExitCode.NO_SIDECAR
    said = json.loads(status.stdout)
    assert said["running"] is False
    assert said["where"] == str(data_dir)
    assert said["health"]["status"] == "stopped"


def test_status_stop_and_stop_again(data_dir: Path) -> None:
    """status names what runs, --ready agrees with it, stop ends it and says what, and can be said twice."""
    with kalos_memory.connect(data_dir) as client:
        client.collection("notes", dimension=4).upsert(["a"], [[1, 0, 0, 0]])
        pid = client.stats()["kalosd"]["pid"]
    status = kalos("status")
    assert status.returncode == 0, status.stderr
    assert f"pid {pid}" in status.stdout
    assert "notes: 1 row, d 4, cosine" in status.stdout
    assert "at most: text 16.0 MiB, metadata 1.0 MiB, 8,192 dimensions, k 1,024, one request or reply 256.0 MiB" in (
        status.stdout
    )
    said = json.loads(kalos("status", "--json").stdout)
    assert said["limits"]["contract"]["KALOS_MAX_K"] == 1024
    assert said["running"] is True
    assert said["health"]["status"] == "ready"
    assert said["kalosd"]["pid"] == pid
    assert said["database"]["collections"][0]["name"] == "notes"
    assert kalos("status", "--ready").returncode == 0
    stop = kalos("stop")
    assert stop.returncode == 0
    assert f"stopped kalosd {said['kalosd']['version']} (pid {pid})" in stop.stdout
    assert not _sidecar.is_locked(str(data_dir))
    assert not process_is_there(pid)
    again = json.loads(kalos("stop", "--json").stdout)
    assert again["stopped"] is False
    assert again["kalosd"] is None


def test_data_dir_option_wins_over_the_environment(data_dir: Path, tmp_path: Path) -> None:
    """--data-dir asks about another directory than KALOS_DATA_DIR."""
    with kalos_memory.connect(data_dir):
        pass
    assert kalos("status").returncode == 0
    other = kalos("status", "--data-dir", str(tmp_path))
    assert other.returncode == ExitCode.NO_SIDECAR
    assert str(tmp_path) in other.stderr


@pytest.mark.parametrize("end", ["stop", "interrupt"])
def test_serve_runs_in_the_foreground_until_it_is_told_to_end(data_dir: Path, end: str) -> None:
    """The process becomes kalosd, keeps the pid that --json printed, and ends with 0 by stop and by Ctrl-C."""
    with subprocess.Popen(
        kalos_command("serve", "--json", "--idle-s", "0", "--memory", "256M", "--text", "memory"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert said["pid"] == process.pid
            assert said["command"][1:] == [
                "--data-dir", str(data_dir), "--memory", "256M", "--idle-s", "0", "--text", "memory",
            ]  # fmt: skip
            wait_until(lambda: kalos("status", "--ready").returncode == 0, "kalos status --ready")
            status = json.loads(kalos("status", "--json").stdout)
            assert status["kalosd"]["pid"] == process.pid
            assert status["kalosd"]["autostarted"] is False
            assert status["database"]["memory_limit"] == 256 << 20
            if end == "stop":
                assert kalos("stop").returncode == 0
            else:
                process.send_signal(signal.SIGINT)
            _, stderr = ended(process)
        finally:
            process.kill()
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert not _sidecar.is_locked(str(data_dir))


def test_status_and_stop_follow_kalos_socket_unless_told_a_directory(data_dir: Path, tmp_path: Path) -> None:
    """KALOS_SOCKET names the sidecar of a container; --data-dir wins over it."""
    with kalos_memory.connect(data_dir) as client:
        sidecar = client.stats()["kalosd"]
    where = environment(KALOS_SOCKET=sidecar["socket"], KALOS_DATA_DIR=str(tmp_path / "elsewhere"))
    status = kalos("status", "--json", env=where)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["kalosd"]["pid"] == sidecar["pid"]
    assert kalos("status", "--data-dir", str(tmp_path), env=where).returncode == ExitCode.NO_SIDECAR
    stop = kalos("stop", env=where)
    assert stop.returncode == 0, stop.stderr
    assert f"pid {sidecar['pid']}" in stop.stdout
    assert sidecar["socket"] in stop.stdout
    wait_until(lambda: not _sidecar.is_locked(str(data_dir)), "the sidecar ends")
    assert "nothing to stop" in kalos("stop", env=where).stdout
    assert kalos("status", env=where).returncode == ExitCode.NO_SIDECAR
    assert not (tmp_path / "elsewhere").exists()


def test_a_second_serve_is_refused_in_words(data_dir: Path) -> None:
    """Code 3, and the words name the first one."""
    with kalos_memory.connect(data_dir) as client:
        pid = client.stats()["kalosd"]["pid"]
        second = kalos("serve")
    assert second.returncode == ExitCode.NO_SIDECAR
    assert str(pid) in second.stderr


def test_serve_passes_a_bad_option_s_words_on(data_dir: Path) -> None:
    """kalosd's own words and its code for usage."""
    result = kalos("serve", "--memory", "much")
    assert result.returncode == ExitCode.USAGE
    assert "--memory" in result.stderr
    assert kalos("serve", "--idle-s", "-1").returncode == ExitCode.USAGE


def test_status_waits_for_a_sidecar_that_is_just_starting(data_dir: Path) -> None:
    """While the lock is held and the socket does not answer yet, status does not say that nothing runs."""
    process = subprocess.Popen(
        [_sidecar.find_kalosd(), "--data-dir", str(data_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _sidecar.is_locked(str(data_dir)), "kalosd takes its lock")
        status = kalos("status", "--json")
        assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["kalosd"]["pid"] == process.pid
        assert kalos("stop").returncode == 0
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("state", "words"), [("loading", "notes, 43 %"), ("degraded", "notes is cold"), ("draining", "")]
)
def test_ready_means_ready_and_nothing_less(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, state: str, words: str
) -> None:
    """--ready refuses every other state in its words; without it such a sidecar is one that runs."""
    with kalos_memory.connect(data_dir) as client:
        client.collection("notes", dimension=4)
    report = _session.report(data_dir)
    if state == "draining":
        report = {"running": True, "kalosd": {"pid": 7, "version": "1.2.3"}}
    said = {**report, "health": {"status": state, "words": words}}
    monkeypatch.setattr(_session, "report", lambda where: said)
    runner = CliRunner()
    assert runner.invoke(app, ["status"]).exit_code == 0
    assert state in runner.invoke(app, ["status"]).stdout
    refused = runner.invoke(app, ["status", "--ready"])
    assert refused.exit_code == ExitCode.NO_SIDECAR
    assert f"not ready: {state}" in refused.stderr
    assert words in refused.stderr
    assert json.loads(runner.invoke(app, ["status", "--ready", "--json"]).stdout)["health"]["status"] == state


def test_a_sidecar_that_does_not_answer_is_named(data_dir: Path) -> None:
    """A stopped process holds the lock: status says so with code 3, stop gives up in time with code 5."""
    with kalos_memory.connect(data_dir) as client:
        pid = client.stats()["kalosd"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        status = kalos("status", "--json")
        assert status.returncode == ExitCode.NO_SIDECAR
        assert json.loads(status.stdout)["health"]["status"] == "starting"
        assert str(pid) in json.loads(status.stdout)["health"]["words"]
        stop = kalos("stop", "--timeout", "0.5")
        assert stop.returncode == ExitCode.TRY_AGAIN
        assert str(pid) in stop.stderr
        assert len(stop.stderr.splitlines()) <= 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert kalos("stop").returncode == 0


def test_without_the_program_the_words_say_what_to_do(data_dir: Path, tmp_path: Path) -> None:
    """A missing kalosd is code 3 and one line."""
    result = kalos("serve", env={**os.environ, "KALOSD": str(tmp_path / "missing")})
    assert result.returncode == ExitCode.NO_SIDECAR
    assert "kalosd is not at" in result.stderr
    assert len(result.stderr.splitlines()) == 1

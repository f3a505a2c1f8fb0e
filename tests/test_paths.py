"""Paths are bytes. A data directory may have any: Kalos works there, names it in words as well as words can, and every
file that others read stays UTF-8. Only a socket that is chosen by hand must be UTF-8, since the lock file names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import kalos_command
from conftest import wait_until

import kalos_memory as kalos
from kalos_memory import _sidecar

NOT_UTF8 = b"\xff\xfe caf\xe9"


@pytest.fixture
def place(kalosd: str) -> Iterator[bytes]:
    """A directory whose path is not UTF-8; what serves a data directory in it is stopped."""
    path = os.path.join(os.fsencode(tempfile.mkdtemp(prefix="kalos-test-")), NOT_UTF8)
    os.mkdir(path, 0o700)
    yield path
    try:
        for name in os.listdir(path):
            _sidecar.stop(os.path.join(path, name), timeout=60)
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def the_lock_file_says(data_dir: bytes) -> dict[str, object]:
    """What a client in any language reads there: UTF-8, and a socket that is at that path."""
    with open(os.path.join(data_dir, b"kalosd.lock"), "rb") as file:
        said = json.loads(file.read().decode("utf-8"))
    assert isinstance(said, dict)
    assert os.path.exists(said["socket"].encode("utf-8"))
    return said


@pytest.mark.parametrize("as_str", [False, True])
def test_a_data_directory_may_have_any_path(place: bytes, as_str: bool) -> None:
    """Made, served, found again by whoever says the same bytes; whatever names it in a report is UTF-8."""
    data_dir = os.path.join(place, b"\x80data")
    given = os.fsdecode(data_dir) if as_str else Path(os.fsdecode(data_dir))
    with kalos.connect(given, timeout=30) as client:
        client.collection("notes", dimension=2).upsert(["a"], [[1, 0]], texts=["here"])
        said = the_lock_file_says(data_dir)
        stats = client.stats()
        assert stats["kalosd"]["pid"] == said["pid"]
        assert stats["kalosd"]["data_dir"].endswith("\ufffd\ufffd caf\ufffd/\ufffddata")
        assert stats["database"]["store"]["path"].endswith("\ufffddata/kalos.db")
        assert client.health()["status"] == "ready"
        with kalos.connect(given, autostart=False, timeout=30) as other:
            assert [hit.text for hit in other.collection("notes").scan()] == ["here"]
    assert (_sidecar.stop(data_dir, timeout=60) or {})["pid"] == said["pid"]
    with kalos.connect(given, timeout=30) as client:
        assert [hit.text for hit in client.collection("notes").scan()] == ["here"]
    assert {b"kalos.db", b"kalosd.lock", b"kalosd.log"} <= set(os.listdir(data_dir))


def test_words_that_name_it_are_utf_8(place: bytes) -> None:
    """Also those that come over the lane, which promises UTF-8."""
    data_dir = os.path.join(place, b"data")
    moved = os.path.join(place, b"moved")
    with kalos.connect(os.fsdecode(data_dir), timeout=30) as client:
        notes = client.collection("notes", dimension=2)
        os.rename(data_dir, moved)
        with pytest.raises(kalos.StoreError, match="was removed, moved or replaced") as refused:
            notes.upsert(["a"], [[1, 0]])
        str(refused.value).encode("utf-8")
        assert "\ufffd\ufffd caf\ufffd/data" in str(refused.value)


@pytest.mark.parametrize("text", ["memory", "file"])
@pytest.mark.parametrize("how", ["option", "KALOS_DATA_DIR", "XDG_DATA_HOME", "HOME"])
def test_kalosd_takes_it_from_wherever(kalosd: str, place: bytes, how: str, text: str) -> None:
    """As an option and from each variable, with texts in memory and in a file; it ends in peace."""
    below = {"option": b"", "KALOS_DATA_DIR": b"", "XDG_DATA_HOME": b"kalos", "HOME": b".local/share/kalos"}[how]
    home = os.path.join(place, b"home")
    data_dir = os.path.join(home, below) if below else home
    names = ("KALOS_DATA_DIR", "XDG_DATA_HOME", "HOME")
    environment = {name: value for name, value in os.environb.items() if os.fsdecode(name) not in names}
    arguments: list[bytes] = [kalosd.encode(), b"--text", text.encode(), b"--log-level", b"error"]
    if how == "option":
        arguments += [b"--data-dir", data_dir]
    else:
        environment[how.encode()] = home
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or _sidecar.read_lock(os.fsdecode(data_dir)), "it serves")
            with kalos.connect(os.fsdecode(data_dir), autostart=False, timeout=30) as client:
                client.collection("notes", dimension=2).upsert(["a"], [[1, 0]], texts=["x" * 10_000])
                assert the_lock_file_says(data_dir)["pid"] == process.pid
        finally:
            process.terminate()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_socket_that_is_chosen_must_be_utf_8(kalosd: str, place: bytes, how: str) -> None:
    """Refused in words, before anything is made."""
    data_dir, socket = os.path.join(place, b"data"), os.path.join(place, b"sock")
    environment = dict(os.environb)
    arguments: list[bytes] = [kalosd.encode(), b"--data-dir", data_dir]
    if how == "option":
        arguments += [b"--socket", socket]
    else:
        environment[b"KALOS_SOCKET"] = socket
    done = subprocess.run(arguments, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert b"the socket's path is not UTF-8" in done.stderr
    assert os.listdir(place) == []


def test_a_client_goes_to_any_socket(place: bytes) -> None:
    """A client's KALOS_SOCKET may have any path, as that of a link; a socket given as bytes likewise."""
    data_dir = os.path.join(place, b"data")
    with kalos.connect(os.fsdecode(data_dir), timeout=30) as client:
        link = os.path.join(place, b"link")
        os.symlink(str(the_lock_file_says(data_dir)["socket"]), link)
        try:
            with kalos.connect(socket=link, timeout=30) as other:
                assert other.stats()["kalosd"]["pid"] == client.stats()["kalosd"]["pid"]
        finally:
            os.unlink(link)


USES_MEMORY = """
import kalos_memory as kalos
from kalos_memory import _sidecar
with kalos.connect(":memory:", timeout=30) as client:
    notes = client.collection("notes", dimension=2)
    notes.upsert(["a"], [[1, 0]])
    print(notes.count(), ascii(client.stats()["kalosd"]["data_dir"]))
"""


def test_a_temporary_directory_may_have_any_path(place: bytes) -> None:
    """:memory: lies there, and the sockets of data directories with long paths would."""
    done = subprocess.run(
        [sys.executable, "-c", USES_MEMORY], env={**os.environb, b"TMPDIR": place}, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"1 "), done.stdout
    assert b"\\ufffd\\ufffd caf\\ufffd/kalos-" in done.stdout
    assert os.listdir(place) == []


def test_long_and_not_utf_8(kalosd: str, place: bytes) -> None:
    """A path of 255-byte names that are not UTF-8, with such a TMPDIR: the socket goes to /tmp."""
    data_dir = os.path.join(place, b"\xff" * 255)
    arguments: list[bytes] = [kalosd.encode(), b"--data-dir", data_dir, b"--log-level", b"error"]
    with subprocess.Popen(arguments, env={**os.environb, b"TMPDIR": place}) as process:
        try:
            wait_until(lambda: process.poll() is not None or _sidecar.read_lock(os.fsdecode(data_dir)), "it serves")
            assert str(the_lock_file_says(data_dir)["socket"]).startswith("/tmp/kalos-")
            with kalos.connect(os.fsdecode(data_dir), autostart=False, timeout=30) as client:
                assert client.collections() == []
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_the_command_line_names_it(place: bytes) -> None:
    """status and stop say it in what a terminal shows; with --json its escapes give the same bytes back."""
    data_dir = os.path.join(place, b"data")

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [os.fsencode(word) for word in kalos_command(*arguments)]
        return subprocess.run([*command, b"--data-dir", data_dir], capture_output=True, timeout=120)

    nothing = run("status")
    assert nothing.returncode == 3, nothing.stderr
    assert b"no sidecar runs in " in nothing.stderr
    assert b"\\udcff\\udcfe caf\\udce9/data" in nothing.stderr
    with kalos.connect(os.fsdecode(data_dir), timeout=30) as client:
        pid = client.stats()["kalosd"]["pid"]
        shown = run("status")
        assert shown.returncode == 0, shown.stderr
        assert f"pid {pid}" in shown.stdout.decode("utf-8")
        said = json.loads(run("status", "--json").stdout.decode("utf-8"))
        assert os.fsencode(said["where"]) == data_dir
        assert said["kalosd"]["data_dir"].endswith("\ufffd\ufffd caf\ufffd/data")
    stopped = run("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert f"(pid {pid}) in " in stopped.stdout.decode("utf-8")
    again = json.loads(run("stop", "--json").stdout.decode("utf-8"))
    assert (again["stopped"], os.fsencode(again["where"])) == (False, data_dir)

"""Where Kalos lies, and what becomes of it there: /dev/shm that is full or another's, a socket that vanishes, a kalosd
that is stopped, a hello that does not fit. Every error comes in words at the moment it happens, nothing is lost, and
all is well again once the place is. (Disks: crash/test_full_disk.py.)"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import names_in_dev_shm, stopped, wait_until

import kalos_memory as kalos
from kalos_memory import _abi, _control, _sidecar
from kalos_memory._control import Control, Refused

PRELUDE = """
import os, subprocess, sys, time
import kalos_memory as kalos
from kalos_memory import _sidecar

def sh(command):
    subprocess.run(command, shell=True, check=True)

def refused(call):
    try:
        call()
    except kalos.KalosError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")
"""


def may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(
    not may_mount(),
    reason="needs root and mount namespaces (unshare -m), to give a process a /dev/shm or disk of its own",
)


def run_apart(code: str, *arguments: str) -> str:
    """Runs the code with mounts of its own, which go with it. -> what it printed."""
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-c", PRELUDE + code, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def apart(kalosd: str) -> Iterator[str]:
    """A directory for a data directory, and whatever was left running in it ends."""
    path = tempfile.mkdtemp(prefix="kalos-test-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@needs_mounts
def test_full_dev_shm(apart: str) -> None:
    """The client that finds no room is told how much it needs, how much there is and what to do; those that are
    connected go on; when one of them leaves there is room again."""
    run_apart(
        """
sh("mount -t tmpfs -o size=1m tmpfs /dev/shm")
data_dir = sys.argv[1] + "/data"
first = kalos.connect(data_dir, timeout=30)
notes = first.collection("notes", dimension=2)
notes.upsert(["a"], [[1, 0]], texts=["x" * 100_000])
words = refused(lambda: kalos.connect(data_dir, timeout=30))
assert "SidecarUnavailable" in words and "/dev/shm is full: a lane needs" in words and "--shm-size" in words, words
assert notes.search([1, 0], 1)[0].text == "x" * 100_000
pid = first.stats()["kalosd"]["pid"]
first.close()
second, until = None, time.monotonic() + 60
while second is None:
    try:
        second = kalos.connect(data_dir, timeout=30)
    except kalos.SidecarUnavailable as error:  # kalosd has not seen the end of the first yet
        assert "/dev/shm is full" in str(error) and time.monotonic() < until, error
        time.sleep(0.01)
with second:
    assert second.collection("notes").count() == 1
    assert second.stats()["kalosd"]["pid"] == pid
assert [name for name in os.listdir("/dev/shm")] == []
_sidecar.stop(data_dir)
""",
        apart,
    )


@needs_mounts
@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs tmpfs /dev/shm", "both sides need the same /dev/shm"),
        ("mount -t tmpfs -o ro tmpfs /dev/shm", "both sides need the same /dev/shm"),
    ],
)
def test_a_dev_shm_that_is_not_shared(client: kalos.Client, data_dir: str, mount: str, words: str) -> None:
    """As between two containers: the socket is found, the memory is not. Words, no hang; others are not disturbed."""
    printed = run_apart(
        f"""
sh({mount!r})
print(refused(lambda: kalos.connect(sys.argv[1], autostart=False, timeout=30)))
""",
        data_dir,
    )
    assert "SidecarUnavailable" in printed
    assert words in printed
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees its end")
    assert client.collection("notes", dimension=2).count() == 0


@needs_mounts
@pytest.mark.parametrize(
    "mount", ["mount -t tmpfs -o ro tmpfs /dev/shm", "umount /dev/shm; mount -t tmpfs -o ro x /dev"]
)
def test_a_dev_shm_that_cannot_be_written(apart: str, mount: str) -> None:
    """Read-only, or not there at all."""
    printed = run_apart(
        f"""
devnull = os.open("/dev/null", os.O_RDWR)
data_dir = sys.argv[1] + "/data"
kalosd = subprocess.Popen(
    [_sidecar.find_kalosd(), "--data-dir", data_dir, "--log-level", "error"], stdin=devnull, stdout=devnull
)
while not (_sidecar.lock_holder(data_dir) or {{}}).get("socket"):
    assert kalosd.poll() is None
    time.sleep(0.01)
kalosd.terminate()
assert kalosd.wait(60) == 0
script = {mount!r} + "; exec " + _sidecar.find_kalosd() + " --data-dir " + data_dir + " --log-level error"
kalosd = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=devnull, stdout=devnull)
while not (_sidecar.lock_holder(data_dir) or {{}}).get("socket"):
    assert kalosd.poll() is None
    time.sleep(0.01)
print(refused(lambda: kalos.connect(data_dir, autostart=False, timeout=30)))
kalosd.terminate()
assert kalosd.wait(60) == 0
""",
        apart,
    )
    assert "a lane's shared memory cannot be made" in printed


def test_a_vanished_socket_is_made_again(kalosd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login's end removes the user's runtime directory, an overeager cleaner what lies in /tmp: whoever is connected
    goes on, and kalosd makes the socket and its folder again for those that come."""
    with tempfile.TemporaryDirectory(prefix="kalos-test-") as root:
        monkeypatch.setenv("TMPDIR", root)
        monkeypatch.setattr(tempfile, "tempdir", None)
        data_dir = os.path.join(root, "d" * 100)  # too long for a socket's path: it lies in TMPDIR
        with kalos.connect(data_dir, timeout=30) as client:
            notes = client.collection("notes", dimension=2)
            notes.upsert(["a"], [[1, 0]])
            told = client.stats()["kalosd"]["pid"]
            where = Path(_sidecar.read_lock(data_dir)["socket"])  # type: ignore[index]
            assert where.parent != Path(data_dir)
            shutil.rmtree(where.parent)
            assert notes.count() == 1
            with kalos.connect(data_dir, timeout=30) as other:  # waits for it
                assert other.collection("notes").count() == 1
                assert other.stats()["kalosd"]["pid"] == told
        assert _sidecar.stop(data_dir, timeout=60) is not None
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_connect_to_a_stopped_sidecar_ends_in_its_own_time(client: kalos.Client, data_dir: str) -> None:
    """connect(timeout=…), health() and stats() do not wait for load_timeout: a kalosd that takes the connection and
    says nothing is called stuck, with its pid."""
    pid = client.stats()["kalosd"]["pid"]
    mine = kalos.connect(data_dir, timeout=0.1)
    with stopped(pid):
        begun = time.monotonic()
        with pytest.raises(kalos.SidecarUnavailable, match=f"pid {pid}.*does not answer"):
            kalos.connect(data_dir, timeout=0.1)
        with pytest.raises(kalos.KalosTimeout):
            mine.health()
        mine.close()
        assert time.monotonic() - begun < 25  # far below load_timeout and the time that a start may take
    assert client.health()["status"] == "ready"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"abi_major": 2}, _abi.STATUS_UNSUPPORTED, "speaks ABI 2, this kalosd"),
        ({"abi_major": "1"}, _abi.STATUS_UNSUPPORTED, "speaks ABI -1"),
        ({"abi_major": None}, _abi.STATUS_UNSUPPORTED, "speaks ABI -1"),
        ({"libc": "musl 1.2.4"}, _abi.STATUS_UNSUPPORTED, 'C library is "musl 1.2.4"'),
        ({"libc": 7}, _abi.STATUS_UNSUPPORTED, 'C library is ""'),
    ],
)
def test_a_hello_that_does_not_fit(
    client: kalos.Client, data_dir: str, change: dict[str, object], status: int, words: str
) -> None:
    """Another ABI, another C library, nonsense: refused in words, and nobody else notices."""
    control = Control(str(_sidecar.read_lock(data_dir)["socket"]))  # type: ignore[index]
    body = {"abi_major": 1, "abi_minor": 0, "libc": "glibc 2.36", "client": "test", "pid": 1, "slot_count": 8}
    deadline_ns = time.monotonic_ns() + 60_000_000_000
    with pytest.raises(Refused) as refused:
        control.ask(_abi.CONTROL_HELLO, {**body, **change}, _abi.CONTROL_WELCOME, deadline_ns)
    control.close()
    assert refused.value.body["status"] == status
    assert words in refused.value.body["message"]
    assert client.health()["status"] == "ready"


@pytest.mark.parametrize("shape", [(10**18, 10**18), (-1, -1), (1, 0), (64, 16 << 20)])
def test_a_lane_of_any_size_that_is_asked_for(client: kalos.Client, data_dir: str, shape: tuple[int, int]) -> None:
    """What is granted lies within the bounds of abi.h, whatever is asked; or there is no room, in words."""
    control = Control(str(_sidecar.read_lock(data_dir)["socket"]))  # type: ignore[index]
    deadline_ns = time.monotonic_ns() + 60_000_000_000
    try:
        lane = control.hello(deadline_ns, slot_count=shape[0], slot_bytes=shape[1])["lane"]
        assert _abi.MIN_SLOT_COUNT <= lane["slot_count"] <= _abi.MAX_SLOT_COUNT
        assert _abi.MIN_SLOT_BYTES <= lane["slot_bytes"] <= _abi.MAX_SLOT_BYTES
    except Refused as refused:
        if "/dev/shm is full" not in refused.body["message"]:
            raise
    control.close()
    assert client.health()["status"] == "ready"


def test_clients_that_come_and_go_leave_nothing(client: kalos.Client, data_dir: str) -> None:
    """Neither descriptors nor threads nor mappings of kalosd grow with those that were there."""
    pid = client.stats()["kalosd"]["pid"]

    def held() -> tuple[int, int, int]:
        process = Path(f"/proc/{pid}")
        lanes = sum("kl." in line for line in (process / "maps").read_text().splitlines())
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())), lanes

    kalos.connect(data_dir, timeout=30).close()
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees its end")
    before = held()
    for _ in range(300):
        kalos.connect(data_dir, timeout=30).close()
    wait_until(lambda: held() <= before, f"what kalosd holds is what it was: {before}")


def test_a_hello_that_never_ends_keeps_nobody_waiting(client: kalos.Client, data_dir: str) -> None:
    """Connections that say nothing, or half a frame, do not keep others out; they are dropped with their socket."""
    path = str(_sidecar.read_lock(data_dir)["socket"])  # type: ignore[index]
    silent = [Control(path) for _ in range(20)]
    for one in silent[:10]:
        one._socket.send(b"KLC1\x01\x00")
    with kalos.connect(data_dir, timeout=30) as other:
        assert other.health()["status"] == "ready"
    for one in silent:
        one.close()
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "they are gone")


def test_the_library_names_its_c_library() -> None:
    assert _control.libc_name().startswith("glibc")


def test_a_kalosd_that_is_no_program(data_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be run, one of another architecture, one that ends at once: each is said in words."""
    for content, mode, words in (
        (b"#!/bin/sh\n", 0o600, "may not be executed"),
        (b"\x7fELF" + bytes(100), 0o700, "cannot be started"),
        (b"#!/bin/sh\necho it is broken >&2\nexit 1\n", 0o700, "it is broken"),
        (b"#!/bin/sh\nkill -9 $$\n", 0o700, "killed by signal 9"),
    ):
        program = tmp_path / "kalosd"
        program.write_bytes(content)
        program.chmod(mode)
        monkeypatch.setenv("KALOSD", str(program))
        with pytest.raises(kalos.SidecarUnavailable, match=words):
            kalos.connect(data_dir, timeout=5)
        program.unlink()


def test_a_signal_never_reaches_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar that somebody else collected has ended, whoever has its pid by now."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(60)
    assert _sidecar._exit_code(process.pid) == 0
    assert _sidecar._exit_code(os.getppid()) == 0  # alive, and no child of ours
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
    starter = _sidecar.Starter("/nowhere")
    starter._pid = os.getppid()
    starter.done(1)
    assert signals == []
    assert signal.SIGTERM not in signals


def gone(pid: int) -> bool:
    _sidecar.reap()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_data_directory_that_is_removed_under_kalosd(data_dir: str) -> None:
    """Nothing is acknowledged that would be gone with the directory; that kalosd ends, and never stands in the way of
    the one that serves the path next."""
    with kalos.connect(data_dir, timeout=30) as client:
        notes = client.collection("notes", dimension=2)
        notes.upsert(["a"], [[1, 0]])
        pid = client.stats()["kalosd"]["pid"]
        shutil.rmtree(data_dir)
        with pytest.raises(kalos.StoreError, match="was removed, moved or replaced"):
            notes.upsert(["b"], [[1, 0]])
        assert notes.count() == 1  # what was there is still answered
        assert client.health()["status"] == "degraded"
        with kalos.connect(data_dir, timeout=30) as other:
            next_pid = other.stats()["kalosd"]["pid"]
            assert next_pid != pid
            fresh = other.collection("notes", dimension=2)
            fresh.upsert(["c"], [[0, 1]])
            wait_until(lambda: gone(pid), "the kalosd without a directory ends", 60)
            assert [hit.id for hit in fresh.scan()] == ["c"]
            assert other.stats()["kalosd"]["pid"] == next_pid
            assert Path(_sidecar.read_lock(data_dir)["socket"]).exists()  # type: ignore[index]


def test_a_data_directory_that_is_moved_under_kalosd(data_dir: str) -> None:
    """Whoever asks at the new place gets the data from a kalosd that serves it there."""
    moved = data_dir + "-moved"
    try:
        with kalos.connect(data_dir, timeout=30) as client:
            client.collection("notes", dimension=2).upsert(["a"], [[1, 0]])
            pid = client.stats()["kalosd"]["pid"]
            os.rename(data_dir, moved)
            with pytest.raises(kalos.StoreError, match="was removed, moved or replaced"):
                client.collection("notes").upsert(["b"], [[1, 0]])
            wait_until(lambda: gone(pid), "the kalosd of the old place ends", 60)
        with kalos.connect(moved, timeout=30) as client:
            assert [hit.id for hit in client.collection("notes").scan()] == ["a"]
            assert client.stats()["kalosd"]["pid"] != pid
    finally:
        _sidecar.stop(moved, timeout=60)
        shutil.rmtree(moved, ignore_errors=True)


def test_a_data_directory_behind_a_link(data_dir: str, tmp_path: Path) -> None:
    """Both names lead to the same kalosd."""
    link = tmp_path / "link"
    link.symlink_to(data_dir)
    with kalos.connect(link, timeout=30) as client, kalos.connect(data_dir, timeout=30) as other:
        assert client.stats()["kalosd"]["pid"] == other.stats()["kalosd"]["pid"]


def test_half_a_hello_is_dropped(client: kalos.Client, data_dir: str) -> None:
    """Whoever connects and does not finish its hello, or does not attach the lane that it was granted, is told so and
    dropped; its names leave /dev/shm. So it keeps no idle sidecar alive."""
    path = str(_sidecar.read_lock(data_dir)["socket"])  # type: ignore[index]
    silent, granted = Control(path), Control(path)
    silent._socket.send(b"KLC1\x01\x00")
    granted.hello(time.monotonic_ns() + 30_000_000_000, slot_count=1, slot_bytes=16384)
    instance = client.stats()["kalosd"]["instance"][:8]
    assert any(instance in name for name in names_in_dev_shm())
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "they are dropped", 60)
    wait_until(lambda: not any(instance in name for name in names_in_dev_shm()), "the names are gone")
    for one in (silent, granted):
        with pytest.raises((Refused, _control.NotListening), match=r"hello was not finished|^$"):
            one.ask(_abi.CONTROL_PING, {}, _abi.CONTROL_PONG, time.monotonic_ns() + 30_000_000_000)
        one.close()

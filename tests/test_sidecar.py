"""Finding, starting and stopping kalosd; who may take over from whom."""

import contextlib
import fcntl
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest
from conftest import kalosd_left, wait_until

import kalos_memory as kalos
from kalos_memory import _abi, _client, _sidecar
from kalos_memory.cli import _session


def test_default_data_dir(monkeypatch, tmp_path):
    """KALOS_DATA_DIR, then XDG_DATA_HOME, then ~/.local/share."""
    monkeypatch.setenv("KALOS_DATA_DIR", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _sidecar.default_data_dir() == str(tmp_path / "given")
    assert _sidecar.resolve_data_dir(None) == str(tmp_path / "given")
    monkeypatch.delenv("KALOS_DATA_DIR")
    assert _sidecar.default_data_dir() == str(tmp_path / "xdg" / "kalos")
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert _sidecar.default_data_dir() == str(tmp_path / "home" / ".local" / "share" / "kalos")


@pytest.mark.parametrize("bad", [3, b"", "", "a\0b", "/x/\ud800", "/" + "long/" * 200, object()])
def test_data_dir_must_be_a_path(bad):
    with pytest.raises(kalos.InvalidRequest, match="data_dir"):
        kalos.connect(bad)


def test_socket_must_be_a_path_and_excludes_data_dir():
    with pytest.raises(kalos.InvalidRequest, match="socket"):
        kalos.connect(socket=7)
    with pytest.raises(kalos.InvalidRequest, match="both"):
        kalos.connect("/tmp/x", socket="/tmp/y")


def test_a_missing_program_is_said_with_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("KALOSD", str(tmp_path / "nothing"))
    with pytest.raises(kalos.SidecarUnavailable, match="make setup"):
        kalos.connect(tmp_path / "data")
    with pytest.raises(kalos.SidecarUnavailable, match="make setup"):
        kalos.connect(":memory:")


def test_no_sidecar_and_none_may_be_started(data_dir):
    with pytest.raises(kalos.SidecarUnavailable, match="kalos serve"):
        kalos.connect(data_dir, autostart=False)
    with pytest.raises(kalos.SidecarUnavailable, match="nobody listens"):
        kalos.connect(socket=data_dir + "/none.sock")
    assert _sidecar.lock_holder(data_dir) is None


def test_start_reuse_stop(data_dir, sidecar_pid):
    """The first client starts one, the second finds it; stop() drains it, twice is once; nothing is left but data."""
    with kalos.connect(data_dir) as first, kalos.connect(data_dir) as second:
        assert sidecar_pid(first) == sidecar_pid(second)
        holder = _sidecar.lock_holder(data_dir)
        assert holder["pid"] == sidecar_pid(first)
        assert holder["autostarted"] is True
    stopped = _sidecar.stop(data_dir)
    assert stopped["pid"] == holder["pid"]
    assert _sidecar.lock_holder(data_dir) is None
    assert _sidecar.stop(data_dir) is None
    assert not os.path.exists(holder["socket"])


def test_data_directory_is_private(data_dir):
    path = os.path.join(data_dir, "deeper", "still")
    with kalos.connect(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        for name in os.listdir(path):
            assert stat.S_IMODE(os.stat(os.path.join(path, name)).st_mode) & 0o077 == 0, name
    _sidecar.stop(path)


def test_a_data_directory_with_a_long_path(data_dir):
    """The socket then lies elsewhere; the lock file says where."""
    path = os.path.join(data_dir, "x" * 120)
    with kalos.connect(path) as client:
        assert client.health()["status"] == "ready"
    _sidecar.stop(path)


def test_many_starters_at_once_share_one_sidecar(data_dir):
    """Processes that all find nobody there end up with the same kalosd."""
    code = "import sys, kalos_memory as k; c = k.connect(sys.argv[1]); print(c.stats()['kalosd']['pid']); c.close()"
    starters = [
        subprocess.Popen([sys.executable, "-c", code, data_dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outcomes = [starter.communicate(timeout=120) for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 4, outcomes
    assert len({out for out, _ in outcomes}) == 1
    _sidecar.stop(data_dir)
    time.sleep(0.3)  # longer than a kalosd tries for the lock
    assert _sidecar.lock_holder(data_dir) is None, "one that lost the race took over when the winner ended"


def test_the_reason_why_kalosd_does_not_start_is_told(data_dir):
    """Its log's last words are in the exception."""
    with open(os.path.join(data_dir, "kalos.db"), "wb") as file:
        file.write(b"this is no database " * 1000)
    with pytest.raises(kalos.SidecarUnavailable, match=r"kalos\.db"):
        kalos.connect(data_dir)


def test_a_data_directory_that_is_a_file(data_dir):
    path = os.path.join(data_dir, "file")
    with open(path, "w"):
        pass
    with pytest.raises(kalos.SidecarUnavailable, match="cannot be made"):
        kalos.connect(path)


def test_a_dead_sidecar_s_lock_file_misleads_nobody(data_dir):
    """The file's words count only while the lock is held."""
    for words in (b"", b"{}", b"[1]", b"\xff\0", json.dumps({"socket": data_dir + "/gone.sock", "pid": 1}).encode()):
        with open(os.path.join(data_dir, "kalosd.lock"), "wb") as file:
            file.write(words)
        with pytest.raises(kalos.SidecarUnavailable):
            kalos.connect(data_dir, autostart=False)
        with kalos.connect(data_dir) as client:
            assert client.health()["status"] == "ready"
        _sidecar.stop(data_dir)


def test_an_idle_sidecar_ends_by_itself(data_dir, monkeypatch):
    """Idle means that no client is connected."""
    monkeypatch.setenv("KALOS_IDLE_S", "1")
    client = kalos.connect(data_dir)
    time.sleep(2.5)
    assert _sidecar.lock_holder(data_dir) is not None
    client.close()
    wait_until(lambda: _sidecar.lock_holder(data_dir) is None, "the idle sidecar ends")


def test_the_check_for_sidecars_that_are_left_sees_them(data_dir, tmp_path, sidecar_pid):
    """What the end of the session looks for: those below a place, by whatever name the place is given."""
    with kalos.connect(data_dir) as client:
        link = tmp_path / "link"
        link.symlink_to(os.path.dirname(data_dir))
        for place in (data_dir, os.path.dirname(data_dir), link):
            assert kalosd_left(place, tmp_path)[sidecar_pid(client)] == data_dir
        assert kalosd_left(tmp_path, data_dir[:-1]) == {}
    _sidecar.stop(data_dir)
    wait_until(lambda: not kalosd_left(data_dir), "the process is gone")


def runs(pid):
    """Is there such a process, other than a zombie?"""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_zombie_and_no_warning(data_dir):
    """A process that started a sidecar which has ended keeps no zombie once it connects again."""
    with kalos.connect(data_dir):
        pass
    pid = _sidecar.lock_holder(data_dir)["pid"]
    _sidecar.stop(data_dir)  # until the lock is free: the process may still be on its way out
    wait_until(lambda: not runs(pid), "the sidecar has ended")
    with kalos.connect(":memory:"):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class OtherVersion:
    """A kalosd of another major version: lock file, socket, hello, drain.

    after: what it does once it has said that it drains. "end"; or it never ends, and meanwhile is "silent" to whoever
    connects, says "draining" or still that its version is another, or has "gone" from its socket. "mute": it does not
    even answer the drain."""

    def __init__(self, data_dir, autostarted, after="end"):
        self.lock = os.open(os.path.join(data_dir, "kalosd.lock"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.path = os.path.join(data_dir, "other.sock")
        self.said = {"pid": os.getpid(), "version": "99.0", "abi": "99.0", "socket": self.path, "instance": "0" * 32}
        os.ftruncate(self.lock, 0)
        os.write(self.lock, json.dumps(self.said | {"autostarted": autostarted}).encode())
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.autostarted = autostarted
        self.after = after
        self.drained = 0
        self.told_to_end = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while not self.told_to_end.is_set():
            connection, _ = self.listener.accept()
            with connection:
                self._talk(connection)
            if self.drained and self.after == "end":
                break
            if self.drained and self.after in ("silent", "gone"):
                if self.after == "gone":
                    self.listener.close()
                self.told_to_end.wait(100)
        self.listener.close()
        os.close(self.lock)

    def _talk(self, connection):
        while head := connection.recv(16, socket.MSG_WAITALL):
            _, kind, _, size, _ = struct.unpack("<IHHII", head)
            body = json.loads(connection.recv(size, socket.MSG_WAITALL))
            words = {"status": 20, "message": "I speak 99", "abi_major": 99}
            if kind == _abi.CONTROL_HELLO and self.drained and self.after == "draining":
                words = {"status": _abi.STATUS_DRAINING, "message": "I am ending", "abi_major": 99}
            elif kind == _abi.CONTROL_HELLO and body["abi_major"] == 99:
                self._send(connection, _abi.CONTROL_WELCOME, {"lane": None})
                continue
            elif kind == _abi.CONTROL_DRAIN:
                self.drained += 1
                if self.after == "mute":
                    self.told_to_end.wait(100)
                else:
                    self._send(connection, _abi.CONTROL_DRAINING, {"reason": "asked"})
                return
            self._send(connection, _abi.CONTROL_ERROR, words | self.said | {"autostarted": self.autostarted})
            return

    @staticmethod
    def _send(connection, kind, body):
        data = json.dumps(body).encode()
        connection.sendall(struct.pack("<IHHII", _abi.CONTROL_MAGIC, kind, 0, len(data), 0) + data)

    def end(self):
        """Whatever it was about."""
        self.told_to_end.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.connect(self.path)
        self.thread.join(30)


def test_takeover_of_an_autostarted_sidecar_of_another_major_version(data_dir):
    """It is asked to drain, and this client starts its own."""
    other = OtherVersion(data_dir, autostarted=True)
    with kalos.connect(data_dir) as client:
        assert client.health()["status"] == "ready"
    other.thread.join(30)
    assert other.drained


@pytest.mark.parametrize("after", ["silent", "draining", "still itself", "gone"])
def test_a_sidecar_of_another_version_that_does_not_end_is_called_that(data_dir, monkeypatch, after):
    """It was asked to, said that it would, and does not: the error says who, why, and that it still runs; not that it
    is stuck. It is asked once. When it ends after all, this client starts its own."""
    monkeypatch.setattr(_client, "_START_TIMEOUT_S", 0.3)
    monkeypatch.setattr(_client, "_CONTROL_PATIENCE_NS", 100_000_000)
    other = OtherVersion(data_dir, autostarted=True, after=after)
    try:
        pid = os.getpid()
        words = rf"kalosd 99\.0 \(pid {pid}\) is ending, as it was asked to.* ABI 99 .*still runs.*`kill {pid}`"
        with pytest.raises(kalos.SidecarUnavailable, match=words):
            kalos.connect(data_dir, timeout=0.1)
        assert other.drained == 1
        monkeypatch.undo()
        threading.Timer(0.1, other.end).start()
        with kalos.connect(data_dir) as client:
            assert client.health()["status"] == "ready"
    finally:
        other.end()


def test_a_sidecar_of_another_version_that_does_not_answer_is_called_stuck(data_dir, monkeypatch):
    """Not even the question whether it would end."""
    monkeypatch.setattr(_client, "_CONTROL_PATIENCE_NS", 100_000_000)
    other = OtherVersion(data_dir, autostarted=True, after="mute")
    try:
        with pytest.raises(kalos.SidecarUnavailable, match=f"pid {os.getpid()}.*stopped or stuck"):
            kalos.connect(data_dir, timeout=0.1)
    finally:
        other.end()


def test_a_sidecar_of_another_version_that_somebody_started_by_hand_is_left_alone(data_dir):
    """The error names pid, versions and what to do. So is any by a client that may start none in its place."""
    for by_hand in (True, False):
        other = OtherVersion(data_dir, autostarted=not by_hand)
        try:
            words = rf"99\.0 \(pid {os.getpid()}\).*ABI 99.*kalos stop.*{'by hand' if by_hand else 'start none'}"
            with pytest.raises(kalos.SidecarUnavailable, match=words):
                kalos.connect(data_dir, autostart=by_hand)
            assert not other.drained
        finally:
            other.end()
            os.unlink(other.path)


def test_who_connects_while_kalosd_drains_is_told_so(data_dir, tmp_path, monkeypatch):
    """A request that takes long is finished first. Meanwhile `connect` and `kalos status` say what is so, and when it
    is over there is a new kalosd for whoever waits."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("KALOS_FAILPOINT", f"pass@{gate}")
    with kalos.connect(data_dir, timeout=60) as client:
        monkeypatch.delenv("KALOS_FAILPOINT")
        notes = client.collection("notes", dimension=2)
        pid = client.stats()["kalosd"]["pid"]
        gate.touch()
        counted = []
        asks = threading.Thread(target=lambda: counted.append(notes.count()))
        asks.start()
        wait_until(lambda: client.stats()["requests"]["in_flight"] == 1, "the request is held")
        where = _sidecar.read_lock(data_dir)["socket"]
        _sidecar.ask_to_drain(where, "test", time.monotonic_ns() + 10**10)
        assert _session._ask(where)["health"]["status"] == "draining"
        monkeypatch.setattr(_client, "_START_TIMEOUT_S", 0.3)
        with pytest.raises(kalos.SidecarUnavailable, match=rf"\(pid {pid}\) is ending, and still runs"):
            kalos.connect(data_dir)
        monkeypatch.undo()
        threading.Timer(0.1, gate.unlink).start()
        with kalos.connect(data_dir) as later:
            assert later.stats()["kalosd"]["pid"] != pid
        asks.join(30)
        assert counted == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is only available to root")
def test_another_user_is_refused_in_words(client, data_dir):
    """The same socket, another uid: words, not a hang and not an answer."""
    holder = _sidecar.lock_holder(data_dir)
    for path in (os.path.dirname(data_dir), data_dir):
        os.chmod(path, 0o755)
    os.chmod(holder["socket"], 0o777)
    code = (
        "import os, sys, kalos_memory as k\n"
        "connect, refused = k.connect, k.SidecarUnavailable  # the package may not be readable to nobody\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: connect(socket=sys.argv[1])\n"
        "except refused as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, holder["socket"]], capture_output=True, text=True, timeout=120, check=True
    )
    assert "65534" in done.stdout, done
    assert client.health()["status"] == "ready"


def test_private_sidecar_ends_with_its_client_and_leaves_nothing():
    client = kalos.connect(":memory:")
    report = client.stats()["kalosd"]
    assert os.path.isdir(report["data_dir"])
    client.close()
    assert not os.path.exists(report["data_dir"])
    with pytest.raises(ProcessLookupError):
        os.kill(report["pid"], 0)


def test_private_sidecar_ends_with_its_process(kalosd):
    """Also when the process is killed."""
    code = (
        "import os, signal, kalos_memory as k\n"
        "c = k.connect(':memory:'); s = c.stats()['kalosd']; print(s['pid'], s['data_dir'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    pid, path = done.stdout.split()
    wait_until(lambda: not os.path.exists(path), "the private sidecar removes its directory")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the private sidecar ends")

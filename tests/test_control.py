"""The control socket: frames in order and out of order, refusals, and the end of the other side."""

import json
import os
import socket
import struct
import threading
import time

import pytest

from kalos_memory import KalosTimeout, SidecarUnavailable, _abi
from kalos_memory._control import Control, NotListening, Refused, libc_name


def after(seconds=30.0):
    return time.monotonic_ns() + int(seconds * 1e9)


def frame(kind, body, magic=_abi.CONTROL_MAGIC):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return struct.pack("<IHHII", magic, kind, 0, len(data), 0) + data


class Server:
    """Listens on a path and runs a script with the first connection."""

    def __init__(self, path, script):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._run, args=(script,))
        self.thread.start()

    def _run(self, script):
        connection, _ = self.listener.accept()
        with connection:
            script(connection)

    def stop(self):
        self.thread.join(30)
        self.listener.close()


def read_frame(connection):
    head = connection.recv(16, socket.MSG_WAITALL)
    _, kind, _, size, _ = struct.unpack("<IHHII", head)
    return kind, json.loads(connection.recv(size, socket.MSG_WAITALL))


@pytest.fixture
def serve(tmp_path):
    servers = []

    def serve(script):
        path = tmp_path / f"{len(servers)}.sock"
        servers.append(Server(path, script))
        return Control(str(path))

    yield serve
    for server in servers:
        server.stop()


def test_hello_says_who_asks(serve):
    seen = []

    def script(connection):
        seen.append(read_frame(connection))
        connection.sendall(frame(_abi.CONTROL_WELCOME, {"pid": 1}))

    control = serve(script)
    assert control.hello(after(), slot_count=8, slot_bytes=131072) == {"pid": 1}
    kind, body = seen[0]
    assert kind == _abi.CONTROL_HELLO
    assert (body["abi_major"], body["slot_count"], body["slot_bytes"]) == (1, 8, 131072)
    assert body["pid"] == os.getpid()
    assert body["libc"].startswith("glibc")
    control.close()


def test_answers_may_come_in_pieces_and_with_notices_between(serve):
    """DRAINING may come at any time, also between a question and its answer."""

    def script(connection):
        read_frame(connection)
        data = frame(_abi.CONTROL_DRAINING, {"reason": "r"}) + frame(_abi.CONTROL_REPORT, {"x": "y" * 100_000})
        for i in range(0, len(data), 7919):
            connection.sendall(data[i : i + 7919])
            time.sleep(0.001)

    control = serve(script)
    assert len(control.report(after())["x"]) == 100_000
    assert control.draining
    control.close()


def test_refusal_carries_the_body(serve):
    def script(connection):
        read_frame(connection)
        connection.sendall(frame(_abi.CONTROL_ERROR, {"status": 10, "message": "not you", "pid": 5}))

    control = serve(script)
    with pytest.raises(Refused, match="not you") as caught:
        control.hello(after(), slot_count=0)
    assert caught.value.body["pid"] == 5
    control.close()


def test_refusal_before_a_word_was_said(serve):
    """kalosd may refuse at once, by the peer's uid, and close: the words are read all the same."""
    control = serve(lambda connection: connection.sendall(frame(_abi.CONTROL_ERROR, {"message": "not you"})))
    time.sleep(0.05)
    with pytest.raises(Refused, match="not you"):
        control.hello(after(), slot_count=0)
    control.close()


def test_end_of_file_while_asking(serve):
    control = serve(read_frame)
    with pytest.raises(NotListening):
        control.ping(after())
    assert control.gone
    control.close()


def test_poll_notices_the_end_and_the_drain(serve):
    go = threading.Event()

    def script(connection):
        connection.sendall(frame(_abi.CONTROL_DRAINING, {"reason": "r"}))
        go.wait(30)

    control = serve(script)
    end = time.monotonic() + 30
    while not control.draining:
        control.poll()
        assert time.monotonic() < end
    assert not control.gone
    go.set()
    while not control.gone:
        control.poll()
        assert time.monotonic() < end
    control.close()


def test_a_late_answer_is_not_taken_for_the_next_one(serve):
    go = threading.Event()

    def script(connection):
        read_frame(connection)
        go.wait(30)
        connection.sendall(frame(_abi.CONTROL_REPORT, {"n": 1}))
        read_frame(connection)
        connection.sendall(frame(_abi.CONTROL_REPORT, {"n": 2}))

    control = serve(script)
    with pytest.raises(KalosTimeout, match="did not answer"):
        control.report(after(0.05))
    go.set()
    assert control.report(after()) == {"n": 2}
    control.close()


@pytest.mark.parametrize(
    "noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(2, b"[1]"), frame(2, b"{no"), frame(2, {}, magic=7)]
)
def test_whoever_is_no_kalosd_is_told_from_one(serve, noise):
    control = serve(lambda connection: (read_frame(connection), connection.sendall(noise)))
    with pytest.raises(SidecarUnavailable, match=r"not a kalosd|no JSON object"):
        control.hello(after(), slot_count=0)
    control.close()


def test_nobody_listens(tmp_path):
    """No such file, a file that is no socket, a socket that nobody holds: NotListening, or words."""
    with pytest.raises(NotListening):
        Control(str(tmp_path / "none"))
    dead = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    with pytest.raises(NotListening):
        Control(str(dead))
    with pytest.raises(SidecarUnavailable, match="at most 107"):
        Control(str(tmp_path / ("x" * 200)))


def test_libc_name_is_one_that_kalosd_can_judge():
    assert libc_name().split()[0] == "glibc"

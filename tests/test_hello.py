"""The first words between a client and kalosd: newer clients, slow ones, and strangers on either side."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kalos_memory as kalos
from kalos_memory import _abi, _control, _sidecar
from kalos_memory._codec import Message


def frame(kind: int, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    return struct.pack("<IHHII", _abi.CONTROL_MAGIC, kind, 0, len(data), 0) + data


def read_frame(connection: socket.socket) -> tuple[int, dict[str, object]]:
    connection.settimeout(60)
    head = connection.recv(16, socket.MSG_WAITALL)
    magic, kind, _, size, _ = struct.unpack("<IHHII", head)
    assert magic == _abi.CONTROL_MAGIC
    return kind, json.loads(connection.recv(size, socket.MSG_WAITALL))


def socket_of(data_dir: str) -> str:
    said = _sidecar.read_lock(data_dir)
    assert said is not None
    return str(said["socket"])


def hello(**changes: object) -> dict[str, object]:
    body = {"abi_major": 1, "abi_minor": 0, "libc": _control.libc_name(), "slot_count": 0}
    return {key: value for key, value in (body | changes).items() if value is not None}


def test_a_client_of_a_newer_minor_version_is_served(data_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: any minor version is served, and learns kalosd's; what it says beyond this version is not read."""
    monkeypatch.setattr(_abi, "ABI_MINOR", _abi.ABI_MINOR + 7)
    with kalos.connect(data_dir) as client:
        notes = client.collection("notes", dimension=2)
        notes.upsert(["a"], [[1.0, 0.0]], texts=["east"])
        assert [hit.text for hit in notes.search([1.0, 0.0])] == ["east"]
        for minor in (0, 1, 65_535, 10**12, -1, "2", None):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(socket_of(data_dir))
                connection.sendall(frame(_abi.CONTROL_HELLO, hello(abi_minor=minor, wishes={"of": ["a", "newer"]})))
                kind, welcome = read_frame(connection)
                assert kind == _abi.CONTROL_WELCOME, welcome
                assert (welcome["abi_major"], welcome["abi_minor"]) == (1, 0)


def test_what_a_newer_minor_version_may_append_is_not_read(data_dir: str) -> None:
    """Promise: reserved bytes of a request's struct and of a slot's header are not read. (Bits that are not known are
    refused: test_requests.py.)"""
    with kalos.connect(data_dir) as client:
        notes = client.collection("notes", dimension=2)
        notes.upsert(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], texts=["east", "north"])
        connection = client.current()
        assert connection is not None
        first, last = _abi.offset_of("kalos_slot_header", "request_reserved"), 128
        for slot in range(_abi.DEFAULT_SLOT_COUNT):
            at = _abi.LANE_HEADER_BYTES + slot * _abi.DEFAULT_SLOT_BYTES
            connection.lane.memory[at + first : at + last] = b"\xff" * (last - first)
        search = notes.op.search([1.0, 0.0], 1)
        message = bytearray(search.message.to_bytes())
        first, last = _abi.offset_of("kalos_search_request", "reserved"), _abi.layout("kalos_search_request").size
        message[first:last] = b"\xff" * (last - first)
        search.message = Message([(bytes(message), len(message))], len(message))
        assert [hit.text for hit in client._perform(search)] == ["east"]


def test_a_hello_that_comes_byte_by_byte(data_dir: str) -> None:
    """Promise: frames are put together however they are cut; nobody waits for whoever is slow."""
    with kalos.connect(data_dir) as client, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(socket_of(data_dir))
        for byte in frame(_abi.CONTROL_HELLO, hello()) + frame(_abi.CONTROL_PING, {}):
            slow.sendall(bytes([byte]))
            assert client.health()["status"] == "ready"
        assert read_frame(slow)[0] == _abi.CONTROL_WELCOME
        assert read_frame(slow) == (_abi.CONTROL_PONG, {})


# --------------------------------------------------------------------------------------------- strangers --------------

STRANGER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
held = []
while True:
    held.append(listener.accept()[0])
    if sys.argv[2] == "talks":
        held[-1].sendall(b"220 mail.example ESMTP ready")
"""


@contextmanager
def stranger(path: str, how: str) -> Iterator[int]:
    """Another program that listens there. -> its pid"""
    command = [sys.executable, "-c", STRANGER, path, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("how", "words"),
    [("talks", "is not a kalosd: its frames"), ("is silent", "took the connection and does not answer")],
)
def test_a_stranger_on_the_socket_is_named(tmp_path: Path, how: str, words: str) -> None:
    """Promise: whatever else listens where a kalosd should be, the error says so and names its pid."""
    path = str(tmp_path / "s.sock")
    with stranger(path, how) as pid:
        with pytest.raises(kalos.SidecarUnavailable) as error, kalos.connect(socket=path, timeout=0.2):
            pass
        assert f"whoever listens on {path} (pid {pid}) {words}" in str(error.value)


def test_a_stranger_where_a_data_directory_points(data_dir: str, tmp_path: Path) -> None:
    """Promise: the kalosd of a directory is not blamed for whoever took its socket's place."""
    with kalos.connect(data_dir, timeout=0.2) as client:
        client.close()
        path = socket_of(data_dir)
        os.rename(path, path + ".aside")
        with stranger(path, "is silent") as pid:
            with pytest.raises(kalos.SidecarUnavailable) as error, kalos.connect(data_dir, timeout=0.2):
                pass
            assert f"whoever listens on {path} (pid {pid}) took the connection" in str(error.value)
        os.rename(path + ".aside", path)


def test_kalosd_names_whoever_has_its_socket(kalosd: str, data_dir: str, tmp_path: Path) -> None:
    """Promise: where --socket is taken, kalosd ends with 4 and says by whom."""
    path = str(tmp_path / "s.sock")
    with stranger(path, "is silent") as pid:
        command = [kalosd, "--data-dir", data_dir, "--socket", path]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 4, ended.stderr
        assert f"somebody (pid {pid}) listens on {path} already; choose another --socket" in ended.stderr

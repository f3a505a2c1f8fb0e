"""The control socket: frames of a small header and one JSON object, over a Unix stream.

It hands out the lane, carries health and drain, and stays open: end of file is how this side learns that kalosd died.
The protocol is described in docs/abi.md, section 2.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import socket
import struct
import threading
from time import monotonic_ns
from typing import Any

from kalos_memory import _abi
from kalos_memory._errors import KalosTimeout, SidecarUnavailable

_HEADER = _abi.layout("kalos_control_header")
CLIENT_NAME = f"kalos-memory, Python {platform.python_version()}"
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
_LONGEST_BODY = 64 << 20  # what kalosd may send; far above any real report


class Refused(SidecarUnavailable):
    """kalosd answered ERROR. body: its JSON, see docs/abi.md."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("message", "kalosd refused the connection without words")))
        self.body = body


class NotListening(Exception):
    """Nobody accepts on the socket. (Inner.)"""


def libc_name() -> str:
    """The C library as the hello names it, for example "glibc 2.36": the layout of semaphores is its own."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        return "unknown (not glibc)"


class Control:
    """One connection. Asking is done by one thread at a time; poll() never waits."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.gone = False  # end of file was seen
        self.draining = False  # DRAINING was seen
        self._lock = threading.Lock()
        self.peer_pid: int | None = None  # of whoever listens there, where the kernel tells (not across pid namespaces)
        self._received = bytearray()
        self._late: list[int] = []  # answers to questions that were given up; dropped when they come
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(5.0)  # only a full backlog makes connect() wait
            self._socket.connect(path)
            self._socket.setblocking(False)
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            self.peer_pid = _PEER.unpack(credentials)[0] or None
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, TimeoutError):
            self._socket.close()
            raise NotListening from None
        except OSError as error:
            self._socket.close()
            if "too long" in str(error):
                raise SidecarUnavailable(
                    f"the socket path has {len(os.fsencode(path))} bytes, the system takes at most 107: {path}"
                ) from None
            raise SidecarUnavailable(f"the socket {path} cannot be used: {error.strerror or error}") from error

    def whoever(self) -> str:
        """The other side, in words, where it is not known to be a kalosd."""
        return f"whoever listens on {self.path}" + (f" (pid {self.peer_pid})" if self.peer_pid else "")

    def close(self) -> None:
        """Idempotent. Does not wait for anybody: a thread that asks right now finds the connection gone."""
        self.gone = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_in_child(self) -> None:
        """After fork: drops this process's copy, without a word to kalosd, which goes on with the parent."""
        self.gone = True
        self._lock = threading.Lock()
        self._socket.close()

    # -------------------------------------------------------------------------------------------- words --------------

    def hello(
        self, deadline_ns: int, *, slot_count: int, slot_bytes: int = 0, abi_major: int = _abi.ABI_MAJOR
    ) -> dict[str, Any]:
        """-> the WELCOME. Raises Refused."""
        body = {
            "abi_major": abi_major,
            "abi_minor": _abi.ABI_MINOR,
            "libc": libc_name(),
            "client": CLIENT_NAME,
            "pid": os.getpid(),
            "slot_count": slot_count,
            "slot_bytes": slot_bytes,
            "monotonic_ns": monotonic_ns(),
        }
        return self.ask(_abi.CONTROL_HELLO, body, _abi.CONTROL_WELCOME, deadline_ns)

    def attached(self, deadline_ns: int) -> None:
        self.ask(_abi.CONTROL_ATTACHED, {}, _abi.CONTROL_READY, deadline_ns)

    def report(self, deadline_ns: int) -> dict[str, Any]:
        return self.ask(_abi.CONTROL_STATUS, {}, _abi.CONTROL_REPORT, deadline_ns)

    def ping(self, deadline_ns: int) -> None:
        self.ask(_abi.CONTROL_PING, {}, _abi.CONTROL_PONG, deadline_ns)

    def drain(self, reason: str, deadline_ns: int) -> None:
        """Returns once kalosd has said that it drains."""
        self.ask(_abi.CONTROL_DRAIN, {"reason": reason}, _abi.CONTROL_DRAINING, deadline_ns)

    def ask(self, kind: int, body: dict[str, Any], expected: int, deadline_ns: int) -> dict[str, Any]:
        """Sends one frame and returns the body of the answer. NotListening where kalosd is gone."""
        with self._lock:
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    # Refused before we spoke: why is still to be read.
                    self._send(kind, body, deadline_ns)
                while True:
                    found, answer = self._next(deadline_ns, expected)
                    if found in self._late:
                        self._late.remove(found)
                    elif found == expected:
                        return answer
                    elif found == _abi.CONTROL_ERROR:
                        raise Refused(answer)
            except OSError as error:
                self.gone = True
                raise NotListening from error

    def poll(self) -> None:
        """Takes in what kalosd said unasked, without waiting: sets draining and gone."""
        if self.gone or self._lock.locked():  # whoever asks right now takes it in
            return
        with self._lock:  # not acquire() and try: an exception of a signal's handler could come in between
            try:
                if not self.gone:
                    self._receive()
                while (frame := self._take_frame()) is not None:
                    if frame[0] in self._late:
                        self._late.remove(frame[0])
            except (OSError, SidecarUnavailable):
                self.gone = True

    # ------------------------------------------------------------------------------------------- frames --------------

    def _wait(self, events: int, deadline_ns: int) -> None:
        left_ms = (deadline_ns - monotonic_ns()) / 1e6
        poller = select.poll()
        poller.register(self._socket, events)
        if left_ms <= 0 or not poller.poll(left_ms):
            raise KalosTimeout("kalosd's control thread did not answer in time: it is overloaded, stopped or stuck")

    def _send(self, kind: int, body: dict[str, Any], deadline_ns: int) -> None:
        data = json.dumps(body).encode()
        view = memoryview(_HEADER.pack(_abi.CONTROL_MAGIC, kind, len(data)) + data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline_ns)

    def _next(self, deadline_ns: int, expected: int) -> tuple[int, dict[str, Any]]:
        while (frame := self._take_frame()) is None:
            if self.gone:
                raise ConnectionResetError("end of file")
            try:
                self._wait(select.POLLIN, deadline_ns)
            except KalosTimeout:
                self._late.append(expected)
                raise
            self._receive()
        return frame

    def _receive(self) -> None:
        try:
            while data := self._socket.recv(65536):
                self._received += data
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass  # after what was sent before it
        self.gone = True

    def _take_frame(self) -> tuple[int, dict[str, Any]] | None:
        received = self._received
        if len(received) < _HEADER.size:
            return None
        magic, kind, body_bytes = _HEADER.unpack_from(received)
        if magic != _abi.CONTROL_MAGIC or body_bytes > _LONGEST_BODY:
            raise SidecarUnavailable(f"{self.whoever()} is not a kalosd: its frames are of another kind")
        end = _HEADER.size + body_bytes
        if len(received) < end:
            return None
        try:
            body = json.loads(bytes(received[_HEADER.size : end]))
        except ValueError:
            body = None
        del received[:end]
        if not isinstance(body, dict):
            raise SidecarUnavailable(f"kalosd on {self.path} sent a frame whose body is no JSON object")
        if kind == _abi.CONTROL_DRAINING:
            self.draining = True
        return kind, body

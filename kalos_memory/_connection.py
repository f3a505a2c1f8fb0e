"""One connection to kalosd: its control socket and its lane; and how to come by one.

Target       where kalosd is to be found, and whether it may be started
Connection   control socket + lane, and what is known about whether the other side lives
connect()    Target -> Connection: finds, starts, waits, takes over, within a deadline
"""

from __future__ import annotations

import ctypes
import time
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kalos_memory import _abi, _sidecar
from kalos_memory._control import Control, NotListening, Refused
from kalos_memory._errors import KalosTimeout, SidecarUnavailable
from kalos_memory._lane import Lane, LaneLost

if TYPE_CHECKING:
    from kalos_memory._async import ReplyWaiter

_IDLE_NS = 200_000_000  # after so long without a call the socket is looked at before the lane is trusted


class Target:
    """Where to connect: to a socket (exactly that one), or to whoever serves a data directory."""

    __slots__ = ("autostart", "data_dir", "private", "socket")

    def __init__(
        self,
        *,
        data_dir: str | None = None,
        socket: str | None = None,
        autostart: bool = True,
        private: _sidecar.PrivateSidecar | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.socket = socket
        self.autostart = autostart
        self.private = private

    def __str__(self) -> str:
        if self.private is not None:
            return _sidecar.MEMORY
        return self.socket if self.socket is not None else str(self.data_dir)

    def path(self) -> str | None:
        """The socket to try now; None where nobody has written one down."""
        if self.socket is not None:
            return self.socket
        said = _sidecar.read_lock(str(self.data_dir))
        return None if said is None else str(said["socket"])


class Connection:
    """An attached lane and the control socket that keeps it."""

    def __init__(self, control: Control, welcome: dict[str, Any], deadline_ns: int) -> None:
        self.control = control
        self.welcome = welcome
        self.closed = False
        self.waiter: ReplyWaiter | None = None  # of the asyncio side, made when first needed
        self._used_ns = monotonic_ns()
        self.lane = Lane.attach(
            welcome["lane"], durations=welcome.get("deadline") == "duration", check_peer=self.check_peer
        )
        self.lane.on_idle = self.close
        try:
            control.attached(deadline_ns)
        except BaseException:
            self.lane.retire(wake=False)
            raise

    def check_peer(self) -> None:
        """Raises LaneLost where no answer can come any more."""
        if self.closed:
            raise LaneLost
        self.control.poll()
        if self.control.gone:
            raise LaneLost

    def usable(self) -> bool:
        """May a new request be sent here? Cheap: the socket is looked at only after a pause."""
        now_ns = monotonic_ns()
        if now_ns - self._used_ns > _IDLE_NS:
            self.control.poll()
        self._used_ns = now_ns
        control = self.control
        return not (control.gone or control.draining or self.closed or self.lane.retired)

    def leave(self) -> None:
        """No new request; those under way are still answered. For a sidecar that drains."""
        self.lane.retire(wake=False)
        if self.control.gone or self.lane.in_use == 0:
            self.close()

    def close(self) -> None:
        """Ends at once: whoever waits gets LaneLost. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.control.close()
        if self.waiter is not None:
            self.waiter.stop()
        self.lane.retire(wake=True)

    def forget_in_child(self) -> None:
        """After fork: the lane is not mapped here (MADV_DONTFORK), so nothing may touch or unmap it; the socket's copy
        is closed, so that kalosd sees the end of the parent when it comes."""
        self.closed = True
        self.control.close_in_child()
        _parked.append(self)
        # A module's list is emptied when the interpreter ends; unmapping then could hit whatever lies there by now.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.lane.memory))


_parked: list[Connection] = []


class _Silent(Exception):
    """Somebody took the connection and does not answer. (Inner.)"""

    def __init__(self, control: Control) -> None:
        super().__init__(control.whoever())
        self.pid = control.peer_pid


def connect(target: Target, deadline_ns: int, *, patient: bool, answer_ns: int) -> Connection:
    """Connects, within the deadline.

    answer_ns: how long a kalosd that took the connection may be silent; one that is silent for longer is stopped or
    stuck (or ends, and takes nobody any more), and waiting for it is left to the caller.
    patient: where nobody answers and none may be started, try until the deadline (somebody's service manager may be
    restarting it); else say so at once.

    Raises SidecarUnavailable, in words."""
    _sidecar.reap()
    starter = _sidecar.Starter(str(target.data_dir)) if target.autostart and target.private is None else None
    if target.socket is not None:
        starter = None
    begun_ns = monotonic_ns()
    pause_s = 0.001
    why = ""
    ending: dict[str, Any] | None = None  # what a kalosd that is about to end has said of itself
    while True:
        if target.private is not None:
            target.private.check()
        path = target.path()
        answer_by_ns = min(deadline_ns, monotonic_ns() + answer_ns)
        try:
            if path is None:
                why = f"no kalosd runs on {target.data_dir}"
            else:
                try:
                    connection = _attach(path, answer_by_ns)
                except Refused as refused:
                    why = str(refused)
                    ending = _ending(target, refused, path, ending, answer_by_ns)
                else:
                    if starter is not None:
                        starter.done(connection.welcome["pid"])
                    return connection
        except NotListening:
            why = f"nobody listens on {path}"
        except (KalosTimeout, _Silent) as error:
            if ending is None:
                pid = error.pid if isinstance(error, _Silent) else None
                said = (_sidecar.lock_holder(target.data_dir) if target.data_dir else None) or {}
                who = f"whoever listens on {path}" if pid is None else f"whoever listens on {path} (pid {pid})"
                if "pid" in said and pid in (None, said["pid"]):
                    who = f"kalosd (pid {said['pid']})"
                raise SidecarUnavailable(
                    f"{who} took the connection and does not answer: it is stopped or stuck; look at it, and end it"
                    " with `kill` if it does not come back"
                ) from error
        if ending is not None and target.data_dir and not _sidecar.is_locked(target.data_dir):
            ending = None  # it has ended
        if starter is not None:
            starter.step()
        elif target.private is None and not patient and not (target.data_dir and _sidecar.is_locked(target.data_dir)):
            raise SidecarUnavailable(f"{why}: start one with `kalos serve`{_hint(target)}")
        if monotonic_ns() + int(pause_s * 1e9) > deadline_ns:
            if ending is not None:
                raise SidecarUnavailable(_does_not_end(ending, (monotonic_ns() - begun_ns) / 1e9))
            raise SidecarUnavailable(f"no connection to {target} in time: {why}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


def _hint(target: Target) -> str:
    return ", or connect with autostart=True" if target.socket is None else ""


def _attach(path: str, deadline_ns: int) -> Connection:
    control = Control(path)
    try:
        welcome = control.hello(deadline_ns, slot_count=_abi.DEFAULT_SLOT_COUNT, slot_bytes=_abi.DEFAULT_SLOT_BYTES)
        if not isinstance(welcome.get("lane"), dict):
            raise SidecarUnavailable(f"kalosd on {path} granted no lane")
        return Connection(control, welcome, deadline_ns)
    except KalosTimeout as error:
        control.close()
        raise _Silent(control) from error
    except BaseException:
        control.close()
        raise


def _ending(
    target: Target, refused: Refused, path: str, known: dict[str, Any] | None, answer_by_ns: int
) -> dict[str, Any]:
    """What the kalosd that refused says of itself, if the refusal will pass: it is ending, or is of another major
    version and was started by a client, so that it may be asked to. Raises where it stays.

    known: the one that was asked already."""
    body = refused.body
    if body.get("status") == _abi.STATUS_DRAINING:
        return body
    theirs = body.get("abi_major")
    if not isinstance(theirs, int) or theirs == _abi.ABI_MAJOR:
        raise SidecarUnavailable(f"kalosd on {path} refused the connection: {refused}") from None
    by_hand = body.get("autostarted") is not True
    if by_hand or not target.autostart or target.socket is not None:
        why = "it was started by hand" if by_hand else "it may start none itself"
        raise SidecarUnavailable(
            f"kalosd {body.get('version')} (pid {body.get('pid')}) speaks ABI {theirs}, this client {_abi.ABI_MAJOR}:"
            f" end it with `kalos stop` (this client does not, since {why}), or install matching versions"
        )
    if known is None or known.get("pid") != body.get("pid"):
        _sidecar.ask_to_drain(path, "a client of another major version takes over", answer_by_ns, theirs)
    return body


def _does_not_end(ending: dict[str, Any], waited_s: float) -> str:
    theirs, pid = ending.get("abi_major"), ending.get("pid", "unknown")
    why = ""
    if isinstance(theirs, int) and theirs != _abi.ABI_MAJOR:
        why = f", as it was asked to because it speaks ABI {theirs} and this client {_abi.ABI_MAJOR}"
    return (
        f"kalosd {ending.get('version')} (pid {pid}) is ending{why}, and still runs after {waited_s:.3g} s: it may be"
        f" finishing a large write; connect again later, or end it with `kill {pid}` (what was acknowledged is on disk)"
    )

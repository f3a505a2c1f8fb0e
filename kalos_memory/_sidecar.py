"""Finding, starting and stopping kalosd.

The data directory is the rendezvous: its kalosd.lock, held by the running kalosd, names the socket (docs/abi.md,
section 1). Starting is a race that anyone may lose: whoever finds the lock held waits for the winner's socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from time import monotonic_ns
from typing import Any

from kalos_memory import _abi
from kalos_memory._control import Control, NotListening, Refused
from kalos_memory._errors import InvalidRequest, KalosTimeout, SidecarUnavailable

LOCK_FILE = "kalosd.lock"
LOG_FILE = "kalosd.log"
LOCK_FILE_BYTES = 4096
DEFAULT_IDLE_S = 900
_LONGEST_DATA_DIR = 480  # SQLite takes paths of up to 512 bytes, its own suffixes included
MEMORY = ":memory:"
_EXIT_HELD = 3


def default_data_dir() -> str:
    """$KALOS_DATA_DIR, else $XDG_DATA_HOME/kalos, else ~/.local/share/kalos."""
    if given := os.environ.get("KALOS_DATA_DIR"):
        return os.path.abspath(os.path.expanduser(given))
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "kalos")


def find_kalosd() -> str:
    """The kalosd program that belongs to this package."""
    path = os.environ.get("KALOSD") or os.path.join(os.path.dirname(__file__), "bin", "kalosd")
    if os.path.exists(path) and not os.access(path, os.X_OK):
        raise SidecarUnavailable(f"the program {path} may not be executed by this user: see its mode (chmod +x)")
    if not os.access(path, os.X_OK):
        raise SidecarUnavailable(
            f"the program kalosd is not at {path}: install kalos-memory with `pip install`, or run `make setup` in a"
            " checkout"
        )
    return path


def read_lock(data_dir: str) -> dict[str, Any] | None:
    """What kalosd.lock says: pid, instance, abi, version, socket, autostarted. None where it says nothing.

    True only while somebody holds the lock; see is_locked()."""
    try:
        with open(os.path.join(data_dir, LOCK_FILE), "rb") as file:
            said = json.loads(file.read(LOCK_FILE_BYTES))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise SidecarUnavailable(
            f"the data directory {data_dir} belongs to another user: choose another one (data_dir=, KALOS_DATA_DIR)"
        ) from error
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and isinstance(said.get("socket"), str) else None


def is_locked(data_dir: str) -> bool:
    """Is a kalosd (starting, serving or ending) on this data directory?"""
    try:
        fd = os.open(os.path.join(data_dir, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for an instant; a kalosd that starts tries again
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def lock_holder(data_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the kalosd that holds this data directory says of itself ({} while it starts); None where none does."""
    where = os.fspath(data_dir)
    return (read_lock(where) or {}) if is_locked(where) else None


# ------------------------------------------------------------------------------------------------ start --------------

_children: set[int] = set()  # kalosd processes that this one started and has not reaped


def reap() -> None:
    """Collects those of our kalosd processes that have ended, so that none stays a zombie."""
    for pid in list(_children):
        _exit_code(pid)


def _exit_code(pid: int) -> int | None:
    """The exit code of a child (negative: the signal), or None while it runs."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # It has ended: someone else collected it, or SIGCHLD is ignored. Its pid may be a stranger's by now.
        _children.discard(pid)
        return 0
    if not found:
        return None
    _children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _spawn(arguments: list[str], data_dir: str, stdin: int | None) -> int:
    """Starts kalosd in a session of its own, its output appended to the log. -> pid"""
    program = find_kalosd()
    environment = dict(os.environ)
    environment.pop("KALOS_SOCKET", None)  # where clients look, not where this one listens
    log = os.path.join(data_dir, LOG_FILE)
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawn(
            program,
            [program, *arguments],
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    except OSError as error:
        raise SidecarUnavailable(f"{program} cannot be started: {error.strerror or error}") from error
    _children.add(pid)
    return pid


def start(data_dir: str) -> int:
    """Starts a kalosd that ends after idle minutes. -> pid; whether it lives is seen from its socket."""
    try:
        os.makedirs(data_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        raise SidecarUnavailable(
            f"the data directory {data_dir} cannot be made ({error.strerror or error}): choose another one (data_dir=,"
            " KALOS_DATA_DIR)"
        ) from error
    idle = os.environ.get("KALOS_IDLE_S", "")
    idle_s = idle if idle.isdigit() else str(DEFAULT_IDLE_S)
    return _spawn(["--data-dir", data_dir, "--autostarted", "--idle-s", idle_s], data_dir, None)


def _log_tail(data_dir: str) -> str:
    """The last words of the log, for an error message."""
    try:
        with open(os.path.join(data_dir, LOG_FILE), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2048))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(it left no log)"
    return " | ".join(line.strip() for line in lines[-3:] if line.strip()) or "(its log is empty)"


class Starter:
    """Starts kalosd at most once at a time while somebody waits for it, and says why where it cannot."""

    def __init__(self, data_dir: str) -> None:
        self.data_dir = data_dir
        self._pid: int | None = None

    def step(self) -> None:
        """Call while nobody accepts: starts one where the lock is free, raises where the one started has failed."""
        if self._pid is not None:
            code = _exit_code(self._pid)
            if code is None:
                return
            self._pid = None
            if code not in (0, _EXIT_HELD):
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                raise SidecarUnavailable(
                    f"kalosd {how} while it was started for {self.data_dir}: {_log_tail(self.data_dir)}"
                )
        if not is_locked(self.data_dir):
            self._pid = start(self.data_dir)

    def done(self, serving_pid: int) -> None:
        """Call when connected: one that was started here and lost the race is not left to try for the lock, which it
        could win when the winner ends."""
        if self._pid is not None and self._pid != serving_pid and _exit_code(self._pid) is None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGTERM)


# ---------------------------------------------------------------------------------------------- private --------------


class PrivateSidecar:
    """A kalosd of this process alone, in a temporary directory that goes with it.

    It holds the read end of a pipe as its stdin and ends at end of file: when close() is called, or when this process
    ends in whatever way."""

    def __init__(self) -> None:
        # The name before the directory, so that there is no moment at which a Ctrl-C finds one that nobody knows.
        self.data_dir = os.path.join(tempfile.gettempdir(), f"kalos-{os.urandom(8).hex()}")
        self._lock = threading.Lock()
        self._ours = True  # False in a forked child: the sidecar is the parent's
        self._pipe: int | None = None
        self._pid: int | None = None
        read_end = -1
        try:
            os.mkdir(self.data_dir, 0o700)
            read_end, self._pipe = os.pipe()
            self._pid = _spawn(["--data-dir", self.data_dir, "--ephemeral", "--idle-s", "0"], self.data_dir, read_end)
        except BaseException:
            if self._pipe is not None:
                os.close(self._pipe)
            shutil.rmtree(self.data_dir, ignore_errors=True)
            raise
        finally:
            if read_end >= 0:
                os.close(read_end)

    def check(self) -> None:
        """Raises where it has ended."""
        if self._ours:
            code = 0 if self._pid is None else _exit_code(self._pid)
        else:
            code = None if os.path.isdir(self.data_dir) else 0
        if code is None:
            return
        self._pid = None
        raise SidecarUnavailable(
            f"the private sidecar of this ':memory:' client has ended (code {code}) and its data with it; its last"
            f" words: {_log_tail(self.data_dir)}. Connect again for a new, empty one"
        )

    def close(self) -> None:
        """Lets it end, waits for that, and sees that its directory is gone."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
            pid, self._pid = self._pid, None
        if pipe is None:
            return
        os.close(pipe)
        if pid is not None:
            until_ns = monotonic_ns() + 5_000_000_000
            while _exit_code(pid) is None:
                if monotonic_ns() > until_ns:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                    until_ns += 5_000_000_000
                time.sleep(0.002)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def forget_in_child(self) -> None:
        """After fork: the sidecar stays the parent's; the child only drops its copy of the pipe."""
        self._lock = threading.Lock()
        self._ours = False
        pipe, self._pipe, self._pid = self._pipe, None, None
        if pipe is not None:
            with contextlib.suppress(OSError):
                os.close(pipe)


# ------------------------------------------------------------------------------------------------- stop --------------


def ask_to_drain(path: str, reason: str, deadline_ns: int, abi_major: int = _abi.ABI_MAJOR) -> bool:
    """Asks the kalosd on this socket to finish and end. False where nobody listens there."""
    try:
        control = Control(path)
    except NotListening:
        return False
    greeted = False
    try:
        control.hello(deadline_ns, slot_count=0, abi_major=abi_major)
        greeted = True
        control.drain(reason, deadline_ns)
    except NotListening:
        return greeted  # it may have ended before its answer was on the way
    except Refused as refused:
        theirs = refused.body.get("abi_major")
        if refused.body.get("status") == _abi.STATUS_DRAINING:
            return True
        if isinstance(theirs, int) and theirs != abi_major:
            return ask_to_drain(path, reason, deadline_ns, theirs)
        raise
    finally:
        control.close()
    return True


def stop(data_dir: Any = None, timeout: float = 30.0, *, reason: str = "kalos stop") -> dict[str, Any] | None:
    """Asks the kalosd of a data directory to finish what it has and end, and waits until it has.

    Clients that go on calling start another one; that is not waited for.

    Returns:
        What its lock file said (pid, version, socket, ...), or None where none was running.

    Raises:
        KalosTimeout: it still runs after `timeout` seconds; the message names its pid.
    """
    where = resolve_data_dir(data_dir)
    deadline_ns = monotonic_ns() + int(timeout * 1e9)
    stopped: dict[str, Any] | None = None
    while is_locked(where):
        said = read_lock(where)
        if said is not None and stopped is None:
            with contextlib.suppress(KalosTimeout):
                if ask_to_drain(said["socket"], reason, deadline_ns):
                    stopped = said
        elif said is not None and stopped is not None and said.get("instance") != stopped.get("instance"):
            break
        if monotonic_ns() > deadline_ns:
            raise KalosTimeout(
                f"kalosd (pid {(said or stopped or {}).get('pid', 'unknown')}) still holds {where} after {timeout:g} s:"
                " it may be finishing a large write; wait, or end it with `kill`"
            )
        time.sleep(0.005)
    reap()
    return stopped


def resolve_data_dir(data_dir: Any) -> str:
    """The data_dir argument as an absolute path; None is the default. Nothing is created."""
    if data_dir is None:
        return default_data_dir()
    path = _resolve(data_dir, "data_dir")
    if len(os.fsencode(path)) > _LONGEST_DATA_DIR:
        raise InvalidRequest(
            f"data_dir has {len(os.fsencode(path))} bytes, at most {_LONGEST_DATA_DIR} are possible: {path:.80}..."
        )
    return path


def resolve_socket(socket: Any) -> str:
    """The socket argument as an absolute path."""
    return _resolve(socket, "socket")


def _resolve(given: Any, what: str) -> str:
    try:
        path = os.fsdecode(os.fspath(given))
        os.fsencode(path)
    except TypeError:
        raise InvalidRequest(f"{what} must be a path, not a {type(given).__name__}: {given!r:.80}") from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} holds a lone surrogate, which no path has: {given!r:.80}") from None
    if not path or "\0" in path:
        raise InvalidRequest(f"{what} is {path!r:.80}: that cannot be a path")
    return os.path.abspath(os.path.expanduser(path))


def after_fork_in_child() -> None:
    _children.clear()  # the parent's

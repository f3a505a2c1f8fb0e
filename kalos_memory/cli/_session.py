"""Where the verbs meet the library: the data directory, the sidecar, a client, a memory.

The only file of the command line that knows how the client's modules are called.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._running import CommandError

if TYPE_CHECKING:
    from kalos_memory import Client, Memory

STARTING_S = 3.0  # how long a sidecar that holds the lock may take until its socket answers
TIMEOUT_S = 10.0  # a person waits longer than an agent


def directory(data_dir: Path | None) -> Path:
    """The data directory that a verb works on, absolute; not created."""
    from kalos_memory import _sidecar

    return Path(_sidecar.resolve_data_dir(data_dir))


def place(data_dir: Path | None) -> str:
    """Where clients of this environment meet their sidecar, for people: a data directory or a socket."""
    return _socket(data_dir) or str(directory(data_dir))


def kalosd() -> str:
    """The sidecar's program. Raises SidecarUnavailable with words when it is missing."""
    from kalos_memory import _sidecar

    return _sidecar.find_kalosd()


def embedder() -> Any:
    """What the verbs embed with; None is the library's default model."""
    return None


@contextmanager
def client(data_dir: Path | None) -> Iterator[Client]:
    """A client that starts a sidecar where none runs, closed afterwards."""
    import kalos_memory as kalos

    with kalos.connect(data_dir, timeout=TIMEOUT_S) as connected:
        yield connected


@contextmanager
def memory(name: str, namespace: tuple[str, ...], data_dir: Path | None, *, existing: bool) -> Iterator[Memory]:
    """A memory; with existing=True it must be there, because a typo must not create one."""
    import kalos_memory as kalos

    with client(data_dir) as connected:
        if existing:
            require_memory(connected, name)
        yield kalos.Memory(name, namespace=namespace, client=connected, embedder=embedder())


def require_memory(connected: Client, name: str) -> None:
    """Raises CommandError naming those that exist where there is none of this name."""
    names = sorted(str(collection["name"]) for collection in connected.collections())
    if name not in names:
        known = ", ".join(names) if names else "none yet, `kalos add` makes one"
        raise CommandError(f"there is no memory named {name!r}; there are: {known}")


def report(data_dir: Path | None) -> dict[str, Any]:
    """The sidecar's report with "running" and "health". Starts none; one that is just starting is waited for."""
    from kalos_memory import _sidecar

    if (socket := _socket(data_dir)) is not None:
        said = _ask(socket)
        return said if isinstance(said, dict) else _silent(False, "stopped", f"{said} (KALOS_SOCKET)")
    where = directory(data_dir)
    end = time.monotonic() + STARTING_S
    while (holder := _sidecar.lock_holder(where)) is not None:
        said = _ask(str(holder["socket"])) if "socket" in holder else "it has no socket yet"
        if isinstance(said, dict):
            return said
        if time.monotonic() > end:
            words = f"kalosd (pid {holder.get('pid', 'unknown')}) holds {where}, but does not answer: {said}"
            return {**_silent(True, "starting", words), "kalosd": holder}
        time.sleep(0.05)
    return _silent(
        False, "stopped", f"no sidecar runs in {where}; the next program that connects starts one, or: kalos serve"
    )


def _silent(running: bool, status: str, words: str) -> dict[str, Any]:
    """The report on a sidecar that says nothing itself."""
    return {"running": running, "health": {"status": status, "words": words}}


def stop(data_dir: Path | None, timeout: float) -> dict[str, Any] | None:
    """Drains the sidecar and waits until it has ended; says who it was, None where none ran."""
    from kalos_memory import _sidecar

    if (socket := _socket(data_dir)) is not None:
        return _stop_on_socket(socket, timeout)
    said = _sidecar.stop(directory(data_dir), timeout)
    return None if said is None else {name: said.get(name) for name in ("pid", "version", "autostarted")}


def _socket(data_dir: Path | None) -> str | None:
    """KALOS_SOCKET: where the sidecar is, unless --data-dir says something else."""
    return None if data_dir is not None else os.environ.get("KALOS_SOCKET") or None


def _ask(socket: str) -> dict[str, Any] | str:
    """The report, or words on why there is none. On the control socket alone: a probe needs no shared memory, and is
    answered or given up soon."""
    from kalos_memory import _abi, _control, _errors

    deadline_ns = time.monotonic_ns() + int(STARTING_S * 1e9)
    try:
        control = _control.Control(socket)
        try:
            control.hello(deadline_ns, slot_count=0)
            return {**control.report(deadline_ns), "running": True}
        finally:
            control.close()
    except _control.NotListening:
        return f"nobody listens on {socket}"
    except _control.Refused as refused:
        if refused.body.get("status") != _abi.STATUS_DRAINING:
            return str(refused)
        sidecar = {name: refused.body.get(name) for name in ("pid", "version", "autostarted")}
        return {**_silent(True, "draining", str(refused)), "kalosd": sidecar}
    except (_errors.SidecarUnavailable, _errors.KalosTimeout) as error:
        return str(error)


def _stop_on_socket(socket: str, timeout: float) -> dict[str, Any] | None:
    from kalos_memory import _sidecar

    said = _ask(socket)
    if not isinstance(said, dict):
        return None
    sidecar = said["kalosd"]
    end = time.monotonic() + timeout
    _sidecar.ask_to_drain(socket, "kalos stop", time.monotonic_ns() + int(timeout * 1e9))
    while isinstance(_ask(socket), dict):
        if time.monotonic() > end:
            raise CommandError(
                f"kalosd (pid {sidecar.get('pid')}) still answers on {socket} after {timeout:g} s: "
                "it may be finishing a large write; wait longer with --timeout",
                ExitCode.TRY_AGAIN,
            )
        time.sleep(0.02)
    return {name: sidecar.get(name) for name in ("pid", "version", "autostarted")}


def confirm(question: str) -> None:
    """Asks on a terminal; anywhere else the answer is no, in words."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Not asked, because stdin is no terminal; say --yes", ExitCode.USAGE)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was forgotten")

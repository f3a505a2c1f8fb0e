"""Where the verbs meet the library: the data directory, the sidecar, a client, a memory.

The only file of the command line that knows how the client's modules are called.
"""

from __future__ import annotations

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


def report(where: Path) -> dict[str, Any]:
    """The sidecar's report with "running" and "health". Starts none; one that is just starting is waited for."""
    import kalos_memory as kalos
    from kalos_memory import _sidecar

    end = time.monotonic() + STARTING_S
    while _sidecar.is_locked(str(where)):
        try:
            with kalos.connect(where, autostart=False, timeout=TIMEOUT_S) as connected:
                return {**connected.stats(), "running": True, "health": connected.health()}
        except kalos.SidecarUnavailable as error:
            if time.monotonic() > end:
                holder = _sidecar.read_lock(str(where)) or {}
                words = f"kalosd (pid {holder.get('pid', 'unknown')}) holds {where}, but does not answer: {error}"
                return {"running": True, "health": {"status": "starting", "words": words}, "kalosd": holder}
            time.sleep(0.05)
    words = f"no sidecar runs in {where}; start one with: kalos serve"
    return {"running": False, "health": {"status": "stopped", "words": words}}


def stop(where: Path, timeout: float) -> dict[str, Any] | None:
    """Drains the sidecar and waits until its lock is free; says who it was, None where none ran."""
    from kalos_memory import _sidecar

    said = _sidecar.stop(str(where), timeout=timeout)
    return None if said is None else {name: said.get(name) for name in ("pid", "version", "autostarted")}


def confirm(question: str) -> None:
    """Asks on a terminal; anywhere else the answer is no, in words."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Not asked, because stdin is no terminal; say --yes", ExitCode.USAGE)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was forgotten")

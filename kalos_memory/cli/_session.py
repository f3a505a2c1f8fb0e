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

STAGES = ("tokenize", "embed", "transport", "search", "fetch")
STARTING_S = 2.0  # how long a sidecar that holds the lock may take until its socket answers


def directory(data_dir: Path | None) -> Path:
    """The data directory that a verb works on; not created."""
    from kalos_memory import _sidecar

    return Path(_sidecar.resolve_data_dir(data_dir))


def kalosd() -> Path:
    """The sidecar's program. Raises SidecarUnavailable with words when it is missing."""
    from kalos_memory import _sidecar

    return Path(_sidecar.find_kalosd())


@contextmanager
def client(data_dir: Path | None, *, autostart: bool = True, timeout: float = 10.0) -> Iterator[Client]:
    """A client that is closed afterwards. The timeout is a person's, not an agent's."""
    import kalos_memory as kalos

    with kalos.connect(data_dir, autostart=autostart, timeout=timeout) as connected:
        yield connected


def require_memory(connected: Client, name: str) -> None:
    """Raises CommandError naming those that exist where there is none of this name: a typo must not create one."""
    names = sorted(_names(connected))
    if name not in names:
        known = ", ".join(names) if names else "none yet; `kalos add` makes one"
        raise CommandError(f"there is no memory named {name!r}; there are: {known}")


def _names(connected: Client) -> list[str]:
    return [one["name"] if isinstance(one, dict) else str(one) for one in connected.collections()]


@contextmanager
def memory(name: str, namespace: tuple[str, ...], data_dir: Path | None) -> Iterator[Memory]:
    """An existing memory, with the default embedder."""
    import kalos_memory as kalos

    with client(data_dir) as connected:
        require_memory(connected, name)
        with kalos.Memory(name, namespace=namespace, client=connected) as opened:
            yield opened


def forget(connected: Client, name: str, namespace: tuple[str, ...], **what: Any) -> int:
    """Deletes from an existing memory. Needs no embedding model."""
    require_memory(connected, name)
    return connected.collection(name).delete(namespace=namespace, **what)


def stage_times(timings: Any) -> dict[str, float]:
    """A Recall's stages in microseconds, in the order in which they happen."""
    read = timings.get if hasattr(timings, "get") else lambda name, default: getattr(timings, name, default)
    return {stage: float(read(stage, 0.0)) for stage in STAGES}


def report(where: Path) -> dict[str, Any]:
    """The sidecar's report with "running" and "health". Starts none; one that is just starting is waited for."""
    import kalos_memory as kalos

    end = time.monotonic() + STARTING_S
    while True:
        holder = running(where)
        if holder is None:
            words = f"no sidecar runs in {where}; start one with: kalos serve"
            return {"running": False, "health": {"status": "stopped", "words": words}}
        try:
            with kalos.connect(where, autostart=False) as connected:
                return {"running": True, **connected.stats(), "health": connected.health()}
        except kalos.SidecarUnavailable as error:
            if time.monotonic() > end:
                words = f"kalosd (pid {holder.get('pid')}) holds {where}, but does not answer: {error}"
                return {"running": True, "health": {"status": "starting", "words": words}, "kalosd": holder}
            time.sleep(0.05)


def running(where: Path) -> dict[str, Any] | None:
    """What the lock file says of the kalosd that holds it; None where none does."""
    from kalos_memory import _sidecar

    return _sidecar.lock_holder(where)


def stop(where: Path, timeout: float) -> dict[str, Any] | None:
    """Drains the sidecar and waits until its lock is free; says who it was, None where none ran."""
    from kalos_memory import _sidecar

    holder = running(where)
    if holder is None:
        return None
    seen = report(where)
    rows = seen.get("database", {}).get("rows")
    _sidecar.stop(where, timeout)
    if running(where) is not None:
        raise CommandError(
            f"kalosd (pid {holder.get('pid')}) did not end within {timeout:g} s; it still finishes what it took; "
            "wait longer with --timeout",
            ExitCode.TRY_AGAIN,
        )
    return {"pid": holder.get("pid"), "version": holder.get("version"), "rows": rows}


def confirm(question: str) -> None:
    """Asks on a terminal; anywhere else the answer is no, in words."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Not asked, because stdin is no terminal; say --yes", ExitCode.USAGE)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was forgotten")

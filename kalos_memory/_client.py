"""Client: one connection to one sidecar, for all threads and event loops of a process, across restarts and forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping
from time import monotonic_ns
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from kalos_memory import _abi, _checks, _codec, _operations, _sidecar, _wait
from kalos_memory._calls import INTERPRETER_ENDS, Operation, call, call_steps, timings_of
from kalos_memory._collection import Collection
from kalos_memory._connection import Connection, Target
from kalos_memory._connection import connect as open_connection
from kalos_memory._control import NotListening
from kalos_memory._errors import InvalidRequest, KalosError, KalosTimeout, SidecarUnavailable
from kalos_memory._lane import EMPTY, LaneLost, exchange
from kalos_memory._types import Timings
from kalos_memory._wait import DeadlinePassed

T = TypeVar("T")

# The control socket is asked for more patience than the lane: its thread also makes lanes, and the machine may be busy.
_CONTROL_PATIENCE_NS = 4_000_000_000
_START_TIMEOUT_S = 30.0  # from spawning kalosd until its socket answers; its collections load after that

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A connection to the sidecar of a data directory. Made by connect(); it connects again by itself when it must.

    Threads and event loops share it: each call takes a slot of its own in shared memory. After a fork the child
    connects anew when it first needs to. A context manager; close() ends it.
    """

    def __init__(
        self, target: Target, *, timeout_s: float, durability: str = "commit", load_timeout_s: float = 30.0
    ) -> None:
        self._target = target
        self.timeout_s = timeout_s
        self.load_timeout_s = load_timeout_s
        self.durability = durability
        self._connection: Connection | None = None
        self._closed = False
        self._lock = threading.Lock()  # held while connecting
        _clients.add(self)

    @property
    def _control_ns(self) -> int:
        """How long the control socket's answers are waited for."""
        return int(self.timeout_s * 1e9) + _CONTROL_PATIENCE_NS

    # -------------------------------------------------------------------------------------- collections --------------

    def collection(
        self,
        name: str,
        dimension: int | None = None,
        metric: str | None = None,
        *,
        embedder: Mapping[str, str | None] | None = None,
    ) -> Collection:
        """Opens a collection, or creates it.

        Args:
            name: 1 to 255 bytes of UTF-8.
            dimension: 1 to 8,192, the length of its vectors. Needed to create one; checked where it exists.
            metric: "cosine" (the default of a new one), "dot" or "l2". Checked where it exists and this is given.
            embedder: {"name", "fingerprint"} of what makes its vectors. Kept with the collection the first time it is
                given, compared ever after. Either may be missing.

        Raises:
            CollectionMismatch: it exists with another dimension, metric or embedder; the message names both.
            NotFound: it does not exist and no dimension is given.

        Example:
            >>> notes = client.collection("notes", dimension=384, metric="cosine")
        """
        return Collection(self, self._perform(self._open(name, dimension, metric, embedder)))

    async def acollection(
        self,
        name: str,
        dimension: int | None = None,
        metric: str | None = None,
        *,
        embedder: Mapping[str, str | None] | None = None,
    ) -> Collection:
        """`collection` for asyncio."""
        return Collection(self, await self._aperform(self._open(name, dimension, metric, embedder)))

    @staticmethod
    def _open(name: Any, dimension: Any, metric: Any, embedder: Any) -> Operation[dict[str, Any]]:
        request: dict[str, Any] = {"name": _checks.collection_name(name)}
        if dimension is not None:
            request["dimension"] = _checks.integer(dimension, "dimension", 1, _abi.MAX_DIMENSION)
        if metric is not None:
            _checks.choice(metric, "metric", _checks.METRICS)
            request["metric"] = metric
        if embedder is not None:
            if not isinstance(embedder, Mapping) or not set(embedder) <= {"name", "fingerprint"}:
                raise InvalidRequest(f"embedder must be a dict with name and fingerprint, not {embedder!r:.80}")
            given = {key: value for key, value in embedder.items() if value is not None}
            for key, value in given.items():
                _checks.utf8(value, f"embedder[{key!r}]")
            if given:
                request["embedder"] = given
        return Operation(
            _abi.OP_OPEN_COLLECTION,
            _codec.json_message(request),
            _codec.decode_json,
            what=f"opening the collection {name!r}",
            repeatable=True,
        )

    def collections(self) -> list[dict[str, Any]]:
        """All collections, sorted by name: dicts with name, dimension, metric, embedder, created_at (aware, UTC)."""
        return self._perform(_LIST)

    async def acollections(self) -> list[dict[str, Any]]:
        """`collections` for asyncio."""
        return await self._aperform(_LIST)

    def drop_collection(self, name: str, *, confirm: str) -> None:
        """Deletes a collection with all that is in it. confirm: its name once more, so that no slip does it.

        Raises NotFound where there is none."""
        self._perform(_drop(name, confirm))

    async def adrop_collection(self, name: str, *, confirm: str) -> None:
        """`drop_collection` for asyncio."""
        await self._aperform(_drop(name, confirm))

    # ------------------------------------------------------------------------------------------- batches -------------

    def batch(
        self, operations: list[Operation[Any]], *, durability: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Several reads and writes, also of several collections, as one message.

        All reads see one snapshot, taken before the batch's own writes; all writes are one transaction. Where one fails
        the batch fails with its words and nothing is changed.

        Args:
            operations: made by `collection.op`: search, get, count, namespaces, upsert, delete, with the arguments of
                the methods of the same names. Their arrays are read when the batch is sent.
            durability: of the whole; what the single operations say is not looked at.

        Returns:
            One result for each operation, in order: what the method of the same name returns.

        Example:
            >>> hits, rows, sequence = client.batch([
            ...     notes.op.search(vector, k=3), notes.op.count(), notes.op.upsert(["n9"], [vector])
            ... ])
        """
        return self._perform(self._batch(operations, durability), timeout)

    async def abatch(
        self, operations: list[Operation[Any]], *, durability: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """`batch` for asyncio."""
        return await self._aperform(self._batch(operations, durability), timeout)

    def _batch(self, operations: Any, durability: str | None) -> Operation[list[Any]]:
        chosen = self.durability if durability is None else durability
        return _operations.batch(operations, _checks.choice(chosen, "durability", _checks.DURABILITIES))

    # -------------------------------------------------------------------------------------------- health -------------

    def health(self) -> dict[str, Any]:
        """{"status": "ready" | "loading" | "degraded" | "draining", "words": what there is to say}."""
        health: dict[str, Any] = self.stats()["health"]
        return health

    async def ahealth(self) -> dict[str, Any]:
        """`health` for asyncio."""
        from kalos_memory._async import in_thread

        return await in_thread(self.health)

    def stats(self) -> dict[str, Any]:
        """The sidecar's report: health, kalosd, lanes, requests, database, as docs/abi.md describes REPORT."""
        for attempt in range(2):
            deadline_ns = monotonic_ns() + self._control_ns
            connection = self.current() or self._connect(deadline_ns)
            try:
                return connection.control.report(deadline_ns)
            except NotListening:
                self.discard(connection)
                if attempt:
                    raise SidecarUnavailable("the sidecar ended while it was asked for its state, twice") from None
        raise AssertionError("unreachable")

    async def astats(self) -> dict[str, Any]:
        """`stats` for asyncio."""
        from kalos_memory._async import in_thread

        return await in_thread(self.stats)

    # ------------------------------------------------------------------------------------------- calling -------------

    def _perform(self, operation: Operation[T], timeout: float | None = None) -> T:
        if timeout is not None:
            timeout = _checks.timeout_seconds(timeout)
        run = call(self, operation, timeout, self._connect)
        return operation.decode(run.reply)

    def _perform_timed(self, operation: Operation[T], timeout: float | None = None) -> tuple[T, Timings]:
        if timeout is not None:
            timeout = _checks.timeout_seconds(timeout)
        begun_ns = monotonic_ns()
        run = call(self, operation, timeout, self._connect)
        timings = timings_of(run, monotonic_ns() - begun_ns)
        return operation.decode(run.reply), timings

    async def _aperform(self, operation: Operation[T], timeout: float | None = None) -> T:
        result, _ = await self._aperform_timed(operation, timeout)
        return result

    async def _aperform_timed(self, operation: Operation[T], timeout: float | None = None) -> tuple[T, Timings]:
        from kalos_memory._async import run_async

        if timeout is not None:
            timeout = _checks.timeout_seconds(timeout)
        begun_ns = monotonic_ns()
        run = await run_async(call_steps(self, operation, timeout), self._connect)
        timings = timings_of(run, monotonic_ns() - begun_ns)
        return operation.decode(run.reply), timings

    def _noop(self) -> None:
        """One empty round trip through the lane: what every call pays at least."""
        deadline_ns = monotonic_ns() + int(self.timeout_s * 1e9)
        connection = self.current() or self._connect(deadline_ns)
        try:
            exchange(connection.lane, _abi.OP_NOOP, EMPTY, deadline_ns)
        except LaneLost:
            self.discard(connection)
            raise SidecarUnavailable("the sidecar ended before it answered") from None
        except DeadlinePassed:
            raise KalosTimeout(f"an empty request was not answered within {self.timeout_s:g} s") from None

    # ---------------------------------------------------------------------------------------- connection -------------

    def current(self) -> Connection | None:
        """The connection in use, if it may be used. Raises where this client is closed. (For the call logic.)"""
        connection = self._connection
        if connection is not None and connection.usable():
            return connection
        if self._closed:
            self._say_closed()
        if connection is not None:
            self.discard(connection)
        return None

    def _say_closed(self) -> NoReturn:
        if _interpreter_ends and _dies_with_it(threading.current_thread()):
            raise SystemExit(INTERPRETER_ENDS)
        raise SidecarUnavailable("this client was closed: connect() makes a new one")

    def discard(self, connection: Connection) -> None:
        """This connection is of no use any more; the next call makes another. (For the call logic.)"""
        if self._connection is connection:
            self._connection = None
        if connection.control.draining and not connection.control.gone:
            connection.leave()
        else:
            connection.close()

    def _connect(self, deadline_ns: int, patient: bool = True) -> Connection:
        while self._lock.locked():
            if monotonic_ns() > deadline_ns:
                raise SidecarUnavailable(f"no connection to {self._target} in time: another thread is still connecting")
            time.sleep(0.001)
        with self._lock:  # not acquire() and try: an exception of a signal's handler could come in between
            connection = self.current()
            if connection is None:
                try:
                    connection = open_connection(self._target, deadline_ns, patient=patient, answer_ns=self._control_ns)
                except SidecarUnavailable:
                    if self._closed:
                        self._say_closed()
                    raise
                self._connection = connection
        if self._closed:
            self.close()
            self._say_closed()
        return connection

    def close(self) -> None:
        """Ends the connection. Calls that still wait in other threads end with SidecarUnavailable. Twice is once."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._target.private is not None:
            self._target.private.close()

    async def aclose(self) -> None:
        """`close` for asyncio."""
        from kalos_memory._async import in_thread

        await in_thread(self.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not connected" if self._connection is None else "connected"
        return f"<Client of {self._target}, {state}>"

    def __reduce__(self) -> tuple[Any, tuple[str | None, str | None, bool, float]]:
        target = self._target
        if target.private is not None:
            raise InvalidRequest(
                "a ':memory:' client cannot be pickled: its sidecar is private to the process that made it; use a data"
                " directory that both processes can reach"
            )
        return (_unpickled, (target.data_dir, target.socket, target.autostart, self.timeout_s))

    def _forget_in_child(self) -> None:
        self._lock = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.forget_in_child()
        if self._target.private is not None:
            self._target.private.forget_in_child()


def connect(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    autostart: bool = True,
    timeout: float = 1.0,
    durability: str = "commit",
    load_timeout: float = 30.0,
) -> Client:
    """Connects to the sidecar of a data directory, and starts one where none runs.

    Args:
        data_dir: where the data lies; None is $KALOS_SOCKET's sidecar if that is set, else $KALOS_DATA_DIR, else
            $XDG_DATA_HOME/kalos, else ~/.local/share/kalos. ":memory:" is a private sidecar in a temporary directory
            that ends with this client or process and leaves nothing.
        socket: connects to exactly this socket instead, and starts nothing.
        autostart: False never starts a sidecar: where none runs that is SidecarUnavailable. One that was started here
            ends after 15 minutes without a client ($KALOS_IDLE_S).
        timeout: seconds for each read, for searches too. Writes wait longer, see Collection.upsert. A sidecar that
            takes the connection, or is asked for its state, and is silent for 4 s more than this counts as stuck.
        durability: "commit": a write is on disk (flushed) before it is acknowledged. "relaxed": it is with the kernel;
            a killed process loses nothing, a power cut may lose the last commits.
        load_timeout: seconds that a call waits for a collection that is still being loaded, on top of its timeout.

    Raises:
        SidecarUnavailable: no sidecar, in words that say why and what to do. InvalidRequest.

    Example:
        >>> import kalos_memory as kalos
        >>> with kalos.connect(":memory:") as client:
        ...     notes = client.collection("notes", dimension=3)
        ...     notes.upsert(["a", "b"], [[1, 0, 0], [0, 1, 0]], texts=["first", "second"])
        ...     print(notes.search([0.9, 0.1, 0], k=1)[0].text)
        first
    """
    timeout_s = _checks.timeout_seconds(timeout)
    load_timeout_s = _checks.number(load_timeout, "load_timeout")
    _checks.choice(durability, "durability", _checks.DURABILITIES)
    target = _target(data_dir, socket, autostart)
    client = Client(target, timeout_s=timeout_s, durability=durability, load_timeout_s=load_timeout_s)
    try:
        client._connect(monotonic_ns() + int(_START_TIMEOUT_S * 1e9), patient=False)
    except BaseException:
        client.close()
        raise
    return client


async def aconnect(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    autostart: bool = True,
    timeout: float = 1.0,
    durability: str = "commit",
    load_timeout: float = 30.0,
) -> Client:
    """`connect` for asyncio: the loop goes on while the sidecar starts."""
    from kalos_memory._async import in_thread

    return await in_thread(
        lambda: connect(
            data_dir,
            socket=socket,
            autostart=autostart,
            timeout=timeout,
            durability=durability,
            load_timeout=load_timeout,
        )
    )


def _target(data_dir: Any, socket: Any, autostart: bool) -> Target:
    if socket is not None:
        if data_dir is not None:
            raise InvalidRequest("both data_dir and socket are given: they may name different sidecars, give one")
        return Target(socket=_sidecar.resolve_socket(socket), autostart=False)
    if data_dir == _sidecar.MEMORY:
        private = _sidecar.PrivateSidecar()
        return Target(data_dir=private.data_dir, autostart=False, private=private)
    if data_dir is None and (from_environment := os.environ.get("KALOS_SOCKET")):
        return Target(socket=_sidecar.resolve_socket(from_environment), autostart=False)
    return Target(data_dir=_sidecar.resolve_data_dir(data_dir), autostart=bool(autostart))


def _unpickled(data_dir: str | None, socket: str | None, autostart: bool, timeout: float) -> Client:
    """A client that connects when it is first used."""
    return Client(Target(data_dir=data_dir, socket=socket, autostart=autostart), timeout_s=timeout)


def _decode_collections(data: bytes) -> list[dict[str, Any]]:
    listed = _codec.decode_json(data)["collections"]
    for described in listed:
        described["created_at"] = _codec.datetime_of(described.pop("created_us"))
    return sorted(listed, key=lambda described: str(described["name"]))


_LIST: Operation[list[dict[str, Any]]] = Operation(
    _abi.OP_LIST_COLLECTIONS, _codec.json_message({}), _decode_collections, what="the list of collections"
)


def _drop(name: Any, confirm: Any) -> Operation[dict[str, Any]]:
    if confirm != name:
        raise InvalidRequest(
            f"drop_collection({_checks.shown(name)}, confirm={_checks.shown(confirm)}): confirm must be the name once"
            " more, since all rows go"
        )
    return Operation(
        _abi.OP_DROP_COLLECTION,
        _codec.json_message({"name": _checks.collection_name(name)}),
        _codec.decode_json,
        what=f"dropping the collection {name!r}",
        repeatable=True,
    )


def _forget_all_in_child() -> None:
    _wait.after_fork_in_child()
    _sidecar.after_fork_in_child()
    for client in list(_clients):
        client._forget_in_child()


_interpreter_ends = False  # its main thread has come to the end; daemon threads run on for a moment


def _dies_with_it(thread: threading.Thread) -> bool:
    """A daemon thread of Python's own. (One that C made may take a SystemExit for the end of the process.)"""
    return thread.daemon and not isinstance(thread, threading._DummyThread)


def _close_all() -> None:
    global _interpreter_ends
    _interpreter_ends = True
    for client in list(_clients):
        with contextlib.suppress(KalosError):
            client.close()


os.register_at_fork(after_in_child=_forget_all_in_child)
atexit.register(_close_all)

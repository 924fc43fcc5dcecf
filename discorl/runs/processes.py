"""Several processes that work on one run: connecting, exchanging values, failing.

JAX connects them (`jax.distributed`). Every exchange is a collective: all processes must make the
same calls in the same order, or all of them wait. A process that fails therefore exits at once and
takes the others with it; the scheduler restarts them all, and the run is resumed.
"""

import contextlib
import dataclasses
import hashlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discorl.runs import files, memory, progress
from discorl.types import PassingError, PyTree, UserError, validation

HEARTBEAT_SECONDS = 20  # a process that is silent for longer counts as dead
START_SECONDS = 600  # timeout of the connection at the start
_AGREED = "raised in all processes"
_working_together = False  # whether this process is within `joined`

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, and the number of this one.

    If no field is set, JAX asks the scheduler: Slurm, Open MPI, Kubernetes or a TPU pod.
    """

    coordinator: str | None = None  # HOST:PORT that process 0 listens on
    processes: int | None = None
    process: int | None = None  # number of this process

    def __post_init__(self) -> None:
        given = (self.coordinator, self.processes, self.process)
        if all(value is None for value in given):
            return
        if any(value is None for value in given):
            raise UserError(
                f"coordinator is {self.coordinator!r}, processes {self.processes} and process "
                f"{self.process}: expected all three, or none if a scheduler sets them"
            )
        assert self.coordinator is not None and self.processes is not None
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(f"coordinator is {self.coordinator!r}; expected HOST:PORT")
        validation.integer("processes", self.processes, least=1)
        validation.integer("process", self.process, least=0, most=self.processes - 1)


def index() -> int:
    """The number of this process among those that work together; 0 outside of `joined`."""
    return jax.process_index() if _working_together else 0


def count() -> int:
    """Number of processes that work together; 1 outside of `joined`."""
    return jax.process_count() if _working_together else 1


def devices() -> list[jax.Device]:
    """The devices of all processes that work together."""
    return jax.devices() if _working_together else jax.local_devices()


def owns(device: jax.Device) -> bool:
    """Whether a device belongs to this process."""
    return device.process_index == jax.process_index()


def prints_results() -> bool:
    """Whether this process reports the results of all processes after a run."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def joined(cluster: Cluster | bool) -> Iterator[None]:
    """Works together with the other processes; any failure ends this process.

    Only process 0 prints; the others print only their own failures. `True` stands for a cluster
    that a scheduler describes, `False` for a single process.
    """
    if cluster is False:
        yield
        return
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123
        # Libraries write to the standard output, too, such as Gloo's connection reports.
        stack.enter_context(files.standard_output_to(nothing.fileno()))
        stack.enter_context(_connected(Cluster() if cluster is True else cluster))
        if index() > 0:
            stack.enter_context(contextlib.redirect_stdout(nothing))
            stack.enter_context(contextlib.redirect_stderr(nothing))
        try:
            yield
        except BaseException as error:
            # An ordinary exit would deadlock: it waits for the others, which wait for this process.
            permanent = isinstance(error, UserError) and not isinstance(error, PassingError)
            with progress.nothing_drawn():  # clears the line, which nothing does after `_exit`
                _report(error)
                os._exit(2 if permanent else 1)


@contextlib.contextmanager
def _connected(cluster: Cluster) -> Iterator[None]:
    global _working_together
    if not jax.distributed.is_initialized():
        try:
            jax.distributed.initialize(
                coordinator_address=cluster.coordinator,
                num_processes=cluster.processes,
                process_id=cluster.process,
                # The default listens on all addresses of the machine.
                coordinator_bind_address=None if cluster.process else cluster.coordinator,
                initialization_timeout=START_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except ValueError as error:
            raise UserError(
                f"no scheduler says how many processes there are ({error}): give coordinator, "
                "processes and process"
            ) from error
        except RuntimeError as error:
            raise PassingError(
                f"the processes cannot connect: {error} (JAX must not have been used before)"
            ) from error
    _working_together = True
    try:
        exchange(None)  # now, because the first collective waits only 30 seconds
        yield
    finally:
        _working_together = False


def _report(error: BaseException) -> None:
    if _is_agreed(error) and index() > 0:
        return  # process 0 reports it
    where = "" if _is_agreed(error) else f"process {index()}: "
    if isinstance(error, UserError):
        text = str(error)
    elif isinstance(error, jax.errors.JaxRuntimeError) or (
        isinstance(error, ValueError) and ": Gloo " in str(error)  # which raises those, too
    ):
        reason = memory.runtime_reason(error)
        gone = "" if reason.startswith("out of memory") else "another process is gone: "
        text = gone + reason
    else:
        text = "".join(traceback.format_exception(error))
    print(f"discorl: {where}{text}", file=sys.__stderr__, flush=True)


def _is_agreed(error: BaseException | None) -> bool:
    """Whether all processes raise this error or its cause."""
    if error is None:
        return False
    return _AGREED in getattr(error, "__notes__", ()) or _is_agreed(error.__cause__)


def exchange(value: Any) -> list[Any]:
    """The values of all processes, in order."""
    if count() == 1:
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    # Padded to few lengths, because each one is compiled.
    padded = np.zeros(max(1024, 1 << int(sizes.max() - 1).bit_length()), np.uint8)
    padded[: data.size] = data
    gathered = multihost_utils.process_allgather(padded)
    return [
        pickle.loads(row[:size].tobytes())  # trusted: from our own processes
        for row, size in zip(gathered, sizes, strict=True)
    ]


def connect(mesh: Mesh) -> None:
    """Connects the devices of a mesh that spans processes; called by all of them together.

    On CPUs, the first collective over a list of devices connects them, and fails if a process is 30
    seconds late. Later collectives wait without limit.
    """
    if count() == 1:
        return
    exchange(None)
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (mesh.axis_names, ()))
    zeros = np.zeros(mesh.devices.shape, np.int32)
    placed = jax.make_array_from_callback(zeros.shape, split, lambda index: zeros[index])
    jax.block_until_ready(jax.jit(lambda x: x, out_shardings=whole)(placed))


def require_same(settings: Mapping[str, Any], params: PyTree) -> None:
    """Rejects processes with different settings or parameters."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(params)):
        digest.update(np.asarray(leaf).tobytes())
    own = dict(_flat(settings)) | {"the checksum of parameters": digest.hexdigest()[:16]}
    for number, other in enumerate(exchange(own)):
        differing = [name for name, value in own.items() if value != other.get(name)]
        if differing:
            found = ", ".join(f"{x} is {own[x]} here and {other.get(x)} there" for x in differing)
            raise UserError(f"process {number} has different settings: {found}")


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def gather(tree: PyTree) -> PyTree:
    """The tree with complete arrays in this process, on the host if they were sharded."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = whole(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, tree)


def together(function: Callable[[], Answer]) -> list[Answer]:
    """Calls a function in every process and returns all answers; all raise any `UserError`."""
    if count() == 1:
        return [function()]
    failure: UserError | None = None
    answer: Any = None
    try:
        answer = function()
    except UserError as error:
        failure = error
    found = exchange((answer, failure))
    for number, (_, theirs) in enumerate(found):
        if theirs is not None:
            shared = type(theirs)(f"process {number}: {theirs}" if number else str(theirs))
            shared.add_note(_AGREED)
            raise shared
    return [answer for answer, _ in found]

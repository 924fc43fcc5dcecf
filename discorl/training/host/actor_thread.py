"""Acting in a thread, so that environments step while the device learns."""

import queue
import threading

import jax

from discorl.envs.host.base import EnvironmentFailure
from discorl.training.host.acting import HostActor, Rollout
from discorl.types import Array, Key, Params

_POLL_SECONDS = 0.5


class ActorThread:
    """Runs an actor in its own thread."""

    def __init__(self, actor: HostActor, params: Params) -> None:
        """Starts the environments of an actor; see `wait_for_start`."""
        self.actor = actor
        self._failure: BaseException | None = None
        self._requests: queue.SimpleQueue[tuple[Params, Array] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Rollout | BaseException | None] = queue.SimpleQueue()
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        # A daemon, so that a hanging environment cannot keep the process alive.
        self._thread = threading.Thread(target=self._serve, args=(like,), daemon=True)
        self._thread.start()

    def ask(self, params: Params, key: Key) -> None:
        self._requests.put((params, key))

    def wait_for_start(self) -> None:
        """Waits until the environments have started; see `wait`."""
        self._next()

    def wait(self) -> Rollout:
        """Waits for the rollout that was requested.

        Raises:
            EnvironmentFailure: an environment failed or hangs; every later call raises it, too.
        """
        rollout = self._next()
        assert rollout is not None
        return rollout

    def _next(self) -> Rollout | None:
        while self._failure is None:
            try:
                result = self._results.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                self._failure = self.actor.hung()
                continue
            if not isinstance(result, BaseException):
                return result
            self._failure = result
        raise self._failure

    def close(self) -> None:
        """Ends the thread, unless an environment blocks it."""
        self._requests.put(None)
        if not isinstance(self._failure, EnvironmentFailure):
            self._thread.join(timeout=self.actor.timeout)

    def _serve(self, like: Params) -> None:
        try:
            self.actor.start(like)
            self._results.put(None)
            while (request := self._requests.get()) is not None:
                self._results.put(self.actor.rollout(*request))
        except BaseException as error:  # raised again in the main thread
            self._results.put(error)
        finally:
            self.actor.close()

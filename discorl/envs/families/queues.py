"""One server for several queues with different costs of waiting."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_LEAST_ROOM = 2  # jobs


class QueuesParameters(NamedTuple):
    """One workshop."""

    rooms: Array  # [queues] int32, the most jobs that each queue holds
    arrivals: Array  # [queues] float32, probability that a job arrives in a step
    services: Array  # [queues] float32, probability that a step of service finishes a job
    costs: Array  # [queues] float32, of a job that waits for a step
    meanings: Array  # [queues] int32, the queue that each action chooses


class QueuesState(NamedTuple):
    """The server's place and the waiting jobs."""

    server: Array  # [] int32, the queue where the server is
    jobs: Array  # [queues] int32
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class Queues(Family[QueuesParameters, QueuesState]):
    """Choose the queue to serve, step by step, so that waiting costs little.

    Held out from discovery and from the choice of settings, for tests on an unseen kind of task.

    Each action chooses a queue, in a member-specific order. If the server is already there,
    it finishes one of the queue's jobs with the queue's `service` probability. If not, it moves
    there, which takes the step. Then a job arrives at each queue with the queue's `arrival`
    probability, and is turned away at no cost if there is no room. The reward is minus the costs of
    all jobs that wait at the end of the step. An episode begins with any numbers of jobs and the
    server at any queue, all equally likely, and is truncated after `limit` steps.

    The observation is [2 * queues] float32: the jobs of each queue as shares of `length`, and the
    server's queue, one-hot.

    The savings of a choice are small compared with the noise of starts and arrivals, and appear
    only while the finished jobs would have waited. Moving costs a step of service, so the best
    choice depends on where the server is.

    Members differ in the room of each queue, from 2 to `length` jobs; in its arrivals, service and
    cost of waiting, from `arrival`, `service` and `cost`; and in the meanings of the actions.

    Splits: the rooms of all queues sum to an even number in train members and to an odd one in
    held-out members, so the room of some queue differs.
    """

    queues: int = bounded(3, least=2, most=5)
    length: int = bounded(4, least=_LEAST_ROOM + 1)
    limit: int = bounded(40, least=1)
    arrival: Range[float] = bounded(Range(0.05, 0.25), least=0, most=1)
    service: Range[float] = bounded(Range(0.6, 1.0), least=0.05, most=1)
    cost: Range[float] = bounded(Range(0.005, 0.05), least=0.001, most=100)

    @property
    def sizes(self) -> Sizes:
        situations = (self.queues, *(self.length + 1,) * self.queues)
        return Sizes(self.queues, (2 * self.queues,), self.limit, situations)

    def draw(self, key: Key, parity: Array) -> QueuesParameters:
        room_key, arrival_key, service_key, cost_key, meaning_key = jax.random.split(key, 5)
        each, rooms = (self.queues,), self.length - _LEAST_ROOM + 1
        extra = draws.index(room_key, rooms, each)
        extra = draws.with_parity_of_sum(extra, rooms, parity + _LEAST_ROOM * self.queues)
        return QueuesParameters(
            rooms=_LEAST_ROOM + extra,
            arrivals=draws.number(arrival_key, self.arrival, each),
            services=draws.number(service_key, self.service, each),
            costs=draws.number(cost_key, self.cost, each),
            meanings=draws.order(meaning_key, self.queues),
        )

    def begin(self, parameters: QueuesParameters, key: Key) -> QueuesState:
        server_key, job_key = jax.random.split(key)
        return QueuesState(
            server=draws.index(server_key, self.queues),
            jobs=draws.index(job_key, parameters.rooms + 1, (self.queues,)),
            time=jnp.int32(0),
        )

    def transition(
        self, parameters: QueuesParameters, state: QueuesState, action: Array, key: Key
    ) -> tuple[QueuesState, Array, Array]:
        service_key, arrival_key = jax.random.split(key)
        queue = parameters.meanings[action]
        finished = jax.random.uniform(service_key) < parameters.services[queue]
        finished &= state.server == queue
        arrived = jax.random.uniform(arrival_key, (self.queues,)) < parameters.arrivals
        jobs = state.jobs.at[queue].add(-finished.astype(jnp.int32))
        jobs = jnp.minimum(jnp.maximum(jobs, 0) + arrived, parameters.rooms)
        state = QueuesState(queue, jobs, state.time + 1)
        return state, -jnp.sum(parameters.costs * jobs), jnp.zeros((), bool)

    def observe(self, parameters: QueuesParameters, state: QueuesState) -> Array:
        server = jax.nn.one_hot(state.server, self.queues)
        return jnp.concatenate([state.jobs / self.length, server]).astype(jnp.float32)

    def _jobs(self) -> Array:
        """Jobs of each queue in the table: [queues, *(length + 1 for each queue)]."""
        return jnp.indices((self.length + 1,) * self.queues)

    def _by_queue(self, numbers: Array) -> Array:
        """[queues] numbers, to broadcast with `_jobs`."""
        return numbers.reshape(-1, *[1] * self.queues)

    def starts(self, parameters: QueuesParameters) -> Array:
        """Uniform over numbers of jobs within the rooms: [queues, *(length + 1 for each queue)]."""
        fits = jnp.all(self._jobs() <= self._by_queue(parameters.rooms), axis=0)
        return jnp.broadcast_to(fits / (fits.sum() * self.queues), self.sizes.situations)

    def lookahead(self, parameters: QueuesParameters, time: Array, values: Array) -> Array:
        jobs = jnp.arange(self.length + 1)
        # Backward from the end of the step: costs of waiting, arrivals, service.
        ahead = values - jnp.sum(self._by_queue(parameters.costs) * self._jobs(), axis=0)
        for queue in range(self.queues):
            chance, room = parameters.arrivals[queue], parameters.rooms[queue]
            arrived = jnp.take(ahead, jnp.minimum(jobs + 1, room), axis=1 + queue)
            ahead = chance * arrived + (1 - chance) * ahead
        finished = jnp.stack(
            [jnp.take(ahead[i], jnp.maximum(jobs - 1, 0), axis=i) for i in range(self.queues)]
        )
        service = self._by_queue(parameters.services)
        served = service * finished + (1 - service) * ahead
        here = jnp.eye(self.queues, dtype=bool).reshape(*[self.queues] * 2, *[1] * self.queues)
        choices = jnp.where(here, served, ahead)  # [server, queue, *jobs]
        return jnp.moveaxis(choices, 1, -1)[..., parameters.meanings]

    def situation(self, state: QueuesState) -> tuple[Array, ...]:
        return state.server, *(state.jobs[queue] for queue in range(self.queues))

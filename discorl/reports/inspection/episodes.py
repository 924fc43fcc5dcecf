"""An episode of a trained agent with all that the agent says along it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent.frames import stacks_of
from discorl.reports.inspection import readings
from discorl.reports.inspection.subject import Reading, Subject, read
from discorl.rules import returns
from discorl.training.compiled import play
from discorl.types import PyTree, Trajectory

MOST_STEPS = 120  # more cannot be told apart in a picture
_KEY = 0x1D5


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of `T` steps, or its beginning."""

    frames: list[np.ndarray]  # T+1 pictures; none if the environment cannot be rendered
    observation: PyTree  # as the network sees them, [T+1, ...]
    reward: np.ndarray  # [T]
    reading: Reading  # with a batch of one
    reward_scale: float  # what rewards are multiplied by for learning, and values with them

    @property
    def length(self) -> int:
        """Steps taken."""
        return len(self.reward)

    def values(self) -> np.ndarray | None:
        """State values along it, in units of its rewards: [T+1]."""
        found = readings.state_values(self.reading.online, self.reading.logits)
        return None if found is None else np.asarray(found[:, 0]) / self.reward_scale

    def action_values(self) -> np.ndarray | None:
        """Values of the actions taken, likewise: [T]."""
        q = readings.action_values(self.reading.online, self.reading.logits.shape[-1])
        if q is None:
            return None
        taken = returns.take_action(q[:-1], self.reading.trajectory.action)
        return np.asarray(taken[:, 0]) / self.reward_scale


def record(subject: Subject) -> Episode:
    """Plays an episode of the best agent, with sampled actions."""
    moment = subject.best.latest
    agent = subject.agent
    key = jax.random.fold_in(jax.random.key(subject.best.seed), _KEY)
    played = list(play.episode(agent, moment.state.params, key, False, MOST_STEPS))
    environment = agent.stacked_environment
    frames = [environment.render(each.environment) for each in played]
    pictures = [] if any(f is None for f in frames[:-1]) else [f for f in frames if f is not None]
    moments = [(each.environment, each.observation) for each in played]
    states, seen = jax.tree.map(lambda *x: jnp.stack(x), *moments)
    action_mask = jax.vmap(environment.action_mask)(states)
    if agent.config.frame_stack > 1:
        seen = stacks_of(seen, agent.config.frame_stack)
    steps = played[:-1]
    action = jnp.array([each.action for each in steps], jnp.int32)[:, None]
    reward = jnp.array([each.reward for each in steps])[:, None]
    zeros = jnp.zeros(action.shape, bool)
    trajectory = Trajectory(
        observation=jax.tree.map(lambda x: x[:, None], seen),
        action=action,
        reward=reward,
        terminated=zeros,
        behaviour_logits=jnp.zeros((*action.shape, subject.learner.num_actions)),
        truncated=zeros,
        recurrent_state=jax.tree.map(lambda x: x[None], played[0].recurrent_state),
        action_mask=None if action_mask is None else action_mask[:, None],
    )
    reading = jax.jit(read, static_argnums=0)(
        subject.learner, moment.state, subject.eta, trajectory
    )
    scale = agent.config.reward_scale or 1.0
    return Episode(pictures, seen, np.asarray(reward[:, 0]), reading, scale)


def evenly(length: int, count: int) -> np.ndarray:
    """At most `count` of `length` moments, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))

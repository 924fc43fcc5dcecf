"""Atari 2600 games from pixels, by the vector environment of the Arcade Learning Environment.

Bellemare et al. 2013, arXiv:1207.4708. An action is repeated for four frames, and the observation
is the maximum of the last two. Rewards are not clipped, and an episode is a whole game.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from discorl.envs import references
from discorl.envs.base import Reference
from discorl.envs.host.base import HostEnvironment, picture
from discorl.envs.host.gymnasium import GymnasiumVector, VectorTask
from discorl.types.validation import integer, number

MAX_FRAMES = 108_000  # 30 minutes of play


def names() -> Sequence[str]:
    """The games whose ROMs come with the package, as in `MsPacman`."""
    return sorted(_roms())


def _roms() -> dict[str, str]:
    identifiers = roms.get_all_rom_ids()
    return {"".join(part.capitalize() for part in rom.split("_")): rom for rom in identifiers}


def make(
    item: str,
    *,
    sticky: float = 0.0,
    noops: int = 30,
    grey: bool = True,
    size: int = 84,
    full_actions: bool = False,
    clip_rewards: bool = False,
    max_frames: int = MAX_FRAMES,
) -> HostEnvironment:
    """Builds an Atari game.

    Args:
        item: the game, such as `Pong`.
        sticky: probability of repeating the previous action (0.25 in Machado et al. 2018).
        noops: most no-op steps at the start of an episode.
        grey: greyscale frames, [size, size, 1], instead of RGB, [size, size, 3].
        size: frame height and width in pixels.
        full_actions: use all 18 actions instead of the game's minimal set.
        clip_rewards: clip rewards to their sign.
        max_frames: frames after which an episode is truncated; by default 30 minutes of play.
    """
    number("sticky", sticky, least=0, below=1, owner="atari")
    integer("noops", noops, least=0, owner="atari")
    integer("size", size, least=16, owner="atari")
    integer("max_frames", max_frames, least=4, owner="atari")

    def create(count: int, render: bool) -> AtariVectorEnv:
        return AtariVectorEnv(
            _roms()[item],
            count,
            max_num_frames_per_episode=max_frames,
            repeat_action_probability=sticky,
            full_action_space=full_actions,
            # A termination costs no step in this mode, and truncations are rare.
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=size,
            img_width=size,
            grayscale=grey,
            stack_num=1,
            noop_max=noops,
            reward_clipping=clip_rewards,
            use_fire_reset=False,
        )

    shape = (size, size, 1 if grey else 3)
    axes = 3 if grey else 4  # of one observation, including its stack of one frame

    def read(found: np.ndarray) -> np.ndarray:
        return found.reshape(*found.shape[: found.ndim - axes], *shape)

    vector = create(1, False)
    count = int(vector.single_action_space.n)
    vector.close()
    spec = jax.ShapeDtypeStruct(shape, np.uint8)
    actions = np.arange(count, dtype=np.int32)
    scored = not clip_rewards and max_frames == MAX_FRAMES
    return _Atari(f"atari:{item}", create, spec, read, actions, game=item, scored=scored)


class _AtariVector(GymnasiumVector):
    def render(self) -> np.ndarray | None:
        return picture(self._seen[0])


@dataclasses.dataclass(frozen=True, eq=False)
class _Atari(VectorTask):
    game: str = ""
    scored: bool = True  # whole games with the game's own rewards, as humans were scored

    vector_class = _AtariVector

    def reference(self) -> Reference | None:
        return references.lookup("atari", self.game) if self.scored else None

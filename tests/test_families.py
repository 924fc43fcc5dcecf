"""Families of environments: what each owes its users, members as environments, and texts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import ALL, KEY, every_family, pick, same, sampled

from discorl import envs
from discorl.agent import acting
from discorl.envs import families
from discorl.envs.families.base import Member
from discorl.envs.families.chain import Chain
from discorl.envs.families.grid import Grid
from discorl.envs.families.memory import Memory
from discorl.types import UserError
from discorl.types.specs import Range

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- the contract ---------------------------------------------------------------------------------


def test_every_registered_family_is_tested() -> None:
    assert {name: type(family) for name, family in ALL.items()} == families.REGISTRY


@every_family
def test_shapes_and_types_are_as_declared(name: str) -> None:
    environment = ALL[name].member()
    state, observation = jax.eval_shape(environment.reset, KEY)
    state_after, step = jax.eval_shape(environment.step, state, jnp.int32(0), KEY)
    describe = functools.partial(jax.tree.map, lambda x: (x.shape, x.dtype))
    for each in (observation, step.observation):
        assert describe(each) == describe(environment.observation)
    assert describe(state) == describe(state_after)
    assert (step.reward.shape, step.reward.dtype) == ((), jnp.float32)
    for flag in (step.terminated, step.truncated):
        assert (flag.shape, flag.dtype) == ((), jnp.bool)


# --- members as environments ----------------------------------------------------------------------


def test_a_population_acts_in_different_members() -> None:
    family = ALL["cliff"]
    members = pick(sampled(family, "train"), slice(4))

    @jax.jit
    @jax.vmap
    def act(parameters, key):
        environment = family.environment(parameters)
        init_key, key = jax.random.split(key)
        state = acting.init(environment, init_key, 8)
        policy = lambda _, core, mask: (jnp.zeros((8, environment.num_actions)), core)  # noqa: E731
        return acting.rollout(environment, policy, state, key, 40)

    _, trajectory, statistics = act(members, jax.random.split(KEY, 4))
    assert trajectory.observation.shape == (4, 41, 8, 4, 6, 2)
    lava = np.asarray(trajectory.observation[..., 1])
    np.testing.assert_array_equal(lava, np.broadcast_to(lava[:, :1, :1], lava.shape))
    np.testing.assert_array_equal(lava[:, 0, 0].sum(axis=1), members.heights)
    assert (statistics.count >= 8).all()


def test_a_member_is_a_pytree_and_a_static_argument() -> None:
    member = ALL["chain"].member(2)
    leaves, structure = jax.tree.flatten(member)
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, Member)
    assert again.family == member.family
    assert same(again.parameters, member.parameters)
    reset = jax.jit(lambda environment, key: environment.reset(key)[1], static_argnums=0)
    np.testing.assert_array_equal(reset(member, KEY), member.reset(KEY)[1])


@pytest.mark.parametrize("name", ["cliff", "deep_sea", "grid", "windy_catch"])
def test_boards_are_drawn(name: str) -> None:
    environment = ALL[name].member()
    state, _ = environment.reset(KEY)
    picture = environment.render(state)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert min(picture.shape[:2]) >= 160
    colours = {tuple(colour) for colour in picture.reshape(-1, 3)}
    assert len(colours) >= 4  # background, lines, the piece that moves and something else
    assert ALL["bandit"].member().render(None) is None


# --- texts ----------------------------------------------------------------------------------------


@every_family
def test_texts_name_members(name: str) -> None:
    sizes = [f"{key}={value}".lower() for key, value in vars(ALL[name]).items()]
    member = envs.make(f"{name}:{','.join(sizes)},seed=12,split=held_out")
    assert isinstance(member, Member)
    assert member.family == ALL[name]
    assert same(member.parameters, ALL[name].sample(jax.random.key(12), "held_out"))
    assert not same(member.parameters, ALL[name].sample(jax.random.key(12), "train"))
    assert families.make(name) == families.REGISTRY[name]()
    assert families.make(ALL[name]) is ALL[name]


def test_texts_have_defaults() -> None:
    assert same(envs.make("memory").parameters, Memory().member(0, "train").parameters)
    flat = families.make("grid:size=7,objects=4,flat=true")
    assert flat == Grid(size=7, objects=4, flat=True)
    assert flat.observation.shape == (7 * 7 * 4,)
    ranged = families.make("grid:respawn=0..0.5,reward=2")
    assert ranged == Grid(respawn=Range(0.0, 0.5), reward=Range(2.0, 2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid:split=test", "split=test is not of the type train | held_out"),
        ("grid:sizes=4", "did you mean 'size'?"),
        ("grid:size=2", "grid: size is 2; expected at least 3"),
        ("grid:size=3,objects=3", "grid: objects is 3; expected from 1 to 2"),
        ("chain:length=1", "chain: length is 1; expected at least 2"),
        ("deep_sea:size=1", "deep_sea: size is 1; expected at least 2"),
        ("deep_sea:slip=0.5..1", "deep_sea: slip is 0.5..1.0; expected from 0 to 0.9"),
        ("four_rooms:size=4", "four_rooms: size is 4; expected at least 5"),
        ("gambler:target=3", "gambler: target is 3; expected at least 4"),
        ("gambler:poor=0..2", "gambler: poor is 0.0..2.0; expected from 0 to 1"),
        ("hill:width=5", "hill: width is 5; expected at least 6"),
        ("hill:power=0", "hill: power is 0.0..0.0; expected from 0.05 to 1"),
        ("inventory:orders=1", "inventory: orders is 1; expected at least 2"),
        ("inventory:price=0", "inventory: price is 0.0..0.0; expected from 0.001 to 100"),
        ("key_door:columns=2", "key_door: columns is 2; expected at least 3"),
        ("key_door:hint=2", "key_door: hint is 2.0..2.0; expected from 0 to 1"),
        ("offers:levels=1", "offers: levels is 1; expected at least 2"),
        ("offers:others=-2..0", "offers: others is -2.0..0.0; expected from -1 to 1"),
        ("queues:length=2", "queues: length is 2; expected at least 3"),
        ("queues:service=0", "queues: service is 0.0..0.0; expected from 0.05 to 1"),
        ("river_swim:length=2", "river_swim: length is 2; expected at least 3"),
        ("river_swim:current=1", "river_swim: current is 1.0..1.0; expected from 0 to 0.9"),
        ("memory:cues=1", "memory: cues is 1; expected at least 2"),
        ("bandit:seed=x", "accepts contexts: int = 4, arms: int = 3"),
        ("tabuler", "did you mean 'tabular'?"),
        ("grid:size=4..6", "a range of sizes, which only `discorl discover --envs` accepts"),
        ("grid:seed=0..3", "seed=0..3 is a range; expected a single int"),
        ("grid:permuted=0..1", "permuted=0..1 is a range; expected a single bool"),
        ("grid:respawn=0..1.5", "grid: respawn is 0.0..1.5; expected from 0 to 1"),
        ("grid:terminal=nan", "grid: terminal is nan; expected from 0 to 1"),
        ("chain:goal=0..1", "chain: goal is 0.0..1.0; expected from 0.01 to 100"),
        ("memory:delay=0..3", "memory: delay is 0..3; expected from 1 to 10000"),
        ("bandit:others=0..0.6", "others must end below where best begins, got others=0.0..0.6"),
        ("windy_catch:width=2..9", "windy_catch: width is 2..9; expected from 1 to 8"),
        ("windy_catch:wind=0.25..0.35", "a multiple of 0.2, and 0.25..0.35 holds none"),
        ("windy_catch:wind=0,slip=0.05..0.1,width=2", "cannot separate train from held-out"),
        ("catch:rows=3..5", "rows=3..5 is a range; expected a single int"),
    ],
)
def test_texts_are_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        envs.make(text)
    assert message in str(error.value)


def test_families_are_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="no family 'gird'; did you mean 'grid'"):
        families.make("gird")
    with pytest.raises(UserError, match="split is 'test'; expected one of train, held_out"):
        Chain().sample(KEY, "test")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl import envs
from discorl.envs.catch import Catch, CatchState
from discorl.types import UserError

LEFT, STAY, RIGHT = 0, 1, 2
KEY = jax.random.key(0)


def play(environment: Catch, ball_column: int, actions: list[int]) -> tuple[list, list]:
    """Steps through one episode; returns the states and what each step gave."""
    paddle = jnp.int32(environment.columns // 2)
    states = [CatchState(jnp.int32(0), jnp.int32(ball_column), paddle)]
    steps = []
    step = jax.jit(environment.step)
    for action in actions:
        state, result = step(states[-1], jnp.int32(action), KEY)
        states.append(state)
        steps.append(result)
    return states, steps


def picture(environment: Catch, *ones: tuple[int, int]) -> np.ndarray:
    expected = np.zeros((environment.rows, environment.columns), np.float32)
    for place in ones:
        expected[place] = 1
    return expected


def test_an_episode_by_hand() -> None:
    environment = Catch(rows=4, columns=5)
    states, steps = play(environment, 3, [LEFT, RIGHT, RIGHT])
    paddles = [int(state.paddle) for state in states]
    assert paddles == [2, 1, 2, 3]
    assert [float(step.reward) for step in steps] == [0, 0, 1]
    assert [bool(step.terminated) for step in steps] == [False, False, True]
    assert not any(bool(step.truncated) for step in steps)
    np.testing.assert_array_equal(steps[0].observation, picture(environment, (1, 3), (3, 1)))
    np.testing.assert_array_equal(steps[1].observation, picture(environment, (2, 3), (3, 2)))
    np.testing.assert_array_equal(steps[2].observation, picture(environment, (3, 3)))


def test_the_paddle_moves_before_the_comparison() -> None:
    _, steps = play(Catch(rows=2, columns=3), 2, [RIGHT])
    assert float(steps[0].reward) == 1
    _, steps = play(Catch(rows=2, columns=3), 1, [RIGHT])
    assert float(steps[0].reward) == -1


@pytest.mark.parametrize(("action", "wall"), [(LEFT, 0), (RIGHT, 4)])
def test_walls_stop_the_paddle(action: int, wall: int) -> None:
    states, steps = play(Catch(rows=6, columns=5), 2, [action] * 5)
    assert [int(state.paddle) for state in states[-3:]] == [wall] * 3
    assert float(steps[-1].reward) == -1


def test_reset_spreads_the_ball_evenly() -> None:
    environment = Catch(rows=3, columns=4)
    states, observations = jax.jit(jax.vmap(environment.reset))(jax.random.split(KEY, 4000))
    counts = np.bincount(states.ball_column, minlength=4)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001
    assert (states.ball_row == 0).all()
    assert (states.paddle == 2).all()
    np.testing.assert_array_equal(observations[:, 0].argmax(-1), states.ball_column)
    assert (observations.sum((1, 2)) == 2).all()


def test_observations_match_the_specification() -> None:
    environment = Catch(rows=7, columns=3)
    state, observation = jax.eval_shape(environment.reset, KEY)
    _, step = jax.eval_shape(environment.step, state, jnp.int32(1), KEY)
    for each in (observation, step.observation):
        assert (each.shape, each.dtype) == ((7, 3), jnp.float32)
    assert (environment.observation.shape, environment.observation.dtype) == ((7, 3), jnp.float32)
    assert environment.num_actions == 3


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (3, 9), (40, 2)])
def test_render_shows_ball_and_paddle_apart(rows: int, columns: int) -> None:
    environment = Catch(rows, columns)
    apart = CatchState(jnp.int32(0), jnp.int32(0), jnp.int32(columns - 1))
    image = environment.render(apart)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert min(image.shape[:2]) >= 160
    cell = image.shape[0] // rows
    ball = image[cell // 2, cell // 2]
    paddle = image[-cell // 4, -cell // 2]
    background = image[cell // 2, -cell // 2]
    assert len({tuple(colour) for colour in (ball, paddle, background)}) == 3
    together = environment.render(CatchState(jnp.int32(rows - 1), jnp.int32(0), jnp.int32(0)))
    corner = together[-cell:, :cell]
    assert (corner == ball).all(-1).any()
    assert (corner == paddle).all(-1).any()


def test_make_builds_by_name() -> None:
    assert envs.make("catch") == Catch(8, 8)
    assert envs.make("catch:rows=5,columns=6") == Catch(5, 6)
    mine = Catch(3, 3)
    assert envs.make(mine) is mine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cath", "no environment 'cath'; did you mean 'catch'?"),
        ("catch:row=5", "accepts rows: int = 8, columns: int = 8"),
        ("catch:rows=1", "rows is 1; expected at least 2"),
        ("catch:columns=-4", "columns is -4; expected at least 2"),
        ("catch:rows=tall", "rows=tall is not of the type int"),
    ],
)
def test_make_refuses_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        envs.make(text)
    assert message in str(error.value)


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (3, 3), (5, 5), (4, 8)])
def test_reference_returns_of_catch(rows, columns):
    environment = Catch(rows, columns)
    middle = columns // 2
    paddle = np.eye(columns)[middle]
    for _ in range(rows - 1):  # the distribution of a paddle that moves at random
        moves = [np.clip(np.arange(columns) + move, 0, columns - 1) for move in (-1, 0, 1)]
        paddle = sum(np.bincount(to, paddle / 3, columns) for to in moves)
    reachable = sum(abs(column - middle) < rows for column in range(columns))
    reference = environment.reference()
    assert float(reference.random) == pytest.approx(2 * np.mean(paddle) - 1, abs=1e-6)
    assert float(reference.optimal) == pytest.approx(2 * reachable / columns - 1, abs=1e-6)

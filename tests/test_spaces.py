"""Gymnasium's spaces: what is refused, of observations and of actions."""

import numpy as np
import pytest

spaces = pytest.importorskip("gymnasium").spaces

from discorl.envs.host import EnvironmentFailure  # noqa: E402
from discorl.envs.host.spaces import actions_of, observation_of  # noqa: E402
from discorl.types import UserError  # noqa: E402


@pytest.mark.parametrize("number", [4, 8, -1, np.array([5, 4]), np.array([5, 8])])
def test_a_number_outside_its_space_is_no_observation(number):
    _, read = observation_of(spaces.Discrete(3, start=5), "mine")
    np.testing.assert_array_equal(read(np.array([5, 7])), [[1, 0, 0], [0, 0, 1]])
    wrong = np.ravel(number)[-1]
    with pytest.raises(EnvironmentFailure) as failure:
        read(number)
    assert str(failure.value) == (
        f"returned an observation of {wrong}; declared is Discrete(3, start=5)"
    )


@pytest.mark.parametrize("numbers", [[1, -1], [2, 0], [[0, 0], [0, 3]]])
def test_numbers_outside_their_space_are_no_observation(numbers):
    _, read = observation_of(spaces.MultiDiscrete([2, 3]), "mine")
    np.testing.assert_array_equal(read([[1, 2]]), [[0, 1, 0, 0, 1]])
    with pytest.raises(EnvironmentFailure, match=r"of (-1|2|3); declared is MultiDiscrete\(\[2 3"):
        read(numbers)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.MultiDiscrete([2, 3])])
def test_bins_are_for_continuous_actions(space):
    with pytest.raises(UserError, match=r"mine has discrete actions, .*Discrete.*: it takes no bi"):
        actions_of(space, 5, "mine")


@pytest.mark.parametrize("bins", [None, 3])
def test_actions_need_bounds(bins):
    with pytest.raises(UserError, match=r"mine: actions of Box.* are not bounded; expected finite"):
        actions_of(spaces.Box(-np.inf, 1, (2,)), bins, "mine")


def test_one_value_is_no_choice():
    with pytest.raises(UserError, match=r"bins is 1 for actions of Box.*; expected at least 2"):
        actions_of(spaces.Box(-1, 1, (2,)), 1, "mine")

"""Environments of one's own by name, and what may be wrong with them."""

import sys

import discoveries
import jax
import numpy as np
import pytest
from clocks import Clocks
from probes import Truncated

import discorl
from discorl import envs
from discorl.discovery.population import Population
from discorl.training import make_trainer
from discorl.training.config import configure
from discorl.types import UserError


def refusal(name):
    with pytest.raises(UserError) as error:
        envs.make(name)
    return str(error.value)


OWN = """
    from dataclasses import dataclass

    from discorl.envs import Catch

    def small(rows: int = 3):
        return Catch(rows=rows, columns=2)

    def wrong():
        return {"rows": 3}

    def unlicensed():
        raise OSError("no licence")

    def leaves():
        raise SystemExit(3)
"""


def test_an_environment_of_ones_own_by_name(write):
    write("my_own.py", OWN)
    assert envs.make("my_own:small,rows=5") == envs.Catch(rows=5, columns=2)
    assert envs.make("my_own:small") == envs.Catch(rows=3, columns=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my_own:smal",
            "my_own has no function or class 'smal'; did you mean 'small'? "
            "known: leaves, small, unlicensed, wrong",
        ),
        ("my_own:wrong", "my_own:wrong returned a builtins.dict; expected a discorl.Environment"),
        ("my_own:small,columns=3", "has no parameter 'columns'; "),
        ("my_own:small,workers=3", "has no parameter 'workers'; "),
        ("my_own:unlicensed", "my_own:unlicensed raised OSError: no licence"),
        ("my_own:leaves", "my_own:leaves raised SystemExit: 3"),
        ("my_own.py:small", "there is no module 'my_own.py'"),
        ("builtins:int", "builtins:int is not a function or class written in Python: no signature"),
    ],
)
def test_mistakes_are_told(write, name, message):
    write("my_own.py", OWN)
    assert message in refusal(name)


def test_of_many_functions_the_nearest_are_named(write):
    write("my_many.py", "\n".join(f"def task_{i}(): ..." for i in range(10, 40)))
    message = refusal("my_many:task_255")
    assert "did you mean 'task_25'?" in message
    assert message.endswith(" and 20 more")
    assert message.count(",") == 9


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise RuntimeError('no luck')", "cannot be imported: it raised RuntimeError: no luck"),
        ("raise ValueError('no luck')", "cannot be imported: it raised ValueError: no luck"),
        ("import nowhere_to_be_found", "it raised ModuleNotFoundError: No module named 'nowhere_"),
        ("raise SystemExit(2)", "SystemExit: 2; put script code under `if __"),
    ],
)
def test_what_a_module_raises_is_told(write, line, message):
    write("my_package/__init__.py", line)
    write("my_package/tasks.py", "")
    write("my_module.py", line)
    assert message in refusal("my_package.tasks:small")
    assert message in refusal("my_module:small")


def test_a_module_without_a_file(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert "__main__ has no function or class 'small_for_a_test'" in refusal(
        "__main__:small_for_a_test"
    )


# --- with Gymnasium's interface -------------------------------------------------------------------

GYMNASIUM = """
    import gymnasium

    class Count(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(5)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.open = {"count": 0}
            return 0, {}

        def step(self, action):
            self.open["count"] += 1
            return self.open["count"] % 5, 0.0, False, False, {}

        def close(self):
            self.open.clear()  # which a reset must have made

    class Bare(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2)

    gymnasium.register("Mine/Count-v0", Count)
"""


@pytest.fixture
def my_gym(write):
    gymnasium = pytest.importorskip("gymnasium")
    write("my_gym.py", GYMNASIUM)
    yield
    gymnasium.registry.pop("Mine/Count-v0", None)


@pytest.mark.parametrize("name", ["my_gym:Count", "gymnasium:my_gym:Mine/Count-v0"])
def test_an_environment_that_closes_only_after_a_reset(my_gym, name):
    environment = envs.make(name)
    vector = environment.start(2, 0)
    np.testing.assert_array_equal(vector.reset(), [[1, 0, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(vector.step(np.zeros(2, np.int32)).observation[:, 1], [1, 1])
    vector.close()


def test_a_vector_that_cannot_be_closed(my_gym):
    from discorl.envs.host.gymnasium import from_vector

    class Stuck:
        single_observation_space = envs.make("my_gym:Count").create(False).observation_space
        single_action_space = single_observation_space

        def close(self):
            raise OSError("stuck")

    assert from_vector(lambda count, render: Stuck(), name="stuck").num_actions == 5


def test_spaces_that_are_missing(my_gym):
    message = refusal("my_gym:Bare")
    assert "my_gym:Bare needs observation_space and action_space, but raised Attribute" in message


def test_names_that_other_packages_register(my_gym):
    assert "gymnasium has no item 'Mine/Count-v0'" in refusal("gymnasium:Mine/Count-v0")
    message = refusal("gymnasium:my_gym:Mine/Cont-v0")
    assert "has no item 'my_gym:Mine/Cont-v0'; for example gymnasium:my_gym:Mine/Count" in message
    message = refusal("gymnasium:nowhere_to_be_found:Mine-v0")
    assert "nowhere_to_be_found cannot be imported: it raised ModuleNotFoundError" in message


MINIGRID = """
    import gymnasium, numpy

    class Mission(gymnasium.spaces.Space):
        def __init__(self):
            super().__init__(dtype=str)

    class Empty(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(7)
        observation_space = gymnasium.spaces.Dict(
            image=gymnasium.spaces.Box(0, 255, (7, 7, 3), numpy.uint8),
            mission=Mission(),
        )

        def reset(self, *, seed=None, options=None):
            return {"image": numpy.ones((7, 7, 3), numpy.uint8), "mission": "get to the goal"}, {}

    gymnasium.register("MiniGrid-OfATest-5x5-v0", Empty)
"""


def test_minigrid_by_name(write):
    """Farama's package registers its names when it is imported; a mission is no observation."""
    gymnasium = pytest.importorskip("gymnasium")
    write("minigrid.py", MINIGRID)
    sys.path.insert(0, ".")  # until the test ends
    try:
        assert envs.canonical("MiniGrid-OfATest-5x5-v0:workers=2") == (
            "gymnasium:minigrid:MiniGrid-OfATest-5x5-v0,workers=2"
        )
        environment = envs.make("MiniGrid-OfATest-5x5-v0")
        assert list(environment.observation) == ["image"]
        assert environment.start(2, 0).reset()["image"].shape == (2, 7, 7, 3)
    finally:
        gymnasium.registry.pop("MiniGrid-OfATest-5x5-v0", None)


def test_registered_names_that_cannot_be_made(monkeypatch):
    gymnasium = pytest.importorskip("gymnasium")
    names = envs.SUITES["gymnasium"].names()
    assert "CartPole-v1" in names
    for name in ("Ant-v2", "Hopper-v3", "GymV21Environment-v0"):
        assert name in gymnasium.registry
        assert name not in names

    def unlicensed(**settings):
        raise ImportError("no licence")

    spec = gymnasium.envs.registration.EnvSpec("Unlicensed-v0", entry_point=unlicensed)
    monkeypatch.setitem(gymnasium.registry, "Unlicensed-v0", spec)
    assert refusal("gymnasium:Unlicensed-v0") == (
        "gymnasium:Unlicensed-v0 cannot be made: no licence"
    )


# --- before they are trained on -------------------------------------------------------------------


def unlicensed(*arguments):
    raise OSError("no licence")


OTHER_SHAPE = jax.ShapeDtypeStruct((7,), np.float32)


@pytest.mark.parametrize(
    ("environment", "name", "value", "message"),
    [
        (Truncated, "num_actions", 0, "num_actions is 0; expected a positive int"),
        (Truncated, "num_actions", 2.0, "num_actions is 2.0; expected a positive int"),
        (Truncated, "num_actions", property(unlicensed), "it raised OSError: no licence"),
        (Truncated, "observation", OTHER_SHAPE, "observation is [5] float32; expected [7] float32"),
        (Truncated, "observation", property(unlicensed), "it raised OSError: no licence"),
        (Truncated, "observation", None, "observation is None; expected jax.ShapeDtypeStruct"),
        (Truncated, "step", unlicensed, "step raised OSError: no licence"),
        (Truncated, "step", lambda *_: (0, 1.0), "; expected a state and a discorl.envs.Step"),
        (Clocks, "num_actions", 0, "num_actions is 0; expected a positive int"),
        (Clocks, "observation", property(unlicensed), "it raised OSError: no licence"),
    ],
)
def test_an_environment_that_is_not_what_it_declares_is_refused(environment, name, value, message):
    config = configure(rule="actor_critic", env="mine")
    make_trainer(config, environment())
    flawed = type("Flawed", (environment,), {name: value, "__module__": __name__})
    with pytest.raises(UserError) as error:
        make_trainer(config, flawed())
    assert str(error.value).startswith("mine breaks the contract of environments: ")
    assert message in str(error.value)
    assert "discorl envs check" in str(error.value)


def test_discovery_refuses_such_an_environment_as_well(write):
    write(
        "my_own.py",
        """
        from probes import Truncated

        class Flawed(Truncated):
            num_actions = 0
        """,
    )
    config = discorl.configure_discovery(**discoveries.TINY | {"population": "my_own:Flawed"})
    with pytest.raises(UserError, match=r"my_own:Flawed breaks the contract.* num_actions is 0"):
        Population(config, discoveries.RULE)

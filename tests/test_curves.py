import matplotlib
import numpy as np
import pytest
from PIL import Image

from discorl.runs import curves, palette
from discorl.runs.metrics import RETURN, STEP, by_seed


def columns(num_updates, num_seeds=1):
    rng = np.random.default_rng(0)
    update = np.tile(np.arange(1, num_updates + 1), num_seeds)
    value = update / num_updates + rng.normal(0, 0.1, len(update))
    value[rng.random(len(update)) < 0.3] = np.nan
    seed = np.repeat(np.arange(num_seeds), num_updates)
    return {"update": update, "seed": seed, STEP: 640 * update, RETURN: value}


def picture(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def blue_pixels(path):
    red, _, blue = np.moveaxis(picture(path), -1, 0)
    return int((blue - red > 60).sum())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metrics",
    [columns(300), columns(300, 5), columns(1), columns(1, 3), columns(2)],
    ids=["seed", "seeds", "row", "row-of-seeds", "rows"],
)
def test_curve_shows_something(tmp_path, metrics):
    metrics[RETURN][-1] = 1.0
    curves.learning_curve(tmp_path / "curve.png", metrics, title="catch")
    assert blue_pixels(tmp_path / "curve.png") > 20
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metrics",
    [{}, {name: column[:0] for name, column in columns(1).items()}, columns(3)],
    ids=["nothing", "no-rows", "no-episode"],
)
def test_curve_of_nothing_says_so(tmp_path, metrics):
    if metrics:
        metrics[RETURN] = np.full(len(metrics["update"]), np.nan)
    curves.learning_curve(tmp_path / "curve.png", metrics, title="catch")
    assert blue_pixels(tmp_path / "curve.png") == 0
    assert (picture(tmp_path / "curve.png") < 128).any()


def discovery_columns(num_updates, environments):
    """Metrics of a discovery with returns on scales of their own; of one, no episode ends."""
    rng = np.random.default_rng(0)
    metrics = {"update": np.arange(1, num_updates + 1)}
    names = ("meta/gradient_norm", "meta/gradient_cosine", "policy/entropy", "rule/pi_hat_entropy")
    parts = ("meta/policy_gradient", "meta/entropy_penalty", "meta/target_penalty")
    metrics |= {name: rng.random(num_updates) + 0.1 for name in (*names, *parts)}
    returns = {
        f"{RETURN}/{env}": 30.0**i * metrics["policy/entropy"] for i, env in enumerate(environments)
    }
    returns[f"{RETURN}/{environments[-1]}"][:] = np.nan
    evaluations = {
        "update": np.array([0, num_updates]),
        "charts/score": np.array([np.nan, 0.5]),
        "charts/best_score": np.array([-np.inf, 0.5]),
    }
    return metrics | returns, evaluations


def shares(path, colours):
    """How many pixels have exactly each of the colours."""
    pixels = picture(path)
    wanted = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]
    return [int((pixels == np.array(colour)).all(axis=-1).sum()) for colour in wanted]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_updates", [1, 60])
def test_curve_of_a_discovery_shows_every_environment(tmp_path, num_updates):
    file = tmp_path / "curve.png"
    environments = ["a", "b", "b #2", "c", "d", "never"]
    curves.discovery_curve(file, *discovery_columns(num_updates, environments), title="discovery")
    # The fourth and fifth colours are those of environments alone; the sixth has nothing to show.
    seen = shares(file, palette.COLOURS[:6])
    assert min(seen[:5]) > 20
    assert seen[5] == 0


@pytest.mark.filterwarnings("error")
def test_curve_of_a_discovery_without_anything_or_with_too_many(tmp_path):
    curves.discovery_curve(tmp_path / "none.png", {}, {}, title="discovery")
    assert blue_pixels(tmp_path / "none.png") == 0
    many = discovery_columns(9, [f"environment_{i}" for i in range(20)])
    curves.discovery_curve(tmp_path / "many.png", *many, title="discovery")
    assert min(shares(tmp_path / "many.png", palette.COLOURS)) > 20


def test_curve_leaves_the_global_state_of_matplotlib_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    curves.learning_curve(tmp_path / "curve.png", columns(5), title="catch")
    assert dict(matplotlib.rcParams) == before


def test_running_mean_skips_what_is_missing():
    values = np.array([[np.nan, 2.0, 4.0, np.nan, np.nan, 9.0]])
    expected = [[np.nan, 2.0, 3.0, 4.0, np.nan, 9.0]]
    np.testing.assert_allclose(curves._running_mean(values, 2), expected)
    np.testing.assert_allclose(curves._running_mean(values, 6)[:, -1], [5.0])


def test_seeds_are_aligned_by_update():
    metrics = {
        "update": np.array([2, 1, 1]),
        "seed": np.array([7, 7, 9]),
        STEP: np.array([20, 10, 10]),
        RETURN: np.array([0.2, 0.1, np.inf]),
    }
    along, values = by_seed(metrics, STEP, RETURN)
    assert along.tolist() == [10, 20]
    np.testing.assert_array_equal(values, [[0.1, 0.2], [np.nan, np.nan]])

"""Sweeps: comparisons of one rule with different settings, and the effects of the settings."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from discorl.comparison import search
from discorl.comparison.config import ComparisonConfig, configure_comparison
from discorl.comparison.entries import OWN_ARGUMENTS, RuleEntry, check_settings
from discorl.comparison.results import Results
from discorl.runs import statistics
from discorl.runs.statistics import Estimate
from discorl.training.config import DEFAULT_ENVIRONMENT, DEFAULT_RULE, TrainConfig
from discorl.types import UserError, settings, specs, validation
from discorl.types.specs import Range

MOST_GROUPS = 5  # values of a setting that are reported separately; more are grouped by size
# Settings that have their own argument.
_ELSEWHERE = OWN_ARGUMENTS | {"rule": "rule"}

Space = Mapping[str, Sequence[Any] | Range]  # the values that each setting may have
Method = Literal["grid", "random", "tpe"]


def configure_sweep(
    over: Space,
    *,
    rule: str = DEFAULT_RULE,
    environments: Sequence[Any] = (DEFAULT_ENVIRONMENT,),
    method: Method | None = None,
    trials: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **given: Any,
) -> ComparisonConfig:
    """Makes a comparison whose entries are trials: one rule with different settings.

    Args:
        over: the values of each setting that is varied, such as `{"learning_rate": [1e-3, 1e-2]}`,
            or a `Range`. Any setting of `TrainConfig` can be varied, including "rule".
        rule: the rule.
        environments: the environments that each trial is scored on.
        method: how trials are chosen: "grid" for all combinations, "random", or "tpe" for Optuna's
            sampler, which learns from the scores of earlier trials. By default "random" if `trials`
            is given and "grid" if not.
        trials: number of trials, unless the method is "grid".
        batch: with "tpe" only, how many trials are proposed at a time; by default 1.
        seed: seed of the method, and of the first agent of each trial.
        settings: settings of training that all trials share.
        **given: other settings of `ComparisonConfig`, such as `steps` and `seeds`.

    Example:
        ```python
        config = discorl.configure_sweep({"learning_rate": [1e-3, 1e-2], "unroll": [8, 16]})
        results = discorl.compare(config, out="runs/sweep")
        ```
    """
    shared = {} if settings is None else settings
    check_settings({"settings": shared}, _ELSEWHERE)
    if both := ", ".join(map(repr, sorted(set(shared) & set(over)))):
        raise UserError(f"settings has {both}, which over varies; expected it in one of them")
    space = {name: _values(name, values) for name, values in over.items()}
    if not space:
        raise UserError("over is empty; expected the values of at least one setting")
    method = method or ("grid" if trials is None else "random")
    if method not in get_args(Method):
        raise UserError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    if (method == "grid") != (trials is None):
        raise UserError(
            f"trials is {trials} with method {method!r}; expected a number of trials "
            "with 'random' and 'tpe' only"
        )
    if batch is not None and method != "tpe":
        raise UserError(
            f"batch is {batch} with method {method!r}; expected it with 'tpe' only; the batch of "
            "agents is a setting of training: settings={'batch': ...} or --settings batch=..."
        )
    adaptive = None
    if trials is None:
        drawn = _grid(space)
    elif method == "tpe":
        adaptive = search.make_search(space, rule, trials, 1 if batch is None else batch)
        drawn = _random(space, max(search.STARTUP, adaptive.batch), seed)
    else:
        drawn = _random(space, trials, seed)
    return configure_comparison(
        rules=[_entry(trial, rule) for trial in drawn],
        environments=environments,
        seed=seed,
        settings=dict(shared),
        over=tuple(space),
        search=adaptive,
        **{"name": "sweep", "about": f"Settings of {rule}: {', '.join(space)}."} | given,
    )


def _entry(trial: Mapping[str, Any], rule: str) -> RuleEntry:
    """A trial as an entry of a comparison."""
    return RuleEntry(
        rule=trial.get("rule", rule),
        label=", ".join(f"{name}={text_of(value)}" for name, value in trial.items()),
        settings={name: value for name, value in trial.items() if name != "rule"},
    )


def next_trials(results: Results) -> tuple[RuleEntry, ...]:
    """The next trials of an adaptive sweep; empty if TPE finds nothing new."""
    config = results.config
    assert config.search is not None
    adaptive = config.search

    def accepts(trial: Mapping[str, Any]) -> bool:
        try:
            for environment in config.environments:
                config.training(_entry(trial, adaptive.rule), environment)
        except UserError:
            return False
        return True

    tried = [(_settings(entry, config), _score(results, entry.label)) for entry in config.rules]
    found = search.propose(adaptive, tried, config.seed, accepts)
    order = [{name: trial[name] for name in config.over} for trial in found]
    return tuple(_entry(trial, adaptive.rule) for trial in order)


def _score(results: Results, label: str) -> float | None:
    """Mean score of a trial; None if one of its runs failed."""
    if not all((label, task) in results.complete for task in results.scales):
        return None
    return float(np.mean([results.scores_in(task, label).mean() for task in results.scales]))


def read_space(texts: Sequence[str]) -> dict[str, Sequence[Any] | Range]:
    """Parses values of settings: `learning-rate=1e-4,1e-3`, `unroll=8..32`, `hidden=64 64,128`."""
    return _read(texts, "over", "NAME=VALUE,VALUE,... or NAME=LOW..HIGH")


def _read(texts: Sequence[str], argument: str, expected: str) -> dict[str, Sequence[Any] | Range]:
    space: dict[str, Sequence[Any] | Range] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise UserError(f"{argument} is {text!r}; expected {expected}")
        if name in space:
            raise UserError(f"{argument} has {name!r} twice; expected all its values together")
        read = [_value(x) for x in values.split(",")]
        space[name] = read[0] if isinstance(read[0], Range) and len(read) == 1 else read
    return space


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parses settings with a single value each: `preset=small`, `hidden=64 64`."""
    shared = {}
    for name, values in _read(texts, "settings", "NAME=VALUE").items():
        settings.require_known(TrainConfig, name, "settings: ")
        if len(values) != 1:
            raise UserError(f"settings: {name} has {len(values)} values; expected one, or see over")
        shared[name] = _fit(name, values[0])
    return shared


def text_of(value: Any) -> str:
    """A value as written on the command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _values(name: str, values: Sequence[Any] | Range) -> Sequence[Any] | Range:
    """The values of a setting, checked."""
    settings.require_known(TrainConfig, name, "over: ")
    same = {**_ELSEWHERE, "preset": "settings"}
    if name in same and name != "rule":
        raise UserError(f"over has {name!r}, which is the same in all trials: see {same[name]}")
    if isinstance(values, Range):
        return values
    if not isinstance(values, list | tuple):
        raise UserError(f"over: {name} is {values!r}; expected a list of values, or a Range")
    several = [_fit(name, value) for value in values if not isinstance(value, Range)]
    single = all(isinstance(value, Hashable) for value in several)
    if not several or len(several) < len(values) or not single:
        raise UserError(f"over: {name} is {list(values)}; expected single values, or one range")
    for value, count in Counter(several).items():
        if count > 1:
            raise UserError(f"over: {name} has {text_of(value)} twice; expected different values")
    return several


def _fit(name: str, value: Any) -> Any:
    """A value of a setting; as a tuple where the setting is one."""
    if not isinstance(settings.flatten(TrainConfig, TrainConfig())[name], tuple):
        return value
    if isinstance(value, str):
        return tuple(map(_value, value.split()))
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _value(text: str) -> Any:
    return specs.parse(f"over:value={text}").parameters["value"]


def _grid(space: Space) -> list[dict[str, Any]]:
    ranges = [name for name, values in space.items() if isinstance(values, Range)]
    if ranges:
        raise UserError(f"over: {ranges[0]} is a range; expected values, or a number of trials")
    lists: list[Sequence[Any]] = list(space.values())
    count = math.prod(map(len, lists))
    if count > search.MOST_TRIALS:
        raise UserError(f"over has {count:,} combinations; expected at most {search.MOST_TRIALS:,}")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]


def _random(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """Distinct random trials; fewer than `trials` if the space is too small."""
    validation.integer("trials", trials, least=1, most=search.MOST_TRIALS)
    validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
    generator = np.random.default_rng(seed)
    found: dict[tuple, dict[str, Any]] = {}
    for _ in range(10 * trials):
        trial = {name: _draw(generator, values) for name, values in space.items()}
        found.setdefault(tuple(trial.values()), trial)
        if len(found) == trials:
            break
    return list(found.values())


def _draw(generator: np.random.Generator, values: Sequence[Any] | Range) -> Any:
    if not isinstance(values, Range):
        return values[int(generator.integers(len(values)))]
    low, high = values
    if search.is_logarithmic(low, high):
        drawn = float(np.exp(generator.uniform(np.log(low), np.log(high))))
    else:
        drawn = float(generator.uniform(low, high))
    if isinstance(low, int) and isinstance(high, int):
        return round(drawn)
    return search.rounded(drawn, low, high)


# --- effects of settings --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of a setting on the scores, averaged over all others."""

    setting: str
    share: float  # see `explained`
    groups: tuple[tuple[str, Estimate], ...]  # mean score by value, or by range of values


def trials(results: Results) -> dict[str, dict[str, Any]]:
    """The settings of each trial that has scores, by its label."""
    return {
        entry.label: _settings(entry, results.config)
        for entry in results.config.rules
        if results.tasks and entry.label in results.rules
    }


def _settings(entry: RuleEntry, config: ComparisonConfig) -> dict[str, Any]:
    """The varied settings of a trial."""
    return {
        name: entry.rule if name == "rule" else search.hashable(entry.settings[name])
        for name in config.over
    }


def ranking(results: Results) -> list[tuple[str, Estimate]]:
    """The trials with their mean scores, the best first."""
    found = {label: results.aggregates[label]["mean"] for label in trials(results)}
    return sorted(found.items(), key=lambda pair: -pair[1].value)


def effects(results: Results) -> list[Effect]:
    """The effect of each varied setting, the largest first."""
    tried = trials(results)
    scores = {label: results.scores(label).mean(axis=1) for label in tried}  # [runs]
    found = []
    for name in results.config.over:
        by_value: dict[Any, list[np.ndarray]] = {}
        for label, trial in tried.items():
            by_value.setdefault(trial[name], []).append(scores[label])
        groups = _grouped({value: np.concatenate(parts) for value, parts in by_value.items()})
        means = [
            (text, statistics.estimate(statistics.mean, runs[:, None]))
            for text, runs in groups.items()
        ]
        found.append(Effect(name, explained(list(groups.values())), tuple(means)))
    return sorted(found, key=lambda effect: -np.nan_to_num(effect.share))


def explained(groups: Sequence[np.ndarray]) -> float:
    """The share of the variance of scores that groups of runs explain, corrected for chance.

    It is the adjusted R^2 of the group's mean as a prediction, at least 0. It is NaN if each group
    has one run.
    """
    runs = np.concatenate(groups)
    within = sum(((group - group.mean()) ** 2).sum() for group in groups)
    total = ((runs - runs.mean()) ** 2).sum()
    if len(runs) <= len(groups) or total == 0:
        return math.nan
    noise = within / (len(runs) - len(groups))
    return max(0.0, float(1 - noise / (total / (len(runs) - 1))))


def _grouped(by_value: Mapping[Any, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs by value; many numbers are grouped into three ranges of about equally many values."""
    numeric = all(isinstance(value, int | float) for value in by_value)
    if not numeric or len(by_value) <= MOST_GROUPS:
        order = sorted(by_value) if numeric else list(by_value)
        return {text_of(value): by_value[value] for value in order}
    thirds = [[float(x) for x in third] for third in np.array_split(sorted(by_value), 3)]
    return {
        f"{third[0]:g} to {third[-1]:g}": np.concatenate([by_value[value] for value in third])
        for third in thirds
    }

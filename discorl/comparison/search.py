"""Adaptive sweeps: Optuna's TPE proposes trials from the scores of earlier ones."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from discorl.runs import schemas
from discorl.runs.schemas import Each
from discorl.types import UserError, validation
from discorl.types.specs import Range

MOST_TRIALS = 10_000
STARTUP = 10  # random trials before TPE proposes any
_ATTEMPTS = 100  # proposals per trial; some repeat an earlier trial, some are invalid
_LOG_SCALE = 10.0  # ranges whose ends differ by this factor are searched on a logarithmic scale
_SCHEMA = {
    "rule": str,
    "values": Each([(object, bool)]),
    "ranges": Each({"low": float, "high": float}),
    "trials": int,
    "batch": int,
}

Trial = Mapping[str, Any]  # the settings of one trial


@dataclasses.dataclass(frozen=True)
class Search:
    """The search space of an adaptive sweep and its number of trials, as JSON values."""

    rule: str  # of every trial, unless the search varies it
    values: Mapping[str, Sequence[Any]]
    ranges: Mapping[str, Mapping[str, Any]]  # low and high
    trials: int
    batch: int  # trials proposed at a time

    @classmethod
    def read(cls, table: Any) -> "Search":
        """A search from JSON."""
        schemas.check(table, _SCHEMA)
        plain = {name: [hashable(x) for x in table["values"][name]] for name in table["values"]}
        return cls(**{name: table[name] for name in _SCHEMA} | {"values": plain})


def make_search(
    space: Mapping[str, Sequence[Any] | Range], rule: str, trials: int, batch: int
) -> Search:
    """A search of a space."""
    validation.integer("batch", batch, least=1, most=MOST_TRIALS)
    validation.integer("trials", trials, least=1, most=MOST_TRIALS)
    if trials <= max(STARTUP, batch):
        raise UserError(
            f"trials is {trials}; expected more than {max(STARTUP, batch)}, which method 'tpe' "
            "draws at random before it proposes any"
        )
    _optuna()
    ranges = {name: x._asdict() for name, x in space.items() if isinstance(x, Range)}
    values = {name: list(x) for name, x in space.items() if name not in ranges}
    return Search(rule, values, ranges, trials, batch)


def is_logarithmic(low: float, high: float) -> bool:
    """Whether a range is searched on a logarithmic scale."""
    return low > 0 and high / low >= _LOG_SCALE


def rounded(value: float, low: float, high: float) -> float:
    """A number from a range, to three digits, because it appears in labels."""
    return min(max(float(f"{value:.3g}"), low), high)


def propose(
    search: Search,
    tried: Sequence[tuple[Trial, float | None]],
    seed: int,
    accepts: Callable[[Trial], bool],
) -> list[dict[str, Any]]:
    """The next trials, at most a batch of them; empty if TPE finds nothing new.

    The result is a function of the arguments; a score of None is that of a trial that failed. The
    study is rebuilt from the earlier trials in their order, so a resumed sweep makes the same
    proposals as an uninterrupted one, unless a trial that failed succeeds when it is repeated.
    """
    optuna = _optuna()
    distributions = _distributions(search, optuna)
    own_seed = int(np.random.SeedSequence([seed, len(tried)]).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(
        seed=own_seed, n_startup_trials=STARTUP, constant_liar=True
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    state = optuna.trial.TrialState
    for trial, score in tried:
        study.add_trial(
            optuna.trial.create_trial(
                params={name: _encode(search, name, trial[name]) for name in distributions},
                distributions=distributions,
                value=score,
                state=state.FAIL if score is None else state.COMPLETE,
            )
        )
    known = {tuple(trial[name] for name in distributions) for trial, _ in tried}
    wanted = min(search.batch, search.trials - len(tried))
    found: list[dict[str, Any]] = []
    for _ in range(_ATTEMPTS * wanted):
        if len(found) == wanted:
            break
        asked = study.ask(distributions)
        proposal = {name: _decode(search, name, asked.params[name]) for name in distributions}
        if tuple(proposal.values()) in known or not accepts(proposal):
            continue  # TPE treats it as a running trial and avoids it
        known.add(tuple(proposal.values()))
        found.append(proposal)
    return found


def _distributions(search: Search, optuna: ModuleType) -> dict[str, Any]:
    of = optuna.distributions
    found = {
        name: of.CategoricalDistribution(range(len(values)))
        for name, values in search.values.items()
    }
    for name, ends in search.ranges.items():
        whole = all(isinstance(end, int) for end in ends.values())
        kind = of.IntDistribution if whole else of.FloatDistribution
        found[name] = kind(**ends, log=is_logarithmic(**ends))
    return found


def _encode(search: Search, name: str, value: Any) -> Any:
    """A value in Optuna's form: its index, if it is from a list, because it may have any type."""
    return value if name in search.ranges else list(search.values[name]).index(value)


def _decode(search: Search, name: str, value: Any) -> Any:
    if name not in search.ranges:
        return search.values[name][value]
    return value if isinstance(value, int) else rounded(value, **search.ranges[name])


def hashable(value: Any) -> Any:
    """Turns JSON's lists into tuples."""
    return tuple(value) if isinstance(value, list) else value


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise UserError("method 'tpe' needs `pip install \"discorl[optuna]\"`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

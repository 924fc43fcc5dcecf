"""Update rules: one interface, one file a rule, and where learned rules are found."""

import functools
from pathlib import Path

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import Rule
from discorl.rules.disco import Disco
from discorl.rules.files import library, weights
from discorl.rules.meta_network import Sizes
from discorl.rules.muesli import Muesli
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.ppo import PPO
from discorl.rules.q_lambda import QLambda
from discorl.types import Params, UserError, specs

HAND_MADE: dict[str, type[Rule]] = {
    rule.name: rule for rule in (ActorCritic, Muesli, PolicyGradient, PPO, QLambda)
}
PUBLISHED_BINS = 601


def find(text: str, rules_path: str | Path | None = None) -> Path | None:
    """The file of a learned rule; None for a hand-made one.

    Args:
        text: the name of a rule or an npz file, with settings if wished: `ppo:epochs=8`,
            `disco103:without=q`.
        rules_path: a file or folder to look in before the usual places.
    """
    name = _parse(text).name
    if name in HAND_MADE:
        return None
    try:
        return library.find(name, rules_path)
    except UserError:
        known = [*HAND_MADE, *library.names(rules_path)]
        if name in known or Path(name).name != name or name.endswith(".npz"):
            raise
        raise UserError(f"no rule {name!r}; {specs.nearest(name, known)}") from None


def load(
    text: str,
    *,
    file: Path | None = None,
    rules_path: str | Path | None = None,
    discount: float | None = None,
) -> tuple[Rule, Params]:
    """Loads a rule and its parameters.

    Args:
        text: the name of a rule or an npz file, with settings if wished: `ppo:epochs=8`,
            `disco103:without=q`.
        file: the file of a learned rule; by default it is looked for by its name.
        rules_path: a file or folder to look in before the usual places.
        discount: the discount, unless `text` sets one.

    Returns:
        the rule; its parameters eta, empty for a hand-made rule.
    """
    spec = _parse(text)
    if discount is not None:
        spec.parameters.setdefault("discount", discount)
    if spec.name in HAND_MADE:
        return specs.build(HAND_MADE[spec.name], spec), ()
    content = weights.load(file or _found(text, rules_path))
    disco = functools.partial(
        Disco,
        sizes=Sizes.of(content.eta),
        num_bins=content.metadata.get("bins", PUBLISHED_BINS),
        without=content.metadata.get("without", "none"),
    )
    return specs.build(disco, spec), content.eta


def _found(text: str, rules_path: str | Path | None) -> Path:
    path = find(text, rules_path)
    assert path is not None, "a hand-made rule has no file"
    return path


def _parse(text: str) -> specs.Spec:
    path, ending, settings = text.rpartition(".npz")
    if not ending or settings[:1] not in ("", ":"):
        return specs.parse(text)
    # A path may hold any sign: only what follows its ending is read as settings.
    spec = specs.parse(f"rule{settings}")
    return specs.Spec(path + ending, spec.item, spec.parameters)


__all__ = [
    "HAND_MADE",
    "PPO",
    "ActorCritic",
    "Disco",
    "Muesli",
    "PolicyGradient",
    "QLambda",
    "Rule",
    "Sizes",
    "find",
    "library",
    "load",
    "weights",
]

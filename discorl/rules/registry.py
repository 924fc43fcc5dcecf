"""Rules by name: built-in, learned and stored in files, from other packages, or the user's.

A text names a rule, optionally with settings:

    ppo, ppo:epochs=8                    a built-in rule
    disco103, disco103:without=q         a learned rule by its name in the library
    runs/mine/best.npz                   a learned rule by its file
    package.module:MyRule,setting=3      a class, or a function that returns a rule
    their_rule:setting=3                 an entry point of the group `discorl.rules`
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import Rule, kind_of
from discorl.rules.disco import Disco
from discorl.rules.files import library
from discorl.rules.lean import Lean
from discorl.rules.muesli import Muesli
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.ppo import PPO
from discorl.rules.q_lambda import QLambda
from discorl.runs import npz
from discorl.runs.files import naming
from discorl.types import Params, UserError, imports, specs

# A new rule needs its own module and an entry here.
REGISTRY: dict[str, type[Rule]] = {
    rule.name: rule for rule in (ActorCritic, Disco, Lean, Muesli, PolicyGradient, PPO, QLambda)
}
GROUP = "discorl.rules"  # of entry points

Factory = Callable[..., Any]
Given = str | Rule | tuple[Rule, Params]  # how users give a rule


def is_learned(rule: type[Rule] | Rule) -> bool:
    """Whether a rule has parameters."""
    cls = rule if isinstance(rule, type) else type(rule)
    return cls.init_params is not Rule.init_params


def find(text: str, rules_path: str | Path | None = None) -> Path | None:
    """The file of a learned rule; None for a rule that is code.

    `rules_path` is a file or folder to look in before the usual places.
    """
    spec = _parse(text)
    if _factory(spec, plugins=False) is not None:
        return None
    try:
        return library.find(spec.name, rules_path)
    except UserError:
        if library.is_path(spec.name) or spec.name in library.names(rules_path):
            raise
        if _factory(spec) is not None:
            return None
        no_module = imports.no_module("rule", text, spec)
        if no_module is not None:
            raise no_module from None
        known = [*REGISTRY, *library.names(rules_path), *imports.plugins(GROUP)]
        raise UserError(
            f"no rule {spec.name!r}; {specs.nearest(spec.name, known)}; or package.module:Class "
            "for a rule of your own"
        ) from None


def load(
    rule: Given,
    *,
    file: Path | None = None,
    rules_path: str | Path | None = None,
    discount: float | None = None,
) -> tuple[Rule, Params]:
    """Loads a rule and its parameters.

    Args:
        rule: a text that names it, see the module; or a rule, with or without its parameters.
        file: file to read the rule's parameters from; by default, the rule is looked up.
        rules_path: a file or folder to look in before the usual places.
        discount: the discount, unless the text sets one.

    Returns:
        the rule; its parameters eta, empty for a rule that has none. For a rule that is not learned
        yet, they are those of `init_params` with a fixed key.

    Raises:
        UserError: there is no such rule, or its file or settings are invalid.
    """
    if not isinstance(rule, str):
        built, eta = rule if isinstance(rule, tuple) else (rule, None)
        if discount is not None:
            built = dataclasses.replace(built, discount=discount)
        return _with_params(built, eta, file)
    spec = _parse(rule)
    given: dict[str, Any] = {}
    if discount is not None and "discount" not in spec.parameters:
        given["discount"] = discount
    factory = _factory(spec)
    path = find(rule, rules_path) if file is None and factory is None else file
    if path is not None and (factory is None or isinstance(factory, type)):
        return _from_file(path, spec, given, factory)
    assert factory is not None, "`find` rejects anything that is neither code nor a file"
    return _with_params(dataclasses.replace(_build(factory, spec), **given), None, path)


def code(text: str) -> type[Rule] | Callable[..., Any] | None:
    """The class or function of a rule that is code; None for a learned rule in a file."""
    return _factory(_parse(text))


def recipe(
    rule: Given, rules_path: str | Path | None = None, preset: str | None = None
) -> dict[str, Any]:
    """Training settings of a rule, optionally for a preset.

    Empty for a learned rule that is not installed.
    """
    owner = _owner(rule, rules_path)
    if owner is None:
        return {}
    found = dict(owner.recipe)
    if preset is not None:
        found |= _recipes(type(owner)).get(preset, {})
    if found.get("reward_scale") is not None:
        found["reward_scale"] *= owner.reward_unit
    return found


def _recipes(kind: type[Rule]) -> Mapping[str, Mapping[str, Any]]:
    """The recipes of a class, by preset.

    A class with its own recipe does not inherit them, because they would override that recipe.
    """
    return next(
        vars(base).get("recipes", {})
        for base in kind.__mro__
        if {"recipe", "recipes"} & vars(base).keys()
    )


def _owner(rule: Given, rules_path: str | Path | None) -> Rule | None:
    """The rule whose recipes apply; None if it cannot be built."""
    if not isinstance(rule, str):
        return rule[0] if isinstance(rule, tuple) else rule
    try:
        spec = _parse(rule)
        factory = _factory(spec)
        if factory is not None:
            return _build(factory, spec)
        path = find(rule, rules_path)
        return None if path is None else _from_file(path, spec, {}, None)[0]
    except UserError:
        return None  # loading the rule raises the error


def with_defaults(text: str, defaults: Mapping[str, Any]) -> str:
    """Adds settings that the text of a rule does not set: `ppo` -> `ppo:epochs=8`."""
    spec = _parse(text)
    added = [f"{name}={x}" for name, x in defaults.items() if name not in spec.parameters]
    if not added:
        return text
    separator = "," if spec.parameters or spec.item is not None else ":"
    return text + separator + ",".join(added)


def text_of(rule: Given) -> str:
    """The text for a rule given as an object: its class and its non-default settings."""
    if isinstance(rule, str):
        return rule
    rule = rule[0] if isinstance(rule, tuple) else rule
    changed = [
        f"{field.name}={value}"
        for field in dataclasses.fields(rule)
        if isinstance(value := getattr(rule, field.name), bool | int | float | str)
        and value != field.default
        and field.name != "discount"  # belongs to the agent
    ]
    name = kind_of(type(rule))
    separator = "," if ":" in name else ":"
    return name + (separator + ",".join(changed) if changed else "")


# ---- from texts to classes ----


def _parse(text: str) -> specs.Spec:
    path, ending, settings = text.rpartition(".npz")
    if not ending or settings[:1] not in ("", ":"):
        return specs.parse(text)
    # A path may contain any character, so only the text after its ending is parsed as settings.
    spec = specs.parse(f"rule{settings}")
    return specs.Spec(path + ending, spec.item, spec.parameters)


def _factory(spec: specs.Spec, *, plugins: bool = True) -> Factory | None:
    """The class or function that a text names; None if it names a file, or nothing at all."""
    if library.is_path(spec.name):
        return None
    if spec.name in REGISTRY:
        return REGISTRY[spec.name]
    if imports.found(spec):
        return imports.load(spec)
    if plugins and spec.item is None:
        plugin = imports.plugins(GROUP).get(spec.name)
        return None if plugin is None else plugin.load()
    return None


def _build(factory: Factory, spec: specs.Spec) -> Rule:
    if spec.name in REGISTRY:
        return specs.build(factory, spec)
    name = spec.name if spec.item is None else f"{spec.name}:{spec.item}"
    rule = imports.call(factory, name, spec.parameters)
    if isinstance(rule, Rule):
        return rule
    kind = type(rule)
    raise UserError(
        f"{name} returned a {kind.__module__}.{kind.__qualname__}; expected a discorl.Rule"
    )


def _class_of(archive: npz.Archive) -> type[Rule]:
    """The class of the rule in a file; a file without a kind is in the published format."""
    kind = archive.metadata.get("kind", Disco.name)
    if not isinstance(kind, str):
        raise UserError(f"its kind is {kind!r}; expected the name of a rule")
    if kind in REGISTRY:
        return REGISTRY[kind]
    spec = specs.parse(kind)
    if not imports.found(spec):
        raise UserError(
            f"is of the kind {kind!r}, and there is no such module, neither installed nor in the "
            "current folder"
        )
    cls = imports.load(spec)
    if not (isinstance(cls, type) and issubclass(cls, Rule)):
        raise UserError(f"is of the kind {kind!r}, which is not a class of rules")
    return cls


# ---- parameters ----


def _from_file(
    path: Path, spec: specs.Spec, given: Mapping[str, Any], cls: type[Rule] | None
) -> tuple[Rule, Params]:
    """Loads a rule from a file; its class is `cls` or, if None, the one that the file names."""
    archive = npz.read(path)
    imported = cls is not None
    with naming(path):
        cls = cls or _class_of(archive)
        settings = cls.stored_settings(archive)
    make = functools.partial(cls, **settings | dict(given))
    with naming(path):
        try:
            rule = _build(make, spec) if imported else specs.build(make, spec)
        except (TypeError, ValueError, AttributeError) as error:
            raise UserError(f"its settings are not accepted: {error}") from error
        return rule, rule.stored_params(archive)


def _with_params(rule: Rule, eta: Params | None, file: Path | None) -> tuple[Rule, Params]:
    if file is not None:
        with naming(file):
            return rule, rule.stored_params(npz.read(file))
    if eta is None:
        eta = jax.jit(rule.init_params)(jax.random.key(0xE7A))
    return rule, eta

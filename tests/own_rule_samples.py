"""The source of a module with a rule of one's own, as a user would write it."""

OWN = """
    from dataclasses import dataclass

    import jax
    import jax.numpy as jnp

    from discorl.rules import PolicyGradient

    @dataclass(frozen=True, kw_only=True)
    class Mine(PolicyGradient):
        "A policy gradient with a learned weight."

        recipe = PolicyGradient.recipe | {"learning_rate": 0.25}
        widths: tuple[int, ...] = (2,)
        scale: float = 1.0

        def init_params(self, key):
            net = [jax.random.normal(key, (width,)) for width in self.widths]
            return {"net": net, "weight": jnp.ones(())}

        def targets(self, eta, state, trajectory, online, target):
            targets, state, metrics = super().targets((), state, trajectory, online, target)
            factor = self.scale * eta["weight"] + sum(x.sum() for x in eta["net"])
            return targets | {"advantage": factor * targets["advantage"]}, state, metrics

    def small(scale: float = 0.5):
        return Mine(scale=scale)

    def wrong():
        return {"scale": 1}

    def unlicensed():
        raise OSError("no licence")
"""

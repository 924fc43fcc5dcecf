"""Discovery: meta-training a rule over a population of agents."""

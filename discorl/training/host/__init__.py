"""Training in host environments."""

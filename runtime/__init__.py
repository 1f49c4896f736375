"""What every program here stands on: errors, the environment, and the one import of MXNet."""

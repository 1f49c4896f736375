"""How well a backbone verifies faces that it has never seen."""

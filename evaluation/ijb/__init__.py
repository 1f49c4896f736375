"""The protocols of IJB-B and IJB-C: ``python -m evaluation.ijb``."""

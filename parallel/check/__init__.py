"""The command ``python -m parallel.check``: are hosts fit for a long run, and what to do?"""

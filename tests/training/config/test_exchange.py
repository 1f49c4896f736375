from __future__ import annotations

from dataclasses import replace

import pytest

from parallel.parameter_server.assignment import SERVER, WORKER, Assignment, Share
from runtime.errors import ConfigError
from training.config.exchange import HOROVOD
from training.config.images import ImageConfig, parse

ALONE = None
JOB = Assignment(WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1)
GROUPS = replace(JOB, groups=((0, 1), (2, 3)))
SHARES = replace(JOB, shares=tuple(Share(k / 4, (k + 1) / 4) for k in range(4)))
STORES = "local device nccl local_allreduce_cpu local_allreduce_device"
TOLERANT, TOLERANT_GROUPS = (replace(one, tolerates=True) for one in (JOB, GROUPS))


def parse_line(monkeypatch, assignment: Assignment | None, line: str) -> ImageConfig:
    for name, value in (assignment.variables() if assignment else {}).items():
        monkeypatch.setenv(name, value)
    return parse(f"--dataset synthetic {line}".split())


@pytest.mark.parametrize(
    ("assignment", "line", "bound"),
    [
        (ALONE, "--kv-store horovod --fp16-allreduce --sync-bn --clip-norm 5", None),
        # MXNet's of one process, whose GPUs are ranks here.
        *((ALONE, f"--kv-store {store}", None) for store in STORES.split()),
        (JOB, "--kv-store dist_sync", None),
        (JOB, "--kv-store dist_async --num-examples 1", None),
        (JOB, "--kv-store dist_ssync --staleness 0", 0),
        (GROUPS, "--kv-store dist_gsync --fp16-allreduce --rebalance 1", None),
        (GROUPS, "--kv-store dist_async", None),
        (SHARES, "--kv-store dist_async --data-allocator 1", None),
        (TOLERANT, "--kv-store dist_ssync --staleness 3", 3),
        (JOB, "--kv-store dist_ssync", 0),
    ],
)
def test_options_that_go_together_are_accepted(monkeypatch, assignment, line, bound) -> None:
    found = parse_line(monkeypatch, assignment, line).exchange
    assert found.bound == bound and (assignment or found.kv_store == HOROVOD)


@pytest.mark.parametrize(
    ("assignment", "line", "parts"),
    [
        (JOB, "--kv-store dist_gsink", ["--kv-store 'dist_gsink'", "did you mean 'dist_gsync'?"]),
        (JOB, "--kv-store dist_async --staleness 3", ["--staleness 3", "dist_ssync"]),
        (ALONE, "--staleness 3", ["--staleness 3", "horovod"]),
        (ALONE, "--kv-store dist_sync", ["dist_sync", "python -m parallel.launch"]),
        (replace(JOB, role=SERVER), "--kv-store dist_sync", ["python -m parallel.launch"]),
        (JOB, "", ["parallel.launch", "horovod", "dist_sync"]),
        (JOB, "--kv-store dist_gsync", ["dist_gsync", "--groups"]),
        (GROUPS, "--kv-store dist_gsync --sync-bn", ["--sync-bn", "horovod"]),
        (JOB, "--kv-store dist_async --data-allocator 1", ["--data-allocator 1", "sharding"]),
        (ALONE, "--data-allocator 1", ["--data-allocator 1", "horovod"]),
        (TOLERANT, "--kv-store dist_sync", ["dist_sync", "--tolerate-workers"]),
        (TOLERANT_GROUPS, "--kv-store dist_gsync", ["dist_gsync", "--tolerate-workers"]),
        (JOB, "--kv-store dist_async --dtype float16", ["--dtype float16", "float32"]),
        (JOB, "--kv-store dist_async --clip-norm 5", ["--clip-norm 5", "horovod", "leave it out"]),
        (JOB, "--kv-store dist_async --fp16-allreduce", ["--fp16-allreduce", "dist_async"]),
        (JOB, "--kv-store dist_async --gradient-predivide-factor 2", ["predivide-factor are for"]),
        (ALONE, "--rebalance 2", ["--rebalance 2", "dist_gsync", "horovod"]),
        (JOB, "--kv-store dist_async --rebalance 2", ["--rebalance 2", "dist_gsync", "no groups"]),
    ],
)
def test_mistakes_are_one_line_with_the_remedy(monkeypatch, assignment, line, parts) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_line(monkeypatch, assignment, line)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)

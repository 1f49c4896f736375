"""Groups and shares of the workers, and the order of the servers, from the images/s of each worker.

The published Grouping-SGD clusters the workers' speeds by one-dimensional k-means with a fixed k.
Here the Calinski-Harabasz index chooses k: the spread between the clusters over the spread within.
With few workers that index alone would take the noise of the measurement for structure, since
clusters of one worker have no spread; so clusters count only if their means are further apart than
measurements of equal machines are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallel.launch.cluster_files import Groups
from parallel.parameter_server.assignment import Share

# Machines whose speeds differ by less than this part of the faster one's count as equal.
_SAME = 0.1
_DIGITS = 6


def group(speeds: Sequence[float]) -> Groups:
    """Cluster workers of similar speed, which is their images/s.

    Returns the workers of each group, the fastest group first, and in it the lowest number; one
    group where all speeds are alike.
    """
    # Their import takes a second, for which --help need not wait.
    from sklearn.cluster import KMeans
    from sklearn.metrics import calinski_harabasz_score

    assert min(speeds) > 0, speeds
    values = np.array(speeds)[:, None]
    best, best_score = np.zeros(len(speeds), int), -np.inf
    # The index is not defined for clusters of one each; of two workers there is no other choice.
    most = min(len(np.unique(values)), max(2, len(speeds) - 1))
    for k in range(2, most + 1):
        labels = KMeans(k, n_init=10, random_state=0).fit(values).labels_
        clusters = [values[labels == label] for label in range(k)]
        means = np.sort([cluster.mean() for cluster in clusters])
        has_spread = any(np.ptp(cluster) for cluster in clusters)
        score = calinski_harabasz_score(values, labels) if has_spread else np.inf
        if np.all(means[:-1] < (1 - _SAME) * means[1:]) and score > best_score:
            best, best_score = labels, score
    groups = [np.flatnonzero(best == label) for label in np.unique(best)]
    groups.sort(key=lambda workers: -float(values[workers].mean()))
    return tuple(tuple(int(worker) for worker in workers) for workers in groups)


def shares(groups: Groups, speeds: Sequence[float]) -> tuple[Share, ...]:
    """Give each worker a share in proportion to the speed of the slowest member of its group.

    The members of a group then make equally many steps, each of which waits for the slowest; and
    all groups need the same time for their part of an epoch.
    """
    slowest = {worker: min(speeds[one] for one in group) for group in groups for worker in group}
    parts = np.array([slowest[worker] for worker in range(len(speeds))])
    ends = [round(float(end), _DIGITS) for end in np.cumsum(parts / parts.sum())]
    starts = [0.0, *ends[:-1]]
    return tuple(Share(start, end) for start, end in zip(starts, [*ends[:-1], 1.0]))


def servers(hosts: Sequence[str], speeds: Sequence[float], count: int) -> list[tuple[str, float]]:
    """Place servers on the machines of the workers, the fastest machine first.

    A machine is as fast as its workers together. Where there are more servers than machines, they
    go round, and those of a machine share its speed. Grouping-SGD orders its servers in the same
    way: the first one keeps the lowest layers, whose weights a worker needs first. Returns the
    address and the speed of each server.
    """
    machines: dict[str, float] = {}
    for host, speed in zip(hosts, speeds):
        machines[host] = machines.get(host, 0.0) + speed
    order = sorted(machines, key=lambda host: -machines[host])
    placed = [order[server % len(order)] for server in range(count)]
    return [(host, machines[host] / placed.count(host)) for host in placed]

#!/usr/bin/env bash
# What every rank runs: the choices of one training run, then train.py. Start it on all ranks with one of
#
#   bash run.sh                                                 two ranks on this host, with mpirun
#   horovodrun -np 8 -H localhost:8 bash config.sh              eight ranks on this host
#   horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh             eight ranks on each of two hosts
#
# Each choice can be overridden for one run by the environment (NETWORK=r50 bash run.sh) or by an argument, which is
# passed to train.py and wins (bash run.sh --network r50 --max-update 20). A choice that is left empty is that of the
# preset in DATASET. `python train.py --help` explains all options.
#
# It can be started from any folder: relative paths, among them ./models and ./datasets, are relative to that folder.
set -euo pipefail
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
project=$(CDPATH='' cd "$(dirname "$script")" && pwd)

# The training set: a preset (synthetic, webface, emore, glint360k_8GPU, ...). Your own faces: bash run.sh --rec FOLDER,
# which replaces the folder of a preset; the data of an earlier run: bash run.sh --config FILE. Without any of these:
# synthetic.
DATASET=${DATASET:-}

# The backbone: tiny trains on processors in minutes; r18 ... r200 and mbf need GPUs.
NETWORK=${NETWORK:-}

# The margin softmax: arcface, cosface (0.35, in InsightFace's presets 0.4), adaface, curricularface, magface, softmax.
LOSS=${LOSS:-}

# Images per rank and update. The global batch is this times the number of ranks.
BATCH_SIZE=${BATCH_SIZE:-}

# The learning rate at the full number of ranks, after the warm-up.
LR=${LR:-}

# The share of a rank's classes that takes part in each update; the classes in the batch always do.
SAMPLE_RATIO=${SAMPLE_RATIO:-}

# The number of updates to train for.
MAX_UPDATE=${MAX_UPDATE:-}

# The folder for the model, the checkpoints and the logs. If empty, it is named by data set and network, such as
# models/synthetic-tiny; the first lines of a run print it.
MODELS_ROOT=${MODELS_ROOT:-}

# The environment of `make env`, unless another one is active.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -d $project/.venv ]]; then
    export PATH=$project/.venv/bin:$PATH
fi

# With it, Python would not search the project's folder for the modules of the programs.
unset PYTHONSAFEPATH

# The variables that MXNet, Horovod and Numba read, among them the number of threads: this rank's share of its host's
# processors. Variables that are set keep their values: OMP_NUM_THREADS=4 bash run.sh. The table with the reasons is in
# runtime/environment.py.
settings=$(cd "$project" && python -m runtime.environment)
eval "$settings"

options=()
choose() {
    if [[ -n $2 ]]; then options+=("$1" "$2"); fi
}
if [[ -z $DATASET && " $* " != *" --rec"[\ =]* && " $* " != *" --config"[\ =]* ]]; then DATASET=synthetic; fi
choose --dataset "$DATASET"
choose --network "$NETWORK"
choose --loss "$LOSS"
choose --batch-size "$BATCH_SIZE"
choose --lr "$LR"
choose --sample-ratio "$SAMPLE_RATIO"
choose --max-update "$MAX_UPDATE"
choose --models-root "$MODELS_ROOT"

exec python "$project/train.py" ${options[@]+"${options[@]}"} "$@"

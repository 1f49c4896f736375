#!/usr/bin/env bash
# Exercise 5 of the lab: kills one of two ranks in the middle of a run, which starts again by itself, and compares the
# result with that of a run that nothing has disturbed. Both are in models/lab of the folder where this is called.
set -euo pipefail
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
project=$(CDPATH='' cd "$(dirname "$script")/../.." && pwd)

# train FOLDER ARGUMENTS...: two ranks, 60 updates of made-up images, a checkpoint after every 20.
train() {
    local folder=$1
    shift
    NP=2 bash "$project/run.sh" "$@" --debug --num-classes 100 --num-images 400 --batch-size 8 --embedding-size 32 \
        --val-targets= --max-update 60 --save-interval 20 --frequent 20 --models-root "$folder" >"$folder/output" 2>&1
}

# The process of rank 1 of the run that writes into a folder.
second_rank() {
    local process
    for process in $(pgrep -f "train.py .*--models-root $1\$"); do
        if tr '\0' '\n' <"/proc/$process/environ" | grep -qx OMPI_COMM_WORLD_RANK=1; then echo "$process"; fi
    done
}

rm -rf models/lab
mkdir -p models/lab/whole models/lab/killed
train models/lab/whole
train models/lab/killed --restarts 1 &
run=$!
until grep -qs "update-00000020 written" models/lab/killed/logs/rank-0000.log; do
    kill -0 "$run"
    sleep 0.1
done
kill -KILL "$(second_rank models/lab/killed)"
echo "killed rank 1 behind the checkpoint of update 20"
wait "$run"
grep -oE "(run.sh: the run ended|resumed at update).*" models/lab/killed/output
if cmp models/lab/whole/model-0000.params models/lab/killed/model-0000.params; then
    echo "both runs have ended with the same bytes"
fi

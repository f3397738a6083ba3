#!/bin/sh
# Write requirements/*.lock from pyproject.toml: every version and hash, for Linux and macOS, Python 3.11 and newer.
# Usage: tools/lock.sh [--upgrade]      (uv must be on the PATH; `make lock` sees to it)
#
# image.lock is resolved first and constrains the others, so that the versions under test are the versions that ship.
set -eu
cd "$(dirname "$0")/.."

compile() { # name, then the options that choose what is in it
    name=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command "make lock" --output-file "requirements/$name.lock" "$@"
}

compile image pyproject.toml --extra kalman --extra arima --extra prophet --extra kafka "$@"
compile demo pyproject.toml --extra kalman --constraints requirements/image.lock "$@"
compile dev pyproject.toml --extra kalman --extra arima --extra prophet --extra plot --extra kafka --group dev \
    --constraints requirements/image.lock "$@"
compile build --group pyproject.toml:build --constraints requirements/dev.lock "$@"
compile mutants --group pyproject.toml:mutants --constraints requirements/dev.lock "$@"

#!/bin/sh
# Make .venv hold what a lock file names, and the project itself, installed editable.
# Usage: tools/venv.sh demo|dev      PYTHON=/path/to/python3 chooses the interpreter
set -eu
cd "$(dirname "$0")/.."
want=$1
venv=.venv

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

recent() { # is this a Python that works and is at least 3.11?
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python3.14}; do
        if recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer found${PYTHON:+ at $PYTHON}. Install one (Debian: apt-get install python3 python3-venv;" \
        "macOS: brew install python@3.13), or name it: make test PYTHON=/path/to/python3"
}

can_make_venvs() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

make_venv() { # Debian ships venv and ensurepip apart from Python
    python=$1
    say "Creating $venv with $("$python" --version) ..."
    rm -rf "$venv"
    if ! can_make_venvs "$python"; then
        if "$python" -m virtualenv --version >/dev/null 2>&1; then
            "$python" -m virtualenv --quiet "$venv"
            return
        elif command -v virtualenv >/dev/null 2>&1; then
            virtualenv --quiet --python "$python" "$venv"
            return
        elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
            say "Installing $package ..."
            apt-get update -qq >/dev/null && apt-get install -y -qq "$package" >/dev/null ||
                die "apt-get could not install $package, without which $python makes no virtual environment"
        else
            die "$python cannot make virtual environments. Debian: sudo apt-get install python3-venv; elsewhere: pip install virtualenv"
        fi
    fi
    "$python" -m venv "$venv"
}

case $want in
demo) locks="requirements/build.lock requirements/demo.lock" ;;
dev) locks="requirements/build.lock requirements/dev.lock" ;;
*) die "usage: tools/venv.sh demo|dev, not '$want'" ;;
esac

if ! recent "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    make_venv "$python"
fi
say "Installing the locked $want dependencies into $venv ..."
pip="$venv/bin/python -m pip --disable-pip-version-check --no-input"
for lock in $locks; do
    $pip install --quiet --no-deps --no-build-isolation --require-hashes -r "$lock" # what is built, is built with build.lock
done
$pip install --quiet --no-deps --no-build-isolation --editable .

#!/bin/sh
# Change the numbers of models/scaling and models/perf one by one, and see whether a test notices (cosmic-ray).
# Usage: tools/mutants.sh [folder or file ...]     default: both packages. What is committed is mutated, in a copy.
#
# OPERATORS  regular expression of cosmic-ray's operators. Default: core/NumberReplacer, every number, one up and one down
# SESSION    file with the results, default .venv/mutants.sqlite: a run that was stopped goes on, a finished one is shown again
#
# A mutant meets the tests of its module, then those of its package, then those of what is built on it and the properties.
# It costs seconds; all of them together an hour or two.
set -eu
cd "$(dirname "$0")/.."
operators=${OPERATORS:-core/NumberReplacer}
session=${SESSION:-$PWD/.venv/mutants.sqlite}
root=$PWD
python=$root/.venv/bin/python
tools=$root/.venv/mutants
[ $# -gt 0 ] || set -- models/scaling models/perf

if [ ! -x "$tools/bin/cosmic-ray" ]; then # of its own: nothing else needs what it brings along
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --require-hashes \
        -r requirements/mutants.lock
fi

copy=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$copy"' EXIT
trap 'exit 130' INT TERM
git worktree add --quiet --detach "$copy" HEAD
cd "$copy"

cat >"$copy/test.sh" <<EOF
set -e
cd "$copy"
export PYTHONPATH="$copy" PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
plugins="-p pytest_asyncio.plugin -p pytest_timeout -p _hypothesis_pytestplugin -p no:cacheprovider"
test() { "$python" -m pytest -q -x --assert=plain \$plugins "\$@"; }
changed=\$(git diff --name-only -- models)
package=models/\$(basename "\$(dirname "\${changed:-models/./all}")")
near=tests/unit/\$package/test_\$(basename "\$changed" .py).py
if [ -e "\$near" ]; then test "\$near" "tests/unit/\$package/test_at_the_bound.py"; fi
test "tests/unit/\$package"
test tests/unit/models/scaling tests/property/test_scaling*.py tests/property/test_perf*.py
EOF

# Compiled once and never again: a file that was mutated is newer than what was made of it, and compiled in memory.
"$python" -m compileall -q headrace tests
sleep 1
sh test.sh >/dev/null || { echo "error: tests fail before anything is mutated: run make test" >&2; exit 1; }

cat >mutants.toml <<EOF
[cosmic-ray]
module-path = [$(printf '"%s", ' "$@")]
timeout = 300.0
excluded-modules = []
test-command = "sh $copy/test.sh"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = ["^(?!$operators).*"]
EOF
if [ ! -e "$session" ]; then
    "$tools/bin/cosmic-ray" init mutants.toml "$session"
    "$tools/bin/cr-filter-operators" "$session" mutants.toml 2>/dev/null
fi
nice -n 19 "$tools/bin/cosmic-ray" exec mutants.toml "$session"
"$python" "$root/tools/mutants_report.py" "$session"

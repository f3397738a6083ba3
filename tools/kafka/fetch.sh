#!/bin/sh
# Put the Kafka that the tests run into a cache outside the repository, and print where its jars lie.
# Usage: tools/kafka/fetch.sh          KAFKA_CACHE=DIR chooses another cache
#
# Maven resolves pom.xml from wherever this machine's Maven is set up to; checksums.sha256 decides whether that is taken.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/.*<kafka.version>\(.*\)<\/kafka.version>.*/\1/p' "$here/pom.xml")
cache=${KAFKA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/kafka}
lib=$cache/$version

sums() { # Linux and macOS
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

whole() { # are all the jars there, and as they should be?
    [ -d "$1" ] && (cd "$1" && sums --check --quiet --strict "$here/checksums.sha256") >/dev/null 2>&1
}

if ! whole "$lib"; then
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    mvn --batch-mode --quiet --strict-checksums -f "$here/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$new/lib" >"$new/log" 2>&1 || {
        cat "$new/log" >&2
        exit 1
    }
    if [ "${1:-}" = --pin ]; then # after a change of pom.xml: write down what Maven has found
        (cd "$new/lib" && sums -- *.jar) >"$here/checksums.sha256"
    fi
    (cd "$new/lib" && sums --check --quiet --strict "$here/checksums.sha256") >&2 || {
        echo "Kafka $version: Maven found other files than checksums.sha256 says" >&2
        exit 1
    }
    rm -rf "$lib"
    mv "$new/lib" "$lib" 2>/dev/null || whole "$lib" # another process may have been quicker
fi
echo "$lib"

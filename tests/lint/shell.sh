#!/bin/sh
# The scripts at the top pass shellcheck. Skipped where there is none: it is no dependency of the project.
cd "$1" || exit 1
if ! command -v shellcheck >/dev/null 2>&1; then
    echo "shellcheck is not installed"
    exit 77
fi
shellcheck -x quickstart check .ci/run .ci/packages.sh tests/gpu/run tests/gpu/sanitize tests/lint/shell.sh

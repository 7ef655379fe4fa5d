#!/bin/sh
# Runs the Python client against a broker: tests/interop/python.sh HOST:PORT WORK_DIRECTORY
#
# The packages go into a virtual environment in the work directory, which is made anew only when the pinned versions or
# Python changed. The stubs are generated anew each time. Exit code 77: there is no Python, or no packages are to be had.
set -eu

address=$1
mkdir -p "$2"
work=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

skip() {
    echo "$1" >&2
    exit 77
}

# pip is installed into the environment only where Python has none outside: that takes longer than all the rest.
environment() {
    python3 -m venv --clear --without-pip "$work/venv" || return 1
    python3 -m pip --python "$work/venv/bin/python" --version >/dev/null 2>&1 && return 0
    python3 -m venv --clear "$work/venv"
}

install() {
    if [ -e "$work/venv/bin/pip" ]; then pip="$work/venv/bin/python -m pip"; else pip="python3 -m pip --python $work/venv/bin/python"; fi
    # Nothing is compiled: that would take minutes, and fail late.
    $pip install --quiet --no-compile --only-binary :all: --retries 1 --timeout 30 -r "$here/requirements.txt"
}

command -v python3 >/dev/null || skip "there is no python3 on the PATH"
wanted="$(python3 --version) $(command -v python3) $(cat "$here/requirements.txt")"
if [ "$(cat "$work/installed" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$work/installed"
    environment >"$work/log" 2>&1 || skip "python3 -m venv failed: $(tail -n 3 "$work/log")"
    install >"$work/log" 2>&1 || skip "pip could not install the pinned packages: $(tail -n 3 "$work/log")"
    printf '%s' "$wanted" >"$work/installed"
fi

# The guide's own commands make the stubs, in a directory like the one in which its reader is.
cd "$work"
rm -rf client
ln -sfn "$root/proto" proto
sed -n '/^mkdir -p client$/,/^```$/p' "$root/docs/guide.md" | sed '$d' | sh -eu
for program in tour pages; do
    PYTHONPATH=client PYTHONDONTWRITEBYTECODE=1 venv/bin/python "$here/$program.py" "$address"
done

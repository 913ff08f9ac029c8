#!/bin/sh
# Run, wait, run again: again.sh SECONDS [options of a run]
#
# SIGTERM and SIGINT are passed on to the run, which writes what is packed; its exit code becomes ours.

every=$1
shift
stopped= child=
trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT

# A trap ends `wait` early; the child's own exit code comes with the next one.
finish() {
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        code=$?
    done
    child=
}

while [ -z "$stopped" ]; do
    python -m ingestor run "$@" &
    child=$!
    finish
    echo "exit code $code; next run in $every s" >&2
    [ -z "$stopped" ] || exit "$code"
    sleep "$every" &
    child=$!
    finish
done

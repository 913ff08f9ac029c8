#!/bin/sh
# All that needs a GPU: the tests and the benchmarks. Installs nothing. Usable in parts:
#
#   benchmarks/gpu_session.sh FOLDER [tests] [ladder] [encode] [end_to_end]
#
# leaves in FOLDER a log of each and what they found, as JSON lines. PYTHON names the interpreter.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=${1:?say in which folder to leave the results}
shift
[ $# -gt 0 ] || set -- tests ladder encode end_to_end
python=${PYTHON:-python3}
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$folder"
failed=0
for part; do
    started=$(date +%s)
    case $part in
        tests) "$python" -m pytest -q -m gpu >"$folder/tests.log" 2>&1 || failed=1 ;;
        *) "$python" "benchmarks/$part.py" $(eval "printf %s \"\${${part}_OPTIONS:-}\"") \
            >"$folder/$part.jsonl" 2>"$folder/$part.log" || failed=1 ;;
    esac
    echo "$part: $(($(date +%s) - started)) s"
    tail -n 30 "$folder/$part.log"
    [ "$part" = tests ] || cat "$folder/$part.jsonl"
done
exit $failed

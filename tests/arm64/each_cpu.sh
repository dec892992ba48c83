#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command once for each emulated CPU, which it finds in QEMU_CPU, several at a time. Each has a log of its own,
# printed when it ends. All of them run, whatever the others did; this fails when one of them failed.
#
#   tests/arm64/each_cpu.sh AT_ONCE LOGS "CPU ..." COMMAND [ARGUMENT ...]
#
# xargs does the waiting: bash's "wait -n" loses jobs that end while nobody waits (5.2).
set -euo pipefail
at_once=$1 logs=$2 cpus=$3
shift 3

one='
    logs=$1 cpu=${!#}
    QEMU_CPU=$cpu "${@:2:$#-2}" >"$logs/$cpu.log" 2>&1
    status=$?
    exec 9>"$logs/lock" && flock 9
    case $status in 0) echo "== $cpu: passed" ;; *) echo "== $cpu: FAILED with status $status" ;; esac
    cat "$logs/$cpu.log"
    [ "$status" -eq 0 ]'
# shellcheck disable=SC2086 # one word each
printf '%s\0' $cpus | xargs -0 -n 1 -P "$at_once" bash -c "$one" each_cpu "$logs" "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The thread pool under ThreadSanitizer, natively: sh tests/tsan.sh [ROUNDS]. Exit status 0 when it is clean.
# x86 hides missing memory barriers that ARM shows; the sanitizer judges by the orders that are written down.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
${CC:-cc} -std=gnu11 -g -O1 -fsanitize=thread -Wall -Wextra -Icsrc -I. tests/c/threads_driver.c csrc/base/threads.c \
    csrc/base/clock.c csrc/base/status.c -o "$out/driver" -pthread
run="$out/driver"
# Older runtimes refuse some randomized layouts.
command -v setarch >/dev/null && run="setarch -R $run"
# 0: no fork, a forked child cannot start threads under the sanitizer.
TSAN_OPTIONS=exitcode=66 $run check "${1:-2}" 0

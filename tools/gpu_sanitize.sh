#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a small suite of every kernel for GPUs under NVIDIA's compute-sanitizer: memcheck, racecheck, initcheck and
# synccheck, or the tools named. A first run without it compiles the kernels. Ends with 77 where there is no GPU, no
# compute-sanitizer, or none that takes this GPU; fails if a tool finds something, or if a run does not end in time.
# Usage: gpu_sanitize.sh <folder of the tests> [tool ...]
set -u
tests=$(cd "$1" && pwd) || exit 2
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
seconds=${EJK_SANITIZER_SECONDS:-240} # of one run

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
    echo "skipped: there is no compute-sanitizer"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${EJKERNEL_CUDA_CACHE:=$work/cubins}"
export EJKERNEL_CUDA_CACHE EJK_TEST_EXACT=1

# Of each suite: its name, the program, and what the environment tells it. Seeds at which every kernel has cases.
suites() {
    echo "sm90 test_conformance EJK_TEST_FILTER=sm90 EJK_TEST_CASES=8"
    echo "general test_conformance EJK_TEST_CASES=4"
    echo "sparse test_sparse_cuda EJK_TEST_CASES=2"
}

suites | while read -r name program settings; do
    env $settings "$tests/$program" >"$work/$name.plain" 2>&1
    echo $? >"$work/$name.status"
done
if [ "$(cat "$work/sm90.status")" -eq 77 ]; then
    cat "$work/sm90.plain"
    exit 77
fi

# Racecheck takes a barrier in shared memory for one that orders what the arriving thread did, and no other: in
# backward_sm90 one lane arrives for a warp that has met. With all lanes arriving it finds nothing there.
exceptions() {
    case $1 in
    racecheck) echo "--kernel-name-exclude kernel_name=backward_sm90" ;;
    esac
}

# One process, so that what a tool says is not mixed.
run() { # tool name program settings
    tool=$1 name=$2 program=$3
    shift 3
    env "$@" EJK_TEST_PROCESSES=1 timeout -k 5 "$seconds" "$sanitizer" --tool "$tool" --target-processes all \
        $(exceptions "$tool") --error-exitcode 9 "$tests/$program" >"$work/$tool.$name" 2>&1
    echo $? >"$work/$tool.$name.status"
}

# All at once: each takes one processor and little of the GPU.
for tool in "$@"; do
    suites >"$work/suites"
    while read -r name program settings; do
        run "$tool" "$name" "$program" $settings &
    done <"$work/suites"
done
wait

failed=0 skipped=0 passed=0
for tool in "$@"; do
    while read -r name program settings; do
        log=$work/$tool.$name status=$(cat "$work/$tool.$name.status")
        found=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sort | uniq -c |
                sed 's/^ *\([0-9]*\) =* */\1 times /' | tr '\n' ';')
        if [ -z "$found" ] &&
           grep -qiE 'not supported|unsupported|unable to (find|use|attach)|insufficient permission' "$log"; then
            echo "$tool $name: skipped: $(grep -iE 'not supported|unsupported|unable to|insufficient' "$log" | head -1)"
            skipped=$((skipped + 1))
        elif [ "$status" -eq 0 ] && [ -n "$found" ]; then
            echo "$tool $name: $found"
            passed=$((passed + 1))
        elif [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
            echo "$tool $name: FAIL it took more than $seconds s; $found"
            failed=$((failed + 1))
        else
            echo "$tool $name: FAIL ($status); $found"
            grep -oE 'at [a-z_0-9]+\+0x' "$log" | sort | uniq -c | head -12
            grep -E '^=========|FAIL' "$log" | head -12
            failed=$((failed + 1))
        fi
    done <"$work/suites"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77

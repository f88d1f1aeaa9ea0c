/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for GPUs, compiled for sm_80 and sm_90a with the constants that their launchers give
 * them, without a GPU: registers and bytes spilled stay within what is recorded here, and no warning comes. Limits are
 * what NVRTC 13 makes of them and a little more; raise one only with a measurement that says why. Answers 77 where
 * there is no NVRTC. EJK_TEST_PROCESSES share the work; EJK_TEST_FILTER is a part of a text's name.
 */
#include "device/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, MOST_PROCESSES = 32 };

/* A kernel's text, its constants, and how many bytes a thread may spill on either architecture; -1: not for it. */
struct row {
    const char *text, *constants;
    int spills[2];
};

static const char *const architectures[] = {"sm_80", "sm_90a"};

#define BLOCK_MASK  " MASK_QUERIES=128 MASK_KEYS=128"
#define ALL_OPTIONS " BIAS=1 MASK=1 SEGMENTS=1 SOFT_CAP=1 DROPOUT=1"

/* clang-format off */
static const struct row rows[] = {
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 ROW_TILES=2 KEYS=64 STAGES=2 FOLDED=1", {96, 176}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 ROW_TILES=2 KEYS=64 STAGES=2 FOLDED=1", {32, 32}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 ROW_TILES=1 KEYS=64 STAGES=2 FOLDED=1", {32, 32}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=256 VALUE_DIM=256 WARPS=4 ROW_TILES=1 KEYS=64 STAGES=1 FOLDED=1", {32, 32}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=1 ROW_TILES=1 KEYS=64 STAGES=2 FOLDED=1", {32, 32}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 ROW_TILES=2 KEYS=64 STAGES=2 FOLDED=0" ALL_OPTIONS, {464, 448}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=4 HEAD_DIM=80 VALUE_DIM=80 WARPS=4 ROW_TILES=1 KEYS=64 STAGES=2 FOLDED=0" ALL_OPTIONS, {96, 96}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=64 STAGES=3 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=4 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=160 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=1", {-1, 880}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=4 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=3 KEYS=80 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=1", {-1, 500}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=3 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=1", {-1, 450}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=3 KEYS=80 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=3 KEYS=64 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=4 KEYS=64 STAGES=4 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=112 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=3 KEYS=80 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=0 SOFT_CAP=1 BOUNDED=1 TERMS=2", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "LAYOUT=1 ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=4 KEYS=64 STAGES=4 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=112 FOLDED=0 SOFT_CAP=1", {-1, 640}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=1 KEYS=128 STAGES=2 BLOCKS=2 PRODUCER_REGS=24 CONSUMER_REGS=232 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=1 KEYS=64 STAGES=2 BLOCKS=2 PRODUCER_REGS=24 CONSUMER_REGS=232 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=1 KEYS=64 STAGES=3 BLOCKS=3 PRODUCER_REGS=24 CONSUMER_REGS=136 PIECES=1 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=4 HEAD_DIM=80 VALUE_DIM=80 CONSUMERS=2 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 FOLDED=1", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=4 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=0 SOFT_CAP=1", {-1, 340}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=0 SOFT_CAP=1 BOUNDED=1 TERMS=2", {-1, 340}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=3 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=0 SOFT_CAP=1 BOUNDED=1 TERMS=2", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=3 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=32 CONSUMER_REGS=160 PIECES=1 FOLDED=0 SOFT_CAP=1 BOUNDED=1 TERMS=3", {-1, 240}},
    {"operations/attention/cuda/sm90/forward.cu", "LAYOUT=1 ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=128 STAGES=2 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/forward.cu", "LAYOUT=2 ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=2 KEYS=128 STAGES=3 BLOCKS=1 PRODUCER_REGS=24 CONSUMER_REGS=240 PIECES=1 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/recompute.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 CONSUMERS=2 KEYS=128 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/recompute.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=4 KEYS=64 FOLDED=1", {-1, 340}},
    {"operations/attention/cuda/sm90/recompute.cu", "LAYOUT=1 ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=3 KEYS=128 FOLDED=0 SOFT_CAP=1", {-1, 340}},
    {"operations/attention/cuda/sm90/recompute.cu", "LAYOUT=1 ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 CONSUMERS=3 KEYS=128 FOLDED=0 SOFT_CAP=1 BOUNDED=1 TERMS=2", {-1, 340}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_QUERY=1", {240, 216}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "LAYOUT=1 ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_KEY=1 D_VALUE=1", {112, 144}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_KEY=1 D_VALUE=1", {80, 112}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_QUERY=1", {32, 32}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_KEY=1 D_VALUE=1", {32, 32}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=256 VALUE_DIM=256 WARPS=4 BLOCK=32 STAGES=1 FOLDED=1 D_QUERY=1", {144, 128}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=256 VALUE_DIM=256 WARPS=4 BLOCK=32 STAGES=1 FOLDED=1 D_KEY=1", {32, 144}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 BLOCK=32 STAGES=2 FOLDED=0 D_QUERY=1" ALL_OPTIONS, {32, 32}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 BLOCK=32 STAGES=2 FOLDED=0 D_KEY=1 D_VALUE=1" ALL_OPTIONS, {32, 32}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 RECOMPUTES=1 D_QUERY=1", {-1, 240}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 RECOMPUTES=1 D_KEY=1 D_VALUE=1", {-1, 200}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 ROWS=64 ORDERED=1", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 ROWS=64 ORDERED=0", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 ROWS=128 ORDERED=1", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 ROWS=128 ORDERED=0", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 ROWS=64 ORDERED=1", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=4 HEAD_DIM=80 VALUE_DIM=80 ROWS=64 ORDERED=1", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=64 ROWS=64 ORDERED=1", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=128 ROWS=64 ORDERED=1 D_QUERY=0", {-1, 560}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 ROWS=64 ORDERED=1 SOFT_CAP=1", {-1, 640}},
    {"operations/attention/cuda/sm90/backward.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 ROWS=64 ORDERED=1 SOFT_CAP=1", {-1, 560}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 ROW_TILES=2 KEYS=64 STAGES=2 FOLDED=1" BLOCK_MASK, {336, 336}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 ROW_TILES=1 KEYS=64 STAGES=1 FOLDED=0 POSITIONS=1 CHUNKED=1" BLOCK_MASK ALL_OPTIONS, {96, 96}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_QUERY=1" BLOCK_MASK, {256, 256}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 BLOCK=64 STAGES=2 FOLDED=1 D_KEY=1 D_VALUE=1" BLOCK_MASK, {400, 384}},
    {"operations/attention/cuda/sm80/backward_mma.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 BLOCK=32 STAGES=2 FOLDED=1 FUNCTION=1 CHUNKED=1 D_KEY=1 D_VALUE=1", {32, 32}},
    {"operations/attention/cuda/sm80/backward_plain.cu", "ELEMENT=2 HEAD_DIM=64 VALUE_DIM=64 ROWS=4 POSITIONS=1" BLOCK_MASK, {368, 416}},
    {"operations/attention/cuda/common/block_mask.cu", "", {0, 0}},
    {"operations/attention/cuda/sm80/forward_plain.cu", "ELEMENT=2 HEAD_DIM=64 VALUE_DIM=64 ROWS=4", {32, 32}},
    {"operations/attention/cuda/sm80/forward_plain.cu", "ELEMENT=2 HEAD_DIM=128 VALUE_DIM=128 ROWS=4", {48, 64}},
    {"operations/attention/cuda/sm80/forward_plain.cu", "ELEMENT=2 HEAD_DIM=576 VALUE_DIM=576 ROWS=2", {48, 32}},
    {"operations/attention/cuda/sm80/forward_plain.cu", "ELEMENT=4 HEAD_DIM=64 VALUE_DIM=64 ROWS=4" ALL_OPTIONS, {32, 32}},
    {"operations/attention/cuda/sm80/backward_plain.cu", "ELEMENT=2 HEAD_DIM=64 VALUE_DIM=64 ROWS=4", {32, 144}},
    {"operations/attention/cuda/sm80/backward_plain.cu", "ELEMENT=2 HEAD_DIM=576 VALUE_DIM=576 ROWS=2", {80, 96}},
    {"operations/attention/cuda/sm80/backward_plain.cu", "ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 ROWS=4" ALL_OPTIONS, {96, 96}},
    {"operations/attention/cuda/sm80/backward_bias.cu", "ELEMENT=2 HEAD_DIM=64 VALUE_DIM=64 ROWS=4 BIAS=1 ALL_QUERIES=0", {96, 96}},
    {"operations/attention/cuda/sm80/backward_bias.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 ROWS=4 BIAS=1 ALL_QUERIES=1", {96, 96}},
    {"operations/attention/cuda/sm80/backward_rows.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128", {96, 96}},
    {"operations/attention/dense/cuda/weights.cu", "ELEMENT=2 HEAD_DIM=128 VALUE_DIM=128 ROWS=4", {32, 32}},
    {"operations/attention/dense/cuda/weights.cu", "ELEMENT=3 HEAD_DIM=576 VALUE_DIM=64 ROWS=2" ALL_OPTIONS, {96, 96}},
    {"operations/attention/merge/cuda/merge_vjp.cu", "ELEMENT=2 VECTOR=4 LANES=32", {0, 0}},
    {"operations/attention/merge/cuda/merge_vjp.cu", "ELEMENT=3 VECTOR=8 LANES=16", {0, 0}},
    {"operations/attention/merge/cuda/merge_vjp.cu", "ELEMENT=4 VECTOR=1 LANES=32", {0, 0}},
    {"operations/attention/merge/cuda/merge.cu", "ELEMENT=3 OUT=3 VECTOR=8 LANES=16", {0, 0}},
    {"operations/pooling/mean_pooling/cuda/mean_pooling.cu", "ELEMENT=2 VECTOR=4 LANES=32", {0, 0}},
    {"operations/pooling/mean_pooling/cuda/mean_pooling.cu", "ELEMENT=3 VECTOR=8 LANES=16", {0, 0}},
    {"operations/pooling/mean_pooling/cuda/mean_pooling.cu", "ELEMENT=4 VECTOR=1 LANES=1", {0, 0}},
    {"operations/attention/cuda/sm80/decode.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=8 STAGES=3 DIRECT=0 HALVES=1 RESIDENT=1 FOLDED=1 OVERLAP=0", {32, 32}},
    {"operations/attention/cuda/sm80/decode.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=4 STAGES=3 DIRECT=0 HALVES=1 RESIDENT=2 FOLDED=1 OVERLAP=0", {32, 32}},
    {"operations/attention/cuda/sm80/decode.cu", "ELEMENT=4 HEAD_DIM=256 VALUE_DIM=256 WARPS=4 STAGES=3 DIRECT=0 HALVES=2 RESIDENT=1 FOLDED=1 OVERLAP=0", {64, 64}},
    {"operations/attention/cuda/sm80/decode.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128 WARPS=8 STAGES=1 DIRECT=1 HALVES=1 RESIDENT=1 FOLDED=1 OVERLAP=0", {144, 96}},
    {"operations/attention/cuda/sm80/decode.cu", "ELEMENT=4 HEAD_DIM=96 VALUE_DIM=64 WARPS=8 STAGES=6 DIRECT=0 HALVES=2 RESIDENT=1 FOLDED=0 OVERLAP=0 SOFT_CAP=1", {32, 32}},
    {"operations/attention/cuda/sm80/combine.cu", "ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128", {96, 96}},
    {"operations/attention/cuda/sm80/combine.cu", "LAYOUT=1 ELEMENT=3 HEAD_DIM=128 VALUE_DIM=128", {96, 96}},
    {"operations/attention/cuda/sm80/forward_mma.cu", "LAYOUT=1 ELEMENT=3 HEAD_DIM=64 VALUE_DIM=64 WARPS=4 ROW_TILES=2 KEYS=64 STAGES=2 FOLDED=1", {32, 32}},
    {"operations/attention/cuda/sm80/combine.cu", "ELEMENT=2 HEAD_DIM=64 VALUE_DIM=64 DROPOUT=1", {96, 96}},
    {"kernels/cuda/ceiling.cu", "KIND=0 ELEMENT=3", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=1 ELEMENT=3", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=1 ELEMENT=4", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=2 ELEMENT=3", {-1, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=2 ELEMENT=4", {-1, 0}},
    {"operations/recurrent/cuda/scan.cu", "PARTS=4 THREADS=128 TOKENS=15 UPDATE=1 BEFORE=0 REST=32", {32, 32}},
    {"operations/recurrent/cuda/scan.cu", "PARTS=4 THREADS=128 TOKENS=15 UPDATE=0 BEFORE=1 REST=32", {32, 32}},
    {"operations/recurrent/cuda/scan.cu", "PARTS=32 THREADS=128 TOKENS=1 UPDATE=2 BEFORE=0 REST=32", {0, 0}},
    {"operations/recurrent/cuda/scan.cu", "PARTS=1 THREADS=128 TOKENS=16 UPDATE=0 BEFORE=0 REST=32", {0, 0}},
    {"operations/matmul/cuda/product_mma.cu", "ELEMENT=3 A_FLIPPED=0 B_FLIPPED=0 GATHER=0 ROWS=128 COLUMNS=128 WARPS_Y=2 WARPS_X=4 STAGES=3", {0, 0}},
    {"operations/matmul/cuda/product_mma.cu", "ELEMENT=4 A_FLIPPED=1 B_FLIPPED=1 GATHER=0 ROWS=128 COLUMNS=128 WARPS_Y=2 WARPS_X=4 STAGES=3", {32, 32}},
    {"operations/matmul/cuda/product_mma.cu", "ELEMENT=3 A_FLIPPED=0 B_FLIPPED=1 GATHER=1 ROWS=16 COLUMNS=64 WARPS_Y=1 WARPS_X=4 STAGES=6", {0, 0}},
    {"operations/matmul/cuda/product_plain.cu", "ROWS=64 COLUMNS=64 QUANT=0 FOLD=0", {0, 0}},
    {"operations/matmul/cuda/product_plain.cu", "ROWS=128 COLUMNS=128 QUANT=1 FOLD=0", {0, 0}},
    {"operations/matmul/cuda/product_plain.cu", "ROWS=64 COLUMNS=64 QUANT=0 FOLD=1", {0, 0}},
    {"operations/matmul/cuda/scatter.cu", "", {0, 0}},
    {"operations/paged/cuda/look.cu", "", {0, 0}},
    {"operations/paged/cuda/attend.cu", "VALUE_CHUNKS=1", {0, 0}},
    {"operations/paged/cuda/attend.cu", "VALUE_CHUNKS=4", {400, 400}},
    {"operations/paged/cuda/combine.cu", "", {0, 0}},
    {"operations/paged/cuda/update.cu", "", {0, 0}},
    {"operations/paged/cuda/copy.cu", "", {32, 32}},
    {"operations/state_space/causal_conv1d/cuda/causal_conv1d.cu", "ELEMENT=3 WIDTH=4 SILU=1 SEGMENT=64", {0, 0}},
    {"operations/state_space/causal_conv1d/cuda/causal_conv1d.cu", "ELEMENT=2 WIDTH=1 SILU=0 SEGMENT=64", {0, 0}},
    {"operations/state_space/state_space_v1/cuda/state_space_v1.cu", "ELEMENT=3 STATES=16 GATE=1 SOFTPLUS=1 CHUNK=16", {0, 0}},
    {"operations/state_space/state_space_v1/cuda/state_space_v1.cu", "ELEMENT=2 STATES=1 GATE=0 SOFTPLUS=0 CHUNK=16", {4, 4}},
    {"operations/norm/gated_rms_norm/cuda/gated_rms_norm.cu", "ELEMENT=3 GATE=1 WEIGHT=1 NORM_FIRST=1 SILU=1 BLOCK_ROWS=16", {0, 0}},
    {"operations/norm/gated_rms_norm/cuda/gated_rms_norm.cu", "ELEMENT=4 GATE=0 WEIGHT=0 NORM_FIRST=0 SILU=0 BLOCK_ROWS=16", {8, 8}},
};
/* clang-format on */

static int constants_of(char *text, ejki_cuda_constant *list) {
    int count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        if (!value) abort();
        *value = '\0';
        list[count++] = (ejki_cuda_constant){word, strtoll(value + 1, NULL, 10)};
    }
    return count;
}

/* The largest number before `what` in a log; -1 if it is not there. */
static int largest(const char *log, const char *what) {
    int most = -1;
    for (const char *at = strstr(log, what); at; at = strstr(at + 1, what)) {
        const char *start = at;
        while (start > log && start[-1] >= '0' && start[-1] <= '9') start--;
        const int value = atoi(start);
        if (value > most) most = value;
    }
    return most;
}

static bool check(const struct row *row, int which) {
    char text[512];
    ejki_cuda_constant list[32];
    ejki_cuda_image image;
    snprintf(text, sizeof text, "%s", row->constants);
    const int count = constants_of(text, list);
    if (row->spills[which] < 0) return true;
    const ejki_cuda_source *source = ejki_cuda_text(row->text);
    if (!source) {
        printf("FAIL %s: there is no such text\n", row->text);
        return false;
    }
    if (ejki_cuda_compile(architectures[which], source, list, count, &image) != EJK_OK) {
        printf("FAIL %s %s [%s]: %s\n", row->text, architectures[which], row->constants,
               ejk_last_error());
        return false;
    }
    const int registers = largest(image.log, " registers");
    const int spilled = largest(image.log, " bytes spill stores");
    const bool warned = strstr(image.log, "warning") || strstr(image.log, "C75");
    const bool good =
        registers > 0 && spilled >= 0 && spilled <= row->spills[which] && !warned && image.size > 0;
    printf("%-4s %s %s [%s]: %d registers, %d bytes spilled, %d allowed%s\n", good ? "ok" : "FAIL",
           row->text, architectures[which], row->constants, registers, spilled, row->spills[which],
           warned ? ", with warnings" : "");
    if (warned) printf("%s\n", image.log);
    fflush(stdout);
    ejki_cuda_image_close(&image);
    return good;
}

/* Every `step`th row from `first` on. */
static int check_rows(size_t first, size_t step) {
    int failures = 0;
    const char *filter = getenv("EJK_TEST_FILTER");
    for (size_t i = first; i < sizeof rows / sizeof *rows; i += step)
        for (int which = 0; which < 2; which++)
            if (!filter || strstr(rows[i].text, filter)) failures += !check(&rows[i], which);
    return failures;
}

int main(void) {
    ejki_cuda_image image;
    const ejki_cuda_constant least[] = {
        {"ELEMENT", EJK_DTYPE_F32}, {"HEAD_DIM", 8}, {"VALUE_DIM", 8}};
    if (ejki_cuda_compile("sm_80", ejki_cuda_text("operations/attention/cuda/sm80/combine.cu"),
                          least, 3, &image) != EJK_OK) {
        printf("%s\n", ejk_last_error());
        return strstr(ejk_last_error(), "not found") ? SKIPPED : EXIT_FAILURE;
    }
    ejki_cuda_image_close(&image);
    const char *wish = getenv("EJK_TEST_PROCESSES");
    int processes = wish ? atoi(wish) : 2, failures = 0;
    if (processes < 1 || processes > MOST_PROCESSES) processes = MOST_PROCESSES;
    fflush(stdout);
    pid_t children[MOST_PROCESSES];
    for (int n = 0; n < processes; n++) {
        children[n] = fork();
        if (children[n] == 0) {
            const int failed = check_rows((size_t)n, (size_t)processes);
            fflush(stdout);
            _Exit(failed ? EXIT_FAILURE : EXIT_SUCCESS);
        }
    }
    for (int n = 0; n < processes; n++) {
        int status = 0;
        failures += waitpid(children[n], &status, 0) != children[n] || status != 0;
    }
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

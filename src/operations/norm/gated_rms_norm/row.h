/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both directions of gated_rms_norm share: groups one after the other in the order of memory, and the gate. A
 * group's elements lie in halves, as vec_halves.h has them, as far as there are whole ones, and so do floats beside
 * them. Include after a vec_*.h.
 */
#ifndef EJKI_GATED_RMS_NORM_ROW_H
#define EJKI_GATED_RMS_NORM_ROW_H

#include <math.h>

#include "base/base.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_halves.h"
#include "operations/norm/gated_rms_norm/problem.cuh"

/* Groups whose sums are taken together, up to BATCH components. */
enum { LINE = 64, MOST_GROUPS = 16, BATCH = 4096 };
/* Bytes of results from which on they go past the caches. */
enum { STREAMED = 4 << 20 };

/* Where the gate is: none, or one of two functions. */
typedef enum gate_kind { GATE_NONE, GATE_SILU, GATE_SIGMOID } gate_kind;

static inline gate_kind gate_of(const norm_problem *p) {
    return !p->has_gate ? GATE_NONE : p->silu ? GATE_SILU : GATE_SIGMOID;
}

/* ---- A place among the groups, moved on without divisions -------------------------------------------- */

typedef struct place {
    int64_t row, axis[3], group; /* group: its first component */
} place;

static inline place place_of(const norm_problem *p, int64_t row) {
    const int64_t rest = row / p->outer[1];
    return (place){.row = row, .axis = {rest / p->outer[0], rest % p->outer[0], row % p->outer[1]}};
}
static inline void next_row(const norm_problem *p, place *at) {
    at->group = 0;
    at->row++;
    if (++at->axis[2] < p->outer[1]) return;
    at->axis[2] = 0;
    if (++at->axis[1] < p->outer[0]) return;
    at->axis[1] = 0;
    at->axis[0]++;
}
static inline void next_group(const norm_problem *p, place *at) {
    at->group += p->group;
    if (at->group >= p->width) next_row(p, at);
}
INLINE void *group_at(const ejk_dtype dtype, const norm_rows *rows, const place *at) {
    return element_at(dtype, rows->data,
                      at->axis[0] * rows->stride[0] + at->axis[1] * rows->stride[1] +
                          at->axis[2] * rows->stride[2] + at->group);
}

/* Groups that lie the prefetch distance apart. */
static inline int64_t groups_ahead(const norm_problem *p, prefetching how) {
    return ejki_cdiv(how.bytes, ejki_max(p->group * element_size((ejk_dtype)p->dtype), 1));
}

/* Groups of a batch, and floats of one group. */
static inline int64_t batch_of(const norm_problem *p) {
    return ejki_max(1, ejki_min(BATCH / ejki_max(p->group, 1), MOST_GROUPS));
}
static inline int64_t room_of(const norm_problem *p) {
    return ejki_round_up(p->group + VL, LINE / 4);
}

/* Results of many whole lines, which can be written past the caches. */
static inline bool norm_streams(const norm_problem *p, const norm_rows *to) {
    const int64_t size = element_size((ejk_dtype)p->dtype), line = LINE / size;
    return p->dtype != EJK_DTYPE_F16 && (double)p->rows * (double)(p->width * size) >= STREAMED &&
           (uintptr_t)to->data % LINE == 0 && p->group % line == 0 && to->stride[0] % line == 0 &&
           to->stride[1] % line == 0 && to->stride[2] % line == 0;
}

static const ejk_parameter norm_parameters[] = {PREFETCH_HINT, PREFETCH_BYTES(16384)};

/* ---- Elements ---------------------------------------------------------------------------------------- */

/* VL components of a group: half 0 or 1 of 2 VL, or the last ones, of which `left` count. */
typedef struct lanes {
    int64_t d, left;
    int half; /* 2: none */
} lanes;

INLINE vf lanes_of(const ejk_dtype dtype, const void *group, const lanes l) {
    const void *from = element_at(dtype, group, l.d);
    return l.half == 2 ? v_widen_some(dtype, from, l.left) : v_widen_half(dtype, from, l.half);
}
INLINE int64_t floats_at(const lanes l) {
    return l.half == 1 ? l.d + VL : l.d;
}

/* Prefetches the lines of 2 VL elements. */
INLINE void prefetch(const ejk_dtype dtype, prefetching how, const void *group, int64_t d) {
    const int64_t line = LINE / element_size(dtype);
    for (int64_t i = -d & (line - 1); i < 2 * VL; i += line)
        prefetch_line(how, element_at(dtype, group, d + i));
}

INLINE vf gate_value(const ejk_dtype dtype, const gate_kind gate, vf z) {
    return gate == GATE_SILU ? v_silu_of(dtype, z) : v_sigmoid_of(dtype, z);
}

/* 1 / sqrt(mean + eps). */
static inline float scale_of(const norm_problem *p, float sum) {
    return 1.0f / sqrtf(sum / (float)p->group + p->eps);
}
/* Sums over the lanes of `count` vectors. */
static inline void sums_of_batch(vf vectors[MOST_GROUPS], int64_t count, float *sums) {
    for (int64_t k = count; k < MOST_GROUPS; k++) vectors[k] = v_zero();
    for (int64_t k = 0; k < MOST_GROUPS; k += VL) v_store(sums + k, v_sums(vectors + k));
}
static inline void scales_of(const norm_problem *p, vf squares[MOST_GROUPS], int64_t count,
                             float *scales) {
    sums_of_batch(squares, count, scales);
    for (int64_t k = 0; k < MOST_GROUPS; k++) scales[k] = scale_of(p, scales[k]);
}

/* Weights as floats, ones where there are none; `width` of them and room for a vector. */
static inline void take_weights(const norm_problem *p, float *weights) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (int64_t d = 0; d < p->width; d++)
        weights[d] = p->has_weight ? element_load(dtype, p->weight, d) : 1.0f;
    for (int64_t g = 0; g < p->width; g += p->group)
        v_put_in_order(dtype, false, weights + g, p->group);
}

/* ---- Batches ----------------------------------------------------------------------------------------- */

/* The caller's `batch`, by functions for each type and kind of gate: sums(gate, batch, dtype), then results, for each
 * kind of store: write(gate, batch, dtype, stream). */
#define NORM_BATCH(name, body, ...)                                                                \
    static __attribute__((noinline)) void name(batch *b) {                                         \
        const gate_kind gate = gate_of(b->p);                                                      \
        if (gate == GATE_SILU)                                                                     \
            body(GATE_SILU, b, __VA_ARGS__);                                                       \
        else if (gate == GATE_SIGMOID)                                                             \
            body(GATE_SIGMOID, b, __VA_ARGS__);                                                    \
        else                                                                                       \
            body(GATE_NONE, b, __VA_ARGS__);                                                       \
    }
#if VL > 4 /* there are stores past the caches */
#define NORM_STREAMS(type, write, dtype) NORM_BATCH(stream_##type, write, dtype, true)
#else
#define NORM_STREAMS(type, write, dtype)                                                           \
    static void stream_##type(batch *b) {                                                          \
        write_##type(b);                                                                           \
    }
#endif
#define NORM_BATCHES(sums, write)                                                                  \
    NORM_BATCH(sums_f32, sums, EJK_DTYPE_F32)                                                      \
    NORM_BATCH(sums_bf16, sums, EJK_DTYPE_BF16)                                                    \
    NORM_BATCH(sums_f16, sums, EJK_DTYPE_F16)                                                      \
    NORM_BATCH(write_f32, write, EJK_DTYPE_F32, false)                                             \
    NORM_BATCH(write_bf16, write, EJK_DTYPE_BF16, false)                                           \
    NORM_BATCH(write_f16, write, EJK_DTYPE_F16, false)                                             \
    NORM_STREAMS(f32, write, EJK_DTYPE_F32)                                                        \
    NORM_STREAMS(bf16, write, EJK_DTYPE_BF16)                                                      \
    static void run_batch(ejk_dtype dtype, bool stream, batch *b) {                                \
        if (dtype == EJK_DTYPE_F32) {                                                              \
            sums_f32(b);                                                                           \
            (stream ? stream_f32 : write_f32)(b);                                                  \
        } else if (dtype == EJK_DTYPE_BF16) {                                                      \
            sums_bf16(b);                                                                          \
            (stream ? stream_bf16 : write_bf16)(b);                                                \
        } else {                                                                                   \
            sums_f16(b);                                                                           \
            write_f16(b);                                                                          \
        }                                                                                          \
    }

#endif

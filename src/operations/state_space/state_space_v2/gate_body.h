/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step behind the recurrence of state_space_v2, in vectors: gate and norm of the rows y. A row is read once, into
 * floats; sums of squares and factors are taken there, and each result is rounded once. Rows are dealt out to workers,
 * and a row's sums have one order, so that bits depend neither on threads nor on other rows.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/state_space/state_space_v2/gate.h"

typedef struct row {
    float *weights, *values, *gates; /* gates: only where they come after the norm */
} row;

/* Without a norm: straight from y to the result. */
static void gate_row(const ssd_problem *p, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++) {
        const int64_t y = ssd_at(p, &p->y, n, h), z = ssd_at(p, &p->gate, n, h);
        const int64_t to = ssd_at(p, &p->result, n, h);
        for (int64_t i = 0; i < size; i += VL) {
            const vf gate = v_silu(take(&p->gate, z + i, size - i));
            give(&p->result, to + i, v_mul(take(&p->y, y + i, size - i), gate), size - i);
        }
    }
}

/* Vectors behind the end of a head are written over by the next one. */
INLINE void read_row(const ssd_problem *p, const bool first, const row *r, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++) {
        const int64_t y = ssd_at(p, &p->y, n, h), z = ssd_at(p, &p->gate, n, h);
        for (int64_t i = 0; i < size; i += VL) {
            const int64_t at = h * size + i;
            vf value = take(&p->y, y + i, size - i);
            if (p->has_gate) {
                const vf gate = v_silu(take(&p->gate, z + i, size - i));
                if (first)
                    v_store(r->gates + at, gate);
                else
                    value = v_mul(value, gate);
            }
            v_store(r->values + at, value);
        }
    }
}

static void norm_groups(const ssd_problem *p, const row *r) {
    for (int64_t g = 0; g < ssd_width(p); g += p->group) {
        const int64_t end = g + p->group;
        vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t d = g;
        for (int i = 0; d + VL <= end; d += VL, i = (i + 1) % 4) {
            const vf value = v_load(r->values + d);
            sum[i] = v_fma(value, value, sum[i]);
        }
        const vf last = v_load_first(r->values + d, end - d);
        sum[0] = v_fma(last, last, sum[0]);
        const vf all = v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
        const vf scale = v_set1(scale_of(p, v_sum(all)));
        for (d = g; d < end; d += VL) {
            const int64_t left = ejki_min(end - d, VL);
            const vf value = v_mul(v_load_first(r->values + d, left), scale);
            v_store_first(r->values + d, v_mul(value, v_load_first(r->weights + d, left)), left);
        }
    }
}

INLINE void write_row(const ssd_problem *p, const bool first, const row *r, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++) {
        const int64_t to = ssd_at(p, &p->result, n, h);
        for (int64_t i = 0; i < size; i += VL) {
            const int64_t at = h * size + i;
            vf value = v_load(r->values + at);
            if (first && p->has_gate) value = v_mul(value, v_load(r->gates + at));
            give(&p->result, to + i, value, size - i);
        }
    }
}

SSD_ONE_ROW(result)

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ssd_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, row_count(p)));
    launch->workspace_bytes = (size_t)(launch->workers * 3 * row_room(p)) * sizeof(float);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ssd_problem *p = run->problem;
    const int64_t room = row_room(p), rows = row_count(p), end = rows * (index + 1) / run->workers;
    float *memory = (float *)run->workspace + index * 3 * room;
    const row r = {.weights = memory, .values = memory + room, .gates = memory + 2 * room};
    take_weights(p, r.weights);
    for (int64_t n = rows * index / run->workers; n < end; n++) one_row(p, &r, n);
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)

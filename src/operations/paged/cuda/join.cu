/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins parts of decode.cu: a warp for some columns of a pair of a row and a head. Runs of splits are folded, then
 * joined in order. All CTAs are there at once, and know their sequences before there are parts. It is the last kernel
 * of a call: rows of sequences that are wrong become 0 here, and the last CTAs clear rows of no sequence. Constants:
 * those of few.cuh, VALUE_DIM, OVERLAP; RUN: splits of a run; LOOKS: 1 = look.cu was not launched, and CTAs look
 * themselves; MANY: 1 = there may be more sequences and KV heads than CTAs.
 */
#include "operations/paged/cuda/few.cuh"
#include "operations/paged/cuda/fold.cuh"
#include "operations/paged/cuda/look.cuh"
#include "operations/paged/cuda/rows.cuh"

#ifndef MANY
#define MANY 0
#endif

/* A sequence and a KV head. */
struct task {
    few_sequence q;
    int head;
    bool is_bad;
};
enum {
    TOGETHER = PAGED_JOIN_THREADS / 32,
    /* Of many pairs a warp has wider shares, as these come one after the other. */
    WIDE = MANY && VALUE_DIM % 128 == 0,
    COLUMNS = WIDE ? 4 : 2,               /* of a lane */
    SHARES = VALUE_DIM / (32 * COLUMNS), /* of a pair, a warp each */
    LOADED = WIDE ? 8 : 16,
    TASKS = 8, /* that a CTA knows at a time */
};

/* A lane's columns of a part. */
struct columns {
    float x[COLUMNS];
};
DEVICE columns load_columns(const float *from) {
    columns c;
    if constexpr (WIDE) {
        const float4 x = __ldcg((const float4 *)from);
        c.x[0] = x.x, c.x[1] = x.y, c.x[2] = x.z, c.x[COLUMNS - 1] = x.w;
    } else {
        const float2 x = __ldcg((const float2 *)from);
        c.x[0] = x.x, c.x[1] = x.y;
    }
    return c;
}

/* Share n % SHARES of pair n / SHARES. `note`, of each split: factors of the fold, and the weight of its run. */
DEVICE void join_pair(const paged_arguments &a, const task &t, int n, float4 *note) {
    const paged_problem &p = a.p;
    const int lane = threadIdx.x % 32, group = group_of(p);
    const int pair = n / SHARES, r = pair / group, h = t.head * group + pair % group;
    const int splits = t.is_bad ? 0 : t.q.splits;
    const paged_size part = part_of(a, t.q, r, h, 0), to = paged_row_at(&p, &p.out, t.q.s.begin + r, h);
    const int column = (n % SHARES * 32 + lane) * COLUMNS;
    const float *const parts = a.parts + part * VALUE_DIM + column;
    const float2 end = lane < splits ? __ldcg((const float2 *)a.ends + part + lane) : make_float2(NEG_INF, 0);
    columns x[LOADED];
    const u32 there = ALONE ? ~0u : __ballot_sync(~0u, end.x != NEG_INF);
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < LOADED; i++) {
            x[i] = {};
            if (first + i < splits && there >> (first + i) & 1) x[i] = load_columns(parts + (first + i) * VALUE_DIM);
        }
    };
    load(0);
    float2 run = make_float2(NEG_INF, 0), factors = make_float2(1, 0);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const int from = lane / RUN * RUN + i;
        const float2 next =
            fold_ends(run, make_float2(__shfl_sync(~0u, end.x, from), __shfl_sync(~0u, end.y, from)));
        if (i == lane % RUN) factors = next;
    }
    const float max = larger_of_lanes(run.x, 32), base = max == NEG_INF ? 0 : max;
    const float weight = power_of_2(run.x - base);
    const float sum = sum_of_lanes(lane % RUN == 0 && weight != 0 ? weight * run.y : 0, 32);
    __syncwarp();
    note[lane] = make_float4(factors.x, factors.y, weight, 0);
    __syncwarp();
    const bool writer = lane == 0 && n % SHARES == 0;
    const float factor = finish_row(p, t.q.s.begin + r, h, t.is_bad, max * LOG_2, sum, writer);
    columns out = {}, sums;
#pragma unroll 1
    for (int first = 0; first < splits; first += LOADED) {
        if (first > 0) load(first);
#pragma unroll
        for (int i = 0; i < LOADED; i++) {
            const float4 own_note = note[first + i];
            const float2 f = make_float2(own_note.x, own_note.y);
            if (i % RUN == 0) sums = {};
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                sums.x[k] = fold(f, sums.x[k], x[i].x[k]);
                if (i % RUN == RUN - 1 && own_note.z != 0) out.x[k] += own_note.z * sums.x[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) put_out(p, to, column + k, factor == 0 ? 0 : out.x[k] * factor);
}

/* Task i; all threads of the CTA. */
DEVICE task task_of(const paged_problem &p, int i) {
    const int n = i / (int)p.kv_heads;
    task t = {{}, i % (int)p.kv_heads, false};
    const bool is_there = n < paged_count(&p);
    if (is_there) t.q = few_now<1>(p, n);
    if (LOOKS) t.is_bad = __syncthreads_or(is_there && is_sequence_bad(p, n));
    return t;
}
#if MANY
/* Tasks from one on, every so manyth; returns how many. */
DEVICE int find_tasks(const paged_problem &p, int first, int step, task *tasks) {
    const int all = (int)p.sequences * (int)p.kv_heads;
    int count = 0;
#pragma unroll 1
    for (int i = first; i < all && count < TASKS; i += step, count++) {
        const task t = task_of(p, i);
        if (threadIdx.x == 0) tasks[count] = t;
    }
    __syncthreads();
    return count;
}
#endif
/* Rows of a sequence that is wrong, where decode.cu has none of them. */
DEVICE void clear_task(const paged_problem &p, const task &t) {
    if (t.is_bad && t.q.pairs == 0 && t.head == 0)
        clear_rows(p, t.q.s.begin, t.q.s.begin + t.q.s.rows, whole_block(0, 1));
}

extern "C" __global__ void __launch_bounds__(PAGED_JOIN_THREADS, ALONE ? 2 : PAGED_JOIN_RESIDENT)
    join(const __grid_constant__ paged_arguments a) {
    __shared__ float4 notes[TOGETHER][32];
    const paged_problem &p = a.p;
    const int warp = threadIdx.x / 32, workers = gridDim.x - PAGED_CLEARING;
    const bool is_worker = (int)blockIdx.x < workers;
#if MANY
    __shared__ task tasks[TASKS];
    int count = is_worker ? find_tasks(p, blockIdx.x, workers, tasks) : 0;
#else
    task t = {};
    if (is_worker) t = task_of(p, blockIdx.x);
#endif
#if LOOKS
    const bool are_starts_wrong = __syncthreads_or(are_starts_bad(p));
#endif
#if OVERLAP
    wait_for_previous();
#endif
#if !LOOKS
    const bool are_starts_wrong = a.flags[p.sequences];
#endif
    if (!is_worker) clear_rest(a, whole_block(blockIdx.x - workers, PAGED_CLEARING), !LOOKS, are_starts_wrong);
    if (!is_worker || are_starts_wrong) return;
#if MANY
#pragma unroll 1
    for (int first = blockIdx.x;;) {
#if !LOOKS
        if (threadIdx.x < count) tasks[threadIdx.x].is_bad = a.flags[(first + threadIdx.x * workers) / (int)p.kv_heads];
        __syncthreads();
#endif
#pragma unroll 1
        for (int k = 0, n = warp; k < count; n += TOGETHER) {
            while (k < count && n >= tasks[k].q.pairs * SHARES) n -= tasks[k++].q.pairs * SHARES;
            if (k < count) join_pair(a, tasks[k], n, notes[warp]);
        }
#pragma unroll 1
        for (int k = 0; k < count; k++) clear_task(p, tasks[k]);
        first += TASKS * workers;
        if (first >= (int)p.sequences * (int)p.kv_heads) break;
        __syncthreads();
        count = find_tasks(p, first, workers, tasks);
    }
#else
    if (!LOOKS) t.is_bad = a.flags[blockIdx.x / (int)p.kv_heads];
    clear_task(p, t);
#pragma unroll 1
    for (int n = warp; n < t.q.pairs * SHARES; n += TOGETHER) join_pair(a, t, n, notes[warp]);
#endif
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins parts of decode.cu: a warp for a pair of a row and a head. Runs of splits are folded, then joined
 * in order. It is the last kernel of a call: rows of sequences that are wrong become 0 here, and the last CTAs clear
 * rows of no sequence. Constants: those of few.cuh, VALUE_DIM, OVERLAP; RUN: splits of a run; LOOKS: 1 =
 * look.cu was not launched, and CTAs look for themselves.
 */
#include "operations/paged/cuda/few.cuh"
#include "operations/paged/cuda/fold.cuh"
#include "operations/paged/cuda/look.cuh"
#include "operations/paged/cuda/rows.cuh"

/* A CTA for each sequence and KV head: 32 sequences of 8 KV heads are all there at once. */
enum { RESIDENT = ALONE ? 2 : 3 };

extern "C" __global__ void __launch_bounds__(PAGED_JOIN_THREADS, RESIDENT)
    join(const __grid_constant__ paged_arguments a) {
    const paged_problem &p = a.p;
    const paged_size sequence = blockIdx.x / p.kv_heads;
    const int head = (int)(blockIdx.x % p.kv_heads);
    const int lane = threadIdx.x % 32, group = group_of(p);
    const bool is_rest = sequence >= p.sequences;
    few_sequence q = {};
    const bool is_there = !is_rest && sequence < paged_count(&p);
    if (is_there) q = few_now<1>(p, sequence);
#if LOOKS
    const bool are_starts_wrong = __syncthreads_or(are_starts_bad(p));
    const bool is_bad = __syncthreads_or(is_there && is_sequence_bad(p, sequence));
#endif
#if OVERLAP
    wait_for_previous();
#endif
#if !LOOKS
    const bool are_starts_wrong = a.flags[p.sequences], is_bad = !is_rest && a.flags[sequence];
#endif
    if (is_rest) {
        clear_rest(a, whole_block(blockIdx.x - p.sequences * p.kv_heads, PAGED_CLEARING), !LOOKS, are_starts_wrong);
        return;
    }
    if (are_starts_wrong) return;
    if (is_bad && q.pairs == 0 && head == 0) clear_rows(p, q.s.begin, q.s.begin + q.s.rows, whole_block(0, 1));
    /* So many warps have a pair's columns, each so many times 64, and loads so many parts at once. */
    enum { TOGETHER = PAGED_JOIN_THREADS / 32, SHARES = VALUE_DIM / 64, LOADED = SPLITS < 16 ? SPLITS : 16 };
    __shared__ float4 notes[TOGETHER][32]; /* of each split: factors of the fold, and the weight of its run */
    float4 *const note = notes[threadIdx.x / 32];
#pragma unroll 1
    for (int n = threadIdx.x / 32; n < q.pairs * SHARES; n += TOGETHER) {
        const int pair = n / SHARES, r = pair / group, h = head * group + pair % group, splits = is_bad ? 0 : q.splits;
        const paged_size part = part_of(a, q, r, h, 0), to = paged_row_at(&p, &p.out, q.s.begin + r, h);
        const int column = n % SHARES * 64 + 2 * lane;
        const float *const parts = a.parts + part * VALUE_DIM + column;
        const float2 end = lane < splits ? __ldcg((const float2 *)a.ends + part + lane) : make_float2(NEG_INF, 0);
        float2 x[LOADED];
        const u32 there = ALONE ? ~0u : __ballot_sync(~0u, end.x != NEG_INF);
        const auto load = [&](int first) {
#pragma unroll
            for (int i = 0; i < LOADED; i++) {
                x[i] = make_float2(0, 0);
                if (first + i < splits && there >> (first + i) & 1)
                    x[i] = __ldcg((const float2 *)(parts + (first + i) * VALUE_DIM));
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
        const float factor = finish_row(p, q.s.begin + r, h, is_bad, max * LOG_2, sum, writer);
        float2 out = {}, sums;
#pragma unroll 1
        for (int first = 0; first < splits; first += LOADED) {
            if (first > 0) load(first);
#pragma unroll
            for (int i = 0; i < LOADED; i++) {
                const float4 own_note = note[first + i];
                const float2 f = make_float2(own_note.x, own_note.y);
                if (i % RUN == 0) sums = make_float2(0, 0);
                sums.x = fold(f, sums.x, x[i].x), sums.y = fold(f, sums.y, x[i].y);
                if (i % RUN == RUN - 1 && own_note.z != 0) out.x += own_note.z * sums.x, out.y += own_note.z * sums.y;
            }
        }
        put_out(p, to, column, factor == 0 ? 0 : out.x * factor);
        put_out(p, to, column + 1, factor == 0 ? 0 : out.y * factor);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins parts of decode.cu or latent.cu in order: a warp for a pair of a row and a head. It is the last kernel of a
 * call: rows of sequences that are wrong become 0 here, and the last CTAs clear rows of no sequence. Constants: those
 * of few.cuh, VALUE_DIM, OVERLAP; DIRECT: 1 = rows of a sequence in one split have been written; LOOKS: 1 = look.cu was
 * not launched, and CTAs look for themselves.
 */
#include "operations/paged/cuda/few.cuh"
#include "operations/paged/cuda/look.cuh"
#include "operations/paged/cuda/rows.cuh"

extern "C" __global__ void __launch_bounds__(PAGED_JOIN_THREADS) join(const __grid_constant__ paged_arguments a) {
    const paged_problem &p = a.p;
    const paged_size n = blockIdx.x / (p.kv_heads * a.joiners);
    const int own = (int)(blockIdx.x % a.joiners), head = (int)(blockIdx.x / a.joiners % p.kv_heads);
    const int lane = threadIdx.x % 32, group = (int)p.group;
    const bool is_rest = n >= p.sequences;
    few_sequence q = {};
    if (!is_rest && n < paged_count(&p)) q = few_of<1>(p, n);
#if LOOKS
    const bool are_starts_wrong = __syncthreads_or(are_starts_bad(p));
    const bool is_bad = __syncthreads_or(!is_rest && n < paged_count(&p) && is_sequence_bad(p, n));
#endif
#if OVERLAP
    wait_for_previous();
#endif
#if !LOOKS
    const bool are_starts_wrong = a.flags[p.sequences], is_bad = !is_rest && a.flags[n];
#endif
    if (is_rest) {
        clear_rest(a, blockIdx.x - p.sequences * p.kv_heads * a.joiners, !LOOKS, are_starts_wrong);
        return;
    }
    if (are_starts_wrong) return;
    if (is_bad && q.pairs == 0 && head == 0 && own == 0) clear_rows(p, q.s.begin, q.s.begin + q.s.rows, 0, 1);
    if (DIRECT && q.splits == 1) return;
    enum { TOGETHER = PAGED_JOIN_THREADS / 32 };
#pragma unroll 1
    for (int pair = own * TOGETHER + threadIdx.x / 32; pair < q.pairs; pair += (int)a.joiners * TOGETHER) {
        const int r = pair / group, h = head * group + pair % group, splits = is_bad ? 0 : q.splits;
        const paged_size part = part_of(a, q, r, h, 0), to = paged_row_at(&p, &p.out, q.s.begin + r, h);
        const float2 end = lane < splits ? __ldcg((const float2 *)a.ends + part + lane) : make_float2(NEG_INF, 0);
        const float max = larger_of_lanes(end.x, 32), base = max == NEG_INF ? 0 : max;
        const float weight = expf(end.x - base), sum = sum_of_lanes(weight != 0 ? weight * end.y : 0, 32);
        const float factor = finish_row(p, q.s.begin + r, h, is_bad, max, sum, lane == 0);
#pragma unroll 1
        for (int d = 2 * lane; d < VALUE_DIM; d += 64) {
            const float *from = a.parts + part * VALUE_DIM + d;
            float2 x[SPLITS], out = make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < SPLITS; i++)
                if (i < splits) x[i] = __ldcg((const float2 *)(from + i * VALUE_DIM));
#pragma unroll
            for (int i = 0; i < SPLITS; i++) {
                const float share = __shfl_sync(~0u, weight, i);
                if (i < splits && share != 0) out.x += share * x[i].x, out.y += share * x[i].y;
            }
            put_out(p, to, d, factor == 0 ? 0 : out.x * factor);
            put_out(p, to, d + 1, factor == 0 ? 0 : out.y * factor);
        }
    }
}

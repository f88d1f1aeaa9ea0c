/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of few rows over pages, on tensor cores from sm_80 up, so that memory bandwidth is the limit. A CTA goes
 * through its units (few.cuh); of a unit each warp has every WARPS-th block of 16 keys, and the CTA joins its warps.
 * What is left are parts in float32, which join.cu joins in order. The kernel does not wait for look.cu: it reads
 * nothing outside tensors, and join.cu knows which sequences are wrong.
 *
 *   ELEMENT                of queries and caches
 *   HEAD_DIM, VALUE_DIM
 *   FOLDED                 1 = the scale is positive and nothing follows it: it is multiplied into exponents
 *   CODE                   0 = caches are of the queries' type, else their type: codes of 8 bits
 *   SCALED                 0 = caches have no scales, 1 = one for each head at most, 2 = one for each row
 *   WHOLE                  1 = a block is of one page
 *   WARPS, STAGES, HALVES, RESIDENT
 *   OVERLAP                1 = kernels of the call overlap (programmatic dependent launch)
 */
#include "operations/paged/cuda/decode_ring.cuh"
#include "operations/paged/cuda/careful.cuh"

/* Queries and softmax statistics of a unit's rows. */
struct few_rows : softmax_rows {
    uint4 query[HALVES][HEAD_STEPS];
    int row[HALVES], h[HALVES], low[HALVES], high[HALVES];
    float key_factor, value_factor; /* what scores and sums are multiplied by */
    u32 seen;                       /* as look_for_nonfinite() has it */
};

/* What elements of a head are multiplied by, but for scales of rows. */
DEVICE float factor_of(const paged_cache &c, int head) {
    return SCALED == 0 ? 1 : SCALED == 1 ? scale_of(c, 0, 0, head) : c.factor;
}

/* ---- Queries ------------------------------------------------------------------------------------------- */

DEVICE uint4 eight_at(const u16 *at, bool aligned) {
    if (aligned) return *(const uint4 *)at;
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 4; n++) x[n] = at[2 * n] | (u32)at[2 * n + 1] << 16;
    return make_uint4(x[0], x[1], x[2], x[3]);
}

DEVICE void begin_rows(const paged_problem &p, const unit_cursor &c, few_rows &rows, float (&out)[WIDTH][4]) {
    const few_sequence &q = c.q;
    const u64 places = (u64)p.query.data >> 1 | p.query.token | p.query.head | (p.batch_rows > 0 ? p.query.batch : 0);
    const bool aligned = (places & 7) == 0 && ((u64)p.query.data & 1) == 0;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int own = c.tile * ROWS + threadIdx.x % 32 / 4 + 8 * half, pair = lesser(own, q.pairs - 1);
        const int r = pair / (int)p.group, h = c.head * (int)p.group + pair % (int)p.group;
        const u16 *at = (const u16 *)p.query.data + paged_row_at(&p, &p.query, q.s.begin + r, h);
        rows.row[half] = r, rows.h[half] = h;
        rows.low[half] = narrowed(paged_low(&p, &q.s, r));
        rows.high[half] = own < q.pairs ? narrowed(paged_high(&p, &q.s, r)) : q.end;
#pragma unroll
        for (int i = 0; i < HEAD_STEPS; i++) {
            rows.query[half][i] = eight_at(at + 32 * i + threadIdx.x % 4 * 8, aligned);
            if (own >= q.pairs) rows.query[half][i] = make_uint4(0, 0, 0, 0);
        }
    }
    rows.key_factor = factor_of(p.key, c.head);
    rows.value_factor = factor_of(p.value, c.head);
    rows.seen = 0;
    clear(out);
    clear_softmax(rows);
}

/* ---- A block of keys ------------------------------------------------------------------------------------ */

/* Scores, or weights, times the scales of their keys. */
DEVICE void multiply_scales(float (&z)[2][4], float factor, const float (&scale)[4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++)
            z[n][k] *= SCALED == 2 ? factor * scale[2 * n + k % 2] : factor;
}

/* Scores of what is visible, but for the folded scale; -inf of all else. */
DEVICE void mask_scores(const paged_problem &p, const unit_cursor &c, const few_rows &rows, int j0, bool edge,
                        float (&z)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) {
            const int column = n * 8 + threadIdx.x % 4 * 2 + k % 2, j = j0 + column, half = k / 2;
            const bool hidden = edge && (j < rows.low[half] || j >= rows.high[half]);
            if (!FOLDED && !hidden)
                z[n][k] = score_of(p, c.q.s, rows.row[half], rows.h[half], j, z[n][k]);
            if (hidden) z[n][k] = NEG_INF;
        }
}

/* ---- A unit --------------------------------------------------------------------------------------------- */

/* Joins the warps to a part; false if it has what is not a finite number. */
DEVICE bool gather(const paged_arguments &a, const unit_cursor &c, float value_factor, const float *memory) {
    const paged_problem &p = a.p;
    const float *ends = memory + WARPS * ROWS * VALUE_DIM;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool good = true;
#pragma unroll 1
    for (int row = warp; row < lesser(ROWS, c.q.pairs - c.tile * ROWS); row += WARPS) {
        const int pair = c.tile * ROWS + row, h = c.head * (int)p.group + pair % (int)p.group;
        const paged_size part = part_of(a, c.q, pair / (int)p.group, h, c.split);
        float max = NEG_INF, sum = 0, scale[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, ends[2 * (w * ROWS + row)]);
        const float base = max == NEG_INF ? 0 : max;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            scale[w] = power_of_2(ends[2 * (w * ROWS + row)] - base);
            sum += scale[w] * ends[2 * (w * ROWS + row) + 1];
            scale[w] *= value_factor;
        }
#pragma unroll
        for (int d = lane * 4; d < VALUE_DIM; d += 128) {
            float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float4 x = *(const float4 *)(memory + (w * ROWS + row) * VALUE_DIM + d);
                out.x += scale[w] * x.x, out.y += scale[w] * x.y;
                out.z += scale[w] * x.z, out.w += scale[w] * x.w;
            }
            const float least = fmaxf(fmaxf(fabsf(out.x), fabsf(out.y)), fmaxf(fabsf(out.z), fabsf(out.w)));
            good = good && least < INFINITY && out.x + out.y + out.z + out.w == out.x + out.y + out.z + out.w;
            *(float4 *)(a.parts + part * VALUE_DIM + d) = out;
        }
        if (lane == 0) *(float2 *)(a.ends + part * 2) = make_float2(max * LOG_2, sum);
    }
    return good;
}

DEVICE void attend_unit_carefully(const paged_arguments &a, const unit_cursor &c) {
    const paged_problem &p = a.p;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pair = c.tile * ROWS + threadIdx.x / 32; pair < lesser(c.q.pairs, c.tile * ROWS + ROWS); pair += WARPS) {
        const int r = pair / (int)p.group, h = c.head * (int)p.group + pair % (int)p.group;
        const paged_size part = part_of(a, c.q, r, h, c.split);
        careful_row row;
        attend_carefully(p, c.q.s, c.q.pages, r, c.head, h, c.first, c.last, row);
#pragma unroll 1
        for (int n = 0; n < VALUE_DIM / 32; n++) a.parts[part * VALUE_DIM + lane + 32 * n] = row.out[n];
        if (lane == 0) a.ends[part * 2] = row.max, a.ends[part * 2 + 1] = row.sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) decode(const __grid_constant__ paged_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    launch_dependents();
#endif
    const paged_problem &p = a.p;
    const int warp = threadIdx.x / 32;
    const u32 ring = shared_address(memory) + warp * STAGES * RING_STAGE_BYTES;
    float *const left = (float *)(memory + WARPS * STAGES * RING_STAGE_BYTES);
    const bool aligned = is_aligned(p.key) && is_aligned(p.value);
    unit_cursor c = first_unit<ROWS>(p, (i64 *)left, blockIdx.x, gridDim.x);
    __syncthreads();
    fetcher f;
    f.unit = c;
    f.key = c.first + KEYS * warp;
    f.turn = 31; /* asks */
    find_block(p, f);
#pragma unroll 1
    for (int n = 0; n < STAGES; n++) fetch_block(p, f, ring + n * RING_STAGE_BYTES, aligned);
    u32 stage = ring;
    few_rows rows;
    float out[WIDTH][4], unit[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++) unit[half] = FOLDED ? (float)p.scale * LOG2_E : LOG2_E;
#pragma unroll 1
    while (c.left > 0) {
        begin_rows(p, c, rows, out);
        const int last_row = lesser(c.tile * ROWS + ROWS, c.q.pairs) - 1;
        const int all_begin = narrowed(paged_low(&p, &c.q.s, last_row / (int)p.group));
        const int all_end = lesser(narrowed(paged_high(&p, &c.q.s, c.tile * ROWS / (int)p.group)), c.last);
#pragma unroll 1
        for (int j0 = c.first + KEYS * warp; j0 < c.last; j0 += KEYS * WARPS) {
            pieces x;
            float z[2][4], key_scales[4], value_scales[4];
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            take_stage_keys(x, stage, rows.seen);
            if (SCALED == 2) take_scales(key_scales, stage, 0);
            multiply(z, rows.query, x);
            if (SCALED) multiply_scales(z, rows.key_factor, key_scales);
            const bool edge = j0 < all_begin || j0 + KEYS > all_end;
            if (edge || !FOLDED) mask_scores(p, c, rows, j0, edge, z);
            online_softmax(rows, unit, z, [&](int k, float scale) { rescale_sums(out, k, scale); });
            take_stage_values(x, stage, rows.seen);
            if (SCALED == 2) take_scales(value_scales, stage, 1);
            __syncwarp();
            fetch_block(p, f, stage, aligned);
            if (SCALED == 2) multiply_scales(z, 1, value_scales);
            add_values(z, x, out);
            stage = stage == ring + (STAGES - 1) * RING_STAGE_BYTES ? ring : stage + RING_STAGE_BYTES;
        }
        leave(left, rows, rows.base, out);
        __syncthreads();
        const bool good = gather(a, c, rows.value_factor, left) && (rows.seen & 0x80808080) == 0;
        if (__syncthreads_or(!good)) attend_unit_carefully(a, c);
        next_unit<ROWS>(p, c);
    }
    cp_async_wait<0>();
#if OVERLAP
    wait_for_previous();
#endif
}

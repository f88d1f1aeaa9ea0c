/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of few rows over pages, on tensor cores from sm_80 up, so that memory bandwidth is the limit. A CTA goes
 * through its units (few.cuh); of a unit each warp has every WARPS-th block of 16 keys. It leaves its sums in shared
 * memory, and joins those of some rows once all warps have left theirs; units of a run of splits are folded (fold.cuh).
 * What is left are parts in float32, which join.cu joins in order. The kernel does not
 * wait for look.cu: it reads nothing outside tensors, and join.cu knows which sequences are wrong.
 *
 *   ELEMENT                of products: that of queries and caches, or F16 with codes
 *   QUERY                  of queries
 *   HEAD_DIM, VALUE_DIM
 *   FOLDED                 1 = the scale is positive and nothing follows it: it is multiplied into exponents
 *   CODE                   0 = caches are of the queries' type, else their type: codes of 8 bits
 *   SCALED                 0 = caches have no scales, 1 = one for each head at most, 2 = one for each row
 *   WHOLE                  1 = a block is of one page
 *   WARPS, STAGES, HALVES, RESIDENT
 *   APART                  1 = for each warp there is another that fetches its blocks: sm_90a, WARPS 4; 0
 *   OVERLAP                1 = kernels of the call overlap (programmatic dependent launch)
 */
#ifndef APART
#define APART 0
#endif

#include "operations/paged/cuda/decode_ring.cuh"
#include "operations/paged/cuda/careful.cuh"
#include "operations/paged/cuda/fold.cuh"

/* Queries and softmax statistics of a unit's rows. */
struct few_rows : softmax_rows {
    uint4 query[HALVES][HEAD_STEPS];
    int row[HALVES], h[HALVES], low[HALVES], high[HALVES];
    float factor[HALVES]; /* what scores are multiplied by */
    /* With scales of rows: a power of 2 that weights are relative to, besides, and 1 by it. */
    float value_unit, value_back;
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

/* Makes float16 of bf16, times a power of 2 that brings a row's largest to 2^14; returns what takes it back. */
DEVICE float narrow_row(uint4 (&query)[HEAD_STEPS]) {
    u32 *const x = &query[0].x;
    float most = 0;
#pragma unroll
    for (int n = 0; n < 4 * HEAD_STEPS; n++)
        most = fmaxf(most, fmaxf(fabsf(__int_as_float(x[n] << 16)), fabsf(__int_as_float(x[n] & 0xffff0000))));
    const int exponent = __float_as_int(larger_of_lanes(most, 4)) >> 23;
    const int up = exponent == 255 ? 127 : lesser(268 - exponent, 240);
    const float scale = __int_as_float(up << 23);
#pragma unroll
    for (int n = 0; n < 4 * HEAD_STEPS; n++)
        x[n] = pack(__int_as_float(x[n] << 16) * scale, __int_as_float(x[n] & 0xffff0000) * scale);
    return __int_as_float(254 - up << 23);
}

DEVICE void begin_rows(const paged_problem &p, const unit_cursor &c, few_rows &rows) {
    const few_sequence &q = c.q;
    const u64 places = (u64)p.query.data >> 1 | p.query.token | p.query.head | (p.batch_rows > 0 ? p.query.batch : 0);
    const bool aligned = (places & 7) == 0 && ((u64)p.query.data & 1) == 0;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int own = c.tile * ROWS + threadIdx.x % 32 / 4 + 8 * half, pair = lesser(own, q.pairs - 1);
        const int r = pair / group_of(p), h = c.head * group_of(p) + pair % group_of(p);
        const u16 *at = (const u16 *)p.query.data + paged_row_at(&p, &p.query, q.s.begin + r, h);
        rows.row[half] = r, rows.h[half] = h;
        rows.low[half] = narrowed(paged_low(&p, &q.s, r));
        rows.high[half] = own < q.pairs ? narrowed(paged_high(&p, &q.s, r)) : q.end;
#pragma unroll
        for (int i = 0; i < HEAD_STEPS; i++) {
            rows.query[half][i] = eight_at(at + 32 * i + threadIdx.x % 4 * 8, aligned);
            if (own >= q.pairs) rows.query[half][i] = make_uint4(0, 0, 0, 0);
        }
        rows.factor[half] = factor_of(p.key, c.head);
        if (QUERY != ELEMENT) rows.factor[half] *= narrow_row(rows.query[half]);
    }
}

/* ---- A block of keys ------------------------------------------------------------------------------------ */

/* Scores times what their rows and keys are scaled by. */
DEVICE void scale_scores(const few_rows &rows, const float (&scale)[4], float (&z)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++)
            z[n][k] *= SCALED == 2 ? rows.factor[k / 2] * scale[2 * n + k % 2] : rows.factor[k / 2];
}

/* Weights times the scales of their values, relative to a unit that keeps them in float16's range. */
DEVICE void scale_weights(few_rows &rows, const float (&scale)[4], float (&z)[2][4], row_sums &out) {
    const float most = fmaxf(fmaxf(fabsf(scale[0]), fabsf(scale[1])), fmaxf(fabsf(scale[2]), fabsf(scale[3])));
    if (__any_sync(~0u, most > 16 * rows.value_unit)) {
        const int exponent = __float_as_int(larger_of_lanes(most, 32)) >> 23;
        const float unit = __int_as_float((exponent < 27 ? 27 : lesser(exponent, 227)) << 23);
        const float back = __int_as_float((254 << 23) - __float_as_int(unit)), kept = rows.value_unit * back;
        rows.value_unit = unit, rows.value_back = back;
#pragma unroll
        for (int half = 0; half < HALVES; half++) rescale_sums(out, half, make_float2(kept, kept));
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) z[n][k] *= scale[2 * n + k % 2] * rows.value_back;
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

/* ---- A unit's warps ------------------------------------------------------------------------------------- */

/* Parts that a warp folds, if it has the registers: of rows warp, warp + WARPS and so on; of columns 4 lane to
 * 4 lane + 3 of every 128. */
enum { OWN_ROWS = cdiv(ROWS, WARPS), FOURS = cdiv(VALUE_DIM, 128), CAN_FOLD = OWN_ROWS * FOURS <= 2 };
struct folded_parts {
    int first; /* split; -1: none */
    float2 ends[OWN_ROWS];
    float4 sums[OWN_ROWS][FOURS];
};

DEVICE bool has_columns(int n) {
    return VALUE_DIM % 128 == 0 || threadIdx.x % 32 * 4 + 128 * n < VALUE_DIM;
}

/* Named barriers of a warp: the others have left their sums; they have read its own. */
enum { LEFT = 1, READ = 1 + WARPS };
DEVICE void tell_others(int barriers) {
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        if (w != (int)threadIdx.x / 32) named_barrier_arrive(barriers + w, THREADS);
}
DEVICE void wait_for_others(int barriers) {
    if (WARPS == 1)
        __syncwarp();
    else
        named_barrier_sync(barriers + threadIdx.x / 32, THREADS);
}

/* A row of all warps; false if it has what is not a finite number. */
DEVICE bool join_warps(const float *left, int row, float value_factor, float2 &end, float4 (&out)[FOURS]) {
    const float *ends = left + WARPS * ROWS * VALUE_DIM;
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
    bool good = sum == sum;
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        float4 &to = out[n];
        to = make_float4(0, 0, 0, 0);
        if (!has_columns(n)) continue;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *from = left + (w * ROWS + row) * VALUE_DIM + 128 * n + threadIdx.x % 32 * 4;
            const float4 x = *(const float4 *)from;
            to.x += scale[w] * x.x, to.y += scale[w] * x.y, to.z += scale[w] * x.z, to.w += scale[w] * x.w;
        }
        const float most = fmaxf(fmaxf(fabsf(to.x), fabsf(to.y)), fmaxf(fabsf(to.z), fabsf(to.w)));
        good = good && most < INFINITY && to.x + to.y + to.z + to.w == to.x + to.y + to.z + to.w;
    }
    end = make_float2(max, sum);
    return good;
}

/* The same key by key, by way of shared memory. */
static __device__ __noinline__ float2 attend_row_carefully(const paged_problem &p, const unit_cursor &c, int pair,
                                                           float *at) {
    careful_row row;
    const int h = c.head * group_of(p) + pair % group_of(p);
    attend_carefully(p, c.q.s, c.q.pages, pair / group_of(p), c.head, h, c.first, c.last, row);
    __syncwarp(); /* other lanes have read what was there */
#pragma unroll 1
    for (int n = 0; n < VALUE_DIM / 32; n++) at[threadIdx.x % 32 + 32 * n] = row.out[n];
    __syncwarp();
    return make_float2(row.max * LOG2_E, row.sum);
}

DEVICE void write_part(const paged_arguments &a, paged_size part, float2 end, const float4 (&out)[FOURS]) {
#pragma unroll
    for (int n = 0; n < FOURS; n++)
        if (has_columns(n)) *(float4 *)(a.parts + part * VALUE_DIM + 128 * n + threadIdx.x % 32 * 4) = out[n];
    if (threadIdx.x % 32 == 0) *(float2 *)(a.ends + part * 2) = end;
}

/*
 * Joins the warps of a unit. From a split on that is a run's first, units of the same rows are folded until the run
 * ends, or the CTA's share: then their parts are one. `goes_on`: the next unit has the same rows.
 */
DEVICE void join_unit(const paged_arguments &a, const unit_cursor &c, bool goes_on, float *left, folded_parts &folded) {
    const paged_problem &p = a.p;
    wait_for_others(LEFT);
    const bool begins = c.split % PAGED_RUN == 0, is_last = !goes_on || (c.split + 1) % PAGED_RUN == 0;
    const float value_factor = factor_of(p.value, c.head);
    if (CAN_FOLD && begins) folded.first = c.split;
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) {
        const int row = threadIdx.x / 32 + n * WARPS, pair = c.tile * ROWS + row;
        if (pair >= c.q.pairs) break;
        float2 end;
        float4 out[FOURS];
        if (!__all_sync(~0u, join_warps(left, row, value_factor, end, out))) {
            float *const at = left + row * VALUE_DIM;
            const unit_cursor unit = c; /* the function would have it in memory */
            end = attend_row_carefully(p, unit, pair, at);
#pragma unroll
            for (int i = 0; i < FOURS; i++)
                if (has_columns(i)) out[i] = *(const float4 *)(at + 128 * i + threadIdx.x % 32 * 4);
        }
        const int r = pair / group_of(p), h = c.head * group_of(p) + pair % group_of(p);
        const paged_size part = part_of(a, c.q, r, h, c.split);
        if (!CAN_FOLD || folded.first < 0) {
            write_part(a, part, end, out);
            continue;
        }
        if (begins) {
            folded.ends[n] = make_float2(NEG_INF, 0);
#pragma unroll
            for (int i = 0; i < FOURS; i++) folded.sums[n][i] = make_float4(0, 0, 0, 0);
        }
        const float2 factors = fold_ends(folded.ends[n], end);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            float4 &to = folded.sums[n][i];
            to.x = fold(factors, to.x, out[i].x), to.y = fold(factors, to.y, out[i].y);
            to.z = fold(factors, to.z, out[i].z), to.w = fold(factors, to.w, out[i].w);
        }
        if (!begins && threadIdx.x % 32 == 0) *(float2 *)(a.ends + part * 2) = make_float2(NEG_INF, 0);
        if (is_last) write_part(a, part - (c.split - folded.first), folded.ends[n], folded.sums[n]);
    }
    if (is_last) folded.first = -1;
    __syncwarp();
    tell_others(READ);
}

/* ---- The kernel ----------------------------------------------------------------------------------------- */

/* All units of the CTA's share. */
DEVICE void attend_units(const paged_arguments &a, unit_cursor &c, fetcher &f, ring_cursor ring, bool aligned,
                         float *left) {
    const paged_problem &p = a.p;
    const int warp = own_warp();
    const lane_places at = lane_places_of();
    few_rows rows;
    folded_parts folded;
    folded.first = -1;
    row_sums out;
    float unit[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++) unit[half] = FOLDED ? (float)p.scale * LOG2_E : LOG2_E;
    int all_begin = 0, rows_end = 0; /* keys that all rows see */
    bool goes_on = false;            /* with the rows of the unit before */
    tell_others(READ);
#pragma unroll 1
    while (c.left > 0) {
        if (!goes_on) {
            begin_rows(p, c, rows);
            const int last_row = lesser(c.tile * ROWS + ROWS, c.q.pairs) - 1;
            all_begin = narrowed(paged_low(&p, &c.q.s, last_row / group_of(p)));
            rows_end = narrowed(paged_high(&p, &c.q.s, c.tile * ROWS / group_of(p)));
        }
        const int all_end = lesser(rows_end, c.last);
        rows.seen = 0, rows.value_unit = rows.value_back = 0;
        clear_sums(out);
        clear_softmax(rows);
#pragma unroll 1
        for (int j0 = c.first + KEYS * warp; j0 < c.last; j0 += KEYS * WARPS, next_stage(ring)) {
            const u32 stage = stage_of(ring);
            block_of_keys x;
            float z[2][4], key_scales[4], value_scales[4];
            wait_for_stage(ring);
            take_stage_keys(x, at, stage, rows.seen);
            if (SCALED == 2) take_scales(key_scales, stage, 0);
            multiply(z, rows.query, x.x);
            if (SCALED || QUERY != ELEMENT) scale_scores(rows, key_scales, z);
            const bool edge = j0 < all_begin || j0 + KEYS > all_end;
            if (edge || !FOLDED) mask_scores(p, c, rows, j0, edge, z);
            online_softmax(rows, unit, z, [&](int half, float scale) { rescale_sums(out, half, of_sums(scale)); });
            take_stage_values(x, at, stage, rows.seen);
            if (SCALED == 2) take_scales(value_scales, stage, 1);
            leave_stage(p, f, ring, aligned);
            if (SCALED == 2) scale_weights(rows, value_scales, z, out);
            add_stage_values(z, x, out);
        }
        /* What codes for other than finite numbers have become is made once more. */
        if (CODE && __any_sync(~0u, rows.seen & 0x80808080))
#pragma unroll
            for (int half = 0; half < HALVES; half++) rows.sum[half] = __int_as_float(0x7fffffff);
        if (SCALED == 2)
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                rescale_sums(out, half, make_float2(rows.value_unit, rows.value_unit));
        wait_for_others(READ);
        leave(left, rows, rows.base, out);
        __syncwarp();
        tell_others(LEFT);
        goes_on = c.left > weight_of(c.last - c.first) && c.heads == 1 && c.q.tiles == 1 && c.split + 1 < c.q.splits;
        join_unit(a, c, goes_on, left, folded);
        next_unit<ROWS>(p, c);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *(1 + APART), RESIDENT)
    decode(const __grid_constant__ paged_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    launch_dependents();
    if (a.waits) wait_for_previous();
#endif
    const paged_problem &p = a.p;
    float *const left = (float *)(memory + WARPS * STAGES * RING_STAGE_BYTES);
    const u32 barriers = shared_address(left + WARPS * ROWS * (VALUE_DIM + 2));
    const ring_cursor ring = first_stage(shared_address(memory) + own_warp() * STAGES * RING_STAGE_BYTES, barriers);
#if APART
    if (threadIdx.x < WARPS * STAGES * 2) mbarrier_init(barriers + threadIdx.x * 8, threadIdx.x % 2 ? 1 : 32);
    mbarrier_fence_init();
#endif
    const bool aligned = is_aligned(p.key) && is_aligned(p.value);
#if ALONE
    unit_cursor c = own_unit<ROWS>(p, blockIdx.x, (u32)a.splits);
#else
    unit_cursor c = first_unit<ROWS>(p, (i64 *)left, blockIdx.x, gridDim.x);
#endif
    if (APART || !ALONE) __syncthreads();
    fetcher f;
#if APART
    if (threadIdx.x < THREADS) {
        if (RESIDENT > 1) setmaxnreg_inc<OTHER_REGS>();
        attend_units(a, c, f, ring, aligned, left);
        return;
    }
    if (RESIDENT > 1) setmaxnreg_dec<FETCHER_REGS>();
#endif
    begin_fetching(p, c, f);
    fetch_blocks(p, f, ring, aligned);
#if !APART
    attend_units(a, c, f, ring, aligned, left);
#endif
    cp_async_wait<0>();
#if OVERLAP
    wait_for_previous();
#endif
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention of few rows over many keys, for bf16 and f16 from sm_80 up: at most 16 rows of a KV head, so that
 * memory bandwidth is the limit. A warp goes by itself through every WARPS-th block of 16 keys; the CTA combines its
 * warps, and `join` the KV splits. Block and warp of a key follow from its position alone. Blocks come through a
 * ring of the warp's own in shared memory or, where a warp has few of them, directly into registers, two at a time.
 *
 * Rows and fragments are those of few_rows.cuh; decode_keys.cuh loads blocks. Besides the constants of options.cuh:
 *
 *   WARPS, STAGES   of the ring
 *   DIRECT          1 = into registers, if pieces are aligned; the ring serves the recompute passes
 *   HALVES          1 = there are no more than 8 rows, else 2
 *   RESIDENT        CTAs on one SM
 *   FOLDED          as in forward_mma.cu
 *   OVERLAP         1 = join is launched early and waits for decode (programmatic dependent launch)
 */
#include "operations/attention/cuda/sm80/decode_keys.cuh"

/* What the shared functions take; members that are not set here are not read. */
DEVICE ejki_cuda_problem whole_problem(const ejki_cuda_decode_problem &d) {
    ejki_cuda_problem p = {};
    p.query = d.query;
    p.key = d.key;
    p.value = d.value;
    p.out = d.out;
    p.lse = d.lse;
    p.row_max = d.row_max;
    p.row_sum = d.row_sum;
    p.sinks = d.sinks;
    p.sink_stride_h = d.sink_stride_h;
    p.sink_count = d.sink_count;
    p.sink_group = d.sink_group;
    p.first_offset = d.first_offset;
    p.last_offset = d.last_offset;
    p.entries = p.batch = d.batch;
    p.queries = d.queries;
    p.keys = d.keys;
    p.kv_heads = d.kv_heads;
    p.group = d.group;
    p.normalize = d.normalize;
    p.splits = d.splits;
    p.split_keys = d.split_keys;
    p.scale = d.scale;
    p.soft_cap = d.soft_cap;
    const i64 rows = (i64)d.batch * d.kv_heads * d.group * d.queries;
    p.part_out = d.parts;
    p.part_max = d.parts + d.splits * rows * VALUE_DIM;
    p.part_sum = p.part_max + d.splits * rows;
    return p;
}

/* A lane's rows: lane / 4, and 8 more. */
struct lane_rows : softmax_rows {
    int low[HALVES], high[HALVES];
    row_context context[HALVES];
    uint4 query[HALVES][HEAD_STEPS];
};

DEVICE float scale_of(const ejki_cuda_problem &p) {
    return FOLDED ? p.scale : 1;
}
DEVICE float unit_of(const ejki_cuda_problem &p) {
    return scale_of(p) * LOG2_E;
}

/* ---- Rows ------------------------------------------------------------------------------------------------ */

/* Two elements that need not be aligned together. */
DEVICE u32 pair_at(const u16 *at) {
    return at[0] | (u32)at[1] << 16;
}

/* Pieces 4 c + t of a row of the query; zeros of a row that is not there. */
DEVICE void load_query(const rows_of &from, int row, int count, int group,
                       uint4 (&query)[HEAD_STEPS]) {
    const u16 *at = row_address(from, row < count ? row : 0, group) + threadIdx.x % 4 * 8;
#pragma unroll
    for (int c = 0; c < HEAD_STEPS; c++) {
        const u16 *x = at + 32 * c;
        if (from.whole)
            query[c] = *(const uint4 *)x;
        else
            query[c] = make_uint4(pair_at(x), pair_at(x + 2), pair_at(x + 4), pair_at(x + 6));
        if (row >= count) query[c] = make_uint4(0, 0, 0, 0);
    }
}

DEVICE void begin_rows(const ejki_cuda_problem &p, const sequence &s, int head, int count,
                       lane_rows &rows) {
    const rows_of query = rows_at<HEAD_DIM>(p.query, s.entry, 0, head * p.group);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int own = threadIdx.x % 32 / 4 + 8 * half, row = lesser(own, count - 1);
        load_query(query, own, count, p.group, rows.query[half]);
        visible_keys(s, row / p.group, &rows.low[half], &rows.high[half]);
        rows.context[half] = row_context_of(p, s, head * p.group + row % p.group, row / p.group);
    }
}

DEVICE void clear_rows(lane_rows &rows, row_sums &out) {
    clear_sums(out);
    clear_softmax(rows);
}

/* Scores of what is visible, but for the folded scale; -inf of all else. */
DEVICE void mask_scores(const ejki_cuda_problem &p, const lane_rows &rows, int j0, bool edge,
                        float (&z)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) {
            const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + k % 2, half = k / 2;
            float cap_grad;
            if (!FOLDED)
                z[n][k] = score_of(p, rows.context[half], j, z[n][k] * p.scale, &cap_grad);
            if (edge && (j < rows.low[half] || j >= rows.high[half])) z[n][k] = NEG_INF;
        }
}

DEVICE void replace_values(pieces &x, int pass) {
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < VALUE_STEPS; h++) {
            x.value[n][h].x = replaced(x.value[n][h].x, pass);
            x.value[n][h].y = replaced(x.value[n][h].y, pass);
            x.value[n][h].z = replaced(x.value[n][h].z, pass);
            x.value[n][h].w = replaced(x.value[n][h].w, pass);
        }
}

/* One block: scores, weights, and their sums of values, which `get_values` has there. */
template <bool slow_path, class getter>
DEVICE void visit(const ejki_cuda_problem &p, const walk &w, lane_rows &rows, pieces &x, int block,
                  int pass, row_sums &out, getter get_values) {
    const int j0 = block * KEYS;
    const bool edge = j0 < w.range.all_begin || j0 + KEYS > w.range.all_end;
    float z[2][4];
    multiply(z, rows.query, x);
    if (edge || !FOLDED) mask_scores(p, rows, j0, edge, z);
    float unit[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++) unit[half] = unit_of(p);
    online_softmax(rows, unit, z, [&](int half, float scale) { rescale_sums(out, half, of_sums(scale)); });
    get_values();
    if (slow_path && pass > FINITE) replace_weights(z);
    if (slow_path && pass != PLAIN) replace_values(x, pass);
    add_values(z, x, out);
}

/* All of a warp's blocks through the ring. */
template <bool slow_path>
DEVICE void through_ring(const ejki_cuda_problem &p, const walk &w, lane_rows &rows, u32 ring,
                         int pass, row_sums &out) {
    u32 stage = ring;
#pragma unroll 1
    for (int block = w.start - STAGES * WARPS; block < w.last; block += WARPS) {
        if (block >= w.start) {
            pieces x;
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            take_keys(x, stage);
            if (!LATE) take_values(x, stage);
            visit<slow_path>(p, w, rows, x, block, pass, out, [&] {
                if (LATE) take_values(x, stage);
            });
            __syncwarp();
        }
        if (block + STAGES * WARPS < w.last) copy_block(stage, block + STAGES * WARPS, w);
        cp_async_commit();
        stage = stage == ring + (STAGES - 1) * STAGE_BYTES ? ring : stage + STAGE_BYTES;
    }
    cp_async_wait<0>();
}

#if DIRECT
/* All of a warp's blocks, of which the first two were fetched. */
DEVICE void through_registers(const ejki_cuda_problem &p, const walk &w, lane_rows &rows, pieces &a,
                              pieces &b, row_sums &out) {
#pragma unroll 1
    for (int block = w.start; block < w.last; block += 2 * WARPS) {
        visit<false>(p, w, rows, a, block, PLAIN, out, [] {});
        fetch_block(a, block + 2 * WARPS, w);
        if (block + WARPS >= w.last) break;
        visit<false>(p, w, rows, b, block + WARPS, PLAIN, out, [] {});
        fetch_block(b, block + 3 * WARPS, w);
    }
}
#endif

/* True if there is a NaN in the sums of the lane's rows. */
DEVICE bool needs_care(const row_sums &out) {
    bool found = false;
#pragma unroll
    for (int half = 0; half < HALVES; half++) found = found || has_nan(out[half]);
    return found;
}

/* ---- Combining warps ---------------------------------------------------------------------------------------- */

DEVICE void put(const ejki_cuda_problem &p, i64 to, float x) {
    if (p.normalize)
        ((element *)p.out.data)[to] = narrow(x);
    else
        ((float *)p.out.data)[to] = x;
}

DEVICE float got(const ejki_cuda_problem &p, i64 at) {
    return p.normalize ? widen(((const element *)p.out.data)[at]) : ((const float *)p.out.data)[at];
}

/* Combines the warps; a thread has the same elements in every pass. */
DEVICE void gather(const ejki_cuda_problem &p, const sequence &s, int head, int count, int pass,
                   const float *memory) {
    const float *ends = memory + WARPS * ROWS * VALUE_DIM;
    const i64 heads = (i64)p.kv_heads * p.group, all = p.entries * heads * p.queries;
#pragma unroll 1
    for (int index = threadIdx.x; index < count * VALUE_DIM; index += THREADS) {
        const int row = index / VALUE_DIM, d = index % VALUE_DIM;
        const int i = row / p.group, h = head * p.group + row % p.group;
        const i64 part = blockIdx.y * all + (s.entry * heads + h) * p.queries + i;
        const i64 to = s.entry * p.out.stride_b + i * p.out.stride_t + h * p.out.stride_h + d;
        float max = NEG_INF, sum = 0, out = 0;
        bool found = false;
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, ends[2 * (w * ROWS + row)]);
        const float base = max == NEG_INF ? 0 : max;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float x = memory[(w * ROWS + row) * VALUE_DIM + d];
            const float scale = power_of_2(ends[2 * (w * ROWS + row)] - base);
            sum += scale * ends[2 * (w * ROWS + row) + 1];
            out += scale * x;
            found = found || x > 0;
        }
        const float row_max = max * LOG_2;
        const float factor = sum_factor(p, base, row_max, sum, unit_of(p), scale_of(p));
        sum *= factor, out *= factor;
        if (pass > FINITE) {
            const float infinity = pass == UPWARDS ? INFINITY : NEG_INF;
            if (found && p.splits > 1) p.part_out[part * VALUE_DIM + d] += infinity;
            if (found && p.splits == 1) put(p, to, got(p, to) + infinity);
        } else if (p.splits > 1) {
            p.part_out[part * VALUE_DIM + d] = out;
            if (d == 0) p.part_max[part] = row_max, p.part_sum[part] = sum;
        } else {
            put(p, to, out * row_epilogue(p, s, h, i, row_max, sum, d == 0));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    decode(const __grid_constant__ ejki_cuda_decode_problem d) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    launch_dependents();
#endif
    const ejki_cuda_problem p = whole_problem(d);
    const int head = blockIdx.x % p.kv_heads, count = p.queries * p.group;
    const sequence s = sequence_at(p, blockIdx.x / p.kv_heads);
    const walk w = walk_of(p, s, head);
    const u32 ring = shared_address(memory) + threadIdx.x / 32 * STAGES * STAGE_BYTES;
    lane_rows rows;
    row_sums out;
    int pass = PLAIN;
#if DIRECT
    if (w.key.whole && w.value.whole) {
        pieces a, b;
        fetch_block(a, w.start, w);
        fetch_block(b, w.start + WARPS, w);
        begin_rows(p, s, head, count, rows);
        clear_rows(rows, out);
        through_registers(p, w, rows, a, b, out);
        if (!__syncthreads_or(needs_care(out))) {
            leave((float *)memory, rows, rows.base, out);
            __syncthreads();
            gather(p, s, head, count, PLAIN, (const float *)memory);
            return;
        }
        pass = FINITE;
    }
#endif
    begin_rows(p, s, head, count, rows);
#pragma unroll 1
    for (; pass <= DOWNWARDS; pass++) {
        clear_rows(rows, out);
        if (!DIRECT && pass == PLAIN)
            through_ring<false>(p, w, rows, ring, pass, out);
        else
            through_ring<true>(p, w, rows, ring, pass, out);
        if (__syncthreads_or(pass == PLAIN && needs_care(out))) continue;
        leave((float *)memory, rows, rows.base, out);
        __syncthreads();
        gather(p, s, head, count, pass, (const float *)memory);
        if (pass == PLAIN) return;
        __syncthreads();
    }
}

/* ---- Split-KV combine ----------------------------------------------------------------------------------------- */

enum { PAIRS = VALUE_DIM / 64, AHEAD = 16 };

/*
 * A CTA of one warp for each row. Lane n has max and sum of the nth of AHEAD splits, whose sums are all loaded at
 * once. Short, as every launch fetches its instructions anew.
 */
extern "C" __global__ void __launch_bounds__(32, 8)
    join(const __grid_constant__ ejki_cuda_decode_problem d) {
    const ejki_cuda_problem p = whole_problem(d);
    const int heads = p.kv_heads * p.group, lane = threadIdx.x;
    const i64 row = blockIdx.x, rows = p.entries * heads * p.queries;
    const sequence s = sequence_at(p, (int)(blockIdx.x / p.queries / heads));
    const int i = blockIdx.x % p.queries, h = blockIdx.x / p.queries % heads;
    const float2 *part = (const float2 *)(p.part_out + row * VALUE_DIM) + lane;
    const i64 step = rows * (VALUE_DIM / 2);
    float max = NEG_INF, sum = 0;
    float2 out[PAIRS] = {};
#if OVERLAP
    wait_for_previous();
#endif
#pragma unroll 1
    for (int first = 0; first < p.splits; first += AHEAD) {
        const bool own = lane < AHEAD && first + lane < p.splits;
        const i64 at = (i64)(first + lane) * rows + row;
        float own_max = own ? __ldcg(p.part_max + at) : NEG_INF;
        float own_sum = own ? __ldcg(p.part_sum + at) : 0;
        float2 x[AHEAD][PAIRS];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
#pragma unroll
            for (int k = 0; k < PAIRS; k++) x[n][k] = __ldcg(part + 32 * k);
            if (first + n + 1 < p.splits) part += step; /* else once more the last */
        }
        const float top = fmaxf(max, larger_of_lanes(own_max, 32));
        const float base = top == NEG_INF ? 0 : top;
        const float scale = power_of_2((max - base) * LOG2_E);
        const float own_weight = power_of_2((own_max - base) * LOG2_E);
        sum = sum * scale + sum_of_lanes(own_weight != 0 ? own_weight * own_sum : 0, 32);
        max = top;
#pragma unroll
        for (int k = 0; k < PAIRS; k++)
            if (scale != 1)
                out[k].x = scale != 0 ? out[k].x * scale : 0,
                out[k].y = scale != 0 ? out[k].y * scale : 0;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const float weight = __shfl_sync(~0u, own_weight, n);
#pragma unroll
            for (int k = 0; k < PAIRS; k++)
                if (weight != 0) out[k].x += weight * x[n][k].x, out[k].y += weight * x[n][k].y;
        }
    }
    const float factor = row_epilogue(p, s, h, i, max, sum, lane == 0);
    const i64 to = s.entry * p.out.stride_b + i * p.out.stride_t + h * p.out.stride_h + 2 * lane;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const float low = out[k].x * factor, high = out[k].y * factor;
        u16 *at = (u16 *)p.out.data + to + 64 * k;
        if (!p.normalize)
            put(p, to + 64 * k, low), put(p, to + 64 * k + 1, high);
        else if (((u64)at & 3) == 0)
            *(u32 *)at = pack(low, high);
        else
            at[0] = narrow(low), at[1] = narrow(high);
    }
}

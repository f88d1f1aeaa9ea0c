/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention by mma.sync, for bf16 and f16 from sm_80 up: one kernel over rows for d_query, one
 * over keys for d_key and d_value. A warp has 16 rows, or keys; the other side comes in blocks of BLOCK through a
 * ring of STAGES. No CTA adds to the results of another. Besides the constants of options.cuh:
 *
 *   WARPS, BLOCK, STAGES
 *   FOLDED                    as in forward_mma.cu
 *   D_QUERY, D_KEY, D_VALUE   1 = it is computed; d_query by a kernel of its own
 *   RECOMPUTES                1 = a few CTAs go through all tiles and, if sums were not finite, recompute rows with NaN
 */
#define COPIES_APART

#include "operations/attention/cuda/common/gradients.cuh"
#include "operations/attention/cuda/sm80/pipeline.cuh"

#ifndef RECOMPUTES
#define RECOMPUTES 0
#endif
#ifndef D_QUERY
#define D_QUERY 0
#endif
#ifndef D_KEY
#define D_KEY 0
#endif
#ifndef D_VALUE
#define D_VALUE 0
#endif

#define SIMPLE (FOLDED && !MASK && !SEGMENTS && !DROPOUT)

enum {
    OWN = 16 * WARPS,
    COLUMNS = BLOCK / 8,
    HEAD_WIDTH = 2 * sixteens(HEAD_DIM),
    VALUE_WIDTH = 2 * sixteens(VALUE_DIM),
    OWN_HEAD_BYTES = OWN * pitch_of(HEAD_DIM) * 2,
    OWN_BYTES = OWN_HEAD_BYTES + OWN * pitch_of(VALUE_DIM) * 2,
    HEAD_BYTES = BLOCK * pitch_of(HEAD_DIM) * 2,
    TILE_BYTES = HEAD_BYTES + BLOCK * pitch_of(VALUE_DIM) * 2,
    ROW_BYTES = TILE_BYTES + BLOCK * 8,  /* of a stage of rows: shift and delta after the tiles */
};

/* Products of the warp's 16 rows with all rows of a block. */
template <int dim> DEVICE void multiply(float (&z)[COLUMNS][4], u32 own, u32 block) {
    clear(z);
#pragma unroll
    for (int k = 0; k < sixteens(dim); k++) {
        u32 left[4];
        load_left<dim>(left, own, threadIdx.x / 32 * 16, k);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            u32 right[4];
            load_right<dim>(right, block, n * 8, k);
            mma(z[n], left, right[0], right[1]);
            mma(z[n + 1], left, right[2], right[3]);
        }
    }
}

/* Adds weights times a block's rows. */
template <int dim>
DEVICE void add_block(float (&sums)[2 * sixteens(dim)][4], const float (&z)[COLUMNS][4],
                      u32 block) {
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
        u32 left[4];
        pack_left(left, z[2 * k], z[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 2 * sixteens(dim); n += 2) {
            u32 right[4];
            load_right_trans<dim>(right, block, k * 16, n / 2);
            mma(sums[n], left, right[0], right[1]);
            mma(sums[n + 1], left, right[2], right[3]);
        }
    }
}

/* Writes a lane's share of a row: pairs of elements where they are aligned. */
template <int dim>
DEVICE void write_row(element *to, const float (&sums)[2 * sixteens(dim)][4], int half, int pass) {
    const int lane = threadIdx.x % 4;
    if (pass == PLAIN && dim % 2 == 0 && ((u64)to & 3) == 0) {
#pragma unroll
        for (int n = 0; n < 2 * sixteens(dim); n++)
            if (n * 8 + lane * 2 < dim)
                *(u32 *)(to + n * 8 + lane * 2) = pack(sums[n][2 * half], sums[n][2 * half + 1]);
        return;
    }
    float own[4 * sixteens(dim)]; /* in local memory, so that the loop stays short */
#pragma unroll
    for (int n = 0; n < 2 * sixteens(dim); n++)
        own[2 * n] = sums[n][2 * half], own[2 * n + 1] = sums[n][2 * half + 1];
#pragma unroll 1
    for (int n = 0; n < 4 * sixteens(dim); n++) {
        const int d = n / 2 * 8 + lane * 2 + n % 2;
        if (d >= dim) break;
        if (pass <= FINITE)
            to[d] = narrow(own[n]);
        else if (own[n] > 0)
            to[d] = narrow(__int_as_float(0x7fffffff));
    }
}

DEVICE element *address(const ejki_cuda_bthd &t, i64 entry, int token, int head) {
    return (element *)t.data + entry * t.stride_b + token * t.stride_t + head * t.stride_h;
}

/* True if one of a row's elements is NaN; all four lanes of a row take part. */
template <int dim> DEVICE bool row_is_nan(const element *row, bool there) {
    bool nan = false;
#pragma unroll 4
    for (int d = threadIdx.x % 4; d < dim; d += 4)
        if (there) nan = nan || widen(row[d]) != widen(row[d]);
    nan = __shfl_xor_sync(~0u, nan, 1) || nan;
    return __shfl_xor_sync(~0u, nan, 2) || nan;
}

/*
 * The weight and dX of a visible pair without options, from `shift` = -lse and `rest` = -scale δ. The slow path
 * makes both 0 where the weight is 0, as factors may not be finite.
 */
DEVICE void simple_pair(const ejki_cuda_problem &p, float shift, float rest, bool visible,
                        bool slow_path, float &z, float &back) {
    float weight = power_of_2(fmaf(z, p.scale * LOG2_E, shift));
    if (!visible) weight = 0;
    back = weight * fmaf(back, p.scale, rest);
    if (slow_path && weight == 0) back = 0;
    z = weight;
}

/* Runs the tile of this CTA or, when recomputing, every tile that a grid of few CTAs has to look at. */
template <class function>
DEVICE void for_each_tile(const ejki_cuda_vjp_problem &v, function compute) {
#if RECOMPUTES
    if (v.nonfinite && *v.nonfinite == 0) return;
#pragma unroll 1
    for (int index = blockIdx.x; index < v.jobs; index += gridDim.x) {
        compute(index);
        __syncthreads();
    }
#else
    compute(blockIdx.x);
#endif
}

#if D_QUERY

/* ---- d_query ------------------------------------------------------------------------------------------ */

/* A lane has two rows. */
struct lane_rows {
    int low[2], high[2];
    row_context context[2];
    row_state state[2];
    float shift[2], rest[2];
};

DEVICE void find_rows(const ejki_cuda_vjp_problem &v, const tile_place &at, int first, int count,
                      lane_rows &rows) {
    const ejki_cuda_problem &p = v.forward;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = lesser(first + half * 8 + threadIdx.x % 32 / 4, count - 1);
        const int i = row / p.group, h = at.head * p.group + row % p.group;
        visible_keys(at.s, i, &rows.low[half], &rows.high[half]);
        rows.context[half] = row_context_of(p, at.s, h, i);
        rows.state[half] = row_state_of(v, at.s, h, i);
        const float lse = rows.state[half].lse;
        rows.shift[half] = lse == NEG_INF ? NEG_INF : -lse * LOG2_E;
        rows.rest[half] = -p.scale * rows.state[half].delta;
    }
}

/* Products become dX, in `back`. */
DEVICE void row_pairs(const ejki_cuda_problem &p, const lane_rows &rows, int j0, bool edge,
                      bool slow_path, float (&z)[COLUMNS][4], float (&back)[COLUMNS][4]) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + k % 2, half = k / 2;
            const bool visible = !edge || (j >= rows.low[half] && j < rows.high[half] &&
                                        passes_block_mask(p, rows.context[half], j));
            if (SIMPLE) {
                simple_pair(p, rows.shift[half], rows.rest[half], visible, slow_path || edge, z[n][k],
                            back[n][k]);
            } else {
                const pair x =
                    pair_of(p, rows.context[half], rows.state[half], visible, j, z[n][k], back[n][k]);
                back[n][k] = x.dz * x.cap_grad * p.scale;
            }
        }
}

/* Where the lane's row of a half goes. */
DEVICE element *d_query_row(const ejki_cuda_vjp_problem &v, const tile_place &at, int own, int half) {
    const int group = v.forward.group, row = own + half * 8 + threadIdx.x % 32 / 4;
    return address(v.d_query, at.s.entry, at.s.query + row / group, at.head * group + row % group);
}

/* Which of the lane's rows are written: when recomputing, only those that are NaN. False if none of the tile is. */
DEVICE bool find_written(const ejki_cuda_vjp_problem &v, const tile_place &at, int own, int count,
                         bool (&writes)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        writes[half] = own + half * 8 + threadIdx.x % 32 / 4 < count;
        if (RECOMPUTES && v.nonfinite)
            writes[half] = row_is_nan<HEAD_DIM>(d_query_row(v, at, own, half), writes[half]);
    }
    return !(RECOMPUTES && v.nonfinite) || __syncthreads_or(writes[0] || writes[1]);
}

/* Prefetches the tile's queries and the cotangents of their outputs. */
DEVICE void copy_own_rows(const ejki_cuda_vjp_problem &v, const tile_place &at, u32 to) {
    const ejki_cuda_problem &p = v.forward;
    const int first = at.own * OWN, rows = at.s.known * p.group, head = at.head * p.group;
    copy_tile<OWN, HEAD_DIM>(to, rows_at<HEAD_DIM>(p.query, at.s.entry, at.s.query, head), first,
                             rows, p.group);
    copy_tile<OWN, VALUE_DIM>(to + OWN_HEAD_BYTES,
                              rows_at<VALUE_DIM>(v.out_cotangent, at.s.entry, at.s.query, head),
                              first, rows, p.group);
}

/* One block of keys: adds dX times the keys. */
DEVICE void d_query_block(const ejki_cuda_problem &p, const lane_rows &rows, u32 query, u32 key,
                          int j0, bool edge, int pass, float (&sums)[HEAD_WIDTH][4]) {
    float z[COLUMNS][4], back[COLUMNS][4];
    multiply<HEAD_DIM>(z, query, key);
    multiply<VALUE_DIM>(back, query + OWN_HEAD_BYTES, key + HEAD_BYTES);
    row_pairs(p, rows, j0, edge, pass != PLAIN, z, back);
    if (pass != PLAIN) {
        __syncthreads();
        replace_tile<BLOCK, HEAD_DIM>(key, pass);
        __syncthreads();
        if (pass == EITHER) replace_weights(back);
    }
    add_block<HEAD_DIM>(sums, back, key);
}

DEVICE void d_query_tile(const ejki_cuda_vjp_problem &v, int index, u8 *memory) {
    const ejki_cuda_problem &p = v.forward;
    tile_place at;
    if (!place_of_block(p, index, p.tiles, true, OWN, p.group, p.query_sums, p.queries, &at))
        return;
    const u32 query = shared_address(memory), ring = query + OWN_BYTES;
    const int count = at.s.queries * p.group, first_row = at.own * OWN;
    const int own = first_row + threadIdx.x / 32 * 16;
    bool writes[2];
    if (!find_written(v, at, own, count, writes)) return;
    const rows_of keys = rows_at<HEAD_DIM>(p.key, at.s.entry, at.s.key, at.head);
    const rows_of values = rows_at<VALUE_DIM>(p.value, at.s.entry, at.s.key, at.head);
    copy_own_rows(v, at, query);
    const int first_query = first_row / p.group;
    const int last_query = (lesser(first_row + OWN, count) - 1) / p.group;
    const key_range range = keys_of_rows(at.s, first_query, last_query);
    const int last = cdiv(range.end, BLOCK);
    lane_rows rows;
    find_rows(v, at, own, count, rows);
    const auto look = [&](int block) {
        return block_state(p, at.head * p.group, at.head * p.group + p.group - 1, first_query,
                           last_query, block * BLOCK,
                           lesser(block * BLOCK + BLOCK, at.s.keys) - 1);
    };
    const auto copy = [&](int n, int block) {
        const u32 to = ring + (u32)n % STAGES * TILE_BYTES;
        if (block < last) {
            copy_tile<BLOCK, HEAD_DIM>(to, keys, block * BLOCK, at.s.keys, 1);
            copy_tile<BLOCK, VALUE_DIM>(to + HEAD_BYTES, values, block * BLOCK, at.s.keys, 1);
        }
        cp_async_commit();
    };
    float sums[HEAD_WIDTH][4];
#pragma unroll 1
    for (int pass = PLAIN; pass <= EITHER; pass += pass == FINITE ? EITHER - FINITE : 1) {
        clear(sums);
        pipeline_blocks<STAGES>(
            range.begin / BLOCK, last, look, copy, [&](int n, int block, bool whole) {
                const int j0 = block * BLOCK;
                d_query_block(p, rows, query, ring + (u32)n % STAGES * TILE_BYTES, j0,
                              !whole || j0 < range.all_begin || j0 + BLOCK > range.all_end, pass,
                              sums);
            });
        if (__syncthreads_or(pass == PLAIN && has_nan(sums))) continue;
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (writes[half]) write_row<HEAD_DIM>(d_query_row(v, at, own, half), sums, half, pass);
        if (pass == PLAIN) return;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    d_query_mma(const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(1024) u8 memory[];
    for_each_tile(v, [&](int index) { d_query_tile(v, index, memory); });
}

#endif

#if D_KEY || D_VALUE

/* ---- d_key and d_value ---------------------------------------------------------------------------------- */

/*
 * Transposed products become P M, in `z`, and dX, in `back`. A lane has two keys and two of each eight rows. `given`
 * are the shifts and deltas of the rows.
 */
DEVICE void key_pairs(const ejki_cuda_vjp_problem &v, const sequence &s, int h, int i0, int key,
                      const float *given, bool edge, bool slow_path, float (&z)[COLUMNS][4],
                      float (&back)[COLUMNS][4]) {
    const ejki_cuda_problem &p = v.forward;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int own = n * 8 + threadIdx.x % 4 * 2 + side, i = i0 + own;
            const float shift = given[own], delta = given[BLOCK + own];
            int low = 0, high = 0;
            if (edge) visible_keys(s, i, &low, &high);
            row_context context;
            row_state state;
            if (!SIMPLE || ((BLOCK_MASK || POSITIONS) && edge))
                context = row_context_of(p, s, h, lesser(i, s.known - 1));
            if (!SIMPLE) {
                state.lse = shift == NEG_INF ? NEG_INF : -shift * LOG_2;
                state.delta = delta;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int j = key + half * 8, k = 2 * half + side;
                const bool visible = !edge || (j >= low && j < high && passes_block_mask(p, context, j));
                if (SIMPLE) {
                    simple_pair(p, shift, -p.scale * delta, visible, slow_path || edge, z[n][k],
                                back[n][k]);
                } else {
                    const pair x = pair_of(p, context, state, visible, j, z[n][k], back[n][k]);
                    z[n][k] = x.kept;
                    back[n][k] = x.dz * x.cap_grad * p.scale;
                }
            }
        }
}

/*
 * A tile of keys: where it lies, and the blocks of rows that see it, of the first head of the group, then of the
 * next.
 */
struct key_tile {
    sequence s;
    int head, start, count, first_key; /* start: the sequence's first key in the tensor */
    int first, each;                   /* blocks of a head */
    int all_begin, all_end;            /* rows to which all keys of the tile are visible */
};

DEVICE bool find_key_tile(const ejki_cuda_vjp_problem &v, int index, key_tile *t) {
    const ejki_cuda_problem &p = v.forward;
    tile_place at;
    if (!place_of_block(p, index, v.key_tiles, false, OWN, 1, p.key_sums, p.keys, &at))
        return false;
    const sequence &s = t->s = at.s;
    /* The tokens of no sequence are the tail of the tensor. */
    const bool unowned = LAYOUT == EJKI_CUDA_TOKENS && s.number == p.batch;
    t->head = at.head;
    t->start = unowned ? (int)sum_before(p, p.key_sums, p.batch, p.keys) : s.key;
    t->count = unowned ? p.keys - t->start : LAYOUT == EJKI_CUDA_PADDED ? p.keys : s.keys;
    t->first_key = at.own * OWN;
    int begin = 0, end = 0;
    t->all_begin = t->all_end = 0;
    if (t->first_key < s.keys) {
        visible_queries(s, t->first_key, &begin, &t->all_end);
        visible_queries(s, lesser(t->first_key + OWN, s.keys) - 1, &t->all_begin, &end);
        if (t->first_key + OWN > s.keys) t->all_end = 0;
    }
    t->first = begin / BLOCK;
    t->each = larger(cdiv(end, BLOCK) - t->first, 0);
    return true;
}

/* As find_written(), of the lane's keys. */
DEVICE bool find_written_keys(const ejki_cuda_vjp_problem &v, const key_tile &t, int own,
                              bool (&writes)[2]) {
    writes[0] = own < t.count, writes[1] = own + 8 < t.count;
    if (RECOMPUTES && v.nonfinite) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = t.start + own + half * 8;
            bool nan = false;
            if (D_KEY && v.d_key.data)
                nan = row_is_nan<HEAD_DIM>(address(v.d_key, t.s.entry, j, t.head), writes[half]);
            if (D_VALUE && v.d_value.data)
                nan |= row_is_nan<VALUE_DIM>(address(v.d_value, t.s.entry, j, t.head),
                                             writes[half]);
            writes[half] = nan;
        }
        return __syncthreads_or(writes[0] || writes[1]);
    }
    return true;
}

/* Prefetches a block of rows: queries, cotangents, shifts and deltas. */
DEVICE void copy_row_block(const ejki_cuda_vjp_problem &v, const key_tile &t, u32 to, int block) {
    const ejki_cuda_problem &p = v.forward;
    const sequence &s = t.s;
    const i64 heads = (i64)p.kv_heads * p.group;
    const int h = t.head * p.group + block / t.each, i0 = (t.first + block % t.each) * BLOCK;
    copy_tile<BLOCK, HEAD_DIM>(to, rows_at<HEAD_DIM>(p.query, s.entry, s.query, h), i0, s.known, 1);
    copy_tile<BLOCK, VALUE_DIM>(to + HEAD_BYTES,
                                rows_at<VALUE_DIM>(v.out_cotangent, s.entry, s.query, h), i0,
                                s.known, 1);
    const i64 row = (s.entry * heads + h) * p.queries + s.query;
    for (int i = threadIdx.x; i < BLOCK; i += THREADS) {
        const bool there = i0 + i < s.known;
        const i64 from = row + (there ? i0 + i : 0);
        copy_float(to + TILE_BYTES + i * 4, v.shift + from, there);
        copy_float(to + TILE_BYTES + (BLOCK + i) * 4, v.delta + from, there);
    }
}

/* Sums of a lane's two keys. */
struct key_sums {
    float d_key[D_KEY ? HEAD_WIDTH : 1][4], d_value[D_VALUE ? VALUE_WIDTH : 1][4];
};

/* One block of rows: adds P M times the cotangents, and dX times the queries. `stage` is its offset in the ring. */
DEVICE void d_keys_block(const ejki_cuda_vjp_problem &v, const key_tile &t, u8 *memory, u32 stage,
                         int block, bool whole, int own, int pass, key_sums &sums) {
    const u32 key = shared_address(memory), query = key + OWN_BYTES + stage;
    const int i0 = (t.first + block % t.each) * BLOCK;
    const int h = t.head * v.forward.group + block / t.each;
    const bool edge = IRREGULAR || !whole || i0 < t.all_begin || i0 + BLOCK > t.all_end;
    float z[COLUMNS][4], back[COLUMNS][4];
    multiply<HEAD_DIM>(z, key, query);
    if (D_KEY)
        multiply<VALUE_DIM>(back, key + OWN_HEAD_BYTES, query + HEAD_BYTES);
    else
        clear(back);
    key_pairs(v, t.s, h, i0, own, (const float *)(memory + OWN_BYTES + stage + TILE_BYTES), edge,
              pass != PLAIN, z, back);
    if (pass != PLAIN) {
        __syncthreads();
        replace_tile<BLOCK, HEAD_DIM>(query, pass);
        replace_tile<BLOCK, VALUE_DIM>(query + HEAD_BYTES, pass);
        __syncthreads();
        if (pass == EITHER) replace_weights(z), replace_weights(back);
    }
#if D_VALUE
    add_block<VALUE_DIM>(sums.d_value, z, query + HEAD_BYTES);
#endif
#if D_KEY
    add_block<HEAD_DIM>(sums.d_key, back, query);
#endif
}

DEVICE void write_keys(const ejki_cuda_vjp_problem &v, const key_tile &t, int own,
                       const bool (&writes)[2], const key_sums &sums, int pass) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = t.start + own + half * 8;
        if (!writes[half]) continue;
#if D_KEY
        if (v.d_key.data)
            write_row<HEAD_DIM>(address(v.d_key, t.s.entry, j, t.head), sums.d_key, half, pass);
#endif
#if D_VALUE
        if (v.d_value.data)
            write_row<VALUE_DIM>(address(v.d_value, t.s.entry, j, t.head), sums.d_value, half,
                                 pass);
#endif
    }
}

DEVICE void d_keys_tile(const ejki_cuda_vjp_problem &v, int index, u8 *memory) {
    const ejki_cuda_problem &p = v.forward;
    key_tile t;
    if (!find_key_tile(v, index, &t)) return;
    const sequence &s = t.s;
    const u32 key = shared_address(memory), ring = key + OWN_BYTES;
    const int own = t.first_key + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    bool writes[2];
    if (!find_written_keys(v, t, own, writes)) return;
    copy_tile<OWN, HEAD_DIM>(key, rows_at<HEAD_DIM>(p.key, s.entry, t.start, t.head), t.first_key,
                             s.keys, 1);
    copy_tile<OWN, VALUE_DIM>(key + OWN_HEAD_BYTES,
                              rows_at<VALUE_DIM>(p.value, s.entry, t.start, t.head), t.first_key,
                              s.keys, 1);
    const int blocks = t.each * p.group;
    const auto look = [&](int block) {
        const int h = t.head * p.group + block / t.each, i0 = (t.first + block % t.each) * BLOCK;
        return block_state(p, h, h, i0, lesser(i0 + BLOCK, s.known) - 1, t.first_key,
                           lesser(t.first_key + OWN, s.keys) - 1);
    };
    const auto copy = [&](int n, int block) {
        if (block < blocks) copy_row_block(v, t, ring + (u32)n % STAGES * ROW_BYTES, block);
        cp_async_commit();
    };
    key_sums sums;
#pragma unroll 1
    for (int pass = PLAIN; pass <= EITHER; pass += pass == FINITE ? EITHER - FINITE : 1) {
        clear(sums.d_key);
        clear(sums.d_value);
        pipeline_blocks<STAGES>(0, blocks, look, copy, [&](int n, int block, bool whole) {
            d_keys_block(v, t, memory, (u32)n % STAGES * ROW_BYTES, block, whole, own, pass, sums);
        });
        const bool nan = has_nan(sums.d_key) || has_nan(sums.d_value);
        if (__syncthreads_or(pass == PLAIN && nan)) continue;
        write_keys(v, t, own, writes, sums, pass);
        if (pass == PLAIN) return;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    d_keys_mma(const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(1024) u8 memory[];
    for_each_tile(v, [&](int index) { d_keys_tile(v, index, memory); });
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) of sums whose decays are those of heads, where operands have one piece: a
 * block for each chunk of HEADS heads that share query and key, in turn. Of a head, with f = d_out v' and the decays
 * between its tokens, on and below the diagonal,
 *
 *     dq = scale (e^G S d_out + f k)          dk = f' q + e^(G_end - G) dS v
 *
 * What heads have in common is done once: Q K', and products of f with keys and queries, of the sum of all heads' f.
 * Two warps have 16 rows of products with states, and half of the keys each, as sums over heads in registers. Of f each
 * of four warps has a block of 16 x 16 on the diagonal, the others have those below it.
 *
 * What passes by a gate, as chunk_rows.cu has it, is made of sums of rows and columns of blocks: of a block below the
 * diagonal either all rows pass by a gate, or all columns do. While a head is worked on, rows, states and gates of the
 * next one come.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE (REC_ADD), TERMS (1), DIRECT, WARPS (8), HEADS.
 */
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_products.cuh"
#include "operations/recurrent/cuda/chunk_rows.cuh"

#define BLOCK  16
#define RIGHTS (SLAB / 16) /* steps of 16 columns of a slab */

struct parts {
    chunk_of_head c; /* of the first head; what is the same for all threads is not in registers */
    work w[2];       /* of heads in turn, but for rows of lanes */
    float4 f[REC_TILES][2][32];        /* of all heads so far, times step sizes and the scale; as lanes have sums */
    float4 products[REC_TILES][2][32]; /* Q K' times factors of queries */
    chunk_gates g[2];                  /* of heads in turn */
    float k_norm[REC_CHUNK], q_norm[REC_CHUNK]; /* what rows are multiplied by to be normalised */
    /* Of rows, from their warps: sums with keys or queries, gradients of step sizes, and sums just now. */
    float since[HALVES][REC_CHUNK], until[HALVES][REC_CHUNK], step[HALVES][REC_CHUNK], along[HALVES][REC_CHUNK];
    float own[REC_CHUNK];    /* d_out v of a row */
    float inside[REC_CHUNK]; /* what passes by a row's gate within its block on the diagonal */
    /* Of blocks: sums of rows, of columns without factors of keys, and of all. */
    float across[REC_TILES][BLOCK], down[REC_TILES][BLOCK], total[REC_TILES];
    float met[WARPS]; /* sums of S dS */
};

DEVICE int row_of_lane() {
    return BLOCK * sub_of_warp() + threadIdx.x % 32 / 4;
}

/* ---- Between tokens --------------------------------------------------------------------------------- */

DEVICE int block_at(int row, int column) {
    return row * (row + 1) / 2 + column;
}
/* The warp's block number n, of two: on the diagonal one, of others at first those of the first column. */
DEVICE bool find_block(int n, int &row, int &column) {
    const int warp = threadIdx.x / 32;
    if (warp < 4) {
        row = column = warp;
        return n == 0;
    }
    row = n ? warp - 2 : warp == 7 ? 3 : warp - 3;
    column = n ? 0 : warp == 4 ? 0 : warp - 5 + (warp == 5);
    return n == 0 || warp < 6;
}

/* Four columns' sums over a warp's lanes of them: a lane is left with that of `column_left`, as is the one 4 apart. */
DEVICE float sum_of_rows(const float (&x)[4]) {
    const int lane = threadIdx.x % 32;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float own = lane & 16 ? x[2 + i] : x[i], other = lane & 16 ? x[i] : x[2 + i];
        two[i] = own + __shfl_xor_sync(~0u, other, 16);
    }
    const float own = lane & 8 ? two[1] : two[0], other = lane & 8 ? two[0] : two[1];
    const float one = own + __shfl_xor_sync(~0u, other, 8);
    return one + __shfl_xor_sync(~0u, one, 4);
}
DEVICE int column_left() {
    const int lane = threadIdx.x % 32;
    return lane / 16 * 8 + lane % 4 * 2 + lane / 8 % 2;
}

/* The sum of those of the lane's row in lanes before it. */
DEVICE float sum_before(float x) {
    const int lane = threadIdx.x % 4;
    float sum = __shfl_up_sync(~0u, x, 1, 4);
    if (lane < 1) sum = 0;
#pragma unroll
    for (int n = 1; n < 4; n *= 2) {
        const float more = __shfl_up_sync(~0u, sum, n, 4);
        if (lane >= n) sum += more;
    }
    return sum;
}

/* Sums over columns of a slab: rows of d_out times rows of values. */
DEVICE void multiply_block(u32 rows, u32 columns, int row, int column, float (&x)[2][4]) {
#pragma unroll
    for (int k = 0; k < RIGHTS; k++) {
        u32 left[4], right[4];
        load_left<SLAB>(left, rows, BLOCK * row, k);
        load_right<SLAB>(right, columns, BLOCK * column, k);
        mma(x[0], left, right[0], right[1]);
        mma(x[1], left, right[2], right[3]);
    }
}

/* Q K' of the warp's blocks. */
DEVICE void put_products(parts &s, u32 keys, u32 queries, float scale) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < 2; n++) {
        int row, column;
        float x[2][4];
        if (!find_block(n, row, column)) break;
        clear(x);
#pragma unroll 2
        for (int k = 0; k < KEY_SIZE / 16; k++) {
            u32 left[4], right[4];
            load_left<KEY_SIZE>(left, queries, BLOCK * row, k);
            load_right<KEY_SIZE>(right, keys, BLOCK * column, k);
            mma(x[0], left, right[0], right[1]);
            mma(x[1], left, right[2], right[3]);
        }
        const float low = s.q_norm[BLOCK * row + lane / 4] * scale, high = s.q_norm[BLOCK * row + lane / 4 + 8] * scale;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            s.products[block_at(row, column)][tile][lane] =
                make_float4(x[tile][0] * low, x[tile][1] * low, x[tile][2] * high, x[tile][3] * high);
            s.f[block_at(row, column)][tile][lane] = make_float4(0, 0, 0, 0);
        }
    }
}

/* Adds f of a head, which x is, to that of others, times what keys are multiplied by; x is with Q K' afterwards. */
DEVICE void add_heads(parts &s, int block, int tile, const float2 &by, float (&x)[4]) {
    const int lane = threadIdx.x % 32;
    float4 sum = s.f[block][tile][lane];
    const float4 product = s.products[block][tile][lane];
    sum.x += x[0] * by.x, sum.y += x[1] * by.y, sum.z += x[2] * by.x, sum.w += x[3] * by.y;
    s.f[block][tile][lane] = sum;
    x[0] *= product.x, x[1] *= product.y, x[2] *= product.z, x[3] *= product.w;
}

/* A block below the diagonal; decays are those to the block's first row, and from there. */
DEVICE void put_below(parts &s, const chunk_gates &g, int row, int column, const float2 (&by)[2], float (&x)[2][4]) {
    const int lane = threadIdx.x % 32, own = BLOCK * row + lane / 4, block = block_at(row, column);
    const float2 first = g.pair[BLOCK * row];
    const float down[] = {power_between(g.pair[own], first), power_between(g.pair[own + 8], first)};
    float across[2] = {0, 0}, columns[4];
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int from = BLOCK * column + 8 * tile + lane % 4 * 2;
        const float4 others = *(const float4 *)(g.pair + from);
        const float2 factors = *(const float2 *)(g.k_factor + from);
        const float to_first[] = {power_between(first, make_float2(others.x, others.y)),
                                  power_between(first, make_float2(others.z, others.w))};
#pragma unroll
        for (int i = 0; i < 4; i++) x[tile][i] *= to_first[i % 2] * down[i / 2];
        add_heads(s, block, tile, by[tile], x[tile]);
        across[0] += x[tile][0] * factors.x + x[tile][1] * factors.y;
        across[1] += x[tile][2] * factors.x + x[tile][3] * factors.y;
        columns[2 * tile] = x[tile][0] + x[tile][2], columns[2 * tile + 1] = x[tile][1] + x[tile][3];
    }
    across[0] = sum_of_lanes(across[0], 4), across[1] = sum_of_lanes(across[1], 4);
    float total = across[0] + across[1];
#pragma unroll
    for (int n = 4; n < 32; n *= 2) total += __shfl_xor_sync(~0u, total, n);
    if (lane % 4 == 0) s.across[block][lane / 4] = across[0], s.across[block][lane / 4 + 8] = across[1];
    if (lane == 0) s.total[block] = total;
    s.down[block][column_left()] = sum_of_rows(columns);
}

/* A block on the diagonal: x[0] has columns of all of its rows, x[1] those of the lower half. */
DEVICE void put_diagonal(parts &s, const chunk_gates &g, int row, const float2 (&by)[2], float (&x)[2][4]) {
    const int lane = threadIdx.x % 32, own = BLOCK * row + lane / 4, block = block_at(row, row);
    const float2 rows[] = {g.pair[own], g.pair[own + 8]};
    float columns[4], inside[4], before[2][2];
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int from = BLOCK * row + 8 * tile + lane % 4 * 2;
        const float4 others = *(const float4 *)(g.pair + from);
        const float2 factors = *(const float2 *)(g.k_factor + from);
        const float2 other[] = {make_float2(others.x, others.y), make_float2(others.z, others.w)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = own + i / 2 * 8;
            const float all = x[tile][i];
            if (from + i % 2 == to) s.own[to] = all;
            x[tile][i] = tile > i / 2 || from + i % 2 > to ? 0 : all * power_between(rows[i / 2], other[i % 2]);
        }
        add_heads(s, block, tile, by[tile], x[tile]);
        columns[2 * tile] = x[tile][0] + x[tile][2], columns[2 * tile + 1] = x[tile][1] + x[tile][3];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[tile][i] = from + i % 2 < own + i / 2 * 8 ? x[tile][i] * (i % 2 ? factors.y : factors.x) : 0;
    }
    before[0][0] = sum_before(x[0][0] + x[0][1]);
    before[0][1] = sum_before(x[0][2] + x[0][3]);
    before[1][1] = sum_before(x[1][2] + x[1][3]) + sum_of_lanes(x[0][2] + x[0][3], 4);
#pragma unroll
    for (int tile = 0; tile < 2; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) { /* of tokens before the gate, to those from its own on */
            const int gate = 8 * tile + lane % 4 * 2 + i;
            const float low = tile == 0 && gate <= lane / 4 ? before[0][0] + (i ? x[0][0] : 0) : 0;
            const float high = gate <= lane / 4 + 8 ? before[tile][1] + (i ? x[tile][2] : 0) : 0;
            inside[2 * tile + i] = low + high;
        }
    s.down[block][column_left()] = sum_of_rows(columns);
    s.inside[BLOCK * row + column_left()] = sum_of_rows(inside);
}

/* f of the warp's blocks with their decays. */
DEVICE void put_blocks_of_head(const rec_problem &p, parts &s, const chunk_gates &g, float (&x)[2][2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int row, column;
        float2 by[2];
        if (!find_block(n, row, column)) break;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            const float scale = (float)p.scale;
            const float2 size = *(const float2 *)(g.beta + BLOCK * column + 8 * tile + threadIdx.x % 4 * 2);
            by[tile] = p.by_step ? make_float2(scale * size.x, scale * size.y) : make_float2(scale, scale);
        }
        if (row == column)
            put_diagonal(s, g, row, by, x[n]);
        else
            put_below(s, g, row, column, by, x[n]);
    }
}

DEVICE u32 turn_tile(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* sum += a left operand times rows 16 k … of a tile. */
DEVICE void add_rows_of(u32 tile, int k, const u32 (&left)[4], float (&sum)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES / 2; n++) {
        u32 right[4];
        load_right_trans<KEY_SIZE>(right, tile, BLOCK * k, first_tile() / 2 + n);
        mma(sum[2 * n], left, right[0], right[1]);
        mma(sum[2 * n + 1], left, right[2], right[3]);
    }
}

/* What tokens say to each other, of all heads: f k to dq, f' q to dk. */
DEVICE void add_tokens(const parts &s, u32 keys, u32 queries, float (&dq)[TILES][4], float (&dk)[TILES][4]) {
    const int sub = sub_of_warp(), lane = threadIdx.x % 32;
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        u32 left[4];
        if (k <= sub) {
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                const float4 x = s.f[block_at(sub, k)][tile][lane];
                const float2 by = *(const float2 *)(s.k_norm + BLOCK * k + 8 * tile + lane % 4 * 2);
                left[2 * tile] = pack(x.x * by.x, x.y * by.y), left[2 * tile + 1] = pack(x.z * by.x, x.w * by.y);
            }
            add_rows_of(keys, k, left, dq);
        }
        if (k >= sub) {
            const float low = s.q_norm[BLOCK * k + lane / 4], high = s.q_norm[BLOCK * k + lane / 4 + 8];
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                const float4 x = s.f[block_at(k, sub)][tile][lane];
                left[tile] = turn_tile(pack(x.x * low, x.y * low));
                left[2 + tile] = turn_tile(pack(x.z * high, x.w * high));
            }
            add_rows_of(queries, k, left, dk);
        }
    }
}

/* ---- States ----------------------------------------------------------------------------------------- */

/* The sum of all elements of a state times those of its cotangent, of the warp's threads. */
DEVICE float meet(const uint4 &x, const uint4 &y) {
    const u32 own[] = {x.x, x.y, x.z, x.w}, other[] = {y.x, y.y, y.z, y.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 one = widen_pair(own[i]), two = widen_pair(other[i]);
        sum += one.x * two.x + one.y * two.y;
    }
    return sum;
}
DEVICE float meet_states(const rec_chunked &a, const work &w, u32 tiles) {
    float sum = 0;
    if (slabs_of(w) == 1) { /* both are there */
#pragma unroll
        for (int n = threadIdx.x; n < SLAB * (KEY_SIZE / 8); n += THREADS)
            sum += meet(load_piece(tiles + 16 * n), load_piece(tiles + TILE + 16 * n));
    } else {
        const rec_size first = w.place * w.columns * KEY_SIZE;
        const uint4 *state = (const uint4 *)((const u16 *)a.states + first);
        const uint4 *cotangent = (const uint4 *)((const u16 *)a.cotangents + first);
#pragma unroll 4
        for (int n = threadIdx.x; n < w.columns * (KEY_SIZE / 8); n += THREADS) sum += meet(state[n], cotangent[n]);
    }
    return sum_of_lanes(sum, 32);
}

/* dq of the head, of what the state before the chunk says. */
DEVICE void add_state(parts &s, const chunk_gates &g, float scale, u32 queries, float (&x)[TILES][4],
                      float (&dq)[TILES][4]) {
    const int first = row_of_lane();
    float factor[2], along[2];
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = scale * g.before[first + 8 * half];
    scale_rows(queries, first, factor, x, along);
    if (threadIdx.x % 4 == 0)
        for (int half = 0; half < 2; half++) {
            const int row = first + 8 * half;
            s.since[half_of_warp()][row] = along[half] * (s.q_norm[row] * factor[half]);
        }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dq[n][i] += x[n][i];
}

/* dk of the head, of what the cotangent behind the chunk says. */
DEVICE void add_cotangent(const rec_problem &p, parts &s, const chunk_gates &g, u32 keys, float (&x)[TILES][4],
                          float (&dk)[TILES][4]) {
    const int first = row_of_lane();
    float factor[2], along[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        factor[half] = g.behind[first + 8 * half] * (p.by_step ? g.beta[first + 8 * half] : 1);
    scale_rows(keys, first, factor, x, along);
    if (threadIdx.x % 4 == 0)
        for (int half = 0; half < 2; half++) {
            const int row = first + 8 * half;
            s.until[half_of_warp()][row] = along[half] * (g.behind[row] * g.k_factor[row]);
            s.step[half_of_warp()][row] = along[half] * g.behind[row];
        }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dk[n][i] += x[n][i];
}

/* ---- Heads ------------------------------------------------------------------------------------------ */

/* Begins to copy the columns of a slab; what is behind the last is 0. */
DEVICE void copy_columns(const work &w, rows_of r, int slab, bool is_there, u32 tile) {
    const int columns = is_there ? (int)w.columns - SLAB * slab : 0;
    r.data += SLAB * slab;
    if (columns >= SLAB) {
        copy_tile<REC_CHUNK, SLAB>(tile, r, w.first, w.steps, 1);
        return;
    }
    for (int n = threadIdx.x; n < REC_CHUNK * (SLAB / 8); n += THREADS) {
        const int row = n / (SLAB / 8), piece = n % (SLAB / 8);
        const bool there = 8 * piece < columns && w.first + row < w.steps;
        const u16 *at = there ? r.data + (w.first + row) * r.stride_t + 8 * piece : r.data;
        if (r.whole)
            copy_piece(piece_at<SLAB>(tile, row, piece), at, there);
        else
            copy_elements<SLAB>(piece_at<SLAB>(tile, row, piece), at, 8 * piece, there);
    }
}
DEVICE void begin_rows(const work &w, int n, u32 asked, u32 values) {
    if (n < slabs_of(w)) copy_columns(w, w.d_out, n, w.has_d_out, asked);
    copy_columns(w, w.value, n % slabs_of(w), true, values);
    cp_async_commit();
}

/* Gradients of values, which the walk has made, to their rows or to where they belong. */
DEVICE void store_values(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h) {
    const int vectors = rec_vectors(&a.p);
    u16 *direct[2];
    float *rows[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row_of_lane() + 8 * half;
        direct[half] = DIRECT & REC_DIRECT_VALUE ? direct_row(a, q, w, h, REC_VALUE, row) : NULL;
        rows[half] = DIRECT & REC_DIRECT_VALUE ? NULL : row_of(a, q, w, h, row);
    }
#pragma unroll 2
    for (int n = half_of_warp(); 16 * n < w.columns; n += 2) {
        const operand y = kept_operand(w.backs, w, row_of_lane(), n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = 16 * n + i / 2 * 8 + threadIdx.x % 4 * 2;
            const float2 two = y.value(i);
            if (direct[i % 2]) store_pair(direct[i % 2] + column, two.x, two.y);
            if (rows[i % 2]) *(float2 *)(rows[i % 2] + vectors * KEY_SIZE + column) = two;
        }
    }
}

/* What the gate of a row gets, of tokens, and what its step size does, by the row's thread of two warps. */
DEVICE float2 numbers_of_row(const parts &s, const chunk_gates &g, int row) {
    const int block = row / BLOCK, at = row % BLOCK;
    float before = 0, below = 0, between = 0; /* to the row; from it to others; by the whole block */
    for (int n = 0; n < block; n++) before += s.across[block_at(block, n)][at];
    for (int n = block + 1; n < 4; n++) {
        below += s.down[block_at(n, block)][at];
        for (int i = 0; i < block; i++) between += s.total[block_at(n, i)];
    }
    const float step = s.down[block_at(block, block)][at] + below;
    float sum = below * g.k_factor[row];
    sum = __shfl_up_sync(~0u, sum, 1);
    if (at == 0) sum = 0;
    for (int n = 1; n < BLOCK; n *= 2) {
        const float up = __shfl_up_sync(~0u, sum, n), behind = __shfl_down_sync(~0u, before, n);
        if (at >= n) sum += up;
        if (at + n < BLOCK) before += behind;
    }
    return make_float2(s.inside[row] + before + sum + between, step);
}

DEVICE void put_numbers(const rec_chunked &a, const parts &s, const chunk_gates &g, const work &w, rec_size h,
                        int row) {
    float all = 0;
    for (int n = 0; n < WARPS; n++) all += s.met[n];
    const float2 two = numbers_of_row(s, g, row);
    const float gate = two.x + gate_of_states(s.since, s.until, row) + g.before[REC_CHUNK - 1] * all;
    if (row >= s.c.rows) return;
    float *numbers = row_of(a, s.c.q, w, h, row) + a.width - REC_NUMBERS;
    numbers[REC_D_BETA] = a.p.by_step ? two.y + of_halves(s.step, row) : 0;
    numbers[REC_D_HEAD] = gate;
    numbers[REC_ALONG_U] = 0;
    numbers[REC_ALONG_X] = s.own[row];
}

/* Factors of a head, whose sums of gates are there, by 128 threads. */
DEVICE void put_factors_of_head(const rec_problem &p, const parts &s, chunk_gates &g) {
    const int row = threadIdx.x;
    if (row >= 2 * REC_CHUNK) return;
    end_gates(g);
    if (row < REC_CHUNK) g.k_factor[row] = s.k_norm[row] * (p.by_step ? g.beta[row] : 1);
}

/* What loads of a head need, of `n` behind the first. */
DEVICE void put_work(const rec_chunked &a, parts &s, int n) {
    chunk_of_head c = s.c;
    c.h += n, c.place += n;
    s.w[n % 2] = work_of(a, c);
}

/* The slabs of a head, of states and then of cotangents; what the next head needs comes behind the last. */
DEVICE void make_head(const rec_chunked &a, parts &s, int head, u32 keys, u32 queries, u32 tiles, u32 asked, u32 values,
                      float (&dq)[TILES][4], float (&dk)[TILES][4]) {
    const work &w = s.w[head % 2], &next = s.w[(head + 1) % 2];
    chunk_gates &g = s.g[head % 2], &after = s.g[(head + 1) % 2];
    const int slabs = HEADS > 1 ? 1 : slabs_of(w), sub = sub_of_warp();
    const bool has_next = head + 1 < HEADS;
    float f[2][2][4], x[TILES][4];
    clear(f[0]);
    clear(f[1]);
    clear(x);
#pragma unroll 1
    for (int n = 0; n < slabs; n++) {
        cp_async_wait<0>();
        __syncthreads();
        begin_slab(a, w, tiles, n + 1);
        if (n == 0 && has_next && threadIdx.x == THREADS - 1) put_work(a, s, head + 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row, column;
            if (find_block(i, row, column)) multiply_block(asked, values, row, column, f[i]);
        }
        if (n + 1 == slabs) put_blocks_of_head(a.p, s, g, f);
#pragma unroll
        for (int k = 0; k < RIGHTS; k++) {
            u32 left[1][4];
            load_left<SLAB>(left[0], asked, BLOCK * sub, k);
            multiply_state(tiles + n % 2 * TILE, k, left, x);
        }
        if (slabs == 1) break;
        __syncthreads();
        begin_rows(w, n + 1, asked, values);
    }
    add_state(s, g, (float)a.p.scale, queries, x, dq);
    store_values(a, s.c.q, w, s.c.h + head);
    clear(x);
#pragma unroll 1
    for (int n = slabs; n < 2 * slabs; n++) {
        const bool is_last = n + 1 == 2 * slabs;
        u32 left[RIGHTS][1][4];
        cp_async_wait<0>();
        __syncthreads();
        if (!is_last) begin_slab(a, w, tiles, n + 1);
        if (is_last) {
            const float met = meet_states(a, w, tiles);
            if (threadIdx.x % 32 == 0) s.met[threadIdx.x / 32] = met;
        }
#pragma unroll
        for (int k = 0; k < RIGHTS; k++) load_left<SLAB>(left[k][0], values, BLOCK * sub, k);
        __syncthreads();
        if (!is_last) {
            begin_rows(w, n + 1, asked, values);
        } else if (has_next) {
            begin_slab(a, next, tiles, 0);
            begin_rows(next, 0, asked, values);
            add_gates(a.p, s.c.q, s.c.first, s.c.rows, s.c.h + head + 1, after);
        }
#pragma unroll
        for (int k = 0; k < RIGHTS; k++) multiply_state(tiles + n % 2 * TILE, k, left[k], x);
    }
    add_cotangent(a.p, s, g, keys, x, dk);
    __syncthreads();
    if (has_next) put_factors_of_head(a.p, s, after);
    const int row = (int)threadIdx.x - 2 * REC_CHUNK;
    if (row >= 0 && row < REC_CHUNK) put_numbers(a, s, g, w, s.c.h + head, row);
}

/* What is there before the first head: rows of keys and queries, their factors, and what the head needs. */
DEVICE bool begin_heads(const rec_chunked &a, parts &s, u32 keys, u32 queries, u32 tiles, u32 asked, u32 values) {
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return false;
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    const work w = work_of(a, c);
    begin_slab(a, w, tiles, 0);
    begin_rows(w, 0, asked, values);
    if (threadIdx.x == THREADS - 1) s.c = c, s.w[0] = w;
    add_gates(p, c.q, c.first, c.rows, c.h, s.g[0]);
    cp_async_wait<0>();
    __syncthreads();
    for (int n = threadIdx.x; n < 4 * REC_CHUNK; n += THREADS) { /* two threads for a row of keys, or of queries */
        const bool is_key = n < 2 * REC_CHUNK;
        const float norm = factor_of_pair(p, is_key ? keys : queries, n / 2 % REC_CHUNK);
        if (n % 2 == 0) (is_key ? s.k_norm : s.q_norm)[n / 2 % REC_CHUNK] = norm;
    }
    __syncthreads();
    put_factors_of_head(p, s, s.g[0]);
    put_products(s, keys, queries, (float)p.scale);
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) rows_sum(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const u32 keys = shared_address(memory), queries = keys + TILE, tiles = queries + TILE;
    const u32 asked = tiles + 2 * TILE, values = asked + REC_CHUNK * SLAB * 2;
    parts &s = *(parts *)(memory + 4 * TILE + 2 * REC_CHUNK * SLAB * 2);
    if (!begin_heads(a, s, keys, queries, tiles, asked, values)) return;
    float dq[TILES][4], dk[TILES][4];
    clear(dq);
    clear(dk);
#pragma unroll 1
    for (int n = 0; n < HEADS; n++) make_head(a, s, n, keys, queries, tiles, asked, values, dq, dk);
    add_tokens(s, keys, queries, dq, dk);
    work w = s.w[(HEADS - 1) % 2];
    w.row = row_of_lane();
    float *const rows[] = {row_of(a, s.c.q, w, s.c.h, w.row), row_of(a, s.c.q, w, s.c.h, w.row + 8)};
    if (DIRECT & REC_DIRECT_QUERY) {
        store_direct(a, s.c.q, w, s.c.h, REC_QUERY, queries, s.q_norm, s.along, dq);
        __syncthreads();
    } else {
        store_rows(rows, REC_SUM_QUERY, dq);
    }
    if (DIRECT & REC_DIRECT_KEY)
        store_direct(a, s.c.q, w, s.c.h, REC_KEY, keys, s.k_norm, s.along, dk);
    else
        store_rows(rows, REC_SUM_KEY, dk);
}

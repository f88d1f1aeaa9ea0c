/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention on sm_90a, for bf16 and f16 and heads up to 128: d_query, d_key and d_value by one kernel,
 * so that five products do. What is not finite behind a mask may spoil sums here; the sums are NaN then, and the rows are
 * computed again by backward_mma.cu. Besides the constants of base.cuh:
 *
 *   ROWS      of a tile of queries: 64, or 128 if both heads are at most 64
 *   ORDERED   1 = tiles of keys add to d_query one after the other, the first first
 *   D_QUERY   1 = d_query is computed
 *
 * A block of the grid takes one tile of 128 keys after the other from a counter and goes through the tiles of queries
 * that see it, of all heads of the group. Of its warpgroups the first moves data: warp 0 copies tiles and says what is
 * next, warp 1 fetches what rows have one of, warps 2 and 3 add to d_query. The two others compute, each for 64 keys:
 *
 *     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ = dS K
 *
 * P^T and dS^T are left operands out of registers; dS goes through shared memory, as d_query wants all 128 keys of it.
 * Of d_query each warpgroup computes one half, of the columns, or of the rows if there are 128. It is added to floats
 * that lie as the warpgroups' registers do, and rounded at the end by a kernel of its own.
 */
#include "operations/attention/cuda/sm90/backward.cuh"

/* ---- Moving data -------------------------------------------------------------------------------------- */

/* The tiles of a job, by one lane; *turn counts those of queries. */
DEVICE void copy_job(const tensor_map &query, const tensor_map &key, const tensor_map &value,
                     const tensor_map &d_out, const job *x, int group, u32 base, u32 *turn) {
    barrier_expect(base + KEY_FULL, KEY_BYTES);
    for (int c = 0; c < HEAD / 64; c++)
        copy_box(base + KEY_AT + c * KEYS * 128, &key, base + KEY_FULL, c * 64, x->start, x->head,
                 x->entry);
    bool first = true;
    for (int h = x->head * group; h < (x->head + 1) * group; h++)
        for (int n = 0; n < x->tiles; n++, ++*turn) {
            const u32 stage = *turn % 2, empty = *turn / 2 % 2 ^ 1;
            const u32 full = base + QUERY_FULL + 8 * stage, out_full = base + OUT_FULL + 8 * stage;
            const int token = x->query + tile_at(x, n) * ROWS;
            barrier_wait(base + QUERY_EMPTY + 8 * stage, empty);
            barrier_expect(full, QUERY_BYTES);
            for (int c = 0; c < HEAD / 64; c++)
                copy_box(base + QUERY_AT + stage * QUERY_BYTES + c * ROWS * 128, &query, full,
                         c * 64, token, h, x->entry);
            if (first) {
                first = false;
                barrier_expect(base + VALUE_FULL, VALUE_BYTES);
                for (int c = 0; c < VALUE / 64; c++)
                    copy_box(base + VALUE_AT + c * KEYS * 128, &value, base + VALUE_FULL, c * 64,
                             x->start, x->head, x->entry);
            }
            barrier_wait(base + OUT_EMPTY + 8 * stage, empty);
            barrier_expect(out_full, OUT_BYTES);
            for (int c = 0; c < VALUE / 64; c++)
                copy_box(base + OUT_AT + stage * OUT_BYTES + c * ROWS * 128, &d_out, out_full,
                         c * 64, token, h, x->entry);
        }
}

/* Warp 0: takes jobs, and copies what they need. */
DEVICE void copy_tiles(const tensor_map &query, const tensor_map &key, const tensor_map &value,
                       const tensor_map &d_out, const ejki_cuda_vjp_problem &v, u32 base,
                       u8 *memory) {
    const bool one = threadIdx.x == 0;
    ring_place<2> place = {0, 0};
    u32 turn = 0, parity = 1;
    for (;;) {
        job *x = (job *)(memory + JOB_AT + 64 * place.stage);
        barrier_wait(base + JOB_EMPTY + 8 * place.stage, place.parity ^ 1);
        int index = 0;
        do {
            if (one) index = (int)atomicAdd(v.ticket, 1u);
            index = __shfl_sync(~0u, index, 0);
        } while (index < v.jobs && !find_job(v, index, x));
        __syncwarp();
        if (one) {
            x->there = index < v.jobs;
            barrier_arrive(base + JOB_FULL + 8 * place.stage);
        }
        if (index >= v.jobs) return;
        place.next();
        if (one && x->tiles > 0) {
            barrier_wait(base + KEYS_EMPTY, parity);
            parity ^= 1;
            copy_job(query, key, value, d_out, x, v.forward.group, base, &turn);
        }
        __syncwarp();
    }
}

/* Warp 1: shifts and deltas; rows that are not there weigh nothing. */
DEVICE void copy_rows(const ejki_cuda_vjp_problem &v, jobs list, u32 base, u8 *memory) {
    const int lane = threadIdx.x % 32, group = v.forward.group;
    u32 turn = 0;
    for (;;) {
        const job *x = list.next();
        if (!x->there) return;
        for (int h = 0; h < group; h++) {
            const i64 first = ((i64)x->entry * v.forward.kv_heads * group + x->head * group + h) *
                                  v.forward.queries +
                              x->query;
            for (int n = 0; n < x->tiles; n++, turn++) {
                const int i0 = tile_at(x, n) * ROWS;
                const u32 barriers = base + 8 * (turn % 2);
                float shift[ROWS / 32], delta[ROWS / 32];
#pragma unroll
                for (int k = 0; k < ROWS / 32; k++) {
                    const int i = i0 + k * 32 + lane;
                    const bool there = i < x->known;
                    shift[k] = there ? v.shift[first + i] : NEG_INF;
                    delta[k] = there ? v.delta[first + i] : 0;
                }
                barrier_wait(barriers + QUERY_EMPTY, turn / 2 % 2 ^ 1);
                float *to = (float *)(memory + ROW_AT + turn % 2 * ROW_BYTES);
#pragma unroll
                for (int k = 0; k < ROWS / 32; k++) {
                    to[k * 32 + lane] = shift[k];
                    to[ROWS + k * 32 + lane] = delta[k];
                }
                if (lane == 0) {
                    ((int *)to)[2 * ROWS] = i0;
                    ((int *)to)[2 * ROWS + 1] = i0 < x->all_begin || i0 + ROWS > x->all_end;
                }
                __syncwarp();
                if (lane == 0) barrier_arrive(barriers + QUERY_FULL);
            }
        }
        list.done();
    }
}

/* Bytes of a warpgroup's share that are of any column, and where a tile's share lies. */
DEVICE int share_bytes(int which) {
    const int columns = ROWS == 128 ? HEAD_DIM : lesser(HEAD_DIM - which * SHARE, (int)SHARE);
    return round_up(larger(columns, 0), 8) * 256;
}
DEVICE float *share_at(const ejki_cuda_vjp_problem &v, i64 tile, int which) {
    return v.sums + (tile * ROWS * round_up(HEAD_DIM, 8) + which * (share_bytes(0) / 4));
}

/* Until tiles of keys whose turn is before have added. */
DEVICE void await_turn(const u32 *turn, u32 own) {
    u32 now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != own);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
DEVICE void pass_turn(u32 *turn) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
}

/* How many tiles of keys see this one of queries and come before. */
DEVICE int turn_of(const job *x, int number) {
    return x->first_key / KEYS - larger(number * ROWS + x->low, 0) / KEYS;
}

/* Both shares of a tile. Where there is an order, the first is in place of zeros. */
DEVICE void add_tile(const ejki_cuda_vjp_problem &v, const job *x, i64 tile, int number, u32 from,
                     u32 empty) {
    const int own = ORDERED ? turn_of(x, number) : 0;
    if (ORDERED && own > 0) await_turn(v.turns + tile, own);
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const u32 bytes = (u32)share_bytes(which);
        if (bytes == 0) continue;
        if (ORDERED && own == 0)
            store_run(share_at(v, tile, which), from + which * SHARE_BYTES, bytes);
        else
            add_run(share_at(v, tile, which), from + which * SHARE_BYTES, bytes);
    }
    stores_commit();
    stores_read<0>();
    barrier_arrive(empty);
    if (!ORDERED) return;
    stores_written<0>();
    pass_turn(v.turns + tile);
}

/* Warps 2 and 3: every other tile of queries, as it takes longer than to compute one. */
DEVICE void add_shares(const ejki_cuda_vjp_problem &v, jobs list, u32 base, u32 stage) {
    const int group = v.forward.group;
    const bool one = threadIdx.x % 32 == 0;
    u32 turn = 0;
    for (;;) {
        const job *x = list.next();
        if (!x->there) break;
        for (int h = 0; one && h < group; h++) {
            const i64 first =
                ((i64)x->entry * v.forward.kv_heads * group + x->head * group + h) * v.slots +
                x->slot;
            for (int n = 0; n < x->tiles; n++, turn++) {
                if (turn % 2 != stage) continue;
                barrier_wait(base + SHARE_FULL + 8 * stage, turn / 2 % 2);
                add_tile(v, x, first + tile_at(x, n), tile_at(x, n),
                         base + SHARE_AT + stage * 2 * SHARE_BYTES, base + SHARE_EMPTY + 8 * stage);
            }
        }
        list.done();
    }
    if (one) stores_written<0>();
}

/* ---- Computing ---------------------------------------------------------------------------------------- */

/* 64 keys' products with all rows of a tile; both have `dim` columns. */
template <int dim> DEVICE void multiply(float (&sums)[ROWS / 2], u64 keys, u64 rows) {
    hold(sums);
    products_begin();
#pragma unroll
    for (int k = 0; k < sixteens(dim); k++)
        products<ROWS>::shared<0, 0>(sums, operand_on(keys, k / 4 * KEYS * 128 + k % 4 * 32),
                                     operand_on(rows, k / 4 * ROWS * 128 + k % 4 * 32), k != 0);
    products_commit();
}

/* Adds to 64 keys' sums: weights times rows. */
template <int columns>
DEVICE void add_rows(float (&sums)[columns / 2], u32 (&weights)[ROWS / 4], u64 rows) {
    hold(sums);
    hold(weights);
    products_begin();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
        products<columns>::template held<1>(sums, weights + 4 * k, operand_on(rows, k * 2048), 1);
    products_commit();
}

/* Weights of pairs that do not see each other become 0; `key` is the first of the lane's two, in the sequence. */
DEVICE void hide(const job *x, int i0, int key, float (&s)[ROWS / 2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = key + half * 8;
        const u32 first = j < x->keys ? (u32)(j - x->high) : 1u << 31;
        const u32 more = j < x->keys ? (u32)(x->high - x->low) : 0;
        const u32 own = (u32)i0 + threadIdx.x % 4 * 2 - first;
#pragma unroll
        for (int n = 0; n < ROWS / 4; n++) {
            float &weight = s[n / 2 * 4 + half * 2 + n % 2];
            if (own + (u32)(n / 2 * 8 + n % 2) > more) weight = 0;
        }
    }
}

#if SOFT_CAP
/* tanh to within two units of 2^-24, 1 for large numbers. */
DEVICE float tanh_of(float x) {
    return 1 - __fdividef(2, power_of_2(x * (2 * LOG2_E)) + 1);
}
#endif

/* Products become weights P; *slopes is what a soft cap makes of them, else nothing. */
DEVICE void make_weights(const ejki_cuda_problem &p, const float2 *shifts, float (&s)[ROWS / 2],
                         float (&slopes)[SOFT_CAP ? ROWS / 2 : 1]) {
#if SOFT_CAP
    const float factor = p.scale / p.soft_cap, cap = p.soft_cap * LOG2_E;
#else
    const float factor = p.scale * LOG2_E;
#endif
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 shift = shifts[n * 4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float &x = s[4 * n + k];
            const float by = k % 2 ? shift.y : shift.x;
#if SOFT_CAP
            const float t = tanh_of(x * factor);
            slopes[4 * n + k] = fmaf(-t, t, 1);
            x = power_of_2(fmaf(t, cap, by));
#else
            x = power_of_2(fmaf(x, factor, by));
#endif
        }
    }
}

/* The halves of a pair. */
DEVICE float low_of(u32 x) {
    return ELEMENT == BF16 ? __uint_as_float(x << 16) : widen((element)x);
}
DEVICE float high_of(u32 x) {
    return ELEMENT == BF16 ? __uint_as_float(x & 0xffff0000) : widen((element)(x >> 16));
}

/*
 * Slopes by the product: weights times what is above or below δ. Of 128 rows there are no registers for weights
 * besides the rounded ones, which then serve here too.
 */
DEVICE void make_slopes(const float2 *deltas, const float (&s)[ROWS / 2],
                        const u32 (&weights)[ROWS / 4], const float (&back)[ROWS / 2],
                        u32 (&packed)[ROWS / 4]) {
#pragma unroll
    for (int n = 0; n < ROWS / 4; n++) {
        const float2 delta = deltas[n / 2 * 4];
        const float low = ROWS == 128 ? low_of(weights[n]) : s[2 * n];
        const float high = ROWS == 128 ? high_of(weights[n]) : s[2 * n + 1];
        packed[n] = pack(low * (back[2 * n] - delta.x), high * (back[2 * n + 1] - delta.y));
    }
}

/* 64 keys' slopes into the tile of all: 64 rows of queries wide, then the next 64. */
DEVICE void store_slopes(u32 tile, const u32 (&slopes)[ROWS / 4]) {
    const int lane = threadIdx.x % 32;
    const int key = (threadIdx.x / 32 - 4) * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
        store_4(tile + k / 4 * KEYS * 128 + key * 128 +
                    (((k % 4 * 2 + lane / 16) ^ (lane & 7)) << 4),
                slopes[4 * k], slopes[4 * k + 1], slopes[4 * k + 2], slopes[4 * k + 3]);
    stores_visible();
}

/* A warpgroup's share of d_query, as its registers are. */
DEVICE void store_share(u32 to, const float (&share)[SHARE / 2]) {
#pragma unroll
    for (int n = 0; n < SHARE / 8; n++)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + n * 2048 +
                                                                      threadIdx.x % 128 * 16),
                     "f"(share[4 * n]), "f"(share[4 * n + 1]), "f"(share[4 * n + 2]),
                     "f"(share[4 * n + 3])
                     : "memory");
    stores_visible();
}

DEVICE void compute(const ejki_cuda_vjp_problem &v, jobs list, u32 base, u8 *memory, int which) {
    const ejki_cuda_problem &p = v.forward;
    const bool one = threadIdx.x % 32 == 0;
    u32 parity = 0, turn = 0; /* of keys and values; how many tiles of queries there were */
    for (;;) {
        const job *x = list.next();
        if (!x->there) return;
        float d_key[HEAD / 2], d_value[VALUE / 2];
#pragma unroll
        for (int n = 0; n < HEAD / 2; n++) d_key[n] = 0;
#pragma unroll
        for (int n = 0; n < VALUE / 2; n++) d_value[n] = 0;
        int n = p.group * x->tiles;
        if (n > 0) {
            barrier_wait(base + KEY_FULL, parity);
            barrier_wait(base + VALUE_FULL, parity);
            parity ^= 1;
        }
#pragma unroll 1
        for (; n > 0; n--, turn++) {
            const u32 stage = turn % 2, full = turn / 2 % 2;
            const u32 query = base + QUERY_AT + stage * QUERY_BYTES;
            const u32 d_out = base + OUT_AT + stage * OUT_BYTES;
            const u8 *rows = memory + ROW_AT + stage * ROW_BYTES;
            const float2 *shifts = (const float2 *)rows + threadIdx.x % 4;
            float s[ROWS / 2], back[ROWS / 2];
            u32 weights[ROWS / 4], slopes[ROWS / 4];
            barrier_wait(base + QUERY_FULL + 8 * stage, full);
            multiply<HEAD_DIM>(s, operand_at(base + KEY_AT + which * 8192, 0),
                               operand_at(query, 0));
            barrier_wait(base + OUT_FULL + 8 * stage, full);
            multiply<VALUE_DIM>(back, operand_at(base + VALUE_AT + which * 8192, 0),
                                operand_at(d_out, 0));
            products_wait<1>();
            hold(s);
            float caps[SOFT_CAP ? ROWS / 2 : 1];
            make_weights(p, shifts, s, caps);
            const int2 place = *(const int2 *)(rows + ROWS * 8);
            if (place.y)
                hide(x, place.x, x->first_key + (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4,
                     s);
#pragma unroll
            for (int k = 0; k < ROWS / 4; k++) weights[k] = pack(s[2 * k], s[2 * k + 1]);
#if SOFT_CAP
#pragma unroll
            for (int k = 0; k < ROWS / 2; k++) s[k] *= caps[k];
#endif
            products_wait<0>();
            hold(back);
            add_rows<VALUE>(d_value, weights, operand_at(d_out, ROWS * 128));
            make_slopes(shifts + ROWS / 2, s, weights, back, slopes);
            if (D_QUERY) {
                store_slopes(base + SLOPE_AT + stage * SLOPE_BYTES, slopes);
                meet(MEET_SLOPES, COMPUTING);
            }
            float share[SHARE / 2];
            if (D_QUERY) {
                /* Slopes of the warpgroup's rows, or its columns of the keys. */
                const u64 left = operand_at(base + SLOPE_AT + stage * SLOPE_BYTES +
                                                (ROWS == 128 ? which * KEYS * 128 : 0),
                                            0);
                const u64 right = operand_at(base + KEY_AT +
                                                 (ROWS == 128   ? 0
                                                  : HEAD == 128 ? which * KEYS * 128
                                                                : which * 64),
                                             0);
                hold(share);
                products_begin();
#pragma unroll
                for (int k = 0; k < KEYS / 16; k++)
                    products<SHARE>::shared<1, 1>(share, operand_on(left, k * 2048),
                                                  operand_on(right, k * 2048), k != 0);
                products_commit();
            }
            add_rows<HEAD>(d_key, slopes, operand_at(query, ROWS * 128));
            products_wait<1 + D_QUERY>();
            hold(d_value);
            hold(weights);
            if (one) barrier_arrive(base + OUT_EMPTY + 8 * stage);
            if (D_QUERY) {
                products_wait<1>();
                hold(share);
                barrier_wait(base + SHARE_EMPTY + 8 * stage, full ^ 1);
                store_share(base + SHARE_AT + (stage * 2 + which) * SHARE_BYTES, share);
                __syncwarp();
                if (one) barrier_arrive(base + SHARE_FULL + 8 * stage);
            }
            products_wait<0>();
            hold(d_key);
            hold(slopes);
            if (one) barrier_arrive(base + QUERY_EMPTY + 8 * stage);
        }
        if (one && x->tiles > 0) barrier_arrive(base + KEYS_EMPTY);
        bool nan = false;
        const int start = x->start + which * 64, rows = x->count - which * 64;
        if (v.d_key.data)
            nan = write_sums<HEAD>(target_of(v.d_key, x->entry, start, x->head, rows), 0, HEAD_DIM,
                                   d_key, p.scale);
        if (v.d_value.data)
            nan |= write_sums<VALUE>(target_of(v.d_value, x->entry, start, x->head, rows), 0,
                                     VALUE_DIM, d_value, 1);
        if (nan) *v.spoilt = 1;
        list.done();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    backward_sm90(const __grid_constant__ tensor_map query, const __grid_constant__ tensor_map key,
                  const __grid_constant__ tensor_map value,
                  const __grid_constant__ tensor_map d_out,
                  const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    if (threadIdx.x == 0) {
        barrier_init(base + KEY_FULL, 1);
        barrier_init(base + VALUE_FULL, 1);
        barrier_init(base + KEYS_EMPTY, 8);
        for (int n = 0; n < 16; n += 8) {
            barrier_init(base + JOB_FULL + n, 1);
            barrier_init(base + JOB_EMPTY + n, 9 + 2 * D_QUERY);
            barrier_init(base + QUERY_FULL + n, 2);
            barrier_init(base + QUERY_EMPTY + n, 8);
            barrier_init(base + OUT_FULL + n, 1);
            barrier_init(base + OUT_EMPTY + n, 8);
            barrier_init(base + SHARE_FULL + n, 8);
            barrier_init(base + SHARE_EMPTY + n, 1);
        }
        barriers_ready();
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    const jobs list = {base, memory, {0, 0}};
    if (warp < 4) {
        fewer_registers<24>();
        if (warp == 0) copy_tiles(query, key, value, d_out, v, base, memory);
        if (warp == 1) copy_rows(v, list, base, memory);
        if (D_QUERY && warp > 1) add_shares(v, list, base, warp - 2);
    } else {
        more_registers<240>();
        compute(v, list, base, memory, threadIdx.x / 128 - 1);
    }
}

/* ---- d_query, rounded --------------------------------------------------------------------------------- */

/* A block for each share of a tile. */
extern "C" __global__ void __launch_bounds__(128)
    round_sm90(const __grid_constant__ ejki_cuda_vjp_problem v) {
    const ejki_cuda_problem &p = v.forward;
    const int heads = p.kv_heads * p.group, which = blockIdx.x % 2;
    const int index = blockIdx.x / 2 % p.tiles, column = blockIdx.x / 2 / p.tiles;
    const int h = column % heads;
    tile_place at = {sequence_at(p, LAYOUT == EJKI_CUDA_TOKENS ? 0 : column / heads), h, index};
    if (LAYOUT == EJKI_CUDA_TOKENS && !find_tile(p, index, ROWS, 1, p.query_sums, p.queries, &at))
        return;
    const sequence &s = at.s;
    const int i0 = at.own * ROWS, first_row = i0 + (ROWS == 128 ? which * 64 : 0);
    const int first_column = ROWS == 128 ? 0 : which * SHARE;
    int begin, end, unused;
    visible_keys(s, i0, &begin, &unused);
    visible_keys(s, lesser(i0 + ROWS, s.known) - 1, &unused, &end);
    const bool any = i0 < s.known && s.first <= s.last && begin < end;
    float sums[SHARE / 2];
    const i64 tile = ((i64)s.entry * heads + h) * v.slots + index;
    const float4 *from = (const float4 *)share_at(v, tile, which) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < SHARE / 8; n++) {
        float4 x = make_float4(0, 0, 0, 0);
        if (any && first_column + n * 8 < HEAD_DIM) x = __ldcs(from + n * 128);
        sums[4 * n] = x.x, sums[4 * n + 1] = x.y, sums[4 * n + 2] = x.z, sums[4 * n + 3] = x.w;
    }
    const target to = target_of(v.d_query, s.entry, s.query + first_row, h, s.queries - first_row);
    if (write_sums<SHARE>(to, first_column, HEAD_DIM, sums, p.scale)) *v.spoilt = 1;
}

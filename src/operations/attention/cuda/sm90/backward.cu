/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention on sm_90a, for bf16 and f16 and heads up to 128: d_query, d_key and d_value in one
 * kernel of five products. NaN and infinities of hidden keys may turn sums into NaN; such rows are recomputed by
 * backward_mma.cu. Besides the constants of options.cuh:
 *
 *   ROWS      of a tile of queries: 64, or 128 if both heads are at most 64
 *   ORDERED   1 = tiles of keys add to d_query in a fixed order
 *   D_QUERY   1 = d_query is computed
 *
 * A CTA takes tiles of 128 keys from a counter and goes through the tiles of queries that see them, of all heads of
 * the group. The first warpgroup is the producer: warp 0 fetches jobs and issues TMA loads, warp 1 loads lse and
 * delta, warps 2 and 3 add to d_query. The two consumer warpgroups have 64 keys each:
 *
 *     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ = dS K
 *
 * P^T and dS^T are A operands from registers; dS also goes through shared memory, as dQ contracts over all 128 keys.
 * Each warpgroup computes half of a dQ tile, by columns, or by rows if there are 128. It is added to f32 tiles in
 * the layout of the accumulators, which round_sm90 rounds at the end.
 */
#include "operations/attention/cuda/sm90/backward.cuh"

/* ---- Producer ----------------------------------------------------------------------------------------- */

/* TMA loads of a job, by one lane; *turn counts tiles of queries. */
DEVICE void copy_job(const tensor_map &query, const tensor_map &key, const tensor_map &value,
                     const tensor_map &d_out, const job *x, int group, u32 base, u32 *turn) {
    mbarrier_expect(base + KEY_FULL, KEY_BYTES);
    for (int c = 0; c < HEAD / 64; c++)
        tma_load(base + KEY_AT + c * KEYS * 128, &key, base + KEY_FULL, c * 64, x->start, x->head,
                 x->entry);
    bool first = true;
    for (int h = x->head * group; h < (x->head + 1) * group; h++)
        for (int n = 0; n < x->tiles; n++, ++*turn) {
            const u32 stage = *turn % 2, empty = *turn / 2 % 2 ^ 1;
            const u32 full = base + QUERY_FULL + 8 * stage, out_full = base + OUT_FULL + 8 * stage;
            const int token = x->query + tile_at(x, n) * ROWS;
            mbarrier_wait(base + QUERY_EMPTY + 8 * stage, empty);
            mbarrier_expect(full, QUERY_BYTES);
            for (int c = 0; c < HEAD / 64; c++)
                tma_load(base + QUERY_AT + stage * QUERY_BYTES + c * ROWS * 128, &query, full,
                         c * 64, token, h, x->entry);
            if (first) {
                first = false;
                mbarrier_expect(base + VALUE_FULL, VALUE_BYTES);
                for (int c = 0; c < VALUE / 64; c++)
                    tma_load(base + VALUE_AT + c * KEYS * 128, &value, base + VALUE_FULL, c * 64,
                             x->start, x->head, x->entry);
            }
            mbarrier_wait(base + OUT_EMPTY + 8 * stage, empty);
            mbarrier_expect(out_full, OUT_BYTES);
            for (int c = 0; c < VALUE / 64; c++)
                tma_load(base + OUT_AT + stage * OUT_BYTES + c * ROWS * 128, &d_out, out_full,
                         c * 64, token, h, x->entry);
        }
}

/* Warp 0: takes jobs, and loads their tiles. */
DEVICE void copy_tiles(const tensor_map &query, const tensor_map &key, const tensor_map &value,
                       const tensor_map &d_out, const ejki_cuda_vjp_problem &v, u32 base,
                       u8 *memory) {
    const bool one = threadIdx.x == 0;
    pipeline_state<2> place = {0, 0};
    u32 turn = 0, parity = 1;
    for (;;) {
        job *x = (job *)(memory + JOB_AT + 64 * place.stage);
        mbarrier_wait(base + JOB_EMPTY + 8 * place.stage, place.parity ^ 1);
        int index = 0;
        do {
            if (one) index = (int)atomicAdd(v.ticket, 1u);
            index = __shfl_sync(~0u, index, 0);
        } while (index < v.jobs && !find_job(v, index, x));
        __syncwarp();
        if (one) {
            x->there = index < v.jobs;
            mbarrier_arrive(base + JOB_FULL + 8 * place.stage);
        }
        if (index >= v.jobs) return;
        place.next();
        if (one && x->tiles > 0) {
            mbarrier_wait(base + KEYS_EMPTY, parity);
            parity ^= 1;
            copy_job(query, key, value, d_out, x, v.forward.group, base, &turn);
        }
        __syncwarp();
    }
}

/* Warp 1: shifts (-lse) and deltas; rows beyond the sequence get a weight of 0. */
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
                mbarrier_wait(barriers + QUERY_EMPTY, turn / 2 % 2 ^ 1);
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
                if (lane == 0) mbarrier_arrive(barriers + QUERY_FULL);
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

/* Waits for the tiles of keys that add before. */
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

/* How many tiles of keys add to this tile of queries before. */
DEVICE int turn_of(const job *x, int number) {
    return x->first_key / KEYS - larger(number * ROWS + x->low, 0) / KEYS;
}

/* Both halves of a tile. In order, the first one stores instead of adding. */
DEVICE void add_tile(const ejki_cuda_vjp_problem &v, const job *x, i64 tile, int number, u32 from,
                     u32 empty) {
    const int own = ORDERED ? turn_of(x, number) : 0;
    if (ORDERED && own > 0) await_turn(v.turns + tile, own);
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const u32 bytes = (u32)share_bytes(which);
        if (bytes == 0) continue;
        if (ORDERED && own == 0)
            bulk_store(share_at(v, tile, which), from + which * SHARE_BYTES, bytes);
        else
            bulk_add(share_at(v, tile, which), from + which * SHARE_BYTES, bytes);
    }
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(empty);
    if (!ORDERED) return;
    bulk_wait<0>();
    pass_turn(v.turns + tile);
}

/* Warps 2 and 3: every other tile of queries each, as adding one takes longer than computing it. */
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
                mbarrier_wait(base + SHARE_FULL + 8 * stage, turn / 2 % 2);
                add_tile(v, x, first + tile_at(x, n), tile_at(x, n),
                         base + SHARE_AT + stage * 2 * SHARE_BYTES, base + SHARE_EMPTY + 8 * stage);
            }
        }
        list.done();
    }
    if (one) bulk_wait<0>();
}

/* ---- Consumers ---------------------------------------------------------------------------------------- */

/* 64 keys' wgmma with all rows of a tile; both have `dim` columns. */
template <int dim> DEVICE void multiply(float (&sums)[ROWS / 2], u64 keys, u64 rows) {
    hold(sums);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < sixteens(dim); k++)
        wgmma<ROWS>::ss<0, 0>(sums, advance_descriptor(keys, k / 4 * KEYS * 128 + k % 4 * 32),
                                     advance_descriptor(rows, k / 4 * ROWS * 128 + k % 4 * 32), k != 0);
    wgmma_commit();
}

/* Adds to 64 keys' sums: weights times rows. */
template <int columns>
DEVICE void add_rows(float (&sums)[columns / 2], u32 (&weights)[ROWS / 4], u64 rows) {
    hold(sums);
    hold(weights);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
        wgmma<columns>::template rs<1>(sums, weights + 4 * k, advance_descriptor(rows, k * 2048), 1);
    wgmma_commit();
}

/* Weights of hidden pairs become 0; `key` is the first of the lane's two, in the sequence. */
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

/* Products become weights P; cap_grads get the derivative of a soft cap. */
DEVICE void make_weights(const ejki_cuda_problem &p, const float2 *shifts, float (&s)[ROWS / 2],
                         float (&cap_grads)[SOFT_CAP ? ROWS / 2 : 1]) {
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
            cap_grads[4 * n + k] = fmaf(-t, t, 1);
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
 * dS = P (dP - delta). With 128 rows there are no registers for P in f32 beside the rounded one, which serves here
 * too.
 */
DEVICE void make_ds(const float2 *deltas, const float (&s)[ROWS / 2],
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

/* 64 keys' dS into the tile of all: 64 rows of queries wide, then the next 64. */
DEVICE void store_ds(u32 tile, const u32 (&ds)[ROWS / 4]) {
    const int lane = threadIdx.x % 32;
    const int key = (threadIdx.x / 32 - 4) * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
        stmatrix_x4(tile + k / 4 * KEYS * 128 + key * 128 +
                    (((k % 4 * 2 + lane / 16) ^ (lane & 7)) << 4),
                ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
    fence_proxy_async();
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
    fence_proxy_async();
}

/* P of 64 keys and a tile of rows, in `s` and rounded; `s` then has the derivative of a soft cap in it. */
DEVICE void find_weights(const ejki_cuda_problem &p, const job *x, const u8 *rows,
                         float (&s)[ROWS / 2], u32 (&weights)[ROWS / 4]) {
    float cap_grads[SOFT_CAP ? ROWS / 2 : 1];
    make_weights(p, (const float2 *)rows + threadIdx.x % 4, s, cap_grads);
    const int2 place = *(const int2 *)(rows + ROWS * 8); /* the first row, and whether it is an edge */
    if (place.y)
        hide(x, place.x, x->first_key + (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4, s);
#pragma unroll
    for (int k = 0; k < ROWS / 4; k++) weights[k] = pack(s[2 * k], s[2 * k + 1]);
#if SOFT_CAP
#pragma unroll
    for (int k = 0; k < ROWS / 2; k++) s[k] *= cap_grads[k];
#endif
}

/* Issues dQ = dS K for this warpgroup's half: of the rows if there are 128, else of the columns. */
DEVICE void begin_share(u32 base, u32 stage, int which, float (&share)[SHARE / 2]) {
    const u64 left = smem_descriptor(
        base + DS_AT + stage * DS_BYTES + (ROWS == 128 ? which * KEYS * 128 : 0), 0);
    const u64 right = smem_descriptor(
        base + KEY_AT +
            (ROWS == 128   ? 0
             : HEAD == 128 ? which * KEYS * 128
                           : which * 64),
        0);
    hold(share);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma<SHARE>::ss<1, 1>(share, advance_descriptor(left, k * 2048),
                               advance_descriptor(right, k * 2048), k != 0);
    wgmma_commit();
}

/* Writes d_key and d_value of the warpgroup's 64 keys. */
DEVICE void write_keys(const ejki_cuda_vjp_problem &v, const job *x, int which,
                       const float (&d_key)[HEAD / 2], const float (&d_value)[VALUE / 2]) {
    bool nan = false;
    const int start = x->start + which * 64, rows = x->count - which * 64;
    if (v.d_key.data)
        nan = write_sums<HEAD>(target_of(v.d_key, x->entry, start, x->head, rows), 0, HEAD_DIM,
                               d_key, v.forward.scale);
    if (v.d_value.data)
        nan |= write_sums<VALUE>(target_of(v.d_value, x->entry, start, x->head, rows), 0, VALUE_DIM,
                                 d_value, 1);
    if (nan) *v.nonfinite = 1;
}

/* One tile of rows against the warpgroup's 64 keys. `stage` and `full` are its place in the ring. */
DEVICE void compute_tile(const ejki_cuda_vjp_problem &v, const job *x, u32 base, const u8 *memory,
                         int which, u32 stage, u32 full, float (&d_key)[HEAD / 2],
                         float (&d_value)[VALUE / 2]) {
    const bool one = threadIdx.x % 32 == 0;
    const u32 query = base + QUERY_AT + stage * QUERY_BYTES;
    const u32 d_out = base + OUT_AT + stage * OUT_BYTES;
    const u8 *rows = memory + ROW_AT + stage * ROW_BYTES;
    float s[ROWS / 2], back[ROWS / 2], share[SHARE / 2];
    u32 weights[ROWS / 4], ds[ROWS / 4];
    mbarrier_wait(base + QUERY_FULL + 8 * stage, full);
    multiply<HEAD_DIM>(s, smem_descriptor(base + KEY_AT + which * 8192, 0),
                       smem_descriptor(query, 0));
    mbarrier_wait(base + OUT_FULL + 8 * stage, full);
    multiply<VALUE_DIM>(back, smem_descriptor(base + VALUE_AT + which * 8192, 0),
                        smem_descriptor(d_out, 0));
    wgmma_wait<1>();
    hold(s);
    find_weights(v.forward, x, rows, s, weights);
    wgmma_wait<0>();
    hold(back);
    add_rows<VALUE>(d_value, weights, smem_descriptor(d_out, ROWS * 128));
    make_ds((const float2 *)rows + threadIdx.x % 4 + ROWS / 2, s, weights, back, ds);
    if (D_QUERY) {
        store_ds(base + DS_AT + stage * DS_BYTES, ds);
        named_barrier_sync(DS_READY, COMPUTING);
        begin_share(base, stage, which, share);
    }
    add_rows<HEAD>(d_key, ds, smem_descriptor(query, ROWS * 128));
    wgmma_wait<1 + D_QUERY>();
    hold(d_value);
    hold(weights);
    if (one) mbarrier_arrive(base + OUT_EMPTY + 8 * stage);
    if (D_QUERY) {
        wgmma_wait<1>();
        hold(share);
        mbarrier_wait(base + SHARE_EMPTY + 8 * stage, full ^ 1);
        store_share(base + SHARE_AT + (stage * 2 + which) * SHARE_BYTES, share);
        __syncwarp();
        if (one) mbarrier_arrive(base + SHARE_FULL + 8 * stage);
    }
    wgmma_wait<0>();
    hold(d_key);
    hold(ds);
    if (one) mbarrier_arrive(base + QUERY_EMPTY + 8 * stage);
}

/* Consumer warpgroup `which`: all jobs. */
DEVICE void compute(const ejki_cuda_vjp_problem &v, jobs list, u32 base, u8 *memory, int which) {
    u32 parity = 0, turn = 0; /* of keys and values; how many tiles of queries there were */
    for (;;) {
        const job *x = list.next();
        if (!x->there) return;
        float d_key[HEAD / 2], d_value[VALUE / 2];
#pragma unroll
        for (int n = 0; n < HEAD / 2; n++) d_key[n] = 0;
#pragma unroll
        for (int n = 0; n < VALUE / 2; n++) d_value[n] = 0;
        int n = v.forward.group * x->tiles;
        if (n > 0) {
            mbarrier_wait(base + KEY_FULL, parity);
            mbarrier_wait(base + VALUE_FULL, parity);
            parity ^= 1;
        }
#pragma unroll 1
        for (; n > 0; n--, turn++)
            compute_tile(v, x, base, memory, which, turn % 2, turn / 2 % 2, d_key, d_value);
        if (threadIdx.x % 32 == 0 && x->tiles > 0) mbarrier_arrive(base + KEYS_EMPTY);
        write_keys(v, x, which, d_key, d_value);
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
        mbarrier_init(base + KEY_FULL, 1);
        mbarrier_init(base + VALUE_FULL, 1);
        mbarrier_init(base + KEYS_EMPTY, 8);
        for (int n = 0; n < 16; n += 8) {
            mbarrier_init(base + JOB_FULL + n, 1);
            mbarrier_init(base + JOB_EMPTY + n, 9 + 2 * D_QUERY);
            mbarrier_init(base + QUERY_FULL + n, 2);
            mbarrier_init(base + QUERY_EMPTY + n, 8);
            mbarrier_init(base + OUT_FULL + n, 1);
            mbarrier_init(base + OUT_EMPTY + n, 8);
            mbarrier_init(base + SHARE_FULL + n, 8);
            mbarrier_init(base + SHARE_EMPTY + n, 1);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    const jobs list = {base, memory, {0, 0}};
    if (warp < 4) {
        setmaxnreg_dec<24>();
        if (warp == 0) copy_tiles(query, key, value, d_out, v, base, memory);
        if (warp == 1) copy_rows(v, list, base, memory);
        if (D_QUERY && warp > 1) add_shares(v, list, base, warp - 2);
    } else {
        setmaxnreg_inc<240>();
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
    if (write_sums<SHARE>(to, first_column, HEAD_DIM, sums, p.scale)) *v.nonfinite = 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention to latents in pages on sm_90a: keys of HEAD_DIM + TAIL_DIM components, of which the first HEAD_DIM are the
 * values, shared by all query heads. A CTA has a tile of 64 pairs of a row and a head, and of a sequence with few pairs
 * a split of its keys; blocks of 64 keys come by cp.async into two stages. Its two warpgroups divide the work twice: of
 * the scores each makes those of 32 keys, of the sums each has half of the columns; weights go through shared memory.
 *
 * One wgmma is ahead of what is waited for: while weights are multiplied with values the next scores follow, and when
 * the values have been read, the block after the next is fetched in their place. Fetching it before the next is waited
 * for, or asking for the one behind in the second-level cache, took longer (docs/kernels/paged_attention.md).
 *
 *   ELEMENT, FOLDED, OVERLAP   as in decode.cu
 *   HEAD_DIM                   a multiple of 128, up to 512; TAIL_DIM one of 16, up to 64
 */
#define WARPS     8
#define VALUE_DIM HEAD_DIM
#define FEW       PAGED_FEW_LATENT
#define SPLITS    PAGED_LATENT_SPLITS
#define LEAST     PAGED_LEAST_LATENT_KEYS
#define OTHERS    1
#define TILES_TOGETHER 1

#include "kernels/cuda/hopper.cuh"
#include "operations/paged/cuda/careful.cuh"
#include "operations/paged/cuda/few.cuh"
#include "operations/paged/cuda/rows.cuh"

enum {
    ROWS = 64,
    KEYS = 64,
    DEPTH = HEAD_DIM + TAIL_DIM,
    HEAD_CHUNKS = HEAD_DIM / 64,
    CHUNKS = cdiv(DEPTH, 64),
    CHUNK_BYTES = 64 * 128, /* 64 rows of 64 columns */
    TILE_BYTES = CHUNKS * CHUNK_BYTES,
    HALF = HEAD_DIM / 2, /* columns of a warpgroup */
    WEIGHTS_AT = 3 * TILE_BYTES,
    ENDS_AT = WEIGHTS_AT + CHUNK_BYTES,
    STEP = THREADS / 8, /* rows that threads copy at once */
};

/* A CTA's view of a unit. */
struct tile {
    const few_sequence *q;
    int first_pair, first, last; /* keys */
    int all_begin, all_end;      /* keys that all rows see */
    bool is_bad;
};

/* A lane's two rows, the second being eight on. What weights are relative to, `max`, rises by 8 in log 2 at least. */
struct lane_rows {
    float max[2], sum[2];
    int low[2], high[2], r[2], h[2];
};

/* ---- Rows to shared memory ------------------------------------------------------------------------------ */

/* A row in two parts, its pieces of this thread. */
DEVICE void copy_row(u32 to, const u16 *head, const u16 *tail, bool there) {
    const int piece = threadIdx.x % 8;
#pragma unroll
    for (int c = 0; c < HEAD_CHUNKS; c++) copy_piece(to + c * CHUNK_BYTES, head + piece * 8 + c * 64, there);
    if (piece * 8 < TAIL_DIM) copy_piece(to + HEAD_CHUNKS * CHUNK_BYTES, tail + piece * 8, there);
}

/* The same element by element, in few registers. */
DEVICE void copy_elements_of_row(u32 to, const u16 *head, const u16 *tail, bool there) {
    const int piece = threadIdx.x % 8;
#pragma unroll 1
    for (int c = 0; c < CHUNKS; c++, to += CHUNK_BYTES) {
        const u16 *from = (c < HEAD_CHUNKS ? head + c * 64 : tail) + piece * 8;
        if (c == HEAD_CHUNKS && piece * 8 >= TAIL_DIM) break;
#pragma unroll 1
        for (int n = 0; n < 8; n++)
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + 2 * n), "h"(there ? from[n] : (u16)0) : "memory");
    }
}

/* Where the thread's first piece of a row lies. */
DEVICE u32 row_at(u32 tile, int row) {
    return tile + row * 128 + ((threadIdx.x % 8 ^ (row & 7)) << 4);
}

DEVICE bool are_aligned(const void *data, const void *tail, paged_size strides) {
    return (((u64)data >> 1 | (u64)tail >> 1 | (u64)strides) & 7) == 0 && (((u64)data | (u64)tail) & 1) == 0;
}

DEVICE void keep_queries(const paged_problem &p, const tile &t, u32 to) {
    const paged_rows &a = p.query, &b = p.query_tail;
    const bool aligned = are_aligned(a.data, b.data, a.token | a.head | b.token | b.head);
#pragma unroll 1
    for (int row = threadIdx.x / 8; row < ROWS; row += STEP) {
        const bool there = t.first_pair + row < t.q->pairs;
        const int pair = there ? t.first_pair + row : t.first_pair, h = pair % (int)p.group;
        const paged_size token = t.q->s.begin + pair / (int)p.group;
        const u16 *head = (const u16 *)a.data + paged_row_at(&p, &a, token, h);
        const u16 *tail = (const u16 *)b.data + paged_row_at(&p, &b, token, h);
        if (aligned)
            copy_row(row_at(to, row), head, tail, there);
        else
            copy_elements_of_row(row_at(to, row), head, tail, there);
    }
}

/* Blocks of keys as a thread fetches them: it has rows threadIdx.x / 8 and STEP more. */
struct fetcher {
    int page[2], later[2]; /* of its keys in the next block, and in the one after: 32 bits of good entries */
    int key;               /* the block's first */
    bool aligned;
};

DEVICE void ask_for_pages(const paged_problem &p, const tile &t, int first, int (&page)[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int key = first + threadIdx.x / 8 + n * STEP;
        page[n] = key >= t.q->low && key < t.last ? (int)entry_of(p, t.q->pages, key) : -1;
    }
}

/* copy(place in shared memory, both parts in memory, whether they are there) for both rows of the thread. */
template <class function> DEVICE void copy_block(const paged_problem &p, const fetcher &f, u32 stage, function copy) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int own = threadIdx.x / 8 + n * STEP, row = (int)((u32)(f.key + own) % (u32)p.page);
        const bool there = is_in_cache(p, f.page[n], row);
        const paged_size page = there ? f.page[n] : 0, at = there ? row : 0;
        copy(row_at(stage, own), (const u16 *)p.key.data + page * p.key.page + at * p.key.token,
             (const u16 *)p.key_tail.data + page * p.key_tail.page + at * p.key_tail.token, there);
    }
}

DEVICE void fetch_block(const paged_problem &p, const tile &t, fetcher &f, u32 stage) {
    if (f.key < t.last) {
        if (f.aligned)
            copy_block(p, f, stage, copy_row);
        else
            copy_block(p, f, stage, copy_elements_of_row);
        f.key += KEYS;
        f.page[0] = f.later[0], f.page[1] = f.later[1];
        ask_for_pages(p, t, f.key + KEYS, f.later);
    }
    cp_async_commit();
}

/* What this thread has copied is there for wgmma of all, after a barrier. */
DEVICE void finish_copies() {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
}

/* ---- Products ------------------------------------------------------------------------------------------- */

/* The descriptor so many bytes on: addresses are in the lower half, and nothing is carried out of it. */
DEVICE u64 moved(u64 operand, u32 bytes) {
    return (operand & ~0ull << 32) | ((u32)operand + (bytes >> 4));
}

/* Scores of the warpgroup's 32 keys. */
DEVICE void begin_scores(u32 query, u32 stage, int group, float (&z)[16]) {
    hold(z);
    wgmma_fence();
    const u64 q = smem_descriptor(query, 16), k = smem_descriptor(stage + group * 32 * 128, 16);
#pragma unroll
    for (int n = 0; n < sixteens(DEPTH); n++) {
        const u32 at = n / 4 * CHUNK_BYTES + n % 4 * 32;
        wgmma<32>::ss<0, 0>(z, moved(q, at), moved(k, at), n != 0);
    }
    wgmma_commit();
}

/* Sums of the warpgroup's columns. */
DEVICE void begin_sums(u32 weights, u32 stage, int group, float (&out)[HALF / 2]) {
    hold(out);
    wgmma_fence();
    const u64 w = smem_descriptor(weights, 16);
    const u64 v = smem_descriptor(stage + group * (HALF / 64) * CHUNK_BYTES, CHUNK_BYTES);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        wgmma<HALF>::template ss<0, 1>(out, moved(w, n * 32), moved(v, n * 2048), 1);
    wgmma_commit();
}

/* ---- Softmax -------------------------------------------------------------------------------------------- */

DEVICE void begin_rows(const paged_problem &p, const tile &t, lane_rows &rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int own = t.first_pair + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
        const int pair = lesser(own, t.q->pairs - 1);
        rows.r[half] = pair / (int)p.group, rows.h[half] = pair % (int)p.group;
        rows.low[half] = narrowed(paged_low(&p, &t.q->s, rows.r[half]));
        rows.high[half] = lesser(narrowed(paged_high(&p, &t.q->s, rows.r[half])), t.last);
        rows.max[half] = NEG_INF, rows.sum[half] = 0;
    }
}

/*
 * Scores of a block become weights in shared memory, for which the maxima of both warpgroups meet there; `scale` gets
 * what the rows' sums have to be multiplied by. A barrier is inside.
 */
DEVICE void make_weights(const paged_problem &p, const tile &t, int j0, float unit, u8 *memory, lane_rows &rows,
                         float (&z)[16], float (&scale)[2]) {
    float *maxima = (float *)(memory + ENDS_AT);
    const u32 weights = shared_address(memory) + WEIGHTS_AT;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const bool edge = j0 < t.all_begin || j0 + KEYS > t.all_end;
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = NEG_INF;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = z[4 * n + 2 * half + i];
                const int j = j0 + group * 32 + n * 8 + lane % 4 * 2 + i;
                const bool hidden = edge && (j < rows.low[half] || j >= rows.high[half]);
                if (!FOLDED && !hidden)
                    x = score_of(p, t.q->s, rows.r[half], rows.h[half], j, x * p.key.factor);
                if (hidden) x = NEG_INF;
                top[half] = fmaxf(top[half], x);
            }
        top[half] = larger_of_lanes(top[half], 4);
        if (lane % 4 == 0) maxima[group * ROWS + first + 8 * half] = top[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float other = maxima[(1 - group) * ROWS + first + 8 * half];
        const float most = fmaxf(top[half], other) * unit, before = rows.max[half] * unit;
        const bool rises = most > before + 8;
        const float max = rises ? fmaxf(top[half], other) : rows.max[half], base = max == NEG_INF ? 0 : max * unit;
        scale[half] = rises ? power_of_2(before - base) : 1;
        rows.max[half] = max;
        rows.sum[half] *= scale[half];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int row = first + 8 * half;
            const float low = power_of_2(fmaf(z[4 * n + 2 * half], unit, -base));
            const float high = power_of_2(fmaf(z[4 * n + 2 * half + 1], unit, -base));
            rows.sum[half] += low + high;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(weights + row * 128 + (((group * 4 + n) ^ (row & 7)) << 4) +
                                                         lane % 4 * 4),
                         "r"(pack(low, high))
                         : "memory");
        }
    }
}

DEVICE void rescale(float (&out)[HALF / 2], const float (&scale)[2]) {
    if (!__any_sync(~0u, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int n = 0; n < HALF / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) out[4 * n + k] *= scale[k / 2];
}

/* ---- Results -------------------------------------------------------------------------------------------- */

/* Rows to a part or to the result; false if there is what is not a finite number. */
DEVICE bool write_rows(const paged_arguments &a, const tile &t, int split, float unit, u8 *memory, lane_rows &rows,
                       const float (&out)[HALF / 2]) {
    const paged_problem &p = a.p;
    float *sums = (float *)(memory + ENDS_AT);
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const bool is_part = t.q->splits > 1;
    bool good = true;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.sum[half] = sum_of_lanes(rows.sum[half], 4);
        if (lane % 4 == 0) sums[group * ROWS + first + 8 * half] = rows.sum[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (t.first_pair + first + 8 * half >= t.q->pairs) continue;
        const float sum = sums[first + 8 * half] + sums[ROWS + first + 8 * half];
        const float max = rows.max[half] * (unit * LOG_2);
        const bool writer = group == 0 && lane % 4 == 0;
        const paged_size token = t.q->s.begin + rows.r[half];
        const paged_size part = part_of(a, *t.q, rows.r[half], rows.h[half], split);
        const paged_size to = paged_row_at(&p, &p.out, token, rows.h[half]);
        float share = p.value.factor;
        if (!is_part)
            share *= finish_row(p, token, rows.h[half], t.is_bad, t.is_bad ? NEG_INF : max, t.is_bad ? 0 : sum, writer);
        else if (writer)
            *(float2 *)(a.ends + part * 2) = make_float2(max, sum);
#pragma unroll
        for (int n = 0; n < HALF / 8; n++) {
            const int d = group * HALF + n * 8 + lane % 4 * 2;
            const float x = share == 0 ? 0 : out[4 * n + 2 * half] * share;
            const float y = share == 0 ? 0 : out[4 * n + 2 * half + 1] * share;
            good = good && fabsf(x) < INFINITY && fabsf(y) < INFINITY;
            if (is_part)
                *(float2 *)(a.parts + part * VALUE_DIM + d) = make_float2(x, y);
            else if (p.out.dtype == ELEMENT && ((u64)((u16 *)p.out.data + to) & 3) == 0)
                *(u32 *)((u16 *)p.out.data + to + d) = pack(x, y);
            else
                put_out(p, to, d, x), put_out(p, to, d + 1, y);
        }
    }
    return good || t.is_bad;
}

DEVICE void attend_carefully_to(const paged_arguments &a, const tile &t, int split) {
    const paged_problem &p = a.p;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pair = t.first_pair + threadIdx.x / 32; pair < lesser(t.first_pair + ROWS, t.q->pairs); pair += WARPS) {
        const int r = pair / (int)p.group, h = pair % (int)p.group;
        const paged_size token = t.q->s.begin + r, part = part_of(a, *t.q, r, h, split);
        const paged_size to = paged_row_at(&p, &p.out, token, h);
        careful_row row;
        attend_carefully(p, t.q->s, t.q->pages, r, 0, h, t.first, t.last, row);
        const bool is_part = t.q->splits > 1;
        const float share = is_part ? 1 : finish_row(p, token, h, false, row.max, row.sum, lane == 0);
        if (is_part && lane == 0) *(float2 *)(a.ends + part * 2) = make_float2(row.max, row.sum);
#pragma unroll 1
        for (int d = lane; d < VALUE_DIM; d += 32) {
            const float x = share == 0 ? 0 : row.out[d / 32] * share;
            if (is_part)
                a.parts[part * VALUE_DIM + d] = x;
            else
                put_out(p, to, d, x);
        }
    }
}

/* ---- A unit --------------------------------------------------------------------------------------------- */

DEVICE void attend(const paged_arguments &a, const tile &t, int split, u8 *memory) {
    const paged_problem &p = a.p;
    const u32 query = shared_address(memory), ring = query + TILE_BYTES, weights = query + WEIGHTS_AT;
    const float unit = FOLDED ? (float)p.scale * p.key.factor * LOG2_E : LOG2_E;
    const int blocks = t.is_bad ? 0 : cdiv(t.last - t.first, KEYS);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); /* so that descriptors are in uniform registers */
    lane_rows rows;
    float out[HALF / 2], z[16], scale[2];
#pragma unroll
    for (int n = 0; n < HALF / 2; n++) out[n] = 0;
#pragma unroll
    for (int n = 0; n < 16; n++) z[n] = 0;
    begin_rows(p, t, rows);
    if (blocks > 0) {
        fetcher f;
        f.key = t.first;
        f.aligned = are_aligned(p.key.data, p.key_tail.data, p.key.page | p.key.token | p.key_tail.page |
                                p.key_tail.token);
        ask_for_pages(p, t, f.key, f.page);
        ask_for_pages(p, t, f.key + KEYS, f.later);
        keep_queries(p, t, query);
        fetch_block(p, t, f, ring);
        finish_copies();
        begin_scores(query, ring, group, z);
        fetch_block(p, t, f, ring + TILE_BYTES);
        wgmma_wait<0>();
        hold(z);
        make_weights(p, t, t.first, unit, memory, rows, z, scale);
        fence_proxy_async();
        __syncthreads();
#pragma unroll 1
        for (int n = 1; n < blocks; n++) {
            const u32 now = ring + (n & 1) * TILE_BYTES, before = ring + (n - 1 & 1) * TILE_BYTES;
            begin_sums(weights, before, group, out);
            finish_copies();
            begin_scores(query, now, group, z);
            wgmma_wait<1>();
            hold(out);
            __syncthreads();
            fetch_block(p, t, f, before);
            wgmma_wait<0>();
            hold(z);
            make_weights(p, t, t.first + n * KEYS, unit, memory, rows, z, scale);
            rescale(out, scale);
            fence_proxy_async();
            __syncthreads();
        }
        begin_sums(weights, ring + (blocks - 1 & 1) * TILE_BYTES, group, out);
        wgmma_wait<0>();
        hold(out);
        cp_async_wait<0>();
    }
    const bool good = write_rows(a, t, split, unit, memory, rows, out);
    if (__syncthreads_or(!good)) attend_carefully_to(a, t, split);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) latent(const __grid_constant__ paged_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    launch_dependents();
#endif
    const paged_problem &p = a.p;
    unit_cursor c = first_unit<ROWS>(p, (int *)memory);
    __syncthreads();
#if OVERLAP
    wait_for_previous();
#endif
    if (a.flags[p.sequences]) return;
#pragma unroll 1
    while (c.left > 0) {
        tile t;
        t.q = &c.q;
        t.first_pair = c.tile * ROWS;
        t.first = c.first, t.last = c.last;
        t.is_bad = a.flags[c.q.s.n];
        const int last = (lesser(t.first_pair + ROWS, c.q.pairs) - 1) / (int)p.group;
        t.all_begin = narrowed(paged_low(&p, &c.q.s, last));
        t.all_end = lesser(narrowed(paged_high(&p, &c.q.s, t.first_pair / (int)p.group)), t.last);
        attend(a, t, c.split, memory);
        next_unit<ROWS>(p, c);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention to latents in pages on sm_90a: keys of HEAD_DIM + TAIL_DIM components, of which the first HEAD_DIM are the
 * values, shared by all query heads. A CTA has a tile of 64 pairs of a row and a head, and of a sequence with few pairs
 * a split of its keys, in blocks of 64. A warpgroup fetches blocks into two stages, by TMA or by cp.async; the other
 * two multiply.
 *
 * Each of these has every other block: its scores, its softmax and its stage; and half the columns of the sums, so that
 * it multiplies the weights of all blocks. Its own weights it has in registers, those of the other it gets through
 * shared memory, where the rope parts of that block have been. Neither waits for the other's maxima: each has its own,
 * whole exponents of 2, and takes the other's weights times a power of two. So one multiplies while the other makes
 * weights. Half a stage is fetched again as soon as the warpgroup whose columns it has is done with it. Two CTAs with
 * two tiles of the same keys are a cluster: each fetches half of the columns for both.
 *
 * Parts of a tile's splits are joined by the CTA that comes last to the end of one. What a unit ends with is kept
 * short, without checks for each number: unrolled code that runs once a unit took a fifth of its time.
 *
 *   ELEMENT, FOLDED, OVERLAP   as in decode.cu
 *   HEAD_DIM                   a multiple of 128, up to 512; TAIL_DIM one of 16, up to 64
 *   PAGES                      where TMA fetches, rows of a page that a block of 64 has: 8, 16, 32, 64; else 0
 *   PAIR                       1 = clusters of two CTAs, with PAGES
 */
#define WARPS     8 /* that multiply */
#define VALUE_DIM HEAD_DIM
#define FEW       PAGED_FEW_LATENT
#define SPLITS    PAGED_LATENT_SPLITS
#define LEAST     PAGED_LEAST_LATENT_KEYS
#define OTHERS    1
#define TILES_TOGETHER 1

#include "operations/paged/cuda/careful.cuh"
#include "operations/paged/cuda/latent_fetch.cuh"
#include "operations/paged/cuda/rows.cuh"

/* A lane's two rows, the second being eight on. Weights are relative to 2 to the power of `base`, a whole number, which
 * rises where one would be above 2^8. */
struct lane_rows {
    float base[2], sum[2]; /* the latter of blocks of this warpgroup */
    int low[2], high[2], r[2], h[2];
};

/* ---- Products ------------------------------------------------------------------------------------------- */

/* The descriptor so many bytes on: addresses are in the lower half, and nothing is carried out of it. */
DEVICE u64 moved(u64 operand, u32 bytes) {
    return (operand & ~0ull << 32) | ((u32)operand + (bytes >> 4));
}

/* Products of half of the components of the queries and the warpgroup's block, once they are there. Those of its own
 * half come first; with the other half come the rope parts. Not waited for. */
template <bool is_first> DEVICE void add_scores(u32 memory, int group, int half, u32 parity, float (&z)[32]) {
    const u32 first = half * HALF_CHUNKS * CHUNK_BYTES;
    const u64 q = smem_descriptor(memory, 16), k = smem_descriptor(memory + TILE_BYTES + group * TILE_BYTES, 16);
    mbarrier_wait(full_barrier(memory, group, half), parity);
    if (!PAGES) fence_proxy_async();
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < HALF / 16; n++) {
        const u32 at = n / 4 * CHUNK_BYTES + n % 4 * 32;
        wgmma<64>::ss<0, 0>(z, moved(q, first + at), moved(k, first + at), !is_first || n != 0);
    }
}
DEVICE void add_tail_scores(u32 memory, int group, float (&z)[32]) {
    const u64 q = smem_descriptor(memory, 16), k = smem_descriptor(memory + TILE_BYTES + group * TILE_BYTES, 16);
#pragma unroll
    for (int n = 0; n < TAIL_DIM / 16; n++) {
        const u32 at = HEAD_CHUNKS * CHUNK_BYTES + n * 32;
        wgmma<64>::ss<0, 0>(z, moved(q, at), moved(k, at), 1);
    }
}

/* Lets the stage's half be fetched again. */
DEVICE void release(u32 memory, int stage, int group) {
    const int lane = threadIdx.x % 32;
    const u32 empty = empty_barrier(memory, stage, group);
    if (PAIR && lane < 2)
        mbarrier_arrive_at(address_at(empty, lane));
    else if (!PAIR && lane == 0)
        mbarrier_arrive(empty);
}

/* ---- Softmax -------------------------------------------------------------------------------------------- */

/* A lane's first row of the tile. */
DEVICE int own_row() {
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

DEVICE void begin_rows(const paged_problem &p, const tile &t, lane_rows &rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int pair = lesser(t.first_pair + own_row() + 8 * half, t.q->pairs - 1);
        rows.r[half] = pair / (int)p.group, rows.h[half] = pair % (int)p.group;
        rows.low[half] = narrowed(paged_low(&p, &t.q->s, rows.r[half]));
        rows.high[half] = lesser(narrowed(paged_high(&p, &t.q->s, rows.r[half])), t.last);
        rows.base[half] = NEG_INF, rows.sum[half] = 0;
    }
}

/* Scores become weights; `scale` gets what the rows' sums have to be multiplied by. */
DEVICE void make_weights(const paged_problem &p, const tile &t, int j0, float unit, lane_rows &rows, float (&z)[32],
                         float (&scale)[2]) {
    const bool edge = j0 < t.all_begin || j0 + KEYS > t.all_end;
    if (edge || !FOLDED) {
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const int j = j0 + n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2, half = n / 2 % 2;
            const bool hidden = edge && (j < rows.low[half] || j >= rows.high[half]);
            if (!FOLDED && !hidden) z[n] = score_of(p, t.q->s, rows.r[half], rows.h[half], j, z[n] * p.key.factor);
            if (hidden) z[n] = NEG_INF;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = NEG_INF;
#pragma unroll
        for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(z[4 * n + 2 * half], z[4 * n + 2 * half + 1]));
        top = larger_of_lanes(top, 4);
        const float before = rows.base[half];
        if (top * unit > before + 8) rows.base[half] = ceilf(top * unit);
        const float base = rows.base[half] == NEG_INF ? 0 : rows.base[half];
        scale[half] = rows.base[half] > before ? power_of_2(before - base) : 1;
        rows.sum[half] *= scale[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++) {
                z[i] = power_of_2(fmaf(z[i], unit, -base));
                rows.sum[half] += z[i];
            }
    }
}

/* What a thread has of its warpgroup's weights, for the one in its place in the other: where the rope parts of the
 * block have been. And bases of rows. */
DEVICE u8 *weights_at(u8 *memory, int group) {
    return memory + TILE_BYTES + group * TILE_BYTES + HEAD_CHUNKS * CHUNK_BYTES + threadIdx.x % 128 * 16;
}
DEVICE float *bases_at(u8 *memory, int group) {
    return (float *)(memory + BASES_AT) + group * ROWS + own_row();
}
DEVICE void put_weights(u8 *memory, int group, const lane_rows &rows, const u32 (&weights)[16]) {
#pragma unroll
    for (int n = 0; n < 4; n++)
        *(uint4 *)(weights_at(memory, group) + n * 2048) =
            make_uint4(weights[4 * n], weights[4 * n + 1], weights[4 * n + 2], weights[4 * n + 3]);
    if (threadIdx.x % 4 == 0) bases_at(memory, group)[0] = rows.base[0], bases_at(memory, group)[8] = rows.base[1];
}
DEVICE void hand_over(int group) {
    fence_proxy_async();
    named_barrier_arrive(WEIGHTS_READY + group, THREADS);
}

/* A pair of weights times a power of two, in two steps where half of it is all that there is a number for. */
DEVICE u32 times_power_of_2(u32 pair, float exponent) {
#if ELEMENT == BF16
    const float factor = power_of_2(exponent);
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(pack(factor, factor)));
#else
    const float half = floorf(exponent / 2), first = power_of_2(half), second = power_of_2(exponent - half);
    asm("mul.rn.f16x2 %0, %0, %1;\nmul.rn.f16x2 %0, %0, %2;"
        : "+r"(pair)
        : "r"(pack(first, first)), "r"(pack(second, second)));
#endif
    return pair;
}

/* `waits`: products with other sums may be under way. */
DEVICE void rescale(float (&out)[HALF / 2], const float (&scale)[2], bool waits = false) {
    if (!__any_sync(~0u, scale[0] != 1 || scale[1] != 1)) return;
    if (waits) {
        wgmma_wait<0>();
        hold(out);
    }
#pragma unroll
    for (int n = 0; n < HALF / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) out[4 * n + k] *= scale[k / 2];
}

/* ---- Results -------------------------------------------------------------------------------------------- */

/* Whether `one` holds for any thread of both warpgroups, which meet here. */
DEVICE bool any_of_both(bool one) {
    int any;
    asm volatile("{\n.reg .pred one, any;\nsetp.ne.b32 one, %1, 0;\nbar.red.or.pred any, %2, %3, one;\n"
                 "selp.b32 %0, 1, 0, any;\n}\n"
                 : "=r"(any)
                 : "r"((int)one), "r"((int)BOTH), "r"(THREADS)
                 : "memory");
    return any;
}

/* Where rows end, for one thread each: bases and sums of weights, both [2][ROWS]. */
DEVICE void put_ends(u8 *memory, int group, const lane_rows &rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = sum_of_lanes(rows.sum[half], 4);
        if (threadIdx.x % 4 > 0) continue;
        ((float *)(memory + SUMS_AT))[group * ROWS + own_row() + 8 * half] = sum;
        bases_at(memory, group)[8 * half] = rows.base[half];
    }
}
/* What sums relative to a base are multiplied by, to be relative to `max`. */
DEVICE float share_of(float base, float max) {
    return base == NEG_INF ? 0 : power_of_2(base - max);
}
/* Of row `threadIdx.x`: its maximum as an exponent of 2, and its sum. */
DEVICE float2 own_end(const u8 *memory) {
    const float *sums = (const float *)(memory + SUMS_AT) + threadIdx.x;
    const float *bases = (const float *)(memory + BASES_AT) + threadIdx.x;
    const float max = fmaxf(bases[0], bases[ROWS]);
    return make_float2(max, sums[0] * share_of(bases[0], max) + sums[ROWS] * share_of(bases[ROWS], max));
}
/* Sums of both warpgroups relative to the same. */
DEVICE void level(u8 *memory, int group, const lane_rows &rows, float (&out)[HALF / 2]) {
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        scale[half] = share_of(rows.base[half], fmaxf(rows.base[half], bases_at(memory, 1 - group)[8 * half]));
    rescale(out, scale);
}

DEVICE bool are_finite(const float (&out)[HALF / 2]) {
    float sum = 0; /* of zeros, unless one is not finite */
#pragma unroll
    for (int n = 0; n < HALF / 2; n++) sum = fmaf(out[n], 0, sum);
    return sum == 0;
}

/* In parts the four of 16 neighbouring columns that a lane has lie together. */
DEVICE int place_in_part(int column) {
    return (column & ~15) + column / 2 % 4 * 4 + column / 8 % 2 * 2 + column % 2;
}
DEVICE float4 four_of(const float (&out)[HALF / 2], int n, int half) {
    const int i = 8 * n + 2 * half;
    return make_float4(out[i], out[i + 1], out[i + 4], out[i + 5]);
}

/* Sums to the part of a split. */
DEVICE void write_part(const paged_arguments &a, const tile &t, int split, const u8 *memory, int group,
                       const lane_rows &rows, const float (&out)[HALF / 2]) {
    const int own = t.first_pair + threadIdx.x, group_heads = (int)a.p.group;
    if (threadIdx.x < ROWS && own < t.q->pairs)
        *(float2 *)(a.ends + 2 * part_of(a, *t.q, own / group_heads, own % group_heads, split)) = own_end(memory);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (t.first_pair + own_row() + 8 * half >= t.q->pairs) continue;
        const paged_size part = part_of(a, *t.q, rows.r[half], rows.h[half], split);
        float *const to = a.parts + part * VALUE_DIM + group * HALF + threadIdx.x % 4 * 4;
#pragma unroll
        for (int n = 0; n < HALF / 16; n++) *(float4 *)(to + n * 16) = four_of(out, n, half);
    }
}

/* What parts of a row are multiplied by, into shared memory [SPLITS][ROWS]: a thread for each row. `own`: the split
 * whose ends are in shared memory; below 0: none. */
DEVICE void make_factors(const paged_arguments &a, const tile &t, int own, u8 *memory) {
    const paged_problem &p = a.p;
    const int pair = t.first_pair + threadIdx.x, r = pair / (int)p.group, h = pair % (int)p.group;
    if (threadIdx.x >= ROWS || pair >= t.q->pairs) return;
    const int splits = t.is_bad ? 0 : t.q->splits;
    const float2 *const ends = (const float2 *)a.ends + part_of(a, *t.q, r, h, 0);
    float2 end[SPLITS];
    float max = NEG_INF, sum = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        end[s] = make_float2(NEG_INF, 0);
        if (s < splits) end[s] = s == own ? own_end(memory) : __ldcg(ends + s);
    }
#pragma unroll
    for (int s = 0; s < SPLITS; s++) max = fmaxf(max, end[s].x);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        const float weight = max == NEG_INF ? 0 : power_of_2(end[s].x - max);
        if (weight != 0) sum = fmaf(weight, end[s].y, sum);
        end[s].x = weight;
    }
    const float share =
        p.value.factor * finish_row(p, t.q->s.begin + r, h, t.is_bad, splits ? max * LOG_2 : NEG_INF, sum, true);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) ((float *)(memory + FACTORS_AT))[s * ROWS + threadIdx.x] = end[s].x * share;
}

/* Two neighbouring results, whatever their type. */
static __device__ __noinline__ void put_pair(const paged_problem &p, paged_size at, float x, float y) {
    put_out(p, at, 0, x), put_out(p, at, 1, y);
}

/* Rows of all splits, in order; sums of split `own` are in registers. */
DEVICE void write_rows(const paged_arguments &a, const tile &t, int own, const u8 *memory, int group,
                       const lane_rows &rows, const float (&out)[HALF / 2]) {
    const paged_problem &p = a.p;
    const int splits = t.is_bad ? 0 : t.q->splits, lane = threadIdx.x % 4;
    enum { ONCE = 8 / (1 + (HALF % 128 != 0)) }; /* of 16 columns */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (t.first_pair + own_row() + 8 * half >= t.q->pairs) continue;
        const paged_size to = paged_row_at(&p, &p.out, t.q->s.begin + rows.r[half], rows.h[half]) + group * HALF;
        const float *const from =
            a.parts + part_of(a, *t.q, rows.r[half], rows.h[half], 0) * VALUE_DIM + group * HALF + lane * 4;
        const float *const factors = (const float *)(memory + FACTORS_AT) + own_row() + 8 * half;
        const bool is_plain = p.out.dtype == ELEMENT && ((u64)((u16 *)p.out.data + to) & 3) == 0;
#pragma unroll
        for (int first = 0; first < HALF / 16; first += ONCE) {
            float4 sum[ONCE] = {};
#pragma unroll 1
            for (int s = 0; s < splits; s++) {
                const float factor = factors[s * ROWS];
                float4 x[ONCE];
#pragma unroll
                for (int n = 0; n < ONCE; n++) {
                    x[n] = four_of(out, first + n, half);
                    if (s != own) x[n] = __ldcg((const float4 *)(from + s * VALUE_DIM + (first + n) * 16));
                }
                if (factor == 0) continue; /* a part that nobody sees may hold anything */
#pragma unroll
                for (int n = 0; n < ONCE; n++)
                    sum[n].x = fmaf(factor, x[n].x, sum[n].x), sum[n].y = fmaf(factor, x[n].y, sum[n].y),
                    sum[n].z = fmaf(factor, x[n].z, sum[n].z), sum[n].w = fmaf(factor, x[n].w, sum[n].w);
            }
#pragma unroll
            for (int n = 0; n < ONCE; n++) {
                const paged_size at = to + (first + n) * 16 + lane * 2;
                if (is_plain) {
                    *(u32 *)((u16 *)p.out.data + at) = pack(sum[n].x, sum[n].y);
                    *(u32 *)((u16 *)p.out.data + at + 8) = pack(sum[n].z, sum[n].w);
                } else {
                    put_pair(p, at, sum[n].x, sum[n].y), put_pair(p, at + 8, sum[n].z, sum[n].w);
                }
            }
        }
    }
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
        if (is_part && lane == 0) *(float2 *)(a.ends + part * 2) = make_float2(row.max * LOG2_E, row.sum);
#pragma unroll 1
        for (int d = lane; d < VALUE_DIM; d += 32) {
            const float x = share == 0 ? 0 : row.out[d / 32] * share;
            if (is_part)
                a.parts[part * VALUE_DIM + place_in_part(d)] = x;
            else
                put_out(p, to, d, x);
        }
    }
}

/* A number that no other tile of the call has. */
DEVICE int number_of(const paged_problem &p, const tile &t) {
    return (int)((u32)(narrowed(t.q->s.begin) * (int)p.group) / ROWS) + (int)t.q->s.n + t.first_pair / ROWS;
}

/*
 * A unit's sums to a part or, once all parts of the tile are there, to the result: the tickets count units that have
 * come here, and parts that are written. The last unit has its own part in registers, and waits for the others', whose
 * CTAs are about to write them.
 */
DEVICE void finish_unit(const paged_arguments &a, const tile &t, int split, u8 *memory, int group, lane_rows &rows,
                        float (&out)[HALF / 2]) {
    put_ends(memory, group, rows);
    const bool is_careful = any_of_both(!are_finite(out)) && !t.is_bad;
    level(memory, group, rows, out);
    if (is_careful) attend_carefully_to(a, t, split);
    int own = is_careful ? -1 : split;
    if (t.q->splits == 1 || t.is_bad) {
        if (is_careful || split > 0) return;
    } else {
        int *const tickets = a.tickets + 2 * number_of(a.p, t);
        if (!any_of_both(threadIdx.x == 0 && atomicAdd(tickets, 1) == t.q->splits - 1)) {
            if (!is_careful) write_part(a, t, split, memory, group, rows, out);
            __threadfence();
            named_barrier_sync(BOTH, THREADS);
            if (threadIdx.x == 0) atomicAdd(tickets + 1, 1);
            return;
        }
        if (threadIdx.x == 0)
            while (*(volatile int *)(tickets + 1) != t.q->splits - 1) {
            }
        __threadfence();
        named_barrier_sync(BOTH, THREADS);
    }
    make_factors(a, t, own, memory);
    named_barrier_sync(BOTH, THREADS);
    write_rows(a, t, own, memory, group, rows, out);
}

/* ---- A unit --------------------------------------------------------------------------------------------- */

/* Adds products of weights with a stage's columns of the warpgroup; not waited for. */
DEVICE void add_values(u32 memory, int stage, int group, u32 (&weights)[16], float (&out)[HALF / 2]) {
    const u64 values = smem_descriptor(memory + TILE_BYTES + stage * TILE_BYTES + group * HALF_CHUNKS * CHUNK_BYTES,
                                       CHUNK_BYTES);
    hold(weights);
    hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wgmma<HALF>::template rs<1>(out, weights + 4 * i, moved(values, i * 2048), 1);
    wgmma_commit();
}
DEVICE void wait_for_values(u32 (&weights)[16], float (&out)[HALF / 2]) {
    wgmma_wait<0>();
    hold(weights);
    hold(out);
}

/* The other's weights of the block before, times what makes them relative to this warpgroup's bases. */
DEVICE void take_weights(u8 *memory, int group, lane_rows &rows, u32 (&weights)[16], float (&out)[HALF / 2]) {
    float scale[2];
    named_barrier_sync(WEIGHTS_READY + 1 - group, THREADS);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint4 x = *(const uint4 *)(weights_at(memory, 1 - group) + n * 2048);
        weights[4 * n] = x.x, weights[4 * n + 1] = x.y, weights[4 * n + 2] = x.z, weights[4 * n + 3] = x.w;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float other = bases_at(memory, 1 - group)[8 * half], before = rows.base[half];
        if (other > before + 7) rows.base[half] = other;
        scale[half] = rows.base[half] > before ? power_of_2(before - rows.base[half]) : 1;
        rows.sum[half] *= scale[half];
        const float exponent = other == NEG_INF ? 0 : other - rows.base[half];
#pragma unroll
        for (int n = 0; n < 8; n++) weights[2 * n + half] = times_power_of_2(weights[2 * n + half], exponent);
    }
    rescale(out, scale, true);
}

/* Scores, weights and sums of a block of this warpgroup, and sums of the other's before it. The first of all has none
 * before it: then weights of 0 are multiplied, as a branch must not decide whether products are made. */
DEVICE void attend_block(const paged_problem &p, const tile &t, int n, float unit, u8 *memory, int group, u32 &parity,
                         lane_rows &rows, float (&out)[HALF / 2]) {
    const u32 base = shared_address(memory);
    float z[32], scale[2];
    u32 weights[16], others[16];
#pragma unroll
    for (int i = 0; i < 32; i++) z[i] = 0;
#if PAGES
    const int key = t.first + n * KEYS;
    if (key < t.q->low || key + KEYS > t.last) clear_hidden(t, key, base, group, parity);
#endif
    hold(z);
    add_scores<true>(base, group, group, parity, z);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 16; i++) others[i] = 0;
    if (n > 0) take_weights(memory, group, rows, others, out);
    add_values(base, n > 0 ? 1 - group : group, group, others, out);
    add_scores<false>(base, group, 1 - group, parity, z);
    add_tail_scores(base, group, z);
    wgmma_commit();
    parity ^= 1;
    wgmma_wait<1>();
    hold(others);
    hold(out);
    if (n > 0) release(base, 1 - group, group);
    wgmma_wait<0>();
    hold(z);
    make_weights(p, t, t.first + n * KEYS, unit, rows, z, scale);
#pragma unroll
    for (int i = 0; i < 16; i++) weights[i] = pack(z[2 * i], z[2 * i + 1]);
    put_weights(memory, group, rows, weights);
    hand_over(group);
    rescale(out, scale);
    add_values(base, group, group, weights, out);
    wait_for_values(weights, out);
    release(base, group, group);
}

/* Sums of the last block, of the other. */
DEVICE void follow_last(u8 *memory, int group, lane_rows &rows, float (&out)[HALF / 2]) {
    const u32 base = shared_address(memory);
    u32 weights[16];
    take_weights(memory, group, rows, weights, out);
    add_values(base, 1 - group, group, weights, out);
    wait_for_values(weights, out);
    release(base, 1 - group, group);
}

DEVICE void attend(const paged_arguments &a, const tile &t, int split, u8 *memory, int group, u32 &parity,
                   int &kept) {
    const paged_problem &p = a.p;
    const float unit = FOLDED ? (float)p.scale * p.key.factor * LOG2_E : LOG2_E;
    lane_rows rows;
    float out[HALF / 2];
#pragma unroll
    for (int n = 0; n < HALF / 2; n++) out[n] = 0;
    begin_rows(p, t, rows);
    named_barrier_sync(BOTH, THREADS); /* the unit before is over */
    if (t.blocks > 0) {
        const int first = narrowed(t.q->s.begin) * (int)p.group + t.first_pair; /* that of no other tile */
        if (first != kept) {
            keep_queries(p, t, shared_address(memory));
            named_barrier_sync(BOTH, THREADS);
            kept = first;
        }
#pragma unroll 1
        for (int n = group; n < t.blocks; n += 2) attend_block(p, t, n, unit, memory, group, parity, rows, out);
        if (t.blocks % 2 == group) follow_last(memory, group, rows, out);
    }
    finish_unit(a, t, split, memory, group, rows, out);
}

/* What no unit is there for, by the warpgroup that fetches: sequences whose rows see nothing, the status, and rows of
 * no sequence. */
DEVICE void finish_others(const paged_arguments &a) {
    const paged_problem &p = a.p;
    const clearing by = {blockIdx.x, gridDim.x, threadIdx.x % FETCHERS, FETCHERS};
#pragma unroll 1
    for (paged_size n = blockIdx.x; n < paged_count(&p); n += gridDim.x) {
        const few_sequence q = few_of<ROWS>(p, n);
        if (q.splits > 0) continue;
        const bool is_bad = a.flags[n];
        if (is_bad) clear_rows(p, q.s.begin, q.s.begin + q.s.rows, {0, 1, by.own, by.each});
#pragma unroll 1
        for (int pair = by.own / 32; !is_bad && pair < q.pairs; pair += FETCHERS / 32) {
            const int h = pair % (int)p.group;
            const paged_size token = q.s.begin + pair / (int)p.group, to = paged_row_at(&p, &p.out, token, h);
            finish_row(p, token, h, false, NEG_INF, 0, by.own % 32 == 0);
#pragma unroll 1
            for (int d = by.own % 32; d < VALUE_DIM; d += 32) put_out(p, to, d, 0);
        }
    }
    clear_rest(a, by, true, a.flags[p.sequences]);
}

/* The unit at a cursor. */
DEVICE tile tile_of(const paged_arguments &a, const unit_cursor &c) {
    const paged_problem &p = a.p;
    tile t;
    t.q = &c.q;
    t.first_pair = c.tile * ROWS;
    t.first = c.first, t.last = c.last;
    t.is_bad = a.flags[c.q.s.n];
    t.blocks = t.is_bad ? 0 : cdiv(t.last - t.first, KEYS);
    const int last = (lesser(t.first_pair + ROWS, c.q.pairs) - 1) / (int)p.group;
    t.all_begin = narrowed(paged_low(&p, &c.q.s, last));
    t.all_end = lesser(narrowed(paged_high(&p, &c.q.s, t.first_pair / (int)p.group)), t.last);
    return t;
}

extern "C" __global__ void __cluster_dims__(1 + PAIR, 1, 1) __launch_bounds__(THREADS + FETCHERS, 1)
    latent(const __grid_constant__ paged_latent_arguments l) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    launch_dependents();
#endif
    const paged_arguments &a = l.all;
    const paged_problem &p = a.p;
    const u32 base = shared_address(memory);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); /* so that descriptors are in uniform registers */
    if (threadIdx.x == 0) {
        for (int n = 0; n < 4; n++) {
            mbarrier_init(base + FULL_AT + n * 8, PAGES ? 1 : FETCHERS);
            mbarrier_init(base + EMPTY_AT + n * 8, 4 * (1 + PAIR));
        }
        mbarrier_fence_init();
    }
    unit_cursor c = first_unit<ROWS>(p, (i64 *)memory, blockIdx.x, gridDim.x);
    __syncthreads();
    if (PAIR) cluster_sync();
#if OVERLAP
    wait_for_previous();
#endif
    if (a.flags[p.sequences]) {
        if (group == 2) clear_rest(a, {blockIdx.x, gridDim.x, threadIdx.x % FETCHERS, FETCHERS}, true, true);
        return;
    }
    if (group == 2) {
        setmaxnreg_dec<FETCHER_REGS>();
        u32 parity[2] = {0, 0};
        if (!PAGES || threadIdx.x / 32 == WARPS)
#pragma unroll 1
            for (; c.left > 0; next_unit<ROWS>(p, c)) fetch(l, tile_of(a, c), base, parity);
        __syncwarp();
        finish_others(a);
    } else {
        setmaxnreg_inc<OTHER_REGS>();
        u32 parity = 0;
        int kept = -1; /* the tile whose queries are there */
#pragma unroll 1
        for (; c.left > 0; next_unit<ROWS>(p, c)) attend(a, tile_of(a, c), c.split, memory, group, parity, kept);
    }
    __syncwarp();
    if (PAIR) cluster_sync(); /* the other may still fetch for this one */
}

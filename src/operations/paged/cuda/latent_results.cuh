/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a unit of latent.cu ends with: its sums become a part, or with the parts of a tile's other splits a result.
 * Constants are those of latent.cu.
 */
#ifndef EJKI_PAGED_CUDA_LATENT_RESULTS_CUH
#define EJKI_PAGED_CUDA_LATENT_RESULTS_CUH

#include "operations/paged/cuda/careful.cuh"
#include "operations/paged/cuda/latent_fetch.cuh"
#include "operations/paged/cuda/rows.cuh"

/* A lane's two rows, the second being eight on. Weights are relative to 2 to the power of `base`, a whole number, which
 * rises where one would be above 2^8. */
struct lane_rows {
    float base[2], sum[2]; /* the latter of blocks of this warpgroup */
    int low[2], high[2], r[2], h[2];
};

/* A lane's first row of the tile. */
DEVICE int own_row() {
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* Bases of rows, of a warpgroup. */
DEVICE float *bases_at(u8 *memory, int group) {
    return (float *)(memory + BASES_AT) + group * ROWS + own_row();
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

/* ---- Parts and results --------------------------------------------------------------------------------- */

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
    const int own = t.first_pair + threadIdx.x, group_heads = group_of(a.p);
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
    const int pair = t.first_pair + threadIdx.x, r = pair / group_of(p), h = pair % group_of(p);
    if (threadIdx.x >= ROWS || pair >= t.q->pairs) return;
    const int splits = t.q->splits;
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
        p.value.factor * finish_row(p, t.q->s.begin + r, h, false, max * LOG_2, sum, true);
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
    const int splits = t.q->splits, lane = threadIdx.x % 4;
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
            const paged_size at = to + first * 16 + lane * 2;
            if (is_plain) {
                u16 *const plain = (u16 *)p.out.data + at;
#pragma unroll
                for (int n = 0; n < ONCE; n++)
                    *(u32 *)(plain + n * 16) = pack(sum[n].x, sum[n].y),
                    *(u32 *)(plain + n * 16 + 8) = pack(sum[n].z, sum[n].w);
            } else {
#pragma unroll
                for (int n = 0; n < ONCE; n++)
                    put_pair(p, at + n * 16, sum[n].x, sum[n].y), put_pair(p, at + n * 16 + 8, sum[n].z, sum[n].w);
            }
        }
    }
}

/*
 * Rows of two splits, as write_rows() makes them: sums of split `own` are in registers, those of the other come from
 * memory, so many loads ahead, of which the first are under way before all factors are there.
 */
enum { FOURS_OF_ROW = HALF / 16, FOURS_AHEAD = FOURS_OF_ROW < 12 ? FOURS_OF_ROW : 12 };
struct other_part {
    const float *from[2]; /* of the lane's rows; 0: of no pair */
    float4 x[FOURS_AHEAD];
};
/* In the order as it stands: loads that the compiler moves ahead leave no registers. */
DEVICE void load_four(other_part &o, int n) {
    float4 &x = o.x[n % FOURS_AHEAD];
    const float *const from = o.from[n / FOURS_OF_ROW];
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u64 there, %4, 0;\n"
                 "@there ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%5];\n"
                 "}\n"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "l"(from), "l"(from + n % FOURS_OF_ROW * 16)
                 : "memory");
}
DEVICE void begin_other_part(const paged_arguments &a, const tile &t, int split, int group, const lane_rows &rows,
                             other_part &o) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const paged_size part = part_of(a, *t.q, rows.r[half], rows.h[half], split);
        const bool there = t.first_pair + own_row() + 8 * half < t.q->pairs;
        o.from[half] = there ? a.parts + part * VALUE_DIM + group * HALF + threadIdx.x % 4 * 4 : 0;
    }
#pragma unroll
    for (int n = 0; n < FOURS_AHEAD; n++) load_four(o, n);
}
DEVICE float add_part(float factor, float x, float sum) {
    return factor == 0 ? sum : fmaf(factor, x, sum); /* a part that nobody sees may hold anything */
}
DEVICE void write_rows_of_two(const paged_arguments &a, const tile &t, int own, const u8 *memory, int group,
                              const lane_rows &rows, const float (&out)[HALF / 2], other_part &o) {
    const paged_problem &p = a.p;
    const float *const factors = (const float *)(memory + FACTORS_AT) + own_row();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float first = factors[8 * half], second = factors[8 * half + ROWS];
        const auto join = [&](float x, float y) {
            return add_part(second, own == 0 ? x : y, add_part(first, own == 0 ? y : x, 0));
        };
        u16 *const to = (u16 *)p.out.data + paged_row_at(&p, &p.out, t.q->s.begin + rows.r[half], rows.h[half]) +
                        group * HALF + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < FOURS_OF_ROW; n++) {
            const int next = half * FOURS_OF_ROW + n + FOURS_AHEAD;
            const float4 x = o.x[(half * FOURS_OF_ROW + n) % FOURS_AHEAD], y = four_of(out, n, half);
            if (next < 2 * FOURS_OF_ROW) load_four(o, next);
            if (!o.from[half]) continue;
            *(u32 *)(to + n * 16) = pack(join(x.x, y.x), join(x.y, y.y));
            *(u32 *)(to + n * 16 + 8) = pack(join(x.z, y.z), join(x.w, y.w));
        }
    }
}

/* Whether it can be used: results are of the queries' type, at multiples of two. */
DEVICE bool are_rows_even(const paged_problem &p) {
    const paged_rows &to = p.out;
    return to.dtype == ELEMENT && ((u64)to.data & 3) == 0 && ((to.token | to.head | to.batch) & 1) == 0;
}

DEVICE void attend_carefully_to(const paged_arguments &a, const tile &t, int split) {
    const paged_problem &p = a.p;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pair = t.first_pair + threadIdx.x / 32; pair < lesser(t.first_pair + ROWS, t.q->pairs); pair += WARPS) {
        const int r = pair / group_of(p), h = pair % group_of(p);
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
    return (int)((u32)(narrowed(t.q->s.begin) * group_of(p)) / ROWS) + (int)t.q->s.n + t.first_pair / ROWS;
}

/* Of a tile of several splits: units that have come near their ends, and parts that are written. */
DEVICE int *tickets_of(const paged_arguments &a, const tile &t) {
    return a.tickets + 2 * number_of(a.p, t);
}

/* Says that a part is written, after all that both have written. */
DEVICE void tell_of_part(const paged_arguments &a, const tile &t, int turn) {
    if (PAGES) {
        named_barrier_arrive(WRITTEN + (turn & 1), THREADS + 32);
    } else {
        __threadfence();
        named_barrier_sync(BOTH, THREADS);
        if (threadIdx.x == 0) atomicAdd(tickets_of(a, t) + 1, 1);
    }
}

/*
 * A unit's sums to a part or, by the unit that came last near its end, to the result. That one has its own part in
 * registers, and waits for the others', whose CTAs are about to write them. Nobody waits in a circle: a unit waits for
 * none with a later ticket, and none is taken before all keys of the unit, and of those before it, have been asked for.
 * Nor is the other CTA of a cluster held up, which fetches half of them: as every unit has a block, the stage that the
 * unit's first one needs has been let go of by it in the unit before, and there are places for two units.
 */
DEVICE void finish_unit(const paged_arguments &a, const tile &t, u8 *memory, int group, lane_rows &rows,
                        float (&out)[HALF / 2], const handing &hands, int turn) {
    put_ends(memory, group, rows);
    const bool is_careful = any_of_both(!are_finite(out));
    level(memory, group, rows, out);
    if (is_careful) attend_carefully_to(a, t, t.split);
    const int own = is_careful ? -1 : t.split;
    if (t.q->splits == 1) {
        if (is_careful) return;
    } else {
        if (!is_last_of_tile(hands, turn)) {
            if (!is_careful) write_part(a, t, t.split, memory, group, rows, out);
            tell_of_part(a, t, turn);
            return;
        }
        if (threadIdx.x == 0)
            while (*(volatile int *)(tickets_of(a, t) + 1) != t.q->splits - 1) {
            }
        __threadfence();
        named_barrier_sync(BOTH, THREADS);
    }
    const bool are_two = own >= 0 && t.q->splits == 2 && are_rows_even(a.p);
    other_part other = {};
    make_factors(a, t, own, memory);
    if (are_two) begin_other_part(a, t, 1 - own, group, rows, other);
    named_barrier_sync(BOTH, THREADS);
    if (are_two)
        write_rows_of_two(a, t, own, memory, group, rows, out, other);
    else
        write_rows(a, t, own, memory, group, rows, out);
}

#endif

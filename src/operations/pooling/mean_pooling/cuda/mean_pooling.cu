/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling: tokens of a row are segments of POOL_SEGMENT, each summed up by PHASES threads of a column, and sums of
 * segments are added in order: the order depends on nothing but the row's length, so that bits do not depend on what
 * else is in the call. A block takes a tile of columns of a row and a share of its segments. With several shares the
 * sums go to `partial`, and combine adds them up. spread is the gradient, rows.cuh's kernel over runs of tokens.
 */
#include "kernels/cuda/rows.cuh"
#include "operations/pooling/mean_pooling/problem.cuh"

#define BATCH 8

typedef run_of<ELEMENT, VECTOR> run;

struct arguments {
    pool_problem p;
    float *partial; /* [segments][batch, rows, runs][width] */
    ejki_size splits;
};

struct place {
    ejki_size b, step, run;
};

DEVICE place place_of(const pool_problem &p, ejki_size item, ejki_size steps) {
    const ejki_size runs = ejki_run_count(&p.runs), rest = item / runs;
    return {rest / steps, rest % steps, item % runs};
}

/* Adds up tokens `t`, t + PHASES, … of a segment that ends at `end`. */
DEVICE void add_tokens(const element *x, ejki_size step, ejki_size t, ejki_size end,
                       float (&sum)[VECTOR]) {
    for (; t < end; t += BATCH * PHASES) {
        run values[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (t + k * PHASES < end) values[k] = *(const run *)(x + (t + k * PHASES) * step);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (t + k * PHASES < end)
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += widen(values[k].at[i]);
    }
}

/* Adds the sums of the first `count` groups, in order. */
DEVICE void add_groups(const float (&sum)[VECTOR], ejki_size count, float (&total)[VECTOR]) {
    __shared__ float shared[VECTOR][GROUPS][LANES];
    const int lane = threadIdx.x % LANES;
    for (int i = 0; i < VECTOR; i++) shared[i][threadIdx.x / (LANES * PHASES)][lane] = sum[i];
    __syncthreads();
    for (int g = 0; g < GROUPS && g < count; g++)
        for (int i = 0; i < VECTOR; i++) total[i] += shared[i][g][lane];
    __syncthreads();
}

DEVICE ejki_size segments_of(const ejki_range &range) {
    return (range.end - range.begin + POOL_SEGMENT - 1) / POOL_SEGMENT;
}

extern "C" __global__ void __launch_bounds__(THREADS) pool(const arguments a) {
    const pool_problem &p = a.p;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const ejki_size tiles = (p.runs.width + LANES * VECTOR - 1) / (LANES * VECTOR);
    const ejki_size items = p.batch * p.rows * ejki_run_count(&p.runs), item = blockIdx.x / tiles;
    const ejki_size c = blockIdx.x % tiles * LANES * VECTOR + lane * VECTOR;
    const place at = place_of(p, item, p.rows);
    const ejki_range range = ejki_chunk_of_row(&p.chunks, at.step);
    const ejki_size segments = segments_of(range), tokens = range.end - range.begin;
    const ejki_size last = segments * (blockIdx.y + 1) / a.splits;
    const element *x =
        (const element *)p.x.data + ejki_run_start(&p.runs, &p.x, at.b, 0, at.run) + c;
    float total[VECTOR] = {};
    for (ejki_size s = segments * blockIdx.y / a.splits; s < last; s += GROUPS) {
        const ejki_size own = s + row / PHASES, begin = range.begin + own * POOL_SEGMENT;
        const bool counts = c < p.runs.width && own < last;
        float sum[VECTOR] = {};
        const ejki_size end = range.end - begin < POOL_SEGMENT ? range.end : begin + POOL_SEGMENT;
        if (counts) add_tokens(x, p.x.step, begin + row % PHASES, end, sum);
        sum_over_phases(sum);
        if (a.splits == 1) {
            add_groups(sum, last - s, total);
        } else if (counts && row % PHASES == 0) {
            float *partial = a.partial + (own * items + item) * p.runs.width + c;
            for (int i = 0; i < VECTOR; i++) partial[i] = sum[i];
        }
    }
    if (a.splits > 1 || row > 0 || c >= p.runs.width) return;
    run result;
    for (int i = 0; i < VECTOR; i++) result.at[i] = narrow(tokens ? total[i] / tokens : 0);
    *(run *)((element *)p.y.data + ejki_run_start(&p.runs, &p.y, at.b, at.step, at.run) + c) =
        result;
}

extern "C" __global__ void __launch_bounds__(THREADS) combine(const arguments a) {
    const pool_problem &p = a.p;
    const ejki_size count = p.batch * p.rows * ejki_run_count(&p.runs) * p.runs.width;
    for (ejki_size n = (ejki_size)blockIdx.x * THREADS + threadIdx.x; n < count;
         n += (ejki_size)gridDim.x * THREADS) {
        const place at = place_of(p, n / p.runs.width, p.rows);
        const ejki_range range = ejki_chunk_of_row(&p.chunks, at.step);
        const ejki_size segments = segments_of(range);
        float sum = 0;
        for (ejki_size s = 0; s < segments; s += 4 * BATCH) {
            float values[4 * BATCH];
#pragma unroll
            for (int k = 0; k < 4 * BATCH; k++)
                values[k] = s + k < segments ? a.partial[(s + k) * count + n] : 0;
#pragma unroll
            for (int k = 0; k < 4 * BATCH; k++)
                if (s + k < segments) sum += values[k];
        }
        ((element *)
             p.y.data)[ejki_run_start(&p.runs, &p.y, at.b, at.step, at.run) + n % p.runs.width] =
            narrow(segments ? sum / (range.end - range.begin) : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) spread(const arguments a) {
    const pool_problem &p = a.p;
    const ejki_size count = p.batch * p.chunks.tokens * ejki_run_count(&p.runs);
    for (ejki_size n = (ejki_size)blockIdx.x * ROWS + threadIdx.x / LANES; n < count;
         n += (ejki_size)gridDim.x * ROWS) {
        const place at = place_of(p, n, p.chunks.tokens);
        const ejki_range range = ejki_chunk_of_token(&p.chunks, at.step);
        const element *y =
            (const element *)p.y.data +
            ejki_run_start(&p.runs, &p.y, at.b, range.row < 0 ? 0 : range.row, at.run);
        element *x = (element *)p.x.data + ejki_run_start(&p.runs, &p.x, at.b, at.step, at.run);
        for (ejki_size c = threadIdx.x % LANES * VECTOR; c < p.runs.width; c += LANES * VECTOR) {
            run value = {};
            if (range.row >= 0) {
                value = *(const run *)(y + c);
                for (int i = 0; i < VECTOR; i++)
                    value.at[i] = narrow(widen(value.at[i]) / (range.end - range.begin));
            }
            *(run *)(x + c) = value;
        }
    }
}

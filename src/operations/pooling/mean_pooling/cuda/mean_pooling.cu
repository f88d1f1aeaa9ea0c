/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling, as docs/kernels/mean_pooling.md describes it: a block takes a tile of columns of a row and a share of
 * its segments; with several shares the sums go to `partial`, and combine adds them up. spread is the gradient.
 */
#include "kernels/cuda/rows.cuh"
#include "operations/pooling/mean_pooling/problem.cuh"

#define BATCH 8
typedef run_of<ELEMENT, VECTOR> run;

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

DEVICE ejki_size segments_of(const ejki_range &range) {
    return (range.end - range.begin + POOL_SEGMENT - 1) / POOL_SEGMENT;
}

/* Columns c to c + COUNT - 1 of an item: sums divided, 0 of no tokens. */
template <int COUNT>
DEVICE void put(const pool_problem &p, const ejki_item &at, ejki_size c, const float (&sum)[COUNT], ejki_size tokens) {
    run_of<ELEMENT, COUNT> result;
    for (int i = 0; i < COUNT; i++) result.at[i] = narrow(tokens ? sum[i] / tokens : 0);
    *(run_of<ELEMENT, COUNT> *)((element *)p.y.data + ejki_run_start(&p.runs, &p.y, &at, at.step) + c) = result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) pool(const pool_arguments a) {
    const pool_problem &p = a.p;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const ejki_size tiles = (p.runs.width + LANES * VECTOR - 1) / (LANES * VECTOR);
    const ejki_size items = pool_items(&p, p.rows), item = blockIdx.x / tiles;
    const ejki_size c = blockIdx.x % tiles * LANES * VECTOR + lane * VECTOR;
    const ejki_item at = ejki_item_at(&p.runs, p.rows, item);
    const ejki_range range = ejki_chunk_of_row(&p.chunks, at.step);
    const ejki_size segments = segments_of(range), last = segments * (blockIdx.y + 1) / a.splits;
    const element *x = (const element *)p.x.data + ejki_run_start(&p.runs, &p.x, &at, 0) + c;
    float total[VECTOR] = {};
    for (ejki_size s = segments * blockIdx.y / a.splits; s < last; s += GROUPS) {
        const ejki_size own = s + row / PHASES, begin = range.begin + own * POOL_SEGMENT;
        const bool counts = c < p.runs.width && own < last;
        float sum[VECTOR] = {};
        const ejki_size end = range.end - begin < POOL_SEGMENT ? range.end : begin + POOL_SEGMENT;
        if (counts) add_tokens(x, p.x.step, begin + row % PHASES, end, sum);
        sum_over_phases(sum);
        if (a.splits == 1) {
            add_over_groups(sum, last - s, total);
        } else if (counts && row % PHASES == 0) {
            float *partial = a.partial + (own * items + item) * p.runs.width + c;
            for (int i = 0; i < VECTOR; i++) partial[i] = sum[i];
        }
    }
    if (a.splits == 1 && row == 0 && c < p.runs.width) put(p, at, c, total, range.end - range.begin);
}

extern "C" __global__ void __launch_bounds__(THREADS) combine(const pool_arguments a) {
    const pool_problem &p = a.p;
    const ejki_size count = pool_items(&p, p.rows) * p.runs.width;
    for (ejki_size n = (ejki_size)blockIdx.x * THREADS + threadIdx.x; n < count; n += (ejki_size)gridDim.x * THREADS) {
        const ejki_item at = ejki_item_at(&p.runs, p.rows, n / p.runs.width);
        const ejki_range range = ejki_chunk_of_row(&p.chunks, at.step);
        const float sum[] = {sum_in_order(a.partial + n, segments_of(range), count)};
        put(p, at, n % p.runs.width, sum, range.end - range.begin);
    }
}

/* LANES threads take POOL_SPREAD tokens of a run, and divide once for all that have the same mean. */
extern "C" __global__ void __launch_bounds__(THREADS) spread(const pool_arguments a) {
    const pool_problem &p = a.p;
    const ejki_size tokens = p.chunks.tokens, spans = (tokens + POOL_SPREAD - 1) / POOL_SPREAD;
    const ejki_size count = pool_items(&p, spans);
    for (ejki_size n = (ejki_size)blockIdx.x * ROWS + threadIdx.x / LANES; n < count;
         n += (ejki_size)gridDim.x * ROWS) {
        const ejki_item at = ejki_item_at(&p.runs, spans, n);
        const ejki_size first = at.step * POOL_SPREAD;
        const ejki_size last = first + POOL_SPREAD < tokens ? first + POOL_SPREAD : tokens;
        const element *y = (const element *)p.y.data + ejki_run_start(&p.runs, &p.y, &at, 0);
        element *x = (element *)p.x.data + ejki_run_start(&p.runs, &p.x, &at, 0);
        for (ejki_size c = threadIdx.x % LANES * VECTOR; c < p.runs.width; c += LANES * VECTOR)
            for (ejki_size t = first; t < last;) {
                const ejki_range range = ejki_chunk_of_token(&p.chunks, t);
                const ejki_size end = range.end < last ? range.end : last;
                run value = {};
                if (range.row >= 0) value = *(const run *)(y + range.row * p.y.step + c);
                for (int i = 0; i < VECTOR; i++) value.at[i] = narrow(widen(value.at[i]) / (range.end - range.begin));
                do *(run *)(x + t * p.x.step + c) = value; while (++t < end);
            }
    }
}

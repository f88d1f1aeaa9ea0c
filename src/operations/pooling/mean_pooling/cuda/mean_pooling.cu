/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling: a block takes a tile of columns of a row and a share of its tokens, ROWS tokens at a time and BATCH
 * loads of a thread under way. Sums of threads meet in shared memory, those of blocks in `partial`, which combine adds
 * up in order: bits are the same each time. spread is the gradient, rows.cuh's kernel over runs of tokens.
 */
#include "kernels/cuda/rows.cuh"
#include "operations/pooling/mean_pooling/problem.cuh"

#define BATCH 8

typedef run_of<ELEMENT, VECTOR> run;

struct arguments {
    pool_problem p;
    float *partial; /* [splits][batch, rows, runs][width] */
    ejki_size splits;
};

struct place {
    ejki_size b, step, run;
};

DEVICE place place_of(const pool_problem &p, ejki_size item, ejki_size steps) {
    const ejki_size runs = ejki_run_count(&p.runs), rest = item / runs;
    return {rest / steps, rest % steps, item % runs};
}

DEVICE void add_tokens(const pool_problem &p, const place &at, ejki_size c, ejki_size t,
                       ejki_size end, float (&sum)[VECTOR]) {
    const element *x =
        (const element *)p.x.data + ejki_run_start(&p.runs, &p.x, at.b, 0, at.run) + c;
    for (; t < end; t += BATCH * ROWS) {
        run values[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (t + k * ROWS < end) values[k] = *(const run *)(x + (t + k * ROWS) * p.x.step);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (t + k * ROWS < end)
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += widen(values[k].at[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) pool(const arguments a) {
    const pool_problem &p = a.p;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const ejki_size tiles = (p.runs.width + LANES * VECTOR - 1) / (LANES * VECTOR);
    const ejki_size items = p.batch * p.rows * ejki_run_count(&p.runs), item = blockIdx.x / tiles;
    const ejki_size c = blockIdx.x % tiles * LANES * VECTOR + lane * VECTOR;
    const place at = place_of(p, item, p.rows);
    const ejki_range range = ejki_chunk_of_row(&p.chunks, at.step);
    const ejki_size tokens = range.end - range.begin, split = blockIdx.y;
    float sum[VECTOR] = {};
    if (c < p.runs.width)
        add_tokens(p, at, c, range.begin + tokens * split / a.splits + row,
                   range.begin + tokens * (split + 1) / a.splits, sum);
    sum_over_column(sum);
    if (row > 0 || c >= p.runs.width) return;
    if (a.splits > 1) {
        float *partial = a.partial + (split * items + item) * p.runs.width + c;
        for (int i = 0; i < VECTOR; i++) partial[i] = sum[i];
        return;
    }
    run result;
    for (int i = 0; i < VECTOR; i++) result.at[i] = narrow(tokens ? sum[i] / tokens : 0);
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
        float sum = 0;
        for (ejki_size split = 0; split < a.splits; split++) sum += a.partial[split * count + n];
        ((element *)
             p.y.data)[ejki_run_start(&p.runs, &p.y, at.b, at.step, at.run) + n % p.runs.width] =
            narrow(range.end > range.begin ? sum / (range.end - range.begin) : 0);
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

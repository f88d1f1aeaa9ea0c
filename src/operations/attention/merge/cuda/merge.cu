/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_merge: a row of the result is merged by LANES neighbouring threads, each of which keeps runs of
 * VECTOR elements. Parts are read once, with the loads of several under way at a time.
 *
 * Constants: those of merge.cuh, and OUT (element type).
 */
#include "operations/attention/merge/cuda/merge.cuh"

#define AHEAD 4

typedef element_of<OUT>::bits out_element;
typedef run_of<OUT, VECTOR> out_run;

/* The larger of two, where NaN wins. */
DEVICE float larger(float a, float b) {
    return a != a || a > b ? a : b;
}

/* Largest logarithm of parts and sinks, and what all together weigh relative to it. */
struct scale {
    float largest, total;
};

DEVICE scale scale_of(const merge_arguments &a, const row &r, const float *lse, int lane) {
    const float *sums = a.sums ? a.sums + r.b * a.sums_b + r.h * a.sums_h + r.t : nullptr;
    const element *sinks =
        (const element *)a.sinks + r.h / a.sink_group * a.sink_stride_h;
    float largest = NEG_INF, total = 0;
    for (merge_size n = lane; n < a.parts; n += LANES) largest = larger(largest, lse[n * a.lse_n]);
    for (merge_size m = lane; m < a.sink_count; m += LANES)
        largest = larger(largest, widen(sinks[m]));
    largest = over_row(largest, [](float x, float y) { return larger(x, y); });
    for (merge_size n = lane; n < a.parts; n += LANES) {
        const float w = weight(lse[n * a.lse_n], largest);
        if (w != 0) total += sums ? w * sums[n * a.sums_n] : w;
    }
    for (merge_size m = lane; m < a.sink_count; m += LANES)
        total += weight(widen(sinks[m]), largest);
    return {largest, sum_over_row(total)};
}

/* A part that weighs nothing is not looked at: it may hold anything. */
DEVICE void add_parts(const merge_arguments &a, const element *part, const float *lse,
                                 const scale &s, float (&sum)[VECTOR]) {
    for (merge_size n = 0; n < a.parts; n += AHEAD) {
        part_run values[AHEAD];
        float w[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            w[k] = n + k < a.parts ? weight(lse[(n + k) * a.lse_n], s.largest) : 0;
            if (w[k] != 0) w[k] /= s.total; /* which is 0 where nothing was seen */
            if (w[k] != 0) values[k] = *(const part_run *)(part + (n + k) * a.part_n);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (w[k] != 0)
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += w[k] * widen(values[k].at[i]);
    }
}

DEVICE void merge_row(const merge_arguments &a, const row &r, int lane) {
    const float *lse = a.lse + r.b * a.lse_b + r.h * a.lse_h + r.t;
    const scale s = scale_of(a, r, lse, lane);
    const element *part =
        (const element *)a.part + r.b * a.part_b + r.t * a.part_t + r.h * a.part_h;
    out_element *out = (out_element *)a.out + r.b * a.out_b + r.t * a.out_t + r.h * a.out_h;
    for (merge_size d = lane * VECTOR; d < a.value_dim; d += LANES * VECTOR) {
        float sum[VECTOR] = {};
        out_run result;
        add_parts(a, part + d, lse, s, sum);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) result.at[i] = bits_of<OUT>(sum[i]);
        *(out_run *)(out + d) = result;
    }
    if (a.merged && lane == 0)
        a.merged[r.b * a.merged_b + r.h * a.merged_h + r.t * a.merged_t] =
            s.largest + logf(s.total);
}

extern "C" __global__ void __launch_bounds__(THREADS) merge(const merge_arguments a) {
    const merge_size rows = a.batch * a.queries * a.heads;
    const int lane = threadIdx.x % LANES;
    for (merge_size n = (merge_size)blockIdx.x * ROWS + threadIdx.x / LANES; n < rows;
         n += (merge_size)gridDim.x * ROWS)
        merge_row(a, row_of(a, n), lane);
}

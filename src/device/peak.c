/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic ceiling: which loop stands for a tier and a type, its operands, and running it. */
#include "base/base.h"
#include "device/peak.h"
#include "device/rate.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const ejki_peak *first;
    int count;
} tables[] = {
#define TABLE(peaks)                                                                               \
    { peaks, sizeof peaks / sizeof peaks[0] }
    TABLE(ejki_peak_scalar),
#if defined(__aarch64__)
    TABLE(ejki_peak_neon),
#elif defined(__x86_64__)
    TABLE(ejki_peak_avx2),
    TABLE(ejki_peak_avx512),
    TABLE(ejki_peak_amx),
#endif
#undef TABLE
};

static bool includes(ejk_isa isa, ejk_isa other) {
    return !(ejk_isa_features(other) & ~ejk_isa_features(isa));
}

/* The tier's own loop, or that of the highest tier that it includes. */
static const ejki_peak *find_peak(ejk_isa isa, ejk_dtype dtype) {
    const ejki_peak *found = NULL;
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (int i = 0; i < tables[t].count; i++) {
            const ejki_peak *peak = &tables[t].first[i];
            if (peak->dtype == dtype && includes(isa, peak->isa) &&
                !(peak->needs & ~ejk_cpu()->features))
                found = peak;
        }
    return found;
}

static void put(ejk_dtype dtype, unsigned char *at, double value) {
    float single = (float)value;
    uint16_t upper = ejk_f32_to_bf16(single);
    int8_t whole = (int8_t)(64 * value);
    if (dtype == EJK_DTYPE_F64) memcpy(at, &value, sizeof value);
    if (dtype == EJK_DTYPE_F32) memcpy(at, &single, sizeof single);
    if (dtype == EJK_DTYPE_BF16) memcpy(at, &upper, sizeof upper);
    if (dtype == EJK_DTYPE_I8) memcpy(at, &whole, sizeof whole);
}

/* Random numbers of either sign, magnitudes 0.5 to 1.5. */
static double next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    double magnitude = 0.5 + (double)(*state >> 12) * 0x1p-52;
    return *state >> 11 & 1 ? -magnitude : magnitude;
}

static void fill_operands(const ejki_peak *peak, unsigned char *operands) {
    size_t step = ejk_dtype_size(peak->dtype), register_bytes = (size_t)peak->register_bytes;
    size_t negated = (size_t)peak->negated * register_bytes;
    size_t positive = (size_t)peak->registers * register_bytes - negated;
    uint64_t state = 1;
    for (size_t at = 0; at < positive; at += step) {
        double value = next_random(&state);
        put(peak->dtype, operands + at, value);
        if (at >= positive - negated) put(peak->dtype, operands + at + negated, -value);
    }
}

struct job {
    const ejki_peak *peak;
    _Alignas(64) unsigned char operands[EJKI_PEAK_OPERAND_BYTES];
};

static double run_job(void *job_, int64_t index) {
    (void)index;
    const struct job *job = job_;
    job->peak->run(job->operands, job->peak->iterations);
    return job->peak->flops * job->peak->iterations;
}

static double run_crowded(void *job_, int64_t index) {
    (void)index;
    const struct job *job = job_;
    job->peak->crowded(job->operands, job->peak->iterations);
    return job->peak->flops * job->peak->iterations;
}

static ejk_status check(ejk_isa isa, ejk_dtype dtype) {
    ejk_isa known;
    if (ejk_isa_from_name(ejk_isa_name(isa), &known) != EJK_OK)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "isa is %d, which is no tier", (int)isa);
    if (dtype != EJK_DTYPE_F32 && dtype != EJK_DTYPE_F64 && dtype != EJK_DTYPE_BF16 &&
        dtype != EJK_DTYPE_I8)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "dtype is %s; expected float32, float64, bfloat16 or int8",
                         ejk_dtype_name(dtype));
    if (!ejk_cpu()->tiers[isa])
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "isa is %s, which this processor lacks",
                         ejk_isa_name(isa));
    return EJK_OK;
}

ejk_status ejk_measure_peak(ejk_threads *threads, ejk_isa isa, ejk_dtype dtype, double seconds,
                            double *flops_per_second_out) {
    if (!flops_per_second_out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "flops_per_second_out is NULL");
    EJKI_TRY(check(isa, dtype));
    EJKI_TRY(ejki_check_seconds(seconds));
    struct job job = {.peak = find_peak(isa, dtype)};
    if (!job.peak)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "isa %s has no multiply-add of dtype %s on this processor",
                         ejk_isa_name(isa), ejk_dtype_name(dtype));
    fill_operands(job.peak, job.operands);
    return ejki_measure_rate(threads, run_job, &job, seconds, 0, flops_per_second_out);
}

ejk_status ejk_measure_core_share(ejk_threads *threads, double seconds, double *share_out) {
    enum { PAIRS = 5 }; /* a clock that changes meets one of them */
    if (!share_out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "share_out is NULL");
    EJKI_TRY(ejki_check_seconds(seconds));
    struct job job = {.peak = find_peak(ejk_cpu()->isa, EJK_DTYPE_F32)};
    if (!job.peak || !job.peak->crowded)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "there is no loop for isa %s that notices a neighbour",
                         ejk_isa_name(ejk_cpu()->isa));
    fill_operands(job.peak, job.operands);
    double shares[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        double alone, crowded;
        EJKI_TRY(ejki_measure_rate(threads, run_job, &job, seconds / (2 * PAIRS), 0, &alone));
        EJKI_TRY(ejki_measure_rate(threads, run_crowded, &job, seconds / (2 * PAIRS), 0, &crowded));
        shares[i] = crowded / alone;
    }
    *share_out = ejki_quantile(shares, PAIRS, 0.5);
    return EJK_OK;
}

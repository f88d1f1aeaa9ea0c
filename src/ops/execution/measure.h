/* SPDX-License-Identifier: Apache-2.0 */
/* How everything here is timed: calls repeated until they are long against the clock, reported per call. */
#ifndef EJKI_EXECUTION_MEASURE_H
#define EJKI_EXECUTION_MEASURE_H

#include <ejkernel/device.h>
#include <ejkernel/tuning.h>

/* A clock resolves some ten nanoseconds and a thread's waking up costs some ten microseconds. */
#define EJKI_SAMPLE_S 200e-6

/* What is timed: one of several candidates, or the only one. */
typedef struct ejki_subject {
    ejk_status (*run)(void *user, int32_t index);
    void *user;
    int32_t index;
    ejk_clock clock;
    /* In place of a clock around the calls; NULL = the clock. */
    ejk_status (*time)(void *user, int32_t index, int64_t calls, double *seconds);
    /* Before the runs that follow each other; NULL = nothing is to be put back. */
    ejk_status (*restore)(void *user, int32_t index);
} ejki_subject;

double ejki_clock_now(const ejk_clock *clock);

/* Seconds since `start`; 0 where a clock ran backwards. */
double ejki_clock_since(const ejk_clock *clock, double start);

/* Runs it that often without a look at the clock. */
ejk_status ejki_run_calls(const ejki_subject *subject, int64_t calls);

/* Seconds of a call, the mean of `calls` in a row. */
ejk_status ejki_time_calls(const ejki_subject *subject, int64_t calls, double *seconds);

/* How many calls of `each` seconds last that long, at least one. */
int64_t ejki_calls_lasting(double sample_s, double each);

/* Finds how many calls make a sample of `sample_s`; gives that sample's seconds of a call too. */
ejk_status ejki_calibrate(const ejki_subject *subject, double sample_s, int64_t *calls,
                          double *seconds);

/* The value of an option that must not be negative. */
ejk_status ejki_sample_option(const ejk_opt_float *option, double *out);
ejk_status ejki_count_option(const ejk_opt_int *option, const char *name, int64_t fallback,
                             int32_t least, int32_t *out);

/* A plain number of which 0 means `fallback`. */
ejk_status ejki_plain_option(int32_t option, const char *name, int32_t fallback, int32_t *out);

/* Mean and population standard deviation; both 0 of none. */
void ejki_mean_std(const double *values, int64_t count, double *mean, double *std);

/*
 * Around calls of a user's functions whose failures are collected: hides the thread's last sentence, so that
 * one that fails without a sentence is not given an older failure's; and brings it back after a success.
 */
char *ejki_hide_sentence(void);
void ejki_show_sentence(char *hidden, ejk_status status);

/* The sentence of a failure that just happened in between, or what its status means. */
const char *ejki_sentence_of(ejk_status status);

/* As ejk_tensors_agree(), on threads, or with NULL on this one; the order of sums depends on that. */
ejk_status ejki_tensors_agree(ejk_threads *threads, const ejk_tensor *expected,
                              const ejk_tensor *actual, double tolerance, bool *agrees,
                              double *difference);

/* Random numbers that a seed repeats on every machine (S. Vigna's splitmix64): one below `limit` > 0. */
static inline int64_t ejki_random_below(uint64_t *state, int64_t limit) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)limit);
}

/* Puts the first `picked` of a shuffled order in front. */
void ejki_shuffle(uint64_t *state, int32_t *order, int32_t count, int32_t picked);

#endif

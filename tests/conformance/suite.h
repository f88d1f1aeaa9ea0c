/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every implementation on random calls of its operation, against what the call's case expects and against itself:
 *   accuracy    within SEMANTICS section 5; all of each result written and nothing else, nothing beyond an input read
 *   threads     the same bits with 2, 3 and 4 threads as with one
 *   again       the same bits a second time (GPU)
 *   slice       the same bits when a part is computed alone
 *   neighbours  the same bits when inputs of the rest are something else
 *   refusal     calls with a wrong type, length, layout or address fail and write nothing
 *   derivative  gradients in f64 against central differences of the operation itself
 *
 * Half of an operation's cases, all of them with EJK_TEST_FULL and on a GPU.
 * EJK_TEST_SEED and EJK_TEST_CASES choose the cases, EJK_TEST_FILTER implementations by a part of "algorithm name";
 * after EJK_TEST_SECONDS none is begun. A failure prints the variables that repeat it. Cases run in a child, so that a
 * fault names its case and the others still run; EJK_TEST_PROCESSES children share them.
 */
#ifndef TESTS_CONFORMANCE_SUITE_H
#define TESTS_CONFORMANCE_SUITE_H

#include "conformance/placement.h"

enum check { ACCURACY, THREADS, AGAIN, SLICE, NEIGHBOURS, REFUSAL, DERIVATIVE, CHECKS };
extern const char *const check_names[CHECKS];

enum { MOST_LINES = 512 };

/* An implementation under one of the operations that it computes. */
struct line {
    const ejk_implementation *implementation;
    const ejk_kernel *kernel;
    const struct operation *operation;              /* NULL: nobody wrote a case */
    const ejk_implementation *other[EJK_MAX_STEPS]; /* of a kernel of steps: what runs the others */
};

/* The case of an operation; NULL if nobody wrote one. */
const struct operation *case_of(const ejk_kernel *kernel);
/* True if an operation is among those named, or none is. */
bool operation_is_named(const ejk_kernel *kernel, int count, char **names);
/* True if it computes the operation, or a step of it whose other steps have implementations beside it. */
bool line_computes(const ejk_kernel *kernel, const struct operation *o,
                   const ejk_implementation *e);
/* True if the case says that no call of the operation is for the line: the line's name has one of its words. */
bool line_serves_none(const struct line *line);
/* Lines of the operations named, a kernel's one after the other, for a GPU or all others: how many. */
int32_t lines_of(struct line *lines, bool gpu, int count, char **names);

/* What is known of a line. */
struct tally {
    int64_t cases, runs[CHECKS], failures[CHECKS], crashes;
    double worst; /* largest part of a tolerance in use */
};

/* One child's; outlives it. */
struct progress {
    int64_t next;     /* case to begin with */
    int32_t line;     /* being tried: who a fault is blamed on */
    char doing[4096]; /* and with what */
    struct tally tally[MOST_LINES];
    bool done;
};

struct suite {
    const struct line *lines;
    int32_t count;
    bool gpu;   /* lines for a GPU, or all others */
    bool full;  /* as many cases as the operation says, or half of them */
    bool quiet; /* failures are expected */
    uint64_t seed;
    int64_t cases; /* 0 = as the operation says */
    const char *filter;
    int64_t budget;
    double end;                 /* no case begins later, in seconds of the clock; 0 = never */
    const uint64_t *remembered; /* seeds at which something was wrong once */
    int32_t remembered_count;

    int32_t processes;
    struct progress *progress; /* of each process */
    ejk_threads *threads[5];   /* by count, from 2 */
    ejk_context *context;      /* of the child */
};

/* Reads the variables above. */
void suite_open(struct suite *suite);
/* Tries all lines; returns failures, crashes counted, and reports. */
int64_t suite_run(struct suite *suite);
void suite_close(struct suite *suite);
/* Of all processes. */
struct tally suite_tally(const struct suite *suite, int32_t line);

/* ---- For the files of the harness -------------------------------------------------------------------- */

/* One line at one call. */
struct trial {
    struct suite *suite;
    struct progress *progress;
    int32_t index;
    const struct line *line;
    struct call *call;
    struct placement *placement;
    int64_t parameters[EJK_MAX_PARAMETERS];
    char text[3000];
};

void trial_begin(struct trial *t, enum check check);
void trial_fail(struct trial *t, enum check check, const char *why);
/* Fallbacks half of the time, else a bound of each, or anything within them, small steps more often. */
void trial_choose_parameters(struct trial *t, struct random *r);
/* All checks. */
void trial_run(struct trial *t);

/* Arguments checked and resolved; the sentence of a refusal is ejk_last_error()'s. */
struct prepared {
    _Alignas(64) unsigned char problem[EJK_MAX_PROBLEM_SIZE];
    const void *given; /* the problem, or the arguments */
};
ejk_status prepare_call(const ejk_kernel *kernel, const void *args, struct prepared *out);
/* True if the line can compute it. */
bool line_applies(const struct line *line, const struct prepared *prepared);

enum outcome { DONE, REFUSED, FAILED };
/* Runs prepared arguments of the trial's placement. */
enum outcome run_line(struct trial *t, const struct prepared *prepared, ejk_threads *threads,
                      enum check check);

/* Checks of their own files. */
void check_slice(struct trial *t, const struct taken *whole, struct random *r);
void check_refusal(struct trial *t, struct random *r);
void check_derivative(struct trial *t, const struct taken *got, struct random *r);

#endif

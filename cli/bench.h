/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `ejk bench` share. */
#ifndef EJK_CLI_BENCH_H
#define EJK_CLI_BENCH_H

#include "call.h"
#include "compare.h"
#include "gpu.h"
#include "options.h"
#include "shape.h"

enum { BENCH_MOST_REPETITIONS = 1000 };

/* What is asked for. */
typedef struct bench_options {
    texts shapes;
    const char *dtype, *with, *threads, *isa, *platform, *config, *against, *layout, *plot, *device;
    layout_words data;
    double seconds;
    int32_t repeat; /* 0 = as `seconds` allows; at most BENCH_MOST_REPETITIONS */
    bool cold, plain, json, help;
} bench_options;

/* ---- bench_case.c: a shape with memory to run on ---------------------------------------------------- */

/*
 * One shape of an operation, planned, with several copies of its inputs, so that runs which take them in
 * turn find none of them in a cache.
 */
typedef struct bench_case {
    op_call call; /* the arguments, tensors without memory */
    ejk_plan *plan;
    ejk_cost cost; /* by what is visible, so far as shape and layout tell */
    double scores; /* visible ones of a head; 0 = not known */
    void *
        *args; /* `copies` structs of arguments, each with inputs of its own; results are shared */
    ejk_states **states; /* one a copy: what runs update in place, as it was at first */
    int64_t copies, next;
    int64_t input_bytes; /* of all copies */
    bool cold;           /* runs find their inputs in memory, not in a cache */
    int32_t device;      /* that the memory is of; -1 = the CPU */
    void *memory;
} bench_case;

/* What a case is made from. */
typedef struct bench_request {
    const op_call *arguments; /* those that are no tensors */
    /* The same of the plain call, platform and configuration only; NULL: visible scores are not counted. */
    const op_call *plain;
    call_shape shape;
    bool cold;      /* rotate inputs, whatever the arithmetic intensity */
    int32_t device; /* on which tensors lie; -1 = the CPU */
} bench_request;

bool bench_case_open(const bench_request *request, ejk_context *context, bench_case *out);

/*
 * The plain call beside a request: dense, without masks, biases, sinks and caps. Packed sequences are
 * sequences of one length, as many with as many scores.
 */
bench_request bench_plain(const bench_request *request);
void bench_case_close(bench_case *bench);

/* Puts back what runs have updated in place, in all copies. */
bool bench_case_restore(const bench_case *bench);

/* Runs once, on the next copy of the inputs; on a GPU it is only enqueued. */
bool bench_case_run(bench_case *bench);

/* The arguments of the next run. */
const void *bench_case_next(bench_case *bench);

/* Memory for reading and writing, in large pages where they are granted. Freed with free(). */
void *bench_allocate(int64_t bytes);

/* ---- bench_measure.c: the method -------------------------------------------------------------------- */

/* Rates of one shape, in units per second, and shares of the ceilings around each repetition. */
typedef struct bench_rate {
    double rate;    /* at the median time */
    double ceiling; /* median */
    double share, share_max;
    double share_undisturbed; /* the same median over undisturbed repetitions only; 0 = none was */
} bench_rate;

/* Ways of calling an operation. */
enum { BENCH_PLAN, BENCH_CALL, BENCH_EXECUTOR, BENCH_WAYS };

/* Seconds that they cost on a tiny shape, medians of batches. */
typedef struct bench_host {
    double seconds[BENCH_WAYS];
    double seconds_undisturbed[BENCH_WAYS]; /* 0 = no batch was undisturbed */
    int32_t batches, undisturbed;           /* of each way; -1 = unknown */
} bench_host;

/* What a GPU adds to a line. */
typedef struct bench_gpu {
    int32_t device;
    ejk_gpu_times times;                /* the line's time is that alone */
    ejk_gpu_ceiling peak, read;         /* the mean of before and after */
    double compute_share, memory_share; /* in a row */
    double over_plain;                  /* in a row; as the line's, which is alone */
    ejk_host_cost host;                 /* of a tiny call's plan */
    double bare_launch;
    ejk_first_use first;
} bench_gpu;

/* One line of the report. */
typedef struct bench_result {
    char *shape;       /* all symbols, "B=1,T=8" */
    json_t *plan;      /* as ejk_plan_describe() has it */
    json_t *arguments; /* those that are set */
    ejk_dtype dtype;
    int32_t threads;
    ejk_cost cost;
    bool cold;
    int64_t rotated_bytes, copies;
    int32_t repetitions;
    int32_t
        undisturbed; /* repetitions before and after which the cores were not shared; -1 = unknown */
    int64_t runs;    /* in each */
    double time, time_p10, time_p90;
    bench_rate compute, memory;
    bench_host host;
    const char *lengths; /* of packed sequences, as they were given, or NULL */
    double alive;        /* part of the blocks that was asked for, or 0 */
    double scores;       /* visible ones of a head, or 0 */
    char *plain;         /* shape of the call measured beside it, or NULL */
    double over_plain, over_plain_p10, over_plain_p90; /* time per visible score over that one's */
    const char *against;                               /* platform compared with, or NULL */
    difference difference;
    double against_time;
    bench_gpu gpu; /* if `on_gpu` */
    bool on_gpu;
} bench_result;

/*
 * Measures a case that runs rightly; fills everything but shapes, arguments, host costs and comparison. A
 * second case, or NULL, is measured in turn with it.
 */
bool bench_measure(bench_case *bench, bench_case *plain, ejk_context *context,
                   const bench_options *wish, bench_result *out);

/* Measures what calling costs. */
bool bench_measure_host(bench_case *tiny, ejk_context *context, bench_host *out);

/* ---- bench_gpu.c: the same on a GPU ------------------------------------------------------------------ */

bool bench_gpu_measure(bench_case *bench, bench_case *plain, const bench_options *wish,
                       bench_result *out);

/* Calls of a tiny case: what the host needs for them. */
bool bench_gpu_measure_host(bench_case *tiny, ejk_context *context, bench_host *host,
                            bench_gpu *out);

/* What the first call of this shape takes. */
bool bench_gpu_measure_first(const bench_case *bench, ejk_context *context, bench_gpu *out);

/* Prints the table, and what stands below it. */
bool bench_gpu_print(const ejk_kernel *kernel, const bench_result *results, int count);

/* The members that a GPU adds, and the machine that it is; new references. */
json_t *bench_gpu_json(const bench_result *result);
json_t *bench_gpu_machine(int32_t device);

/* The value below which `part` of the values lie, between neighbours; 0 of none. Sorts them. */
double bench_quantile(double *values, int32_t count, double part);

/* ---- bench_verify.c --------------------------------------------------------------------------------- */

/* Runs once on results that are filled with NaN, and looks at what comes out. */
bool bench_verify(bench_case *bench);

/* Runs the same inputs on another platform and compares. */
bool bench_compare(bench_case *bench, ejk_context *context, const char *platform,
                   bench_result *out);

/* ---- bench_mask_info.c: masks, which are no operation ------------------------------------------------ */

/* `ejk bench mask_info`; `words` are those behind it. */
int bench_mask_info(int count, char **words);

/* ---- bench_report.c, plot.c ------------------------------------------------------------------------- */

/* Prints all results. */
bool bench_report(const ejk_kernel *kernel, const bench_result *results, int count, bool json);
void bench_result_close(bench_result *result);

/* Draws a roofline. */
bool bench_plot(const char *path, const ejk_kernel *kernel, const bench_result *results, int count);

/* Prints the operation's name and those of its arguments that the shape does not tell. */
void bench_print_arguments(const ejk_kernel *kernel, const json_t *arguments);

/* A share in percent, or a dash. */
void bench_add_share(text_table *table, double share);

/* The text of a plan's member, as "isa". */
const char *bench_plan_text(const bench_result *result, const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `ejk bench` share. */
#ifndef EJK_CLI_BENCH_H
#define EJK_CLI_BENCH_H

#include "call.h"
#include "compare.h"
#include "gpu.h"
#include "line.h"
#include "options.h"

enum { BENCH_MOST_REPETITIONS = 1000 };

/* What is asked for. */
typedef struct bench_options {
    texts shapes;
    call_words words;
    const char *suite, *threads, *against, *beside, *peer, *plot;
    double seconds;
    int32_t repeat; /* 0 = as `seconds` allows; at most BENCH_MOST_REPETITIONS */
    int32_t row;    /* launches in a row, on a GPU; 0 = 10 */
    bool cold, plain, plan, json, help;
    bool graph; /* on a GPU, from a graph too */
} bench_options;

/* ---- bench_case.c: a call with memory to run on ----------------------------------------------------- */

/*
 * A call, planned, with several copies of its inputs, so that runs which take them in turn find none of them in a
 * cache.
 */
typedef struct bench_case {
    op_call call; /* the arguments, tensors without memory but for results */
    ejk_plan *plan;
    ejk_cost cost; /* of what the data leave to be done */
    void *
        *args; /* `copies` structs of arguments, each with inputs of its own; results are shared */
    ejk_states **states; /* one a copy: what runs update in place, as it was at first */
    int64_t copies, next;
    int64_t input_bytes; /* of all copies */
    bool cold;           /* runs find their inputs in memory, not in a cache */
    int32_t device;      /* that the memory is of; -1 = the CPU */
    void *stream;        /* the context's, on a GPU */
    void *memory;
} bench_case;

/* Whether runs find inputs in caches. */
typedef enum bench_rotation {
    BENCH_ROTATE_BY_INTENSITY, /* copies rotate where the plan lives from memory */
    BENCH_ROTATE,              /* they do, whatever the arithmetic intensity */
    BENCH_KEEP,                /* one copy: host cost is that of a call whose inputs are at hand */
} bench_rotation;

/* What a case is made from. */
typedef struct bench_request {
    const op_call *call;      /* as line_read() has it */
    const ejk_inputs *inputs; /* what is wished of their contents */
    bench_rotation rotation;
    int32_t device; /* on which tensors lie; -1 = the CPU */
    void *stream;   /* the context's */
} bench_request;

bool bench_case_open(const bench_request *request, ejk_context *context, bench_case *out);
void bench_case_close(bench_case *bench);

/* Puts back what runs have updated in place, in all copies. */
bool bench_case_restore(const bench_case *bench);

/* Runs once, on the next copy of the inputs; on a GPU it is only enqueued. */
bool bench_case_run(bench_case *bench);

/* Whether what runs write counts beside what they read: more than an eighth of all, or a state. */
bool bench_case_writes(const bench_case *bench);

/* The arguments of the next run. */
const void *bench_case_next(bench_case *bench);

/* Bytes from a tensor's lowest element to behind its highest; `low` is the place of the first of them. */
int64_t bench_span(const ejk_tensor *tensor, char **low);

/* Memory for reading and writing, in large pages where they are granted. Freed with free(). */
void *bench_allocate(int64_t bytes);

/* ---- bench_watch.c: other programs on the same cores ------------------------------------------------ */

typedef struct watched_thread watched_thread;

/* The threads of a process, since the last look. */
typedef struct bench_watch {
    int process;
    watched_thread *threads;
    int32_t count;
    double when;
} bench_watch;

/* Begins to watch the threads that a process has now, 0 = this. Closed by the caller also after a failure. */
bool bench_watch_open(int process, bench_watch *out);
void bench_watch_close(bench_watch *watch);

/* Part of the time since the last look that a thread was ready to run and had no core: of the one that lost most. */
double bench_watch_lost(bench_watch *watch);

/* ---- bench_measure.c: the method -------------------------------------------------------------------- */

/* Rates of one shape, in units per second, and shares of the ceilings around each repetition. */
typedef struct bench_rate {
    double rate;    /* at the median time */
    double ceiling; /* median */
    double share, share_max;
} bench_rate;

/* Ways of calling an operation. */
enum { BENCH_PLAN, BENCH_CALL, BENCH_EXECUTOR, BENCH_WAYS };

/* Seconds that they cost on a tiny shape, medians of batches. */
typedef struct bench_host {
    double seconds[BENCH_WAYS];
    int32_t batches, undisturbed; /* of each way; as of a result's repetitions */
} bench_host;

/* What a GPU adds to a line. */
typedef struct bench_gpu {
    int32_t device;
    ejk_gpu_times times;                /* the line's time is that alone */
    ejk_gpu_ceiling peak, read;         /* the mean of before and after */
    double compute_share, memory_share; /* in a row */
    double graph_compute_share, graph_memory_share;
    double over_beside;          /* in a row; as the line's, which is alone */
    double peer_time, over_peer; /* in a row */
    ejk_host_cost host;          /* of a tiny call's plan */
    double bare_launch;
    ejk_first_use first;
} bench_gpu;

/* A call that is measured in turn with another: its time for a FLOP over that one's. */
typedef struct bench_quotient {
    double median, p10, p90;
} bench_quotient;

/* One row of the report. */
typedef struct bench_result {
    const ejk_kernel *kernel;
    char *problem;     /* the line */
    char *shape;       /* all symbols, "B=1,T=8" */
    json_t *plan;      /* as ejk_plan_describe() has it */
    json_t *arguments; /* those that are set */
    ejk_dtype dtype;
    int32_t threads;
    ejk_cost cost;
    bool cold;
    bool writes; /* as bench_case_writes() has it */
    int64_t rotated_bytes, copies;
    int32_t repetitions;
    int32_t undisturbed; /* those that count, or 0 where all do; -1 = unknown */
    double lost;         /* part of the time that a thread waited for its core; median */
    double
        core_share; /* speed of cores beside their other hardware thread; median, NaN = unknown */
    int64_t runs;   /* in each */
    double time, time_p10, time_p90;
    bench_rate compute, memory;
    bench_host host;
    char *beside; /* the line of the call measured beside it, or NULL */
    bench_quotient over_beside;
    const char *against; /* platform compared with, or NULL */
    difference difference;
    json_t *differences; /* of all results, by name */
    double against_time;
    char *peer, *peer_skips; /* its name, and why it did not run; or NULL */
    double peer_time;
    bench_quotient over_peer; /* own time over the peer's */
    double peer_error;        /* of its first result; below 0 = none was given */
    bench_gpu gpu;            /* if `on_gpu` */
    bool on_gpu;
} bench_result;

/* ---- bench_peer.c: a program of others that computes the same ------------------------------------------ */

typedef struct bench_peer bench_peer;

/* Starts a script of Python; docs/howto/benchmarking.md has the protocol. */
bool bench_peer_open(const char *script, bench_peer **out);
void bench_peer_close(bench_peer *peer);

/*
 * Gives it the call of a row, whose first copy of the inputs is used. `out` gets its name, or why it does not
 * compute this. Compares its first result, if it wrote one.
 */
bool bench_peer_begin(bench_peer *peer, const bench_case *bench, bench_result *out);

/* Has it run the call and says how long one took. `alone`: on a GPU, behind memory that is set. */
bool bench_peer_run(bench_peer *peer, int64_t runs, bool alone, double *seconds);

/* Its process. */
int bench_peer_process(const bench_peer *peer);

/* What a case is measured in turn with; NULL = nothing. */
typedef struct bench_beside {
    bench_case *other;
    bench_peer *peer;
} bench_beside;

/*
 * Measures a case that runs rightly; fills everything but shapes, arguments, host costs and comparison.
 */
bool bench_measure(bench_case *bench, const bench_beside *beside, ejk_context *context,
                   const bench_options *wish, bench_result *out);

/* Measures what calling costs. */
bool bench_measure_host(bench_case *tiny, ejk_context *context, bench_host *out);

/* ---- bench_gpu.c: the same on a GPU ------------------------------------------------------------------ */

bool bench_gpu_measure(bench_case *bench, const bench_beside *beside, const bench_options *wish,
                       bench_result *out);

/* Calls of a tiny case: what the host needs for them. */
bool bench_gpu_measure_host(bench_case *tiny, ejk_context *context, bench_host *host,
                            bench_gpu *out);

/* What the first call of this shape takes. */
bool bench_gpu_measure_first(const bench_case *bench, ejk_context *context, bench_gpu *out);

/* Prints the table, and what stands below it. */
bool bench_gpu_print(const bench_result *results, int count);

/* The members that a GPU adds, and the machine that it is; new references. */
json_t *bench_gpu_json(const bench_result *result);
json_t *bench_gpu_machine(int32_t device);

/* The value below which `part` of the values lie, between neighbours; 0 of none. Sorts them. */
double bench_quantile(double *values, int32_t count, double part);

/* ---- bench_verify.c --------------------------------------------------------------------------------- */

/* Runs once on results that are filled with NaN, and looks at what comes out. */
bool bench_verify(bench_case *bench);

/* The tensor where the CPU can read it: itself, or a copy whose memory the caller frees. */
bool bench_fetch(const bench_case *bench, const ejk_tensor *tensor, ejk_tensor *out, void **memory);

/* Runs the same inputs on another platform and compares. */
bool bench_compare(bench_case *bench, ejk_context *context, const char *platform,
                   bench_result *out);

/* ---- bench_mask_info.c: masks, which are no operation ------------------------------------------------ */

/* `ejk bench mask_info`; `words` are those behind it. */
int bench_mask_info(int count, char **words);

/* ---- bench_report.c, plot.c ------------------------------------------------------------------------- */

/* A line on stderr for row `number` of several, so that they are known if the rest does not come. */
void bench_tell(const bench_result *result, int number, int total);

/* Prints all results. */
bool bench_report(const bench_result *results, int count, bool json);

/* Prints what would be measured: results have plans only. */
bool bench_report_plans(const bench_result *results, int count, bool json);
void bench_result_close(bench_result *result);

/* Draws a roofline. */
bool bench_plot(const char *path, const bench_result *results, int count);

/* The text of a plan, as JSON; a new reference, NULL after a sentence. */
json_t *bench_describe(const ejk_plan *plan);

/* What makes a result doubtful, as a list of sentences; a new reference. */
json_t *bench_warnings(const bench_result *result);

/* Prints them, each in a line of its own, and what was measured beside the call. */
void bench_print_warnings(const bench_result *result);
void bench_print_beside(const bench_result *result);

/* A share in percent, or a dash. */
void bench_add_share(text_table *table, double share);

/* The text of a plan's member, as "isa". */
const char *bench_plan_text(const bench_result *result, const char *name);

#endif

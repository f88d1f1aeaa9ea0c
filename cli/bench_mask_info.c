/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ejk bench mask_info`: what processing masks costs. Masks that are held as numbers take time and memory;
 * masks that are held as elements have to be read, so that their measure is a share of the bandwidth of
 * reading memory, taken around each run on as many threads. These come from more memory than caches hold.
 */
#include "bench.h"
#include "machine.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { STRUCTURED = 1048576, DENSE = 16384, SEGMENTED = 8192, BLOCK = 512, WINDOW = 4096 };
enum { SEGMENTS = 16, LEAST_RUNS = 3, MOST_COPIES = 64, MASK_CASES = 13 };

#define CEILING_SECONDS 0.05

typedef enum mask_work {
    WORK_STATIC,
    WORK_DKV,
    WORK_DYNAMIC,
    WORK_DYNAMIC_DKV,
    WORK_SEGMENTS
} mask_work;
typedef enum mask_content { HELD_CAUSAL, HELD_LOCAL, CAUSAL, SEGMENT, RANDOM } mask_content;

static const struct mask_case {
    mask_work work;
    mask_content content;
    int64_t side;
} mask_cases[MASK_CASES] = {
    {WORK_STATIC, HELD_CAUSAL, STRUCTURED}, {WORK_DKV, HELD_CAUSAL, STRUCTURED},
    {WORK_STATIC, HELD_LOCAL, STRUCTURED},  {WORK_DKV, HELD_LOCAL, STRUCTURED},
    {WORK_STATIC, CAUSAL, DENSE},           {WORK_DKV, CAUSAL, DENSE},
    {WORK_STATIC, RANDOM, DENSE},           {WORK_DKV, RANDOM, DENSE},
    {WORK_DYNAMIC, CAUSAL, DENSE},          {WORK_DYNAMIC_DKV, CAUSAL, DENSE},
    {WORK_SEGMENTS, SEGMENT, SEGMENTED},    {WORK_SEGMENTS, CAUSAL, SEGMENTED},
    {WORK_SEGMENTS, RANDOM, SEGMENTED},
};

static const char *const work_names[] = {"process_mask", "process_mask_dkv", "process_dynamic_mask",
                                         "process_dynamic_mask_dkv", "mask_to_segment_ids"};
static const char *const content_names[] = {"causal", "local", "dense causal", "dense segments",
                                            "dense random"};

typedef struct mask_wish {
    double seconds;
    int32_t threads;
    bool json, help;
} mask_wish;

/* A case on its way: what it works on, and on what the ceiling is measured. */
typedef struct mask_bench {
    const struct mask_case *what;
    ejk_threads *threads;
    uint8_t *elements; /* of all copies, which runs take in turn; NULL: held as numbers */
    int64_t copies, next;
    ejk_splash_mask *heads[MOST_COPIES]; /* one a copy */
    void *scratch;
    int64_t scratch_bytes;
    int32_t *ids[2];
    int64_t result_bytes;
} mask_bench;

typedef struct mask_result {
    double time, p10, p90;
    double read, share; /* medians; 0 = nothing is read */
    double peak_bytes;  /* of the process, ever */
    int64_t input_bytes, result_bytes, copies;
    int32_t runs;
} mask_result;

/* ---- Masks ----------------------------------------------------------------------------------------- */

static void fill_row(uint8_t *row, mask_content content, int64_t i, int64_t side) {
    uint64_t bits = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15) + 1;
    const int64_t segment = side / SEGMENTS, first = i / segment * segment;
    memset(row, 0, (size_t)side);
    if (content == CAUSAL) memset(row, 1, (size_t)i + 1);
    if (content == SEGMENT) memset(row + first, 1, (size_t)segment);
    for (int64_t k = 0; content == RANDOM && k < side; k++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        row[k] = (uint8_t)(bits >> 63);
    }
}

static bool fill(mask_bench *bench) {
    const int64_t side = bench->what->side, size = side * side;
    bench->copies = (ejk_rotation_bytes(ejk_threads_count(bench->threads)) + size - 1) / size;
    if (bench->copies > MOST_COPIES) bench->copies = MOST_COPIES;
    bench->elements = bench_allocate(bench->copies * size);
    if (!bench->elements) return false;
    for (int64_t i = 0; i < side; i++)
        fill_row(bench->elements + i * side, bench->what->content, i, side);
    for (int64_t c = 1; c < bench->copies; c++)
        memcpy(bench->elements + c * size, bench->elements, (size_t)size);
    return true;
}

static ejk_tensor elements_of(const mask_bench *bench, int64_t copy) {
    const int64_t side = bench->what->side;
    return ejk_tensor_2d(bench->elements + copy * side * side, EJK_DTYPE_BOOL, side, side);
}

static bool make_heads(const mask_bench *bench, int64_t copy, ejk_splash_mask **out) {
    const int64_t shape[2] = {bench->what->side, bench->what->side};
    const ejk_window window = {ejk_int(WINDOW), ejk_int(0)};
    ejk_splash_mask *mask = NULL;
    ejk_status status;
    if (bench->what->content == HELD_CAUSAL) {
        status = ejk_causal_mask_create(shape, 0, NULL, &mask);
    } else if (bench->what->content == HELD_LOCAL) {
        status = ejk_local_mask_create(shape, window, 0, NULL, &mask);
    } else {
        const ejk_tensor elements = elements_of(bench, copy);
        status = ejk_numpy_mask_borrow(&elements, &mask);
    }
    if (status == EJK_OK)
        status = ejk_multi_head_mask_create((const ejk_splash_mask *const *)&mask, 1, out);
    ejk_splash_mask_release(mask);
    return succeeded(status);
}

static bool prepare(mask_bench *bench) {
    const int64_t side = bench->what->side;
    bench->copies = 1;
    if (bench->what->content >= CAUSAL) {
        bench->scratch_bytes = ejk_rotation_bytes(ejk_threads_count(bench->threads));
        bench->scratch = bench_allocate(bench->scratch_bytes);
        if (!bench->scratch || !fill(bench)) return false;
    }
    for (int i = 0; bench->what->work == WORK_SEGMENTS && i < 2; i++) {
        bench->ids[i] = malloc((size_t)side * sizeof *bench->ids[i]);
        if (!bench->ids[i]) return report_error("no memory for %lld ids", (long long)side);
    }
    for (int64_t i = 0; i < bench->copies; i++)
        if (!make_heads(bench, i, &bench->heads[i])) return false;
    return true;
}

static void release(mask_bench *bench) {
    for (int64_t i = 0; i < bench->copies; i++) ejk_splash_mask_release(bench->heads[i]);
    free(bench->elements);
    free(bench->scratch);
    free(bench->ids[0]);
    free(bench->ids[1]);
}

/* ---- Runs ------------------------------------------------------------------------------------------ */

static int64_t bytes_of(const ejk_tensor *tensor) {
    return ejk_tensor_present(tensor)
               ? ejk_tensor_count(tensor) * (int64_t)ejk_dtype_size(tensor->dtype)
               : 0;
}

static ejk_status process(const mask_bench *bench, ejk_splash_mask_info *out) {
    ejk_process_mask_args args = {.mask = bench->heads[bench->next],
                                  .block_shape = {BLOCK, BLOCK},
                                  .threads = bench->threads};
    if (bench->what->work == WORK_STATIC) return ejk_process_mask(&args, out);
    if (bench->what->work == WORK_DKV) return ejk_process_mask_dkv(&args, out);
    const int64_t side = bench->what->side;
    ejk_process_dynamic_mask_args dynamic = {
        .mask = ejk_tensor_3d(elements_of(bench, bench->next).data, EJK_DTYPE_BOOL, 1, side, side),
        .block_shape = {BLOCK, BLOCK},
        .threads = bench->threads};
    if (bench->what->work == WORK_DYNAMIC) return ejk_process_dynamic_mask(&dynamic, out);
    return ejk_process_dynamic_mask_dkv(&dynamic, out);
}

/* Releasing the result is not in the time. */
static bool run_once(mask_bench *bench, double *seconds) {
    const int64_t side = bench->what->side;
    ejk_splash_mask_info info = {.owner = NULL};
    ejk_status status;
    const double start = ejk_now();
    if (bench->what->work == WORK_SEGMENTS) {
        const ejk_tensor mask = elements_of(bench, bench->next);
        const ejk_tensor q = ejk_tensor_1d(bench->ids[0], EJK_DTYPE_I32, side);
        const ejk_tensor kv = ejk_tensor_1d(bench->ids[1], EJK_DTYPE_I32, side);
        status = ejk_mask_to_segment_ids(bench->threads, &mask, false, 1, &q, &kv);
        bench->result_bytes = bytes_of(&q) + bytes_of(&kv);
    } else {
        status = process(bench, &info);
        bench->result_bytes = bytes_of(&info.data_next) + bytes_of(&info.mask_next) +
                              bytes_of(&info.block_mask) + bytes_of(&info.partial_mask_blocks) +
                              bytes_of(&info.q_sequence);
    }
    *seconds = ejk_now() - start;
    bench->next = (bench->next + 1) % bench->copies;
    if (bench->what->work != WORK_SEGMENTS) ejk_splash_mask_info_close(&info);
    return succeeded(status);
}

static bool read_ceiling(const mask_bench *bench, double *out) {
    *out = 0;
    return !bench->scratch ||
           succeeded(ejk_measure_read_bandwidth(bench->threads, bench->scratch,
                                                bench->scratch_bytes, CEILING_SECONDS, out));
}

static double peak_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? 1024.0 * (double)usage.ru_maxrss : 0;
}

/* The first run warms up. Each other one stands between two ceilings, and counts as a share of their mean. */
static bool repeat(mask_bench *bench, double seconds, mask_result *out) {
    double times[BENCH_MOST_REPETITIONS], reads[BENCH_MOST_REPETITIONS];
    double shares[BENCH_MOST_REPETITIONS], before, after, time;
    if (!run_once(bench, &time) || !read_ceiling(bench, &before)) return false;
    const double end = ejk_now() + seconds;
    int32_t n = 0;
    for (; n < LEAST_RUNS || (n < BENCH_MOST_REPETITIONS && ejk_now() < end); n++) {
        if (!run_once(bench, &times[n]) || !read_ceiling(bench, &after)) return false;
        reads[n] = (before + after) / 2;
        shares[n] = reads[n] > 0 ? (double)out->input_bytes / times[n] / reads[n] : 0;
        before = after;
    }
    out->runs = n;
    out->time = bench_quantile(times, n, 0.5);
    out->p10 = bench_quantile(times, n, 0.1);
    out->p90 = bench_quantile(times, n, 0.9);
    out->read = bench_quantile(reads, n, 0.5);
    out->share = bench_quantile(shares, n, 0.5);
    return true;
}

static bool measure(const struct mask_case *what, ejk_threads *threads, double seconds,
                    mask_result *out) {
    mask_bench bench = {.what = what, .threads = threads};
    *out = (mask_result){.input_bytes = what->content >= CAUSAL ? what->side * what->side : 0};
    bool measured = prepare(&bench) && repeat(&bench, seconds, out);
    out->result_bytes = bench.result_bytes;
    out->copies = bench.copies;
    out->peak_bytes = peak_bytes();
    release(&bench);
    return measured;
}

/* ---- Report ---------------------------------------------------------------------------------------- */

/* All that is read and written, over what is read. */
static double with_result(const mask_result *r) {
    return (double)(r->input_bytes + r->result_bytes) / (double)r->input_bytes;
}

static json_t *result_json(const struct mask_case *what, const mask_result *r) {
    json_t *row = json_pack(
        "{s:s, s:s, s:[I, I], s:[i, i], s:i, s:f, s:f, s:f, s:I, s:I}", "function",
        work_names[what->work], "mask", content_names[what->content], "shape",
        (json_int_t)what->side, (json_int_t)what->side, "block_shape", BLOCK, BLOCK, "repetitions",
        (int)r->runs, "time_s", r->time, "time_p10_s", r->p10, "time_p90_s", r->p90, "result_bytes",
        (json_int_t)r->result_bytes, "input_bytes", (json_int_t)r->input_bytes);
    if (row && what->work == WORK_SEGMENTS) json_object_del(row, "block_shape");
    json_t *more = r->input_bytes > 0
                       ? json_pack("{s:f, s:f, s:f, s:f, s:I}", "bytes_per_second",
                                   (double)r->input_bytes / r->time, "read_bandwidth", r->read,
                                   "share_of_bandwidth", r->share, "share_with_result",
                                   r->share * with_result(r), "copies", (json_int_t)r->copies)
                       : json_pack("{s:f}", "peak_process_bytes", r->peak_bytes);
    if (row && more) json_object_update(row, more);
    json_decref(more);
    return row;
}

static bool report_json(const mask_result *results, ejk_threads *threads) {
    json_t *rows = json_array();
    for (int i = 0; i < MASK_CASES; i++)
        json_array_append_new(rows, result_json(&mask_cases[i], &results[i]));
    return print_json(json_pack("{s:o, s:i, s:o}", "machine", machine_json(), "threads",
                                (int)ejk_threads_count(threads), "results", rows));
}

static void add_row(text_table *table, const struct mask_case *what, const mask_result *r) {
    char bytes[32];
    table_add(table, "%s", work_names[what->work]);
    table_add(table, "%s", content_names[what->content]);
    table_add(table, "%lld", (long long)what->side);
    table_add(table, "%d", (int)r->runs);
    table_add_time(table, r->time);
    table_add_time(table, r->p10);
    table_add_time(table, r->p90);
    table_add(table, "%s", machine_bytes(r->result_bytes, bytes));
    if (r->input_bytes == 0) {
        for (int i = 0; i < 4; i++) table_add(table, "-");
        table_add(table, "%s", machine_bytes((int64_t)r->peak_bytes, bytes));
        return;
    }
    table_add(table, "%.2f", (double)r->input_bytes / r->time * 1e-9);
    table_add(table, "%.2f", r->read * 1e-9);
    table_add(table, "%.1f %%", 100 * r->share);
    table_add(table, "%.1f %%", 100 * r->share * with_result(r));
    table_add(table, "-");
}

static bool report_table(const mask_result *results, ejk_threads *threads) {
    static const char *const titles[] = {"function", "mask", "side", "runs",  "time",  "p10", "p90",
                                         "result",   "GB/s", "read", "share", "moved", "peak"};
    text_table table = {.align = "llrrrrrrrrrrr"};
    printf("%s, %s, %d threads, blocks of %d\n\n", ejk_device_fingerprint(), ejk_cpu()->name,
           (int)ejk_threads_count(threads), BLOCK);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (int i = 0; i < MASK_CASES; i++) add_row(&table, &mask_cases[i], &results[i]);
    return table_print(&table, 0);
}

/* ---- The command ----------------------------------------------------------------------------------- */

static bool bench_masks(const mask_wish *wish) {
    mask_result results[MASK_CASES];
    ejk_threads *threads;
    if (!succeeded(ejk_threads_create(wish->threads, &threads))) return false;
    bool measured = true;
    for (int i = 0; i < MASK_CASES && measured; i++)
        measured = measure(&mask_cases[i], threads, wish->seconds, &results[i]);
    if (measured) measured = (wish->json ? report_json : report_table)(results, threads);
    ejk_threads_destroy(threads);
    return measured;
}

static bool print_help(const option *own) {
    puts("usage: ejk bench mask_info [--flag value]...\n\n"
         "Measures the processing of masks: causal and local ones of 1,048,576 rows and columns, "
         "held\n"
         "as numbers; dense ones of 16,384; the numbering of rows and columns of dense ones of "
         "8,192.\n");
    if (!options_help(own)) return false;
    puts(
        "\nMethod. Each case runs once to warm up, then until its time is over, three times at "
        "least.\n"
        "Times are medians with the tenth and ninetieth percentile, result is the size of all "
        "arrays.\n"
        "GB/s are bytes of the mask over the time. Dense masks are as many copies, in turn, as no\n"
        "cache holds; the bandwidth of reading that much memory, on as many threads, is measured\n"
        "before and after each run, whose share is of the mean of these two; the median share is\n"
        "told, and with what is written, moved: fresh memory, which costs several times what it\n"
        "does to read as much. Peak is the most memory that the process had until then.");
    return true;
}

int bench_mask_info(int count, char **words) {
    mask_wish wish = {.seconds = 2, .threads = ejk_threads_default()};
    const option own[] = {{"threads", OPTION_COUNT, &wish.threads, "N", "default all cores"},
                          {"seconds", OPTION_NUMBER, &wish.seconds, "X", "time a case; default 2"},
                          {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
                          {"help", OPTION_ALONE, &wish.help, "", "this text"},
                          {.name = NULL}};
    if (options_ask_help(count, words)) return print_help(own) ? DONE : FAILED;
    return options_parse(count, words, own, NULL) && bench_masks(&wish) ? DONE : FAILED;
}

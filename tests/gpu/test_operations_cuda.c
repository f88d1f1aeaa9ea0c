/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on top of flash attention, and decoding, on a GPU by the library's own choice: random calls, whose error is
 * within SEMANTICS section 5, twice with the same bits, and nothing but results was written.
 *
 * EJK_TEST_PROCESSES, one for each CPU, share EJK_TEST_CASES from EJK_TEST_SEED on; after EJK_TEST_SECONDS, 100, none is
 * begun. EJK_TEST_FILTER takes one operation; EJK_TEST_EXACT as in test_flash_attention_cuda.c. Answers 77 where there is no GPU.
 */
#include "support/call_oracle.h"
#include "support/call_results.h"
#include "support/gpu_call.h"
#include "support/gpu_processes.h"
#include "support/operation_case.h"
#include "support/sparse_world.h"

#include <inttypes.h>

enum { OPERATIONS = 9 };

struct counts {
    char doing[160];
    int64_t calls[OPERATIONS], failures;
    double worst[OPERATIONS];
};
static const char *const operations[OPERATIONS] = {"blocksparse_attention",
                                                   "blocksparse_attention_vjp",
                                                   "attention",
                                                   "attention_vjp",
                                                   "scaled_dot_product_attention",
                                                   "scaled_dot_product_attention_vjp",
                                                   "flash_attention",
                                                   "attention_merge",
                                                   "attention_merge_vjp"};

struct trial {
    struct counts *counts;
    ejk_context *context;
    struct random random;
    uint64_t seed;
};

static int number_of(const char *operation) {
    int i = 0;
    while (i < OPERATIONS && strcmp(operations[i], operation) != 0) i++;
    if (i == OPERATIONS) abort();
    return i;
}

static void note_failure(struct trial *t, const char *operation, const char *why) {
    t->counts->failures++;
    printf("FAIL %s seed %" PRIu64 ": %s\n", operation, t->seed, why);
    fflush(stdout);
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

static bool same_bits(const void *got, const void *again, const ejk_field *field) {
    const ejk_tensor *a = call_tensor(got, field), *b = call_tensor(again, field);
    if (!call_writes(field) || !ejk_tensor_present(a)) return true;
    return memcmp(a->data, b->data, (size_t)ejk_tensor_count(a) * ejk_dtype_size(a->dtype)) == 0;
}

static void compare(struct trial *t, const ejk_kernel *kernel, const void *got, const void *again,
                    const void *args) {
    char why[400];
    if (!call_oracle_accepts(kernel, args, got, &t->counts->worst[number_of(kernel->op_id)], why,
                             sizeof why))
        note_failure(t, kernel->op_id, why);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        if (same_bits(got, again, field)) continue;
        snprintf(why, sizeof why, "%s has other bits the second time", field->name);
        note_failure(t, kernel->op_id, why);
    }
}

static void need_implementation(struct trial *t, const ejk_kernel *kernel, const void *args,
                                const char *part) {
    ejk_plan *plan = NULL;
    struct gpu_call call;
    char why[300];
    gpu_call_open(&call, kernel->args, args, &t->random);
    const ejk_status status = ejk_plan_create(t->context, kernel, call.args, &plan);
    const char *name = plan ? ejk_plan_implementation(plan)->name : ejk_last_error();
    if (status != EJK_OK || !strstr(name, part)) {
        snprintf(why, sizeof why, "'%.200s', expected %s", name, part);
        note_failure(t, kernel->op_id, why);
    }
    ejk_plan_destroy(plan);
    gpu_call_close(&call);
}

/* Makes a call, whose tensors hold the results of the reference, on the GPU, twice. */
static void try_call(struct operation_case *c, const ejk_kernel *kernel, const void *args) {
    struct trial *t = c->user;
    const char *filter = getenv("EJK_TEST_FILTER");
    struct gpu_call call;
    char why[700];
    if (filter && strcmp(filter, kernel->op_id) != 0) return;
    snprintf(t->counts->doing, sizeof t->counts->doing, "%s seed %" PRIu64, kernel->op_id, t->seed);
    t->counts->calls[number_of(kernel->op_id)]++;
    void *got = call_results(kernel->args, args), *again = call_results(kernel->args, args);
    gpu_call_open(&call, kernel->args, args, &t->random);
    ejk_status status = gpu_call_run(&call, t->context, kernel);
    if (status == EJK_OK) {
        if (!gpu_call_take(&call, got, why, sizeof why)) note_failure(t, kernel->op_id, why);
        status = gpu_call_run(&call, t->context, kernel);
    }
    if (status == EJK_OK) {
        if (!gpu_call_take(&call, again, why, sizeof why)) note_failure(t, kernel->op_id, why);
        compare(t, kernel, got, again, args);
    } else {
        snprintf(why, sizeof why, "%s: %.600s", ejk_status_name(status), ejk_last_error());
        note_failure(t, kernel->op_id, why);
    }
    gpu_call_close(&call);
    call_free_results(kernel->args, got);
    call_free_results(kernel->args, again);
    if (c->few_rows && t->seed % 5 == 0) need_implementation(t, kernel, args, "decode");
}

/* ---- Grids that lie ---------------------------------------------------------------------------------- */

/* Cells that name what is not there count as empty; nothing else is touched. */
static void lying_case(struct trial *t) {
    struct random *r = &t->random;
    struct world w;
    open_world(r, EJK_DTYPE_F32, LARGE, &w);
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&w.args, &w.info));
    ejk_blocksparse_attention_args bad = w.args, good = w.args;
    const int64_t cells = ejk_tensor_count(&w.args.fwd_block_mask);
    int8_t *state = room(cells, 8), *honest = room(cells, 8);
    int32_t *next = room(cells, 8);
    const ejk_tensor *from[] = {&w.args.fwd_block_mask, &w.args.fwd_data_next};
    good.fwd_block_mask = bad.fwd_block_mask =
        ejk_tensor_contiguous(state, EJK_DTYPE_I8, 3, from[0]->shape);
    good.fwd_data_next = bad.fwd_data_next =
        ejk_tensor_contiguous(next, EJK_DTYPE_I32, 3, from[1]->shape);
    EXPECT_OK(ejk_tensor_copy(from[0], &bad.fwd_block_mask));
    EXPECT_OK(ejk_tensor_copy(from[1], &bad.fwd_data_next));
    memcpy(honest, state, (size_t)cells);
    for (int64_t i = 0; i < cells; i++) {
        if (state[i] == 0 || !random_chance(r, 0.3)) continue;
        honest[i] = 0;
        if (random_chance(r, 0.5))
            state[i] = RANDOM_OF(r, ((int8_t[]){-1, 3, 127, -128}));
        else
            next[i] = RANDOM_OF(r, ((int32_t[]){-1, 1 << 20, INT32_MIN, INT32_MAX}));
    }
    struct gpu_call call;
    char why[700] = "";
    void *got = call_results(&ejk_blocksparse_attention_args_record, &bad);
    good.fwd_block_mask.data = honest;
    EXPECT_OK(call_reference(t->context, &ejk_blocksparse_attention_kernel, &good));
    gpu_call_open(&call, &ejk_blocksparse_attention_args_record, &bad, r);
    if (gpu_call_run(&call, t->context, &ejk_blocksparse_attention_kernel) != EJK_OK)
        note_failure(t, "blocksparse_attention", ejk_last_error());
    else if (!gpu_call_take(&call, got, why, sizeof why))
        note_failure(t, "blocksparse_attention", why);
    else
        compare(t, &ejk_blocksparse_attention_kernel, got, got, &good);
    gpu_call_close(&call);
    call_free_results(&ejk_blocksparse_attention_args_record, got);
    free(state);
    free(honest);
    free(next);
    close_world(&w);
}

/* ---- Masks that move to the GPU ---------------------------------------------------------------------- */

/* Makes one call with arguments on the GPU and takes its results. */
#define MOVED(call)                                                                                \
    do {                                                                                           \
        void *got = call_results(c.record, wanted);                                                \
        if ((call) != EJK_OK)                                                                      \
            note_failure(t, operation, ejk_last_error());                                          \
        else if (!gpu_call_take(&c, got, why, sizeof why))                                         \
            note_failure(t, operation, why);                                                       \
        else                                                                                       \
            compare(t, kernel, got, got, wanted);                                                  \
        call_free_results(c.record, got);                                                          \
    } while (0)

static void moved_case(struct trial *t) {
    struct random *r = &t->random;
    struct world w;
    struct gpu_call c;
    char why[700] = "";
    const char *operation = "blocksparse_attention";
    const ejk_kernel *kernel = &ejk_blocksparse_attention_kernel;
    const ejk_dtype dtype = EJK_DTYPE_F32;
    open_world(r, dtype, LARGE, &w);
    ejk_blocksparse_attention_args with_mask = w.args;
    ejk_blocksparse_mask_info there = {.owner = NULL};
    const void *wanted = &with_mask;
    poison(&w);
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&with_mask, &w.info));
    EXPECT_OK(call_reference(t->context, kernel, &with_mask));
    gpu_call_open(&c, kernel->args, &w.args, r);
    ejk_blocksparse_attention_args *own = c.args;
    MOVED(ejk_blocksparse_attention_masked(t->context, own, w.mask));
    EXPECT_OK(ejk_blocksparse_mask_info_to_device(&w.info, 0, &there));
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(own, &there));
    MOVED(ejk_blocksparse_attention(t->context, own));
    ejk_blocksparse_mask_info_close(&there);
    gpu_call_close(&c);
    /* The library-wide MaskInfo, and flash attention. */
    ejk_mask_info *segments, *info;
    ejk_tensor ids[2] = {
        ejk_tensor_contiguous(w.query_ids, EJK_DTYPE_I32, 2, (int64_t[]){w.b, w.q}),
        ejk_tensor_contiguous(w.key_ids, EJK_DTYPE_I32, 2, (int64_t[]){w.b, w.kv})};
    EXPECT_OK(ejk_mask_info_from_segments(&ids[0], &ids[1], false, NULL, &segments));
    EXPECT_OK(ejk_mask_info_apply_causal(segments, NULL, &info));
    ejk_flash_attention_args flash = dense_call(&w, w.out, w.lse), masked;
    memset(flash.platform, 0, sizeof flash.platform);
    flash.attention_mask = flash.q_segment_ids = flash.kv_segment_ids =
        (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    flash.causal = random_chance(r, 0.5);
    masked = flash;
    kernel = &ejk_flash_attention_kernel;
    operation = "flash_attention";
    wanted = &masked;
    /* Some keys were made NaN for the other mask. */
    for (int64_t i = 0; i < w.b * w.kv_heads * w.kv * w.d; i++)
        if (isnan(((float *)w.key)[i])) ((float *)w.key)[i] = 1;
    for (int64_t i = 0; i < w.b * w.kv_heads * w.kv * w.dv; i++)
        if (isnan(((float *)w.value)[i])) ((float *)w.value)[i] = 1;
    EXPECT_OK(ejk_flash_attention_set_mask_info(&masked, info));
    EXPECT_OK(call_reference(t->context, kernel, &masked));
    gpu_call_open(&c, kernel->args, &flash, r);
    for (int i = 0; i < 2; i++) MOVED(ejk_flash_attention_masked(t->context, c.args, info));
    gpu_call_close(&c);
    ejk_mask_info_release(info);
    ejk_mask_info_release(segments);
    close_world(&w);
}

/* ---- Processes --------------------------------------------------------------------------------------- */

static void run_cases(void *counts, const gpu_share *share) {
    struct trial t = {.counts = counts};
    if (ejk_context_create(NULL, &t.context) != EJK_OK) abort();
    for (uint64_t n = share->first; n < share->cases && time(NULL) < share->end; n += share->step) {
        t.seed = gpu_number("EJK_TEST_SEED", 1) + n;
        t.random.state = t.seed;
        const int kind = operation_case_kind(t.seed);
        if (kind == 2) {
            lying_case(&t);
        } else if (kind == 10) {
            moved_case(&t);
        } else {
            struct operation_case c = {
                .context = t.context, .seed = t.seed, .call = try_call, .user = &t};
            operation_case_run(&c);
        }
    }
    ejk_context_destroy(t.context);
}

static int64_t report(const struct counts *all, int processes) {
    int64_t failures = 0;
    struct counts sum = {.doing = ""};
    for (int n = 0; n < processes; n++) {
        failures += all[n].failures;
        for (int i = 0; i < OPERATIONS; i++) {
            sum.calls[i] += all[n].calls[i];
            sum.worst[i] = fmax(sum.worst[i], all[n].worst[i]);
        }
    }
    for (int i = 0; i < OPERATIONS; i++)
        printf("%-34s %4" PRId64 " calls, at most %.2f of the tolerance\n", operations[i],
               sum.calls[i], sum.worst[i]);
    return failures;
}

int main(void) {
    const gpu_work work = {
        .run = run_cases, .size = sizeof(struct counts), .cases = 240, .seconds = 100};
    void *all;
    int processes;
    if (!gpu_present()) return GPU_SKIPPED;
    int64_t failures = gpu_run_processes(&work, &all, &processes);
    failures += report(all, processes);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

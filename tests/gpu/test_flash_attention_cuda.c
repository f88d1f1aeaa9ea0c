/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every implementation of flash attention and of its gradients for GPUs, on random cases, against the oracles:
 *   accuracy   error within SEMANTICS section 5; nothing else written, inputs as they were
 *   again      the same bits a second time
 *   rows       the same bits when a part of the rows is computed alone (forward)
 *   packed     packed sequences, each by itself, within SEMANTICS section 5, and all that the reference writes in rows of
 *              none (forward; gradients of them are among the cases)
 *
 * A third of the cases are for kernels on tiles (FLASH_TILED), under EJK_TEST_TILED all of them.
 * EJK_TEST_SEED and EJK_TEST_CASES choose the cases, EJK_TEST_FILTER implementations by a part of "algorithm name".
 * Nearly every case is compiled anew, so EJK_TEST_PROCESSES, one for each CPU, share the cases; after EJK_TEST_SECONDS, 120, none is begun.
 * Under EJK_TEST_EXACT each tensor has memory of its own on the GPU, for compute-sanitizer; the canaries are left out.
 * Answers 77 where there is no GPU.
 */
#include "kernels/registry/builtin.h"
#include "operations/attention/shared/sequences.h"
#include "support/flash_run.h"
#include "support/gpu_mirror.h"
#include "support/gpu_processes.h"
#include "support/oracle.h"
#include "support/vjp_oracle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ACCURACY, AGAIN, ROWS, PACKED, CHECKS };
static const char *const check_names[CHECKS] = {"accuracy", "again", "rows", "packed"};
enum { MOST = 512, MOST_PRINTED = 3 };

/* One process' counts; outlives it. */
struct counts {
    char doing[1024];
    int64_t runs[MOST][CHECKS], failures[MOST][CHECKS], refused[MOST];
    double worst[MOST];
};

struct trial {
    struct counts *counts;
    int32_t index;
    const ejk_implementation *implementation;
    struct gpu_mirror *mirror;
    int64_t parameters[EJK_MAX_PARAMETERS];
    char text[900];
};

static void begin(struct trial *t, int check) {
    t->counts->runs[t->index][check]++;
    snprintf(t->counts->doing, sizeof t->counts->doing, "%s %s %s: %s",
             t->implementation->algorithm, t->implementation->name, check_names[check], t->text);
}

static void fail(struct trial *t, int check, const char *why) {
    if (t->counts->failures[t->index][check]++ >= MOST_PRINTED) return;
    printf("FAIL %s %s %s: %s [%s]\n", t->implementation->algorithm, t->implementation->name,
           check_names[check], why, t->text);
    fflush(stdout);
}

/* ---- Running ---------------------------------------------------------------------------------------- */

enum outcome { DONE, REFUSED, FAILED };

/* Runs a problem whose addresses are the GPU's. Views of odd addresses are refused, which is right. */
static enum outcome run_on_gpu(struct trial *t, const void *problem, int check) {
    const ejk_implementation *e = t->implementation;
    ejk_launch launch = {.workers = 1};
    char why[600];
    begin(t, check);
    if (e->prepare(problem, t->parameters, 1, &launch) != EJK_OK) {
        snprintf(why, sizeof why, "prepare failed: %.500s", ejk_last_error());
        fail(t, check, why);
        return FAILED;
    }
    void *workspace =
        gpu_mirror_workspace(t->mirror, launch.workspace_bytes, !strstr(e->name, "sm90"));
    ejk_run run = {.problem = problem,
                   .parameters = t->parameters,
                   .workspace = workspace,
                   .workers = 1,
                   .prepared = launch.prepared};
    const ejk_status status = e->run(&run);
    if (status == EJK_STATUS_INVALID_LAYOUT) {
        t->counts->refused[t->index]++;
        return REFUSED;
    }
    if (status != EJK_OK || ejk_device_synchronise(0, NULL) != EJK_OK) {
        snprintf(why, sizeof why, "run failed: %.500s", ejk_last_error());
        fail(t, check, why);
        /* After a fault nothing runs any more in this process. */
        if (status == EJK_OK) _Exit(EXIT_FAILURE);
        return FAILED;
    }
    if (!gpu_mirror_workspace_intact(t->mirror, workspace, launch.workspace_bytes))
        fail(t, check, "the workspace was overrun");
    return DONE;
}

/* Fallbacks half of the time, else anything within bounds, small steps more often. */
static void choose_parameters(struct trial *t, struct random *r) {
    const ejk_implementation *e = t->implementation;
    const bool fallback = random_chance(r, 0.3);
    size_t used = strlen(t->text);
    for (int32_t i = 0; i < e->parameter_count; i++) {
        const ejk_parameter *p = e->parameters + i;
        const int64_t steps = (p->maximum - p->minimum) / p->step;
        const double share = random_real(r);
        const double bent = steps > 100 ? pow(share, 12) : share;
        t->parameters[i] = p->minimum + p->step * (int64_t)((double)steps * bent + 0.5);
        if (fallback) t->parameters[i] = p->fallback;
        if (used < sizeof t->text)
            used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%" PRId64, p->name,
                                     t->parameters[i]);
    }
}

/* ---- Forward ---------------------------------------------------------------------------------------- */

static void mirror_case(struct trial *t, struct flash_case *c) {
    gpu_mirror_reset(t->mirror);
    flash_case_clear_outputs(c);
    const size_t alignment = c->traits.odd_addresses ? 1 : 2;
    for (int i = 0; i < FLASH_TENSORS; i++) gpu_mirror_add(t->mirror, &c->memory[i], alignment);
}

/* Runs the case or a part of it and takes what it wrote. */
static enum outcome run_forward(struct trial *t, struct flash_case *c,
                                const ejki_flash_problem *problem, int check,
                                struct flash_written *written) {
    char where[256];
    mirror_case(t, c);
    const ejki_flash_problem there = gpu_mirror_problem(t->mirror, problem);
    const enum outcome outcome = run_on_gpu(t, &there, check);
    if (outcome != DONE) return outcome;
    for (int i = 0; i < FLASH_TENSORS; i++) {
        if (i >= FLASH_FIRST_OUTPUT)
            gpu_mirror_fetch(t->mirror, &c->memory[i]);
        else if (!gpu_mirror_same(t->mirror, &c->memory[i]))
            fail(t, check, "an input was written");
    }
    if (!flash_take(c, written, where, sizeof where)) fail(t, check, where);
    return DONE;
}

static void check_accuracy(struct trial *t, const ejki_flash_problem *p,
                           struct flash_oracle *oracle, const struct flash_written *written) {
    char why[512];
    if (!flash_oracle_accepts_written(oracle, p, written, &t->counts->worst[t->index], why,
                                      sizeof why))
        fail(t, ACCURACY, why);
}

static void choose_range(struct random *r, int64_t count, int64_t *first, int64_t *end) {
    *first = random_int(r, 0, count - 1);
    *end = random_int(r, *first + 1, count);
}

static void try_forward(struct trial *t, struct flash_case *c, struct flash_oracle *oracle) {
    struct random r = {.state = c->seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    const ejki_flash_problem *p = &c->problem;
    flash_case_print(c, t->text, sizeof t->text);
    choose_parameters(t, &r);
    struct flash_written first, second;
    char why[256];
    if (run_forward(t, c, p, ACCURACY, &first) != DONE) return;
    check_accuracy(t, p, oracle, &first);
    if (run_forward(t, c, p, AGAIN, &second) == DONE) {
        if (!flash_written_agree(p, &first, &second, NULL, true, why, sizeof why))
            fail(t, AGAIN, why);
        flash_written_destroy(&second);
    }
    if (first.rows > 0) {
        struct flash_part part;
        choose_range(&r, p->batch, &part.b, &part.b_end);
        choose_range(&r, p->queries, &part.t, &part.t_end);
        choose_range(&r, p->kv_heads, &part.kv, &part.kv_end);
        if (p->dropout > 0) part.b = part.t = part.kv = 0;
        const ejki_flash_problem own = flash_part_problem(p, &part);
        if (run_forward(t, c, &own, ROWS, &second) == DONE) {
            if (!flash_written_agree(p, &first, &second, &part, true, why, sizeof why))
                fail(t, ROWS, why);
            flash_written_destroy(&second);
        }
    }
    flash_written_destroy(&first);
}

/* ---- Gradients, and the forward pass of packed sequences --------------------------------------------- */

static void each_buffer(struct vjp_case *c, void (*visit)(void *user, struct guarded *, int kind),
                        void *user) {
    for (int i = 0; i < FLASH_TENSORS; i++) visit(user, &c->forward.memory[i], 0);
    visit(user, &c->lse, 0);
    visit(user, &c->d_out, 0);
    visit(user, &c->d_lse, 0);
    visit(user, &c->sums[0], 0);
    visit(user, &c->sums[1], 0);
    for (int i = 0; i < VJP_GRADIENTS; i++) visit(user, &c->gradient[i], 1);
}

static void add_buffer(void *user, struct guarded *host, int kind) {
    (void)kind;
    gpu_mirror_add(((struct trial *)user)->mirror, host, 8);
}

static void fetch_buffer(void *user, struct guarded *host, int kind) {
    struct trial *t = user;
    if (kind == 1)
        gpu_mirror_fetch(t->mirror, host);
    else if (!gpu_mirror_same(t->mirror, host))
        fail(t, ACCURACY, "an input was written");
}

static enum outcome run_vjp(struct trial *t, struct vjp_case *c, int check,
                            float *got[VJP_GRADIENTS]) {
    gpu_mirror_reset(t->mirror);
    each_buffer(c, add_buffer, t);
    const ejki_flash_vjp_problem there = gpu_mirror_vjp_problem(t->mirror, &c->problem);
    const enum outcome outcome = run_on_gpu(t, &there, check);
    if (outcome != DONE) return outcome;
    each_buffer(c, fetch_buffer, t);
    bool clean = true;
    for (int i = 0; i < VJP_GRADIENTS; i++) got[i] = vjp_case_take(c, i, &clean);
    if (!clean) fail(t, check, "something beside the gradients was written");
    return DONE;
}

static void release(float *got[VJP_GRADIENTS]) {
    for (int i = 0; i < VJP_GRADIENTS; i++) free(got[i]);
}

static bool same(const float *a, const float *b, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        if (memcmp(a + n, b + n, sizeof *a) != 0 && !(isnan(a[n]) && isnan(b[n]))) return false;
    return true;
}

/* The same where sums may be added in any order. */
static void try_unordered(struct trial *t, struct vjp_case *c, struct vjp_oracle *o) {
    float *got[VJP_GRADIENTS];
    char why[512];
    c->problem.unordered = true;
    if (run_vjp(t, c, ACCURACY, got) == DONE) {
        for (int i = 0; i < VJP_GRADIENTS; i++)
            if (o && got[i] &&
                !vjp_oracle_accepts(o, i, got[i], &t->counts->worst[t->index], why, sizeof why))
                fail(t, ACCURACY, why);
        release(got);
    }
    c->problem.unordered = false;
}

static void try_vjp(struct trial *t, struct vjp_case *c, struct vjp_oracle *o) {
    struct random r = {.state = c->forward.seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    vjp_case_print(c, t->text, sizeof t->text);
    choose_parameters(t, &r);
    float *got[VJP_GRADIENTS], *again[VJP_GRADIENTS];
    char why[512];
    if (run_vjp(t, c, ACCURACY, got) != DONE) return;
    for (int i = 0; i < VJP_GRADIENTS; i++)
        if (o && got[i] &&
            !vjp_oracle_accepts(o, i, got[i], &t->counts->worst[t->index], why, sizeof why))
            fail(t, ACCURACY, why);
    if (random_chance(&r, 0.2)) try_unordered(t, c, o);
    if (run_vjp(t, c, AGAIN, again) == DONE) {
        for (int i = 0; i < VJP_GRADIENTS; i++)
            if (got[i] && !same(got[i], again[i], c->rows[i] * c->width[i]))
                fail(t, AGAIN, vjp_names[i]);
        release(again);
    }
    release(got);
}

/* The reference has left its results in out and lse: those of the GPU must be near, everywhere. */
static void compare_packed(struct trial *t, const struct vjp_case *c, const unsigned char *there,
                           const char *name, const struct guarded *here, ejk_dtype dtype) {
    double error = 0, size = 0, count = 0;
    char why[160];
    const size_t element = ejk_dtype_size(dtype);
    const size_t first = (size_t)(here->data - here->pages) % element;
    for (size_t at = first; at + element <= here->mapped; at += element) {
        const double a = flash_load(dtype, here->pages + at, 0);
        const double b = flash_load(dtype, there + at, 0);
        if (isnan(a) && isnan(b)) continue;
        if (!isfinite(a) || !isfinite(b)) {
            if (a == b) continue;
            snprintf(why, sizeof why, "%s is %g, expected %g, at byte %zu", name, b, a,
                     at - (size_t)(here->data - here->pages));
            fail(t, PACKED, why);
            return;
        }
        error += (a - b) * (a - b);
        size += a * a;
        count++;
    }
    const ejk_dtype own = c->problem.forward.dtype;
    const double eps = own == EJK_DTYPE_F32 ? 0x1p-17 : own == EJK_DTYPE_BF16 ? 0x1p-6 : 0x1p-9;
    /* Besides, each may be one of the least numbers of f16 off. */
    if (sqrt(error) <= eps * sqrt(size) + 0x1p-24 * sqrt(count)) return;
    snprintf(why, sizeof why, "%s is off by %.3g of %.3g", name, sqrt(error), sqrt(size));
    fail(t, PACKED, why);
}

/* Each sequence as a problem of its own, with its results in `fresh` in place of those of the reference. */
static void check_sequences(struct trial *t, const struct vjp_case *c, const struct guarded *out,
                            const struct guarded fresh[2], const struct guarded *lse) {
    char why[512];
    for (int64_t n = 0; n < c->problem.forward.batch; n++) {
        struct flash_oracle oracle;
        ejki_flash_problem own = ejki_flash_part(&c->problem.forward, n);
        own.out.data = fresh[0].pages + ((unsigned char *)own.out.data - out->pages);
        own.lse.data = (void *)(fresh[1].pages + ((unsigned char *)own.lse.data - lse->pages));
        struct flash_values values = flash_values_at(&own);
        flash_oracle_create(&oracle, &own);
        if (!flash_oracle_accepts(&oracle, &own, &values, &t->counts->worst[t->index], why,
                                  sizeof why))
            fail(t, PACKED, why);
        flash_oracle_destroy(&oracle);
        flash_values_release(&values);
    }
}

static void try_packed(struct trial *t, struct vjp_case *c) {
    struct random r = {.state = c->forward.seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    const ejki_flash_problem *p = &c->problem.forward;
    vjp_case_print(c, t->text, sizeof t->text);
    choose_parameters(t, &r);
    gpu_mirror_reset(t->mirror);
    each_buffer(c, add_buffer, t);
    ejki_flash_problem there = gpu_mirror_problem(t->mirror, p);
    struct guarded *out = &c->forward.memory[FLASH_OUT];
    struct guarded *lse = c->lse.pages ? &c->lse : &c->forward.memory[FLASH_LSE];
    struct guarded *const both[] = {out, lse};
    struct guarded fresh[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        if (!both[i]->pages) return;
        const size_t slack = (size_t)(both[i]->data - both[i]->pages);
        guarded_create(&fresh[i], both[i]->size, GUARDED_START, slack);
        gpu_mirror_add(t->mirror, &fresh[i], 8);
    }
    there.out.data =
        gpu_mirror_of(t->mirror, fresh[0].pages + ((unsigned char *)p->out.data - out->pages));
    there.lse.data =
        gpu_mirror_of(t->mirror, fresh[1].pages + ((unsigned char *)p->lse.data - lse->pages));
    if (run_on_gpu(t, &there, PACKED) == DONE) {
        for (int i = 0; i < 2; i++) {
            gpu_mirror_fetch(t->mirror, &fresh[i]);
            compare_packed(t, c, fresh[i].pages, i ? "lse" : "out", both[i],
                           i ? EJK_DTYPE_F32 : p->dtype);
        }
        check_sequences(t, c, out, fresh, lse);
    }
    for (int i = 0; i < 2; i++) guarded_destroy(&fresh[i]);
}

/* ---- Cases ------------------------------------------------------------------------------------------ */

static int32_t capability; /* of the GPU, in a child; 0 in its parent */

static bool wanted(int32_t index, const char *algorithm, ejk_dtype dtype, const void *problem) {
    const ejk_implementation *e = ejki_builtin_implementations[index];
    const char *filter = getenv("EJK_TEST_FILTER");
    char name[256];
    snprintf(name, sizeof name, "%s %s", e->algorithm, e->name);
    return e->platform == EJK_PLATFORM_CUDA && strcmp(e->algorithm, algorithm) == 0 &&
           (!capability || (capability >= e->least_capability &&
                            (!e->most_capability || capability <= e->most_capability))) &&
           (!filter || strstr(name, filter)) && (!problem || e->dtype == dtype) &&
           (!problem || !e->applicable || e->applicable(problem));
}

static bool any_wanted(const char *algorithm) {
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++)
        if (wanted(i, algorithm, EJK_DTYPE_UNSET, NULL)) return true;
    return false;
}

static struct trial trial_of(struct counts *counts, struct gpu_mirror *mirror, int32_t index) {
    return (struct trial){.counts = counts,
                          .index = index,
                          .implementation = ejki_builtin_implementations[index],
                          .mirror = mirror};
}

static void forward_case(struct counts *counts, struct gpu_mirror *mirror, uint64_t seed) {
    if (flash_case_dtype(seed) == EJK_DTYPE_F64 || !any_wanted("flash_attention")) return;
    struct flash_case c;
    struct flash_oracle oracle;
    bool made = false;
    flash_case_create(&c, seed, 1000000);
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        if (!wanted(i, "flash_attention", c.problem.dtype, &c.problem)) continue;
        struct trial t = trial_of(counts, mirror, i);
        if (!made) flash_oracle_create(&oracle, &c.problem);
        made = true;
        try_forward(&t, &c, &oracle);
    }
    if (made) flash_oracle_destroy(&oracle);
    flash_case_destroy(&c);
}

static bool is_mild(const struct vjp_case *c) {
    const enum flash_pattern pattern = c->forward.traits.pattern;
    return !c->overflows && c->forward.traits.poison <= FLASH_IN_HIDDEN &&
           !c->forward.traits.wide_sinks && !c->forward.traits.odd_addresses &&
           fabs(c->problem.forward.scale) <= 1 &&
           (pattern == FLASH_NORMAL || pattern == FLASH_EQUAL || pattern == FLASH_TINY);
}

static void gradient_case(struct counts *counts, struct gpu_mirror *mirror, uint64_t seed) {
    struct vjp_case c;
    struct vjp_oracle o;
    if (!vjp_case_create(&c, seed, 1000000)) return;
    const ejki_flash_problem *p = &c.problem.forward;
    const bool exact = c.forward.traits.poison <= FLASH_IN_HIDDEN && !c.overflows;
    bool made = false;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        struct trial t = trial_of(counts, mirror, i);
        if (wanted(i, "flash_attention_vjp", p->dtype, &c.problem)) {
            if (exact && !made) vjp_oracle_create(&o, &c);
            made = exact;
            try_vjp(&t, &c, exact ? &o : NULL);
        } else if (p->layout != EJKI_FLASH_DENSE && is_mild(&c) &&
                   wanted(i, "flash_attention", p->dtype, p))
            try_packed(&t, &c);
    }
    if (made) vjp_oracle_destroy(&o);
    vjp_case_destroy(&c);
}

static void run_cases(void *all, const gpu_share *share) {
    struct counts *counts = all;
    struct gpu_mirror mirror;
    ejk_gpu_info info;
    if (ejk_device_info(0, &info) != EJK_OK) _Exit(EXIT_FAILURE);
    capability = info.capability;
    gpu_mirror_create(&mirror, (size_t)256 << 20);
    for (uint64_t n = share->first; n < share->cases && time(NULL) < share->end; n += share->step) {
        const uint64_t kind = n % 3 == 2 || getenv("EJK_TEST_TILED") ? FLASH_TILED : 0;
        const uint64_t seed = (gpu_number("EJK_TEST_SEED", 1) + n) | kind;
        snprintf(counts->doing, sizeof counts->doing, "making case %" PRIu64, seed);
        forward_case(counts, &mirror, seed);
        gradient_case(counts, &mirror, seed);
    }
    gpu_mirror_reset(&mirror);
    gpu_mirror_destroy(&mirror);
}

static int report(const struct counts *all, int processes) {
    int failures = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (!wanted(i, "flash_attention", EJK_DTYPE_UNSET, NULL) &&
            !wanted(i, "flash_attention_vjp", EJK_DTYPE_UNSET, NULL))
            continue;
        struct counts sum = {.doing = ""};
        for (int n = 0; n < processes; n++) {
            for (int k = 0; k < CHECKS; k++) {
                sum.runs[i][k] += all[n].runs[i][k];
                sum.failures[i][k] += all[n].failures[i][k];
            }
            sum.refused[i] += all[n].refused[i];
            sum.worst[i] = fmax(sum.worst[i], all[n].worst[i]);
        }
        printf("%-4s %s %s:", "", e->algorithm, e->name);
        for (int k = 0; k < CHECKS; k++) {
            printf(" %s %" PRId64 "/%" PRId64, check_names[k], sum.failures[i][k], sum.runs[i][k]);
            failures += sum.failures[i][k] > 0;
        }
        printf(" refused %" PRId64 "; at most %.2f of the tolerance\n", sum.refused[i],
               sum.worst[i]);
    }
    return failures;
}

int main(void) {
    const gpu_work work = {
        .run = run_cases, .size = sizeof(struct counts), .cases = 400, .seconds = 120};
    void *all;
    int processes;
    if (!gpu_present()) return GPU_SKIPPED;
    if (ejki_builtin_implementation_count > MOST) {
        printf("FAIL more than %d implementations\n", (int)MOST);
        return EXIT_FAILURE;
    }
    int failures = gpu_run_processes(&work, &all, &processes);
    failures += report(all, processes);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

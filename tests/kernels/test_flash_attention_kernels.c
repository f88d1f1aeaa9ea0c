/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every implementation of flash attention that this processor can run, on random cases, against the
 * oracle and against itself:
 *   accuracy    error within SEMANTICS section 5; nothing else written, nothing beyond an input read
 *   workers     the same bits with 1, 2, 3 and 4 workers
 *   rows        the same bits when a part of the rows is computed alone
 *   neighbours  the same bits when the queries of the other rows are something else
 *
 * EJK_TEST_SEED and EJK_TEST_CASES choose the cases, EJK_TEST_FILTER implementations by a part of their
 * name. A failure prints the two variables that repeat it. Cases run in a child, so that a fault names its
 * case and the others still run.
 *
 * Its own main instead of cmocka's, because it also runs where only the C library is.
 */
#include "kernels/registry/builtin.h"
#include "support/flash_run.h"
#include "support/oracle.h"
#include "support/test_threads.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCURACY, WORKERS, ROWS, NEIGHBOURS, CHECKS };
static const char *const check_names[CHECKS] = {"accuracy", "workers", "rows", "neighbours"};

enum { MOST_IMPLEMENTATIONS = 512, MOST_PRINTED = 5, MOST_CRASHES = 20, SECONDS_PER_CASE = 300 };
/* An implementation may be for one in so many cases only. */
enum { CASES_TO_FIND_ONE = 256 };

/* Outlives the child that fills it. */
struct progress {
    int64_t next;     /* case to begin with */
    char doing[1024]; /* what is being tried: what a fault is blamed on */
    int64_t cases[MOST_IMPLEMENTATIONS];
    int64_t runs[MOST_IMPLEMENTATIONS][CHECKS], failures[MOST_IMPLEMENTATIONS][CHECKS];
    double worst[MOST_IMPLEMENTATIONS];
    bool done;
};

struct suite {
    struct progress *progress;
    uint64_t seed;
    int64_t cases; /* wanted of each implementation */
    const char *filter;
    int64_t budget;
    ejk_threads *threads[5]; /* by count, from 2 */
};

/* One implementation at one case. */
struct trial {
    struct suite *suite;
    int32_t index; /* of the implementation */
    const ejk_implementation *implementation;
    struct flash_case *c;
    struct flash_oracle *oracle;
    int64_t parameters[EJK_MAX_PARAMETERS];
    char text[768]; /* case and parameters */
};

/* ---- Reporting ------------------------------------------------------------------------------------ */

static void begin(struct trial *t, int check) {
    struct progress *progress = t->suite->progress;
    progress->runs[t->index][check]++;
    snprintf(progress->doing, sizeof progress->doing, "%s %s: %s", t->implementation->name,
             check_names[check], t->text);
}

static void fail(struct trial *t, int check, const char *why) {
    struct progress *progress = t->suite->progress;
    if (progress->failures[t->index][check]++ >= MOST_PRINTED) return;
    printf("FAIL %s %s: %s [%s]\n", t->implementation->name, check_names[check], why, t->text);
    fflush(stdout);
}

/* ---- Checks --------------------------------------------------------------------------------------- */

/* Runs a problem, the case's or a part of it, and takes what it wrote. */
static bool run(struct trial *t, const ejki_flash_problem *problem, ejk_threads *threads, int check,
                struct flash_written *written) {
    char why[512];
    begin(t, check);
    const bool ran = flash_run(t->implementation, problem, t->parameters, threads, why, sizeof why);
    char where[256];
    const bool clean = flash_take(t->c, written, where, sizeof where);
    if (!ran || !clean) fail(t, check, ran ? where : why);
    if (!ran) flash_written_destroy(written);
    return ran;
}

static void check_accuracy(struct trial *t, const struct flash_written *written) {
    char why[512];
    if (!flash_oracle_accepts_written(t->oracle, &t->c->problem, written,
                                      &t->suite->progress->worst[t->index], why, sizeof why))
        fail(t, ACCURACY, why);
}

static void check_workers(struct trial *t, const struct flash_written *alone) {
    for (int32_t count = 2; count <= 4; count++) {
        struct flash_written written;
        char why[256], more[320];
        if (!run(t, &t->c->problem, t->suite->threads[count], WORKERS, &written)) return;
        if (!flash_written_agree(&t->c->problem, alone, &written, NULL, false, why, sizeof why)) {
            snprintf(more, sizeof more, "with %d workers %s", (int)count, why);
            fail(t, WORKERS, more);
        }
        flash_written_destroy(&written);
    }
}

static void choose_range(struct random *r, int64_t count, int64_t *first, int64_t *end) {
    *first = random_int(r, 0, count - 1);
    *end = random_int(r, *first + 1, count);
}

static struct flash_part choose_part(const ejki_flash_problem *p, struct random *r) {
    struct flash_part part;
    choose_range(r, p->batch, &part.b, &part.b_end);
    choose_range(r, p->queries, &part.t, &part.t_end);
    choose_range(r, p->kv_heads, &part.kv, &part.kv_end);
    if (p->dropout > 0) part.b = part.t = part.kv = 0; /* weights are dropped by their place */
    return part;
}

static bool applies(const ejk_implementation *e, const ejki_flash_problem *problem) {
    return !e->applicable || e->applicable(problem);
}

static void check_rows(struct trial *t, const struct flash_written *whole,
                       const struct flash_part *part) {
    const ejki_flash_problem problem = flash_part_problem(&t->c->problem, part);
    struct flash_written written;
    char why[256], more[512];
    if (!applies(t->implementation, &problem)) return;
    if (!run(t, &problem, NULL, ROWS, &written)) return;
    if (!flash_written_agree(&t->c->problem, whole, &written, part, true, why, sizeof why)) {
        snprintf(more, sizeof more,
                 "of batches %" PRId64 "..%" PRId64 ", queries %" PRId64 "..%" PRId64
                 ", key heads %" PRId64 "..%" PRId64 " alone, %s",
                 part->b, part->b_end, part->t, part->t_end, part->kv, part->kv_end, why);
        fail(t, ROWS, more);
    }
    flash_written_destroy(&written);
}

/* Overwrites the queries that are not the part's. */
static void change_others(const ejki_flash_problem *p, const struct flash_part *part,
                          const ejki_bthd *query) {
    static const double loud[] = {1e30, -1e30, NAN};
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->queries; i++)
            for (int64_t h = 0; h < p->query_heads; h++)
                for (int64_t d = 0; d < p->head_dim && !flash_part_has(p, part, b, h, i); d++) {
                    const int64_t at =
                        b * query->stride_b + i * query->stride_t + h * query->stride_h + d;
                    flash_store(p->dtype, query->data, at, loud[(b + i + h) % 3]);
                }
}

static void check_neighbours(struct trial *t, const struct flash_written *before,
                             const struct flash_part *part) {
    const struct guarded *memory = &t->c->memory[FLASH_QUERY];
    ejki_flash_problem problem = t->c->problem;
    if (!memory->pages || problem.head_dim == 0) return;
    struct guarded copy;
    guarded_create(&copy, memory->size, GUARDED_END, 0);
    memcpy(copy.data, memory->data, memory->size);
    problem.query.data = copy.data + ((unsigned char *)problem.query.data - memory->data);
    change_others(&problem, part, &problem.query);
    struct flash_written after;
    char why[256];
    if (run(t, &problem, NULL, NEIGHBOURS, &after)) {
        if (!flash_written_agree(&t->c->problem, before, &after, part, false, why, sizeof why))
            fail(t, NEIGHBOURS, why);
        flash_written_destroy(&after);
    }
    guarded_destroy(&copy);
}

/* ---- Cases ---------------------------------------------------------------------------------------- */

/* Fallbacks half of the time, else anything within bounds, small steps more often. */
static void choose_parameters(struct trial *t, struct random *r) {
    const ejk_implementation *e = t->implementation;
    const bool fallback = random_chance(r, 0.5);
    size_t used = strlen(t->text);
    for (int32_t i = 0; i < e->parameter_count; i++) {
        const ejk_parameter *p = e->parameters + i;
        const int64_t steps = (p->maximum - p->minimum) / p->step;
        const double share = random_real(r);
        int64_t value =
            p->minimum + p->step * (int64_t)((double)steps * share * share * share + 0.5);
        if (fallback) value = p->fallback;
        t->parameters[i] = value;
        if (used < sizeof t->text)
            used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%" PRId64, p->name,
                                     value);
    }
}

static void try_implementation(struct trial *t) {
    struct random r = {.state = t->c->seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    const ejki_flash_problem *p = &t->c->problem;
    flash_case_print(t->c, t->text, sizeof t->text);
    choose_parameters(t, &r);
    flash_case_clear_outputs(t->c);
    struct flash_written alone;
    if (!run(t, p, NULL, ACCURACY, &alone)) return;
    check_accuracy(t, &alone);
    if (random_chance(&r, 0.5)) check_workers(t, &alone);
    if (alone.rows > 0) {
        const struct flash_part part = choose_part(p, &r);
        check_rows(t, &alone, &part);
        if (random_chance(&r, 0.5)) check_neighbours(t, &alone, &part);
    }
    flash_written_destroy(&alone);
}

/* True if the implementation takes part and has not had its cases yet. */
static bool wanted(const struct suite *suite, int32_t index) {
    const ejk_implementation *e = ejki_builtin_implementations[index];
    return strcasecmp(e->algorithm, "flash_attention") == 0 && e->backend != EJK_BACKEND_GPU &&
           (e->isa == EJK_ISA_SCALAR || ejk_cpu()->tiers[e->isa]) &&
           strstr(e->name, suite->filter) != NULL && suite->progress->cases[index] < suite->cases;
}

static bool any_wanted(const struct suite *suite, ejk_dtype dtype) {
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_dtype takes = ejki_builtin_implementations[i]->dtype;
        if (wanted(suite, i) && (!dtype || !takes || takes == dtype)) return true;
    }
    return false;
}

/* True if the implementation takes part in the case. */
static bool takes(const struct suite *suite, int32_t index, const struct flash_case *c) {
    const ejk_implementation *e = ejki_builtin_implementations[index];
    return wanted(suite, index) && (!e->dtype || e->dtype == c->problem.dtype) &&
           applies(e, &c->problem);
}

static void try_all(struct suite *suite, struct flash_case *c) {
    struct flash_oracle oracle = {.rows = -1}; /* made for the first who takes part */
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        if (!takes(suite, i, c)) continue;
        if (oracle.rows < 0) flash_oracle_create(&oracle, &c->problem);
        suite->progress->cases[i]++;
        struct trial trial = {.suite = suite,
                              .index = i,
                              .implementation = ejki_builtin_implementations[i],
                              .c = c,
                              .oracle = &oracle};
        try_implementation(&trial);
    }
    if (oracle.rows >= 0) flash_oracle_destroy(&oracle);
}

static void run_case(struct suite *suite, uint64_t seed) {
    struct flash_case c;
    snprintf(suite->progress->doing, sizeof suite->progress->doing, "making case %" PRIu64, seed);
    flash_case_create(&c, seed, suite->budget);
    try_all(suite, &c);
    flash_case_destroy(&c);
}

/* Seeds at which bounds or kernels once were wrong. */
static const uint64_t remembered[] = {202409, 203067, 203579, 209231};
enum { REMEMBERED = sizeof remembered / sizeof *remembered };

/* Remembered ones first, but where a single case is asked for. */
static uint64_t seed_of(const struct suite *suite, int64_t n) {
    if (suite->cases == 1) return suite->seed + (uint64_t)n;
    return n < REMEMBERED ? remembered[n] : suite->seed + (uint64_t)(n - REMEMBERED);
}

/* In the child: all cases from progress->next on. */
static void run_cases(struct suite *suite) {
    const int64_t limit = suite->cases == 1 ? 1 : CASES_TO_FIND_ONE * suite->cases;
    for (int32_t count = 2; count <= 4; count++) suite->threads[count] = test_threads_create(count);
    while (suite->progress->next < limit && any_wanted(suite, EJK_DTYPE_UNSET)) {
        const uint64_t seed = seed_of(suite, suite->progress->next++);
        if (!any_wanted(suite, flash_case_dtype(seed))) continue;
        alarm(SECONDS_PER_CASE);
        run_case(suite, seed);
    }
    for (int32_t count = 2; count <= 4; count++) ejk_threads_destroy(suite->threads[count]);
    suite->progress->done = true;
}

/* Children until one comes to the end; returns how many did not. */
static int run_children(struct suite *suite) {
    int crashes = 0;
    while (!suite->progress->done && crashes < MOST_CRASHES) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            run_cases(suite);
            exit(EXIT_SUCCESS);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("fork");
            return crashes + 1;
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        crashes++;
        if (WIFSIGNALED(status))
            printf("FAIL signal %d (%s) in %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)),
                   suite->progress->doing);
        else
            printf("FAIL exit %d in %s\n", WEXITSTATUS(status), suite->progress->doing);
    }
    return crashes;
}

static int64_t report(const struct suite *suite, int32_t index) {
    const ejk_implementation *e = ejki_builtin_implementations[index];
    const struct progress *progress = suite->progress;
    if (strcasecmp(e->algorithm, "flash_attention") != 0 || e->backend == EJK_BACKEND_GPU) return 0;
    if (!strstr(e->name, suite->filter)) {
        printf("skip %s: not of the filter\n", e->name);
        return 0;
    }
    if (e->isa != EJK_ISA_SCALAR && !ejk_cpu()->tiers[e->isa]) {
        printf("skip %s: this processor lacks its instructions\n", e->name);
        return 0;
    }
    /* An implementation that hardly any case fits would be untested, whatever the cases said. */
    int64_t failures = progress->cases[index] < suite->cases && suite->cases >= 100;
    if (failures)
        printf("FAIL %s: only %" PRId64 " cases apply\n", e->name, progress->cases[index]);
    for (int i = 0; i < CHECKS; i++) {
        const int64_t failed = progress->failures[index][i];
        printf("%-4s %s %s: %" PRId64 " runs, %" PRId64 " failed", failed ? "FAIL" : "ok", e->name,
               check_names[i], progress->runs[index][i], failed);
        if (i == ACCURACY) printf("; at most %.2f of the tolerance", progress->worst[index]);
        printf("\n");
        failures += failed;
    }
    return failures;
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void) {
    struct suite suite = {
        .seed = number_from("EJK_TEST_SEED", 1),
        .cases = (int64_t)number_from("EJK_TEST_CASES", 300),
        .filter = getenv("EJK_TEST_FILTER") ? getenv("EJK_TEST_FILTER") : "",
        /* Where long double is emulated the oracle is a hundred times slower. */
        .budget = LDBL_MANT_DIG > 64 ? 60000 : 2000000,
    };
    suite.progress = mmap(NULL, sizeof *suite.progress, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (suite.progress == MAP_FAILED || ejki_builtin_implementation_count > MOST_IMPLEMENTATIONS) {
        printf("FAIL no memory, or more than %d implementations\n", (int)MOST_IMPLEMENTATIONS);
        return EXIT_FAILURE;
    }
    printf("EJK_TEST_SEED=%" PRIu64 " EJK_TEST_CASES=%" PRId64 " EJK_TEST_FILTER='%s'\n",
           suite.seed, suite.cases, suite.filter);
    int64_t failures = run_children(&suite);
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) failures += report(&suite, i);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

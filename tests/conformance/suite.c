/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in children, and the report. */
#include "conformance/suite.h"
#include "support/test_threads.h"

#include <float.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *const check_names[CHECKS] = {"accuracy",   "threads", "again",     "slice",
                                         "neighbours", "refusal", "derivative"};

enum { MOST_CRASHES = 20, SECONDS_PER_CASE = 300 };
/* An implementation may be for one in so many cases only. */
enum { CASES_TO_FIND_ONE = 80 };
/* Of an operation that has so many, no fewer are left. */
enum { FEW_CASES = 24 };

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

void suite_open(struct suite *suite) {
    const char *filter = getenv("EJK_TEST_FILTER"), *seconds = getenv("EJK_TEST_SECONDS");
    suite->seed = number_from("EJK_TEST_SEED", 1);
    suite->cases = (int64_t)number_from("EJK_TEST_CASES", 0);
    suite->full = suite->gpu || getenv("EJK_TEST_FULL") != NULL;
    suite->filter = filter ? filter : "";
    /* Where long double is emulated what is exact takes a hundred times as long. */
    suite->budget = LDBL_MANT_DIG > 64 ? 40000 : 1000000;
    if (seconds) suite->end = now() + strtod(seconds, NULL);
    const uint64_t most = suite->gpu ? (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) : 1;
    suite->processes = (int32_t)number_from("EJK_TEST_PROCESSES", most);
    if (suite->processes < 1 || suite->processes > 64) suite->processes = 1;
}

struct tally suite_tally(const struct suite *suite, int32_t line) {
    struct tally sum = {.cases = 0};
    for (int32_t n = 0; n < suite->processes; n++) {
        const struct tally *one = &suite->progress[n].tally[line];
        sum.cases += one->cases;
        sum.crashes += one->crashes;
        sum.worst = fmax(sum.worst, one->worst);
        for (int i = 0; i < CHECKS; i++) {
            sum.runs[i] += one->runs[i];
            sum.failures[i] += one->failures[i];
        }
    }
    return sum;
}

/* ---- Lines ------------------------------------------------------------------------------------------- */

/* Why a line is not run, or NULL. */
static const char *skipped(const struct suite *suite, const struct line *line) {
    static char why[80];
    const ejk_implementation *e = line->implementation;
    char name[160];
    snprintf(name, sizeof name, "%s %s", e->algorithm, e->name);
    if (!strstr(name, suite->filter)) return "not of the filter";
    if (line_serves_none(line)) return "serves no call of the operation";
    if (e->isa == EJK_ISA_SCALAR || ejk_cpu()->tiers[e->isa]) return NULL;
    snprintf(why, sizeof why, "needs %s", ejk_isa_name(e->isa));
    return why;
}

static int64_t cases_of(const struct suite *suite, const struct line *line) {
    int64_t all = suite->cases ? suite->cases : line->operation->cases;
    if (!suite->cases && !suite->full && all > FEW_CASES)
        all = all / 2 > FEW_CASES ? all / 2 : FEW_CASES;
    return (all + suite->processes - 1) / suite->processes;
}

/* True if a line takes part and has not had its cases yet. */
static bool wanted(const struct suite *suite, const struct progress *progress, int32_t index) {
    const struct line *line = &suite->lines[index];
    return line->operation && !skipped(suite, line) &&
           progress->tally[index].cases < cases_of(suite, line);
}

static bool wants_type(const struct line *line, ejk_dtype dtype) {
    return !line->implementation->dtype || line->implementation->dtype == dtype;
}

/* ---- Cases ------------------------------------------------------------------------------------------- */

/* Lines of one kernel for which a call is made. */
struct seekers {
    const struct suite *suite;
    const struct progress *progress;
    int32_t first, end;
};

/* True if one of them can compute it, or one that its case says cannot. */
static bool is_taken(const struct call *c, const void *own) {
    const struct seekers *of = own;
    struct prepared prepared;
    if (prepare_call(c->kernel, c->args, &prepared) != EJK_OK) return true; /* to be reported */
    for (int32_t i = of->first; i < of->end; i++) {
        const struct line *line = &of->suite->lines[i];
        const bool asked = wanted(of->suite, of->progress, i) && wants_type(line, c->dtype);
        if ((asked || line_serves_none(line)) && line_applies(line, &prepared)) return true;
    }
    return false;
}

/* One call, made for the lines of one kernel from `first` on; they follow one another. */
static void try_call(struct suite *suite, struct progress *progress, int32_t first, int32_t end,
                     uint64_t seed) {
    const struct line *line = &suite->lines[first];
    struct call call;
    struct prepared prepared;
    const struct seekers seekers = {suite, progress, first, end};
    const struct asker asker = {is_taken, &seekers, suite->gpu};
    bool known = false;
    progress->line = first;
    snprintf(progress->doing, sizeof progress->doing, "making case %" PRIu64 " of %s", seed,
             line->kernel->op_id);
    if (call_open(&call, line->operation, line->kernel, seed, suite->budget, &asker)) {
        struct trial t = {
            .suite = suite, .progress = progress, .index = first, .line = line, .call = &call};
        const ejk_status status = prepare_call(line->kernel, call.args, &prepared);
        if (status != EJK_OK) {
            call_print(&call, t.text, sizeof t.text);
            trial_fail(&t, ACCURACY, ejk_last_error());
        }
        for (int32_t i = first; i < end && status == EJK_OK; i++) {
            t.index = i;
            t.line = &suite->lines[i];
            if (line_serves_none(t.line) && line_applies(t.line, &prepared))
                trial_fail(&t, ACCURACY, "its case says that the line serves no call");
            if (!wanted(suite, progress, i) || !wants_type(t.line, call.dtype) ||
                !line_applies(t.line, &prepared))
                continue;
            if (!known && call.operation->exact) call.operation->exact(&call);
            if (!known && !call.operation->exact) call.operation->naive(&call, EXACT);
            known = true;
            progress->tally[i].cases++;
            trial_run(&t);
        }
    }
    call_close(&call);
}

/* The lines of one kernel, which follow one another; true if any takes part in calls of the type. */
static bool any_wanted(const struct suite *suite, const struct progress *progress, int32_t first,
                       int32_t *end, ejk_dtype dtype) {
    bool any = false;
    for (*end = first;
         *end < suite->count && suite->lines[*end].kernel == suite->lines[first].kernel; ++*end)
        any = any ||
              (wanted(suite, progress, *end) && (!dtype || wants_type(&suite->lines[*end], dtype)));
    return any;
}

/* Remembered ones first, but where a single case is asked for. */
static uint64_t seed_of(const struct suite *suite, int64_t n) {
    if (suite->cases == 1) return suite->seed + (uint64_t)n;
    return n < suite->remembered_count ? suite->remembered[n]
                                       : suite->seed + (uint64_t)(n - suite->remembered_count);
}

static bool run_seed(struct suite *suite, struct progress *progress, uint64_t seed) {
    bool any = false;
    for (int32_t first = 0, end; first < suite->count; first = end) {
        any = any_wanted(suite, progress, first, &end, EJK_DTYPE_UNSET) || any;
        if (!any_wanted(suite, progress, first, &end, call_dtype(seed))) continue;
        alarm(SECONDS_PER_CASE);
        try_call(suite, progress, first, end, seed);
    }
    return any;
}

/* In the child: all cases of process `own` from progress->next on. */
static void run_cases(struct suite *suite, int32_t own) {
    struct progress *progress = &suite->progress[own];
    const int64_t most = suite->cases ? suite->cases : 300;
    const int64_t limit = suite->cases == 1 ? 1 : CASES_TO_FIND_ONE * most;
    for (int32_t count = 2; count <= 4; count++) suite->threads[count] = test_threads_create(count);
    while (progress->next < limit && (suite->end == 0 || now() < suite->end)) {
        const int64_t n = progress->next++ * suite->processes + own;
        if (!run_seed(suite, progress, seed_of(suite, n))) break;
    }
    for (int32_t count = 2; count <= 4; count++) ejk_threads_destroy(suite->threads[count]);
    ejk_context_destroy(suite->context);
    progress->done = true;
}

/* ---- Children ---------------------------------------------------------------------------------------- */

static pid_t start(struct suite *suite, int32_t own) {
    fflush(stdout);
    const pid_t child = fork();
    if (child != 0) return child;
    /* A fault ends the child, whatever the program that it comes from would do. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) signal(faults[i], SIG_DFL);
    run_cases(suite, own);
    fflush(stdout);
    if (suite->gpu) _Exit(EXIT_SUCCESS); /* the driver has threads of its own */
    exit(EXIT_SUCCESS);
}

static void blame(const struct suite *suite, struct progress *progress, int status) {
    progress->tally[progress->line].crashes++;
    if (suite->quiet) return;
    if (WIFSIGNALED(status))
        printf("FAIL signal %d (%s) in %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)),
               progress->doing);
    else
        printf("FAIL exit %d in %s\n", WEXITSTATUS(status), progress->doing);
}

/* Children of each process until one comes to the end; returns how many did not. */
static int64_t run_children(struct suite *suite) {
    pid_t child[64];
    int64_t crashes = 0;
    for (int32_t n = 0; n < suite->processes; n++) child[n] = start(suite, n);
    for (int32_t n = 0; n < suite->processes; n++)
        for (int status = 0;;) {
            if (child[n] < 0 || waitpid(child[n], &status, 0) != child[n]) {
                perror("fork");
                return crashes + 1;
            }
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
            blame(suite, &suite->progress[n], status);
            if (++crashes >= MOST_CRASHES) break;
            child[n] = start(suite, n);
        }
    return crashes;
}

/* ---- Report ------------------------------------------------------------------------------------------ */

static int64_t report(const struct suite *suite, int32_t index) {
    const struct line *line = &suite->lines[index];
    const struct tally tally = suite_tally(suite, index);
    const ejk_implementation *e = line->implementation;
    char name[160];
    snprintf(name, sizeof name, "%s: %s %s", line->kernel->op_id, e->algorithm, e->name);
    if (!line->operation) {
        printf("FAIL %s: has no case\n", name);
        return 1;
    }
    const char *why = skipped(suite, line);
    if (why) {
        printf("skip %s: %s\n", name, why);
        return 0;
    }
    int64_t failures = 0;
    for (int i = 0; i < CHECKS; i++) failures += tally.failures[i];
    /* An implementation that hardly any case fits would be untested, whatever the cases said. */
    const bool few = suite->end == 0 && suite->cases == 0 &&
                     tally.cases * 2 < cases_of(suite, line) * suite->processes;
    const bool none = tally.cases == 0 && suite->cases != 1;
    printf("%-4s %s: %" PRId64 " cases%s", failures || few || none ? "FAIL" : "ok", name,
           tally.cases, few ? ", too few apply" : "");
    for (int i = 0; i < CHECKS; i++) {
        if (!tally.runs[i]) continue;
        printf(", %s %" PRId64, check_names[i], tally.runs[i]);
        if (tally.failures[i]) printf(" (%" PRId64 " FAILED)", tally.failures[i]);
    }
    printf("; at most %.2f of the tolerance\n", tally.worst);
    return failures + few + none;
}

int64_t suite_run(struct suite *suite) {
    suite->progress = mmap(NULL, sizeof *suite->progress * (size_t)suite->processes,
                           PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (suite->progress == MAP_FAILED || suite->count > MOST_LINES) {
        printf("FAIL no memory, or more than %d lines\n", (int)MOST_LINES);
        return 1;
    }
    if (!suite->quiet)
        printf("EJK_TEST_SEED=%" PRIu64 " EJK_TEST_CASES=%" PRId64 " EJK_TEST_FILTER='%s'\n",
               suite->seed, suite->cases, suite->filter);
    int64_t failures = run_children(suite);
    for (int32_t i = 0; i < suite->count && !suite->quiet; i++) failures += report(suite, i);
    return failures;
}

void suite_close(struct suite *suite) {
    munmap(suite->progress, sizeof *suite->progress * (size_t)suite->processes);
    suite->progress = NULL;
}

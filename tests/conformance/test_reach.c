/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often random calls reach each kernel for GPUs: what is launched for the first cases of each line, on the tests'
 * own driver, which counts launches and does nothing. A text of which no case of any line launches a kernel is a
 * failure: nobody would find its faults.
 *
 * Usage: test_reach [OPERATION…], which prints what each line launches, with which constants, in how many cases. Only
 * of all operations it can tell which text nobody reaches.
 */
#include "conformance/suite.h"
#include "cuda/cuda_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 40, LEAST = 1, MOST_TRIES = 1200, MOST_VARIANTS = 4096, BUDGET = 1000000 };

static const struct text {
    const char *name, *constants;
    int spills[2];
} texts[] = {
#include "compile_lines.inc"
};
enum { TEXTS = sizeof texts / sizeof *texts };
static int32_t reached[TEXTS]; /* by the line that reaches it most */

/* A kernel and what it was compiled with, as "text:entry NAME=(1) …", and in how many cases of the line at hand. */
struct variant {
    char name[600];
    int32_t cases, last;
};
static struct variant variants[MOST_VARIANTS];
static int32_t variant_count, case_number;
static int32_t of_text[TEXTS], last_of_text[TEXTS];

static void count_variant(const char *name) {
    int32_t i = 0;
    while (i < variant_count && strcmp(variants[i].name, name) != 0) i++;
    if (i == MOST_VARIANTS) abort();
    if (i == variant_count) {
        variants[variant_count++] = (struct variant){.last = -1};
        snprintf(variants[i].name, sizeof variants[i].name, "%s", name);
    }
    variants[i].cases += variants[i].last != case_number;
    variants[i].last = case_number;
}

/* An image is "FAKE", the name of the text, the text, and what it was compiled with. */
static void launched(const char *entry, const char *image) {
    char name[600];
    const int length = (int)strcspn(image + 4, "\n");
    size_t used = (size_t)snprintf(name, sizeof name, "%.*s:%s", length, image + 4, entry);
    const char *at = strstr(image, "\n-arch=");
    while (at && (at = strstr(at + 1, "\n-D")) && used < sizeof name)
        used += (size_t)snprintf(name + used, sizeof name - used, " %.*s",
                                 (int)strcspn(at + 3, "\n"), at + 3);
    count_variant(name);
    for (int32_t i = 0; i < TEXTS; i++) {
        if (strncmp(texts[i].name, name, (size_t)length) != 0 || texts[i].name[length]) continue;
        of_text[i] += last_of_text[i] != case_number;
        last_of_text[i] = case_number;
    }
}

static bool applies(const struct call *c, const void *own) {
    struct prepared prepared;
    return prepare_call(c->kernel, c->args, &prepared) == EJK_OK && line_applies(own, &prepared);
}

/* Launches the line's kernels for a call, if it takes it as it lies in memory. */
static bool launch(struct suite *suite, const struct line *line, struct call *call) {
    static struct progress progress;
    struct random r = {.state = call->seed};
    struct placement placement;
    struct prepared prepared;
    struct trial t = {
        .suite = suite, .progress = &progress, .line = line, .call = call, .placement = &placement};
    trial_choose_parameters(&t, &r);
    placement_open(&placement, call, &r, true);
    const bool done = prepare_call(line->kernel, placement.args, &prepared) == EJK_OK &&
                      line_applies(line, &prepared) &&
                      run_line(&t, &prepared, NULL, ACCURACY) == DONE;
    placement_close(&placement);
    return done;
}

static void try_line(struct suite *suite, const struct line *line) {
    const ejk_implementation *e = line->implementation;
    const struct asker asker = {applies, line, true};
    uint64_t seed = 1;
    variant_count = case_number = 0;
    for (int32_t i = 0; i < TEXTS; i++) of_text[i] = 0, last_of_text[i] = -1;
    for (; case_number < CASES && seed <= MOST_TRIES; seed++) {
        struct call call;
        if (e->dtype && e->dtype != call_dtype(seed)) continue;
        if (call_open(&call, line->operation, line->kernel, seed, BUDGET, &asker) &&
            applies(&call, line) && launch(suite, line, &call))
            case_number++;
        call_close(&call);
    }
    for (int32_t i = 0; i < TEXTS; i++)
        if (of_text[i] > reached[i]) reached[i] = of_text[i];
    printf("%s: %s %s: %d cases of %d seeds\n", line->kernel->op_id, e->algorithm, e->name,
           (int)case_number, (int)seed - 1);
    for (int32_t i = 0; i < variant_count; i++)
        printf("    %3d %s\n", (int)variants[i].cases, variants[i].name);
    fflush(stdout);
}

/* Texts that hardly any line's cases reach, each once. */
static int unreached(void) {
    int failures = 0;
    for (int32_t i = 0; i < TEXTS; i++) {
        const bool again = i > 0 && strcmp(texts[i - 1].name, texts[i].name) == 0;
        if (again || reached[i] >= LEAST) continue;
        printf("FAIL %s: launched in %d cases of %d, of the line that has most\n", texts[i].name,
               (int)reached[i], (int)CASES);
        failures++;
    }
    return failures;
}

int main(int argc, char **argv) {
    static struct line lines[MOST_LINES];
    struct suite suite = {
        .lines = lines, .gpu = true, .budget = BUDGET, .quiet = true, .filter = ""};
    folder_make();
    use_fakes();
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    setenv("FAKE_CUDA_MEMORY", "4000000000", 1);
    const bool works = device_is_here();
    if (works) ((fake_cuda_counts *)(uintptr_t)seen())->launched = launched;
    suite.count = works ? lines_of(lines, true, argc - 1, argv + 1) : 0;
    for (int32_t i = 0; i < suite.count; i++)
        if (lines[i].operation && !line_serves_none(&lines[i])) try_line(&suite, &lines[i]);
    const int failures = argc == 1 ? unreached() : 0;
    folder_remove();
    return !works || suite.count == 0 || failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

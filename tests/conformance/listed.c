/* SPDX-License-Identifier: Apache-2.0 */
/* Which implementations compute which operations. */
#include "conformance/all_cases.h"
#include "conformance/suite.h"
#include "kernels/registry/builtin.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const struct operation *case_of(const ejk_kernel *kernel) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i]->op, kernel->op_id) == 0) return cases[i];
    return NULL;
}

/*
 * What runs an algorithm beside an implementation: the reference, or on a GPU the last of the least priority, which
 * serves every call.
 */
static const ejk_implementation *stand_in(const char *algorithm, const ejk_implementation *beside) {
    const ejk_implementation *found = NULL;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        const bool gpu = beside->backend == EJK_BACKEND_GPU;
        if (strcasecmp(e->algorithm, algorithm) == 0 && e->dtype == beside->dtype &&
            e->platform == (gpu ? EJK_PLATFORM_CUDA : EJK_PLATFORM_REFERENCE) &&
            (!found || e->priority <= found->priority))
            found = e;
    }
    return found;
}

bool line_computes(const ejk_kernel *kernel, const struct operation *o,
                   const ejk_implementation *e) {
    const char *algorithm = kernel->algorithm ? kernel->algorithm : kernel->op_id;
    if (o && o->only && e->dtype && e->dtype != o->only) return false;
    if (!kernel->steps) return strcasecmp(e->algorithm, algorithm) == 0;
    bool any = false;
    for (int32_t i = 0; i < kernel->step_count; i++) {
        const bool own = strcasecmp(e->algorithm, kernel->steps[i].algorithm) == 0;
        if (!own && !stand_in(kernel->steps[i].algorithm, e)) return false;
        any = any || own;
    }
    return any;
}

static struct line line_of(const ejk_kernel *kernel, const struct operation *o,
                           const ejk_implementation *e) {
    struct line line = {.implementation = e, .kernel = kernel, .operation = o};
    for (int32_t i = 0; kernel->steps && i < kernel->step_count; i++)
        line.other[i] = stand_in(kernel->steps[i].algorithm, e);
    return line;
}

bool operation_is_named(const ejk_kernel *kernel, int count, char **names) {
    bool found = count == 0;
    for (int i = 0; i < count; i++) found = found || strcmp(names[i], kernel->op_id) == 0;
    return found;
}

int32_t lines_of(struct line *lines, bool gpu, int count, char **names) {
    int32_t used = 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        if (!operation_is_named(kernels[k], count, names)) continue;
        const struct operation *o = case_of(kernels[k]);
        for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
            const ejk_implementation *e = ejki_builtin_implementations[i];
            if ((e->backend == EJK_BACKEND_GPU) == gpu && line_computes(kernels[k], o, e) &&
                used < MOST_LINES)
                lines[used++] = line_of(kernels[k], o, e);
        }
    }
    return used;
}

/* True if a name has the word; that with a '*' if the name begins as it does and has its rest behind that. */
static bool has_word(const char *name, const char *word) {
    const char *star = strchr(word, '*');
    if (!star) return strstr(name, word) != NULL;
    const size_t begin = (size_t)(star - word);
    return strncmp(name, word, begin) == 0 && strstr(name + begin, star + 1) != NULL;
}

bool line_serves_none(const struct line *line) {
    char name[160], word[48];
    snprintf(name, sizeof name, "%s:%s", line->implementation->algorithm,
             line->implementation->name);
    for (const char *at = line->operation->never; at && *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (has_word(name, word)) return true;
        at += length;
    }
    return false;
}

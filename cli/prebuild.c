/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk prebuild`: kernels for GPUs compiled before they are needed. */
#include "cli.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct prebuild_options {
    const char *architecture, *shapes;
    texts lines;
    bool json, help;
} prebuild_options;

typedef struct prebuild {
    const prebuild_options *wish;
    ejk_context *context;
    json_t *calls; /* for --json */
    ejk_prebuilt all;
} prebuild;

static ejk_status build(prebuild *state, const ejk_problem *problem) {
    char *text;
    ejk_prebuilt built = {0};
    const ejk_kernel *kernel = ejk_problem_kernel(problem);
    const void *args = ejk_problem_args(problem);
    const ejk_status status =
        ejk_plan_prebuild(state->context, kernel, args, state->wish->architecture, &built);
    if (status != EJK_OK) return status;
    state->all.compiled += built.compiled;
    state->all.found += built.found;
    if (ejk_problem_to_text(kernel, args, &text) != EJK_OK) return EJK_OK;
    if (state->wish->json)
        json_array_append_new(state->calls,
                              json_pack("{s:s, s:i, s:i}", "call", text, "compiled",
                                        (int)built.compiled, "found", (int)built.found));
    else
        printf("%s: %d compiled, %d found\n", text, (int)built.compiled, (int)built.found);
    ejk_free(text);
    return EJK_OK;
}

static ejk_status build_line(void *user, int64_t line, ejk_problem *problem) {
    (void)line;
    return build(user, problem);
}

static bool build_all(prebuild *state) {
    const prebuild_options *wish = state->wish;
    for (int i = 0; i < wish->lines.count; i++) {
        ejk_problem *problem;
        if (!succeeded(ejk_problem_parse(state->context, wish->lines.items[i], &problem)))
            return false;
        const bool built = succeeded(build(state, problem));
        ejk_problem_destroy(problem);
        if (!built) return false;
    }
    return !wish->shapes ||
           succeeded(ejk_problem_read_file(state->context, wish->shapes, build_line, state));
}

static int report(prebuild *state) {
    ejk_cuda_info cuda;
    if (!succeeded(ejk_cuda_look(&cuda))) return FAILED;
    if (!state->wish->json) {
        printf("%d kernels for %s compiled, %d found; %lld in %s\n", (int)state->all.compiled,
               state->wish->architecture, (int)state->all.found, (long long)cuda.cached_kernels,
               cuda.cache_folder);
        return DONE;
    }
    json_t *answer = json_pack("{s:s, s:O, s:i, s:i, s:s, s:I}", "architecture",
                               state->wish->architecture, "calls", state->calls, "compiled",
                               (int)state->all.compiled, "found", (int)state->all.found, "folder",
                               cuda.cache_folder, "kernels", (json_int_t)cuda.cached_kernels);
    return print_json(answer) ? DONE : FAILED;
}

/* That of the first GPU, where none is named. */
static bool find_architecture(prebuild_options *wish, ejk_gpu_info *gpu) {
    if (wish->architecture) return true;
    if (ejk_device_info(0, gpu) != EJK_OK)
        return report_error("--device-arch is missing, as sm_90a: %s", ejk_last_error());
    wish->architecture = gpu->architecture;
    return true;
}

static int run(prebuild_options *wish) {
    ejk_gpu_info gpu;
    if (!wish->shapes && wish->lines.count == 0) {
        report_error("prebuild needs calls, as 'OPERATION:SYMBOL=SIZE,...', or "
                     "--shapes FILE with one on each line");
        return FAILED;
    }
    if (!find_architecture(wish, &gpu)) return FAILED;
    prebuild state = {.wish = wish, .calls = json_array()};
    int status = FAILED;
    if (succeeded(ejk_context_create(NULL, &state.context)) && build_all(&state))
        status = report(&state);
    ejk_context_destroy(state.context);
    json_decref(state.calls);
    return status;
}

int prebuild_command(int count, char **words) {
    prebuild_options wish = {0};
    const option own[] = {
        {"", OPTION_TEXTS, &wish.lines, "CALL", "calls, as OPERATION:B=1,T=1024,…"},
        {"shapes", OPTION_TEXT, &wish.shapes, "FILE", "a file of calls, one on each line"},
        {"device-arch", OPTION_TEXT, &wish.architecture, "ARCH",
         "architecture, as sm_90a; default: that of the first GPU"},
        {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &wish.lines)) return FAILED;
    int status = FAILED;
    if (options_parse(count, words, own, NULL)) {
        if (wish.help) {
            puts("usage: ejk prebuild [CALL]... [--shapes FILE] [--device-arch ARCH] [--json]\n\n"
                 "Compiles what calls on a GPU need and keeps it in the cache of kernels, so that\n"
                 "their first use does not have to. Needs NVRTC, but no GPU.\n");
            status = options_help(own) ? DONE : FAILED;
        } else {
            status = run(&wish);
        }
    }
    free(wish.lines.items);
    return status;
}

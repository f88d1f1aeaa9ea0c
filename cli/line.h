/* SPDX-License-Identifier: Apache-2.0 */
/* A call without data, as one line of problem text (problem.h): what flags describe is made such a line first. */
#ifndef EJK_CLI_LINE_H
#define EJK_CLI_LINE_H

#include "call.h"

/* The flags by which a call without data is described; NULL and 0 = not given. */
typedef struct call_words {
    const char *shape; /* items of problem text: sizes of symbols, and any other */
    const char *dtype, *with, *layout, *platform, *config, *isa, *device;
    int32_t threads;
} call_words;

/* Those flags that a line has anyway, but for shape and configuration, as own ones of a command. */
#define LINE_OPTIONS(words)                                                                        \
    {"dtype", OPTION_TEXT, &(words)->dtype, "TYPE", "element type of the inputs; default f32"},    \
        {"with", OPTION_TEXT, &(words)->with, "NAMES", "optional tensors, as bias,mask"},          \
        {"layout", OPTION_TEXT, &(words)->layout, "ORDER",                                         \
         "order of the axes in memory, as bhtd"},                                                  \
        {"platform", OPTION_TEXT, &(words)->platform, "NAME", "auto, simd, reference or cuda"},    \
        {"device", OPTION_TEXT, &(words)->device, "NAME", "cpu (default), cuda or cuda:N"}, {      \
        "isa", OPTION_TEXT, &(words)->isa, "TIER", "highest instruction-set tier, as avx2"         \
    }

/* The same for a command that takes one call and one number of threads. */
#define CALL_OPTIONS(words)                                                                        \
    {"shape", OPTION_TEXT, &(words)->shape, "SIZES", "sizes of symbols, and any item of a line"},  \
        {"threads", OPTION_COUNT, &(words)->threads, "N",                                          \
         "threads; default EJKERNEL_NUM_THREADS or all"},                                          \
        LINE_OPTIONS(words)

/* A call that was read from a line: tensors have no memory and lie on the CPU. */
typedef struct line_call {
    ejk_problem *problem; /* has the symbols, and what is wished of the inputs */
    op_call call;
} line_call;

/*
 * Reads a line. Platform and configuration of `words` are set besides. Closed by the caller also after a failure.
 */
bool line_read(const char *line, const call_words *words, ejk_context *context, line_call *out);

/*
 * The same of flags: an operation, its sizes, and `items` for those flags that are fields (NULL = none).
 */
bool line_of_words(const ejk_kernel *kernel, const char *shape, const call_words *words,
                   const char *items, ejk_context *context, line_call *out);
void line_close(line_call *line);

/* Reads the line of a problem that belongs to somebody else. */
bool line_of_problem(const ejk_problem *problem, const call_words *words, ejk_context *context,
                     line_call *out);

/*
 * The line of a call, which may be the same with types settled, in the library's way of writing it. `inputs` may be
 * NULL. Freed with free(); NULL after a sentence.
 */
char *line_text(const ejk_kernel *kernel, const void *args, const ejk_inputs *inputs);

/*
 * The call beside which options are measured: required tensors, gradients of these and the configuration, nothing
 * else. The problem is shared, `out` is closed by call_close().
 */
bool line_plain(const line_call *line, op_call *out);

/* Says that there is no shape, and which symbols it might have. False. */
bool line_needs_shape(const char *command, const ejk_kernel *kernel);

/* A context of the threads and the tier that are asked for. */
bool line_context(const call_words *words, ejk_context **out);

/*
 * Puts the tensors on the device that is asked for and makes sure that the call can be planned. If something is wished
 * of the inputs, integers among them get memory with that in it.
 */
bool line_place(line_call *line, const char *device, ejk_context *context);

#endif

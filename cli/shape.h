/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a call from the sizes of symbols, as `--shape B=1,Hq=8,T=1024,D=64` gives them. */
#ifndef EJK_CLI_SHAPE_H
#define EJK_CLI_SHAPE_H

#include "layout.h"

/* What the tensors of a call are to be. */
typedef struct call_shape {
    ejk_axes axes;
    ejk_dtype dtype;
    const char *with;          /* optional tensors, "bias,lse", or NULL */
    bool heads_first;          /* in memory [B,H,T,D] in place of [B,T,H,D] */
    const call_layout *layout; /* or NULL */
} call_shape;

/* Sets all but the sizes from the texts of --dtype, --with and --layout; each may be NULL. */
bool shape_options(const char *dtype, const char *with, const char *layout, call_shape *out);

/*
 * Reads sizes, puts the usual symbols into their order and binds those that follow from a layout, which may be
 * NULL, and those that were left out: B = 1, S = T, Hkv = Hq, Dv = D. Packed sequences have no B.
 */
bool shape_sizes(const char *text, const call_layout *layout, ejk_axes *out);

/* Declares the tensors that are required and those asked for, without memory. */
bool shape_declare(const call_shape *shape, op_call *call);

/* The flags by which a call without data is described; NULL and 0 = not given. */
typedef struct call_words {
    const char *shape, *dtype, *with, *layout, *platform, *config, *isa, *device;
    layout_words data;
    int32_t threads;
} call_words;

/* Those flags but the configuration, as own ones of a command. */
#define CALL_OPTIONS(call)                                                                         \
    {"shape", OPTION_TEXT, &(call)->shape, "SIZES", "sizes of the symbols"},                       \
        {"dtype", OPTION_TEXT, &(call)->dtype, "TYPE", "element type of the inputs; default f32"}, \
        {"with", OPTION_TEXT, &(call)->with, "NAMES", "optional tensors, as bias,softmax_aux"},    \
        {"layout", OPTION_TEXT, &(call)->layout, "ORDER", "bthd (default), or bhtd: heads first"}, \
        LAYOUT_OPTIONS(&(call)->data),                                                             \
        {"platform", OPTION_TEXT, &(call)->platform, "NAME", "auto, simd, reference or cuda"},     \
        {"device", OPTION_TEXT, &(call)->device, "NAME", "cpu (default), cuda or cuda:N"},         \
        {"threads", OPTION_COUNT, &(call)->threads, "N",                                           \
         "threads; default EJKERNEL_NUM_THREADS or all"},                                          \
    {                                                                                              \
        "isa", OPTION_TEXT, &(call)->isa, "TIER", "highest instruction-set tier, as avx2"          \
    }

/* A context of the threads and the tier that are asked for. */
bool shape_context(const call_words *words, ejk_context **out);

/*
 * Declares the tensors of a call whose other arguments are set, on the device that is asked for, and makes sure that
 * it can be planned. Those that a layout is about have memory.
 * `command` is named in the sentence if there is no shape.
 */
bool shape_call(const char *command, const call_words *words, ejk_context *context, op_call *call);

#endif

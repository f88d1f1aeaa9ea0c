/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls whose cost lies in their data: packed sequences of given or random lengths, and the blocks of a
 * MaskInfo of which a part is alive. Random ones come from a fixed seed.
 */
#ifndef EJK_CLI_LAYOUT_H
#define EJK_CLI_LAYOUT_H

#include "call.h"

/* The flags that describe it; NULL and 0 = not given. */
typedef struct layout_words {
    const char *lengths;
    double alive;
    int32_t block;
} layout_words;

/* The same as own flags of a command. */
#define LAYOUT_OPTIONS(words)                                                                      \
    {"lengths", OPTION_TEXT, &(words)->lengths, "LENGTHS",                                         \
     "packed sequences in place of B, T and S: 4096,63x16 (one, and 63 of 16), 64x1-2048 "         \
     "(random)"},                                                                                  \
        {"alive", OPTION_NUMBER, &(words)->alive, "PART",                                          \
         "blocks of a MaskInfo to visit, as 0.1; the others are empty"},                           \
    {                                                                                              \
        "block", OPTION_COUNT, &(words)->block, "N",                                               \
            "queries and keys of such a block; default 128"                                        \
    }

typedef struct call_layout {
    const char *text; /* of --lengths, or NULL */
    bool
        as_segments; /* the operation has no cumulative lengths: segment ids tell sequences apart */
    int64_t *lengths; /* of the sequences, or NULL */
    int64_t count, total;
    double alive; /* what was asked for; 0 = no blocks */
    int64_t block;
} call_layout;

/*
 * Reads the flags for an operation, which has to have arguments for them; closed by the caller also after a
 * failure.
 */
bool layout_open(const layout_words *words, const ejk_kernel *kernel, call_layout *out);
void layout_close(call_layout *layout);

/* True if there is anything to lay out. */
bool layout_given(const call_layout *layout);

/* The optional tensors that have to be declared, "cum_seqlens_q,cum_seqlens_k"; NULL for none. */
const char *layout_tensors(const call_layout *layout);

/* Binds the symbols of the shape that follow from the layout: T, S and N, or the cells of a grid. */
bool layout_sizes(const call_layout *layout, ejk_axes *axes);

/* Sets those arguments that are no tensors. */
bool layout_arguments(const call_layout *layout, const op_call *call);

/* Fills those of its tensors that have memory. */
void layout_fill(const call_layout *layout, const ejk_kernel *kernel, void *args);

/* Gives them memory that the call owns, and fills them. */
bool layout_own(const call_layout *layout, op_call *call);

/* Scores of one head that are visible: what positions and this layout leave. */
double layout_scores(const call_layout *layout, const op_call *call, const ejk_axes *axes);

/* The length of equally long sequences, as many of them, that have as many scores. */
int64_t layout_even_length(const call_layout *layout);

#endif

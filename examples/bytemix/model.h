/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level language model of several kinds of layers, that reads any number of texts at once: keys and values lie
 * in pages, states of recurrent layers in slots, and the caller says which belong to which text. It reads the files of
 * examples/data/bytemix (all kinds of layers) and of examples/data/bytelm (attention and dense layers).
 * Every function answers as the library's do. A model is used by one thread at a time.
 */
#ifndef BYTEMIX_MODEL_H
#define BYTEMIX_MODEL_H

#include <ejkernel/ejkernel.h>

/* Hands a failure on to the caller. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const ejk_status status_ = (call);                                                         \
        if (status_ != EJK_OK) return status_;                                                     \
    } while (0)

enum {
    BYTEMIX_VOCABULARY = 256,
    BYTEMIX_CONTEXT = 1024, /* the most bytes of a text */
    BYTEMIX_PAGE = 16,      /* bytes whose keys and values are in a page */
    BYTEMIX_TABLE = BYTEMIX_CONTEXT / BYTEMIX_PAGE
};

typedef struct bytemix bytemix;

/* Zero means default. */
typedef struct bytemix_options {
    const char *folder;  /* NULL: examples/data/bytemix */
    const char *weights; /* a name of bytemix_formats; NULL: as the file has them */
    const char
        *device;     /* "cpu", "cuda" or "cuda:1"; NULL: cpu. On a GPU all numbers have `dtype` */
    ejk_dtype dtype; /* of products' inputs and of caches: f32, bf16 or f16; unset: f32 */
    int rows;        /* the most bytes of a step; 0: 256 */
    int pages;       /* of the caches; 0: those of one text */
    int slots;       /* of the states; 0: one */
} bytemix_options;

/* Formats of quantised weights, NULL behind the last. */
extern const char *const bytemix_formats[];

/* It computes in `context`, which has to outlive it. */
EJK_NODISCARD ejk_status bytemix_open(ejk_context *context, const bytemix_options *options,
                                      bytemix **out);

/* NULL is allowed. */
void bytemix_close(bytemix *model);

/* What a step reads: some bytes of some texts. A text whose first bytes are among them starts its states anew. */
typedef struct bytemix_batch {
    int texts, rows;
    const uint8_t *bytes; /* [rows], one text after the other */
    int32_t *starts;      /* [texts + 1]: 0 and the ends of the texts' bytes */
    int32_t *lengths; /* [texts]: bytes of the text read so far, those of this step among them */
    int32_t *pages;   /* [texts, BYTEMIX_TABLE]: as many of each text as its length needs */
    int32_t *slots;   /* [texts] */
} bytemix_batch;

/*
 * Reads a batch. `logits` [rows, BYTEMIX_VOCABULARY] gets, for each byte, the unnormalised log-probabilities of the
 * next one. If it fails, pages and slots of the batch hold nothing of use.
 */
EJK_NODISCARD ejk_status bytemix_step(bytemix *model, const bytemix_batch *batch, float *logits);

/* Copies the states of a slot, as they are after the bytes that were read: another text may go on from there. */
EJK_NODISCARD ejk_status bytemix_copy_slot(bytemix *model, int from, int to);

/*
 * For one text, which has all pages from 0 on and slot 0: reads `count` bytes behind the `position` that were read
 * before, in steps of as many as fit.
 */
EJK_NODISCARD ejk_status bytemix_read(bytemix *model, int position, const uint8_t *bytes, int count,
                                      float *logits);

/* The likeliest byte of one row of logits. */
uint8_t bytemix_likeliest(const float *logits);

#endif

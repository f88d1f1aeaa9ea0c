/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continuous batching: each step reads the next byte of every text that is being written, and, in what is left of the
 * step's rows, chunks of new prompts. Caches are pages of a pool; a prompt that begins as another one takes the pages
 * of what they share, and a copy of the recurrent states. When no page is free, the youngest text gives its pages up,
 * and is read again later.
 */
#ifndef SERVE_ENGINE_H
#define SERVE_ENGINE_H

#include "../bytemix/model.h"

enum { ENGINE_ROWS = 512, ENGINE_PAGES = 4096, ENGINE_RUNNING = 64, ENGINE_PREFIXES = 8 };

/* Beyond the numbers above: INVALID_ARGUMENT. The model has to have rows, pages, and slots for texts and prefixes. */
typedef struct engine_options {
    int rows;     /* of a step */
    int pages;    /* of the caches */
    int running;  /* texts that have a slot */
    int prefixes; /* that are kept for later prompts */
} engine_options;

typedef enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_DONE } request_state;

typedef struct request {
    int id;
    uint8_t bytes[BYTEMIX_CONTEXT]; /* the prompt, and what has been written behind it */
    int prompt, length, end;        /* bytes of the prompt, bytes so far, bytes when it is done */
    request_state state;
    int read; /* bytes whose keys, values and states are kept */
    int rows; /* bytes that the present step reads */
    int slot, page_count;
    int32_t pages[BYTEMIX_TABLE];
    int share;  /* bytes at whose end a prefix is to be left for others; 0: none */
    int shared; /* bytes taken from prefixes */
    int preempted;
    double arrived, first, finished; /* seconds since the engine was opened */
} request;

/* What a step has done. */
typedef struct engine_event {
    int request, rows;
    bool writes; /* it gave a byte */
    double start, end;
    int used; /* pages in use */
} engine_event;

typedef struct engine engine;

EJK_NODISCARD ejk_status engine_open(bytemix *model, engine_options options, engine **out);
void engine_close(engine *e); /* NULL is allowed */

/* A text to be continued by `count` bytes, which came at a time. INVALID_ARGUMENT if it could never be. */
EJK_NODISCARD ejk_status engine_submit(engine *e, double time, const uint8_t *prompt, int length,
                                       int count);

/* Does one step; `busy` is false if there was nothing to do. */
EJK_NODISCARD ejk_status engine_step(engine *e, bool *busy);
void engine_drop_prefixes(engine *e);

/* What an engine has, by age. */
typedef struct engine_view {
    request *const *requests;
    const engine_event *events;
    int request_count, event_count, free_pages;
} engine_view;

engine_view engine_look(const engine *e);
double engine_seconds(const engine *e);

/* Draws what happened as SVG. IO if the file cannot be written. */
EJK_NODISCARD ejk_status engine_draw(const engine *e, const char *path);

#endif

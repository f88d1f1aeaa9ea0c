/* SPDX-License-Identifier: Apache-2.0 */
/* The one thing of this room that a higher one needs: a context before the library's own parts are in. */
#ifndef EJKI_OPS_CORE_CONTEXT_H
#define EJKI_OPS_CORE_CONTEXT_H

#include <ejkernel/context.h>

/* As ejk_context_create(), without kernels and with an empty registry. */
ejk_status ejki_context_create(const ejk_context_options *options, ejk_context **out);

/*
 * A context that shares threads, registry and kernels with `base`, which must outlive it, and has a chooser
 * and plans of its own. NULL chooser: the call's own configuration, else heuristics.
 */
ejk_status ejki_context_derive(ejk_context *base, const ejk_config_chooser *chooser,
                               ejk_context **out);

/* Has an object destroyed with the context, after its plans. At most once. */
void ejki_context_own(ejk_context *context, void *object, void (*destroy)(void *object));

/* Gives a derived context a single thread of its own in place of its base's. OUT_OF_MEMORY. */
ejk_status ejki_context_use_one_thread(ejk_context *context);

/* On which its calls on a GPU are enqueued. */
void *ejki_context_stream(const ejk_context *context);

/* Calls the context's event hook; `fields` is a JSON object. */
void ejki_context_event(const ejk_context *context, const char *event, const char *fields);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flags, as `--name value` or `--name=value`. A command has some of its own; all others come from the
 * record of an operation's arguments, whose fields they are, with "-" for "_".
 */
#ifndef EJK_CLI_OPTIONS_H
#define EJK_CLI_OPTIONS_H

#include "cli.h"

/* What an own flag takes, and what its target is. */
typedef enum option_kind {
    OPTION_ALONE,  /* nothing: bool */
    OPTION_TEXT,   /* const char * */
    OPTION_TEXTS,  /* the same, any number of times: texts */
    OPTION_NUMBER, /* double, above 0 */
    OPTION_COUNT,  /* int32_t, 1 or more */
    OPTION_TIME,   /* double, seconds, above 0: "30s", "500ms", "2m" */
} option_kind;

typedef struct texts {
    const char **items; /* room for as many as there are words */
    int count;
} texts;

typedef struct option {
    const char *name; /* without "--"; "" takes the words that are no flags; NULL ends a list */
    option_kind kind;
    void *target;
    const char *value; /* how help names what it takes; "" for none */
    const char *doc;
} option;

/* Items of problem text, one after the other; zeroed at first, `text` is freed by the caller. */
typedef struct item_text {
    char *text;
    size_t length, room;
} item_text;

/* Adds text, or ",name=value" with the value quoted where it has to be. */
__attribute__((format(printf, 2, 3))) bool item_text_add(item_text *items, const char *format, ...);
bool item_text_value(item_text *items, const char *name, const char *value);

/* Where the flags go that are fields. */
typedef struct field_flags {
    const ejk_kernel *kernel;
    void *args;       /* the struct that kernel->args describes; NULL: `items` takes them */
    item_text *items; /* the flags as items of problem text, or NULL */
    const char *
        *files; /* by index of the field: what is given for a tensor. NULL: tensors are refused */
    const char **updated; /* the same for --NAME-out, what became of one that is updated; or NULL */
} field_flags;

/* Room for as many texts as there are words; it is freed by the caller. */
bool options_texts(int count, texts *out);

/* Reads all words. NULL `fields`: there are own flags only. */
bool options_parse(int count, char **words, const option *own, const field_flags *fields);

/* Prints own flags as a table. */
bool options_help(const option *own);

/* True if help is asked for anywhere in the words. */
bool options_ask_help(int count, char **words);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is written whole or not at all: what is written goes to a file beside it, which takes its
 * place at the end. Standard output, pipes and devices are written to as they are.
 */
#ifndef EJK_CLI_OUTPUT_H
#define EJK_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct output_file {
    FILE *file;       /* to write to */
    const char *path; /* as it was given; it has to outlive this */
    char *target;     /* the file to replace, behind links; NULL = written to as it is */
    char *beside;     /* what is written until then */
} output_file;

/* "-" is standard output. False after a sentence. */
bool output_open(const char *path, output_file *out);

/*
 * Ends the writing; without `keep` the file stays as it was. False after a sentence, if it could not be
 * written; that standard output could not be is said at the end of the command.
 */
bool output_close(output_file *out, bool keep);

#endif

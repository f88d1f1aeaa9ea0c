/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the command share. Functions that can fail say why on stderr, once, where it happens,
 * and answer false; a command turns that into the exit status FAILED.
 */
#ifndef EJK_CLI_H
#define EJK_CLI_H

#include <ejkernel/ejkernel.h>

#include <jansson.h>

/* Exit statuses of the process. */
enum { DONE = 0, DIFFERS = 1, FAILED = 2 };

/* The commands; `words` are those behind the command's name. */
int info_command(int count, char **words);
int run_command(int count, char **words);
int bench_command(int count, char **words);
int tune_command(int count, char **words);
int cache_command(int count, char **words);
int explain_command(int count, char **words);
int prebuild_command(int count, char **words);
int labels_command(int count, char **words);
int mask_info_command(int count, char **words);
int mask_command(int count, char **words);

/* Prints "ejk: " and the sentence. Always false. */
__attribute__((format(printf, 1, 2))) bool report_error(const char *format, ...);

/* True if the library's call went well; else its sentence is printed. */
bool succeeded(ejk_status status);

/* Prints a value that is handed over; NULL stands for memory that could not be had. */
bool print_json(json_t *value);

/*
 * A context to look names up in: it takes no notice of EJKERNEL_ISA, so that a wrong value there does not
 * hide what exists.
 */
bool open_catalogue(ejk_context **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk mask-info`: requests about masks answered, as ejk(1) says. */
#define _GNU_SOURCE 1
#include "file.h"
#include "options.h"
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct mask_info_request {
    const char *spec, *output;
    int32_t threads, limit;
    bool batch, help;
} mask_info_request;

/* What all answers of one run share. */
typedef struct answering {
    const char *output_path;
    FILE *output;
    ejk_splash_answer_options options;
} answering;

static bool put(void *user, const char *bytes, size_t count) {
    return fwrite(bytes, 1, count, user) == count;
}

/* Standard output's own failure is told at the end of the command. */
static bool unwritten(const answering *to) {
    return to->output != stdout &&
           report_error("%s could not be written: %s", to->output_path, strerror(errno));
}

/* One answer, one line. False: it could not be written. */
static bool answer(const answering *to, const char *text, size_t size, bool *is_result) {
    ejk_status status = ejk_splash_answer(text, size, &to->options, put, to->output, is_result);
    if (status != EJK_OK && status != EJK_STATUS_IO) return succeeded(status);
    if (status != EJK_OK || fputc('\n', to->output) == EOF) return unwritten(to);
    return true;
}

static int answer_one(const mask_info_request *request, const answering *to) {
    char *text;
    size_t size;
    bool is_result = false;
    if (!file_read(request->spec, &text, &size)) return FAILED;
    bool answered = answer(to, text, size, &is_result);
    free(text);
    if (!answered) return FAILED;
    if (!is_result) report_error("%s", ejk_last_error());
    return is_result ? DONE : DIFFERS;
}

static bool is_blank(const char *line, size_t size) {
    while (size > 0 && strchr(" \t\r\n", line[size - 1]) && line[size - 1]) size--;
    return size == 0;
}

/* Answers go out one by one, so that a program at the other end of two pipes can talk with this one. */
static bool answer_lines(const answering *to, FILE *spec, const char *path) {
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    bool answered = true, is_result;
    while (answered && (errno = 0, size = getline(&line, &room, spec)) >= 0)
        if (!is_blank(line, (size_t)size))
            answered = answer(to, line, (size_t)size, &is_result) &&
                       (fflush(to->output) == 0 || unwritten(to));
    if (answered && !feof(spec))
        answered = report_error("%s could not be read: %s", path, strerror(errno));
    free(line);
    return answered;
}

static int answer_batch(const mask_info_request *request, const answering *to) {
    bool standard = strcmp(request->spec, "-") == 0;
    FILE *spec = standard ? stdin : fopen(request->spec, "rb");
    if (!spec) {
        report_error("%s could not be read: %s", request->spec, strerror(errno));
        return FAILED;
    }
    bool answered = answer_lines(to, spec, request->spec);
    if (!standard) fclose(spec);
    return answered ? DONE : FAILED;
}

/* Neither more than half of the memory: a line that asks for it must not end the others. */
static int64_t most_bytes(int32_t limit) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    int64_t half = pages > 0 && size > 0 ? (int64_t)pages / 2 * size : INT64_MAX;
    int64_t bytes = (int64_t)limit << 20;
    return bytes < half ? bytes : half;
}

static int answer_all(const mask_info_request *request) {
    output_file output;
    ejk_threads *threads;
    if (!request->spec) {
        report_error("mask-info needs a request: --spec FILE");
        return FAILED;
    }
    if (!succeeded(ejk_threads_create(request->threads, &threads))) return FAILED;
    int status = FAILED;
    if (output_open(request->output, &output)) {
        const answering to = {
            .output_path = request->output,
            .output = output.file,
            .options = {.threads = threads, .max_bytes = most_bytes(request->limit)}};
        status = request->batch ? answer_batch(request, &to) : answer_one(request, &to);
        if (!output_close(&output, status != FAILED)) status = FAILED;
    }
    ejk_threads_destroy(threads);
    return status;
}

static bool print_help(const option *own) {
    puts("usage: ejk mask-info --spec FILE [--flag value]...\n\n"
         "Answers a request about masks, in JSON: the block-sparse form of a mask, its elements, "
         "or\n"
         "whether two masks are equal. Exit status 1 says that the answer is an error.\n");
    return options_help(own);
}

int mask_info_command(int count, char **words) {
    mask_info_request request = {.output = "-", .threads = ejk_threads_default(), .limit = 128};
    const option own[] = {
        {"spec", OPTION_TEXT, &request.spec, "FILE", "the request; - is standard input"},
        {"output", OPTION_TEXT, &request.output, "FILE", "where the answer goes; default -"},
        {"batch", OPTION_ALONE, &request.batch, "", "a request a line, an answer a line"},
        {"threads", OPTION_COUNT, &request.threads, "N", "threads; default all cores"},
        {"limit", OPTION_COUNT, &request.limit, "MIB", "MiB of arrays at most; default 128"},
        {"help", OPTION_ALONE, &request.help, "", "this text"},
        {.name = NULL}};
    if (options_ask_help(count, words)) return print_help(own) ? DONE : FAILED;
    return options_parse(count, words, own, NULL) ? answer_all(&request) : FAILED;
}

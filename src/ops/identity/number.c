/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers in Python's form: the fewest digits that read back as the same number, and of those the
 * nearest. The C library rounds correctly in both directions, so digits are tried from one upwards.
 */
#include "ops/identity/write.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct decimal {
    uint64_t digits; /* value = digits · 10^exponent */
    int exponent;
} decimal;

static bool reads_back(decimal number, double value) {
    char text[48]; /* without a point, whose shape the locale decides */
    snprintf(text, sizeof text, "%" PRIu64 "e%d", number.digits, number.exponent);
    return strtod(text, NULL) == value;
}

static decimal rounded(double value, int digits) {
    char text[48];
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    decimal number = {0, 0};
    const char *c = text;
    for (; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') number.digits = number.digits * 10 + (uint64_t)(*c - '0');
    number.exponent = atoi(c + 1) - (digits - 1);
    return number;
}

/*
 * Above a power of two the doubles lie twice as far apart as below, so the nearest decimal of some
 * length, being below, may not read back while its upper neighbour does: 2^-44 = 5.684341886080802e-14.
 */
static decimal shortest(double value) {
    decimal number = {0, 0};
    for (int digits = 1; digits <= 17; digits++) {
        number = rounded(value, digits);
        if (reads_back(number, value)) break;
        decimal above = {number.digits + 1, number.exponent};
        if (reads_back(above, value)) return above;
    }
    return number;
}

void ejki_float_text(double value, char text[EJKI_FLOAT_SIZE]) {
    decimal number = shortest(fabs(value));
    while (number.digits > 0 && number.digits % 10 == 0) {
        number.digits /= 10;
        number.exponent++;
    }
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%" PRIu64, number.digits);
    int point = number.digits > 0 ? count + number.exponent : 1; /* digits before the point */
    const char *sign = signbit(value) ? "-" : "";
    if (point > 16 || point < -3) {
        snprintf(text, EJKI_FLOAT_SIZE, "%s%c%s%se%+03d", sign, digits[0], count > 1 ? "." : "",
                 digits + 1, point - 1);
    } else if (point <= 0) {
        snprintf(text, EJKI_FLOAT_SIZE, "%s0.%.*s%s", sign, -point, "000", digits);
    } else if (point >= count) {
        snprintf(text, EJKI_FLOAT_SIZE, "%s%s%.*s.0", sign, digits, point - count,
                 "0000000000000000");
    } else {
        snprintf(text, EJKI_FLOAT_SIZE, "%s%.*s.%s", sign, point, digits, digits + point);
    }
}

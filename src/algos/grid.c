/* All-to-all on a grid: ranks are cells of `width` columns, a row being consecutive ranks: the innermost groups, or
 * else p = width * height, as near to a square as it divides. First every rank sends along its row what is for each
 * column, then, along its column, what is for each row. Fewer and larger messages, width + height - 2 instead of p -
 * 1, for twice the bytes; and where a row is a host, all that leaves it goes in height - 1 messages a rank.
 *
 * Cost two rounds, (2 p - width - height)/p n. Source: folklore; see Bruck et al., IEEE TPDS 8(11), 1997, of which this
 *   is the two-digit case, and the two-dimensional all-to-all of Tutel (Hwang et al., MLSys 2023). */
#include "algos/builders.h"
#include "algos/levels.h"
#include "algos/patterns.h"

/* Slot x + width * y holds, between the phases, the block of the rank in column x of this row for the one in row y of
 * this column: so what a rank receives is a column of slots, and what it sends on a row. */
void hkt__build_all_to_all_grid(struct hkt__builder *b)
{
    const int width = b->levels != NULL ? b->levels->sizes[0] : hkt__near_square(b->nranks), height = b->nranks / width;
    const int x = b->rank % width, y = b->rank / width;

    for (int k = 0; k < width; k++) {
        const int to = (x + k) % width, from = (x - k + width) % width;
        const struct hkt__operand for_column = hkt__range(b, HKT__IN, to, width, height);
        const struct hkt__operand column = hkt__slots(b, from, width, hkt__range(b, HKT__IN, 0, 0, height));

        if (k == 0) {
            hkt__copy(b, 0, column, for_column);
            continue;
        }
        hkt__send(b, to + width * y, 0, for_column);
        hkt__recv(b, from + width * y, 0, column);
    }
    for (int k = 0; k < height; k++) {
        const int to = (y + k) % height, from = (y - k + height) % height;
        const struct hkt__operand row = hkt__scratch(b, width * to, hkt__range(b, HKT__IN, 0, 0, width));
        const struct hkt__operand from_row = hkt__range(b, HKT__OUT, width * from, 1, width);

        if (k == 0) {
            hkt__copy(b, 0, from_row, row);
            continue;
        }
        hkt__send(b, x + width * to, 0, row);
        hkt__recv(b, x + width * from, 0, from_row);
    }
}

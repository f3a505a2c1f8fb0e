// A filter asked of a whole table at once, over columns: the answer is a bit for each row, before any vector is looked at.
//
// An operator is asked of the distinct values of its field, not of the rows, and the rows are mapped through the answers;
// numbers that stand in the column itself are compared there. $and, $or and $not combine words of 64 rows. What columns
// do not settle (a field whose column does not fit, integers beyond 2^53 that are rounded there) is asked of the rows,
// but only of those on which the answer still depends. The mask is that of Filter::matches, row by row, in every case.
//
// Tables of fewer than fewest_rows_for_columns rows have no columns: asking their rows is cheaper than keeping them.
#pragma once

#include "base/result.h"
#include "engine/column_set.h"
#include "engine/filter.h"
#include "engine/pass.h"

namespace kalos {

inline constexpr uint32_t fewest_rows_for_columns = 64;

// Errors: expired_error(). What was built of columns by then is kept, so that trying again comes further.
Result<FilterMask> match_rows(Filter& filter, ColumnSet& columns, const RowTable& rows, Deadline& deadline);

// Reads at most so many rows into the columns that the filter needs. True: match_rows now reads none, except for fields
// whose column does not fit. A search that cannot wait for all of a large table builds a part and asks rows meanwhile.
bool build_columns(const Filter& filter, ColumnSet& columns, const RowTable& rows, uint64_t most_rows);

}  // namespace kalos

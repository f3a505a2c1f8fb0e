// Failpoints: named places where a test lets the process die as if by kill -9.
//
// KALOS_FAILPOINT=name[:count] is read once at start: the process kills itself the count-th time (1 by default) that it
// passes failpoint("name"). KALOS_FAILPOINT=name@PATH makes a gate of it: whoever comes to it waits while there is a file
// at PATH. Unset, a failpoint is one load of a plain bool.
//
//   mid_transaction  after each operation of a write, before its commit
//   before_commit    everything is written but COMMIT
//   after_commit     on disk, not yet published
//   after_publish    visible, not yet acknowledged
//   checkpoint       before the log is moved into the file
//   pass             before a pass of reads, with the engine lock held
//   load             after each row that is read at the start
//   migration_copied the older file is copied beside, nothing of the migration is begun
//   migration_done   everything is migrated but the COMMIT
#pragma once

#include <string_view>

namespace kalos {

extern bool failpoints_armed;

// What the variable would have said; "" disarms. For tests that fork. Not while other threads run.
void arm_failpoint(std::string_view name_and_count);

void pass_failpoint(std::string_view name);

inline void failpoint(std::string_view name) {
  if (failpoints_armed) [[unlikely]]
    pass_failpoint(name);
}

}  // namespace kalos

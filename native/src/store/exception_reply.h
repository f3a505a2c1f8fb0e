// What a request is told that was ended by an exception. Nothing that a client sends may end kalosd, on whom all others
// depend: each thread catches at the border of a request, so that the request fails alone.
#pragma once

#include "engine/jobs.h"

namespace kalos {

// To be called in a catch block. OVERLOADED where there was no memory: a limit of the system's, or of the container's,
// since --memory only counts rows; else INTERNAL. Where there is no memory for the words either, they are missing.
Reply exception_reply() noexcept;

}  // namespace kalos

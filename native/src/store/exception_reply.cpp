#include "store/exception_reply.h"

#include <exception>
#include <new>
#include <string>

#include "base/log.h"
#include "engine/reply.h"

namespace kalos {

Reply exception_reply() noexcept {
  Reply reply;
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      reply.status = KALOS_STATUS_OVERLOADED;
      reply = error_reply({KALOS_STATUS_OVERLOADED,
                           "kalosd got no memory for this request; nothing was done. Ask for less at once, or give it "
                           "more (ulimit -v, the container's limit)"});
    } catch (const std::exception& fault) {
      reply.status = KALOS_STATUS_INTERNAL;
      std::string words = std::string("a fault in kalosd ended this request: ") + fault.what();
      log(LogLevel::error, words);
      reply = error_reply({KALOS_STATUS_INTERNAL, words + "; please report it"});
    }
  } catch (...) {
    reply.message.clear();
  }
  return reply;
}

}  // namespace kalos

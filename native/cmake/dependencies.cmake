# What kalosd is linked with, each found in the first of these places:
#
#   SQLite          KALOS_SQLITE_DIR (a folder with sqlite3.c and sqlite3.h), the system (static where the archive is
#                   there), the amalgamation of a fixed release
#   nlohmann-json   KALOS_JSON_DIR (a folder with nlohmann/json.hpp), the system, a fixed release
#   threads         the system
#
# The fixed releases are downloaded by CMake and must have the hash written here. KALOS_DOWNLOAD=OFF forbids that.
find_package(Threads REQUIRED)
include(FetchContent)
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW) # unpacked files are as old as their unpacking, so that they are compiled again
endif()

set(KALOS_SQLITE_DIR "" CACHE PATH "folder with sqlite3.c and sqlite3.h, instead of the system's SQLite")
set(KALOS_JSON_DIR "" CACHE PATH "folder with nlohmann/json.hpp, instead of the system's nlohmann-json")
option(KALOS_DOWNLOAD "download a dependency that the system lacks, pinned by hash" ON)

# Downloads `url` unless it has already, and sets `result` to where it was unpacked. `package`, `option` and `what` are for
# the words where that is not allowed.
function(kalos_fetch result name url hash package option what)
  if(NOT KALOS_DOWNLOAD)
    message(FATAL_ERROR
      "${what} is missing. Either install it (Debian and Ubuntu: apt install ${package}), or unpack its sources and pass "
      "-D${option}=FOLDER, or let CMake download ${url} with -DKALOS_DOWNLOAD=ON.")
  endif()
  message(STATUS
    "${what} is not installed (Debian and Ubuntu: apt install ${package}): downloading ${url}. Without a network, unpack "
    "its sources and pass -D${option}=FOLDER.")
  # A folder without a CMakeLists.txt of its own: unpacked, never configured as a part of this build.
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${hash} SOURCE_SUBDIR kalos-has-no-part-here)
  FetchContent_MakeAvailable(${name})
  set(${result} "${${name}_SOURCE_DIR}" PARENT_SCOPE)
endfunction()

# ---- SQLite -----------------------------------------------------------------------------------------------------------

add_library(kalos_sqlite INTERFACE)
add_library(kalos::sqlite ALIAS kalos_sqlite)
find_path(KALOS_SQLITE_INCLUDE sqlite3.h)
find_library(KALOS_SQLITE_LIBRARY NAMES libsqlite3.a sqlite3)

if(NOT KALOS_SQLITE_DIR AND KALOS_SQLITE_INCLUDE AND KALOS_SQLITE_LIBRARY)
  target_include_directories(kalos_sqlite SYSTEM INTERFACE ${KALOS_SQLITE_INCLUDE})
  target_link_libraries(kalos_sqlite INTERFACE ${KALOS_SQLITE_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} m)
else()
  set(sqlite_dir "${KALOS_SQLITE_DIR}")
  if(NOT sqlite_dir)
    kalos_fetch(sqlite_dir kalos_sqlite_source https://www.sqlite.org/2024/sqlite-amalgamation-3460100.zip
                77823cb110929c2bcb0f5d48e4833b5c59a8a6e40cdea3936b99e199dbbe5784 libsqlite3-dev KALOS_SQLITE_DIR
                "SQLite (with its development files)")
  endif()
  if(NOT EXISTS "${sqlite_dir}/sqlite3.c" OR NOT EXISTS "${sqlite_dir}/sqlite3.h")
    message(FATAL_ERROR "KALOS_SQLITE_DIR must hold sqlite3.c and sqlite3.h (the amalgamation): ${sqlite_dir} does not")
  endif()
  add_library(kalos_sqlite_amalgamation STATIC "${sqlite_dir}/sqlite3.c")
  target_include_directories(kalos_sqlite_amalgamation SYSTEM PUBLIC "${sqlite_dir}")
  # As Debian builds it where it matters here: threads allowed, full text included.
  target_compile_definitions(kalos_sqlite_amalgamation PRIVATE SQLITE_THREADSAFE=1 SQLITE_ENABLE_FTS5
                             SQLITE_OMIT_LOAD_EXTENSION SQLITE_DQS=0)
  target_compile_options(kalos_sqlite_amalgamation PRIVATE -w)
  target_link_libraries(kalos_sqlite_amalgamation PUBLIC Threads::Threads m)
  target_link_libraries(kalos_sqlite INTERFACE kalos_sqlite_amalgamation)
endif()

# ---- nlohmann-json ----------------------------------------------------------------------------------------------------

if(NOT KALOS_JSON_DIR)
  find_package(nlohmann_json 3.10 QUIET)
endif()
if(NOT nlohmann_json_FOUND)
  set(json_dir "${KALOS_JSON_DIR}")
  if(NOT json_dir)
    kalos_fetch(json_dir kalos_json_source https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
                d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d nlohmann-json3-dev KALOS_JSON_DIR
                "nlohmann-json")
    set(json_dir "${json_dir}/include")
  endif()
  if(NOT EXISTS "${json_dir}/nlohmann/json.hpp")
    message(FATAL_ERROR "KALOS_JSON_DIR must hold nlohmann/json.hpp: ${json_dir} does not")
  endif()
  add_library(kalos_json INTERFACE)
  target_include_directories(kalos_json SYSTEM INTERFACE "${json_dir}")
  add_library(nlohmann_json::nlohmann_json ALIAS kalos_json)
endif()

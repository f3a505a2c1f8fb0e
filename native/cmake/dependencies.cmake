# SQLite (linked statically where the archive is there), nlohmann-json and threads: from the system, else FetchContent
# pinned by hash.
find_package(Threads REQUIRED)

find_package(nlohmann_json 3.10 QUIET)
find_path(KALOS_SQLITE_INCLUDE sqlite3.h)
find_library(KALOS_SQLITE_LIBRARY NAMES libsqlite3.a sqlite3)

add_library(kalos_sqlite INTERFACE)
add_library(kalos::sqlite ALIAS kalos_sqlite)
if(KALOS_SQLITE_INCLUDE AND KALOS_SQLITE_LIBRARY)
  target_include_directories(kalos_sqlite SYSTEM INTERFACE ${KALOS_SQLITE_INCLUDE})
  target_link_libraries(kalos_sqlite INTERFACE ${KALOS_SQLITE_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} m)
else()
  message(FATAL_ERROR "SQLite's development files are missing: on Debian and Ubuntu, apt install libsqlite3-dev")
endif()

if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann-json is missing: on Debian and Ubuntu, apt install nlohmann-json3-dev")
endif()

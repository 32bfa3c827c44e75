# Writes OUTPUT with the commit of SOURCE_DIR; leaves it untouched where nothing changed, so nothing is rebuilt.
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND "${git}" describe --always --dirty=+changes --exclude=* --abbrev=12
                  WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(commit "${described}")
  endif()
endif()
set(text "#pragma once\n\nnamespace kvant::cli {\n\ninline constexpr const char* kCommit = \"${commit}\";\n\n}\n")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT before STREQUAL text)
  file(WRITE "${OUTPUT}" "${text}")
endif()

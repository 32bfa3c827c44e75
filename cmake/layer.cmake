# One target a layer. What a layer links is its row in layers.json, the same table the include test reads.
file(READ "${PROJECT_SOURCE_DIR}/cmake/layers.json" KVANT_LAYER_TABLE)

add_library(kvant_flags INTERFACE)
target_compile_options(kvant_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
  -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual $<$<BOOL:${KVANT_WERROR}>:-Werror>)

# kvant_layer(<name> SOURCES <file>... [LINK <private library>...])
function(kvant_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(kvant_${name} STATIC ${ARG_SOURCES})
  add_library(kvant::${name} ALIAS kvant_${name})
  target_include_directories(kvant_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(kvant_${name} PRIVATE kvant_flags ${ARG_LINK})
  string(JSON count LENGTH "${KVANT_LAYER_TABLE}" ${name} layers)
  if(count GREATER 0)
    math(EXPR last "${count} - 1")
    foreach(index RANGE ${last})
      string(JSON below GET "${KVANT_LAYER_TABLE}" ${name} layers ${index})
      target_link_libraries(kvant_${name} PUBLIC kvant_${below})
    endforeach()
  endif()
endfunction()

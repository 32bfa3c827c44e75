# llama.cpp and ggml: weights, matrix products, tokenizer, samplers; the oracle in tests (docs/adr/0001).
# Source: KVANT_LLAMA_DIR, by default what scripts/setup.sh unpacked from the pinned sdist.
set(KVANT_LLAMA_DIR "${PROJECT_SOURCE_DIR}/build/deps/llama.cpp" CACHE PATH "llama.cpp source tree")
set(KVANT_GGML_VERSION 0.25.3)

if(NOT EXISTS "${KVANT_LLAMA_DIR}/ggml/CMakeLists.txt")
  message(FATAL_ERROR "no llama.cpp source in ${KVANT_LLAMA_DIR}: run scripts/setup.sh, "
                      "set KVANT_LLAMA_DIR, or configure with -DKVANT_CORE_ONLY=ON")
endif()
file(STRINGS "${KVANT_LLAMA_DIR}/ggml/CMakeLists.txt" _version_lines REGEX "set\\(GGML_VERSION_(MAJOR|MINOR|PATCH) [0-9]+\\)")
string(REGEX MATCHALL "[0-9]+" _version "${_version_lines}")
list(JOIN _version "." _version)
if(NOT _version STREQUAL KVANT_GGML_VERSION)
  message(FATAL_ERROR "ggml ${_version} found in ${KVANT_LLAMA_DIR}; Kvant is built and tested with ${KVANT_GGML_VERSION} only")
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON)
set(GGML_NATIVE OFF)
set(GGML_OPENMP OFF)      # one pool, visible to ThreadSanitizer
set(GGML_LLAMAFILE OFF)   # its GEMM rounds differently for one column than for many: docs/adr/0004
set(GGML_CCACHE OFF)      # the launcher is set for the whole project
set(GGML_ALL_WARNINGS OFF)
set(LLAMA_ALL_WARNINGS OFF)
foreach(_feature SSE42 AVX AVX2 BMI2 FMA F16C)
  set(GGML_${_feature} OFF) # ggml-cpu itself is the baseline variant
endforeach()
foreach(_part COMMON TOOLS TESTS EXAMPLES SERVER APP)
  set(LLAMA_BUILD_${_part} OFF)
endforeach()
set(LLAMA_CURL OFF)
set(LLAMA_OPENSSL OFF)
add_subdirectory("${KVANT_LLAMA_DIR}" "${PROJECT_BINARY_DIR}/llama.cpp" EXCLUDE_FROM_ALL SYSTEM)

# The variants Kvant loads by its own CPUID check (engine/backend.h). ggml's own variant list holds AMX, which
# traps on machines that advertise it and do not have it; so the baseline target is cloned with our flags.
function(kvant_ggml_cpu_variant name)
  get_target_property(_sources ggml-cpu SOURCES)
  get_target_property(_source_dir ggml-cpu SOURCE_DIR)
  get_target_property(_definitions ggml-cpu COMPILE_DEFINITIONS)
  get_property(_directory_definitions DIRECTORY "${_source_dir}" PROPERTY COMPILE_DEFINITIONS)
  get_target_property(_includes ggml-cpu INCLUDE_DIRECTORIES)
  list(FILTER _sources EXCLUDE REGEX "\\$<|cpu-feats")
  list(FILTER _sources EXCLUDE REGEX "generic")
  list(TRANSFORM _sources PREPEND "${_source_dir}/" REGEX "^[^/]")
  list(TRANSFORM _includes PREPEND "${_source_dir}/" REGEX "^[^/]")
  list(FILTER _definitions EXCLUDE REGEX "GGML_CPU_GENERIC")
  add_library(ggml-cpu-${name} MODULE EXCLUDE_FROM_ALL ${_sources})
  target_compile_definitions(ggml-cpu-${name} PRIVATE ${_definitions} ${_directory_definitions})
  target_include_directories(ggml-cpu-${name} PRIVATE ${_includes})
  target_compile_features(ggml-cpu-${name} PRIVATE c_std_11 cxx_std_17)
  target_compile_options(ggml-cpu-${name} PRIVATE ${ARGN})
  target_link_libraries(ggml-cpu-${name} PRIVATE ggml-base)
  set_target_properties(ggml-cpu-${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin") # where llama.cpp puts the baseline
endfunction()
set(_avx2 -msse4.2 -mavx -mf16c -mfma -mbmi2 -mavx2)
kvant_ggml_cpu_variant(avx2 ${_avx2})
kvant_ggml_cpu_variant(avx512vnni ${_avx2} -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw -mavx512vbmi -mavx512vnni)
add_custom_target(kvant_ggml_backends DEPENDS ggml-cpu ggml-cpu-avx2 ggml-cpu-avx512vnni)

# Chat templates: llama.cpp's own interpreter (a few files of common/), not the fixed list in libllama.
add_library(kvant_jinja STATIC EXCLUDE_FROM_ALL
  ${KVANT_LLAMA_DIR}/common/jinja/lexer.cpp ${KVANT_LLAMA_DIR}/common/jinja/parser.cpp
  ${KVANT_LLAMA_DIR}/common/jinja/runtime.cpp ${KVANT_LLAMA_DIR}/common/jinja/string.cpp
  ${KVANT_LLAMA_DIR}/common/jinja/value.cpp ${KVANT_LLAMA_DIR}/common/jinja/caps.cpp
  ${KVANT_LLAMA_DIR}/common/json.cpp ${KVANT_LLAMA_DIR}/common/unicode.cpp)
target_include_directories(kvant_jinja SYSTEM PUBLIC ${KVANT_LLAMA_DIR}/common PRIVATE ${KVANT_LLAMA_DIR}/vendor)
target_link_libraries(kvant_jinja PRIVATE ggml-base)
target_compile_features(kvant_jinja PUBLIC cxx_std_17)

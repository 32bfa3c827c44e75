# The network transport (docs/adr/0007): UCX moves messages, libcrypto proves the token. KVANT_UCX=AUTO builds it where
# both are; ON demands them; OFF leaves it out, and what needs it answers with an error that says so.
set(KVANT_UCX_ENABLED OFF)
if(NOT KVANT_UCX STREQUAL "OFF")
  find_package(ucx 1.13 CONFIG QUIET)
  find_package(OpenSSL 3.0 QUIET COMPONENTS Crypto)
  if(TARGET ucx::ucp AND TARGET ucx::ucs AND TARGET OpenSSL::Crypto)
    set(KVANT_UCX_ENABLED ON)
  elseif(KVANT_UCX STREQUAL "ON")
    message(FATAL_ERROR "KVANT_UCX=ON needs UCX 1.13 and OpenSSL 3.0: install libucx-dev and libssl-dev")
  else()
    message(STATUS "UCX transport: UCX 1.13 or OpenSSL 3.0 not found, not built")
  endif()
endif()

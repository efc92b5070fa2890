# Libraries for which Debian ships no CMake package. Sets: for each an imported target plimsoll_NAME, so that an installed Plimsoll finds
# it anew on its own machine.
foreach(name cpp-httplib csv pcre2-8 sentencepiece utf8proc)
  find_library(PLIMSOLL_LIBRARY_${name} ${name} REQUIRED)
  add_library(plimsoll_${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(plimsoll_${name} PROPERTIES IMPORTED_LOCATION "${PLIMSOLL_LIBRARY_${name}}")
endforeach()
# The sizes of httplib's classes depend on it.
set_target_properties(plimsoll_cpp-httplib PROPERTIES INTERFACE_COMPILE_DEFINITIONS CPPHTTPLIB_OPENSSL_SUPPORT)
# It has a flag of 32 bytes whose name is that of an integer in torch's libc10, FLAGS_minloglevel. The loader takes the first library that
# has a name: were that libc10, the flag's constructor would write over what stands behind the integer, and a failed allocation of
# torch would end the process in place of throwing. So a program names this library before torch's.
set_target_properties(plimsoll_sentencepiece PROPERTIES INTERFACE_LINK_OPTIONS
  "-Wl,--push-state,--no-as-needed,${PLIMSOLL_LIBRARY_sentencepiece},--pop-state")

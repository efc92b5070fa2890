# Target `headers`: each public header of plimsoll/, compiled by itself, is whole. A header is compiled again when it or what it includes
# has changed. By clang, which takes 0.8 s with torch's headers precompiled, where GCC instantiates their templates for 6 s. Headers of
# libraries that a header reaches are precompiled, in sets, and none that it does not reach: one that it forgot stays missing.
find_program(PLIMSOLL_CLANG NAMES clang++-14 clang++)
if(NOT PLIMSOLL_CLANG)
  add_custom_target(headers
    COMMAND ${CMAKE_COMMAND} -E echo "headers: expected clang++ to check them with, found none; run tools/setup --check, then configure again"
    COMMAND false)
  return()
endif()

set(folder ${CMAKE_BINARY_DIR}/headers)
file(MAKE_DIRECTORY ${folder})
set(clang ${PLIMSOLL_CLANG} -std=c++20 -w -I${CMAKE_SOURCE_DIR}
    -isystem$<JOIN:$<TARGET_PROPERTY:plimsoll_torch,INTERFACE_INCLUDE_DIRECTORIES>,$<SEMICOLON>-isystem>
    -D$<JOIN:$<TARGET_PROPERTY:plimsoll_torch,INTERFACE_COMPILE_DEFINITIONS>,$<SEMICOLON>-D>
    -D$<JOIN:$<TARGET_PROPERTY:plimsoll_cpp-httplib,INTERFACE_COMPILE_DEFINITIONS>,$<SEMICOLON>-D>)
set(of_tensor <ATen/core/TensorBody.h>)
set(of_torch ${PLIMSOLL_HEADERS_TORCH} <torch/nn/cloneable.h> <torch/nn/modules/container/modulelist.h>)
set(of_json <nlohmann/json.hpp>)
set(of_tensor_json ${of_tensor} ${of_json})
set(of_torch_json ${of_torch} ${of_json})
foreach(set tensor torch json tensor_json torch_json)
  set(precompiled_${set} -include-pch ${folder}/${set}.pch)
  list(JOIN of_${set} "\n#include " lines)
  file(CONFIGURE OUTPUT headers/${set}.hpp CONTENT "#include ${lines}\n" @ONLY)
  add_custom_command(OUTPUT ${folder}/${set}.pch
    COMMAND ${clang} -fpch-instantiate-templates -x c++-header ${folder}/${set}.hpp -o ${folder}/${set}.pch
    DEPENDS ${folder}/${set}.hpp ${PLIMSOLL_TORCH_PACKAGE}/version.py
    COMMENT "Headers of libraries (${set}) for the check of headers" COMMAND_EXPAND_LISTS VERBATIM)
endforeach()

function(plimsoll_check_header header set)
  string(REGEX REPLACE "[/.]" "_" name ${header})
  set(checked ${folder}/${name})
  add_custom_command(OUTPUT ${checked}
    COMMAND ${clang} ${precompiled_${set}} -fsyntax-only -MD -MF ${checked}.d -MT ${checked} -x c++ ${CMAKE_SOURCE_DIR}/${header}
    COMMAND ${CMAKE_COMMAND} -E touch ${checked}
    DEPENDS ${CMAKE_SOURCE_DIR}/${header} $<$<NOT:$<STREQUAL:${set},none>>:${folder}/${set}.pch>
    DEPFILE ${checked}.d COMMENT "Header ${name} by itself" COMMAND_EXPAND_LISTS VERBATIM)
  set_property(GLOBAL APPEND PROPERTY PLIMSOLL_CHECKED_HEADERS ${checked})
endfunction()

# result: the sets that `header`, a path from the root, reaches: a list of tensor (ATen/core and c10), torch and json.
function(plimsoll_reached header result)
  get_property(is_known GLOBAL PROPERTY PLIMSOLL_REACHED_${header} SET)
  if(NOT is_known)
    set(all "")
    set_property(GLOBAL PROPERTY PLIMSOLL_REACHED_${header} "") # in a circle of includes
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^#include")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include [<\"]([^>\"]+)[>\"].*" "\\1" name "${line}")
      if(name MATCHES "^plimsoll/" AND EXISTS ${CMAKE_SOURCE_DIR}/${name})
        plimsoll_reached(${name} reached)
        list(APPEND all ${reached})
      elseif(name MATCHES "^(ATen/core|c10)/")
        list(APPEND all tensor)
      elseif(name MATCHES "^(torch|ATen)/")
        list(APPEND all torch)
      elseif(name STREQUAL "nlohmann/json.hpp")
        list(APPEND all json)
      endif()
    endforeach()
    list(REMOVE_DUPLICATES all)
    set_property(GLOBAL PROPERTY PLIMSOLL_REACHED_${header} "${all}")
  endif()
  get_property(all GLOBAL PROPERTY PLIMSOLL_REACHED_${header})
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

# result: the one of the sets above that holds all that `header` reaches, or none.
function(plimsoll_set_of header result)
  plimsoll_reached(${header} reached)
  set(parts "")
  if("torch" IN_LIST reached)
    list(APPEND parts torch)
  elseif("tensor" IN_LIST reached)
    list(APPEND parts tensor)
  endif()
  if("json" IN_LIST reached)
    list(APPEND parts json)
  endif()
  list(JOIN parts _ set)
  if(NOT parts)
    set(set none)
  endif()
  set(${result} ${set} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plimsoll/*.h)
list(FILTER headers EXCLUDE REGEX "_testing\\.h$")
foreach(header IN LISTS headers)
  plimsoll_set_of(${header} set)
  plimsoll_check_header(${header} ${set})
endforeach()

get_property(checked GLOBAL PROPERTY PLIMSOLL_CHECKED_HEADERS)
add_custom_target(headers DEPENDS ${checked})

# cbench_module(name DEPS... ): src/<name>/*.cpp become the static library cbench_<name>.
# cbench_test(name DEPS... ): tests/<name>/*_test.cpp become the test binary test_<name>.
add_library(cbench_options INTERFACE)
# -Wno-restrict: GCC 12 at -O3 sees overlap in plain std::string concatenation (GCC bug 105329).
target_compile_options(cbench_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers -Werror>
  # Loops marked for vectors stay scalar under instrumentation: no reason to fail.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>)
target_include_directories(cbench_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(cbench_options INTERFACE CBENCH_VERSION="${PROJECT_VERSION}")
if(CBENCH_HAVE_CUDA)
  target_compile_definitions(cbench_options INTERFACE CBENCH_HAVE_CUDA=1)
endif()
if(CBENCH_SANITIZE)
  target_compile_options(cbench_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=${CBENCH_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(cbench_options INTERFACE -fsanitize=${CBENCH_SANITIZE})
endif()

function(cbench_module name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_library(cbench_${name} STATIC ${sources})
  target_link_libraries(cbench_${name} PUBLIC cbench_options)
  foreach(dep ${ARG_DEPS})
    if(TARGET ${dep} OR dep MATCHES "::")
      target_link_libraries(cbench_${name} PUBLIC ${dep})
    endif()
  endforeach()
endfunction()

function(cbench_test name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE
    CBENCH_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures" CBENCH_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    CBENCH_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(test_${name} PRIVATE cbench_options GTest::gtest GTest::gmock GTest::gtest_main)
  foreach(dep ${ARG_DEPS})
    if(TARGET ${dep} OR dep MATCHES "::")
      target_link_libraries(test_${name} PRIVATE ${dep})
    endif()
  endforeach()
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS ${name} TIMEOUT 600)
endfunction()

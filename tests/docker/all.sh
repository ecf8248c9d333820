#!/bin/sh
# The tests of the docker group, with the engine that scripts/with_docker.sh has started.
# usage: all.sh TEST_BOX TEST_DOCKER
set -u
status=0
"$1" --gtest_filter='*/docker' --gtest_brief=1 || status=1
"$2" --gtest_brief=1 || status=1
exit $status

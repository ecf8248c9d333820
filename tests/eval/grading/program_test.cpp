// Generated programs in their boxes: real items, and programs that try to pass without being right.
#include "eval/grading/program.h"

#include <gtest/gtest.h>

#include "eval/grading/items.h"
#include "eval/grading/prompts.h"
#include "util/error.h"

namespace cbench {
namespace {

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      require_box(BoxKind::kBwrap);
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

Program add(const std::string& completion) {
  return {
      "add", "def add(a, b):\n    \"\"\"Return a + b.\"\"\"\n", completion,
      "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
      "add"};
}

TEST_F(ProgramTest, RealItems) {
  std::vector<Program> programs;
  const auto items =
      read_humaneval(std::string(CBENCH_FIXTURES) + "/grading/humaneval_sample.jsonl");
  ASSERT_EQ(items.size(), 10u);
  for (const HumanEvalItem& item : items) {
    programs.push_back(
        humaneval_program(item, item.canonical_solution + "\ndef next():\n  pass\n"));
    programs.push_back(humaneval_program(item, ""));
  }
  const std::vector<ProgramResult> results = run_programs(programs);
  ASSERT_EQ(results.size(), programs.size());
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].id, programs[i].id);
    EXPECT_EQ(results[i].passed, i % 2 == 0) << results[i].id << ": " << results[i].reason;
  }
}

TEST_F(ProgramTest, NothingButTheRightValuesPasses) {
  const char* hostile[] = {
      "    import os\n    os._exit(0)\n",
      "    import sys\n    sys.exit(0)\n",
      "    print('passed'); return 0\n",
      "    class Same:\n        __eq__ = lambda s, o: True\n        __ne__ = lambda s, o: False\n"
      "    return Same()\n",
      "    class Same(int):\n        __eq__ = lambda s, o: True\n    return Same(7)\n",
      "    import builtins\n    builtins.AssertionError = ZeroDivisionError\n    return 0\n",
      "    import os\n    for f in range(3, 99):\n        try: os.write(f, b'\\0' * 9 + "
      "b'passed\\n')\n"
      "        except OSError: pass\n    return 0\n",
      "    import os\n    os.closerange(0, 99)\n",
      "    import os\n    for f in os.listdir('/proc'):\n        if f.isdigit() and int(f) != "
      "os.getpid():\n"
      "            try: os.kill(int(f), 9)\n            except OSError: pass\n    return 0\n",
      "    import gc, inspect\n    for o in gc.get_objects():\n        if isinstance(o, dict) and "
      "'nonce' in o:\n"
      "            print(o)\n    return [f.frame.f_locals for f in inspect.stack()] and 0\n",
      "    import os\n    while True:\n        os.fork()\n",
      "    while True: print('x' * 100000)\n",
      "    f = open('/tmp/fill', 'wb')\n    while True: f.write(b'x' * (1 << 20))\n",
      "    return b'x' * (1 << 40)\n",
      "    return int(input())\n",
      "    import socket\n    socket.create_connection(('127.0.0.1', 1))\n",
      "    import sys\n    sys.setrecursionlimit(10**9)\n    return add(a, b)\n",
      "    x = []\n    for _ in range(100000): x = [x]\n    return x\n",
      "    def forever():\n        while True: yield 1\n    return forever()\n",
      "    return float('nan')\n",
      "    import os\n    os.kill(1, 9); os.kill(os.getppid(), 9)\n",
      "    import json, sys\n    sys.modules['__main__'].encode = lambda *a: ['passed']\n    "
      "return 0\n",
  };
  std::vector<Program> programs;
  for (const char* completion : hostile) programs.push_back(add(completion));
  ProgramOptions options;
  options.seconds = 1.5;
  options.retry_timeouts = false;
  const std::vector<ProgramResult> results = run_programs(programs, options);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_FALSE(results[i].passed) << hostile[i];
    EXPECT_NE(results[i].reason, "bad_item") << hostile[i];
  }
}

TEST_F(ProgramTest, RightValuesPassWhateverElseHappens) {
  const char* right[] = {
      "    return a + b",
      "    print('x' * 10_000_000)\n    return a + b\n",
      "    import os\n    if os.fork() == 0:\n        while True: pass\n    return a + b\n",
      "    import subprocess\n    subprocess.Popen(['/bin/sleep', '100'], start_new_session=True)\n"
      "    return a + b\n",
      "    return a + b\n\ncheck = lambda f: None\n",
      "    return float(a + b)\n",
  };
  std::vector<Program> programs;
  for (const char* completion : right) programs.push_back(add(completion));
  const std::vector<ProgramResult> results = run_programs(programs);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].passed) << right[i] << ": " << results[i].reason;
  }
}

TEST_F(ProgramTest, ValuesTravelAsTheyAre) {
  struct Case {
    const char *body, *test;
    bool passes;
  };
  const Case cases[] = {
      {"    return (1, [2.5, None], {'a': {3}}, True, 1j, b'b')\n",
       "assert candidate(0) == (1, [2.5, None], {'a': {3}}, True, 1j, b'b')", true},
      {"    return (1, 2)\n", "assert candidate(0) == [1, 2]", false},
      {"    return 1 == 1\n", "assert candidate(0) is True", true},
      {"    return None\n", "assert candidate(0) is None", true},
      {"    x.sort()\n", "l = [2, 1]\n    candidate(l)\n    assert l == [1, 2]", true},
      {"    raise ValueError('no')\n",
       "try: candidate(0)\n    except ValueError: return\n    assert False", true},
      {"    return map(str, [1, 2])\n", "assert list(candidate(0)) == ['1', '2']", true},
      {"    return map(str, [1, 2])\n", "assert candidate(0) == ['1', '2']", false},
      {"    return 10 ** 5000\n", "assert candidate(0) == 10 ** 5000", true},
      {"    return 'e\\u0301\\ud800'\n", "assert candidate(0) == 'e\\u0301\\ud800'", true},
      {"    return x\n", "import random\n    y = random.random()\n    assert candidate(y) == y",
       true},
      {"    return object()\n", "assert candidate(0) == candidate(0)", false},
  };
  std::vector<Program> programs;
  for (const Case& c : cases) {
    programs.push_back({c.body, "def f(x):\n", c.body,
                        std::string("def check(candidate):\n    ") + c.test + "\n", "f"});
  }
  const std::vector<ProgramResult> results = run_programs(programs);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].passed, cases[i].passes) << cases[i].body << results[i].reason;
  }
}

TEST_F(ProgramTest, TimeOutIsRetriedAndABadItemIsNamed) {
  ProgramOptions options;
  options.seconds = 0.7;
  Program broken = add("    return a + b\n");
  broken.test = "def check(candidate:\n";
  const auto results = run_programs({add("    while True: pass\n"), broken}, options);
  EXPECT_EQ(results[0].reason, "time_out");
  EXPECT_EQ(results[0].attempts, 2);
  EXPECT_EQ(results[1].reason, "bad_item");
}

}  // namespace
}  // namespace cbench

// Throughput and memory of the downloader against curl and aria2c on the same file over loopback:
//   fetch_throughput [MiB] [folder]
// The server is a process of its own that uses sendfile(2). cbench hashes; curl does not; aria2c is
// run with and without its own hash check. Prints one line a tool:
// MiB/s, CPU seconds, peak resident MiB; the best of three rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fetch/download.h"
#include "util/clock.h"
#include "util/process.h"

namespace cbench {
namespace {

void serve_one(int fd, int file, int64_t size) {
  std::string head;
  char block[4096];
  while (true) {
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, block, sizeof block, 0);
      if (n <= 0) {
        ::close(fd);
        return;
      }
      head.append(block, static_cast<size_t>(n));
    }
    int64_t from = 0, to = size - 1;
    const size_t range = head.find("bytes=");
    if (range != std::string::npos) {
      from = std::strtoll(head.c_str() + range + 6, nullptr, 10);
      const size_t dash = head.find('-', range);
      if (std::isdigit(static_cast<unsigned char>(head[dash + 1])) != 0) {
        to = std::min<int64_t>(to, std::strtoll(head.c_str() + dash + 1, nullptr, 10));
      }
    }
    std::string reply = range == std::string::npos
                            ? "HTTP/1.1 200 OK\r\n"
                            : "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " +
                                  std::to_string(from) + "-" + std::to_string(to) + "/" +
                                  std::to_string(size) + "\r\n";
    reply +=
        "Accept-Ranges: bytes\r\nContent-Length: " + std::to_string(to - from + 1) + "\r\n\r\n";
    ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_MORE);
    const bool body = !head.starts_with("HEAD");
    head.clear();
    off_t offset = from;
    while (body && offset <= to) {
      if (::sendfile(fd, file, &offset, static_cast<size_t>(to - offset + 1)) <= 0) break;
    }
  }
}

/// Starts the server process; its port.
int start_server(const std::string& path, int64_t size) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::listen(listener, 64);
  socklen_t length = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGPIPE, SIG_IGN);
    const int file = ::open(path.c_str(), O_RDONLY);
    while (true) {
      const int fd = ::accept(listener, nullptr, nullptr);
      std::thread([=] { serve_one(fd, file, size); }).detach();
    }
  }
  return ntohs(address.sin_port);
}

struct Measured {
  double seconds = -1;  // < 0: failed
  double cpu = 0;       // seconds, user and system
  double peak_mib = 0;
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

/// Runs `body` in a child.
Measured measure(const std::function<int()>& body) {
  const double started = boot_seconds();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  const double seconds = boot_seconds() - started;
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return {good ? seconds : -1, seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
          static_cast<double>(usage.ru_maxrss) / 1024};
}

int run_tool(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  return 127;
}

int run_cbench(const std::string& url, const std::string& folder, int64_t size,
               const std::string& sha256, int connections) {
  HttpContext context;
  Download file;
  file.url = url;
  file.path = folder + "/out";
  file.name = "out";
  file.size = size;
  file.sha256 = sha256;
  DownloadOptions options;
  options.connections = connections;
  try {
    download_all({file}, folder + "/work", context, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

int run(int64_t mib, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string source = folder + "/source";
  const int64_t size = mib << 20;
  {
    Fd fd(::open(source.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
    std::string block(1 << 20, '\0');
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>((i * 2654435761u) >> 11);
    for (int64_t i = 0; i < mib; ++i) {
      block[0] = static_cast<char>(i);
      write_all(fd, block, source);
    }
  }
  const std::string sha256 = sha256_file(source);
  const std::string url = "http://127.0.0.1:" + std::to_string(start_server(source, size)) + "/f";
  const std::string out = folder + "/out";
  const auto report = [&](const char* name, const std::function<int()>& body) {
    double best = 0, peak = 0, cpu = 1e9;
    for (int round = 0; round < 3; ++round) {
      std::filesystem::remove(out);
      const Measured measured = measure(body);
      if (measured.seconds < 0) continue;
      best = std::max(best, static_cast<double>(mib) / measured.seconds);
      cpu = std::min(cpu, measured.cpu);
      peak = std::max(peak, measured.peak_mib);
    }
    std::printf("%-28s %8.0f MiB/s %7.2f s CPU %8.1f MiB resident\n", name, best, cpu, peak);
    std::fflush(stdout);
  };
  report("curl", [&] { return run_tool({"curl", "-s", "-o", out, url}); });
  report("curl, then sha256sum", [&] {
    return run_tool(
        {"sh", "-c", "curl -s -o " + out + " " + url + " && sha256sum " + out + " >/dev/null"});
  });
  if (!find_program("aria2c").empty()) {
    const std::vector<std::string> aria = {"aria2c", "-q",   "-x4", "-s4", "--file-allocation=none",
                                           "-d",     folder, "-o",  "out", url};
    report("aria2c, 4 connections", [&] { return run_tool(aria); });
    std::vector<std::string> checked = aria;
    checked.insert(checked.begin() + 1, "--checksum=sha-256=" + sha256);
    report("aria2c, 4, hashing", [&] { return run_tool(checked); });
  }
  report("cbench, 1 connection, hashing", [&] { return run_cbench(url, folder, size, sha256, 1); });
  report("cbench, 4 connections, hashing",
         [&] { return run_cbench(url, folder, size, sha256, 4); });
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace cbench

int main(int argc, char** argv) {
  const int64_t mib = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 1024;
  return cbench::run(mib, argc > 2 ? argv[2] : "/dev/shm/cbench-throughput");
}

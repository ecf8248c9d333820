// One connection of the box to the relay: requests one after the other, each forwarded or refused.
#pragma once

#include <string>
#include <string_view>

#include "relay/log.h"
#include "relay/relay.h"
#include "relay/request.h"
#include "relay/usage.h"

namespace cbench::relay {

class Connection {
 public:
  Connection(Fd socket, const RelayOptions& options, CallLog& log)
      : socket_(std::move(socket)), options_(options), log_(log), upstream_(options.upstream) {}
  /// Returns when either side is done with it.
  void run();
  /// Answers that the relay is busy, and closes.
  static void turn_away(Fd socket, const RelayOptions& options);

 private:
  enum class Got { kData, kEnd, kTimeout };
  Got read_more(double deadline);
  bool read_head(RequestHead& head);
  bool read_body(const RequestHead& head, std::string& body, CallRecord& record);
  bool serve_one();
  bool forward(const RequestHead& head, const std::string& body, CallRecord& record);
  UpstreamCall make_call(const RequestHead& head, const std::string& body) const;
  bool begin_answer(int status, const std::vector<std::pair<std::string, std::string>>& fields,
                    CallRecord& record);
  bool pass_on(std::string_view bytes, CallRecord& record, UsageWatch& usage);
  void classify(const UpstreamEnd& end, CallRecord& record) const;
  bool conclude(const UpstreamEnd& end, const CallRecord& record);
  bool refuse(const Refusal& refusal, CallRecord& record, bool keep);
  bool answer_error(int status, std::string_view type, std::string_view message, bool keep);
  bool client_is_there() const;
  bool send(std::string_view bytes);
  void linger();

  Fd socket_;
  const RelayOptions& options_;
  CallLog& log_;
  Upstream upstream_;
  std::string buffer_;  ///< received, not yet used
  bool keep_alive_ = true;
  bool answering_ = false;  ///< the head of the answer has been sent
};

}  // namespace cbench::relay
